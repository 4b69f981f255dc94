//! Training artifacts of ONNX Runtime: models that its own tool made, and the losses of its own training
//! (`tests/python/artifacts.py` writes both).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_machine::target::Target;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, ModelProto, NodeProto, build};
use onnxc_tests::compile::{Code, compile_for};
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
