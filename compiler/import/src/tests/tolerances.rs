//! What breaks the specification and gives a warning.

use super::*;

fn names(graph: &Graph) -> Vec<&str> {
    graph.order.iter().map(|&node| graph.origins[graph.nodes[node].origin].name.as_str()).collect()
}

fn same(input: &str, output: &str) -> NodeProto {
    let mut node = node("Neg", &[input], &[output]);
    node.name = Some(output.to_string());
    node
}

#[test]
fn operators_beyond_the_standard_are_taken_to_the_last_version_that_has_them() {
    for (name, last) in [("Affine", 9), ("ImageScaler", 9), ("LayerNormalization", 16)] {
        assert!(Table::standard().tolerated("", name, last).is_some(), "{name}-{last}");
        assert!(Table::standard().tolerated("", name, last + 1).is_none(), "{name}-{}", last + 1);
    }
}

#[test]
fn nodes_are_sorted_where_they_must_be_and_no_further() {
    let mut unsorted =
        model(vec![node("Add", &["b", "a"], &["y"]), same("c", "a"), same("x", "c"), same("x", "b")]);
    unsorted.opset_import = vec![opset("", 1)];
    let import = run(&unsorted).unwrap();
    assert_eq!(names(&import.graph), ["c", "a", "b", "Add_0"]);
    let texts: Vec<String> = import.warnings.iter().map(|warning| warning.problem.to_string()).collect();
    assert_eq!(
        texts,
        [
            "node 0 `Add_0` (ai.onnx.Add since 1) with b: ?, a: ?: input `b` is used before node 3 `b` defines it: the nodes \
             are sorted into topological order",
            "node 1 `a` (ai.onnx.Neg since 1) with c: ?: input `c` is used before node 2 `c` defines it: the nodes are sorted \
             into topological order",
        ]
    );
    let sorted = model(vec![same("x", "c"), same("x", "a"), node("Add", &["c", "a"], &["y"])]);
    assert!(run(&sorted).unwrap().warnings.is_empty());
}

#[test]
fn strict_refuses_nodes_out_of_order() {
    let unsorted = model(vec![node("Same", &["t"], &["y"]), node("Same", &["x"], &["t"])]);
    warns(&unsorted, Rule::NodeOrder, "input `t` is used before node 1 `Same_1` defines it");
}

#[test]
fn bodies_wait_for_what_they_capture() {
    let condition = f32s("c", &[], &[1.0]);
    let body = |name: &str, nodes: Vec<NodeProto>| graph(vec![], nodes, vec![untyped(name)]);
    let inner = body("v", vec![node("Same", &["late"], &["v"])]);
    let nest =
        with(node("Choose", &["k"], &["w"]), vec![a_graph("then", inner.clone()), a_graph("else", inner)]);
    let choose = with(
        node("Choose", &["k"], &["y"]),
        vec![
            a_graph("then", body("w", vec![nest.clone()])),
            a_graph("else", body("u", vec![node("Same", &["x"], &["u"])])),
        ],
    );
    let mut unsorted = model(vec![choose, node("Same", &["x"], &["late"])]);
    let proto = unsorted.graph.as_mut().unwrap();
    proto.initializer = vec![condition];
    proto.input.push(value("k", DType::Bool, &[]));
    warns(&unsorted, Rule::NodeOrder, "input `late` is used before node 1");
    // A name that a body defines itself is not that of the graph around.
    let own = body("late", vec![node("Same", &["x"], &["late"])]);
    // Nor is one that a body around the body defines.
    let around = body("w", vec![node("Same", &["x"], &["late"]), nest]);
    for own in [own, around] {
        let choose =
            with(node("Choose", &["k"], &["t"]), vec![a_graph("then", own.clone()), a_graph("else", own)]);
        unsorted.graph.as_mut().unwrap().node =
            vec![choose, node("Same", &["t"], &["late"]), node("Same", &["late"], &["y"])];
        let warnings = run(&unsorted).unwrap().warnings;
        assert!(warnings.iter().all(|warning| warning.rule == Rule::ShadowedName), "{warnings:?}");
    }
}

#[test]
fn cycles_name_their_nodes() {
    let cyclic = model(vec![
        node("Add", &["x", "b"], &["a"]),
        node("Neg", &["a"], &["b"]),
        node("Neg", &["b"], &["y"]),
        node("Neg", &["e"], &["d"]),
        node("Neg", &["d"], &["e"]),
    ]);
    let errors: Vec<String> = errors_of(&cyclic).iter().map(|error| error.message.clone()).collect();
    assert_eq!(
        errors,
        [
            "nodes form a cycle, each taking a result of the next: 0 `Add_0`, 1 `Neg_1`",
            "nodes form a cycle, each taking a result of the next: 3 `Neg_3`, 4 `Neg_4`",
        ]
    );
}

#[test]
fn nodes_of_functions_are_sorted() {
    let function = FunctionProto {
        name: Some("F".into()),
        domain: Some("own".into()),
        input: vec!["p".into()],
        output: vec!["q".into()],
        node: vec![node("Same", &["r"], &["q"]), node("Same", &["p"], &["r"])],
        opset_import: vec![opset("", 13)],
        ..Default::default()
    };
    let mut call = node("F", &["x"], &["y"]);
    call.domain = Some("own".into());
    let mut model = model(vec![call]);
    model.opset_import.push(opset("own", 1));
    model.functions.push(function);
    warns(&model, Rule::NodeOrder, "node 0 `F_0/Same_0`");
}

#[test]
fn declared_types_of_values_give_way() {
    let mut model = model(vec![node("Neg", &["x"], &["t"]), node("Neg", &["t"], &["y"])]);
    let declare = |model: &mut ModelProto, info| model.graph.as_mut().unwrap().value_info = vec![info];
    declare(&mut model, f32v("t", &["N", "5"]));
    let text = "node 0 `Neg_0` (ai.onnx.Neg since 13) with x: f32[s0, 4]: `t` is declared as f32[N, 5], and its type is f32[s0, 4], which holds";
    warns(&model, Rule::DeclaredShape, text);
    declare(&mut model, value("t", DType::I64, &["N", "4"]));
    warns(
        &model,
        Rule::DeclaredType,
        "`t` is declared as i64[N, 4], and its type is f32[s0, 4], which holds",
    );
    declare(&mut model, f32v("t", &["7", "?"]));
    assert!(run(&model).unwrap().warnings.is_empty(), "a size may be what a symbol stands for");
}

#[test]
fn operators_that_only_onnx_runtime_has_are_taken() {
    let old = model(vec![node("Novel", &["x"], &["y"])]);
    let text = "node 0 `Novel_0` (ai.onnx.Novel since 1) with x: f32[s0, 4]: operator Novel of ai.onnx is newer than opset 13 (the \
                newest version is 18); it is taken as ONNX Runtime takes it";
    warns(&old, Rule::Operator, text);
    let mut new = old.clone();
    new.opset_import = vec![opset("", 18)];
    assert!(run(&new).unwrap().warnings.is_empty());
}

#[test]
fn types_that_only_onnx_runtime_takes_are_taken() {
    let of = |dtype| {
        let x = value("x", dtype, &["4"]);
        model_of(graph(vec![x], vec![node("Floats", &["x"], &["y"])], vec![untyped("y")]))
    };
    let warnings = run(&of(DType::F32)).unwrap().warnings;
    assert!(warnings.iter().all(|warning| warning.rule == Rule::OutputType), "{warnings:?}");
    warns(
        &of(DType::I64),
        Rule::ElementType,
        "input 0 (X) is i64; F is one of f32; it is taken as ONNX Runtime takes it",
    );
    refuses(&of(DType::Bool), Kind::Unsupported, "input 0 (X) is bool; F is one of u8, ");
}
