//! What a file holds by the million and no result depends on: notes, warnings, annotations, training information.

use onnxc_proto::build::{f32_tensor, f32_value, graph, int, node, untyped};
use onnxc_proto::tensor_proto::{DataLocation, DataType};
use onnxc_proto::{
    DeviceConfigurationProto, GraphProto, ModelProto, NodeDeviceConfigurationProto, SparseTensorProto,
    StringStringEntryProto, TensorAnnotation, TensorProto, TrainingInfoProto,
};

use super::sketch::{Sketch, floats, refs};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "notes_nodes_that_each_warn", &[1000, 10_000], warnings);
    family(cases, "notes_declared_shapes_that_are_wrong", &[1000, 20_000], wrong_shapes);
    family(cases, "notes_nodes_that_are_each_wrong", &[1000, 100_000], errors);
    family(cases, "notes_quantization_annotations", &[1000, 1_000_000], annotations);
    family(cases, "notes_device_configurations", &[1000, 1_000_000], configurations);
    family(cases, "notes_device_configurations_of_a_node", &[1000, 1_000_000], node_configurations);
    family(cases, "notes_metadata_of_nodes", &[1000, 100_000], node_metadata);
    family(cases, "notes_value_infos_of_nothing", &[1000, 500_000], value_infos);
    family(cases, "notes_training_of_many_nodes", &[1000, 200_000], training);
    family(cases, "notes_training_infos", &[100, 100_000], trainings);
    family(cases, "notes_inputs_declared_twice", &[1000, 100_000], inputs_twice);
    family(cases, "external_entries_that_overlap", &[10, 1000], overlapping);
    family(cases, "external_entries_of_one_tensor", &[1000, 500_000], entries);
    family(cases, "sparse_initializers_of_huge_dims", &[10, 1000], sparse);
}

/// `y = Relu(x)`.
fn plain() -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    let y = s.op("Relu", &[&x]);
    s.giving(&y)
}

fn with(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut model = plain();
    if let Some(graph) = &mut model.graph {
        change(graph);
    }
    model
}

fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

/// Old experimental operators; each gives a warning.
fn warnings(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1", "3", "4", "8"]);
    for _ in 0..n {
        x = s.op_with("ImageScaler", &[&x], vec![floats("bias", vec![1.0; 3])]);
    }
    s.giving(&x)
}

fn wrong_shapes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["4", "8"]);
    let mut declared = Vec::new();
    for _ in 0..n {
        x = s.op("Relu", &[&x]);
        declared.push(f32_value(&x, &["5", "9"]));
    }
    let mut model = s.giving(&x);
    model.graph.iter_mut().for_each(|graph| graph.value_info = declared.clone());
    model
}

/// Each node is wrong in itself, regardless of the nodes before.
fn errors(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4", "8"]);
    for at in 0..n {
        let y = s.op_with("Softmax", &[&x], vec![int("axis", 10 + at as i64)]);
        s.output(&y);
    }
    s.model()
}

fn annotations(n: usize) -> ModelProto {
    let annotation = TensorAnnotation {
        tensor_name: Some("v1".into()),
        quant_parameter_tensor_names: vec![entry("SCALE_TENSOR", "none")],
    };
    with(|graph| graph.quantization_annotation = vec![annotation; n])
}

fn configurations(n: usize) -> ModelProto {
    let configuration = |at: usize| DeviceConfigurationProto {
        name: Some(format!("c{}", at % 1000)),
        num_devices: Some(-1),
        device: vec![],
    };
    ModelProto { configuration: (0..n).map(configuration).collect(), ..plain() }
}

fn node_configurations(n: usize) -> ModelProto {
    let configuration = |at: usize| NodeDeviceConfigurationProto {
        configuration_id: Some(format!("c{}", at % 1000)),
        ..Default::default()
    };
    with(|graph| graph.node[0].device_configurations = (0..n).map(configuration).collect())
}

fn node_metadata(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    let mut relu = node("Relu", &[&x], &["y"]);
    relu.metadata_props = (0..n).map(|_| entry("key", "v")).collect();
    s.node(relu);
    s.giving("y")
}

fn value_infos(n: usize) -> ModelProto {
    with(|graph| graph.value_info = (0..n).map(|at| f32_value(&format!("u{at}"), &["4"])).collect())
}

fn chain(n: usize) -> GraphProto {
    let name = |at: usize| format!("t{at}");
    let nodes = (0..n).map(|at| node("Relu", &[&name(at)], &[&name(at + 1)])).collect();
    graph(vec![f32_value("t0", &["4"])], nodes, vec![untyped(&name(n))])
}

fn training(n: usize) -> ModelProto {
    let info = TrainingInfoProto {
        initialization: Some(chain(n)),
        algorithm: Some(chain(n)),
        initialization_binding: vec![entry("nowhere", "t1"); 10],
        update_binding: vec![entry("nowhere", "t1"); 10],
    };
    ModelProto { training_info: vec![info], ..plain() }
}

fn trainings(n: usize) -> ModelProto {
    let info = TrainingInfoProto {
        algorithm: Some(chain(1)),
        update_binding: vec![entry("nowhere", "nothing")],
        ..Default::default()
    };
    ModelProto { training_info: vec![info; n], ..plain() }
}

fn inputs_twice(n: usize) -> ModelProto {
    with(|graph| graph.input.extend((0..n).map(|_| f32_value("v1", &["4"]))))
}

/// Tensors whose data is the file of the model itself, each from a few bytes further on.
fn overlapping(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut parts = vec![s.input(&["4"])];
    for at in 0..n {
        let name = format!("w{at}");
        s.initializer(TensorProto {
            data_type: Some(DataType::Float as i32),
            dims: vec![1024],
            name: Some(name.clone()),
            data_location: Some(DataLocation::External as i32),
            external_data: vec![
                entry("location", "hostile.onnx"),
                entry("offset", &(4 * (at % 16)).to_string()),
                entry("length", "4096"),
            ],
            ..Default::default()
        });
        parts.push(name);
    }
    let y = s.op_with("Concat", &refs(&parts), vec![int("axis", 0)]);
    s.giving(&y)
}

fn entries(n: usize) -> ModelProto {
    let tensor = TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: (0..n).map(|at| entry("location", &format!("file{}", at % 100))).collect(),
        ..f32_tensor("w", &[4], vec![])
    };
    with(|graph| {
        graph.initializer.push(tensor);
        graph.node[0].op_type = Some("Add".into());
        graph.node[0].input.push("w".into());
    })
}

/// As large as a constant may be, again and again.
fn sparse(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["1"]);
    let names: Vec<String> = (0..n).map(|at| format!("sparse{at}")).collect();
    for name in &names {
        x = s.op("Add", &[&x, name]);
    }
    let mut model = s.giving(&x);
    let tensor = |name: &String| SparseTensorProto {
        values: Some(f32_tensor(name, &[1], vec![1.0])),
        indices: Some(onnxc_proto::build::i64_tensor("i", &[1], vec![0])),
        dims: vec![1 << 28],
    };
    model.graph.iter_mut().for_each(|graph| graph.sparse_initializer = names.iter().map(tensor).collect());
    model
}
