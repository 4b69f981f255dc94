//! Shapes of a node's inputs that contradict each other: conflicts of constants make the compiler refuse the model, and conflicts that only
//! the run sees make the run fail, with a message that names the node, and with outputs as they were.

use std::path::Path;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::Call;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_proto::build::{self, int, node, value};
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use onnxc_runtime_support::Pool;
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
            "is 30; it must be at most dimension 1 of past_cache `x0`, which is 5",
        ),
        (
            case("TensorScatter", 24, 3, &[(F, ones), (F, &["1", "3", "40"]), (I, &["1"])]),
            "is 40; it must be dimension 2 of past_cache `x0`, which is 4",
        ),
        (
            case(
                "Attention",
                23,
                4,
                &[(F, &["5", "2", "3", "4"]), (F, &["1", "2", "5", "4"]), (F, &["1", "2", "5", "4"])],
            ),
            "dimension 0 of K `x1` is 1; it must be dimension 0 of Q `x0`, which is 5",
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
            "is 30; it must be at most dimension 0 of input `x0`, which is 3",
        ),
        (
            case("Compress", 21, 1, &[(F, &["3", "4"]), (DType::Bool, &["30"])]),
            "is 30; it must be at most the number of elements of input, which is 12",
        ),
        (
            case(
                "DeformConv",
                19,
                4,
                &[(F, &["1", "1", "40", "40"]), (F, &["1", "1", "2", "2"]), (F, &["1", "8", "2", "2"])],
            ),
            "of offset `x2` is 2; it must be that of the result, which is 39",
        ),
        (
            case("GatherElements", 21, 2, &[(F, &["3", "2"]), (I, &["2", "40"])]).with(int("axis", 0)),
            "dimension 1 of indices `x1` is 40; it must be at most dimension 1 of data `x0`, which is 2",
        ),
        (
            case("GatherND", 21, 2, &[(F, &["2", "3", "4"]), (I, &["40", "1"])]).with(int("batch_dims", 1)),
            "is 40; it must be dimension 0 of data `x0`, which is 2",
        ),
        (
            case("NegativeLogLikelihoodLoss", 21, 0, &[(F, &["2", "30"]), (I, &["2"]), (F, &["1"])]),
            "dimension 0 of weight `x2` is 1; it must be dimension 1 of input `x0`, which is 30",
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
        (case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["2", "3"]), (I, &["40"])]), "is 40; it must be"),
        (
            case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["2", "30"]), (I, &["2"]), (F, &["2"])]),
            "is 2; it must be dimension 1 of scores `x0`, which is 30",
        ),
        (case("ScatterND", 21, 2, &[(F, &["3", "20"]), (I, &["2", "1"]), (F, &["2", "1"])]), "which is 20"),
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
            "dimension 1 of indices `x1` is 40; it must be at most dimension 1 of data `x0`, which is 2",
        ),
        (
            case("GatherElements", 21, 2, &[(F, &["n", "m"]), (I, &["k", "l"])]),
            &[&[3, 2], &[1, 2]],
            &[&[3, 2], &[1, 40]],
            "is 40; it must be at most dimension 1 of data `x0`, which is 2",
        ),
        (
            case("ScatterND", 21, 2, &[(F, &["n", "m"]), (I, &["k", "1"]), (F, &["k", "z"])]),
            &[&[3, 2], &[1, 1], &[1, 2]],
            &[&[3, 2], &[1, 1], &[1, 1]],
            "is 1; it must be",
        ),
        (
            case("SoftmaxCrossEntropyLoss", 21, 0, &[(F, &["n", "c"]), (I, &["k"])]),
            &[&[2, 3], &[2]],
            &[&[2, 3], &[3]],
            "dimension 0 of labels `x1` is 3; it must be dimension 0 of scores `x0`, which is 2",
        ),
        (
            case("NegativeLogLikelihoodLoss", 21, 0, &[(F, &["3", "5", "2"]), (I, &["3", "k"])]),
            &[&[3, 5, 2], &[3, 2]],
            &[&[3, 5, 2], &[3, 1]],
            "is 1; it must be",
        ),
        (
            case("DequantizeLinear", 21, 2, &[(DType::I8, &["n", "m"]), (F, &["n", "k"])])
                .with(int("axis", 1))
                .with(int("block_size", 2)),
            &[&[2, 4], &[2, 2]],
            &[&[2, 4], &[2, 1]],
            "is 1; it must be",
        ),
        (
            case("RoiAlign", 21, 4, &[(F, &["1", "1", "h", "w"]), (F, &["k", "f"]), (I, &["j"])])
                .with(int("output_height", 2))
                .with(int("output_width", 2)),
            &[&[1, 1, 4, 4], &[1, 4], &[1]],
            &[&[1, 1, 4, 4], &[1, 3], &[1]],
            "dimension 1 of rois `x1` is 3; it must be 4",
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
            "which is 24",
        ),
        (
            case("Pad", 21, 2, &[(F, &["n", "m"]), (I, &["p"]), (F, &[]), (I, &["a"])]),
            &[],
            &[&[2, 3], &[3], &[], &[2]],
            "the number of elements of pads is 3; it must be 2 * K (K is dimension 0 of axes `x3`), which is 4",
        ),
        (
            case("NonMaxSuppression", 21, 2, &[(F, &["b", "n", "f"]), (F, &["b", "c", "m"])]),
            &[],
            &[&[1, 2, 3], &[1, 1, 2]],
            "dimension 2 of boxes `x0` is 3; it must be 4",
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

/// A shape that data give takes precedence over the model's declaration.
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
            assert!(
                message.contains(
                    "dimension 0 of the result is 12; it must be the one that the model declares, which is 3"
                ),
                "{message}"
            );
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
            message.contains("of sequence_lens `lengths` is ") && message.contains("node `the_node`"),
            "{wrong:?}: {message}"
        );
    }
}

/// A node whose data are not what it takes, with all that its run must say.
struct Failing {
    node: NodeProto,
    domain: (&'static str, i64),
    /// Declared dims, and what the run is given.
    inputs: Vec<(&'static [&'static str], Tensor)>,
    output: (DType, usize),
    says: &'static [&'static str],
}

fn failing(
    op: &str,
    opset: i64,
    inputs: Vec<(&'static [&'static str], Tensor)>,
    rank: usize,
    says: &'static [&'static str],
) -> Failing {
    let names: Vec<String> = (0..inputs.len()).map(|at| format!("x{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Failing { node: named(op, &names), domain: ("", opset), inputs, output: (F, rank), says }
}

impl Failing {
    fn with(mut self, attribute: AttributeProto) -> Failing {
        self.node.attribute.push(attribute);
        self
    }

    fn of(mut self, domain: &'static str, version: i64) -> Failing {
        self.node.domain = Some(domain.into());
        self.domain = (domain, version);
        self
    }

    fn with_outputs(mut self, names: &[&str]) -> Failing {
        self.node.output = build::strings(names);
        self
    }

    fn gives(mut self, dtype: DType) -> Failing {
        self.output.0 = dtype;
        self
    }

    fn model(&self) -> ModelProto {
        let inputs = self.inputs.iter().enumerate();
        let info = |(at, (dims, tensor)): (usize, &(&[&str], Tensor))| {
            value(&format!("x{at}"), tensor.dtype.to_onnx(), dims)
        };
        let output = value("y", self.output.0.to_onnx(), &vec!["?"; self.output.1]);
        let graph = build::graph(inputs.map(info).collect(), vec![self.node.clone()], vec![output]);
        let mut model = build::model(21, graph);
        model.opset_import = vec![build::opset("", 21), build::opset(self.domain.0, self.domain.1)];
        if self.domain.0.is_empty() {
            model.opset_import.remove(0);
        }
        model
    }
}

fn ramp(shape: &[usize]) -> Tensor {
    let elements: Vec<f32> = (0..shape.iter().product()).map(|at: usize| at as f32).collect();
    Tensor::from_slice(shape, &elements)
}

fn i64s(shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_slice(shape, elements)
}

/// Each way in which the data of a node, rather than shapes of its inputs, can be wrong.
fn failures() -> Vec<Failing> {
    let number = |value: i64| i64s(&[], &[value]);
    let matrix = || (&["3", "4"][..], ramp(&[3, 4]));
    vec![
        failing(
            "Gather",
            17,
            vec![matrix(), (&["2"], i64s(&[2], &[0, 7]))],
            2,
            &["element [1] of indices `x1` is 7; it must be between -3 and 2"],
        ),
        failing(
            "Gather",
            17,
            vec![(&["n", "m"], ramp(&[3, 4])), (&["a", "b"], i64s(&[2, 3], &[0, 1, 2, 0, 1, -9]))],
            3,
            &["element [1, 2] of indices `x1` is -9; it must be between -4 and 3"],
        )
        .with(int("axis", 1)),
        failing(
            "GatherElements",
            13,
            vec![(&["3", "2"], ramp(&[3, 2])), (&["1", "2"], i64s(&[1, 2], &[1, 5]))],
            2,
            &["element [0, 1] of indices `x1` is 5; it must be between -3 and 2"],
        ),
        failing(
            "GatherND",
            13,
            vec![matrix(), (&["2", "2"], i64s(&[2, 2], &[0, 0, 1, 9]))],
            1,
            &["element [1, 1] of indices `x1` is 9; it must be between -4 and 3"],
        ),
        failing(
            "ScatterElements",
            18,
            vec![matrix(), (&["1", "2"], i64s(&[1, 2], &[0, -4])), (&["1", "2"], ramp(&[1, 2]))],
            2,
            &["element [0, 1] of indices `x1` is -4; it must be between -3 and 2"],
        ),
        failing(
            "ScatterND",
            18,
            vec![matrix(), (&["1", "2"], i64s(&[1, 2], &[0, 9])), (&["1"], ramp(&[1]))],
            2,
            &["element [0, 1] of indices `x1` is 9; it must be between -4 and 3"],
        ),
        failing(
            "TensorScatter",
            24,
            vec![
                (&["1", "5", "4"], ramp(&[1, 5, 4])),
                (&["1", "3", "4"], ramp(&[1, 3, 4])),
                (&["1"], i64s(&[1], &[4])),
            ],
            3,
            &["write_indices `x2`", "is 5; it must be between -5 and 4"],
        ),
        failing(
            "NegativeLogLikelihoodLoss",
            13,
            vec![(&["2", "3"], ramp(&[2, 3])), (&["2"], i64s(&[2], &[0, 7]))],
            0,
            &["element [1] of target `x1` is 7; it must be between -3 and 2"],
        )
        .with(int("ignore_index", 1)),
        failing(
            "SoftmaxCrossEntropyLoss",
            13,
            vec![(&["2", "3"], ramp(&[2, 3])), (&["2"], i64s(&[2], &[-4, 0]))],
            0,
            &["element [0] of labels `x1` is -4; it must be between -3 and 2"],
        ),
        failing(
            "OneHotEncoder",
            1,
            vec![(&["n"], i64s(&[3], &[1, 2, 0]))],
            2,
            &["element [2] of X `x0` is 0; it must be one of the categories 1, 2"],
        )
        .of("ai.onnx.ml", 1)
        .with(build::ints("cats_int64s", &[1, 2]))
        .with(int("zeros", 0)),
        failing(
            "Expand",
            13,
            vec![matrix(), (&["2"], i64s(&[2], &[2, 4]))],
            2,
            &["element 0 of shape `x1` is 2; it must be 1 or dimension 0 of input `x0`, which is 3"],
        ),
        failing(
            "Reshape",
            14,
            vec![(&["7"], ramp(&[7])), (&["2"], i64s(&[2], &[2, -1]))],
            2,
            &["shape `x1` gives [2, 3], which is not a shape of the 7 elements of data `x0`"],
        ),
        failing(
            "Reshape",
            14,
            vec![(&["7"], ramp(&[7])), (&["2"], i64s(&[2], &[-3, 7]))],
            2,
            &["element 0 of shape `x1` gives a size of -3"],
        ),
        failing(
            "Tile",
            13,
            vec![matrix(), (&["2"], i64s(&[2], &[1, -2]))],
            2,
            &["element 1 of repeats `x1` is -2; it must be 0 or more"],
        ),
        failing(
            "ConstantOfShape",
            9,
            vec![(&["2"], i64s(&[2], &[1, -1]))],
            2,
            &["element 1 of input `x0` is -1; it must be 0 or more"],
        ),
        failing(
            "Slice",
            13,
            vec![
                matrix(),
                (&["1"], i64s(&[1], &[0])),
                (&["1"], i64s(&[1], &[3])),
                (&["1"], i64s(&[1], &[0])),
                (&["1"], i64s(&[1], &[0])),
            ],
            2,
            &["an element of steps `x4`, along axis 0, is 0; it must not be 0"],
        ),
        failing(
            "Range",
            11,
            vec![(&[], number(0)), (&[], number(5)), (&[], number(0))],
            1,
            &["delta `x2` is 0; it must not be 0"],
        )
        .gives(I),
        failing(
            "Pad",
            18,
            vec![(&["6"], ramp(&[6])), (&["2"], i64s(&[2], &[-8, 1]))],
            1,
            &["pads -8 and 1 of axis 0 take away more than the 6 elements of data `x0`"],
        ),
        failing(
            "TopK",
            11,
            vec![matrix(), (&["1"], i64s(&[1], &[9]))],
            2,
            &["K `x1` is 9; it must be between 0 and 4"],
        )
        .with_outputs(&["y", "places"]),
        failing(
            "OneHot",
            11,
            vec![(&["2"], i64s(&[2], &[0, 1])), (&[], number(-2)), (&["2"], ramp(&[2]))],
            2,
            &["depth `x1` is -2; it must be 0 or more"],
        ),
        failing(
            "ReverseSequence",
            10,
            vec![(&["4", "2"], ramp(&[4, 2])), (&["2"], i64s(&[2], &[2, 6]))],
            2,
            &["sequence_lens `x1`", "it must be between -4 and 3"],
        ),
        failing(
            "CumSum",
            14,
            vec![matrix(), (&[], number(5))],
            2,
            &["axis `x1` is 5; it must be between -2 and 1"],
        ),
        failing(
            "Squeeze",
            13,
            vec![(&["1", "4"], ramp(&[1, 4])), (&["1"], i64s(&[1], &[3]))],
            1,
            &["an axis in axes `x1` is out of range or there twice: axes must be between -2 and 1"],
        ),
        failing(
            "MaxUnpool",
            11,
            vec![(&["1", "1", "2"], ramp(&[1, 1, 2])), (&["1", "1", "2"], i64s(&[1, 1, 2], &[0, 50]))],
            3,
            &["I `x1`", "is 50; it must be between"],
        )
        .with(build::ints("kernel_shape", &[2]))
        .with(build::ints("strides", &[2])),
        failing(
            "RoiAlign",
            16,
            vec![
                (&["1", "1", "4", "4"], ramp(&[1, 1, 4, 4])),
                (&["1", "4"], ramp(&[1, 4])),
                (&["1"], i64s(&[1], &[3])),
            ],
            4,
            &["element [0] of batch_indices `x2` is 3; it must be between -1 and 0"],
        ),
        failing(
            "RotaryEmbedding",
            23,
            vec![
                (&["1", "2", "4", "8"], ramp(&[1, 2, 4, 8])),
                (&["6", "4"], ramp(&[6, 4])),
                (&["6", "4"], ramp(&[6, 4])),
                (&["1", "4"], i64s(&[1, 4], &[0, 1, 2, 11])),
            ],
            4,
            &["element [0, 3] of position_ids `x3` is 11; it must be between -6 and 5"],
        ),
        failing(
            "ArrayFeatureExtractor",
            1,
            vec![matrix(), (&["1", "2"], i64s(&[1, 2], &[0, 4]))],
            2,
            &["of Y `x1` is 4; it must be between -4 and 3"],
        )
        .of("ai.onnx.ml", 1),
        failing(
            "Compress",
            11,
            vec![(&["n"], ramp(&[2])), (&["m"], Tensor::from_slice(&[3], &[true; 3]))],
            1,
            &["is 3; it must be at most the number of elements of input, which is 2"],
        ),
        failing("ArgMax", 13, vec![(&["n", "m"], ramp(&[2, 0]))], 2, &["dimension 1 of data `x0` is 0"])
            .with(int("axis", 1))
            .gives(I),
    ]
}

/// What a message must not say: names of symbols that the model does not name, numbers of checks, values of flags.
fn is_vague(message: &str) -> bool {
    let names_a_symbol =
        message.as_bytes().windows(2).any(|pair| pair[0] == b'?' && pair[1].is_ascii_digit());
    names_a_symbol || ["(check", "is not 0", "a size is"].iter().any(|old| message.contains(old))
}

/// A run that fails for its data says which node, which input, which element of it, its value and its bounds: compiled, on
/// several threads, and interpreted.
#[test]
fn failures_for_data_have_names_and_values() {
    let pool = Pool::new(3).unwrap();
    let mut problems = vec![];
    for case in failures() {
        let folder = tempfile::tempdir().unwrap();
        let op = case.node.op_type().to_string();
        let compiled = match compile(&write(&case.model(), folder.path()), "model") {
            Ok(compiled) => compiled,
            Err(errors) => {
                problems.push(format!("{op} is refused: {}", errors[0]));
                continue;
            }
        };
        let loaded = Loaded::new(compiled, Instant::now()).unwrap();
        let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
        let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
        let native = |pool| {
            let call = Call { pool, ..Call::default() };
            let shapes = onnxc::native::output_shapes(&loaded.graph, &given).unwrap();
            let run = loaded.model().unwrap().run_with(&given, &shapes, &call);
            run.err().map_or_else(|| "it runs".to_string(), |error| error.message)
        };
        let (alone, shared) = (native(None), native(Some(&pool)));
        if alone != shared {
            problems.push(format!("{op}: `{alone}` on one thread, `{shared}` on several"));
        }
        let interpreted = onnxc_ir::interp::run(&loaded.graph, &inputs);
        let interpreted = interpreted.err().map_or_else(|| "it runs".to_string(), |error| error.to_string());
        for message in [alone, interpreted] {
            let lacks = |text: &&&str| !message.contains(**text);
            let all = ["the_node"].iter().chain(case.says);
            let lacking: Vec<&&str> = all.filter(lacks).collect();
            if !lacking.is_empty() || is_vague(&message) {
                problems.push(format!("{op}: `{message}` lacks {lacking:?}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The position in a sequence, and the sizes of parts.
#[test]
fn failures_of_sequences_have_names_and_values() {
    let graph = build::graph(
        vec![value("x", F.to_onnx(), &["n", "2"]), value("p", I.to_onnx(), &[] as &[&str])],
        vec![node("SplitToSequence", &["x"], &["s"]).with(int("axis", 0)), named("SequenceAt", &["s", "p"])],
        vec![value("y", F.to_onnx(), &["?", "?"])],
    );
    let folder = tempfile::tempdir().unwrap();
    let path = write(&build::model(17, graph), folder.path());
    let loaded = Loaded::new(compile(&path, "model").unwrap(), Instant::now()).unwrap();
    let run = |at: i64| {
        let inputs = [Some(ramp(&[3, 2])), Some(i64s(&[], &[at]))];
        let shapes = onnxc::native::output_shapes(&loaded.graph, &inputs).unwrap();
        loaded.model().unwrap().run(&inputs, &shapes)
    };
    assert!(run(-3).is_ok() && run(2).is_ok());
    for at in [9, -4] {
        let message = run(at).unwrap_err().message;
        let wanted =
            format!("position `p` is {at}; it must be between -3 and 2, of a sequence of 3 elements");
        assert!(message.contains(&wanted) && message.contains("the_node"), "{message}");
    }
}
