//! Writes a device configuration into a model: what nodes say of their values, and the stages that they are in.

use onnxc_proto::tensor_shape_proto::dimension::Value as Size;
use onnxc_proto::{
    DeviceConfigurationProto, GraphProto, IntIntListEntryProto, ModelProto, NodeDeviceConfigurationProto,
    ShardedDimProto, ShardingSpecProto, SimpleShardedDimProto, ValueInfoProto,
};

use crate::types;

use onnxc_ir::graph::Origin;

/// The first version of the format with device configurations.
const SINCE: i64 = 11;

/// Ranks in a grid: stages, then copies that each have part of a batch, then shares of the tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    pub stages: usize,
    pub batches: usize,
    pub tensors: usize,
}

impl Grid {
    pub fn ranks(self) -> usize {
        self.stages * self.batches * self.tensors
    }

    fn rank(self, stage: usize, batch: usize, tensor: usize) -> i64 {
        ((stage * self.batches + batch) * self.tensors + tensor) as i64
    }
}

/// What is said of a value of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    pub name: String,
    /// Whether the first axis is cut by the batch.
    pub batch: bool,
    /// The axis that is cut by the tensors.
    pub tensor: Option<i64>,
}

/// What a node says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placed {
    pub stage: usize,
    pub values: Vec<Said>,
}

/// The number of the node of the model's own graph that primitives came from; `None` for one inside a function.
pub fn node_of(model: &ModelProto, origin: &Origin) -> Option<usize> {
    let node = model.graph.as_ref()?.node.get(origin.index)?;
    let same = node.op_type() == origin.op_type
        && (node.name() == origin.name || node.name().is_empty() && !origin.name.contains('/'));
    same.then_some(origin.index)
}

/// A node of a model: one of its own graph, or of the algorithm of a training information, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Site {
    Graph(usize),
    Algorithm(usize, usize),
}

/// The first dimension of inputs, as the model writes it.
fn first_dim(info: &ValueInfoProto) -> Option<&Size> {
    types::tensor_type(info).ok()?.1?.first()?.value.as_ref()
}

/// What nodes of algorithms say where batches are cut: inputs of batches, and with `shard_optimizer` what a step keeps for itself.
pub fn of_training(model: &ModelProto, shard_optimizer: bool) -> Vec<(Site, Said)> {
    let Some(graph) = &model.graph else { return vec![] };
    let is_initializer =
        |graph: &GraphProto, name: &str| graph.initializer.iter().any(|own| own.name() == name);
    let given = |graph: &'_ GraphProto| -> Vec<ValueInfoProto> {
        graph.input.iter().filter(|info| !is_initializer(graph, info.name())).cloned().collect()
    };
    let own = given(graph);
    let Some(batch) = own.iter().find_map(first_dim) else { return vec![] };
    let mut all = vec![];
    for (info, training) in model.training_info.iter().enumerate() {
        let Some(algorithm) = &training.algorithm else { continue };
        let inputs: Vec<ValueInfoProto> = own.iter().cloned().chain(given(algorithm)).collect();
        let of_batch =
            |name: &str| inputs.iter().any(|input| input.name() == name && first_dim(input) == Some(batch));
        let is_kept = |name: &str| {
            let tensor = algorithm.initializer.iter().find(|own| own.name() == name);
            let is_bound = training.update_binding.iter().any(|binding| binding.key() == name);
            is_bound && tensor.is_some_and(|tensor| tensor.dims.first().is_some_and(|&size| size > 1))
        };
        for (at, node) in algorithm.node.iter().enumerate() {
            for name in &node.input {
                if of_batch(name) || shard_optimizer && is_kept(name) {
                    let said = Said { name: name.clone(), batch: true, tensor: None };
                    all.push((Site::Algorithm(info, at), said));
                }
            }
        }
    }
    all
}

/// Adds a configuration; an older one of the same name goes.
pub fn annotate(model: &mut ModelProto, name: &str, grid: Grid, placed: &[(Site, Placed)]) {
    model.ir_version = Some(model.ir_version().max(SINCE));
    model.configuration.retain(|own| own.name() != name);
    model.configuration.push(DeviceConfigurationProto {
        name: Some(name.to_string()),
        num_devices: Some(grid.ranks() as i32),
        device: vec![],
    });
    let algorithms = model.training_info.iter_mut().enumerate();
    let algorithms = algorithms.filter_map(|(info, own)| Some((Some(info), own.algorithm.as_mut()?)));
    for (info, graph) in model.graph.iter_mut().map(|graph| (None, graph)).chain(algorithms) {
        for node in &mut graph.node {
            node.device_configurations.retain(|own| own.configuration_id() != name);
        }
        for (site, placed) in placed {
            let at = match *site {
                Site::Graph(at) if info.is_none() => at,
                Site::Algorithm(own, at) if info == Some(own) => at,
                _ => continue,
            };
            let Some(node) = graph.node.get_mut(at) else { continue };
            node.device_configurations.push(NodeDeviceConfigurationProto {
                configuration_id: Some(name.to_string()),
                sharding_spec: placed.values.iter().map(|said| spec(grid, placed.stage, said)).collect(),
                pipeline_stage: (grid.stages > 1).then_some(placed.stage as i32),
            });
        }
    }
}

fn spec(grid: Grid, stage: usize, said: &Said) -> ShardingSpecProto {
    let mut axes = vec![];
    let (mut batches, mut tensors) = (1, 1);
    if said.batch {
        axes.push((0, grid.batches));
        batches = grid.batches;
    }
    if let Some(axis) = said.tensor {
        axes.push((axis, grid.tensors));
        tensors = grid.tensors;
    }
    // Parts in row-major order, each on all ranks that differ in nothing that cuts it.
    let mut groups: Vec<Vec<i64>> = vec![];
    for batch in 0..batches {
        for tensor in 0..tensors {
            let copies = (0..grid.batches).filter(|&own| batches == 1 || own == batch);
            let of = |own: usize| {
                (0..grid.tensors)
                    .filter(move |&at| tensors == 1 || at == tensor)
                    .map(move |at| grid.rank(stage, own, at))
            };
            groups.push(copies.flat_map(of).collect());
        }
    }
    let grouped = groups.iter().any(|group| group.len() > 1);
    let key = |at: usize| -1 - at as i64;
    let device = match grouped {
        true => (0..groups.len()).map(key).collect(),
        false => groups.concat(),
    };
    let entry = |(at, group): (usize, Vec<i64>)| IntIntListEntryProto { key: Some(key(at)), value: group };
    ShardingSpecProto {
        tensor_name: Some(said.name.clone()),
        device,
        index_to_device_group_map: match grouped {
            true => groups.into_iter().enumerate().map(entry).collect(),
            false => vec![],
        },
        sharded_dim: axes
            .into_iter()
            .map(|(axis, parts)| ShardedDimProto {
                axis: Some(axis),
                simple_sharding: vec![SimpleShardedDimProto { dim: None, num_shards: Some(parts as i64) }],
            })
            .collect(),
    }
}
