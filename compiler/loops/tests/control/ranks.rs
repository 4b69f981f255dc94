//! Choices between values of unlike ranks whose results are results of the model.

use onnxc_proto::{FunctionProto, ModelProto, OperatorSetIdProto};

use super::*;
use onnxc_ir::rules::Rule;

/// `y`, which is `x: i64[2, n, 3]` without the axis of size `n` where that is 1, as exporters write `squeeze(1)`.
fn squeezed() -> Vec<NodeProto> {
    let mut all = nodes(&["s = Shape(x)", "d = Gather(s, one)", "c = Equal(d, one)"]);
    all.push(choose(
        graph(&[], nodes(&["t = Squeeze(x, one)"]), &["t"]),
        graph(&[], nodes(&["e = Identity(x)"]), &["e"]),
    ));
    all
}

fn whole(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    with_constants(graph(inputs, nodes, outputs), &[("one", &[1], false), ("zero", &[0], false)])
}

/// `[2, n, 3]`
fn x(n: usize) -> Tensor {
    Tensor::from_slice(&[2, n, 3], &(0..6 * n as i64).collect::<Vec<_>>())
}

fn up_to(count: i64) -> Vec<i64> {
    (0..count).collect()
}

/// The least and the highest rank of each output that has several.
fn ranks(model: &Graph) -> Vec<(usize, usize, usize)> {
    model.any_rank.iter().map(|(&at, own)| (at, own.least, model.output_ty(at).rank())).collect()
}

#[test]
fn a_result_has_the_rank_of_the_run() {
    // A declared rank that is one of them says nothing about the others.
    for output in ["y", "y: i64[2, 3]", "y: i64[2, k, 3]", "y: i64*"] {
        let model = imported(whole(&["x: i64[2, n, 3]"], squeezed(), &[output]));
        assert_eq!(ranks(&model), [(0, 2, 3)], "{output}");
        assert_eq!(run(&model, &[x(1)]).unwrap(), [(vec![2, 3], up_to(6))]);
        assert_eq!(run(&model, &[x(2)]).unwrap(), [(vec![2, 2, 3], up_to(12))]);
        assert_eq!(run(&model, &[x(0)]).unwrap(), [(vec![2, 0, 3], vec![])]);
    }
}

#[test]
fn what_follows_is_computed_on_each_rank() {
    let after = [squeezed(), vec![node("z = ReduceSum(y, zero)").with(int("keepdims", 0))]].concat();
    let model = imported(whole(&["x: i64[2, n, 3]"], after.clone(), &["z"]));
    assert_eq!(ranks(&model), [(0, 1, 2)]);
    assert_eq!(run(&model, &[x(1)]).unwrap(), [(vec![3], vec![3, 5, 7])]);
    assert_eq!(run(&model, &[x(2)]).unwrap(), [(vec![2, 3], vec![6, 8, 10, 12, 14, 16])]);
    // It is a result itself, and so is one that has one rank on both ways.
    let both = [after, vec![node("sum = ReduceSum(z)").with(int("keepdims", 0))]].concat();
    let model = imported(whole(&["x: i64[2, n, 3]"], both, &["sum", "y", "z"]));
    assert_eq!(ranks(&model), [(1, 2, 3), (2, 1, 2)]);
    let wanted = [(vec![], vec![15]), (vec![2, 3], up_to(6)), (vec![3], vec![3, 5, 7])];
    assert_eq!(run(&model, &[x(1)]).unwrap(), wanted);
    let wanted = [(vec![], vec![66]), (vec![2, 2, 3], up_to(12)), (vec![2, 3], vec![6, 8, 10, 12, 14, 16])];
    assert_eq!(run(&model, &[x(2)]).unwrap(), wanted);
}

/// `out`, which is `a` with `axes` more axes where `condition` holds.
fn extended(out: &str, condition: &str, a: &str, axes: &str) -> NodeProto {
    let then = graph(&[], nodes(&[&format!("{out}_t = Unsqueeze({a}, {axes})")]), &[&format!("{out}_t")]);
    let otherwise = graph(&[], nodes(&[&format!("{out}_e = Neg({a})")]), &[&format!("{out}_e")]);
    let branches = [subgraph("then_branch", then), subgraph("else_branch", otherwise)];
    branches.into_iter().fold(node(&format!("{out} = If({condition})")), |node, branch| node.with(branch))
}

#[test]
fn choices_inside_each_other_and_beside_each_other() {
    // In a branch, three ranks in all: 1, 2 and 3.
    let inner = graph(&[], vec![extended("r", "d", "a", "two")], &["r"]);
    let outer = choose(inner, graph(&[], nodes(&["e = Unsqueeze(a, zero)"]), &["e"]));
    let two: (&str, &[i64], bool) = ("two", &[0, 1], false);
    let inputs = ["c: bool[]", "d: bool[]", "a: i64[n]"];
    let model = imported(with_constants(whole(&inputs, vec![outer.clone()], &["y"]), &[two]));
    assert_eq!(ranks(&model), [(0, 1, 3)]);
    let operands = |c: bool, d: bool| [Tensor::scalar(c), Tensor::scalar(d), vector(&[4, 5])];
    assert_eq!(run(&model, &operands(true, true)).unwrap(), [(vec![1, 1, 2], vec![4, 5])]);
    assert_eq!(run(&model, &operands(true, false)).unwrap(), [(vec![2], vec![-4, -5])]);
    assert_eq!(run(&model, &operands(false, true)).unwrap(), [(vec![1, 2], vec![4, 5])]);
    // What follows the outer one follows the inner one, too.
    let after = vec![outer, node("z = Neg(y)"), node("count = Size(y)")];
    let model = imported(with_constants(whole(&inputs, after, &["z", "count"]), &[two]));
    assert_eq!(ranks(&model), [(0, 1, 3)]);
    assert_eq!(run(&model, &operands(true, false)).unwrap(), [(vec![2], vec![4, 5]), (vec![], vec![2])]);
    // Two, whose results are handed out and are added, each in its own rank.
    let two_of = vec![
        extended("p", "c", "a", "zero"),
        extended("q", "d", "a", "two"),
        node("sum = Add(p, q)"),
        node("other = Neg(a)"),
    ];
    let model = imported(with_constants(whole(&inputs, two_of, &["q", "other", "sum", "p"]), &[two]));
    assert_eq!(ranks(&model), [(0, 1, 3), (2, 1, 3), (3, 1, 2)]);
    for (c, d) in [(true, true), (true, false), (false, true), (false, false)] {
        let (p, p_shape) = if c { (vec![4, 5], vec![1, 2]) } else { (vec![-4, -5], vec![2]) };
        let (q, q_shape) = if d { (vec![4, 5], vec![1, 1, 2]) } else { (vec![-4, -5], vec![2]) };
        let sum: Vec<i64> = p.iter().zip(&q).map(|(p, q)| p + q).collect();
        let sum_shape = if q_shape.len() > p_shape.len() { q_shape.clone() } else { p_shape.clone() };
        let wanted = [(q_shape, q), (vec![2], vec![-4, -5]), (sum_shape, sum), (p_shape, p)];
        assert_eq!(run(&model, &operands(c, d)).unwrap(), wanted, "{c} {d}");
    }
}

#[test]
fn nodes_that_do_not_read_the_value_are_not_imported_twice() {
    let rest: Vec<NodeProto> = (0..8).map(|at| node(&format!("t{} = Neg(t{at})", at + 1))).collect();
    let all = [squeezed(), nodes(&["t0 = Neg(x)"]), rest].concat();
    let model = imported(whole(&["x: i64[2, n, 3]"], all, &["y", "t8"]));
    assert_eq!((count(&model, "if"), count(&model, "neg")), (1, 9), "{model}");
}

/// A scalar in one branch and one axis in the other, and sizes that only a branch determines.
#[test]
fn ranks_of_scalars_and_of_sizes_that_data_decide() {
    let scalar = choose(
        graph(&[], vec![node("t = ReduceSum(a)").with(int("keepdims", 0))], &["t"]),
        graph(&[], nodes(&["e = NonZero(a)"]), &["e"]),
    );
    let model = imported(whole(&["c: bool[]", "a: i64[n]"], vec![scalar], &["y"]));
    assert_eq!(ranks(&model), [(0, 0, 2)]);
    let operands = |c: bool| [Tensor::scalar(c), vector(&[3, 0, 4])];
    assert_eq!(run(&model, &operands(true)).unwrap(), [(vec![], vec![7])]);
    assert_eq!(run(&model, &operands(false)).unwrap(), [(vec![1, 2], vec![0, 2])]);
    // All sizes are known, the rank is not.
    let all = vec![extended("y", "c", "a", "one")];
    let model = imported(whole(&["c: bool[]", "a: i64[3]"], all, &["y"]));
    assert_eq!(model.output_ty(0).to_string(), "i64[3, 1]");
    assert_eq!(run(&model, &operands(true)).unwrap(), [(vec![3, 1], vec![3, 0, 4])]);
    assert_eq!(run(&model, &operands(false)).unwrap(), [(vec![3], vec![-3, 0, -4])]);
}

fn with_function(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let opset =
        |domain: &str, version| OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) };
    let body = vec![extended("r", "k", "v", "axis")];
    let function = FunctionProto {
        name: Some("Choose".into()),
        domain: Some("own".into()),
        input: ["k", "v", "axis"].map(String::from).into(),
        output: vec!["r".into()],
        node: body,
        opset_import: vec![opset("", 17)],
        ..Default::default()
    };
    let mut model = build::model(17, whole(&["c: bool[]", "a: i64[n]"], nodes, outputs));
    model.opset_import.push(opset("own", 1));
    model.functions = vec![function];
    model
}

#[test]
fn choices_in_functions() {
    let call = || {
        let mut call = node("y = Choose(c, a, zero)");
        call.domain = Some("own".into());
        call
    };
    let outcome = |model: ModelProto| {
        import(&model, &ImportOptions::default(), &NoExternalData, &onnxc_ops::Table::standard())
    };
    let model = outcome(with_function(vec![call()], &["y"])).unwrap().graph;
    assert_eq!(ranks(&model), [(0, 1, 2)]);
    assert_eq!(run(&model, &[Tensor::scalar(true), vector(&[1])]).unwrap(), [(vec![1, 1], vec![1])]);
    // What follows a call cannot be imported inside it.
    let errors = outcome(with_function(vec![call(), node("z = Neg(y)")], &["z"])).unwrap_err();
    assert!(
        errors.iter().any(|error| error.message.contains("a call of a function goes on with it")),
        "{errors:?}"
    );
}

#[test]
fn loops_keep_the_ranks_of_their_values() {
    let body = graph(
        &["i: i64[]", "keep: bool[]", "v: i64[n]"],
        vec![node("go = Identity(keep)"), extended("next", "c", "v", "zero")],
        &["go", "next"],
    );
    let looped = repeat("m, , a", "last", body);
    let refuse = |inputs: &[&str], nodes: Vec<NodeProto>, text: &str| {
        refused(whole(inputs, nodes, &["last"]), text);
    };
    let inputs = ["m: i64[]", "c: bool[]", "a: i64[n]"];
    refuse(
        &inputs,
        vec![looped],
        "output 0 is i64[1, s0] in one branch and i64[s0] in the other; where a loop or a call",
    );
    // One that grows by an axis in each iteration.
    let body = graph(
        &["i: i64[]", "keep: bool[]", "v"],
        nodes(&["go = Identity(keep)", "next = Unsqueeze(v, zero)"]),
        &["go", "next"],
    );
    refuse(&inputs, vec![repeat("m, , a", "last", body)], "rank");
}

#[test]
fn a_declared_rank_that_is_none_of_them_is_warned_of() {
    let model = build::model(17, whole(&["x: i64[2, n, 3]"], squeezed(), &["y: i64[2]"]));
    let import =
        import(&model, &ImportOptions::default(), &NoExternalData, &onnxc_ops::Table::standard()).unwrap();
    let found: Vec<_> = import.warnings.iter().map(|warning| warning.rule).collect();
    assert_eq!(found, [Rule::DeclaredShape], "{:?}", import.warnings);
    let text = "`y` is declared as i64[2], and it is i64 of rank 2 to 3, which holds";
    assert!(import.warnings[0].problem.message.contains(text), "{:?}", import.warnings);
}
