//! Lengths of inputs that the declared ranks of results decide.

use super::*;

const I64: DType = DType::I64;

/// `y = MatMul(Reshape(x, Concat(n, [2])), w)`, declared with `dims`, `n` being a vector of `length`.
fn product(length: &str, dims: &[&str], more: Vec<ValueInfoProto>) -> ModelProto {
    let nodes = vec![
        with(node("Concat", &["n", "two"], &["sizes"]), vec![a_int("axis", 0)]),
        node("Reshape", &["x", "sizes"], &["rows"]),
        node("MatMul", &["rows", "w"], &["y"]),
    ];
    let mut inputs = vec![f32v("x", &["N"]), value("n", I64, &[length]), f32v("w", &["2", "5"])];
    inputs.extend(more);
    let two = build::i64_tensor("two", &[1], vec![2]);
    with_initializers(model_of(graph(inputs, nodes, vec![f32v("y", dims)])), vec![two])
}

fn compile(model: &ModelProto) -> Outcome {
    import(model, &ImportOptions::default(), &NoExternalData, &Table::standard())
}

/// Types of the inputs, and the notes.
fn found(model: &ModelProto) -> (Vec<String>, Vec<String>) {
    match compile(model) {
        Ok(import) => (input_types(&import.graph), import.notes),
        Err(errors) => panic!("{errors:#?}"),
    }
}

#[test]
fn a_length_follows_from_the_rank_of_a_result() {
    for (rank, dims) in [(2, &["A", "5"] as &[&str]), (3, &["A", "B", "5"]), (4, &["A", "B", "C", "5"])] {
        for length in ["L", "?"] {
            let (inputs, notes) = found(&product(length, dims, vec![]));
            assert_eq!(inputs[1], format!("n: i64[{}]", rank - 1));
            let text =
                format!("`n:0` is {}: of the lengths 0 to 16, the only one with which the results", rank - 1);
            assert!(notes.len() == 1 && notes[0].starts_with(&text), "{notes:?}");
        }
    }
}

#[test]
fn vectors_that_decide_no_rank_keep_their_length() {
    let (inputs, _) = found(&product("L", &["A", "B", "5"], vec![value("other", I64, &["M"])]));
    assert_eq!(inputs[3], "other: i64[s1]");
}

/// What has a rank without a search keeps its symbols for any declared rank.
#[test]
fn lengths_that_decide_no_rank_are_not_searched() {
    let nodes = vec![node("Neg", &["n"], &["y"])];
    let model = model_of(graph(vec![value("n", I64, &["L"])], nodes, vec![value("y", I64, &["L"])]));
    assert_eq!(found(&model), (vec!["n: i64[s0]".to_string()], vec![]));
}

/// The problem is the one that the model has without a length, and asks for it.
fn asks(model: &ModelProto) {
    let errors = compile(model).expect_err("the model should be refused");
    assert!(errors.len() == 1 && errors[0].message.contains("(--input-dim)"), "{errors:#?}");
}

#[test]
fn lengths_of_which_several_or_none_fit_are_asked_for() {
    // Any rank may be meant.
    let mut undeclared = product("L", &[], vec![]);
    undeclared.graph.as_mut().unwrap().output = vec![untyped("y")];
    asks(&undeclared);
    // No length gives a last dim of 6.
    asks(&product("L", &["A", "6"], vec![]));
    // A result of rank 2 needs one length of both vectors together, and none of either alone.
    let mut both = product("L", &["A", "5"], vec![value("m", I64, &["M"])]);
    both.graph.as_mut().unwrap().node[0].input[1] = "m".to_string();
    asks(&both);
}

#[test]
fn a_length_that_is_given_is_not_searched() {
    let model = product("L", &["A", "B", "5"], vec![]);
    for target in ["L", "n:0"] {
        let pin = DimPin { target: target.to_string(), size: 3 };
        let options = ImportOptions { input_dims: vec![pin], ..Default::default() };
        let import = import(&model, &options, &NoExternalData, &Table::standard()).unwrap();
        assert_eq!(input_types(&import.graph)[1], "n: i64[3]");
        assert!(import.notes.is_empty(), "{:?}", import.notes);
        assert_eq!(import.warnings.len(), 1, "of the declared rank");
    }
}

/// A search imports the model many times, each with its share of what one import may use.
#[test]
fn searches_keep_to_the_limits() {
    let model = product("L", &["A", "B", "5"], vec![]);
    let mut long = model.clone();
    let nodes = &mut long.graph.as_mut().unwrap().node;
    nodes.extend((0..8000).map(|at| node("Neg", &["x"], &[&format!("unused{at}")])));
    asks(&long);
    found(&model);
}

/// How many axes index vectors of a symbolic length index: what declared ranks leave.
#[test]
fn index_vectors_have_the_length_that_one_rank_asks_for() {
    let model = |data: &[&str], indices: &[&str], batch: i64, declared: ValueInfoProto| {
        let gather = with(node("GatherND", &["x", "i"], &["g"]), vec![a_int("batch_dims", batch)]);
        let nodes = vec![gather, node("Concat", &["g", "g"], &["y"]).with(a_int("axis", 0))];
        let inputs = vec![f32v("x", data), value("i", I64, indices)];
        model_of(graph(inputs, nodes, vec![declared]))
    };
    // By the rank of a result that does not have the shape of the node's.
    for (rank, dims) in [(1, &["A", "B"] as &[&str]), (2, &["A"])] {
        for length in ["L", "?"] {
            let model = model(&["4", "5"], &["3", length], 0, f32v("y", dims));
            assert_eq!(found(&model).0[1], format!("i: i64[3, {rank}]"));
        }
    }
    // One axis is left by those of the batch, or is all there is.
    for (data, indices, batch) in
        [(&["3", "5"] as &[&str], &["3", "L"] as &[&str], 1), (&["5"], &["3", "L"], 0)]
    {
        let import = compile(&model(data, indices, batch, untyped("y"))).unwrap();
        assert_eq!(import.graph.output_ty(0).to_string(), "f32[6]");
    }
    let undeclared = model(&["4", "5"], &["3", "L"], 0, untyped("y"));
    asks(&undeclared);
    let text = compile(&undeclared).unwrap_err()[0].to_string();
    assert!(text.contains("the last size `L` of indices"), "{text}");
    for target in ["L", "i:1"] {
        let pin = DimPin { target: target.to_string(), size: 2 };
        let options = ImportOptions { input_dims: vec![pin], ..Default::default() };
        let import = import(&undeclared, &options, &NoExternalData, &Table::standard()).unwrap();
        assert_eq!(import.graph.output_ty(0).to_string(), "f32[6]");
    }
}
