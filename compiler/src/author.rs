//! Models written from models: with what trains them, or with how they are spread over ranks.

use std::collections::BTreeMap;

use bytes::Bytes;

use onnxc_import as import;
use onnxc_import::shard::{Grid, Placed, Said, Site};
use onnxc_import::state;
use onnxc_import::train_graph::TrainOptions;
use onnxc_import::{ExternalData, ImportOptions, Warning};
use onnxc_ir::error::{Error, Kind, Stage};
use onnxc_ir::graph::{Graph, OriginId, ValueId};
use onnxc_machine::target::Target;
use onnxc_partition::Role;

use crate::pipeline::{Options, decode, operators, ranks};

/// A model with what trains it.
#[derive(Debug)]
pub struct Trained {
    /// The bytes of an ONNX file. External data is where the model has it.
    pub model: Vec<u8>,
    /// Names of the initializers that learn.
    pub parameters: Vec<String>,
    /// What was decided.
    pub notes: Vec<String>,
    /// What the model breaks, and is trained all the same.
    pub warnings: Vec<Warning>,
    /// Where the model's tensors are outside of its file, each location once.
    pub locations: Vec<String>,
}

/// Writes `training_info` into the bytes of an ONNX file: a loss, its derivatives by the parameters, and a step of an optimizer. The model
/// infers as before; [`ImportOptions::training`] compiles the rest.
pub fn train_graph(
    model: Bytes,
    external: &dyn ExternalData,
    options: &TrainOptions,
) -> std::result::Result<Trained, Vec<Error>> {
    let proto = decode(model).map_err(|error| vec![error])?;
    let made = import::train_graph::train_graph(&proto, options, external, operators())?;
    let model = onnxc_proto::encode(&made.model);
    if model.len() as u64 >= MAX_FILE {
        let message = format!(
            "the model with its training has {} bytes, and a file of protobuf has less than {MAX_FILE}: keep weights as external data, or have fewer learn",
            model.len()
        );
        return Err(vec![Error::new(Stage::Import, Kind::Budget, message)]);
    }
    let locations = import::train_graph::locations(&made.model);
    let import::train_graph::TrainGraph { parameters, notes, warnings, .. } = made;
    Ok(Trained { model, parameters, notes, warnings, locations })
}

/// How a model is spread over ranks by [`shard`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardOptions {
    /// The name of the configuration.
    pub name: String,
    pub grid: Grid,
    /// Of a model with training, each part of a batch has a part of what the optimizer keeps, such as momenta.
    pub shard_optimizer: bool,
}

/// A model with a device configuration.
#[derive(Debug)]
pub struct Sharded {
    /// The bytes of an ONNX file. External data is where the model has it.
    pub model: Vec<u8>,
    /// What was chosen, and what each rank holds and sends.
    pub notes: Vec<String>,
    /// Where the model's tensors are outside of its file, each location once.
    pub locations: Vec<String>,
}

/// Operators with one product, and the axis of its columns or channels, which their nodes can cut.
const CUT: [(&str, i64); 6] =
    [("MatMul", -1), ("Gemm", -1), ("FusedMatMul", -1), ("MatMulNBits", -1), ("Conv", 1), ("FusedConv", 1)];

/// Writes a device configuration into the bytes of an ONNX file, chosen by cost.
pub fn shard(
    model: Bytes,
    external: &dyn ExternalData,
    options: &ShardOptions,
) -> std::result::Result<Sharded, Vec<Error>> {
    let ShardOptions { name, grid, .. } = options;
    let mut proto = decode(model).map_err(|error| vec![error])?;
    let import::Import { graph, .. } =
        import::import(&proto, &ImportOptions::default(), external, operators())?;
    let node_of = |origin: OriginId| import::shard::node_of(&proto, &graph.origins[origin]);
    let mut placed: BTreeMap<Site, Placed> = BTreeMap::new();
    if grid.stages > 1 {
        for (origin, stage) in onnxc_partition::stages(&graph, grid.stages) {
            if let Some(at) = node_of(origin) {
                placed.entry(Site::Graph(at)).or_default().stage = stage;
            }
        }
    }
    let nodes = proto.graph.as_ref().map_or(&[][..], |graph| &graph.node);
    let said = |name: &str, batch: bool, tensor: Option<i64>| Said { name: name.to_string(), batch, tensor };
    let batch = graph.inputs.iter().find_map(|input| graph.ty(input.value).shape.first().cloned());
    let of_batch = |value: ValueId| graph.ty(value).shape.first() == batch.as_ref();
    let (mut notes, mut trains) = (vec![], false);
    if grid.batches > 1 {
        let cut: Vec<&str> = graph
            .inputs
            .iter()
            .filter(|input| of_batch(input.value))
            .map(|input| input.name.as_str())
            .collect();
        for (at, node) in nodes.iter().enumerate() {
            for input in cut.iter().filter(|name| node.input.iter().any(|own| own == **name)) {
                placed.entry(Site::Graph(at)).or_default().values.push(said(input, true, None));
            }
        }
        notes.push(format!("{} parts of a batch: the first axis of {}", grid.batches, cut.join(", ")));
        for (site, own) in import::shard::of_training(&proto, options.shard_optimizer) {
            placed.entry(site).or_default().values.push(own);
            trains = true;
        }
    }
    if grid.tensors > 1 {
        let suggestion = onnxc_partition::suggest(&graph, grid.tensors);
        let initializers: Vec<&str> =
            proto.graph.iter().flat_map(|graph| &graph.initializer).map(|own| own.name()).collect();
        let is_own = |name: &String| {
            let readers = nodes.iter().flat_map(|node| &node.input).filter(|other| *other == name).count();
            readers == 1 && initializers.contains(&name.as_str())
        };
        let (mut columns, mut rows) = (0, 0);
        for (origin, role) in suggestion.products {
            let Some(at) = node_of(origin) else { continue };
            let node = &nodes[at];
            let weight = node.input.get(1).filter(|name| node.op_type() == "MatMul" && is_own(name));
            let own = placed.entry(Site::Graph(at)).or_default();
            match role {
                Role::Columns { .. } => {
                    let Some(&(_, axis)) = CUT.iter().find(|(name, _)| *name == node.op_type()) else {
                        continue;
                    };
                    let batch = grid.batches > 1 && result_of(&graph, origin).is_some_and(of_batch);
                    own.values.push(said(&node.output[0], batch, Some(axis)));
                    own.values.extend(weight.map(|name| said(name, false, Some(1))));
                    columns += 1;
                }
                Role::Rows => {
                    own.values.extend(weight.map(|name| said(name, false, Some(0))));
                    rows += 1;
                }
            }
        }
        let mut tables = 0;
        for (origin, axis) in suggestion.tables {
            let Some(at) = node_of(origin) else { continue };
            let table =
                nodes[at].input.first().filter(|name| nodes[at].op_type() == "Gather" && is_own(name));
            if let Some(name) = table {
                let said = said(name, false, Some(axis as i64));
                placed.entry(Site::Graph(at)).or_default().values.push(said);
                tables += 1;
            }
        }
        notes.push(format!(
            "{} shares of tensors: {columns} products by columns, {rows} by rows, {} on all ranks; {tables} tables by rows",
            grid.tensors, suggestion.whole
        ));
    }
    let placed: Vec<(Site, Placed)> = placed.into_iter().collect();
    let whole = nodes.len();
    if grid.stages > 1 {
        let counts = (0..grid.stages).map(|stage| placed.iter().filter(|own| own.1.stage == stage).count());
        let counts: Vec<String> = counts.map(|count| count.to_string()).collect();
        notes.push(format!("{} stages, with {} of the {whole} nodes", grid.stages, counts.join(", ")));
    }
    import::shard::annotate(&mut proto, name, *grid, &placed);
    let model = onnxc_proto::encode(&proto);
    if model.len() as u64 >= MAX_FILE {
        let message = format!(
            "the model has {} bytes, and a file of protobuf has less than {MAX_FILE}: keep weights as external data",
            model.len()
        );
        return Err(vec![Error::new(Stage::Import, Kind::Budget, message)]);
    }
    let locations = import::train_graph::locations(&proto);
    let mut followed = Options::new("model", Target::host().map_err(|error| vec![error])?);
    followed.import.configuration = Some(name.clone());
    // Caches that stay in place are not exchanged.
    followed.import.state.found = !trains && !state::pairs_of(&graph).is_empty();
    followed.import.training = trains;
    notes.extend(ranks(model.clone().into(), external, &followed)?);
    Ok(Sharded { model, notes, locations })
}

/// The last value that a node of the model gives.
fn result_of(graph: &Graph, origin: OriginId) -> Option<ValueId> {
    let own = graph.order.iter().rev().find(|&&id| graph.nodes[id].origin == origin);
    own.map(|&id| graph.nodes[id].outputs[0])
}

/// What implementations of protobuf read.
const MAX_FILE: u64 = 1 << 31;
