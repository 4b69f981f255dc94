//! Choices between values of unlike ranks, on the real operators: what follows is imported again in each body.

use super::*;

fn body(nodes: Vec<NodeProto>) -> GraphProto {
    graph(vec![], nodes, vec![untyped("r")])
}

fn choice(output: &str, then: NodeProto, otherwise: NodeProto) -> NodeProto {
    let branches =
        vec![a_graph("then_branch", body(vec![then])), a_graph("else_branch", body(vec![otherwise]))];
    with(node("If", &["c"], &[output]), branches)
}

/// `y` of unknown rank, from `x: f32[N, M]` and `c: bool[]`.
fn open_rank(nodes: Vec<NodeProto>) -> ModelProto {
    let inputs = vec![value("c", DType::Bool, &[]), f32v("x", &["N", "M"])];
    let model = build::model(13, graph(inputs, nodes, vec![untyped("y")]));
    let axis = build::i64_tensor("axis", &[1], vec![0]);
    with_initializers(model, vec![axis])
}

/// Choices in a row, the ranks of whose branches differ.
fn choices(count: usize) -> Vec<NodeProto> {
    let step = |at: usize| {
        let (x, middle) = (if at == 0 { "x".into() } else { format!("x{at}") }, format!("t{at}"));
        let next = if at + 1 == count { "y".into() } else { format!("x{}", at + 1) };
        let then = node("Unsqueeze", &[&x, "axis"], &["r"]);
        [choice(&middle, then, node("Neg", &[&x], &["r"])), node("Exp", &[&middle], &[&next])]
    };
    (0..count).flat_map(step).collect()
}

/// One choice inside a branch of another: the rest of the model follows the inner one.
fn choice_in_a_choice() -> Vec<NodeProto> {
    let inner = choice("r", node("Unsqueeze", &["x", "axis"], &["r"]), node("Neg", &["x"], &["r"]));
    vec![choice("t", inner, node("Exp", &["x"], &["r"])), node("Exp", &["t"], &["y"])]
}

/// Removes axes of unknown sizes where these are 1.
fn squeezes() -> Vec<NodeProto> {
    vec![node("Squeeze", &["x"], &["t"]), node("Squeeze", &["t"], &["u"]), node("Exp", &["u"], &["y"])]
}

#[test]
fn a_walk_that_ended_early_is_always_an_error() {
    for nodes in [choices(1), choices(3), choice_in_a_choice(), squeezes()] {
        let model = open_rank(nodes);
        let within = |primitives: u64| {
            let limits = Limits { primitives, ..Limits::default() };
            import(
                &model,
                &ImportOptions { limits, ..Default::default() },
                &NoExternalData,
                &Table::standard(),
            )
        };
        let text = |outcome: &Outcome| match outcome {
            Ok(import) => Ok(import.graph.to_string()),
            Err(errors) => Err(errors.iter().map(|error| error.message.clone()).collect::<Vec<_>>()),
        };
        let whole = text(&within(10_000));
        let mut refused = 0;
        for primitives in 0.. {
            let found = text(&within(primitives));
            if found == whole {
                break;
            }
            let expected = format!(
                "the model becomes more than {primitives} primitives, functions and bodies taken apart"
            );
            let errors = found.expect_err("a graph that is not the whole model");
            assert!(errors.contains(&expected), "{errors:?}");
            refused += 1;
        }
        assert!(refused > 2, "the budget was never used up");
    }
}
