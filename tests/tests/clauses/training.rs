//! Training information, gradients and device configurations.

use onnxc_proto::simple_sharded_dim_proto::Dim;
use onnxc_proto::{
    DeviceConfigurationProto, IntIntListEntryProto, NodeDeviceConfigurationProto, ShardedDimProto,
    ShardingSpecProto, SimpleShardedDimProto, StringStringEntryProto, TrainingInfoProto, build,
};

use super::*;

const NETWORK: &str = "(float[4, 2] x) => (float[4, 1] y) <float[2, 1] w = {1, 1}> { y = MatMul(x, w) }";
const STEP: &str = "(float[4, 1] t) => (float[2, 1] w_new) { d = Sub(y, t) g = Transpose(x) h = MatMul(g, d) w_new = Sub(w, h) }";
const INIT: &str = "() => (float[2, 1] w_zero) { w_zero = Constant<value = float[2, 1] {0, 0}>() }";

fn binding(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

fn part(text: &str) -> Option<GraphProto> {
    text::model(text).graph
}

/// A row of a model with training information that is changed.
fn training(
    number: u32,
    statement: &str,
    edit: impl FnOnce(&mut TrainingInfoProto),
    verdict: Verdict,
) -> Row {
    let mut info = TrainingInfoProto {
        initialization: part(INIT),
        algorithm: part(STEP),
        initialization_binding: vec![binding("w", "w_zero")],
        update_binding: vec![binding("w", "w_new")],
    };
    edit(&mut info);
    edited(number, "TrainingInfo", statement, NETWORK, |m| m.training_info = vec![info], verdict)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = training_rows();
    rows.extend(gradient_rows());
    rows.extend(device_rows());
    rows
}

fn training_rows() -> Vec<Row> {
    const IGNORED: Verdict = Noted("training_info is ignored");
    vec![
        training(371, "an engine for inference may ignore it", |_| {}, IGNORED),
        training(372, "a step", |_| {}, IGNORED.since("training is compiled where --training asks for it")),
        training(
            373,
            "an initialization",
            |_| {},
            IGNORED.since("training is compiled where --training asks for it"),
        ),
        training(
            374,
            "an initialization takes nothing",
            |info| {
                info.initialization = part(
                    "(float[1] q) => (float[2, 1] w_zero) { w_zero = Constant<value = float[2, 1] {0, 0}>() }",
                )
            },
            Warned("training_info"),
        ),
        training(
            375,
            "keys are unique",
            |info| info.update_binding.push(binding("w", "w_new")),
            Warned("training_info"),
        ),
        training(
            376,
            "keys are initializers",
            |info| info.update_binding = vec![binding("nowhere", "w_new")],
            Refused("binds `nowhere`, which is not an initializer"),
        ),
        training(
            376,
            "keys of initializations are initializers",
            |info| info.initialization_binding = vec![binding("x", "w_zero")],
            Refused("binds `x`, which is not an initializer"),
        ),
        training(
            377,
            "values are outputs",
            |info| info.update_binding = vec![binding("w", "nowhere")],
            Refused("gives `w` the value `nowhere`, which is not among the outputs of the algorithm"),
        ),
        training(
            377,
            "values of initializations are outputs",
            |info| info.initialization_binding = vec![binding("w", "y")],
            Refused("gives `w` the value `y`, which is not among the outputs of the initialization"),
        ),
        training(378, "the algorithm sees the network's values", |_| {}, IGNORED),
        training(
            379,
            "an unknown operator",
            |info| info.algorithm = part("(float[4, 1] t) => (float[2, 1] w_new) { w_new = Nope(w) }"),
            Warned("training_operator"),
        ),
        edited(
            380,
            "TrainingInfo",
            "the network does not see the algorithm's values",
            "(float[4, 2] x) => (float[4, 2] y) { y = Add(x, q) }",
            |m| {
                m.training_info = vec![TrainingInfoProto {
                    algorithm: part("() => (float[1] q) { q = Constant<value = float[1] {0}>() }"),
                    ..Default::default()
                }]
            },
            Refused("input `q` is not defined"),
        ),
    ]
}

fn gradient_rows() -> Vec<Row> {
    let imports = |m: &mut ModelProto| m.opset_import.push(build::opset("ai.onnx.preview.training", 1));
    let gradient = |number, statement: &str, text: &str, verdict| {
        edited(number, "Training", statement, text, imports, verdict)
    };
    const OPTIMIZED: &str = "(float[] r, int64[] t, float[2] x, float[2] g, float[2] h";
    vec![
        gradient(
            381,
            "dL/dw",
            "(float[2] x, float[2] w) => (float[2] d) { l = Mul(x, w) d = ai.onnx.preview.training.Gradient<xs = [\"w\"], zs = [\"x\"], y = \"l\">(w, x) }",
            Accepted,
        ),
        gradient(
            382,
            "by an initializer",
            "(float[2] x) => (float[2] d) <float[2] w = {1, 2}> { l = Mul(x, w) d = ai.onnx.preview.training.Gradient<xs = [\"w\"], zs = [\"x\"], y = \"l\">(w, x) }",
            Accepted,
        ),
        gradient(
            383,
            "y does not depend on xs",
            "(float[2] x, float[2] w) => (float[2] d) { l = Neg(x) d = ai.onnx.preview.training.Gradient<xs = [\"w\"], zs = [\"x\"], y = \"l\">(w, x) }",
            Accepted,
        ),
        gradient(
            384,
            "y is not a value",
            "(float[2] x) => (float[2] d) { l = Neg(x) d = ai.onnx.preview.training.Gradient<xs = [\"x\"], y = \"zz\">(x) }",
            Refused("y names `zz`"),
        ),
        gradient(
            385,
            "numbers of xs and inputs",
            "(float[2] x) => (float[2] d) { l = Neg(x) d = ai.onnx.preview.training.Gradient<xs = [\"x\", \"l\"], y = \"l\">(x) }",
            Refused("xs and zs name 2 values, and 1 are given"),
        ),
        row(
            386,
            "Training",
            "the domain is not imported",
            "(float[2] x) => (float[2] d) { l = Neg(x) d = ai.onnx.preview.training.Gradient<xs = [\"x\"], y = \"l\">(x) }",
            Warned("domain_not_imported"),
        ),
        gradient(
            387,
            "Adagrad",
            &format!(
                "{OPTIMIZED}) => (float[2] y, float[2] k) {{ y, k = ai.onnx.preview.training.Adagrad(r, t, x, g, h) }}"
            ),
            Accepted,
        ),
        gradient(
            388,
            "Momentum",
            &format!(
                "{OPTIMIZED}) => (float[2] y, float[2] k) {{ y, k = ai.onnx.preview.training.Momentum<alpha = 0.9, beta = 1.0, mode = \"standard\", norm_coefficient = 0.0>(r, t, x, g, h) }}"
            ),
            Accepted,
        ),
        gradient(
            389,
            "Adam",
            &format!(
                "{OPTIMIZED}, float[2] v) => (float[2] y, float[2] k, float[2] w) {{ y, k, w = ai.onnx.preview.training.Adam(r, t, x, g, h, v) }}"
            ),
            Accepted,
        ),
        gradient(
            390,
            "Momentum of two",
            &format!(
                "{OPTIMIZED}, float[2] x2, float[2] g2, float[2] h2) => (float[2] y, float[2] y2, float[2] k, float[2] k2) {{ y, y2, k, k2 = ai.onnx.preview.training.Momentum<alpha = 0.9, beta = 1.0, mode = \"standard\", norm_coefficient = 0.0>(r, t, x, x2, g, g2, h, h2) }}"
            ),
            Accepted,
        ),
    ]
}

/// What a row about devices may change.
struct Devices {
    model: DeviceConfigurationProto,
    node: NodeDeviceConfigurationProto,
    version: i64,
}

impl Devices {
    fn sharding(&mut self) -> &mut ShardingSpecProto {
        &mut self.node.sharding_spec[0]
    }

    fn simple(&mut self) -> &mut SimpleShardedDimProto {
        &mut self.sharding().sharded_dim[0].simple_sharding[0]
    }
}

/// A row of a model whose product is sharded along axis 1 of the weights.
fn device(number: u32, statement: &str, edit: impl FnOnce(&mut Devices), verdict: Verdict) -> Row {
    let simple = SimpleShardedDimProto { num_shards: Some(2), dim: Some(Dim::DimValue(6)) };
    let mut devices = Devices {
        model: DeviceConfigurationProto {
            name: Some("cfg".into()),
            num_devices: Some(2),
            device: vec!["a".into(), "b".into()],
        },
        node: NodeDeviceConfigurationProto {
            configuration_id: Some("cfg".into()),
            sharding_spec: vec![ShardingSpecProto {
                tensor_name: Some("w".into()),
                device: vec![0, 1],
                index_to_device_group_map: vec![],
                sharded_dim: vec![ShardedDimProto { axis: Some(1), simple_sharding: vec![simple] }],
            }],
            pipeline_stage: None,
        },
        version: 11,
    };
    edit(&mut devices);
    edited(
        number,
        "Device",
        statement,
        NETWORK,
        |m| {
            m.ir_version = Some(devices.version);
            m.configuration = vec![devices.model];
            node(m, 0).device_configurations = vec![devices.node];
        },
        verdict,
    )
}

fn device_rows() -> Vec<Row> {
    const IGNORED: Verdict = Noted("device configuration `cfg` is ignored");
    let group = |d: &mut Devices| {
        d.sharding().device = vec![-1];
        d.sharding().index_to_device_group_map =
            vec![IntIntListEntryProto { key: Some(-1), value: vec![0, 1] }];
    };
    vec![
        device(391, "hints may be ignored", |_| {}, IGNORED),
        device(
            392,
            "a name is there",
            |d| (d.model.name, d.node.configuration_id) = (None, None),
            Warned("device_configuration"),
        ),
        device(
            393,
            "num_devices is there",
            |d| (d.model.num_devices, d.node.sharding_spec) = (None, vec![]),
            Warned("device_configuration"),
        ),
        device(
            394,
            "num_devices devices",
            |d| d.model.device = vec!["a".into()],
            Warned("device_configuration"),
        ),
        device(
            395,
            "the node's configuration is there",
            |d| d.node.configuration_id = Some("other".into()),
            Refused("the device configuration `other` is not one of the model's (`cfg`)"),
        ),
        device(
            396,
            "configuration_id is there",
            |d| d.node.configuration_id = None,
            Warned("device_configuration"),
        ),
        device(
            397,
            "stages of a pipeline",
            |d| d.node.pipeline_stage = Some(1),
            IGNORED.since("a compiled model runs on one processor"),
        ),
        device(
            398,
            "the tensor is one of the node",
            |d| d.sharding().tensor_name = Some("q".into()),
            Refused("a sharding is about `q`"),
        ),
        device(
            399,
            "devices are within num_devices",
            |d| d.sharding().device = vec![0, 2],
            Warned("device_configuration"),
        ),
        device(
            400,
            "the axis is one of the tensor",
            |d| d.sharding().sharded_dim[0].axis = Some(2),
            Warned("device_configuration"),
        ),
        device(401, "num_shards is there", |d| d.simple().num_shards = None, Warned("device_configuration")),
        device(
            402,
            "dim_param in place of dim_value",
            |d| d.simple().dim = Some(Dim::DimParam("n".into())),
            IGNORED,
        ),
        device(403, "groups of devices", group, IGNORED),
        device(404, "before IR 11", |d| d.version = 10, Warned("device_configuration")),
    ]
}
