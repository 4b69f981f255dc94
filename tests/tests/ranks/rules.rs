//! What the specification says of multi-device configurations, statement by statement: models that keep it, which ranks then run as one
//! process does, and models that break it, with what the compiler says of them whether the configuration is followed or not.

use std::collections::BTreeSet;

use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{DType, Graph, Tensor};
use onnxc_partition::partition;
use onnxc_proto::build::{self, f32_value, node};
use onnxc_proto::simple_sharded_dim_proto::Dim;
use onnxc_proto::{
    DeviceConfigurationProto, IntIntListEntryProto, ModelProto, NodeDeviceConfigurationProto,
    ShardedDimProto, ShardingSpecProto, SimpleShardedDimProto,
};

use super::{Choice, check, check_runs, compile, exchanges, numbers, tensor};

/// All fields of the specification's section.
const FIELDS: [&str; 17] = [
    "Model.configuration",
    "DeviceConfiguration.name",
    "DeviceConfiguration.num_devices",
    "DeviceConfiguration.device",
    "Node.device_configurations",
    "NodeDeviceConfiguration.configuration_id",
    "NodeDeviceConfiguration.sharding_spec",
    "NodeDeviceConfiguration.pipeline_stage",
    "ShardingSpec.tensor_name",
    "ShardingSpec.device",
    "ShardingSpec.index_to_device_group_map",
    "ShardingSpec.sharded_dim",
    "ShardedDim.axis",
    "ShardedDim.simple_sharding",
    "SimpleShardedDim.dim_value",
    "SimpleShardedDim.dim_param",
    "SimpleShardedDim.num_shards",
];

/// Rows of the weights: enough of them that it pays to cut what is asked to be cut.
const INNER: usize = 960;

/// Bytes of the weights of the model: rows of 6, and 6 more.
const W: i64 = 4 * 6 * INNER as i64;
const B: i64 = 4 * 6;
const ALL: i64 = W + B;

/// `y = x · w + b`, with the columns of `w` on two devices.
fn base() -> ModelProto {
    let mut product = node("MatMul", &["x", "w"], &["h"]);
    product.name = Some("product".into());
    product.device_configurations = vec![NodeDeviceConfigurationProto {
        configuration_id: Some("c".into()),
        sharding_spec: vec![ShardingSpecProto {
            tensor_name: Some("w".into()),
            device: vec![0, 1],
            index_to_device_group_map: vec![],
            sharded_dim: vec![ShardedDimProto {
                axis: Some(1),
                simple_sharding: vec![SimpleShardedDimProto { dim: None, num_shards: Some(2) }],
            }],
        }],
        pipeline_stage: None,
    }];
    let nodes = vec![product, node("Add", &["h", "b"], &["y"])];
    let mut graph =
        build::graph(vec![f32_value("x", &["n", "960"])], nodes, vec![f32_value("y", &["n", "6"])]);
    graph.initializer = vec![
        build::f32_tensor("w", &[INNER as i64, 6], numbers(6 * INNER, 3)),
        build::f32_tensor("b", &[6], numbers(6, 4)),
    ];
    super::configured(build::model(17, graph), 2)
}

type Edit = fn(&mut ModelProto);

fn configuration(model: &mut ModelProto) -> &mut DeviceConfigurationProto {
    &mut model.configuration[0]
}

fn own(model: &mut ModelProto) -> &mut NodeDeviceConfigurationProto {
    &mut model.graph.as_mut().unwrap().node[0].device_configurations[0]
}

fn spec(model: &mut ModelProto) -> &mut ShardingSpecProto {
    &mut own(model).sharding_spec[0]
}

fn dim(model: &mut ModelProto) -> &mut ShardedDimProto {
    &mut spec(model).sharded_dim[0]
}

fn simple(model: &mut ModelProto) -> &mut SimpleShardedDimProto {
    &mut dim(model).simple_sharding[0]
}

/// A group of devices by a key.
fn group(key: i64, devices: &[i64]) -> IntIntListEntryProto {
    IntIntListEntryProto { key: Some(key), value: devices.to_vec() }
}

/// Four devices: two groups of two.
fn groups(model: &mut ModelProto, keys: [i64; 2], devices: [&[i64]; 2]) {
    configuration(model).num_devices = Some(4);
    spec(model).device = keys.to_vec();
    spec(model).index_to_device_group_map =
        keys.iter().zip(devices).map(|(&key, devices)| group(key, devices)).collect();
}

/// The second node is in another stage, on devices 1 or 2 and 3.
fn staged(model: &mut ModelProto, stages: [i32; 2]) {
    own(model).pipeline_stage = Some(stages[0]);
    model.graph.as_mut().unwrap().node[1].device_configurations = vec![NodeDeviceConfigurationProto {
        configuration_id: Some("c".into()),
        sharding_spec: vec![],
        pipeline_stage: Some(stages[1]),
    }];
}

/// A model that keeps a rule, and what the ranks have of it.
struct Kept {
    edit: Edit,
    /// Bytes of the weights of each rank.
    weights: &'static [i64],
    /// What each exchanges.
    exchanges: &'static [&'static str],
}

/// What is said of a model that breaks a rule where its configuration is not followed.
enum Said {
    /// A warning of the kind `device_configuration`.
    Warned,
    Refused(&'static str),
    /// Nothing but that it is ignored: the types of values decide, and those are not known before.
    Nothing,
}

struct Broken {
    edit: Edit,
    ignored: Said,
    /// The error where it is followed; `None` where what is wrong has no part in it.
    followed: Option<&'static str>,
}

struct Rule {
    field: &'static str,
    says: &'static str,
    kept: Vec<Kept>,
    broken: Vec<Broken>,
}

const GATHERED: &[&str] = &["all_gather"];
/// The first half sends what the second half receives.
const STAGES: &[&str] = &["stages"];
const HALVES: &[i64] = &[ALL / 2, ALL / 2];

fn kept(edit: Edit, weights: &'static [i64], exchanges: &'static [&'static str]) -> Kept {
    Kept { edit, weights, exchanges }
}

fn warned(edit: Edit, followed: Option<&'static str>) -> Broken {
    Broken { edit, ignored: Said::Warned, followed }
}

fn refused(edit: Edit, text: &'static str) -> Broken {
    Broken { edit, ignored: Said::Refused(text), followed: Some(text) }
}

fn unseen(edit: Edit, followed: &'static str) -> Broken {
    Broken { edit, ignored: Said::Nothing, followed: Some(followed) }
}

fn rules() -> Vec<Rule> {
    vec![
        Rule {
            field: "Model.configuration",
            says: "a model may have several configurations, from IR version 11 on",
            kept: vec![kept(
                |m| {
                    m.configuration.insert(
                        0,
                        DeviceConfigurationProto {
                            name: Some("other".into()),
                            num_devices: Some(7),
                            device: vec![],
                        },
                    )
                },
                HALVES,
                GATHERED,
            )],
            broken: vec![
                warned(|m| m.ir_version = Some(10), None),
                Broken {
                    edit: |m| m.configuration.clear(),
                    ignored: Said::Refused(
                        "the device configuration `c` is not one of the model's (it has none)",
                    ),
                    followed: Some("there is no device configuration `c`; the model has none"),
                },
            ],
        },
        Rule {
            field: "DeviceConfiguration.name",
            says: "it is required",
            kept: vec![kept(
                |m| configuration(m).device = vec!["gpu:0".into(), "gpu:1".into()],
                HALVES,
                GATHERED,
            )],
            broken: vec![
                warned(
                    |m| {
                        m.configuration.insert(
                            0,
                            DeviceConfigurationProto { name: None, num_devices: Some(1), device: vec![] },
                        )
                    },
                    None,
                ),
                warned(
                    |m| {
                        let again = configuration(m).clone();
                        m.configuration.push(again)
                    },
                    None,
                ),
            ],
        },
        Rule {
            field: "DeviceConfiguration.num_devices",
            says: "it is required: how many devices there are",
            kept: vec![
                kept(
                    |m| {
                        configuration(m).num_devices = Some(1);
                        spec(m).sharded_dim.clear();
                        spec(m).device.clear()
                    },
                    &[ALL],
                    &[],
                ),
                kept(
                    |m| {
                        configuration(m).num_devices = Some(3);
                        spec(m).device = vec![0, 1, 2];
                        simple(m).num_shards = Some(3)
                    },
                    &[ALL / 3, ALL / 3, ALL / 3],
                    GATHERED,
                ),
            ],
            broken: vec![
                warned(
                    |m| {
                        configuration(m).num_devices = None;
                        own(m).sharding_spec.clear()
                    },
                    Some("0 devices; there may be 1 to 4096"),
                ),
                warned(
                    |m| {
                        configuration(m).num_devices = Some(-2);
                        own(m).sharding_spec.clear()
                    },
                    Some("-2 devices; there may be 1 to 4096"),
                ),
            ],
        },
        Rule {
            field: "DeviceConfiguration.device",
            says: "names of devices are optional; there are num_devices of them",
            kept: vec![
                kept(|m| configuration(m).device = vec!["a".into(), "b".into()], HALVES, GATHERED),
                kept(|m| configuration(m).device.clear(), HALVES, GATHERED),
            ],
            broken: vec![
                warned(|m| configuration(m).device = vec!["a".into()], None),
                warned(|m| configuration(m).device = vec!["a".into(), "b".into(), "c".into()], None),
            ],
        },
        Rule {
            field: "Node.device_configurations",
            says: "a node may say something for several configurations, or nothing",
            kept: vec![
                kept(|m| m.graph.as_mut().unwrap().node[0].device_configurations.clear(), &[ALL, ALL], &[]),
                kept(
                    |m| {
                        let mut other = configuration(m).clone();
                        other.name = Some("other".into());
                        m.configuration.push(other);
                        let mut more = own(m).clone();
                        more.configuration_id = Some("other".into());
                        more.sharding_spec[0].sharded_dim[0].axis = Some(0);
                        m.graph.as_mut().unwrap().node[0].device_configurations.push(more);
                    },
                    HALVES,
                    GATHERED,
                ),
            ],
            // Twice for one configuration, and differently.
            broken: vec![unseen(
                |m| {
                    let mut more = own(m).clone();
                    more.sharding_spec[0].sharded_dim[0].axis = Some(0);
                    m.graph.as_mut().unwrap().node[0].device_configurations.push(more);
                },
                "another node has another sharding of it",
            )],
        },
        Rule {
            field: "NodeDeviceConfiguration.configuration_id",
            says: "it is required, and is the name of a configuration",
            kept: vec![kept(
                |m| {
                    configuration(m).name = Some("c".into());
                    own(m).configuration_id = Some("c".into())
                },
                HALVES,
                GATHERED,
            )],
            broken: vec![
                warned(|m| own(m).configuration_id = None, None),
                refused(
                    |m| own(m).configuration_id = Some("C".into()),
                    "the device configuration `C` is not one of the model's (`c`)",
                ),
            ],
        },
        Rule {
            field: "NodeDeviceConfiguration.sharding_spec",
            says: "shardings of inputs and of outputs of the node",
            kept: vec![
                kept(|m| spec(m).tensor_name = Some("h".into()), HALVES, GATHERED),
                // Rows of x, so all weights.
                kept(
                    |m| {
                        spec(m).tensor_name = Some("x".into());
                        dim(m).axis = Some(0)
                    },
                    &[ALL, ALL],
                    GATHERED,
                ),
                kept(|m| own(m).sharding_spec.clear(), &[ALL, ALL], &[]),
                kept(
                    |m| {
                        let mut more = spec(m).clone();
                        more.tensor_name = Some("h".into());
                        own(m).sharding_spec.push(more);
                    },
                    HALVES,
                    GATHERED,
                ),
            ],
            broken: vec![refused(
                |m| spec(m).tensor_name = Some("b".into()),
                "a sharding is about `b`, which is neither an input nor an output of the node",
            )],
        },
        Rule {
            field: "NodeDeviceConfiguration.pipeline_stage",
            says: "an optional number of a stage; nodes of a stage are on the devices of that stage",
            kept: vec![
                kept(|m| own(m).pipeline_stage = None, HALVES, GATHERED),
                kept(
                    |m| {
                        own(m).sharding_spec.clear();
                        staged(m, [0, 1])
                    },
                    &[W, B],
                    STAGES,
                ),
                // Stages need no consecutive numbers.
                kept(
                    |m| {
                        own(m).sharding_spec.clear();
                        staged(m, [-3, 8])
                    },
                    &[W, B],
                    STAGES,
                ),
                kept(
                    |m| {
                        configuration(m).num_devices = Some(4);
                        staged(m, [0, 1])
                    },
                    &[W / 2, W / 2, B / 2, B / 2],
                    STAGES,
                ),
            ],
            broken: vec![
                unseen(
                    |m| {
                        configuration(m).num_devices = Some(3);
                        staged(m, [0, 1])
                    },
                    "3 devices for 2 stages of equal size",
                ),
                unseen(
                    |m| {
                        configuration(m).num_devices = Some(4);
                        staged(m, [0, 1]);
                        spec(m).device = vec![1, 2]
                    },
                    "its devices are in more than one stage",
                ),
            ],
        },
        Rule {
            field: "ShardingSpec.tensor_name",
            says: "it is required, and names an input or output of the node",
            kept: vec![kept(|m| spec(m).tensor_name = Some("w".into()), HALVES, GATHERED)],
            broken: vec![
                refused(|m| spec(m).tensor_name = None, "a sharding is about ``"),
                refused(|m| spec(m).tensor_name = Some("y".into()), "a sharding is about `y`"),
            ],
        },
        Rule {
            field: "ShardingSpec.device",
            says: "the devices over which the tensor is split or replicated",
            kept: vec![
                // Replicated.
                kept(|m| spec(m).sharded_dim.clear(), &[ALL, ALL], &[]),
                kept(|m| spec(m).device.clear(), HALVES, GATHERED),
            ],
            broken: vec![
                warned(|m| spec(m).device = vec![0, 2], Some("device 2 is not one of the 2 devices")),
                warned(|m| spec(m).device = vec![-1, 0], Some("device -1 is not one of the 2 devices")),
                unseen(|m| spec(m).device = vec![1, 1], "device 1 is listed twice"),
                unseen(|m| spec(m).device = vec![0], "1 devices or groups for 2 shards"),
                unseen(
                    |m| spec(m).device = vec![1, 0],
                    "the shards of axis 1 are not in the order of the devices",
                ),
            ],
        },
        Rule {
            field: "ShardingSpec.index_to_device_group_map",
            says: "a number in device may be the key of a group, whose devices all have the shard; others are devices",
            kept: vec![
                kept(
                    |m| groups(m, [-1, -2], [&[0, 1], &[2, 3]]),
                    &[ALL / 2, ALL / 2, ALL / 2, ALL / 2],
                    GATHERED,
                ),
                kept(
                    |m| groups(m, [10, 11], [&[0, 2], &[1, 3]]),
                    &[ALL / 2, ALL / 2, ALL / 2, ALL / 2],
                    GATHERED,
                ),
                // A key that the list of devices does not have.
                kept(|m| spec(m).index_to_device_group_map = vec![group(9, &[0, 1])], HALVES, GATHERED),
            ],
            broken: vec![
                warned(
                    |m| groups(m, [-1, -2], [&[0, 1], &[2, 4]]),
                    Some("device 4 is not one of the 4 devices"),
                ),
                unseen(|m| groups(m, [-1, -2], [&[0, 1], &[1, 2]]), "device 1 is listed twice"),
                unseen(
                    |m| groups(m, [-1, -2], [&[0, 1, 2], &[3]]),
                    "its groups of devices have different sizes",
                ),
            ],
        },
        Rule {
            field: "ShardingSpec.sharded_dim",
            says: "one for each axis that is sharded",
            kept: vec![
                kept(|m| spec(m).sharded_dim.clear(), &[ALL, ALL], &[]),
                // Both axes of w: two by two.
                kept(
                    |m| {
                        configuration(m).num_devices = Some(4);
                        spec(m).device = vec![0, 1, 2, 3];
                        let mut rows = dim(m).clone();
                        rows.axis = Some(0);
                        spec(m).sharded_dim.insert(0, rows);
                    },
                    &[W / 4 + B / 2, W / 4 + B / 2, W / 4 + B / 2, W / 4 + B / 2],
                    &["all_reduce", "all_gather"],
                ),
            ],
            broken: vec![unseen(
                |m| {
                    configuration(m).num_devices = Some(4);
                    spec(m).device = vec![0, 1, 2, 3];
                    let again = dim(m).clone();
                    spec(m).sharded_dim.push(again)
                },
                "axis 1 is sharded twice",
            )],
        },
        Rule {
            field: "ShardedDim.axis",
            says: "it is required, and in [-r, r-1]",
            kept: vec![
                kept(|m| dim(m).axis = Some(1), HALVES, GATHERED),
                kept(|m| dim(m).axis = Some(-1), HALVES, GATHERED),
                kept(|m| dim(m).axis = Some(-2), &[W / 2 + B, W / 2 + B], &["all_reduce"]),
                kept(|m| dim(m).axis = Some(0), &[W / 2 + B, W / 2 + B], &["all_reduce"]),
            ],
            broken: vec![
                warned(|m| dim(m).axis = None, Some("what is sharded has no axis")),
                warned(|m| dim(m).axis = Some(2), Some("axis 2 is sharded, and the value has 2")),
                warned(|m| dim(m).axis = Some(-3), Some("axis -3 is sharded, and the value has 2")),
            ],
        },
        Rule {
            field: "ShardedDim.simple_sharding",
            says: "how the axis is divided: several where several axes were fused into it",
            kept: vec![
                // Three pieces of two columns each, which stay whole.
                kept(
                    |m| {
                        configuration(m).num_devices = Some(3);
                        spec(m).device = vec![0, 1, 2];
                        dim(m).simple_sharding = vec![
                            SimpleShardedDimProto { dim: Some(Dim::DimValue(3)), num_shards: Some(3) },
                            SimpleShardedDimProto { dim: Some(Dim::DimValue(2)), num_shards: Some(1) },
                        ];
                    },
                    &[ALL / 3, ALL / 3, ALL / 3],
                    GATHERED,
                ),
                kept(
                    |m| {
                        dim(m).simple_sharding.clear();
                        spec(m).device.clear()
                    },
                    &[ALL, ALL],
                    &[],
                ),
            ],
            broken: vec![unseen(
                |m| {
                    dim(m).simple_sharding.insert(
                        0,
                        SimpleShardedDimProto { dim: Some(Dim::DimValue(3)), num_shards: Some(1) },
                    );
                },
                "2 shards of part 1 of axis 1: the first part alone may be cut",
            )],
        },
        Rule {
            field: "SimpleShardedDim.dim_value",
            says: "the number of blocks that are divided into shards",
            kept: vec![
                kept(|m| simple(m).dim = Some(Dim::DimValue(6)), HALVES, GATHERED),
                // Two blocks of three columns; three blocks of two, one here and two there.
                kept(|m| simple(m).dim = Some(Dim::DimValue(2)), HALVES, GATHERED),
                kept(|m| simple(m).dim = Some(Dim::DimValue(3)), &[ALL / 3, 2 * ALL / 3], GATHERED),
            ],
            broken: vec![
                unseen(|m| simple(m).dim = Some(Dim::DimValue(4)), "axis 1 of size 6 is not a multiple of 4"),
                unseen(|m| simple(m).dim = Some(Dim::DimValue(0)), "axis 1 of size 6 is not a multiple of 0"),
                warned(
                    |m| simple(m).dim = Some(Dim::DimValue(-6)),
                    Some("axis 1 of size 6 is not a multiple of -6"),
                ),
            ],
        },
        Rule {
            field: "SimpleShardedDim.dim_param",
            says: "a symbol in place of a number of blocks",
            kept: vec![
                kept(
                    |m| {
                        spec(m).tensor_name = Some("x".into());
                        dim(m).axis = Some(0);
                        simple(m).dim = Some(Dim::DimParam("n".into()));
                    },
                    &[ALL, ALL],
                    GATHERED,
                ),
                kept(|m| simple(m).dim = Some(Dim::DimParam("columns".into())), HALVES, GATHERED),
            ],
            // The number of shards is a constant, and has no symbol.
            broken: vec![warned(
                |m| {
                    *simple(m) =
                        SimpleShardedDimProto { dim: Some(Dim::DimParam("n".into())), num_shards: None }
                },
                Some("axis 1 has 0 shards in num_shards"),
            )],
        },
        Rule {
            field: "SimpleShardedDim.num_shards",
            says: "it is required: the number of shards, which need not divide the blocks",
            kept: vec![
                kept(
                    |m| {
                        simple(m).num_shards = Some(1);
                        spec(m).device.clear()
                    },
                    &[ALL, ALL],
                    &[],
                ),
                // Six columns as 1, 2, 1, 2.
                kept(
                    |m| {
                        configuration(m).num_devices = Some(4);
                        spec(m).device = vec![0, 1, 2, 3];
                        simple(m).num_shards = Some(4)
                    },
                    &[ALL / 6, ALL / 3, ALL / 6, ALL / 3],
                    GATHERED,
                ),
                // 960 rows as six times 137, and 138.
                kept(
                    |m| {
                        configuration(m).num_devices = Some(7);
                        spec(m).device = (0..7).collect();
                        dim(m).axis = Some(0);
                        simple(m).num_shards = Some(7);
                    },
                    &[3312, 3312, 3312, 3312, 3312, 3312, 3336],
                    &["all_reduce"],
                ),
                // More shards than there are columns.
                kept(
                    |m| {
                        configuration(m).num_devices = Some(7);
                        spec(m).device = (0..7).collect();
                        simple(m).num_shards = Some(7);
                    },
                    &[0, ALL / 6, ALL / 6, ALL / 6, ALL / 6, ALL / 6, ALL / 6],
                    GATHERED,
                ),
            ],
            broken: vec![
                warned(|m| simple(m).num_shards = None, Some("axis 1 has 0 shards in num_shards")),
                warned(|m| simple(m).num_shards = Some(-2), Some("axis 1 has -2 shards in num_shards")),
                unseen(|m| simple(m).num_shards = Some(3), "2 devices or groups for 3 shards"),
                unseen(
                    |m| {
                        spec(m).device.clear();
                        simple(m).num_shards = Some(3)
                    },
                    "3 shards and no devices, where the configuration has 2",
                ),
            ],
        },
    ]
}

fn edited(edit: Edit) -> ModelProto {
    let mut model = base();
    edit(&mut model);
    model
}

fn ranks(model: &ModelProto) -> usize {
    let own = model.configuration.iter().find(|own| own.name() == "c");
    own.map_or(2, |own| own.num_devices() as usize)
}

/// Bytes of the weights, without numbers that exchanges count with.
fn weights(graph: &Graph) -> i64 {
    let all: BTreeSet<_> = graph.order.iter().flat_map(|&id| graph.nodes[id].inputs.clone()).collect();
    let own =
        all.into_iter().filter(|&value| graph.is_constant(value) && graph.ty(value).dtype == DType::F32);
    own.map(|value| graph.ty(value).bytes().as_const().unwrap()).sum()
}

/// The graphs of all ranks, before anything is packed.
fn graphs_of(model: &ModelProto) -> Vec<Graph> {
    let options = ImportOptions { configuration: Some("c".into()), ..Default::default() };
    let found = import(model, &options, &NoExternalData, onnxc::operators()).unwrap();
    partition(&found.graph, &found.devices.unwrap()).unwrap().graphs
}

#[test]
fn every_field_has_a_rule_with_models_that_keep_and_break_it() {
    let rules = rules();
    let fields: Vec<&str> = rules.iter().map(|rule| rule.field).collect();
    assert_eq!(fields, FIELDS);
    for rule in &rules {
        assert!(!rule.kept.is_empty() && !rule.broken.is_empty(), "{}", rule.field);
    }
}

#[test]
fn models_that_keep_the_rules_run_on_ranks_as_on_one() {
    for rule in rules() {
        for (at, Kept { edit, weights: wanted, exchanges: wanted_exchanges }) in rule.kept.iter().enumerate()
        {
            let (model, about) = (edited(*edit), format!("{} ({}), model {at}", rule.field, rule.says));
            let ranks = ranks(&model);
            let graphs = graphs_of(&model);
            let own: Vec<i64> = graphs.iter().map(weights).collect();
            assert_eq!(own, *wanted, "{about}");
            for (rank, graph) in graphs.iter().enumerate() {
                let found = exchanges(graph);
                if *wanted_exchanges == STAGES {
                    let first = 2 * rank < ranks;
                    assert!(found.contains(if first { &"send" } else { &"receive" }), "{about}, rank {rank}");
                } else {
                    assert_eq!(found, *wanted_exchanges, "{about}, rank {rank}: {found:?}");
                }
            }
            let runs: Vec<Vec<Tensor>> =
                [0, 1, 5].iter().map(|&rows| vec![tensor(&[rows, INNER], 8)]).collect();
            check_runs(&model, ranks, &runs);
            let said =
                import(&model, &ImportOptions::default(), &NoExternalData, onnxc::operators()).unwrap();
            assert!(said.warnings.is_empty(), "{about}: {:?}", said.warnings);
        }
    }
}

#[test]
fn models_that_break_the_rules_are_found() {
    for rule in rules() {
        for (at, Broken { edit, ignored, followed }) in rule.broken.iter().enumerate() {
            let (model, about) = (edited(*edit), format!("{} ({}), model {at}", rule.field, rule.says));
            let said = import(&model, &ImportOptions::default(), &NoExternalData, onnxc::operators());
            match (ignored, said) {
                (Said::Refused(text), Err(errors)) => {
                    assert!(
                        errors.iter().any(|error| error.to_string().contains(text)),
                        "{about}: {errors:?}"
                    )
                }
                (Said::Warned, Ok(import)) => {
                    let rules: Vec<&str> = import.warnings.iter().map(|warning| warning.rule.id()).collect();
                    assert_eq!(rules, ["device_configuration"], "{about}");
                    let strict = ImportOptions { strict: true, ..Default::default() };
                    assert!(
                        onnxc_import::import(&model, &strict, &NoExternalData, onnxc::operators()).is_err()
                    );
                }
                (Said::Nothing, Ok(import)) => {
                    assert!(import.warnings.is_empty(), "{about}: {:?}", import.warnings)
                }
                (_, said) => panic!("{about}: {:?}", said.map(|import| import.warnings)),
            }
            match (followed, compile(&model, &Choice::default(), Some(0)).err()) {
                (None, None) => {}
                (Some(text), Some(error)) => assert!(error.contains(text), "{about}: {error}"),
                (_, error) => panic!("{about}: {error:?}"),
            }
        }
    }
}

#[test]
fn hints_change_nothing_where_they_are_not_followed() {
    let mut plain = base();
    plain.configuration.clear();
    plain.graph.as_mut().unwrap().node[0].device_configurations.clear();
    let object = |model: &ModelProto| {
        let artifact = compile(model, &Choice::default(), None).unwrap().artifact().unwrap();
        let mut bytes = vec![];
        artifact.write_object(&mut bytes).unwrap();
        bytes
    };
    assert!(object(&plain) == object(&base()));
    // And a configuration that the model does not have is not guessed.
    let import = ImportOptions { configuration: Some("d".into()), ..Default::default() };
    let errors = onnxc_import::import(&base(), &import, &NoExternalData, onnxc::operators()).unwrap_err();
    assert!(
        errors[0].message.contains("there is no device configuration `d`; the model has `c`"),
        "{errors:?}"
    );
}

#[test]
fn what_is_in_a_body_stays_whole_and_is_said() {
    let mut model = base();
    let graph = model.graph.as_mut().unwrap();
    let mut branch = build::graph(vec![], std::mem::take(&mut graph.node), vec![f32_value("y", &["n", "6"])]);
    branch.name = Some("branch".into());
    let mut choice = node("If", &["c"], &["y"]);
    for name in ["then_branch", "else_branch"] {
        let mut branch = branch.clone();
        if name == "else_branch" {
            branch.node[0].device_configurations.clear();
        }
        choice = choice.with(build::subgraph(name, branch));
    }
    graph.node = vec![choice];
    graph.input.push(build::value("c", DType::Bool.to_onnx(), &[] as &[&str]));
    let import = ImportOptions { configuration: Some("c".into()), ..Default::default() };
    let said = onnxc_import::import(&model, &import, &NoExternalData, onnxc::operators()).unwrap();
    assert!(
        said.notes
            .iter()
            .any(|note| note.contains("what `product` says for a device configuration is ignored")),
        "{:?}",
        said.notes
    );
    let condition = Tensor::from_slice(&[], &[true]);
    check(&model, 2, &[tensor(&[3, INNER], 8), condition]);
}
