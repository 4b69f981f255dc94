//! Writes a device configuration into a model: what nodes say of their values, and the stages that they are in.

use onnxc_proto::{
    DeviceConfigurationProto, IntIntListEntryProto, ModelProto, NodeDeviceConfigurationProto,
    ShardedDimProto, ShardingSpecProto, SimpleShardedDimProto,
};

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

/// Adds a configuration; an older one of the same name goes.
pub fn annotate(model: &mut ModelProto, name: &str, grid: Grid, placed: &[(usize, Placed)]) {
    model.ir_version = Some(model.ir_version().max(SINCE));
    model.configuration.retain(|own| own.name() != name);
    model.configuration.push(DeviceConfigurationProto {
        name: Some(name.to_string()),
        num_devices: Some(grid.ranks() as i32),
        device: vec![],
    });
    let Some(graph) = &mut model.graph else { return };
    for node in &mut graph.node {
        node.device_configurations.retain(|own| own.configuration_id() != name);
    }
    for (at, placed) in placed {
        let Some(node) = graph.node.get_mut(*at) else { continue };
        node.device_configurations.push(NodeDeviceConfigurationProto {
            configuration_id: Some(name.to_string()),
            sharding_spec: placed.values.iter().map(|said| spec(grid, placed.stage, said)).collect(),
            pipeline_stage: (grid.stages > 1).then_some(placed.stage as i32),
        });
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
