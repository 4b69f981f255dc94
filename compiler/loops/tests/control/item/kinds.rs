//! Optionals, maps, sparse tensors, and parts of values at the border.

use super::*;
use onnxc_ir::interp;

fn type_attribute(ty: &str) -> AttributeProto {
    type_of_attribute("type", ty)
}

/// As places in the table of a run they are elements as others.
#[test]
fn strings_are_elements() {
    let of = |shape: &[usize], texts: &[&str]| Tensor::from_texts(shape, texts);
    let texts = ["e = SequenceEmpty()", "s = SequenceInsert(e, x)", "z = SequenceInsert(s, x)"];
    let mut nodes = nodes(&texts);
    nodes[0] = nodes[0].clone().with(int("dtype", 8));
    let grown = imported(graph(&["x: str[n]"], nodes, &["e: seq(str[n])", "z: seq(str[n])"]));
    let found = interp::run(&grown, &[of(&[2], &["a", "ü"])]).unwrap();
    assert_eq!(found[1], of(&[0], &[]));
    assert_eq!(found[3], of(&[4], &["a", "ü", "a", "ü"]));
    // An optional that is absent in one branch.
    let then = graph(&[], vec![node("t = Optional()").with(type_attribute("str[2]"))], &["t"]);
    let otherwise = graph(&[], super::nodes(&["e = Optional(a)"]), &["e"]);
    let all = vec![choose(then, otherwise)];
    let chosen = imported(graph(&["c: bool[]", "a: str[2]"], all, &["y: optional(str[2])"]));
    let given = |c: bool| [Tensor::scalar(c), of(&[2], &["b", ""])];
    assert_eq!(interp::run(&chosen, &given(false)).unwrap()[1], of(&[2], &["b", ""]));
    assert_eq!(interp::run(&chosen, &given(true)).unwrap()[1], of(&[2], &["", ""]));
}

#[test]
fn optionals_have_an_element_or_not() {
    let nothing = node("t = Optional()").with(type_attribute("i64[n]"));
    let then = graph(&[], vec![nothing], &["t"]);
    let otherwise = graph(&[], nodes(&["e = Optional(a)"]), &["e"]);
    let rest = nodes(&["h = OptionalHasElement(y)"]);
    let all = [vec![choose(then.clone(), otherwise.clone())], rest.clone()].concat();
    let has = imported(graph(&["c: bool[]", "a: i64[n]"], all, &["y: optional(i64[k])", "h: bool[]"]));
    let of = |c: bool| [Tensor::scalar(c), vector(&[4, 5])];
    let wanted = |present: i64, values: &[i64]| -> Results {
        vec![(vec![], vec![present]), (vec![values.len()], values.to_vec()), (vec![], vec![present])]
    };
    assert_eq!(ran(&has, &of(true)), wanted(0, &[]));
    assert_eq!(ran(&has, &of(false)), wanted(1, &[4, 5]));
    let all = [vec![choose(then, otherwise)], nodes(&["z = OptionalGetElement(y)"])].concat();
    let get = imported(graph(&["c: bool[]", "a: i64[n]"], all, &["z: i64[k]"]));
    assert_eq!(ran(&get, &of(false)), [(vec![2], vec![4, 5])]);
    let message = run(&get, &of(true)).unwrap_err().message;
    assert!(message.contains("the optional has no element"), "{message}");
    // Those of the caller, of tensors and of sequences, also through Identity.
    let texts = ["o = Identity(x)", "h = OptionalHasElement(o)", "z = OptionalGetElement(o)"];
    let tensors = model(&["x: optional(i64[n])"], &texts, &["z: i64[n]", "h: bool[]"], &[]);
    assert_eq!(ran(&tensors, &[Tensor::scalar(true), vector(&[6])]), [(vec![1], vec![6]), (vec![], vec![1])]);
    assert!(run(&tensors, &[Tensor::scalar(false), vector(&[])]).is_err());
    let sequences = model(&["x: optional(seq(i64[n]))"], &texts, &["z: seq(i64[n])"], &[]);
    let given = |c: bool| joined(vec![vec![Tensor::scalar(c)], vectors(&[&[1], &[2, 3]]).to_vec()]);
    assert_eq!(ran(&sequences, &given(true)), columns(&[&[1], &[2, 3]]));
    assert!(run(&sequences, &given(false)).is_err());
    refused(graph(&["x: optional(i64[n])"], nodes(&["y = Neg(x)"]), &["y"]), "is an optional tensor");
    refused(
        graph(&["x: optional(i64*)"], nodes(&["y = OptionalHasElement(x)"]), &["y"]),
        "its rank is unknown",
    );
}

#[test]
fn optionals_of_every_version() {
    let texts = ["o = Optional(a)", "h = OptionalHasElement(o)", "z = OptionalGetElement(o)"];
    let whole = || graph(&["a: i64[n]"], nodes(&texts), &["z: i64[n]", "h: bool[]"]);
    for version in [15, 18, 28] {
        let graph = imported_at(version, whole()).unwrap();
        assert_eq!(ran(&graph, &[vector(&[4, 5])]), [(vec![2], vec![4, 5]), (vec![], vec![1])]);
    }
}

/// Where no branch and no iteration gives an element, the type of elements is unknown.
#[test]
fn what_has_no_element_anywhere_stays_empty() {
    let empty = |name: &str| graph(&[], nodes(&[&format!("{name} = SequenceEmpty()")]), &[name]);
    let all = [vec![choose(empty("t"), empty("e"))], nodes(&["n = SequenceLength(y)"])].concat();
    let chosen = imported(graph(&["c: bool[]"], all, &["n: i64[]", "y: seq(f32*)"]));
    let wanted = vec![(vec![], vec![0]), (vec![0, 0], vec![]), (vec![0], vec![])];
    assert_eq!(ran(&chosen, &[Tensor::scalar(true)]), wanted);
    let body = graph(&["i", "keep", "s"], nodes(&["go = Identity(keep)", "t = Identity(s)"]), &["go", "t"]);
    let all = [nodes(&["e = SequenceEmpty()"]), vec![repeat("m, , e", "y", body)]].concat();
    let kept = imported(graph(&["m: i64[]"], all, &["y: seq(f32*)"]));
    assert_eq!(ran(&kept, &[Tensor::scalar(2i64)]), wanted[1..]);
    // The other branch determines the rank of an element that is not there.
    let then = graph(&[], vec![node("t = Optional()").with(type_attribute("i64*"))], &["t"]);
    let otherwise = graph(&[], nodes(&["e = Optional(a)"]), &["e"]);
    let inputs = ["c: bool[]", "a: i64[n, 2]"];
    let some = imported(graph(&inputs, vec![choose(then.clone(), otherwise)], &["y: optional(i64[n, 2])"]));
    let of = |c: bool| [Tensor::scalar(c), matrix(&[1, 2], &[4, 5])];
    assert_eq!(ran(&some, &of(true)), [(vec![], vec![0]), (vec![0, 2], vec![])]);
    assert_eq!(ran(&some, &of(false)), [(vec![], vec![1]), (vec![1, 2], vec![4, 5])]);
    let absent = |name: &str, ty: &str| {
        graph(&[], vec![node(&format!("{name} = Optional()")).with(type_attribute(ty))], &[name])
    };
    for (ty, wanted) in [
        ("seq(i64*)", vec![(vec![], vec![0]), (vec![0, 0], vec![]), (vec![0], vec![])]),
        ("seq(i64[n])", vec![(vec![], vec![0]), (vec![0, 1], vec![]), (vec![0], vec![])]),
        ("i64[2]", vec![(vec![], vec![0]), (vec![2], vec![0, 0])]),
        ("i64*", vec![(vec![], vec![0]), (vec![], vec![0])]),
    ] {
        let all = vec![choose(absent("t", ty), absent("e", ty))];
        let never = imported(graph(&["c: bool[]"], all, &[&format!("y: optional({ty})")]));
        assert_eq!(ran(&never, &[Tensor::scalar(true)]), wanted, "{ty}");
    }
    let mut texts = then.node.clone();
    texts.extend(nodes(&["h = OptionalHasElement(t)"]));
    let never = imported(graph(&[], texts.clone(), &["h: bool[]"]));
    assert_eq!(ran(&never, &[]), scalar(0));
    texts.extend(nodes(&["y = OptionalGetElement(t)"]));
    refused(graph(&[], texts, &["y"]), "whose rank is unknown");
    refused(graph(&[], nodes(&["t = Optional()"]), &["t"]), "neither an input nor a type");
}

/// A sequence that the first iteration begins.
#[test]
fn an_optional_is_handed_on_by_a_loop() {
    let begin = graph(&[], nodes(&["t = SequenceConstruct(i)"]), &["t"]);
    let go_on = graph(&[], nodes(&["g = OptionalGetElement(s)", "e = SequenceInsert(g, i)"]), &["e"]);
    let mut steps = nodes(&["h = OptionalHasElement(s)", "c = Not(h)", "go = Identity(keep)"]);
    steps.push(choose(begin, go_on));
    let body = graph(&["i: i64[]", "keep: bool[]", "s"], steps, &["go", "y"]);
    let whole = graph(
        &["m: i64[]", "s0: optional(seq(i64[]))"],
        vec![repeat("m, , s0", "last", body)],
        &["last: seq(i64[])"],
    );
    let collected = imported(whole);
    let of = |m: i64, c: bool, values: &[i64]| {
        [Tensor::scalar(m), Tensor::scalar(c), matrix(&[values.len(), 0], &[]), vector(values)]
    };
    assert_eq!(ran(&collected, &of(3, false, &[])), [(vec![3, 0], vec![]), (vec![3], vec![0, 1, 2])]);
    assert_eq!(ran(&collected, &of(1, true, &[8])), [(vec![2, 0], vec![]), (vec![2], vec![8, 0])]);
    assert!(run(&collected, &of(0, false, &[])).is_err());
}

#[test]
fn outputs_are_told_apart_by_parts() {
    use onnxc_ir::graph::Part;
    let texts = ["e = SequenceEmpty()", "t = SequenceConstruct(x, x)"];
    let parts = model(&["x: i64[2]"], &texts, &["e: seq(f32*)", "t: seq(i64[2])"], &[]);
    let names: Vec<&str> = parts.outputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["e.shapes", "e.data", "t.shapes", "t.data"]);
    assert_eq!(parts.output_parts[&3], ("t".to_string(), Part::Data));
    let wanted =
        [(vec![0, 0], vec![]), (vec![0], vec![]), (vec![2, 1], vec![2, 2]), (vec![4], vec![1, 2, 1, 2])];
    assert_eq!(ran(&parts, &[vector(&[1, 2])]), wanted);
}

#[test]
fn sparse_tensors_are_made_dense() {
    let dense = model(&["x: sparse(i64[2, 3])"], &["y = Neg(x)"], &["y: i64[2, 3]"], &[]);
    let inputs = [vector(&[7, 8]), matrix(&[2, 2], &[0, 2, 1, 0])];
    assert_eq!(ran(&dense, &inputs), [(vec![2, 3], vec![0, 0, -7, -8, 0, 0])]);
    let outside = [vector(&[7]), matrix(&[1, 2], &[0, -1])];
    assert!(run(&dense, &outside).is_err());
    refused(graph(&["x: sparse(i64[n])"], nodes(&["y = Neg(x)"]), &["y"]), "sparse tensor of symbolic size");
}

#[test]
fn rows_become_maps() {
    use onnxc_proto::build::ints;
    let zip = node("z = ZipMap(x)").with(ints("classlabels_int64s", &[7, -1]));
    let records = of_ml("x: f32[n, 2]", zip, "z: seq(map(i64, f32[]))");
    let x = Tensor::from_slice(&[3, 2], &[1f32, 2., 3., 4., 5., 6.]);
    assert_eq!(ran(&records, &[x]), [(vec![2], vec![7, -1]), (vec![3, 2], vec![1, 2, 3, 4, 5, 6])]);
    let names: Vec<&str> = records.outputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["z.keys", "z.values"]);
}

#[test]
fn maps_become_vectors() {
    use onnxc_proto::build::ints;
    let map = [vector(&[5, 2, 9]), Tensor::from_slice(&[3], &[50f32, 20., 90.])];
    let words = node("y = DictVectorizer(x)").with(ints("int64_vocabulary", &[9, 1, 5, 2]));
    let vectors = of_ml("x: map(i64, f32[])", words, "y: f32[1, 4]");
    assert_eq!(ran(&vectors, &map), [(vec![1, 4], vec![90, 0, 50, 20])]);
    let cast = |form: &str, to: &str| {
        let node = node("y = CastMap(x)").with(text("map_form", form)).with(text("cast_to", to));
        of_ml("x: map(i64, f32[])", node.with(int("max_map", 6)), "y")
    };
    assert_eq!(ran(&cast("DENSE", "TO_FLOAT"), &map), [(vec![1, 3], vec![20, 50, 90])]);
    assert_eq!(ran(&cast("SPARSE", "TO_INT64"), &map), [(vec![1, 6], vec![0, 0, 20, 0, 0, 50])]);
}

/// A node of `ai.onnx.ml` between an input and an output.
fn of_ml(input: &str, node: NodeProto, output: &str) -> Graph {
    use onnxc_proto::build;
    let node = NodeProto { domain: Some("ai.onnx.ml".into()), ..node };
    let mut model = build::model(18, graph(&[input], vec![node], &[output]));
    model.opset_import.push(build::opset("ai.onnx.ml", 1));
    let families = onnxc_ops::FAMILIES.iter().chain(onnxc_contrib::FAMILIES).copied();
    let table = onnxc_ops::Table::new(families);
    let import = onnxc_import::import(&model, &Default::default(), &onnxc_import::NoExternalData, &table);
    import.unwrap_or_else(|errors| panic!("{errors:?}")).graph
}

fn text(name: &str, value: &str) -> AttributeProto {
    use onnxc_proto::{attribute_proto::AttributeType, build};
    let attribute = build::attribute(name, AttributeType::String);
    AttributeProto { s: Some(value.as_bytes().to_vec().into()), ..attribute }
}

/// What constants break is the error of its own node, also where another node before it has broken the same.
#[test]
fn constants_that_another_node_breaks_too_are_refused() {
    let empty = node("o = Optional()").with(type_attribute("i64[n]"));
    let all = [vec![empty], nodes(&["z = OptionalGetElement(o)", "c = Conv(x, w)"])].concat();
    let inputs = ["x: f32[1, 0, 3, 3]", "w: f32[1, 1, 1, 1]"];
    refused(graph(&inputs, all, &["z: i64[k]", "c: f32[1, 1, 3, 3]"]), "must be G * group");
}
