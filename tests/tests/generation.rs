//! Loops of com.microsoft that generate tokens: what is drawn, and what bodies take of the graph around them. Drawn models, held
//! against definitions and ONNX Runtime, are in the tests of whole operators.

use std::time::Instant;

use onnxc::Compiled;
use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::error::Error;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_machine::target::Target;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, f32_tensor, f32_value, i64_tensor, int, node, opset, value};
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, NodeProto};
use onnxc_tests::compile::compile_for;
use prost::Message;

const VOCABULARY: usize = 5;

/// A decoder whose scores are `table`, a value of the graph around it, for any input; its cache is of zeros.
fn decoder() -> GraphProto {
    let ids = |name: &str| value(name, DType::I32.to_onnx(), &["b", "s"]);
    let inputs = vec![
        ids("input_ids"),
        ids("position_ids"),
        value("attention_mask", DType::I32.to_onnx(), &["b", "t"]),
        f32_value("past_0", &["2", "b", "1", "p", "1"]),
    ];
    let nodes = vec![
        node("Cast", &["input_ids"], &["real"]).with(int("to", 1)),
        node("Mul", &["real", "none"], &["zeros"]),
        node("Unsqueeze", &["zeros", "last"], &["columns"]),
        node("Add", &["columns", "table"], &["logits"]),
        node("Unsqueeze", &["zeros", "around"], &["keys"]),
        node("Concat", &["keys", "keys"], &["both"]).with(int("axis", 0)),
        node("Concat", &["past_0", "both"], &["present_0"]).with(int("axis", 3)),
    ];
    let outputs =
        vec![f32_value("logits", &["b", "s", "5"]), f32_value("present_0", &["2", "b", "1", "t", "1"])];
    let initializer = vec![
        f32_tensor("none", &[], vec![0.0]),
        i64_tensor("last", &[1], vec![2]),
        i64_tensor("around", &[3], vec![0, 2, 4]),
    ];
    GraphProto { initializer, ..build::graph(inputs, nodes, outputs) }
}

fn float(name: &str, number: f32) -> AttributeProto {
    AttributeProto { f: Some(number), ..build::attribute(name, AttributeType::Float) }
}

/// One node over that decoder, of a table that a run computes from the input `scale`.
fn model(op: &str, attributes: Vec<AttributeProto>, inputs: &[&str]) -> ModelProto {
    let mut own = node(op, inputs, &["sequences"]);
    own.domain = Some("com.microsoft".into());
    own.attribute = attributes;
    own.attribute.push(build::subgraph("decoder", decoder()));
    let nodes: Vec<NodeProto> = vec![node("Mul", &["scores", "scale"], &["table"]), own];
    let vector = |name: &str| value(name, DType::I32.to_onnx(), &["1"]);
    let mut given = vec![value("ids", DType::I32.to_onnx(), &["b", "s"]), f32_value("scale", &[] as &[&str])];
    given.extend(inputs.iter().filter(|name| !["", "ids"].contains(name)).map(|name| vector(name)));
    let graph = GraphProto {
        initializer: vec![f32_tensor("scores", &[5], vec![2.0, 1.0, 0.0, -1.0, -2.0])],
        ..build::graph(given, nodes, vec![value("sequences", DType::I32.to_onnx(), &["b", "?"])])
    };
    let mut model = build::model(13, graph);
    model.opset_import.push(opset("com.microsoft", 1));
    model
}

fn compiled(model: &ModelProto) -> Result<Compiled, Vec<Error>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    compile_for(&path, "model", &Target::host().unwrap().into())
}

fn loaded(model: &ModelProto) -> Loaded {
    Loaded::new(compiled(model).unwrap(), Instant::now()).unwrap()
}

/// The rows of the sequences that a run gives.
fn run(loaded: &Loaded, inputs: Vec<Tensor>, seed: u64) -> Vec<Vec<i64>> {
    let inputs: Vec<Option<Tensor>> = inputs.into_iter().map(Some).collect();
    let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
    let call = Call { seed, ..Call::default() };
    let found = loaded.model().unwrap().run_with(&inputs, &shapes, &call).unwrap().remove(0);
    let width = found.shape[1];
    found.to_i64s().unwrap().chunks(width).map(<[i64]>::to_vec).collect()
}

fn ids(rows: usize, length: usize) -> Tensor {
    Tensor::from_slice(&[rows, length], &vec![1i32; rows * length])
}

fn number(number: i32) -> Tensor {
    Tensor::from_slice(&[1], &[number])
}

fn scale(scale: f32) -> Tensor {
    Tensor::from_slice(&[], &[scale])
}

fn ends() -> Vec<AttributeProto> {
    vec![int("eos_token_id", 4), int("pad_token_id", 3)]
}

/// One object serves all lengths and numbers of rows; the scores of the body come from around it.
#[test]
fn sizes_are_those_of_the_run() {
    let loaded = loaded(&model("GreedySearch", ends(), &["ids", "longest"]));
    for (rows, length, longest) in [(1, 1, 2), (2, 3, 9), (3, 5, 6)] {
        let found = run(&loaded, vec![ids(rows, length), scale(1.0), number(longest)], 0);
        let mut wanted = vec![1; length];
        wanted.resize(longest as usize, 0);
        assert_eq!(found, vec![wanted; rows]);
    }
    // The last token is the likeliest: all rows end at once, and what is left is filled.
    let found = run(&loaded, vec![ids(2, 2), scale(-1.0), number(6)], 0);
    assert_eq!(found, vec![vec![1, 1, 3, 3, 3, 3]; 2]);
    let inputs: Vec<Option<Tensor>> = vec![Some(ids(1, 3)), Some(scale(1.0)), Some(number(3))];
    let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
    let error = loaded.model().unwrap().run(&inputs, &shapes).unwrap_err().to_string();
    assert!(error.contains("it must be more than the number of tokens to begin with"), "{error}");
}

/// ONNX Runtime refuses such a penalty as well: scores divided by it are infinite, and the probabilities of all tokens NaN.
#[test]
fn a_repetition_penalty_is_above_zero() {
    const GREEDY: &[&str] = &["ids", "longest", "", "penalty"];
    const BEAMS: &[&str] = &["ids", "longest", "", "beams", "returned", "", "penalty"];
    for (op, names) in [("GreedySearch", GREEDY), ("Sampling", GREEDY), ("BeamSearch", BEAMS)] {
        let mut model = model(op, ends(), names);
        let graph = model.graph.as_mut().unwrap();
        let data = std::mem::replace(graph.input.last_mut().unwrap(), f32_value("penalty", &["1"]));
        assert_eq!(data.name.as_deref(), Some("penalty"));
        let loaded = loaded(&model);
        for penalty in [1.5, 0.0, -0.0, -1.0, f32::NAN] {
            let mut inputs = vec![Some(ids(1, 2)), Some(scale(1.0)), Some(number(4))];
            if op == "BeamSearch" {
                inputs.extend([Some(number(2)), Some(number(1))]);
            }
            inputs.push(Some(Tensor::from_slice(&[1], &[penalty])));
            let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
            let found = loaded.model().unwrap().run(&inputs, &shapes);
            if penalty > 0.0 {
                assert!(found.is_ok(), "{op}: {found:?}");
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(error.contains("it must be more than 0"), "{op} by {penalty}: {error}");
        }
        // A constant one is refused when it is compiled.
        let graph = model.graph.as_mut().unwrap();
        graph.input.pop();
        graph.initializer.push(f32_tensor("penalty", &[1], vec![0.0]));
        let error = compiled(&model).err().unwrap().remove(0).to_string();
        assert!(error.contains("it must be more than 0"), "{op}: {error}");
    }
}

/// How often each token comes at a place.
fn counts(sequences: &[Vec<i64>], place: usize) -> [usize; VOCABULARY] {
    let mut counts = [0; VOCABULARY];
    sequences.iter().for_each(|row| counts[row[place] as usize] += 1);
    counts
}

#[test]
fn tokens_are_drawn_as_often_as_they_are_likely() {
    const ROWS: usize = 4000;
    // Probabilities are 0.636, 0.234, 0.086, 0.032 and 0.012; of the first two, those of 0.8 in sum, 0.731 and 0.269.
    let all = [0.6364, 0.2341, 0.0861, 0.0317, 0.0117];
    let few = [0.7311, 0.2689, 0.0, 0.0, 0.0];
    for (custom, top_p, wanted) in [(0, 0.8, few), (1, 0.8, few), (0, 1.0, all), (1, 1.0, all)] {
        let mut attributes = vec![int("eos_token_id", -1), int("pad_token_id", 3), float("top_p", top_p)];
        attributes.push(int("custom", custom));
        let loaded = loaded(&model("Sampling", attributes, &["ids", "longest"]));
        let inputs = || vec![ids(ROWS, 1), scale(1.0), number(4)];
        let found = run(&loaded, inputs(), 7);
        for place in 1..4 {
            for (token, (count, wanted)) in counts(&found, place).into_iter().zip(wanted).enumerate() {
                let mean = wanted * ROWS as f64;
                let deviation = (mean * (1.0 - wanted)).sqrt();
                let far = (count as f64 - mean).abs();
                assert!(
                    far <= 5.0 * deviation,
                    "custom {custom}, top_p {top_p}, place {place}: token {token} {count} times, not {mean}"
                );
            }
        }
        // Steps and rows draw numbers of their own, and other seeds others.
        assert!(found.iter().filter(|row| row[1] == row[2]).count() < ROWS * 7 / 10);
        assert_eq!(found, run(&loaded, inputs(), 7));
        assert_ne!(found, run(&loaded, inputs(), 8));
    }
}

#[test]
fn an_input_is_the_seed() {
    let attributes = vec![int("eos_token_id", -1), int("pad_token_id", 3), float("top_p", 1.0)];
    let inputs = ["ids", "longest", "", "", "", "", "", "", "seed"];
    let loaded = loaded(&model("Sampling", attributes, &inputs));
    let found =
        |seed: i32, of_run: u64| run(&loaded, vec![ids(20, 2), scale(1.0), number(12), number(seed)], of_run);
    assert_eq!(found(5, 1), found(5, 2));
    assert_ne!(found(5, 1), found(6, 1));
}

/// An encoder of features with the features as its two caches, and a decoder of one token at a time whose scores are `table` as often as
/// the token says.
fn speech() -> [GraphProto; 2] {
    let cache = |name: &str, length: &str| f32_value(name, &["b", "1", length, "1"]);
    let nodes =
        ["cross_key", "cross_value"].map(|name| node("Unsqueeze", &["encoder_input_ids", "behind"], &[name]));
    let outputs = vec![cache("cross_key", "f"), cache("cross_value", "f")];
    let features = vec![f32_value("encoder_input_ids", &["b", "1", "f"])];
    let encoder = GraphProto {
        initializer: vec![i64_tensor("behind", &[1], vec![3])],
        ..build::graph(features, nodes.to_vec(), outputs)
    };
    let inputs = vec![
        value("input_ids", DType::I32.to_onnx(), &["b", "1"]),
        cache("past_key", "p"),
        cache("past_value", "p"),
        cache("cross_key", "f"),
        cache("cross_value", "f"),
    ];
    let nodes = vec![
        node("Cast", &["input_ids"], &["real"]).with(int("to", 1)),
        node("Unsqueeze", &["real", "last"], &["columns"]),
        node("Mul", &["columns", "table"], &["logits"]),
        node("Unsqueeze", &["real", "around"], &["keys"]),
        node("Concat", &["past_key", "keys"], &["present_key"]).with(int("axis", 2)),
        node("Concat", &["past_value", "keys"], &["present_value"]).with(int("axis", 2)),
    ];
    let outputs =
        vec![f32_value("logits", &["b", "1", "5"]), cache("present_key", "t"), cache("present_value", "t")];
    let initializer = vec![i64_tensor("last", &[1], vec![2]), i64_tensor("around", &[2], vec![1, 3])];
    [encoder, GraphProto { initializer, ..build::graph(inputs, nodes, outputs) }]
}

/// A search with these names of its inputs.
fn speech_search(inputs: &[&str]) -> ModelProto {
    let mut own = node("WhisperBeamSearch", inputs, &["sequences", "", "", "", "silence"]);
    own.domain = Some("com.microsoft".into());
    let [encoder, decoder] = speech();
    own.attribute = ends();
    own.attribute.push(int("no_speech_token_id", 3));
    own.attribute.push(build::subgraph("encoder", encoder));
    own.attribute.push(build::subgraph("decoder", decoder));
    let vector = |name: &str| value(name, DType::I32.to_onnx(), &["1"]);
    let mut given = vec![f32_value("features", &["b", "1", "f"])];
    given.extend(["longest", "beams", "returned"].map(vector));
    given.push(value("starts", DType::I32.to_onnx(), &["b", "1"]));
    let outputs =
        vec![value("sequences", DType::I32.to_onnx(), &["b", "?", "?"]), f32_value("silence", &["b"])];
    let graph = GraphProto {
        initializer: vec![f32_tensor("table", &[5], vec![2.0, 1.0, 0.0, -1.0, -2.0])],
        ..build::graph(given, vec![own], outputs)
    };
    let mut model = build::model(13, graph);
    model.opset_import.push(opset("com.microsoft", 1));
    model
}

const SPEECH: [&str; 11] = ["features", "longest", "", "beams", "returned", "", "", "", "", "", "starts"];

/// Masks of inputs, and what decoders for other devices take.
#[test]
fn inputs_that_no_search_of_speech_reads_are_refused() {
    for (at, name) in [(9, "attention_mask"), (12, "cross_qk_layer_head"), (13, "extra_decoding_ids")] {
        let mut inputs = SPEECH.to_vec();
        inputs.resize(inputs.len().max(at + 1), "");
        inputs[at] = "starts";
        let Err(errors) = compiled(&speech_search(&inputs)) else { panic!("{name} is taken") };
        let text = errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ");
        assert!(text.contains(&format!("the input {name}")), "{text}");
    }
}

/// Of all tokens, by the scores after those that a row begins with; the numbers of beams and of steps do not matter.
#[test]
fn how_likely_it_is_that_nothing_is_said() {
    let loaded = loaded(&speech_search(&SPEECH));
    for (beams, longest) in [(1, 2), (2, 4)] {
        let starts = Tensor::from_slice(&[3, 1], &[1i32, 2, 0]);
        let features = Tensor::from_slice(&[3, 1, 2], &[0.5f32; 6]);
        let inputs = [features, number(longest), number(beams), number(1), starts].map(Some);
        let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
        let found = loaded.model().unwrap().run(&inputs, &shapes).unwrap().remove(1);
        assert_eq!(found.shape, [3]);
        // exp(-s) / (exp(2 s) + exp(s) + 1 + exp(-s) + exp(-2 s)) for the tokens s = 1, 2 and 0.
        for (found, wanted) in found.to_f64s().unwrap().into_iter().zip([0.0316849, 0.0021434, 0.2]) {
            assert!((found - wanted).abs() < 1e-6, "{beams} beams: {found}, not {wanted}");
        }
    }
}

/// What a search says of a model whose decoder is changed, or the tokens that it gives.
fn changed(change: &dyn Fn(&mut GraphProto)) -> Result<Vec<Vec<i64>>, String> {
    let mut model = model("GreedySearch", ends(), &["ids", "longest"]);
    let node = &mut model.graph.as_mut().unwrap().node[1];
    let decoder = node.attribute.iter_mut().find(|attribute| attribute.name() == "decoder").unwrap();
    change(decoder.g.as_mut().unwrap());
    match compiled(&model) {
        Ok(compiled) => {
            let loaded = Loaded::new(compiled, Instant::now()).unwrap();
            Ok(run(&loaded, vec![ids(2, 3), scale(1.0), number(5)], 0))
        }
        Err(errors) => Err(errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// For any order of a decoder's inputs, each has the meaning of its name; an input without a meaning is named.
#[test]
fn names_say_what_a_decoder_takes() {
    let plain = changed(&|_| {});
    assert_eq!(plain, Ok(vec![vec![1, 1, 1, 0, 0]; 2]));
    assert_eq!(changed(&|body| body.input.reverse()), plain);
    assert_eq!(changed(&|body| body.output.reverse()), plain);
    assert_eq!(changed(&|body| body.input.rotate_left(2)), plain);
    // Not all of them are needed.
    assert_eq!(changed(&|body| drop(body.input.remove(1))), plain);
    let with = |name: &'static str| {
        changed(&|body| body.input.insert(1, value(name, DType::I32.to_onnx(), &["b", "s"]))).unwrap_err()
    };
    let error = with("encoder_input_ids");
    let wanted = "the input `encoder_input_ids` of the decoder; one of GreedySearch takes input_ids, position_ids, attention_mask";
    assert!(error.contains(wanted), "{error}");
    assert!(with("token_type_ids").contains("the input `token_type_ids` of the decoder"));
    let error = with("past_sequence_length");
    assert!(error.contains("`past_sequence_length`") && error.contains("caches of a fixed room"), "{error}");
    assert!(with("attention_mask").contains("two inputs for `attention_mask`"));
    let error = changed(&|body| drop(body.input.remove(0))).unwrap_err();
    assert!(error.contains("the decoder must take input_ids"), "{error}");
    let error = changed(&|body| drop(body.output.remove(1))).unwrap_err();
    assert!(error.contains("takes 1 caches and gives 0"), "{error}");
}
