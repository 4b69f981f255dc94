//! Tables that rows are gathered from and that are weights of a product, too: embeddings that a model ties to its last
//! product. They are read from the panels of the product, so that the object has them once.
//!
//! Row `n` of a table is column `n` of the panels. Codes of 4 bits, two to a byte in the table, are bytes again when they
//! come out of the words of the panels.

use std::collections::HashMap;

use crate::Options;
use crate::constants::definition;
use crate::rewrite::{bodies, rewrite};
use crate::weights::holds;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{
    Constant, DType, Def, Dim, Graph, MapFn, Node, NodeId, Op, PanelLayout, RhsLayout, Tensor, ValueId,
    code_shift, codes_per_word,
};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

/// Bits of the codes of a table, two to a byte.
const BITS: usize = 4;

/// Panels that have all elements of a table.
struct Panels {
    value: ValueId,
    nr: usize,
    /// Rows of the table, columns of the product.
    rows: i64,
    /// Whether the table's bytes are codes, and the elements of the panels are words of codes.
    codes: bool,
}

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let mut tables = HashMap::new();
    for &id in &graph.order {
        for (table, panels) in of_product(graph, &graph.nodes[id]) {
            if matches!(graph.values[table].def, Def::Const(Constant::Data(_))) {
                tables.entry(table).or_insert(panels);
            }
        }
    }
    // One that something else reads as it is stays in the object anyhow.
    let read_as_it_is = graph.order.iter().flat_map(|&id| {
        let Node { op, inputs, .. } = &graph.nodes[id];
        &inputs[usize::from(matches!(op, Op::Gather { axis: 0 }))..]
    });
    for &value in read_as_it_is.chain(graph.outputs.iter().map(|(_, value)| value)) {
        tables.remove(&behind(graph, value));
    }
    if !tables.is_empty() {
        rewrite(graph, |b, id| gather(b, id, &tables))?;
    }
    bodies(graph, options, run)
}

/// What a value is another shape of.
fn behind(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some((Op::Reshape { .. }, inputs)) = definition(graph, value) {
        value = inputs[0];
    }
    value
}

/// The tables that the panels of a product are made of.
fn of_product(graph: &Graph, node: &Node) -> Vec<(ValueId, Panels)> {
    let mut found = vec![];
    let Op::Contract { batch: 0, rhs: RhsLayout::Panels { nr, depth: 1, n }, .. } = &node.op else {
        return found;
    };
    let Some(rows) = n.as_const() else { return found };
    let mut add = |table: Option<ValueId>, value: ValueId, codes: bool| {
        let table = table.filter(|_| graph.is_constant(value)).map(|table| behind(graph, table));
        found.extend(table.map(|table| (table, Panels { value, nr: *nr, rows, codes })));
    };
    match definition(graph, node.inputs[1]) {
        Some((Op::Dequantize { bits, .. }, inputs)) => {
            add(table_of_codes(graph, inputs[0]).filter(|_| *bits == BITS), inputs[0], true);
            inputs[1..].iter().for_each(|&parameter| add(table_of(graph, parameter, 1), parameter, false));
        }
        _ => add(table_of(graph, node.inputs[1], 1), node.inputs[1], false),
    }
    found
}

/// `[n, k..]` of packed `[k.., n]`, which may be of a narrower type that holds all of it.
fn table_of(graph: &Graph, panels: ValueId, k: usize) -> Option<ValueId> {
    let (Op::Pack { batch: 0, k: axes, .. }, packed) = definition(graph, panels)? else { return None };
    let (mut value, mut narrow) = (packed[0], None);
    if let (Op::Map(MapFn::Cast { to, .. }), inputs) = definition(graph, value)?
        && graph.ty(inputs[0]).dtype.is_float()
    {
        (value, narrow) = (inputs[0], Some(*to));
    }
    let (Op::Transpose { perm }, inputs) = definition(graph, value)? else { return None };
    let moved = perm[..perm.len() - 1].iter().enumerate().all(|(to, &from)| from == to + 1);
    // A model may round its weights, and gather what is not rounded.
    let is_whole = narrow.is_none_or(|narrow| holds(graph, behind(graph, inputs[0]), narrow));
    (*axes == k && perm.len() == k + 1 && moved && perm[k] == 0 && is_whole).then_some(inputs[0])
}

/// The bytes whose halves, the lower first, are the codes in these words.
fn table_of_codes(graph: &Graph, words: ValueId) -> Option<ValueId> {
    let (Op::Reduce { op: ReduceFn::Sum, .. }, sum) = definition(graph, behind(graph, words))? else {
        return None;
    };
    let (Op::Map(MapFn::Binary(BinaryFn::Shl)), shifted) = definition(graph, sum[0])? else { return None };
    let shifts: Vec<i64> = (0..32 / BITS).map(|place| code_shift(BITS, place) as i64).collect();
    let (Op::Map(MapFn::Cast { to: DType::I32, .. }), codes) = definition(graph, behind(graph, shifted[0]))?
    else {
        return None;
    };
    let table = behind(graph, table_of(graph, codes[0], 2)?);
    let (Op::Map(MapFn::Binary(BinaryFn::BitAnd)), masked) = definition(graph, table)? else { return None };
    let (Op::Map(MapFn::Binary(BinaryFn::Shr)), halves) = definition(graph, masked[0])? else { return None };
    let holds = |value: ValueId, wanted: &[i64]| {
        graph.constant_data(value).and_then(Tensor::to_i64s).is_some_and(|data| data == wanted)
    };
    let [bytes, ..] = halves else { return None };
    let is_bytes = graph.ty(*bytes).dtype == DType::U8 && graph.ty(*bytes).shape.last() == Some(&Dim::ONE);
    let by_halves = holds(shifted[1], &shifts) && holds(masked[1], &[15]) && holds(halves[1], &[0, 4]);
    (is_bytes && by_halves).then_some(*bytes)
}

/// A gather of whole rows of a table, from panels.
fn gather(b: &mut Builder, id: NodeId, tables: &HashMap<ValueId, Panels>) -> Result<Option<ValueId>> {
    let Node { op: Op::Gather { axis: 0 }, inputs, outputs, .. } = &b.graph.nodes[id] else {
        return Ok(None);
    };
    let (&[table, indices], result) = (&inputs[..], outputs[0]) else { return Ok(None) };
    let Some(panels) = tables.get(&behind(b.graph, table)) else { return Ok(None) };
    if b.shape(table)[0] != Dim::from(panels.rows) {
        return Ok(None);
    }
    let to = b.shape(result);
    // Rows of the table are columns of the panels.
    let n = Dim::from(panels.rows);
    let layout = PanelLayout::of_packed(&b.ty(panels.value).shape, 0, (panels.nr, 1), n);
    let Some(view) = layout.and_then(|layout| layout.columns_first()) else { return Ok(None) };
    let rows = b.unfolded(Op::Transpose { perm: view.perm }, &[panels.value])?;
    let mut shape = view.to;
    let rows = b.unfolded(Op::Reshape { shape: shape.clone() }, &[rows])?;
    shape[0] = Dim::from(panels.rows);
    let rank = shape.len();
    let cut = Op::Slice { starts: vec![Dim::ZERO; rank], steps: vec![1; rank], sizes: shape };
    let rows = if b.shape(rows)[0] == Dim::from(panels.rows) { rows } else { b.unfolded(cut, &[rows])? };
    let mut value = b.emit1(Op::Gather { axis: 0 }, &[rows, indices])?;
    if panels.codes {
        value = b.unsqueeze(value, &[b.rank(value)])?;
        value = bytes(b, value)?;
    }
    let value = b.cast(value, b.dtype(result))?;
    b.reshape(value, to).map(Some)
}

/// Words of codes `[.., 1]` as bytes of two codes each, `[.., bytes]`.
fn bytes(b: &mut Builder, words: ValueId) -> Result<ValueId> {
    let places = codes_per_word(BITS, DType::I32).unwrap_or(0);
    let shifts: Vec<i32> = (0..places).step_by(2).map(|place| code_shift(BITS, place) as i32).collect();
    let shifts = b.constant(Tensor::from_slice(&[shifts.len()], &shifts));
    let codes = b.binary(BinaryFn::Shr, words, shifts)?;
    let low = b.binary_scalar(BinaryFn::BitAnd, codes, 15.0)?;
    // The next code is in the next byte.
    let high = b.binary_scalar(BinaryFn::Shr, codes, (code_shift(BITS, 1) - BITS) as f64)?;
    let high = b.binary_scalar(BinaryFn::BitAnd, high, f64::from(15 << BITS))?;
    let both = b.binary(BinaryFn::Add, low, high)?;
    b.cast(both, DType::U8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_all;
    use onnxc_ir::graph::{Origin, TensorType};
    use onnxc_ir::interp;

    /// `rows` of these many numbers, tied to a product of what is gathered; a last row is asked for by its number from the end.
    fn tied(codes: bool, rows: usize, read_on: bool) -> Graph {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("table", "Gather", 0));
        let mut b = Builder::new(&mut graph, origin);
        let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
        let indices = b.input("indices", TensorType::new(DType::I64, dims(&[3])), None);
        let steps = 128;
        let (table, weights) = if codes {
            let data: Vec<u8> = (0..rows * steps / 2).map(|at| (at * 37 % 251) as u8).collect();
            let bytes = b.constant(Tensor::from_slice(&[rows, steps / 2], &data));
            let scales: Vec<f32> = (0..rows * 4).map(|at| (at % 17 + 1) as f32 / 8.0).collect();
            let scales = b.constant(Tensor::from_slice(&[rows, 4, 1], &scales));
            let halves = b.constant(Tensor::from_slice(&[2], &[0u8, 4]));
            let wide = b.unsqueeze(bytes, &[2]).unwrap();
            let codes = b.binary(BinaryFn::Shr, wide, halves).unwrap();
            let codes = b.binary_scalar(BinaryFn::BitAnd, codes, 15.0).unwrap();
            let codes = b.reshape(codes, dims(&[rows, 4, steps / 4])).unwrap();
            let codes = b.cast(codes, DType::F32).unwrap();
            let codes = b.binary_scalar(BinaryFn::Sub, codes, 8.0).unwrap();
            let weights = b.binary(BinaryFn::Mul, codes, scales).unwrap();
            (bytes, b.reshape(weights, dims(&[rows, steps])).unwrap())
        } else {
            let data: Vec<f32> = (0..rows * steps).map(|at| (at * 7 % 61) as f32 - 30.0).collect();
            let table = b.constant(Tensor::from_slice(&[rows, steps], &data));
            (table, table)
        };
        let own = b.emit1(Op::Gather { axis: 0 }, &[table, indices]).unwrap();
        let wide = b.cast(own, DType::F32).unwrap();
        let wide = if codes { b.emit1(Op::Concat { axis: 1 }, &[wide, wide]).unwrap() } else { wide };
        let rhs = b.transpose(weights, &[1, 0]).unwrap();
        let product = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
        let y = b.emit1(product, &[wide, rhs]).unwrap();
        graph.outputs.extend([("y".into(), y), ("own".into(), own)]);
        if read_on {
            graph.outputs.push(("table".into(), table));
        }
        graph
    }

    /// The object has the rows once, in the panels; results are the same, also where panels are filled up.
    #[test]
    fn tied_tables_are_read_from_panels() {
        for (codes, rows, read_on) in [
            (true, 1040, false),
            (true, 1037, false),
            (false, 256, false),
            (false, 251, false),
            (true, 1040, true),
            (false, 251, true),
        ] {
            let graph = tied(codes, rows, read_on);
            let mut after = graph.clone();
            run_all(&mut after, &Options::default(), &mut |_, _, _| ()).unwrap();
            let stored: Vec<ValueId> =
                after.order.iter().flat_map(|&id| after.nodes[id].inputs.iter().copied()).collect();
            let tables = stored.iter().filter(|&&value| {
                after.is_constant(value) && after.ty(value).shape.first() == Some(&Dim::from(rows))
            });
            assert_eq!(tables.count() > 0, read_on, "{after}");
            let inputs = [Tensor::from_slice(&[3], &[5i64, -1, rows as i64 - 1])];
            let results = |graph: &Graph| interp::run(graph, &inputs).unwrap();
            for (before, after) in results(&graph).iter().zip(&results(&after)) {
                assert_eq!(before.data, after.data, "{codes} {rows} {read_on}");
            }
            let beyond = [Tensor::from_slice(&[3], &[0i64, 0, rows as i64])];
            assert!(interp::run(&after, &beyond).is_err());
        }
    }

    /// Weights that the model rounds are not the table that it gathers from, if that has more digits.
    #[test]
    fn rounded_weights_are_another_table() {
        for (step, is_shared) in [(0.25f32, true), (1e-3, false)] {
            let mut graph = Graph::default();
            let origin = graph.origins.push(Origin::new("t", "Gather", 0));
            let mut b = Builder::new(&mut graph, origin);
            let indices = b.input("indices", TensorType::new(DType::I64, vec![Dim::from(2usize)]), None);
            let data: Vec<f32> = (0..256 * 128).map(|at| (at % 13) as f32 * step).collect();
            let table = b.constant(Tensor::from_slice(&[256, 128], &data));
            let own = b.emit1(Op::Gather { axis: 0 }, &[table, indices]).unwrap();
            let rhs = b.transpose(table, &[1, 0]).unwrap();
            let rhs = b.cast(rhs, DType::F16).unwrap();
            let rhs = b.emit1(Op::Pack { batch: 0, k: 1, nr: 4 }, &[rhs]).unwrap();
            let layout = RhsLayout::Panels { nr: 4, depth: 1, n: Dim::from(256usize) };
            let y = b.emit1(Op::Contract { batch: 0, m: 1, k: 1, rhs: layout }, &[own, rhs]).unwrap();
            graph.outputs.extend([("y".into(), y), ("own".into(), own)]);
            let mut after = graph.clone();
            run(&mut after, &Options::default()).unwrap();
            let gathered = |graph: &Graph| graph.outputs[1].1;
            assert_eq!(gathered(&after) != gathered(&graph), is_shared, "{after}");
            let inputs = [Tensor::from_slice(&[2], &[3i64, -1])];
            let own = |graph: &Graph| interp::run(graph, &inputs).unwrap().remove(1);
            assert_eq!(own(&graph).data, own(&after).data, "{after}");
        }
    }
}
