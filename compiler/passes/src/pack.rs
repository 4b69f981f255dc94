//! Lays out the right-hand side of every contraction as column panels, the form that kernels read. Constant
//! right-hand sides are packed when the object is written; others at run time, read through their views.

use std::collections::HashMap;

use crate::digits::digits;
use crate::products::{Known, bf16_of};
use crate::rewrite::{bodies, producer, rewrite};
use crate::weights::Weights;
use crate::{Options, Precision, hoist};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::panels::fills_rows;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, Node, Op, PAIR_DEPTH, PanelLayout, RhsLayout, ValueId};
use onnxc_tuning::products::{NEAR_ROWS, Product};

/// Panels of a right-hand side with this number of batch and of inner axes, by their width and depth, and whether they are those of all of
/// its batch or of what is repeated along it.
type Packed = HashMap<(ValueId, usize, usize, [usize; 2], Extent), ValueId>;

/// Left-hand sides as digits, by the steps that share a unit.
type Split = HashMap<(ValueId, i64), Vec<ValueId>>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Extent {
    Whole,
    Once,
}

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let (mut packed, mut split, mut narrow) = (Packed::new(), Split::new(), Known::new());
    rewrite(graph, |b, id| {
        let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
        else {
            return Ok(None);
        };
        let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
        // Of both: that two sizes are equal may show when the model runs.
        let steps = [b.shape(lhs).pop(), k.checked_sub(1).map(|last| b.shape(rhs)[batch + last].clone())];
        let in_words = |depth: usize| {
            steps.iter().all(|steps| steps.as_ref().is_some_and(|steps| fills_rows(steps, depth)))
        };
        // Instructions that multiply pairs take subnormals for zeros.
        let may_flush = !options.exact || options.precision == Precision::Bf16;
        let pairs = options.pack.bf16_pairs && may_flush && k > 0;
        let pairs = pairs && b.dtype(rhs) == DType::BF16 && in_words(PAIR_DEPTH);
        let own = if pairs { bf16_of(b, lhs, &mut narrow)? } else { None };
        let (lhs, has_pairs) = (own.unwrap_or(lhs), own.is_some());
        if batch == 0
            && k == 1
            && options.level > 0
            && b.dtype(lhs) == DType::F32
            && let Some(weights) = Weights::of(b.graph, rhs, options.exact)
        {
            return dequantizing(b, &weights, (m, lhs, rhs), options, (&mut packed, &mut split)).map(Some);
        }
        if m == 1
            && !has_pairs
            && b.dtype(lhs) == b.dtype(rhs)
            && b.ty(lhs).shape[..batch] == b.ty(rhs).shape[..batch]
            && let Some(shared) = repeated(b, rhs, batch).filter(|shared| shared.axis + 1 == batch)
        {
            return shared.by_rows(b, (batch, k), (lhs, rhs), options, &mut packed).map(Some);
        }
        let n = b.ty(rhs).shape[batch + k].clone();
        let rows = product(&b.ty(lhs).shape[batch..batch + m]);
        let depth = match (b.dtype(lhs), b.dtype(rhs)) {
            (DType::U8 | DType::I8, DType::I8) if k > 0 => DOT_DEPTH,
            (DType::I16, DType::I16) if k > 0 => PAIR_DEPTH,
            _ if has_pairs => PAIR_DEPTH,
            _ => 1,
        };
        let depth = if in_words(depth) { depth } else { 1 };
        // Narrow floats are widened to those on the left.
        let dtype = if b.dtype(lhs).is_float() { b.dtype(lhs) } else { b.dtype(rhs) };
        let nr = options.pack.nr(Product { dtype, rows: rows.as_const(), columns: n.as_const() });
        let panels = match packed.get(&(rhs, batch, k, [nr, depth], Extent::Whole)) {
            Some(&panels) => panels,
            None if depth == 1 => match repeated(b, rhs, batch) {
                Some(repeated) => repeated.pack(b, batch, k, nr)?,
                None => pack(b, rhs, batch, k, nr)?,
            },
            None => {
                let layout = PanelLayout::of_plain(&b.ty(rhs).shape, batch, batch + k, nr);
                pack_deep(b, rhs, layout.and_then(|layout| layout.with_depth(depth)))?
            }
        };
        packed.insert((rhs, batch, k, [nr, depth], Extent::Whole), panels);
        let rhs = RhsLayout::Panels { nr, depth, n };
        emit_product(b, Op::Contract { batch, m, k, rhs }, &[lhs, panels]).map(Some)
    })?;
    bodies(graph, options, run)?;
    // Weights that a scan captures are packed once, not in every iteration.
    hoist::last(graph, options)
}

/// One of constants stays a node, as the product was that it takes the place of: it may be left to the run because it takes too long.
fn emit_product(b: &mut Builder, op: Op, operands: &[ValueId]) -> Result<ValueId> {
    match operands.iter().all(|&operand| b.graph.is_constant(operand)) {
        true => b.unfolded(op, operands),
        false => b.emit1(op, operands),
    }
}

/// A right-hand side with the batch of another value, each element of one axis repeated: keys that several heads
/// share. The batch axis `axis` is that of `value` times `times`.
struct Repeated {
    value: ValueId,
    axis: usize,
    times: Dim,
    /// Of the right-hand side's axes, behind the repetition.
    perms: Vec<Vec<usize>>,
}

/// Whether a right-hand side is `Transpose(Reshape(Expand(Reshape(value))))` that repeats along a batch axis; the
/// transposition is one of the other axes.
fn repeated(b: &Builder, rhs: ValueId, batch: usize) -> Option<Repeated> {
    let graph = &*b.graph;
    let view = |value: ValueId| graph.producer(value).map(|node| &graph.nodes[node]);
    let (mut value, mut perms) = (rhs, vec![]);
    while let Node { op: Op::Transpose { perm }, inputs, .. } = view(value)? {
        if perm[..batch].iter().enumerate().any(|(to, &from)| to != from) {
            return None;
        }
        perms.push(perm.clone());
        value = inputs[0];
    }
    let (Op::Reshape { shape: joined }, [wide]) = (&view(value)?.op, &view(value)?.inputs[..]) else {
        return None;
    };
    let (Op::Expand { shape: wide }, [narrow]) = (&view(*wide)?.op, &view(*wide)?.inputs[..]) else {
        return None;
    };
    let own = &graph.ty(*narrow).shape;
    let at = (1..wide.len()).find(|&at| own.get(at) == Some(&Dim::ONE) && wide[at] != Dim::ONE)?;
    let rest_is_alike = own.len() == wide.len()
        && joined.len() + 1 == wide.len()
        && (0..wide.len()).all(|axis| axis == at || own[axis] == wide[axis])
        && joined[..at - 1] == wide[..at - 1]
        && joined[at..] == wide[at + 1..]
        && joined[at - 1] == wide[at - 1].clone() * wide[at].clone();
    (rest_is_alike && at <= batch).then(|| Repeated {
        value: *narrow,
        axis: at - 1,
        times: wide[at].clone(),
        perms,
    })
}

impl Repeated {
    /// The contraction with what is repeated along the last batch axis, as one of more rows: those of the heads that share a
    /// right-hand side, one after the other. A panel is then read once for all of them. The batch of `lhs` is that of `wide`.
    fn by_rows(
        &self,
        b: &mut Builder,
        (batch, k): (usize, usize),
        (lhs, wide): (ValueId, ValueId),
        options: &Options,
        packed: &mut Packed,
    ) -> Result<ValueId> {
        let rhs = self.narrow(b)?;
        let (shape, own) = (b.shape(lhs), b.shape(rhs));
        let mut grouped = shape.clone();
        grouped[self.axis] = own[self.axis].clone();
        grouped[batch] = self.times.clone() * shape[batch].clone();
        let (rows, n) = (product(&grouped[batch..=batch]), own[batch + k].clone());
        let product = Product { dtype: b.dtype(lhs), rows: rows.as_const(), columns: n.as_const() };
        let nr = options.pack.nr(product);
        let panels = match packed.get(&(wide, batch, k, [nr, 1], Extent::Once)) {
            Some(&panels) => panels,
            None => pack(b, rhs, batch, k, nr)?,
        };
        packed.insert((wide, batch, k, [nr, 1], Extent::Once), panels);
        let lhs = b.reshape(lhs, grouped.clone())?;
        let layout = RhsLayout::Panels { nr, depth: 1, n: n.clone() };
        let result = emit_product(b, Op::Contract { batch, m: 1, k, rhs: layout }, &[lhs, panels])?;
        let mut to = shape[..=batch].to_vec();
        to.push(n);
        b.reshape(result, to)
    }

    /// What is repeated, as a right-hand side.
    fn narrow(&self, b: &mut Builder) -> Result<ValueId> {
        let mut shape = b.shape(self.value);
        shape.remove(self.axis + 1);
        let mut value = b.reshape(self.value, shape)?;
        for perm in self.perms.iter().rev() {
            value = b.transpose(value, perm)?;
        }
        Ok(value)
    }

    /// Panels of what is repeated, then repeated: a view.
    fn pack(&self, b: &mut Builder, batch: usize, k: usize, nr: usize) -> Result<ValueId> {
        let value = self.narrow(b)?;
        let panels = pack(b, value, batch, k, nr)?;
        let mut shape = b.shape(panels);
        shape.insert(self.axis + 1, Dim::ONE);
        let wide = b.reshape(panels, shape.clone())?;
        shape[self.axis + 1] = self.times.clone();
        let wide = b.expand(wide, shape.clone())?;
        let times = shape.remove(self.axis + 1);
        shape[self.axis] = shape[self.axis].clone() * times;
        b.reshape(wide, shape)
    }
}

/// The contraction of `m` row axes of `lhs` with weights of few bits.
fn dequantizing(
    b: &mut Builder,
    weights: &Weights,
    (m, lhs, rhs): (usize, ValueId, ValueId),
    options: &Options,
    (packed, split): (&mut Packed, &mut Split),
) -> Result<ValueId> {
    let n = b.ty(rhs).shape[1].clone();
    let count = if options.exact || !weights.as_bytes(b.graph) { 0 } else { options.pack.digits };
    let mut shape = b.shape(lhs);
    let rows = product(&shape[..m]).as_const();
    let nr = options.pack.nr(Product { dtype: weights.dtype(), rows, columns: n.as_const() });
    // Two inner axes, where plain panels of the same value have one.
    let panels = match packed.get(&(rhs, 0, 2, [nr, 1], Extent::Whole)) {
        Some(&panels) => panels,
        None => weights.pack(b, nr, count > 0)?,
    };
    packed.insert((rhs, 0, 2, [nr, 1], Extent::Whole), panels);
    shape.truncate(m);
    shape.extend([Dim::from(weights.parts), Dim::from(weights.steps)]);
    let parts = b.reshape(lhs, shape)?;
    let mut operands = vec![parts, panels];
    if count > 0 {
        let known = match split.get(&(lhs, weights.steps)) {
            Some(known) => known.clone(),
            None => digits(b, parts, count)?,
        };
        operands.extend(&known);
        split.insert((lhs, weights.steps), known);
    }
    emit_product(b, Op::Contract { batch: 0, m, k: 2, rhs: RhsLayout::Panels { nr, depth: 1, n } }, &operands)
}

/// Panels with several steps of each column side by side.
fn pack_deep(b: &mut Builder, rhs: ValueId, layout: Option<PanelLayout>) -> Result<ValueId> {
    let Some((layout, view)) = layout.and_then(|layout| layout.side_by_side().map(|view| (layout, view)))
    else {
        let message = format!("steps of small integers in {} do not fill the rows of panels", b.ty(rhs));
        return Err(Error::internal(Stage::Pass, message));
    };
    let parts = b.reshape(rhs, view.from)?;
    let parts = b.emit1(Op::Transpose { perm: view.perm }, &[parts])?;
    let steps = b.reshape(parts, view.to)?;
    // Each step of a column is a column of its own.
    b.emit1(Op::Pack { batch: layout.axis(), k: layout.inner.len(), nr: layout.row() }, &[steps])
}

fn pack(b: &mut Builder, rhs: ValueId, batch: usize, k: usize, nr: usize) -> Result<ValueId> {
    let layout = PanelLayout::of_plain(&b.ty(rhs).shape, batch, batch + k, nr);
    if let Some(column) = layout.as_ref().filter(|layout| layout.nr == 1 && layout.n == Dim::ONE)
        && let Some(packed) = column.packed()
    {
        // One panel of one column is the column itself: no copy.
        return b.reshape(rhs, packed);
    }
    if k == 1
        && has_rows_in_place(b.graph, rhs)
        && let Some(view) = layout.and_then(|layout| layout.in_place())
    {
        // A view: what a step reads lies side by side as it is.
        let cut = b.reshape(rhs, view.from)?;
        return b.transpose(cut, &view.perm);
    }
    if let Some(Node { op: op @ Op::WinogradFilter { .. }, inputs, .. }) = producer(b.graph, rhs)
        && batch > 0
    {
        // It is about the first axis alone: panels pass through it as well as rows, and those of weights are laid out by the compiler.
        let (op, weights) = (op.clone(), inputs[0]);
        let panels = pack(b, weights, batch, k, nr)?;
        return b.unfolded(op, &[panels]);
    }
    b.emit1(Op::Pack { batch, k, nr }, &[rhs])
}

/// Whether the rows of a right-hand side can be those of panels as they are: the run computes it, and they lie one after the other
/// in a buffer, near to each other.
fn has_rows_in_place(graph: &Graph, mut rhs: ValueId) -> bool {
    let ty = graph.ty(rhs);
    let columns = ty.shape.last().and_then(Dim::as_const);
    let bytes = columns.and_then(|columns| columns.checked_mul(ty.dtype.size() as i64));
    if !bytes.is_some_and(|bytes| (1..=NEAR_ROWS).contains(&bytes)) {
        return false;
    }
    // Where rows are taken whole, those that stay are as near to each other as before.
    let takes_rows = |starts: &[Dim], steps: &[i64], sizes: &[Dim], from: &[Dim]| {
        starts.last() == Some(&Dim::ZERO)
            && sizes.last() == from.last()
            && steps.iter().all(|&step| step == 1)
    };
    while let Some(node) = graph.producer(rhs) {
        match &graph.nodes[node] {
            Node { op: Op::Reshape { .. }, inputs, .. } => rhs = inputs[0],
            Node { op: Op::Slice { starts, steps, sizes }, inputs, .. }
                if takes_rows(starts, steps, sizes, &graph.ty(inputs[0]).shape) =>
            {
                rhs = inputs[0];
            }
            _ => break,
        }
    }
    graph.producer(rhs).map_or(!graph.is_constant(rhs), |node| !graph.nodes[node].op.is_view())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::{Origin, Symbol, Tensor, TensorType};

    /// Keys that three heads share are packed once, or are read where they lie; the rows of these heads are those of one
    /// product, and the results are the same.
    #[test]
    fn repeated_values_are_packed_once() {
        for transposed in [false, true] {
            let mut graph = Graph::default();
            let origin = graph.origins.push(onnxc_ir::graph::Origin::new("scores", "MatMul", 0));
            let mut b = Builder::new(&mut graph, origin);
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let mut input = |name: &str, sizes: &[usize]| {
                b.input(name, onnxc_ir::graph::TensorType::new(DType::F32, dims(sizes)), None)
            };
            let (q, k) = (input("q", &[2, 6, 5, 8]), input("k", &[2, 2, 8, 8]));
            let wide = b.reshape(k, dims(&[2, 2, 1, 8, 8])).unwrap();
            let wide = b.expand(wide, dims(&[2, 2, 3, 8, 8])).unwrap();
            let mut rhs = b.reshape(wide, dims(&[2, 6, 8, 8])).unwrap();
            if transposed {
                rhs = b.transpose(rhs, &[0, 1, 3, 2]).unwrap();
            }
            let product = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            let mut after = graph.clone();
            run(&mut after, &Options::default()).unwrap();
            let packs = |id: &&onnxc_ir::graph::NodeId| matches!(after.nodes[**id].op, Op::Pack { .. });
            let packed: Vec<_> = after.order.iter().filter(packs).collect();
            assert_eq!(packed.len(), usize::from(transposed), "{after}");
            let product = after.order.iter().find(|id| matches!(after.nodes[**id].op, Op::Contract { .. }));
            let [rows, panels] = after.nodes[*product.unwrap()].inputs[..] else { panic!("{after}") };
            assert_eq!(after.ty(rows).shape, dims(&[2, 2, 15, 8]), "{after}");
            assert_eq!(after.ty(panels).shape, dims(&[2, 2, 2, 8, 4]), "{after}");
            let numbers = |count: usize, by: usize| -> Vec<f32> {
                (0..count).map(|at| (at * by % 31) as f32 - 15.0).collect()
            };
            let inputs = [
                onnxc_ir::graph::Tensor::from_slice(&[2, 6, 5, 8], &numbers(480, 7)),
                onnxc_ir::graph::Tensor::from_slice(&[2, 2, 8, 8], &numbers(256, 11)),
            ];
            let result = |graph: &Graph| onnxc_ir::interp::run(graph, &inputs).unwrap().remove(0);
            assert_eq!(result(&graph).data, result(&after).data);
        }
    }

    /// The pass leaves the first result of a graph, of inputs of such shapes, as it is.
    fn assert_results_stay(graph: &Graph, shapes: &[&[usize]], what: &str) {
        let mut after = graph.clone();
        run(&mut after, &Options::default()).unwrap();
        let inputs: Vec<Tensor> = (shapes.iter())
            .map(|sizes| {
                let numbers: Vec<f32> =
                    (0..sizes.iter().product()).map(|at| (at * 7 % 31) as f32 - 15.0).collect();
                Tensor::from_slice(sizes, &numbers)
            })
            .collect();
        let result = |graph: &Graph| onnxc_ir::interp::run(graph, &inputs).unwrap().remove(0);
        let (wanted, result) = (result(graph), result(&after));
        assert_eq!((result.shape, result.data), (wanted.shape, wanted.data), "{what}");
    }

    /// Heads that share keys and have the same rows: those are broadcast, and cannot become more rows.
    #[test]
    fn repeated_values_against_a_broadcast_batch() {
        for batch in [[1, 1], [2, 1], [1, 6]] {
            let mut graph = Graph::default();
            let origin = Origin::new("scores", "MatMul", 0);
            let origin = graph.origins.push(origin);
            let mut b = Builder::new(&mut graph, origin);
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let rows = [batch[0], batch[1], 3, 4];
            let shapes: [&[usize]; 2] = [&rows, &[2, 2, 1, 4, 5]];
            let [q, k] = shapes.map(|sizes| b.input("", TensorType::new(DType::F32, dims(sizes)), None));
            let wide = b.expand(k, dims(&[2, 2, 3, 4, 5])).unwrap();
            let rhs = b.reshape(wide, dims(&[2, 6, 4, 5])).unwrap();
            let product = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            assert_results_stay(&graph, &shapes, &format!("{batch:?}"));
        }
    }

    /// A value repeated along a batch axis that a transposition moves does not become a right-hand side of more rows.
    #[test]
    fn repeated_values_of_a_transposed_batch() {
        for size in [2, 3] {
            let dims = |sizes: &[usize]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
            let mut graph = Graph::default();
            let origin = Origin::new("scores", "MatMul", 0);
            let origin = graph.origins.push(origin);
            let mut b = Builder::new(&mut graph, origin);
            let shapes: [&[usize]; 2] = [&[2 * size, size, 3, 4], &[size, size, 1, 4, 5]];
            let [q, k] = shapes.map(|sizes| b.input("", TensorType::new(DType::F32, dims(sizes)), None));
            let wide = b.expand(k, dims(&[size, size, 2, 4, 5])).unwrap();
            let rhs = b.reshape(wide, dims(&[size, 2 * size, 4, 5])).unwrap();
            let rhs = b.transpose(rhs, &[1, 0, 2, 3]).unwrap();
            let y = b.emit1(Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain }, &[q, rhs]).unwrap();
            graph.outputs.push(("y".into(), y));
            assert_results_stay(&graph, &shapes, &format!("{size}"));
        }
    }

    /// Steps of bytes with a number known from one operand only: the run checks it against the other.
    #[test]
    fn bytes_of_a_symbolic_number_of_steps() {
        let (one, other) =
            (Tensor::from_slice(&[2, 4], &[1i8, -2, 3, 4, 5, -6, 7, -8]), [9i8, 8, -7, 6, 5, 4, 3, -2]);
        let other = Tensor::from_slice(&[4, 2], &other);
        for symbolic in [0, 1] {
            let mut graph = Graph::default();
            let origin = Origin::new("product", "Einsum", 0);
            let origin = graph.origins.push(origin);
            let steps = Dim::sym(graph.symbols.push(Symbol { name: "n".into() }));
            let mut b = Builder::new(&mut graph, origin);
            let steps = |side: usize| if side == symbolic { steps.clone() } else { Dim::from(4usize) };
            let shapes = [vec![Dim::from(2usize), steps(0)], vec![steps(1), Dim::from(2usize)]];
            let inputs = shapes.map(|shape| b.input("", TensorType::new(DType::I8, shape), None));
            let product = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &inputs).unwrap();
            graph.outputs.push(("y".into(), y));
            run(&mut graph, &Options::default()).unwrap();
            let result = onnxc_ir::interp::run(&graph, &[one.clone(), other.clone()]).unwrap().remove(0);
            // [[1, -2, 3, 4], [5, -6, 7, -8]] times [[9, 8], [-7, 6], [5, 4], [3, -2]]
            assert_eq!(onnxc_ops::node_case::elements(&result), [50.0, 0.0, 98.0, 48.0]);
        }
    }
}
