//! Shapes of a node's inputs that contradict each other: constants make the compiler refuse the model, and what only the
//! run tells makes the run fail, with a message that names the node, and with outputs as they were.

use std::path::Path;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::graph::{DType, Tensor};
use onnxc::native::Call;
use onnxc_proto::build::{self, int, node, value};
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use onnxc_tests::compile::compile;
use prost::Message;

const F: DType = DType::F32;
const I: DType = DType::I64;

/// One node, an input for each of its operands.
struct Case {
    op: &'static str,
    opset: i64,
    attributes: Vec<AttributeProto>,
    inputs: Vec<(DType, &'static [&'static str])>,
    /// Rank of the output.
    rank: usize,
}

fn case(op: &'static str, opset: i64, rank: usize, inputs: &[(DType, &'static [&'static str])]) -> Case {
    Case { op, opset, attributes: vec![], inputs: inputs.to_vec(), rank }
}

impl Case {
    fn with(mut self, attribute: AttributeProto) -> Case {
        self.attributes.push(attribute);
        self
    }

    fn zeros(&self, shapes: &[&[usize]]) -> Vec<Option<Tensor>> {
        let zeros = |((dtype, _), shape): (&(DType, _), &&[usize])| {
            let bytes = shape.iter().product::<usize>() * dtype.size();
            Some(Tensor::new(*dtype, shape.to_vec(), vec![0; bytes].into()))
        };
        self.inputs.iter().zip(shapes).map(zeros).collect()
    }

    fn model(&self) -> ModelProto {
        let names: Vec<String> = (0..self.inputs.len()).map(|at| format!("x{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let info = |(name, (dtype, dims)): (&&str, &(DType, &[&str]))| value(name, dtype.to_onnx(), dims);
        let inputs: Vec<ValueInfoProto> = names.iter().zip(&self.inputs).map(info).collect();
        let own = NodeProto { attribute: self.attributes.clone(), ..named(self.op, &names) };
        let dtype = if self.op == "NonMaxSuppression" { I } else { F };
        let output = value("y", dtype.to_onnx(), &vec!["?"; self.rank]);
        build::model(self.opset, build::graph(inputs, vec![own], vec![output]))
    }
}

fn write(model: &ModelProto, folder: &Path) -> std::path::PathBuf {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    path
}

/// The errors of a model that must not compile.
fn refused(model: &ModelProto) -> String {
    let folder = tempfile::tempdir().unwrap();
    match compile(&write(model, folder.path()), "model") {
        Ok(_) => panic!("the model compiles"),
        Err(errors) => errors.iter().map(|error| error.to_string()).collect::<Vec<_>>().join("; "),
    }
}

#[test]
fn static_shapes_that_disagree_are_refused() {
    let ones: &[&str] = &["1", "5", "4"];
    let cases = [
        (
            case("Scatter", 9, 2, &[(F, &["3", "2"]), (I, &["1", "40"]), (F, &["1", "40"])]),
            "dimension 1 of indices `x1`",
        ),
        (
            case("ScatterElements", 18, 2, &[(F, &["1", "2"]), (I, &["1", "40"]), (F, &["1", "40"])]),
            "dimension 1 of data",
        ),
        (
            case("ScatterElements", 21, 2, &[(F, &["3", "2"]), (I, &["1", "2"]), (F, &["1", "1"])]),
            "of updates `x2`",
        ),
        (
            case("TensorScatter", 24, 3, &[(F, ones), (F, &["1", "30", "4"]), (I, &["1"])]),
            "30 is more than 5",
        ),
        (case("TensorScatter", 24, 3, &[(F, ones), (F, &["1", "3", "40"]), (I, &["1"])]), "40 is not 4"),
        (
            case(
                "Attention",
                23,
                4,
                &[(F, &["5", "2", "3", "4"]), (F, &["1", "2", "5", "4"]), (F, &["1", "2", "5", "4"])],
            ),
            "dimension 0 of K `x1` must be dimension 0 of Q `x0`: 1 is not 5",
        ),
        (
            case(
                "Attention",
                23,
                4,
                &[
                    (F, &["1", "2", "3", "4"]),
                    (F, &["1", "2", "50", "4"]),
                    (F, &["1", "2", "50", "4"]),
                    (F, &["1", "3"]),
                ],
            ),
            "dimension 1 of attn_mask",
        ),
        (
            case("Compress", 21, 2, &[(F, &["3", "4"]), (DType::Bool, &["30"])]).with(int("axis", 0)),
            "30 is more than 3",
        ),
        (case("Compress", 21, 1, &[(F, &["3", "4"]), (DType::Bool, &["30"])]), "30 is more than 12"),
        (
            case(
                "DeformConv",
                19,
                4,
                &[(F, &["1", "1", "40", "40"]), (F, &["1", "1", "2", "2"]), (F, &["1", "8", "2", "2"])],
            ),
            "of offset must be that of the result: 2 is not 39",
        ),
        (
            case("GatherElements", 21, 2, &[(F, &["3", "2"]), (I, &["2", "40"])]).with(int("axis", 0)),
            "40 is more than 2",
        ),
        (
            case("GatherND", 21, 2, &[(F, &["2", "3", "4"]), (I, &["40", "1"])]).with(int("batch_dims", 1)),
            "40 is not 2",
        ),
        (
            case("NegativeLogLikelihoodLoss", 21, 0, &[(F, &["2", "30"]), (I, &["2"]), (F, &["1"])]),
            "dimension 0 of weight `x2` must be dimension 1 of input `x0`: 1 is not 30",
        ),
        (
            case(
                "RotaryEmbedding",
                23,
                4,
                &[(F, &["1", "2", "4", "8"]), (F, &["2", "3"]), (F, &["2", "4"]), (I, &["1", "4"])],
            ),
            "dimension 1 of sin_cache",
        ),
        (case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["2", "3"]), (I, &["40"])]), "40 is not 2"),
        (
            case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["2", "30"]), (I, &["2"]), (F, &["2"])]),
            "2 is not 30",
        ),
        (case("ScatterND", 21, 2, &[(F, &["3", "20"]), (I, &["2", "1"]), (F, &["2", "1"])]), "1 is not 20"),
    ];
    for (case, text) in cases {
        let message = refused(&case.model());
        assert!(message.contains(text) && message.contains("the_node"), "{}: {message}", case.op);
    }
}

/// Inputs of zeros of these shapes; a run on them must fail for the sizes, and write nothing.
fn fails(loaded: &Loaded, case: &Case, shapes: &[&[usize]], output: &[usize], text: &str) {
    let inputs = case.zeros(shapes);
    let mut prepared = loaded.model().unwrap().prepare(&inputs, &[Some(output.to_vec())]).unwrap();
    let before = prepared.outputs().unwrap();
    let error = prepared.run(&Call::default()).expect_err(&format!("{} over {shapes:?} runs", case.op));
    assert!(error.message.contains(text), "{} over {shapes:?}: {error}", case.op);
    prepared.check_guards().unwrap();
    let after = prepared.outputs().unwrap();
    assert_eq!(before[0].data, after[0].data, "{}: outputs were written", case.op);
}

/// Each with shapes that agree, if zeros are data that the operator takes, and shapes that do not.
#[test]
fn sizes_that_only_the_run_tells_are_checked() {
    type Shapes<'s> = &'s [&'s [usize]];
    let cases: Vec<(Case, Shapes<'_>, Shapes<'_>, &str)> = vec![
        (
            case("ScatterElements", 21, 2, &[(F, &["n", "m"]), (I, &["k", "l"]), (F, &["k", "l"])]),
            &[&[3, 2], &[1, 2], &[1, 2]],
            &[&[3, 2], &[1, 40], &[1, 40]],
            "dimension 1 of indices `x1` must be at most dimension 1 of data `x0`: 40 is more than 2",
        ),
        (
            case("GatherElements", 21, 2, &[(F, &["n", "m"]), (I, &["k", "l"])]),
            &[&[3, 2], &[1, 2]],
            &[&[3, 2], &[1, 40]],
            "40 is more than 2",
        ),
        (
            case("ScatterND", 21, 2, &[(F, &["n", "m"]), (I, &["k", "1"]), (F, &["k", "z"])]),
            &[&[3, 2], &[1, 1], &[1, 2]],
            &[&[3, 2], &[1, 1], &[1, 1]],
            "1 is not 2",
        ),
        (
            case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["n", "c"]), (I, &["k"])]),
            &[&[2, 3], &[2]],
            &[&[2, 3], &[3]],
            "dimension 0 of labels `x1` must be dimension 0 of scores `x0`: 3 is not 2",
        ),
        (
            case("NegativeLogLikelihoodLoss", 21, 0, &[(F, &["3", "5", "2"]), (I, &["3", "k"])]),
            &[&[3, 5, 2], &[3, 2]],
            &[&[3, 5, 2], &[3, 1]],
            "1 is not 2",
        ),
        (
            case("DequantizeLinear", 21, 2, &[(DType::I8, &["n", "m"]), (F, &["n", "k"])])
                .with(int("axis", 1))
                .with(int("block_size", 2)),
            &[&[2, 4], &[2, 2]],
            &[&[2, 4], &[2, 1]],
            "1 is not 2",
        ),
        (
            case("RoiAlign", 21, 4, &[(F, &["1", "1", "h", "w"]), (F, &["k", "f"]), (I, &["j"])])
                .with(int("output_height", 2))
                .with(int("output_width", 2)),
            &[&[1, 1, 4, 4], &[1, 4], &[1]],
            &[&[1, 1, 4, 4], &[1, 3], &[1]],
            "dimension 1 of rois `x1` must be 4: 3 is not 4",
        ),
        (
            case(
                "LSTM",
                22,
                4,
                &[(F, &["1", "2", "4"]), (F, &["1", "12", "4"]), (F, &["1", "12", "3"]), (F, &["1", "b"])],
            )
            .with(int("hidden_size", 3)),
            &[&[1, 2, 4], &[1, 12, 4], &[1, 12, 3], &[1, 24]],
            &[&[1, 2, 4], &[1, 12, 4], &[1, 12, 3], &[1, 12]],
            "12 is not 24",
        ),
        (
            case("Pad", 21, 2, &[(F, &["n", "m"]), (I, &["p"]), (F, &[]), (I, &["a"])]),
            &[],
            &[&[2, 3], &[3], &[], &[2]],
            "the number of elements of pads must be 2 * K (K is dimension 0 of axes `x3`): 3 is not 4",
        ),
        (
            case("NonMaxSuppression", 21, 2, &[(F, &["b", "n", "f"]), (F, &["b", "c", "m"])]),
            &[],
            &[&[1, 2, 3], &[1, 1, 2]],
            "dimension 2 of boxes `x0` must be 4: 3 is not 4",
        ),
    ];
    for (case, good, bad, text) in &cases {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let compiled = compile(&write(&case.model(), folder.path()), "model").unwrap();
        let loaded = Loaded::new(compiled, start).unwrap();
        let output = vec![4; case.rank];
        fails(&loaded, case, bad, &output, text);
        fails(&loaded, case, bad, &output, "node `the_node`");
        if good.is_empty() {
            continue;
        }
        let inputs = case.zeros(good);
        let shapes = onnxc::native::output_shapes(&loaded.graph, &inputs).unwrap();
        loaded.model().unwrap().run(&inputs, &shapes).unwrap_or_else(|error| panic!("{}: {error}", case.op));
    }
}

/// A shape that data give is the shape, whatever the model declares.
#[test]
fn declared_shapes_are_checked_against_data() {
    let graph = |dims: &[&str]| -> GraphProto {
        build::graph(
            vec![value("x", F.to_onnx(), &["12"]), value("s", I.to_onnx(), &["2"])],
            vec![named("Reshape", &["x", "s"])],
            vec![value("y", F.to_onnx(), dims)],
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let path = write(&build::model(16, graph(&["3", "4"])), folder.path());
    let loaded = Loaded::new(compile(&path, "model").unwrap(), Instant::now()).unwrap();
    let x: Vec<f32> = (0..12).map(|at| at as f32).collect();
    for (wanted, fits) in
        [([3, 4], true), ([12, 1], false), ([5, 5], false), ([-7, 0], false), ([-1, 4], true)]
    {
        let inputs = [Some(Tensor::from_slice(&[12], &x)), Some(Tensor::from_slice::<i64>(&[2], &wanted))];
        let found = loaded.model().unwrap().run(&inputs, &[Some(vec![3, 4])]);
        assert_eq!(found.is_ok(), fits, "{wanted:?}: {found:?}");
        if wanted == [12, 1] {
            let message = found.unwrap_err().message;
            assert!(message.contains("as the model declares it: 12 is not 3"), "{message}");
        }
    }
    // Constants that differ are stale: what data give holds, and a warning says so.
    let stale = build::graph(
        vec![value("x", F.to_onnx(), &["2", "3"])],
        vec![named("Neg", &["x"])],
        vec![value("y", F.to_onnx(), &["2", "5"])],
    );
    let path = write(&build::model(16, stale), folder.path());
    let compiled = compile(&path, "model").unwrap();
    let texts: Vec<String> = compiled.warnings.iter().map(|warning| warning.problem.to_string()).collect();
    let text = "`y` is declared as f32[2, 5], and its type is f32[2, 3], which holds";
    assert!(texts.len() == 1 && texts[0].contains(text), "{texts:?}");
}

/// A node with the name that messages must give.
fn named(op: &str, inputs: &[&str]) -> NodeProto {
    NodeProto { name: Some("the_node".into()), ..node(op, inputs, &["y"]) }
}

/// As ONNX Runtime has it: a sequence is neither longer than the input nor of a negative length.
#[test]
fn lengths_of_sequences_are_checked() {
    let operands: [(&str, DType, &[&str], &[usize]); 3] = [
        ("x", F, &["t", "2", "2"], &[3, 2, 2]),
        ("w", F, &["1", "6", "2"], &[1, 6, 2]),
        ("r", F, &["1", "6", "2"], &[1, 6, 2]),
    ];
    let mut infos: Vec<ValueInfoProto> =
        operands.iter().map(|(name, dtype, dims, _)| value(name, dtype.to_onnx(), dims)).collect();
    infos.push(value("lengths", DType::I32.to_onnx(), &["2"]));
    let gru =
        NodeProto { attribute: vec![int("hidden_size", 2)], ..named("GRU", &["x", "w", "r", "", "lengths"]) };
    let output = value("y", F.to_onnx(), &["?", "?", "?", "?"]);
    let model = build::model(21, build::graph(infos, vec![gru], vec![output]));
    let folder = tempfile::tempdir().unwrap();
    let compiled = compile(&write(&model, folder.path()), "model").unwrap();
    let loaded = Loaded::new(compiled, Instant::now()).unwrap();
    let run = |lengths: [i32; 2]| {
        let floats = operands.iter().map(|(_, _, _, shape)| {
            let elements: Vec<f32> = (0..shape.iter().product()).map(|at: usize| at as f32 * 0.1).collect();
            Some(Tensor::from_slice(shape, &elements))
        });
        let inputs: Vec<_> = floats.chain([Some(Tensor::from_slice(&[2], &lengths))]).collect();
        let mut prepared = loaded.model().unwrap().prepare(&inputs, &[Some(vec![3, 1, 2, 2])]).unwrap();
        prepared.run(&Call::default()).map_err(|error| error.message)
    };
    assert!(run([3, 0]).is_ok());
    for wrong in [[4, 0], [3, -1], [i32::MAX, 3], [i32::MIN, 3]] {
        let message = run(wrong).expect_err(&format!("{wrong:?}"));
        assert!(
            message.contains("out of range") && message.contains("node `the_node`"),
            "{wrong:?}: {message}"
        );
    }
}
