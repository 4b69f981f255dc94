//! What the nodes say for the device configuration that is asked for.

use onnxc_proto::simple_sharded_dim_proto::Dim as Size;
use onnxc_proto::{ModelProto, NodeProto, ShardingSpecProto};

use super::scope::{Binding, Scope};
use super::{Importer, usage};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::arrangement::{Arrangement, CutAxis, Sharding};
use onnxc_ir::graph::{Graph, ValueId};
use onnxc_ir::rules::Rule;
use onnxc_ir::words::did_you_mean;

/// The configuration of this name, without what nodes say.
pub(super) fn chosen(model: &ModelProto, name: &str) -> Result<Arrangement> {
    let all = &model.configuration;
    let Some(own) = all.iter().find(|own| own.name() == name) else {
        let names: Vec<String> = all.iter().map(|own| format!("`{}`", own.name())).collect();
        let there = if names.is_empty() { "has none".into() } else { format!("has {}", names.join(", ")) };
        let hint = did_you_mean(name, all.iter().map(|own| own.name()));
        let message = format!("there is no device configuration `{name}`; the model {there}{hint}");
        return Err(usage(message));
    };
    match usize::try_from(own.num_devices()) {
        Ok(ranks @ 1..=4096) => Ok(Arrangement { name: name.to_string(), ranks, ..Arrangement::default() }),
        _ => {
            let message = format!(
                "device configuration `{name}`: {} devices; there may be 1 to 4096",
                own.num_devices()
            );
            Err(Error::new(Stage::Import, Kind::Malformed, message))
        }
    }
}

impl Importer<'_> {
    /// Notes what a node says, which became the primitives from `first` on. What is in a body or a function is computed where the node
    /// of the model's own graph is that it belongs to.
    pub(super) fn note_devices(&mut self, graph: &Graph, first: usize, node: &NodeProto, scope: &Scope<'_>) {
        let Some(arrangement) = &mut self.devices else { return };
        if self.budget.depth > 0 {
            if node.device_configurations.iter().any(|own| own.configuration_id() == arrangement.name) {
                self.problems.log.note(Rule::DeviceIgnored, || {
                    format!(
                        "what `{}` says for a device configuration is ignored: it is in a body or a function, and those stay whole",
                        if node.name().is_empty() { node.op_type() } else { node.name() }
                    )
                });
            }
            return;
        }
        let own = node.device_configurations.iter().filter(|own| own.configuration_id() == arrangement.name);
        let mut faults = vec![];
        for own in own {
            if let Some(stage) = own.pipeline_stage {
                arrangement.stages.push((first..graph.nodes.len(), i64::from(stage)));
            }
            for spec in &own.sharding_spec {
                let name = spec.tensor_name();
                let value = match scope.get(name) {
                    Some(Binding::Value(item)) => item.tensor(),
                    _ => None,
                };
                let Some(value) = value else {
                    faults.push(format!("the sharding of `{name}`: it must be a tensor"));
                    continue;
                };
                match sharding(graph, value, spec, arrangement.ranks, node) {
                    Ok(sharding) => arrangement.shardings.push((value, sharding)),
                    Err(fault) => faults.push(format!("the sharding of `{name}`: {fault}")),
                }
            }
        }
        for fault in faults {
            let name = if node.name().is_empty() { node.op_type() } else { node.name() };
            self.problems.report(Error::malformed(Stage::Import, format!("node `{name}`: {fault}")));
        }
    }
}

fn sharding(
    graph: &Graph,
    value: ValueId,
    spec: &ShardingSpecProto,
    ranks: usize,
    node: &NodeProto,
) -> std::result::Result<Sharding, String> {
    let ty = graph.ty(value);
    let group = |device: i64| {
        let entry = spec.index_to_device_group_map.iter().find(|entry| entry.key() == device);
        entry.map_or_else(|| vec![device], |entry| entry.value.clone())
    };
    let parts: Vec<Vec<i64>> = spec.device.iter().map(|&device| group(device)).collect();
    let mut seen = vec![];
    for &device in parts.iter().flatten() {
        if !(0..ranks as i64).contains(&device) {
            return Err(format!("device {device} is not one of the {ranks} devices"));
        }
        if seen.contains(&device) {
            return Err(format!("device {device} is listed twice"));
        }
        seen.push(device);
    }
    let (mut axes, mut shards) = (vec![], 1usize);
    for dim in &spec.sharded_dim {
        let Some(axis) = dim.axis else { return Err("what is sharded has no axis".to_string()) };
        let rank = ty.rank() as i64;
        if !(-rank..rank).contains(&axis) {
            return Err(format!("axis {axis} is sharded, and the value has {rank}"));
        }
        let axis = if axis < 0 { axis + rank } else { axis } as usize;
        // Of an axis that is several in one, the first is cut and the others are blocks.
        let mut cut = None;
        for (at, simple) in dim.simple_sharding.iter().enumerate() {
            match simple.num_shards() {
                1 => {}
                parts @ 2.. if at == 0 => cut = Some((parts as usize, simple)),
                parts @ 2.. => {
                    return Err(format!(
                        "{parts} shards of part {at} of axis {axis}: the first part alone may be cut"
                    ));
                }
                parts => return Err(format!("axis {axis} has {parts} shards in num_shards")),
            }
        }
        let Some((parts, simple)) = cut else { continue };
        if axes.iter().any(|other: &CutAxis| other.axis == axis) {
            return Err(format!("axis {axis} is sharded twice"));
        }
        let size = ty.shape[axis].as_const();
        let blocks = match (&simple.dim, size) {
            (Some(Size::DimValue(blocks)), Some(size)) if *blocks > 0 && size % blocks == 0 => {
                (*blocks != size).then_some(*blocks)
            }
            (Some(Size::DimValue(blocks)), Some(size)) => {
                return Err(format!("axis {axis} of size {size} is not a multiple of {blocks}"));
            }
            _ => None,
        };
        shards = shards.saturating_mul(parts);
        axes.push(CutAxis { axis, parts, blocks });
    }
    if !parts.is_empty() && shards > 1 && parts.len() != shards {
        return Err(format!("{} devices or groups for {shards} shards", parts.len()));
    }
    if parts.is_empty() && shards > 1 && shards != ranks {
        return Err(format!("{shards} shards and no devices, where the configuration has {ranks}"));
    }
    let parts = match (parts.is_empty(), shards) {
        (true, 1) => vec![],
        (true, _) => (0..ranks as i64).map(|rank| vec![rank]).collect(),
        (false, 1) => vec![parts.concat()],
        (false, _) => parts,
    };
    if parts.iter().any(|part| part.len() != parts[0].len()) {
        return Err("its groups of devices have different sizes".to_string());
    }
    let name = if node.name().is_empty() { node.op_type() } else { node.name() };
    let place = format!("node `{name}`: the sharding of `{}`", spec.tensor_name());
    Ok(Sharding { place, parts, axes })
}
