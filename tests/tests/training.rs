//! Models with Gradient nodes, compiled: derivatives against difference quotients of the same object, optimization down to a known
//! optimum, and what cannot be differentiated.

use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, f32_value, int, ints, node, untyped, value};
use onnxc_proto::{AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use onnxc_tests::compile::{Code, compile_for};
use prost::Message;

const TRAINING: &str = "ai.onnx.preview.training";

fn names(name: &str, values: &[&str]) -> AttributeProto {
    let strings = values.iter().map(|value| value.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..build::attribute(name, AttributeType::Strings) }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(value.as_bytes().to_vec().into()),
        ..build::attribute(name, AttributeType::String)
    }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..build::attribute(name, AttributeType::Float) }
}

fn of_training(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some(TRAINING.into()), ..node(op_type, inputs, outputs) }
}

/// A Gradient of `y` by `xs`, with `zs` for constant, where the named tensors are.
fn gradient(xs: &[&str], zs: &[&str], y: &str, outputs: &[&str]) -> NodeProto {
    gradient_at(&[xs, zs].concat(), xs, zs, y, outputs)
}

/// The same at other tensors.
fn gradient_at(inputs: &[&str], xs: &[&str], zs: &[&str], y: &str, outputs: &[&str]) -> NodeProto {
    let own = of_training("Gradient", inputs, outputs).with(names("xs", xs)).with(text("y", y));
    if zs.is_empty() { own } else { own.with(names("zs", zs)) }
}

fn f64_value(name: &str, dims: &[&str]) -> ValueInfoProto {
    value(name, DType::F64.to_onnx(), dims)
}

fn model(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let outputs = outputs.iter().map(|name| untyped(name)).collect();
    let mut model = build::model(26, build::graph(inputs, nodes, outputs));
    model.ir_version = Some(10);
    model.opset_import.push(build::opset(TRAINING, 1));
    model
}

fn loaded(model: &ModelProto, opt_level: u8) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let code = Code { target: Target::host().unwrap(), opt_level };
    match compile_for(&path, "model", &code) {
        Ok(compiled) => Ok(Loaded::new(compiled, Instant::now()).unwrap()),
        Err(errors) => Err(errors.iter().map(|error| format!("{error}\n")).collect()),
    }
}

fn run(loaded: &Loaded, inputs: &[Tensor], seed: u64) -> Vec<Tensor> {
    let given: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    let shapes = native::output_shapes(&loaded.graph, &given).unwrap();
    loaded.model().unwrap().run_with(&given, &shapes, &Call { seed, ..Call::default() }).unwrap()
}

/// The results of the machine code at both ends of the levels, which are those of the reference evaluator.
fn results(model: &ModelProto, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<Vec<f64>>> = Vec::new();
    for opt_level in [0, 3] {
        let loaded = loaded(model, opt_level).unwrap_or_else(|failure| panic!("{failure}"));
        let reference = interp::run(&loaded.graph, inputs).unwrap();
        for tensors in [run(&loaded, inputs, 0), reference] {
            found.push(tensors.iter().map(|tensor| tensor.to_f64s().unwrap()).collect());
        }
    }
    for other in &found[1..] {
        for (one, other) in found[0].iter().flatten().zip(other.iter().flatten()) {
            assert!((one - other).abs() <= 1e-5 * (1.0 + one.abs()), "{one} and {other}");
        }
    }
    found.swap_remove(0)
}

/// Numbers between -1 and 1 in no order.
fn numbers(shape: &[usize], salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |at: usize| ((at * 7919 + salt * 104_729 + 17) % 2003) as f64 / 1001.5 - 1.0;
    Tensor::from_slice(shape, &(0..count).map(number).collect::<Vec<_>>())
}

/// Holds outputs 1 and on, the derivatives of output 0 by the first inputs, to the difference quotients of output 0, for some
/// elements of each. The model runs with one seed.
fn check_derivatives(model: &ModelProto, inputs: &[Tensor], by: usize) {
    const STEP: f64 = 1e-5;
    for opt_level in [0, 3] {
        let loaded = loaded(model, opt_level).unwrap_or_else(|failure| panic!("{failure}"));
        let found = run(&loaded, inputs, 5);
        let total = |inputs: &[Tensor]| run(&loaded, inputs, 5)[0].to_f64s().unwrap().iter().sum::<f64>();
        for at in 0..by {
            let own = found[at + 1].to_f64s().unwrap();
            assert_eq!(found[at + 1].shape, inputs[at].shape);
            assert!(own.iter().any(|&value| value != 0.0), "all derivatives by input {at} are 0");
            let values = inputs[at].to_f64s().unwrap();
            for element in (0..values.len()).step_by(values.len().div_ceil(9)) {
                let moved = |by: f64| {
                    let (mut values, mut inputs) = (values.clone(), inputs.to_vec());
                    values[element] += by;
                    inputs[at] = Tensor::from_slice(&inputs[at].shape, &values);
                    total(&inputs)
                };
                let wanted = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let text = format!("-O{opt_level}, input {at}, element {element}");
                assert!(
                    (own[element] - wanted).abs() < 1e-6 * (1.0 + wanted.abs()),
                    "{text}: {} {wanted}",
                    own[element]
                );
            }
        }
    }
}

fn i64s(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(shape, values)
}

#[test]
fn a_convolutional_network() {
    let inputs = vec![
        f64_value("w", &["4", "2", "3", "3"]),
        f64_value("scale", &["4"]),
        f64_value("shift", &["4"]),
        f64_value("v", &["2", "4", "3", "2"]),
        f64_value("m", &["3", "8"]),
        f64_value("c", &["3"]),
        f64_value("x", &["batch", "2", "8", "8"]),
        value("labels", DType::I64.to_onnx(), &["batch"]),
    ];
    let nodes = vec![
        node("Conv", &["x", "w"], &["a"]).with(ints("pads", &[1, 1, 1, 1])),
        node("ReduceMean", &["a", "all_but_channels"], &["mean"]),
        node("Sub", &["a", "mean"], &["centred"]),
        node("Mul", &["centred", "centred"], &["squares"]),
        node("ReduceMean", &["squares", "all_but_channels"], &["variance"]),
        node("Unsqueeze", &["scale", "spatial"], &["scale_"]),
        node("Unsqueeze", &["shift", "spatial"], &["shift_"]),
        node("Sqrt", &["variance"], &["deviation"]),
        node("Div", &["centred", "deviation"], &["normal"]),
        node("Mul", &["normal", "scale_"], &["scaled"]),
        node("Add", &["scaled", "shift_"], &["shifted"]),
        node("Relu", &["shifted"], &["b"]),
        node("MaxPool", &["b"], &["p"]).with(ints("kernel_shape", &[2, 2])).with(ints("strides", &[2, 2])),
        node("Conv", &["p", "v"], &["d"])
            .with(int("group", 1))
            .with(ints("dilations", &[1, 2]))
            .with(ints("pads", &[1, 1, 1, 1])),
        node("AveragePool", &["d"], &["e"])
            .with(ints("kernel_shape", &[3, 3]))
            .with(ints("pads", &[1, 1, 1, 1]))
            .with(ints("strides", &[2, 2])),
        node("Flatten", &["e"], &["f"]),
        node("Dropout", &["f", "ratio", "yes"], &["g"]),
        node("Gemm", &["g", "m", "c"], &["scores"]).with(int("transB", 1)),
        node("SoftmaxCrossEntropyLoss", &["scores", "labels"], &["loss"]),
        gradient(
            &["w", "scale", "shift", "v", "m", "c"],
            &["x", "labels"],
            "loss",
            &["dw", "dscale", "dshift", "dv", "dm", "dc"],
        ),
    ];
    let mut model = model(inputs, nodes, &["loss", "dw", "dscale", "dshift", "dv", "dm", "dc"]);
    let mut ratio = build::f32_tensor("ratio", &[], vec![0.3]);
    ratio.raw_data = None;
    model.graph.as_mut().unwrap().initializer = vec![
        build::i64_tensor("all_but_channels", &[3], vec![0, 2, 3]),
        build::i64_tensor("spatial", &[2], vec![1, 2]),
        ratio,
        onnxc_proto::TensorProto {
            name: Some("yes".into()),
            data_type: Some(DType::Bool.to_onnx()),
            int32_data: vec![1],
            ..Default::default()
        },
    ];
    let inputs = [
        numbers(&[4, 2, 3, 3], 1),
        numbers(&[4], 2),
        numbers(&[4], 3),
        numbers(&[2, 4, 3, 2], 4),
        numbers(&[3, 8], 5),
        numbers(&[3], 6),
        numbers(&[5, 2, 8, 8], 7),
        i64s(&[5], &[0, 2, 1, 1, 0]),
    ];
    check_derivatives(&model, &inputs, 6);
}

/// Token embeddings, attention, normalisation and a gated layer.
#[test]
fn a_transformer_block() {
    let inputs = vec![
        f64_value("table", &["7", "4"]),
        f64_value("gain", &["4"]),
        f64_value("bias", &["4"]),
        f64_value("q", &["4", "4"]),
        f64_value("k", &["4", "4"]),
        f64_value("v", &["4", "4"]),
        f64_value("up", &["4", "6"]),
        f64_value("down", &["6", "4"]),
        value("tokens", DType::I64.to_onnx(), &["batch", "length"]),
        value("labels", DType::I64.to_onnx(), &["batch", "length"]),
    ];
    let nodes = vec![
        node("Gather", &["table", "tokens"], &["x"]),
        node("LayerNormalization", &["x", "gain", "bias"], &["n"]),
        node("MatMul", &["n", "q"], &["nq"]),
        node("MatMul", &["n", "k"], &["nk"]),
        node("MatMul", &["n", "v"], &["nv"]),
        node("Attention", &["nq", "nk", "nv"], &["a"])
            .with(int("q_num_heads", 2))
            .with(int("kv_num_heads", 2))
            .with(int("is_causal", 1)),
        node("Add", &["x", "a"], &["y"]),
        node("MatMul", &["y", "up"], &["u"]),
        node("Gelu", &["u"], &["g"]),
        node("MatMul", &["g", "down"], &["d"]),
        node("Add", &["y", "d"], &["z"]),
        // The table again: two readers of one parameter.
        node("Transpose", &["table"], &["head"]).with(ints("perm", &[1, 0])),
        node("MatMul", &["z", "head"], &["scores"]),
        node("Transpose", &["scores"], &["by_class"]).with(ints("perm", &[0, 2, 1])),
        node("SoftmaxCrossEntropyLoss", &["by_class", "labels"], &["loss"]),
        gradient(
            &["table", "gain", "bias", "q", "k", "v", "up", "down"],
            &["tokens", "labels"],
            "loss",
            &["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"],
        ),
    ];
    let model = model(inputs, nodes, &["loss", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"]);
    let tokens = i64s(&[2, 3], &[1, 5, 1, 0, 6, 3]);
    let inputs = [
        numbers(&[7, 4], 1),
        numbers(&[4], 2),
        numbers(&[4], 3),
        numbers(&[4, 4], 4),
        numbers(&[4, 4], 5),
        numbers(&[4, 4], 6),
        numbers(&[4, 6], 7),
        numbers(&[6, 4], 8),
        tokens.clone(),
        i64s(&[2, 3], &[5, 1, 2, 6, 3, 0]),
    ];
    check_derivatives(&model, &inputs, 8);
}

/// Least squares by steps along the gradient find the parameters that made the data.
#[test]
fn steps_along_the_gradient_reach_the_optimum() {
    let inputs = vec![
        f64_value("w", &["3", "1"]),
        f64_value("velocity", &["3", "1"]),
        f64_value("x", &["n", "3"]),
        f64_value("wanted", &["n", "1"]),
    ];
    let momentum = [float("alpha", 0.5), float("beta", 1.0), float("norm_coefficient", 0.0)];
    let mut step =
        of_training("Momentum", &["rate", "count", "w", "dw", "velocity"], &["next", "next_velocity"])
            .with(text("mode", "standard"));
    step.attribute.extend(momentum);
    let nodes = vec![
        node("MatMul", &["x", "w"], &["y"]),
        node("Sub", &["y", "wanted"], &["error"]),
        node("Mul", &["error", "error"], &["squares"]),
        node("ReduceMean", &["squares"], &["loss"]).with(int("keepdims", 0)),
        gradient(&["w"], &["x", "wanted"], "loss", &["dw"]),
        step,
    ];
    let mut model = model(inputs, nodes, &["loss", "next", "next_velocity"]);
    model.graph.as_mut().unwrap().initializer =
        vec![build::f32_tensor("rate", &[], vec![0.25]), build::i64_tensor("count", &[], vec![1])];
    let loaded = loaded(&model, 3).unwrap_or_else(|failure| panic!("{failure}"));
    let x = numbers(&[20, 3], 9);
    let truth = [0.5, -2.0, 1.25];
    let rows = x.to_f64s().unwrap();
    let wanted: Vec<f64> =
        rows.chunks(3).map(|row| row.iter().zip(truth).map(|(x, w)| x * w).sum()).collect();
    let wanted = Tensor::from_slice(&[20, 1], &wanted);
    let mut state = [Tensor::zeros(DType::F64, &[3, 1]), Tensor::zeros(DType::F64, &[3, 1])];
    let mut losses = Vec::new();
    for _ in 0..300 {
        let found = run(&loaded, &[state[0].clone(), state[1].clone(), x.clone(), wanted.clone()], 0);
        losses.push(found[0].to_f64s().unwrap()[0]);
        state = [found[1].clone(), found[2].clone()];
    }
    assert!(losses[0] > 0.5 && losses[299] < 1e-12, "{losses:?}");
    for (found, wanted) in state[0].to_f64s().unwrap().iter().zip(truth) {
        assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
    }
}

fn scalars(names: &[&str]) -> Vec<ValueInfoProto> {
    names.iter().map(|name| f64_value(name, &[])).collect()
}

fn scalar(value: f64) -> Tensor {
    Tensor::scalar(value)
}

/// Tensors other than the named ones, as in the specification of Gradient: the derivative is at these.
#[test]
fn derivatives_at_other_values() {
    let nodes = vec![
        node("Mul", &["x", "x"], &["h"]),
        node("Mul", &["h", "h"], &["hh"]),
        node("Mul", &["hh", "z"], &["y"]),
        // By an intermediate value, at another one of it: 2 * 10 * z.
        gradient_at(&["ten", "z"], &["h"], &["z"], "y", &["dh"]),
        // By both inputs: 4 x^3 z and x^4.
        gradient(&["x", "z"], &[], "y", &["dx", "dz"]),
        // At a vector, though `x` is a scalar.
        gradient_at(&["several"], &["x"], &[], "h", &["dv"]),
    ];
    let mut model = model(scalars(&["x", "z", "ten"]), nodes, &["y", "dh", "dx", "dz", "dv"]);
    let several = onnxc_proto::TensorProto {
        name: Some("several".into()),
        dims: vec![3],
        data_type: Some(DType::F64.to_onnx()),
        double_data: vec![1.0, 2.0, 3.0],
        ..Default::default()
    };
    model.graph.as_mut().unwrap().initializer = vec![several];
    let found = results(&model, &[scalar(3.0), scalar(2.0), scalar(10.0)]);
    assert_eq!(found, [vec![162.0], vec![40.0], vec![216.0], vec![81.0], vec![2.0, 4.0, 6.0]]);
}

/// One tensor under two names is two variables.
#[test]
fn a_copy_is_another_variable() {
    let nodes = vec![
        node("Identity", &["x"], &["h"]),
        node("Mul", &["h", "x"], &["y"]),
        gradient(&["h"], &["x"], "y", &["dh"]),
        gradient(&["h", "x"], &[], "y", &["dh2", "dx2"]),
        gradient(&["x"], &[], "y", &["dx"]),
        gradient(&["y"], &[], "y", &["dy"]),
        gradient(&["z"], &[], "y", &["dz"]),
    ];
    let model = model(scalars(&["x", "z"]), nodes, &["y", "dh", "dh2", "dx2", "dx", "dy", "dz"]);
    let found = results(&model, &[scalar(3.0), scalar(7.0)]);
    assert_eq!(found.concat(), [9.0, 3.0, 3.0, 3.0, 6.0, 1.0, 0.0]);
}

/// Initializers are variables, and outputs that are left out are not computed.
#[test]
fn constants_and_outputs_left_out() {
    let nodes = vec![
        node("Mul", &["x", "w"], &["y"]),
        gradient(&["x", "w"], &[], "y", &["", "dw"]),
        gradient(&["w"], &["x"], "y", &["again"]),
    ];
    let mut model = model(scalars(&["x"]), nodes, &["y", "dw", "again"]);
    let w = onnxc_proto::TensorProto {
        name: Some("w".into()),
        data_type: Some(DType::F64.to_onnx()),
        double_data: vec![5.0],
        ..Default::default()
    };
    model.graph.as_mut().unwrap().initializer = vec![w];
    assert_eq!(results(&model, &[scalar(3.0)]).concat(), [15.0, 3.0, 3.0]);
}

/// An input and an output that are left out are not one value.
#[test]
fn names_left_out_are_no_value() {
    let nodes = vec![
        node("Mul", &["x", "w"], &["y"]),
        node("Clip", &["y", "", "limit"], &["c"]),
        gradient(&["x", "w"], &[], "c", &["", "dw"]),
    ];
    let model = model(scalars(&["x", "w", "limit"]), nodes, &["c", "dw"]);
    for (limit, wanted) in [(20.0, [15.0, 3.0]), (10.0, [10.0, 0.0])] {
        assert_eq!(results(&model, &[scalar(3.0), scalar(5.0), scalar(limit)]).concat(), wanted);
    }
}

/// Sine, cosine and tangent, whose far arguments are reduced by bits, are differentiated as functions; and again.
#[test]
fn circular_functions_near_and_far() {
    type Function = fn(f64) -> f64;
    let cases: [(&str, Function, Function); 3] = [
        ("Sin", |x| x.cos(), |x| -x.sin()),
        ("Cos", |x| -x.sin(), |x| -x.cos()),
        ("Tan", |x| 1.0 / (x.cos() * x.cos()), |x| 2.0 * x.sin() / (x.cos() * x.cos() * x.cos())),
    ];
    for (operator, first, second) in cases {
        let nodes = vec![
            node(operator, &["x"], &["y"]),
            gradient(&["x"], &[], "y", &["dy"]),
            gradient(&["x"], &[], "dy", &["ddy"]),
        ];
        let model = model(scalars(&["x"]), nodes, &["dy", "ddy"]);
        for x in [0.5, -2.0, 1e4, -3e12, 1e300] {
            let found = results(&model, &[scalar(x)]).concat();
            for (found, wanted) in found.iter().zip([first(x), second(x)]) {
                assert!(
                    (found - wanted).abs() <= 1e-12 * (1.0 + wanted.abs()),
                    "{operator} of {x}: {found}, {wanted}"
                );
            }
        }
    }
}

/// The derivative of a derivative, also where it is listed before what it differentiates, inside a body and in a function.
#[test]
fn derivatives_of_derivatives() {
    let cube = || vec![node("Mul", &["x", "x"], &["s"]), node("Mul", &["s", "x"], &["y"])];
    let (first, second) = (|| gradient(&["x"], &[], "y", &["dy"]), || gradient(&["x"], &[], "dy", &["ddy"]));
    let third = || gradient(&["x"], &[], "ddy", &["dddy"]);
    let in_order = [cube(), vec![first(), second(), third()]].concat();
    let found =
        results(&model(scalars(&["x"]), in_order.clone(), &["y", "dy", "ddy", "dddy"]), &[scalar(2.0)]);
    assert_eq!(found.concat(), [8.0, 12.0, 12.0, 6.0]);
    let early = [vec![first()], cube()].concat();
    assert_eq!(results(&model(scalars(&["x"]), early, &["y", "dy"]), &[scalar(2.0)]).concat(), [8.0, 12.0]);

    let body = |factor: &str| {
        let nodes = [cube(), vec![first(), node("Mul", &["dy", factor], &["r"])]].concat();
        build::graph(vec![], nodes, vec![untyped("r")])
    };
    let choice = node("If", &["c"], &["r"])
        .with(build::subgraph("then_branch", body("x")))
        .with(build::subgraph("else_branch", body("s")));
    let condition = value("c", DType::Bool.to_onnx(), &[] as &[&str]);
    let inputs = [scalars(&["x"]), vec![condition]].concat();
    let in_body = model(inputs, vec![choice], &["r"]);
    for (condition, wanted) in [(true, 24.0), (false, 48.0)] {
        assert_eq!(results(&in_body, &[scalar(2.0), Tensor::scalar(condition)]).concat(), [wanted]);
    }

    let mut called = model(
        scalars(&["t"]),
        vec![NodeProto { domain: Some("own".into()), ..node("F", &["t"], &["r"]) }],
        &["r"],
    );
    called.opset_import.push(build::opset("own", 1));
    called.functions.push(onnxc_proto::FunctionProto {
        name: Some("F".into()),
        domain: Some("own".into()),
        input: vec!["x".into()],
        output: vec!["ddy".into()],
        node: [cube(), vec![first(), second()]].concat(),
        opset_import: vec![build::opset("", 26), build::opset(TRAINING, 1)],
        ..Default::default()
    });
    assert_eq!(results(&called, &[scalar(2.0)]).concat(), [12.0]);
}

/// What is quantized and back, and PyTorch's results for it.
struct Quantized {
    /// Of x; scales and zero points are along axis 1, or are scalars where there is one.
    shape: &'static [usize],
    x: &'static [f32],
    scales: &'static [f32],
    zero_points: &'static [i32],
    to: DType,
    y: &'static [f64],
    by_x: &'static [f64],
    by_scales: &'static [f64],
}

/// Results of `fake_quantize_per_tensor_affine`, `fake_quantize_per_channel_affine` and those of learnable scales in PyTorch 2.15, for the
/// loss `sum(y * [1, 2, 3, ...])`: values in the range, at its ends, rounded to its ends, and beyond them.
const QUANTIZED: [Quantized; 4] = [
    Quantized {
        shape: &[2, 6],
        x: &[63.5, 63.7, 63.8, 64.0, 90.0, -64.0, -64.2, -64.3, -70.0, 0.1, -0.6, 0.0],
        scales: &[0.5],
        zero_points: &[0],
        to: DType::I8,
        y: &[63.5, 63.5, 63.5, 63.5, 63.5, -64.0, -64.0, -64.0, -64.0, 0.0, -0.5, 0.0],
        by_x: &[1.0, 2.0, 0.0, 0.0, 0.0, 6.0, 7.0, 0.0, 0.0, 10.0, 11.0, 12.0],
        by_scales: &[-649.8001708984375],
    },
    Quantized {
        shape: &[2, 6],
        x: &[63.5, 63.7, 63.8, 64.0, 90.0, -64.0, -64.2, -64.3, -70.0, 0.1, -0.6, 0.0],
        scales: &[0.5],
        zero_points: &[3],
        to: DType::I8,
        y: &[62.0, 62.0, 62.0, 62.0, 62.0, -64.0, -64.0, -64.5, -65.5, 0.0, -0.5, 0.0],
        by_x: &[0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 7.0, 8.0, 0.0, 10.0, 11.0, 12.0],
        by_scales: &[680.7999267578125],
    },
    Quantized {
        shape: &[1, 8],
        x: &[-25.0, -25.1, -25.2, 38.75, 38.8, 38.9, 0.3, -7.3],
        scales: &[0.25],
        zero_points: &[100],
        to: DType::U8,
        y: &[-25.0, -25.0, -25.0, 38.75, 38.75, 38.75, 0.25, -7.25],
        by_x: &[1.0, 2.0, 0.0, 4.0, 5.0, 0.0, 7.0, 8.0],
        by_scales: &[630.0],
    },
    Quantized {
        shape: &[2, 3, 2],
        x: &[0.2, 63.5, 40.0, -31.9, 1.5, 254.0, -64.0, -64.4, 32.4, 32.6, -3.1, -300.0],
        scales: &[0.5, 0.25, 2.0],
        zero_points: &[0, -5, 7],
        to: DType::I8,
        y: &[0.0, 63.5, 33.0, -30.75, 2.0, 240.0, -64.0, -64.0, 32.5, 32.5, -4.0, -270.0],
        by_x: &[1.0, 2.0, 0.0, 0.0, 5.0, 0.0, 7.0, 0.0, 9.0, 10.0, 11.0, 0.0],
        by_scales: &[-1024.4000244140625, -96.39999389648438, -903.699951171875],
    },
];

/// Pairs of QuantizeLinear and DequantizeLinear learn as PyTorch's fake quantization does.
#[test]
fn quantization_is_passed_straight_through() {
    for case in &QUANTIZED {
        let along: &[usize] = if case.scales.len() == 1 { &[] } else { &[case.scales.len()] };
        let zero_point = TensorProto {
            name: Some("zero".into()),
            dims: along.iter().map(|&size| size as i64).collect(),
            data_type: Some(case.to.to_onnx()),
            int32_data: case.zero_points.to_vec(),
            ..Default::default()
        };
        let weights = (1..=case.x.len()).map(|at| at as f32).collect();
        let dims: Vec<i64> = case.shape.iter().map(|&size| size as i64).collect();
        let inputs = vec![f32_value("x", case.shape), f32_value("s", along)];
        let nodes = vec![
            node("QuantizeLinear", &["x", "s", "zero"], &["q"]),
            node("DequantizeLinear", &["q", "s", "zero"], &["y"]),
            node("Mul", &["y", "weights"], &["loss"]),
            gradient(&["x", "s"], &[], "loss", &["dx", "ds"]),
        ];
        let mut model = model(inputs, nodes, &["y", "dx", "ds"]);
        let graph = model.graph.as_mut().unwrap();
        graph.initializer.extend([zero_point, build::f32_tensor("weights", &dims, weights)]);
        let inputs = [Tensor::from_slice(case.shape, case.x), Tensor::from_slice(along, case.scales)];
        let found = results(&model, &inputs);
        assert_eq!(found[0], case.y);
        assert_eq!(found[1], case.by_x);
        for (found, wanted) in found[2].iter().zip(case.by_scales) {
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs(), "{found}, not {wanted}");
        }
    }
}

#[test]
fn what_cannot_be_differentiated_is_said() {
    let refused = |nodes: Vec<NodeProto>, wanted: &str| {
        let integer = value("i", DType::I64.to_onnx(), &[] as &[&str]);
        let inputs = [scalars(&["x", "z"]), vec![integer, f64_value("s", &["4", "1", "2"])]].concat();
        match loaded(&model(inputs, nodes, &["d"]), 3) {
            Ok(_) => panic!("compiled, and not: {wanted}"),
            Err(text) => {
                assert!(text.contains(wanted) && text.contains("Gradient"), "{text}");
                assert!(!text.contains("onnxc.body"), "{text}");
            }
        }
    };
    let with = |gradient: NodeProto| vec![node("Mul", &["x", "x"], &["y"]), gradient];
    refused(with(gradient(&["x"], &[], "q", &["d"])), "y names `q`, which no node of this graph computes");
    refused(with(gradient(&["x"], &[], "z", &["d"])), "y names `z`, which no node of this graph computes");
    refused(
        with(gradient_at(&["x"], &["q"], &[], "y", &["d"])),
        "xs or zs names `q`, which is not a value of this graph",
    );
    refused(with(gradient(&["x"], &["x"], "y", &["d"])), "xs and zs name `x` twice");
    refused(
        with(gradient_at(&["x"], &["x"], &["z"], "y", &["d"])),
        "xs and zs name 2 values, and 1 are given",
    );
    refused(with(gradient(&["x"], &[], "y", &["d", "e"])), "2 outputs are named, and xs names 1 values");
    refused(with(gradient(&["i"], &[], "y", &["d"])), "there is no derivative by `i`, which is i64[]");
    let whole = node("Cast", &["x"], &["w"]).with(int("to", DType::I64.to_onnx().into()));
    refused(vec![whole, gradient(&["x"], &[], "w", &["d"])], "y is i64[], which has no derivative");
    refused(
        vec![node("Mul", &["x", "d"], &["y"]), gradient(&["x"], &[], "y", &["d"])],
        "which depends on the node itself",
    );
    let own = vec![
        node("Mul", &["x", "x"], &["y"]),
        of_training("Gradient", &["x"], &["d"]).with(names("xs", &["x"])),
    ];
    refused(own, "the required attribute y is missing");
    let turn = vec![
        node("Concat", &["state", "state"], &["joined"]).with(int("axis", 0)),
        node("Sin", &["joined"], &["next"]),
        node("Identity", &["goes_on"], &["still"]),
    ];
    let inputs = ["number", "goes_on", "state"].map(untyped).to_vec();
    let body = build::graph(inputs, turn, ["still", "next"].map(untyped).to_vec());
    let grown = vec![
        node("Constant", &[], &["twice"]).with(int("value_int", 2)),
        node("Loop", &["twice", "", "s"], &["y"]).with(build::subgraph("body", body)),
        gradient(&["s"], &[], "y", &["d"]),
    ];
    refused(
        grown,
        "of node `Loop_1` (Loop): its iterations hand on values of other sizes than they are given",
    );
}
