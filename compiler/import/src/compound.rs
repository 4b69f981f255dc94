//! Values other than dense tensors at the border of the model: each of their columns is an input or output of its own.

use onnxc_proto::ValueInfoProto;

use super::kinds::Columns;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{AnyRank, DType, Dim, Graph, Op, Part, TensorType, ValueId};
use onnxc_ops::item::Item;

/// Name of a part of a value.
fn part_name(name: &str, part: Part) -> String {
    format!("{name}.{}", part.name())
}

/// The inputs of a value; a sparse tensor is made dense.
pub(crate) fn input(graph: &mut Graph, name: &str, columns: Columns) -> Result<Item> {
    let origin = graph.origins.next_key();
    let mut values: Vec<ValueId> = vec![];
    for (part, ty) in columns.ports {
        graph.input_parts.insert(graph.inputs.len(), (name.to_string(), part));
        values.push(Builder::new(graph, origin).input(&part_name(name, part), ty, None));
    }
    match (columns.dense, values.as_slice()) {
        (Some(ty), &[stored, indices]) => dense(graph, name, &ty, stored, indices).map(Item::Tensor),
        _ => Ok(Item::new(columns.layout, values)),
    }
}

/// The dense tensor of the elements that a sparse one stores.
fn dense(
    graph: &mut Graph,
    name: &str,
    ty: &TensorType,
    stored: ValueId,
    indices: ValueId,
) -> Result<ValueId> {
    let origin = onnxc_ir::graph::Origin::new(name.to_string(), "input".to_string(), 0);
    let origin = graph.origins.push(origin);
    let mut b = Builder::new(graph, origin);
    let zero = b.scalar(ty.dtype, 0.0);
    let zeros = b.expand(zero, ty.shape.clone())?;
    // Negative indices count from the end where ONNX scatters; here there are none.
    let none = b.scalar(DType::I64, 0.0);
    let negative = b.compare(onnxc_ir::scalar::CompareFn::Lt, indices, none)?;
    let far = b.scalar(DType::I64, i64::MAX as f64);
    let indices = b.select(negative, far, indices)?;
    let dense = b.emit1(Op::ScatterNd { combine: None }, &[zeros, indices, stored])?;
    b.graph.values[dense].name = name.to_string();
    Ok(dense)
}

/// The output of a tensor whose rank only the run decides.
pub(crate) fn any_rank_output(
    graph: &mut Graph,
    info: &ValueInfoProto,
    item: &Item,
    [least, most]: [usize; 2],
) -> Result<()> {
    let &[rank, data] = item.columns() else { return Ok(()) };
    // Texts lie behind what refers to them, in a block that is copied where the rank comes late: the copy would refer to the old one.
    if graph.ty(data).dtype == DType::Str {
        let name = info.name();
        let message =
            format!("output `{name}` is of strings, and the run decides its rank, {least} to {most}");
        return Err(Error::unsupported(Stage::Import, message));
    }
    let origin = graph.origins.keys().next_back().unwrap_or_else(|| graph.origins.next_key());
    let rank = Builder::new(graph, origin).sizes(rank, &|_| Some(Dim::from(most)))?.remove(0);
    if let Some(symbol) = rank.as_sym() {
        graph.symbols.rename(symbol, format!("{}.rank", info.name()));
    }
    graph.any_rank.insert(graph.outputs.len(), AnyRank { rank, least });
    graph.outputs.push((info.name().to_string(), data));
    Ok(())
}

/// The outputs of a value.
pub(crate) fn output(graph: &mut Graph, info: &ValueInfoProto, item: &Item) -> Result<()> {
    let origin = graph.origins.next_key();
    let mut b = Builder::new(graph, origin);
    if let Some(last) = b.graph.origins.keys().next_back() {
        b.origin = last;
    }
    let item = item.closed(&mut b)?;
    for (&column, part) in item.columns().iter().zip(item.layout().parts()) {
        graph.output_parts.insert(graph.outputs.len(), (info.name().to_string(), part));
        graph.outputs.push((part_name(info.name(), part), column));
    }
    Ok(())
}
