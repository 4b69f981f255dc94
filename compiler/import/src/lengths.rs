//! Lengths of inputs that decide ranks. A vector of sizes, such as the `shape` of a Reshape, that is an input of symbolic
//! length makes the rank of a result symbolic, and no rank may be; so do index vectors of GatherND. Where one length alone gives the model
//! results of the ranks that it declares, the input has that length: every other one would contradict the declaration.
//!
//! That length is searched for by importing the model with each. Rules that infer ranks from results instead would need one
//! for every operator, and still not see through a branch that is taken for some of the lengths.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use onnxc_proto::{GraphProto, ModelProto, ValueInfoProto};

use super::types::{Types, tensor_type};
use super::{DimPin, ExternalData, Import, ImportOptions, Limits, import_once};
use onnxc_ir::error::{Error, Kind};
use onnxc_ir::graph::DType;
use onnxc_ir::rules::Rule;
use onnxc_ops::Table;

/// The lengths that are tried: enough for sizes of all axes, and for the two pads of each.
const LENGTHS: RangeInclusive<i64> = 0..=16;

/// Nodes imported by all tries together: what a search takes stays in the order of what a large model takes.
const MAX_NODES: usize = 1 << 17;

/// The import of `model` with the one length of one input that its declared results allow. `None` where no length of any
/// input is the only one, or where `errors`, the problems without it, are not such that a length would solve them.
pub(super) fn search(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
    errors: &[Error],
) -> Option<Import> {
    let graph = model.graph.as_ref()?;
    if errors.iter().any(|error| error.kind != Kind::Unsupported) {
        return None;
    }
    let inputs = open_sizes(graph, options);
    let tries = inputs.len() * LENGTHS.count();
    if tries.saturating_mul(graph.node.len()) > MAX_NODES {
        return None;
    }
    let mut found: Option<(Import, DimPin)> = None;
    for (input, axis) in inputs {
        for size in LENGTHS {
            let pin = DimPin { target: format!("{}:{axis}", input.name()), size };
            let mut options = options.clone();
            options.input_dims.push(pin.clone());
            let primitives = options.limits.primitives / tries as u64;
            options.limits = Limits { primitives, ..options.limits };
            let Ok(import) = import_once(model, &options, external, table) else { continue };
            if import.warnings.iter().any(|warning| warning.rule == Rule::DeclaredShape) {
                continue;
            }
            if found.replace((import, pin)).is_some() {
                return None;
            }
        }
    }
    let (mut import, pin) = found?;
    import.notes.push(format!(
        "`{}` is {}: of the lengths {} to {}, the only one with which the results have the declared shapes",
        pin.target,
        pin.size,
        LENGTHS.start(),
        LENGTHS.end()
    ));
    Some(import)
}

/// Axes of integer inputs, of a size that is not given, that may decide a rank: those of vectors, and the last ones of indices of
/// GatherND.
fn open_sizes<'m>(graph: &'m GraphProto, options: &ImportOptions) -> Vec<(&'m ValueInfoProto, usize)> {
    let mut types = Types::default();
    // What is wrong with a shape or a pin is reported by the import.
    types.take(graph, options);
    let indices: HashSet<&str> = graph
        .node
        .iter()
        .filter(|node| node.op_type() == "GatherND")
        .filter_map(|node| node.input.get(1).map(String::as_str))
        .collect();
    let open = |info: &'m ValueInfoProto| {
        let Ok((DType::I32 | DType::I64, _)) = tensor_type(info) else { return None };
        let axis = types.open_last_axis(info)?;
        let is_constant = || graph.initializer.iter().any(|tensor| tensor.name() == info.name());
        let is_open = (axis == 0 || indices.contains(info.name())) && !is_constant();
        is_open.then_some((info, axis))
    };
    graph.input.iter().filter_map(open).collect()
}
