//! Device configurations, which are checked whether they are followed or not: what a node names must be there.

use std::collections::HashSet;

use onnxc_proto::simple_sharded_dim_proto::Dim;
use onnxc_proto::{DeviceConfigurationProto, GraphProto, NodeProto, ShardingSpecProto};

use super::Validator;
use crate::types::rank;
use onnxc_ir::error::Error;
use onnxc_ir::rules::Rule;

/// IR version that brings device configurations.
const SINCE: i64 = 11;

impl<'m> Validator<'m> {
    /// Those of the model.
    pub(super) fn devices(&mut self) {
        let mut names = HashSet::new();
        for (index, configuration) in self.model.configuration.iter().enumerate() {
            let name = configuration.name();
            if self.log.followed.as_deref() != Some(name) {
                self.log.note(Rule::DeviceIgnored, || format!("device configuration `{name}` is ignored"));
            }
            let devices = i64::from(configuration.num_devices());
            let listed = configuration.device.len();
            let fault = if name.is_empty() {
                "has no name".to_string()
            } else if !names.insert(name) {
                "has the name of another one".to_string()
            } else if devices < 1 {
                format!("has {devices} devices in num_devices; there must be one or more")
            } else if listed > 0 && listed as i64 != devices {
                format!("lists {listed} devices, and num_devices is {devices}")
            } else if self.model.ir_version() < SINCE {
                format!("is in a model of IR version {}; they came with {SINCE}", self.model.ir_version())
            } else {
                continue;
            };
            self.warn(Rule::DeviceConfiguration, || format!("configuration[{index}] `{name}` {fault}"));
        }
    }

    /// Those of a node.
    pub(super) fn shards(&mut self, node: &'m NodeProto, about: &dyn Fn(String) -> Error) {
        for own in &node.device_configurations {
            let id = own.configuration_id();
            let configuration = self.configurations.get(id).copied().filter(|_| !id.is_empty());
            if id.is_empty() {
                self.log.found(Rule::DeviceConfiguration, || {
                    about("a device configuration of the node has no configuration_id".to_string())
                });
            } else if configuration.is_none() {
                self.error(Rule::DeviceTarget, || {
                    let known = names_of(&self.model.configuration);
                    about(format!("the device configuration `{id}` is not one of the model's ({known})"))
                });
            }
            for sharding in &own.sharding_spec {
                self.sharding(node, sharding, configuration, about);
            }
        }
    }

    fn sharding(
        &mut self,
        node: &'m NodeProto,
        sharding: &'m ShardingSpecProto,
        configuration: Option<&'m DeviceConfigurationProto>,
        about: &dyn Fn(String) -> Error,
    ) {
        let name = sharding.tensor_name();
        if name.is_empty() || !node.input.iter().chain(&node.output).any(|other| other == name) {
            self.error(Rule::DeviceTarget, || {
                about(format!(
                    "a sharding is about `{name}`, which is neither an input nor an output of the node"
                ))
            });
        }
        let mut faults = Vec::new();
        // A device may also be the key of a group of devices.
        let groups: HashSet<i64> =
            sharding.index_to_device_group_map.iter().map(|entry| entry.key()).collect();
        let members = sharding.index_to_device_group_map.iter().flat_map(|entry| entry.value.iter().copied());
        let devices = sharding.device.iter().copied().filter(|device| !groups.contains(device));
        if let Some(count) = configuration.map(|configuration| i64::from(configuration.num_devices())) {
            let outside = devices.chain(members).find(|device| !(0..count).contains(device));
            faults.extend(outside.map(|device| format!("device {device} is not one of the {count} devices")));
        }
        let rank = self.declared_rank(name);
        for dim in &sharding.sharded_dim {
            let axis = dim.axis();
            if dim.axis.is_none() {
                faults.push("what is sharded has no axis".to_string());
            }
            if let Some(rank) = rank.filter(|&rank| !(-rank..rank).contains(&axis)) {
                faults.push(format!("axis {axis} is sharded, and the value has {rank}"));
            }
            for simple in &dim.simple_sharding {
                if simple.num_shards() < 1 {
                    faults.push(format!("axis {axis} has {} shards in num_shards", simple.num_shards()));
                }
                if let Some(Dim::DimValue(size)) = simple.dim
                    && size < 0
                {
                    faults.push(format!("axis {axis} is sharded with a size of {size}"));
                }
            }
        }
        for fault in faults {
            self.log.found(Rule::DeviceConfiguration, || about(format!("the sharding of `{name}`: {fault}")));
        }
    }

    /// The rank of a value of the model's graph that is declared, or of an initializer.
    fn declared_rank(&self, name: &str) -> Option<i64> {
        let graph: &'m GraphProto = self.model.graph.as_ref()?;
        let ranks = self.ranks.get_or_init(|| {
            let infos = graph.input.iter().chain(&graph.value_info).chain(&graph.output);
            let declared = infos.filter_map(|info| Some((info.name(), rank(info)? as i64)));
            let tensors = graph.initializer.iter().map(|tensor| (tensor.name(), tensor.dims.len() as i64));
            declared.chain(tensors).collect()
        });
        ranks.get(name).copied()
    }
}

fn names_of(configurations: &[DeviceConfigurationProto]) -> String {
    let names: Vec<String> =
        configurations.iter().take(8).map(|configuration| format!("`{}`", configuration.name())).collect();
    if names.is_empty() { "it has none".to_string() } else { names.join(", ") }
}
