//! Rows of `ai.onnx` in whole models.

use onnxc_ir::interp;
use onnxc_ops::node_case::elements;
use onnxc_proto::{AttributeProto, build};

use super::*;

fn import(model: &ModelProto, options: &ImportOptions) -> Outcome {
    super::import(model, options, &NoExternalData, &Table::standard())
}

/// A block whose size is a symbol is known, and no number.
#[test]
fn blocks_of_symbolic_size() {
    let value = |name, dims: &[&str]| build::f32_value(name, dims);
    let nodes = vec![
        build::node("Shape", &["w"], &["block"]),
        build::node("Col2Im", &["x", "image", "block"], &["y"]),
    ];
    let inputs = vec![value("x", &["1", "K", "L"]), value("w", &["K"])];
    let graph = onnxc_proto::GraphProto {
        initializer: vec![build::i64_tensor("image", &[1], vec![4])],
        ..build::graph(inputs, nodes, vec![value("y", &["1", "1", "4"])])
    };
    let graph = import(&build::model(21, graph), &ImportOptions::default()).unwrap().graph;
    let x = Tensor::from_slice::<f32>(&[1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let w = Tensor::from_slice::<f32>(&[2], &[0.0; 2]);
    let found = interp::run(&graph, &[x, w]).unwrap().remove(0);
    assert_eq!(elements(&found), [1.0, 6.0, 8.0, 6.0]);
}

/// Parts are those of all outputs, whether they have names or not, and there is an output for each.
#[test]
fn parts_without_a_name_count() {
    let part = |opset: i64, attribute: Option<AttributeProto>, sizes: &[i64], outputs: &[&str]| {
        let inputs: &[&str] = if sizes.is_empty() { &["x"] } else { &["x", "sizes"] };
        let mut split = build::node("Split", inputs, outputs);
        split.attribute.extend(attribute);
        let ends = outputs.iter().filter(|name| !name.is_empty()).map(|name| build::untyped(name));
        let mut graph = build::graph(vec![build::f32_value("x", &["6"])], vec![split], ends.collect());
        if !sizes.is_empty() {
            graph.initializer.push(build::i64_tensor("sizes", &[sizes.len() as i64], sizes.to_vec()));
        }
        let model = build::model(opset, graph);
        let graph = import(&model, &ImportOptions::default()).map_err(|mut errors| {
            let error = errors.remove(0);
            error.to_string()
        })?;
        let x = Tensor::from_slice(&[6], &[0f32, 1., 2., 3., 4., 5.]);
        let parts = interp::run(&graph.graph, &[x]).unwrap();
        Ok::<_, String>(parts.iter().map(|part| part.to_f64s().unwrap()).collect::<Vec<_>>())
    };
    let second = Ok(vec![vec![2., 3.]]);
    let three = ["", "y", ""];
    assert_eq!(part(2, None, &[], &three), second);
    assert_eq!(part(11, Some(build::ints("split", &[2, 2, 2])), &[], &three), second);
    assert_eq!(part(13, None, &[], &three), second);
    assert_eq!(part(13, None, &[2, 2, 2], &three), second);
    assert_eq!(part(18, Some(build::int("num_outputs", 3)), &[], &three), second);
    assert_eq!(part(18, None, &[2, 2, 2], &three), second);
    let number = |count| Some(build::int("num_outputs", count));
    assert_eq!(part(18, number(2), &[], &["y", ""]), Ok(vec![vec![0., 1., 2.]]));
    assert_eq!(part(18, number(4), &[], &["y", "", "z", ""]), Ok(vec![vec![0., 1.], vec![4., 5.]]));
    for count in [1, 3, 0, -1, i64::MAX] {
        let error = part(18, number(count), &[], &["y", ""]).unwrap_err();
        assert!(error.contains(&format!("num_outputs is {count}, and the node has 2 outputs")), "{error}");
    }
    assert!(part(13, None, &[2, 2, 2], &["y", ""]).unwrap_err().contains("2 outputs"));
}

#[test]
fn parts_of_sizes_of_the_run_are_few() {
    use crate::testing::{graph, imported, nodes, refused};
    use onnxc_ops::movement::MAX_OPEN_PARTS;
    let whole = |count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
        let split = format!("{} = Split(x, s)", names.join(" "));
        graph(&["x: i64[n]", &format!("s: i64[{count}]")], nodes(&[&split]), &["p0"])
    };
    assert_eq!(imported(whole(MAX_OPEN_PARTS)).outputs.len(), 1);
    refused(whole(MAX_OPEN_PARTS + 1), "201 parts of sizes that the run determines; at most 200");
}

/// As exporters of PyTorch write it: each row is a signal of real numbers.
#[test]
fn a_signal_of_two_axes_is_warned_of() {
    let node = build::node("STFT", &["x", "step", "", "length"], &["y"]);
    let mut graph =
        build::graph(vec![build::f32_value("x", &["1", "n"])], vec![node], vec![build::untyped("y")]);
    graph.initializer =
        [("step", 5), ("length", 20)].map(|(name, n)| build::i64_tensor(name, &[], vec![n])).into();
    let model = build::model(17, graph);
    let warnings = import(&model, &ImportOptions::default()).unwrap().warnings;
    let warnings: Vec<_> = warnings.into_iter().filter(|warning| warning.rule == Rule::Rank).collect();
    assert!(warnings.len() == 1, "{warnings:?}");
    let text = warnings[0].problem.to_string();
    assert!(text.contains("signal f32[1, s0] has 2 axes and must have 3"), "{text}");
    let options = ImportOptions { strict: true, ..Default::default() };
    assert!(import(&model, &options).is_err());
}

/// The streams of nodes of a whole model: its graph, the bodies of an If, and calls of a function.
mod models {
    use onnxc_proto::build::{self, graph, ints, node, subgraph, untyped, value};
    use onnxc_proto::{FunctionProto, ModelProto, NodeProto};

    use super::*;
    use onnxc_ir::error::Error;

    fn drawn(output: &str) -> NodeProto {
        NodeProto { attribute: vec![ints("shape", &[16])], ..node("RandomUniform", &[], &[output]) }
    }

    fn imported(model: &ModelProto) -> std::result::Result<Graph, Vec<Error>> {
        Ok(import(model, &ImportOptions::default())?.graph)
    }

    #[test]
    fn every_node_has_a_stream_of_its_own() {
        let body = |name: &str| graph(vec![], vec![drawn(name)], vec![untyped(name)]);
        let choice = NodeProto {
            attribute: vec![subgraph("then_branch", body("t")), subgraph("else_branch", body("e"))],
            ..node("If", &["c"], &["chosen"])
        };
        let call = |output: &str| NodeProto { domain: Some("own".into()), ..node("F", &[], &[output]) };
        let nodes = vec![drawn("a"), drawn("b"), choice, call("f"), call("g")];
        let outputs = ["a", "b", "chosen", "f", "g"].map(untyped).into();
        let condition = value("c", DType::Bool.to_onnx(), &[] as &[&str]);
        let mut model = build::model(22, graph(vec![condition], nodes, outputs));
        model.opset_import.push(build::opset("own", 1));
        model.functions.push(FunctionProto {
            name: Some("F".into()),
            domain: Some("own".into()),
            output: vec!["q".into()],
            node: vec![drawn("q")],
            opset_import: vec![build::opset("", 22)],
            ..Default::default()
        });
        let graph = imported(&model).unwrap();
        assert!(onnxc_ir::verify::verify(&graph).is_ok());
        let text = graph.to_string();
        assert!(text.contains("\"seed\" = seed"), "{text}");
        assert_eq!(onnxc_ir::graph::parse::parse(&text).unwrap().to_string(), text);
        let run = |taken: bool| {
            let condition = Tensor::from_slice(&[], &[taken]);
            interp::run_seeded(&graph, &[condition], 1, &mut |_, _| {}).unwrap()
        };
        let mut all: Vec<Vec<u8>> = run(true).into_iter().map(|tensor| tensor.data.to_vec()).collect();
        all.push(run(false)[2].data.to_vec());
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (6, 6));
    }

    #[test]
    fn every_iteration_draws_its_own() {
        let i64s = DType::I64.to_onnx();
        let inputs =
            vec![value("i", i64s, &[] as &[&str]), value("k", DType::Bool.to_onnx(), &[] as &[&str])];
        let body = graph(
            inputs,
            vec![drawn("q"), node("Identity", &["k"], &["r"])],
            vec![untyped("r"), untyped("q")],
        );
        let repeat =
            NodeProto { attribute: vec![subgraph("body", body)], ..node("Loop", &["n", ""], &["y"]) };
        let model =
            build::model(22, graph(vec![value("n", i64s, &[] as &[&str])], vec![repeat], vec![untyped("y")]));
        let graph = imported(&model).unwrap();
        assert!(onnxc_ir::verify::verify(&graph).is_ok());
        let run = |seed: u64| {
            let count = Tensor::from_slice(&[], &[5i64]);
            interp::run_seeded(&graph, &[count], seed, &mut |_, _| {}).unwrap().remove(0)
        };
        let (first, again, other) = (run(1), run(1), run(2));
        assert_eq!((first.shape.as_slice(), &first), ([5, 16].as_slice(), &again));
        let mut parts: Vec<&[u8]> = first.data.chunks(64).chain(other.data.chunks(64)).collect();
        parts.sort();
        parts.dedup();
        assert_eq!(parts.len(), 10);
    }

    #[test]
    fn broken_seeds_are_told() {
        let of = |text: &str| onnxc_ir::verify::verify(&onnxc_ir::graph::parse::parse(text).unwrap()).err();
        let text = |dims: &str| {
            format!(
                "graph \"g\" {{\n  symbol s0 \"seed\" = seed\n  input v0 \"x\" : f32[{dims}]\n  return v0 \"y\"\n}}\n"
            )
        };
        assert!(of(&text("2")).is_none());
        let errors = of(&text("s0")).unwrap();
        assert!(errors[0].message.contains("the seed s0 is a dim of input x"), "{errors:?}");
    }
}
