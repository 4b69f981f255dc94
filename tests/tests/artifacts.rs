//! Training artifacts of ONNX Runtime: models that its own tool made, and the losses of its own training
//! (`tests/python/artifacts.py` writes both); and each operator for derivatives against the derivative of its operator.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, ModelProto, NodeProto, build};
use onnxc_tests::compile::{Code, compile_for};
use onnxc_tests::derivatives::imported;
use prost::Message;
use serde::Deserialize;

const MICROSOFT: &str = "com.microsoft";

/// What `artifacts.py` writes.
#[derive(Deserialize)]
struct Run {
    optimizer: String,
    attributes: BTreeMap<String, f64>,
    learning_rate: f32,
    parameters: BTreeMap<String, Values>,
    batches: Vec<Vec<Values>>,
    losses: Vec<f64>,
}

#[derive(Deserialize)]
struct Values {
    shape: Vec<usize>,
    #[serde(rename = "type", default)]
    dtype: String,
    values: Vec<f64>,
}

impl Values {
    fn tensor(&self) -> Tensor {
        match self.dtype.as_str() {
            "int64" => {
                let values: Vec<i64> = self.values.iter().map(|&value| value as i64).collect();
                Tensor::from_slice(&self.shape, &values)
            }
            _ => {
                let values: Vec<f32> = self.values.iter().map(|&value| value as f32).collect();
                Tensor::from_slice(&self.shape, &values)
            }
        }
    }
}

fn loaded(model: &ModelProto) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let code = Code { target: Target::host().unwrap(), opt_level: 3 };
    let compiled = compile_for(&path, "model", &code);
    let text = |errors: Vec<onnxc_ir::error::Error>| {
        errors.iter().map(|error| format!("{error}\n")).collect::<String>()
    };
    Ok(Loaded::new(compiled.map_err(text)?, Instant::now()).unwrap())
}

/// The outputs by name.
fn run(loaded: &Loaded, given: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let inputs: Vec<Option<Tensor>> =
        loaded.graph.inputs.iter().map(|input| given.get(&input.name).cloned()).collect();
    let shapes = native::output_shapes(&loaded.graph, &inputs).unwrap();
    let outputs = loaded.model().unwrap().run_with(&inputs, &shapes, &Call::default()).unwrap();
    loaded.graph.outputs.iter().map(|output| output.0.clone()).zip(outputs).collect()
}

/// A step of the optimizer: for each parameter `w`, inputs `w`, `w.g`, `w.m1` and `w.m2`, and outputs `w.new`, `w.m1.new` and `w.m2.new`.
fn optimizer(own: &Run) -> ModelProto {
    let is_adam = own.optimizer == "AdamWOptimizer";
    let lists: &[&str] = if is_adam { &["", ".g", ".m1", ".m2"] } else { &["", ".g"] };
    let (mut inputs, mut nodes, mut outputs) = (vec![build::f32_value("rate", &[1])], vec![], vec![]);
    let mut operands = vec!["rate".to_string()];
    if is_adam {
        inputs.push(build::value("step", DType::I64.to_onnx(), &[1]));
        operands.push("step".to_string());
    }
    for list in lists {
        let names: Vec<String> = own.parameters.keys().map(|name| format!("{name}{list}")).collect();
        for (name, parameter) in names.iter().zip(own.parameters.values()) {
            inputs.push(build::f32_value(name, &parameter.shape));
        }
        let sequence = format!("all{list}");
        nodes.push(NodeProto { input: names, ..build::node("SequenceConstruct", &[], &[&sequence]) });
        operands.push(sequence);
    }
    let given: Vec<&str> = if is_adam { vec!["new", "m1.new", "m2.new"] } else { vec!["new"] };
    let mut node = NodeProto {
        domain: Some(MICROSOFT.into()),
        input: operands,
        output: std::iter::once("done").chain(given.iter().copied()).map(String::from).collect(),
        ..build::node(&own.optimizer, &[], &[])
    };
    for (name, &value) in &own.attributes {
        node.attribute.push(match name.as_str() {
            "adam_mode" | "correct_bias" => build::int(name, value as i64),
            _ => AttributeProto { f: Some(value as f32), ..build::attribute(name, AttributeType::Float) },
        });
    }
    nodes.push(node);
    let mut constants = vec![];
    for (at, name) in own.parameters.keys().enumerate() {
        let place = format!("place{at}");
        for list in &given {
            let result = format!("{name}.{list}");
            nodes.push(build::node("SequenceAt", &[list, &place], &[&result]));
            outputs.push(build::untyped(&result));
        }
        constants.push(build::i64_tensor(&place, &[], vec![at as i64]));
    }
    outputs.push(build::untyped("done"));
    let mut graph = build::graph(inputs, nodes, outputs);
    graph.initializer = constants;
    let mut model = build::model(18, graph);
    model.opset_import.push(build::opset(MICROSOFT, 1));
    model
}

/// Trains as ONNX Runtime does, with the training model as its tool wrote it.
fn trains_alike(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(name);
    let own: Run = serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder.join("training_model.onnx")).unwrap();
    let model = onnxc::decode(bytes.into()).unwrap();
    let graph = model.graph.as_ref().unwrap();
    let batch_names: Vec<&str> = graph.input.iter().take(2).map(|input| input.name()).collect();
    let loss = graph.output[0].name().to_string();
    let training = loaded(&model).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let optimizer = loaded(&optimizer(&own)).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let mut parameters: BTreeMap<String, Tensor> =
        own.parameters.iter().map(|(name, values)| (name.clone(), values.tensor())).collect();
    let zeros = |suffix: &str| -> Vec<(String, Tensor)> {
        let zeros = own.parameters.iter();
        zeros
            .map(|(name, values)| (format!("{name}{suffix}"), Tensor::zeros(DType::F32, &values.shape)))
            .collect()
    };
    let (mut buffers, mut moments) =
        (zeros("_grad.accumulation.buffer"), [zeros(".m1"), zeros(".m2")].concat());
    for (step, &wanted) in own.losses.iter().enumerate() {
        // Gradients of the step before are in the buffers still: the flag lets them begin anew.
        let mut given = parameters.clone();
        given.extend(buffers.clone());
        given.insert("lazy_reset_grad".into(), Tensor::from_slice(&[1], &[true]));
        let batch = &own.batches[step % own.batches.len()];
        given.extend(batch_names.iter().zip(batch).map(|(name, values)| (name.to_string(), values.tensor())));
        let outputs = run(&training, &given);
        let found = outputs[&loss].to_f64s().unwrap()[0];
        assert!((found - wanted).abs() <= 1e-4 * wanted.abs(), "{name}, step {step}: {found}, not {wanted}");
        for (buffer, value) in &mut buffers {
            value.clone_from(&outputs[&format!("{buffer}.next")]);
        }
        let mut given = parameters.clone();
        given.extend(moments.iter().cloned());
        given.insert("rate".into(), Tensor::from_slice(&[1], &[own.learning_rate]));
        given.insert("step".into(), Tensor::from_slice(&[1], &[step as i64 + 1]));
        for (buffer, value) in &buffers {
            let name = buffer.strip_suffix("_grad.accumulation.buffer").unwrap();
            given.insert(format!("{name}.g"), value.clone());
        }
        let outputs = run(&optimizer, &given);
        for (name, value) in &mut parameters {
            value.clone_from(&outputs[&format!("{name}.new")]);
        }
        if own.optimizer == "AdamWOptimizer" {
            for (name, value) in &mut moments {
                value.clone_from(&outputs[&format!("{name}.new")]);
            }
        }
    }
}

#[test]
fn a_network_of_products() {
    trains_alike("mlp");
}

#[test]
fn a_convolutional_network_with_batch_statistics() {
    trains_alike("cnn");
}

#[test]
fn an_encoder() {
    trains_alike("encoder");
}

#[test]
fn a_loss_of_probabilities() {
    trains_alike("bce");
}

/// Mode 0 is PyTorch's AdamW, mode 1 that of Hugging Face: weights after five steps, found by these in f64.
#[test]
fn both_modes_of_adamw() {
    let after = [
        [0.5652175638734678, -1.0968083618652582, -0.1419707966615524, 3.0588475945373705],
        [0.5629976047236949, -1.0989197462268023, -0.13828504234675906, 3.0510595462419863],
    ];
    for (mode, wanted) in after.iter().enumerate() {
        let attributes = [
            ("adam_mode", mode as f64),
            ("alpha", 0.9),
            ("beta", 0.999),
            ("correct_bias", 1.0),
            ("epsilon", 1e-3),
            ("weight_decay", 0.1),
        ];
        let values = Values { shape: vec![4], dtype: String::new(), values: vec![0.5, -1.2, 0.0, 3.0] };
        let mut given: BTreeMap<String, Tensor> = BTreeMap::from([("w".to_string(), values.tensor())]);
        let own = Run {
            optimizer: "AdamWOptimizer".to_string(),
            attributes: attributes.map(|(name, value)| (name.to_string(), value)).into(),
            learning_rate: 0.05,
            parameters: BTreeMap::from([("w".to_string(), values)]),
            batches: vec![],
            losses: vec![],
        };
        let optimizer = loaded(&optimizer(&own)).unwrap_or_else(|errors| panic!("{errors}"));
        given.insert("rate".into(), Tensor::from_slice(&[1], &[own.learning_rate]));
        for moments in ["w.m1", "w.m2"] {
            given.insert(moments.into(), Tensor::zeros(DType::F32, &[4]));
        }
        for step in 0..5i64 {
            let gradient = |at: i64| ((step * 7 + at * 5) % 11 - 5) as f32 / 4.0;
            given.insert("w.g".into(), Tensor::from_slice(&[4], &[0, 1, 2, 3].map(gradient)));
            given.insert("step".into(), Tensor::from_slice(&[1], &[step + 1]));
            let outputs = run(&optimizer, &given);
            for name in ["w", "w.m1", "w.m2"] {
                given.insert(name.into(), outputs[&format!("{name}.new")].clone());
            }
        }
        for (found, wanted) in given["w"].to_f64s().unwrap().iter().zip(wanted) {
            assert!((found - wanted).abs() <= 1e-6, "mode {mode}: {found}, not {wanted}");
        }
    }
}

/// The optimizer alone takes lists that only a run knows.
#[test]
fn lists_of_unknown_length_are_refused() {
    let sequence = |name: &str| {
        let tensor = onnxc_proto::type_proto::Tensor { elem_type: Some(1), ..Default::default() };
        let element = onnxc_proto::TypeProto {
            value: Some(onnxc_proto::type_proto::Value::TensorType(tensor)),
            ..Default::default()
        };
        let sequence = onnxc_proto::type_proto::Sequence { elem_type: Some(Box::new(element)) };
        build::typed(name, onnxc_proto::type_proto::Value::SequenceType(Box::new(sequence)))
    };
    let node = NodeProto {
        domain: Some(MICROSOFT.into()),
        ..build::node("SGDOptimizerV2", &["rate", "params", "gradients"], &["done"])
    };
    let inputs = vec![build::f32_value("rate", &[1]), sequence("params"), sequence("gradients")];
    let mut model = build::model(14, build::graph(inputs, vec![node], vec![build::untyped("done")]));
    model.opset_import.push(build::opset(MICROSOFT, 1));
    let errors = loaded(&model).map(|_| ()).unwrap_err();
    assert!(
        errors.contains("a sequence of unknown length; it must be made by SequenceConstruct"),
        "{errors}"
    );
}

/// An operator and the one for its derivatives.
struct Pair {
    opset: i64,
    nodes: Vec<NodeProto>,
    inputs: Vec<(&'static str, Tensor)>,
    /// Results whose shapes the model declares.
    declared: Vec<(&'static str, Vec<usize>)>,
    /// By which inputs, and what the second operator calls the derivatives.
    by: Vec<(&'static str, &'static str)>,
}

fn numbers(shape: &[usize], salt: usize) -> Tensor {
    let number = |at: usize| ((at * 7919 + salt * 104_729 + 17) % 2003) as f32 / 1001.5 - 1.0;
    Tensor::from_slice(shape, &(0..shape.iter().product()).map(number).collect::<Vec<_>>())
}

fn of_microsoft(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some(MICROSOFT.into()), ..build::node(op_type, inputs, outputs) }
}

fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(value.as_bytes().to_vec().into()),
        ..build::attribute(name, AttributeType::String)
    }
}

impl Pair {
    /// `forward` computes `y` from `x`; `backward` computes `dx` from `dy` and what there is.
    fn new(forward: NodeProto, backward: NodeProto, shape: &[usize]) -> Pair {
        Pair {
            opset: 21,
            nodes: vec![forward, backward],
            inputs: vec![("x", numbers(shape, 1)), ("dy", numbers(shape, 2))],
            declared: vec![],
            by: vec![("x", "dx")],
        }
    }

    fn also(mut self, name: &'static str, tensor: Tensor) -> Pair {
        self.inputs.push((name, tensor));
        self
    }

    fn by(mut self, name: &'static str, result: &'static str, tensor: Tensor) -> Pair {
        self.by.push((name, result));
        self.also(name, tensor)
    }

    /// The adjoint of another shape than `x`.
    fn adjoint(mut self, shape: &[usize]) -> Pair {
        self.inputs[1].1 = numbers(shape, 2);
        self
    }

    fn x(mut self, tensor: Tensor) -> Pair {
        self.inputs[0].1 = tensor;
        self
    }

    /// Fails where the results are not those of Gradient, of the sum of `y * dy`.
    fn check(self) {
        let name = self.nodes[1].op_type().to_string();
        let declare = |(name, tensor): &(&'static str, Tensor)| {
            build::value(name, tensor.dtype.to_onnx(), &tensor.shape)
        };
        let inputs: Vec<_> = self.inputs.iter().map(declare).collect();
        let (xs, wanted): (Vec<String>, Vec<String>) =
            self.by.iter().map(|(x, _)| (x.to_string(), format!("{x}.wanted"))).unzip();
        let zs: Vec<String> =
            self.inputs.iter().map(|input| input.0.to_string()).filter(|input| !xs.contains(input)).collect();
        let strings = |name: &str, list: &[String]| AttributeProto {
            strings: list.iter().map(|value| value.as_bytes().to_vec().into()).collect(),
            ..build::attribute(name, AttributeType::Strings)
        };
        let mut nodes = self.nodes;
        nodes.push(build::node("Mul", &["y", "dy"], &["product"]));
        nodes.push(
            NodeProto {
                domain: Some("ai.onnx.preview.training".into()),
                input: [xs.clone(), zs.clone()].concat(),
                output: wanted.clone(),
                ..build::node("Gradient", &[], &[])
            }
            .with(strings("xs", &xs))
            .with(strings("zs", &zs))
            .with(text("y", "product")),
        );
        let found = self.by.iter().map(|by| by.1.to_string());
        let info = |name: String| match self.declared.iter().find(|own| own.0 == name) {
            Some((name, shape)) => build::f32_value(name, shape),
            None => build::untyped(&name),
        };
        let outputs = wanted.into_iter().chain(found).map(info).collect();
        let graph = build::graph(inputs, nodes, outputs);
        let mut model = build::model(self.opset, graph);
        model.ir_version = Some(10);
        model.opset_import.extend([build::opset(MICROSOFT, 1), build::opset("ai.onnx.preview.training", 1)]);
        let graph = imported(&model).unwrap_or_else(|skip| panic!("{name}: {skip:?}"));
        let tensors: Vec<Tensor> = self.inputs.into_iter().map(|input| input.1).collect();
        let results = interp::run(&graph, &tensors).unwrap();
        let (wanted, found) = results.split_at(self.by.len());
        for (number, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            assert_eq!(wanted.shape, found.shape, "{name}, result {number}");
            let [wanted, found] = [wanted, found].map(|tensor| tensor.to_f64s().unwrap());
            assert!(wanted.iter().any(|&value| value != 0.0), "{name}, result {number} is 0");
            for (one, other) in found.iter().zip(&wanted) {
                assert!(
                    (one - other).abs() <= 1e-5 * (1.0 + other.abs()),
                    "{name}, result {number}: {one}, not {other}"
                );
            }
        }
    }
}

#[test]
fn derivatives_of_functions() {
    let by_x = ["dy", "x"];
    let by_y = ["dy", "y"];
    let unary = |forward: NodeProto, op_type: &str, operands: [&str; 2]| {
        let backward = of_microsoft(op_type, &operands, &["dx"]);
        Pair::new(
            NodeProto { input: vec!["x".into()], output: vec!["y".into()], ..forward },
            backward,
            &[2, 3, 4],
        )
    };
    let own = |op_type: &str| build::node(op_type, &[], &[]);
    unary(own("Relu"), "ReluGrad", by_x).check();
    unary(own("Sigmoid"), "SigmoidGrad", by_y).check();
    unary(own("Tanh"), "TanhGrad", by_y).check();
    unary(own("LeakyRelu"), "LeakyReluGrad", by_y).check();
    unary(own("Gelu"), "GeluGrad", by_x).check();
    unary(of_microsoft("FastGelu", &[], &[]), "FastGeluGrad", by_x).check();
    unary(of_microsoft("QuickGelu", &[], &[]), "QuickGeluGrad", by_x).check();
    unary(own("Abs"), "AbsGrad", by_x).check();
    let positive = Tensor::from_slice(&[2, 3, 4], &(1..25).map(|at| at as f32 / 8.0).collect::<Vec<_>>());
    unary(own("Log"), "LogGrad", by_x).x(positive).check();
    for (opset, suffix) in [(21, "_13"), (12, "")] {
        for function in ["Softmax", "LogSoftmax"] {
            let axis = build::int("axis", 1);
            let mut pair = unary(own(function).with(axis.clone()), &format!("{function}Grad{suffix}"), by_y);
            pair.nodes[1].attribute.push(axis);
            pair.opset = opset;
            pair.check();
        }
    }
    let dropout = build::node("Dropout", &["x", "ratio", "yes"], &["y", "mask"]).with(build::int("seed", 3));
    let backward = of_microsoft("DropoutGrad", &["dy", "mask", "ratio", "yes"], &["dx"]);
    let ratio = Tensor::scalar(0.25f32);
    Pair::new(dropout, backward, &[4, 6]).also("ratio", ratio).also("yes", Tensor::scalar(true)).check();
}

#[test]
fn derivatives_of_what_takes_elements() {
    let shape = Tensor::from_slice(&[2], &[3i64, 4]);
    let picks = |shape: &[usize], values: &[i64]| Tensor::from_slice(shape, values);
    let axis = build::int("axis", 1);
    let gather = build::node("Gather", &["x", "i"], &["y"]).with(axis.clone());
    let backward = of_microsoft("GatherGrad", &["shape", "i", "dy"], &["dx"]).with(axis.clone());
    let indices = picks(&[2, 2], &[0, 3, -1, 0]);
    Pair::new(gather, backward, &[3, 4])
        .adjoint(&[3, 2, 2])
        .also("i", indices)
        .also("shape", shape.clone())
        .check();
    let gather = build::node("GatherElements", &["x", "i"], &["y"]).with(axis.clone());
    let backward = of_microsoft("GatherElementsGrad", &["dy", "shape", "i"], &["dx"]).with(axis);
    let indices = picks(&[2, 3], &[0, 3, 0, 2, 2, -4]);
    Pair::new(gather, backward, &[3, 4])
        .adjoint(&[2, 3])
        .also("i", indices)
        .also("shape", shape.clone())
        .check();
    let gather = build::node("GatherND", &["x", "i"], &["y"]);
    let backward = of_microsoft("GatherNDGrad", &["shape", "i", "dy"], &["dx"]);
    let indices = picks(&[3, 2], &[0, 3, 2, 1, 0, 3]);
    Pair::new(gather, backward, &[3, 4]).adjoint(&[3]).also("i", indices).also("shape", shape).check();
}

#[test]
fn derivatives_of_convolutions_and_pools() {
    let settings =
        |node: NodeProto| node.with(build::ints("pads", &[1, 0, 1, 1])).with(build::ints("strides", &[2, 1]));
    for group in [1, 2] {
        let settings = |node: NodeProto| settings(node).with(build::int("group", group));
        let mut pair = Pair::new(
            settings(build::node("Conv", &["x", "w", "b"], &["y"])),
            settings(of_microsoft("ConvGrad", &["dy", "x", "w"], &["dx", "dw", "db"])),
            &[2, 4, 5, 4],
        );
        pair = pair.adjoint(&[2, 6, 3, 4]).by("w", "dw", numbers(&[6, 4 / group as usize, 3, 2], 3));
        pair.by("b", "db", numbers(&[6], 4)).check();
    }
    let settings = |node: NodeProto| settings(node).with(build::ints("kernel_shape", &[3, 2]));
    let pool = settings(build::node("MaxPool", &["x"], &["y", "places"]));
    let backward = settings(build::node("MaxPoolGrad", &["dy", "places"], &["dx"]));
    let mut pair = Pair::new(pool, backward, &[2, 3, 5, 4]).adjoint(&[2, 3, 3, 4]);
    pair.declared.push(("dx", vec![2, 3, 5, 4]));
    pair.check();
    let pool = settings(build::node("AveragePool", &["x"], &["y"]));
    let backward = settings(build::node("AveragePoolGrad", &["dy"], &["dx"]));
    let mut pair = Pair::new(pool, backward, &[2, 3, 5, 4]).adjoint(&[2, 3, 3, 4]);
    pair.declared.push(("dx", vec![2, 3, 5, 4]));
    pair.check();
}

#[test]
fn derivatives_of_normalizations() {
    for axis in [-1, 1] {
        let width: &[usize] = if axis == 1 { &[3, 4] } else { &[4] };
        let axis = build::int("axis", axis);
        let forward =
            build::node("LayerNormalization", &["x", "s", "b"], &["y", "mean", "inverse"]).with(axis.clone());
        let operands = ["dy", "x", "s", "mean", "inverse"];
        let backward =
            of_microsoft("LayerNormalizationGrad", &operands, &["dx", "ds", "db"]).with(axis.clone());
        let pair = Pair::new(forward, backward, &[2, 3, 4]);
        pair.by("s", "ds", numbers(width, 3)).by("b", "db", numbers(width, 4)).check();
    }
    let forward = build::node("SimplifiedLayerNormalization", &["x", "s"], &["y", "inverse"]);
    let backward =
        of_microsoft("SimplifiedLayerNormalizationGrad", &["dy", "x", "s", "inverse"], &["dx", "ds"]);
    Pair::new(forward, backward, &[2, 3, 4]).by("s", "ds", numbers(&[4], 3)).check();
    let forward =
        of_microsoft("BatchNormInternal", &["x", "s", "b", "m", "v"], &["y", "rm", "rv", "mean", "inverse"])
            .with(build::int("training_mode", 1));
    let operands = ["dy", "x", "s", "mean", "inverse"];
    let backward = of_microsoft("BatchNormalizationGrad", &operands, &["dx", "ds", "db"]);
    let pair = Pair::new(forward, backward, &[4, 3, 2]);
    let pair = pair.by("s", "ds", numbers(&[3], 3)).by("b", "db", numbers(&[3], 4));
    pair.also("m", numbers(&[3], 5)).also("v", Tensor::from_slice(&[3], &[1f32, 2., 3.])).check();
}

#[test]
fn derivatives_of_losses() {
    let labels = || Tensor::from_slice(&[2, 3], &[1i64, 3, 0, 2, 3, 3]);
    let weights = || Tensor::from_slice(&[4], &[0.5f32, 2.0, 1.5, 0.25]);
    for (reduction, adjoint) in [("none", &[2usize, 3][..]), ("sum", &[]), ("mean", &[])] {
        for (weighs, ignores) in [(false, false), (true, false), (false, true), (true, true)] {
            let (w, ignored) = (if weighs { "w" } else { "" }, if ignores { "ignored" } else { "" });
            let mode = text("reduction", reduction);
            let operands = [&["x", "labels"], &[w][..]].concat();
            let mut forward =
                build::node("SoftmaxCrossEntropyLoss", &operands, &["y", "log"]).with(mode.clone());
            let operands = [&["dy", "log", "labels"], &[w][..]].concat();
            let mut backward =
                of_microsoft("SoftmaxCrossEntropyLossGrad", &operands, &["dx"]).with(mode.clone());
            if ignores {
                forward = forward.with(build::int("ignore_index", 3));
                backward = backward.with(build::int("ignore_index", 3));
            }
            let prepared = |forward: NodeProto, backward: NodeProto| {
                let pair = Pair::new(forward, backward, &[2, 4, 3]).adjoint(adjoint).also("labels", labels());
                if weighs { pair.also("w", weights()) } else { pair }
            };
            prepared(forward, backward).check();
            let operands = [&["x", "labels"], &[w, ignored][..]].concat();
            let forward =
                of_microsoft("SoftmaxCrossEntropyLossInternal", &operands, &["y", "log"]).with(mode.clone());
            let operands = [&["dy", "log", "labels"], &[w, ignored][..]].concat();
            let backward = of_microsoft("SoftmaxCrossEntropyLossInternalGrad", &operands, &["dx"]).with(mode);
            let mut pair = prepared(forward, backward);
            let mut constant = build::node("Constant", &[], &["ignored"]);
            constant.attribute.push(build::int("value_int", 3));
            // The nodes that are compared stay the first two.
            pair.nodes.push(constant);
            pair.check();
        }
    }
}

#[test]
fn sums_and_lists() {
    let nodes = vec![
        of_microsoft("Scale", &["x", "by"], &["scaled"]).with(build::int("scale_down", 1)),
        of_microsoft("ConcatTraining", &["x", "y"], &["joined", "sizes"]).with(build::int("axis", 0)),
        of_microsoft("InPlaceAccumulator", &["x", "x", "no"], &["kept"]),
        of_microsoft("InPlaceAccumulator", &["x", "x"], &["doubled"]),
        of_microsoft("InPlaceAccumulatorV2", &["x", "scaled", "no"], &["flag", "sum"]),
        of_microsoft("InPlaceAccumulatorV2", &["x", "scaled", "yes"], &["", "anew"]),
    ];
    let inputs = vec![
        build::f32_value("x", &[2]),
        build::f32_value("y", &[3]),
        build::value("by", DType::I64.to_onnx(), &[1]),
        build::value("no", DType::Bool.to_onnx(), &[1]),
        build::value("yes", DType::Bool.to_onnx(), &[1]),
    ];
    let outputs =
        ["scaled", "joined", "sizes", "kept", "doubled", "flag", "sum", "anew"].map(build::untyped).to_vec();
    let mut model = build::model(21, build::graph(inputs, nodes, outputs));
    model.ir_version = Some(10);
    model.opset_import.push(build::opset(MICROSOFT, 1));
    let graph = imported(&model).unwrap_or_else(|skip| panic!("{skip:?}"));
    let [x, y] = [Tensor::from_slice(&[2], &[2f32, -4.]), Tensor::from_slice(&[3], &[1f32, 2., 3.])];
    let by = Tensor::from_slice(&[1], &[4i64]);
    let [no, yes] = [false, true].map(|value| Tensor::from_slice(&[1], &[value]));
    let results = interp::run(&graph, &[x, y, by, no, yes]).unwrap();
    let found: Vec<Vec<f64>> = results.iter().map(|tensor| tensor.to_f64s().unwrap_or_default()).collect();
    assert_eq!(found[0], [0.5, -1.0]);
    assert_eq!(found[1], [2.0, -4.0, 1.0, 2.0, 3.0]);
    assert_eq!(results[2].to_i64s().unwrap(), [2, 3]);
    assert_eq!([&found[3], &found[4]], [&[2.0, -4.0], &[4.0, -8.0]]);
    assert_eq!(results[5].data[..], [1]);
    assert_eq!([&found[6], &found[7]], [&[2.5, -5.0], &[0.5, -1.0]]);
}
