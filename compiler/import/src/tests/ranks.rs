//! Inputs that are declared without a shape, or with a wrong one.

use super::*;

/// On the real operators, with these shapes and pins.
fn compile(model: &ModelProto, shapes: &[&str], pins: &[&str]) -> Outcome {
    let options = ImportOptions {
        input_shapes: shapes.iter().map(|shape| shape.parse().unwrap()).collect(),
        input_dims: pins.iter().map(|pin| pin.parse().unwrap()).collect(),
        ..Default::default()
    };
    import(model, &options, &NoExternalData, &Table::standard())
}

/// A tensor of unknown rank.
fn open(name: &str) -> ValueInfoProto {
    let tensor = onnxc_proto::type_proto::Tensor { elem_type: Some(DType::F32.to_onnx()), shape: None };
    build::typed(name, onnxc_proto::type_proto::Value::TensorType(tensor))
}

fn open_model(inputs: &[&str], nodes: Vec<NodeProto>, output: ValueInfoProto) -> ModelProto {
    model_of(graph(inputs.iter().map(|name| open(name)).collect(), nodes, vec![output]))
}

fn found(outcome: Outcome) -> (Vec<String>, Vec<String>) {
    let import = outcome.unwrap_or_else(|errors| panic!("{errors:#?}"));
    (input_types(&import.graph), import.notes)
}

fn messages(outcome: Outcome) -> Vec<String> {
    outcome.expect_err("the model should be refused").into_iter().map(|error| error.message).collect()
}

#[test]
fn a_given_shape_holds_where_none_is_declared() {
    let model = open_model(&["x"], vec![node("Abs", &["x"], &["y"])], untyped("y"));
    for (shape, wanted) in [
        ("x=1,3,4", "x: f32[1, 3, 4]"),
        ("x=N,3,N", "x: f32[s0, 3, s0]"),
        ("x=?,?", "x: f32[s0, s1]"),
        ("x=[]", "x: f32[]"),
    ] {
        assert_eq!(found(compile(&model, &[shape], &[])), (vec![wanted.to_string()], vec![]), "{shape}");
    }
    let pinned = found(compile(&model, &["x=N,?,M"], &["N=2", "x:1=5"])).0;
    assert_eq!(pinned, ["x: f32[2, 5, s0]"]);
}

#[test]
fn a_given_shape_holds_in_place_of_a_wrong_one() {
    let nodes = vec![node("Transpose", &["x"], &["t"]), node("Abs", &["t"], &["y"])];
    let model = model_of(graph(vec![f32v("x", &["1", "N", "4"])], nodes, vec![untyped("y")]));
    let note = |dims: &str| vec![format!("`x` is declared as f32[1, N, 4]; --input-shape gives it {dims}")];
    let cases: [(&str, &str, Vec<String>); 3] = [
        ("x=2,N,4", "x: f32[2, s0, 4]", note("[2, N, 4]")),
        ("x=N,4", "x: f32[s0, 4]", note("[N, 4]")),
        // Nothing is contradicted.
        ("x=1,7,M", "x: f32[1, 7, s0]", vec![]),
    ];
    for (shape, wanted, notes) in cases {
        assert_eq!(found(compile(&model, &[shape], &[])), (vec![wanted.to_string()], notes), "{shape}");
    }
}

#[test]
fn elements_of_optionals_and_sequences_have_given_shapes() {
    use onnxc_proto::type_proto::{Optional, Sequence, Value};
    let ty = || open("x").r#type.map(Box::new);
    let optional = build::typed("x", Value::OptionalType(Box::new(Optional { elem_type: ty() })));
    let nodes = vec![node("OptionalGetElement", &["x"], &["y"])];
    let model = build::model(18, graph(vec![optional], nodes, vec![untyped("y")]));
    let text = messages(compile(&model, &[], &[])).join(" ");
    assert!(text.contains("its rank is unknown: give its shape, --input-shape x=DIM,..."), "{text}");
    assert_eq!(found(compile(&model, &["x=2,?"], &[])).0, ["x.present: bool[]", "x.element: f32[2, s0]"]);
    let sequence = build::typed("x", Value::SequenceType(Box::new(Sequence { elem_type: ty() })));
    let zero = build::i64_tensor("zero", &[], vec![0]);
    let nodes = vec![node("SequenceAt", &["x", "zero"], &["y"])];
    let model = with_initializers(model_of(graph(vec![sequence], nodes, vec![untyped("y")])), vec![zero]);
    assert_eq!(found(compile(&model, &["x=?,?,?"], &[])).0[0], "x.shapes: i64[s0, 3]");
}

#[test]
fn wrong_shapes_name_the_input() {
    let model = open_model(&["x", "z"], vec![node("Add", &["x", "z"], &["y"])], untyped("y"));
    let usage = |shapes: &[&str], pins: &[&str], wanted: &str| {
        let errors = compile(&model, shapes, pins).unwrap_err();
        let found = errors.iter().any(|error| error.kind == Kind::Usage && error.message.contains(wanted));
        assert!(found, "{errors:#?}");
    };
    usage(&["q=1"], &[], "no input is `q`; there are x, z");
    usage(&["x=1", "x=2"], &[], "two shapes");
    usage(&[], &["x:0=2"], "--input-dim x:0=2: its rank is unknown: give its shape, --input-shape x=DIM,...");
    usage(&["x=1,2"], &["x:2=1"], "input `x` has no axis 2: its rank is 2");
    usage(&["x=1,2"], &["x:0=3"], "`x:0` is 1, not 3; --input-shape gives an input another shape");
    let constant = with_initializers(
        open_model(&["x", "w"], vec![node("Add", &["x", "w"], &["y"])], untyped("y")),
        vec![f32s("w", &[2], &[1.0, 2.0])],
    );
    let text = messages(compile(&constant, &["x=2", "w=3"], &[])).join(" ");
    assert!(text.contains("--input-shape of `w`: an initializer of shape [2]"), "{text}");
}

/// `y = Conv(x, w)` with weights of two spatial axes.
fn convolution(output: ValueInfoProto) -> ModelProto {
    let model = open_model(&["x"], vec![node("Conv", &["x", "w"], &["y"])], output);
    with_initializers(model, vec![f32s("w", &[1, 2, 1, 1], &[1.0, 2.0])])
}

#[test]
fn the_one_rank_that_serves_is_taken() {
    let transposed = with(node("Transpose", &["x"], &["y"]), vec![a_ints("perm", &[0, 2, 1])]);
    let declared = open_model(&["x"], vec![node("Relu", &["x"], &["y"])], f32v("y", &["N", "3"]));
    for (model, rank) in [
        (convolution(untyped("y")), 4),
        (open_model(&["x"], vec![transposed], untyped("y")), 3),
        (declared, 2),
    ] {
        let (inputs, notes) = found(compile(&model, &[], &[]));
        assert_eq!(inputs[0].matches("s").count(), rank, "{inputs:?}");
        assert_eq!(notes.len(), 1);
        let text = format!(
            "input `x` has rank {rank}: of the ranks 0 to 8, the only one with which the model can run"
        );
        assert!(notes[0].starts_with(&text), "{notes:?}");
    }
}

#[test]
fn ranks_of_several_inputs_are_searched_together() {
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        with(node("Gemm", &["a", "b"], &["g"]), vec![]),
        node("Flatten", &["c"], &["f"]),
        node("Add", &["f", "g"], &["y"]),
    ];
    let model = with_initializers(
        open_model(&["x", "a", "b"], nodes, untyped("y")),
        vec![f32s("w", &[1, 2, 1, 1], &[1.0, 2.0])],
    );
    let (inputs, notes) = found(compile(&model, &[], &[]));
    let ranks: Vec<usize> = inputs.iter().map(|text| text.matches('s').count()).collect();
    assert_eq!((ranks, notes.len()), (vec![4, 2, 2], 3));
}

#[test]
fn several_ranks_that_serve_or_none_are_asked_for() {
    let asks = |model: &ModelProto, wanted: &str| {
        let messages = messages(compile(model, &[], &[]));
        assert!(messages.iter().any(|message| message.contains(wanted)), "{messages:#?}");
    };
    let abs = open_model(&["x"], vec![node("Abs", &["x"], &["y"])], untyped("y"));
    asks(
        &abs,
        "input `x` of type f32: its rank is unknown: give its shape, --input-shape x=DIM,... (of the ranks 0 to 8 these serve: \
         0, 1, 2, 3, 4, 5, 6, 7, 8)",
    );
    // Rank 3 by one node, 4 by another.
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        with(node("Transpose", &["x"], &["y"]), vec![a_ints("perm", &[0, 2, 1])]),
    ];
    let model = with_initializers(
        open_model(&["x"], nodes, untyped("y")),
        vec![f32s("w", &[1, 2, 1, 1], &[1.0, 2.0])],
    );
    asks(&model, "(none of the ranks 0 to 8 serves)");
}

#[test]
fn searches_keep_to_the_limits() {
    let mut long = convolution(untyped("y"));
    let nodes = &mut long.graph.as_mut().unwrap().node;
    nodes.extend((0..20_000).map(|at| node("Neg", &["w"], &[&format!("unused{at}")])));
    assert!(messages(compile(&long, &[], &[]))[0].ends_with("--input-shape x=DIM,..."));
    let many: Vec<String> = (0..40).map(|at| format!("x{at}")).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let model = open_model(&names, vec![node("Sum", &names, &["y"])], untyped("y"));
    assert_eq!(messages(compile(&model, &[], &[])).len(), 40);
}
