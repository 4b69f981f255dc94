//! Selections of rows sink beneath the products that compute them: where only the last token's logits are read, only
//! they are computed.

use crate::error::Result;
use crate::graph::{Builder, Dim, Graph, Node, Op, RhsLayout, ValueId};
use crate::pass::rewrite::{Uses, producer};

/// Maps between a selection and a product that are looked through.
const MAX_MAPS: usize = 6;

/// What takes part of a value along its axes.
#[derive(Clone, Debug)]
pub enum Selection {
    Slice {
        starts: Vec<Dim>,
        steps: Vec<i64>,
        sizes: Vec<Dim>,
    },
    /// One index of an axis, which stays, with size 1, or goes.
    Gather {
        axis: usize,
        index: ValueId,
    },
}

impl Selection {
    /// A gather of one element; others might ask for a row several times.
    pub fn gather(graph: &Graph, index: ValueId, axis: usize) -> Option<Selection> {
        let one = graph.ty(index).shape.iter().all(|dim| *dim == Dim::ONE) && graph.ty(index).rank() <= 1;
        one.then_some(Selection::Gather { axis, index })
    }

    /// Whether all axes but those of `rows` stay as they are.
    fn is_of(&self, shape: &[Dim], rows: std::ops::Range<usize>) -> bool {
        match self {
            Selection::Gather { axis, .. } => rows.contains(axis),
            Selection::Slice { starts, steps, sizes } => (0..shape.len()).all(|axis| {
                rows.contains(&axis)
                    || starts[axis] == Dim::ZERO && steps[axis] == 1 && sizes[axis] == shape[axis]
            }),
        }
    }

    /// The same of an operand which broadcasts to `shape`; `None` where only the run tells whether an axis does.
    fn of_operand(&self, b: &mut Builder, operand: ValueId, shape: &[Dim]) -> Result<Option<ValueId>> {
        let own = b.shape(operand);
        let lead = shape.len() - own.len();
        let known = (0..own.len()).all(|axis| own[axis] == shape[lead + axis] || own[axis] == Dim::ONE);
        if !known {
            return Ok(None);
        }
        match self {
            Selection::Slice { starts, steps, sizes } => {
                let (mut starts, mut steps) = (starts[lead..].to_vec(), steps[lead..].to_vec());
                let mut sizes = sizes[lead..].to_vec();
                // What repeats along an axis stays as it is there.
                for axis in (0..own.len()).filter(|&axis| own[axis] != shape[lead + axis]) {
                    (starts[axis], steps[axis], sizes[axis]) = (Dim::ZERO, 1, Dim::ONE);
                }
                b.emit1(Op::Slice { starts, steps, sizes }, &[operand]).map(Some)
            }
            Selection::Gather { axis, index } => match axis.checked_sub(lead) {
                None => Ok(Some(operand)),
                Some(at) if own[at] == shape[*axis] => {
                    b.emit1(Op::Gather { axis: at }, &[operand, *index]).map(Some)
                }
                Some(at) if b.rank(*index) == 0 => b.squeeze(operand, &[at]).map(Some),
                Some(_) => Ok(Some(operand)),
            },
        }
    }

    fn of(&self, b: &mut Builder, value: ValueId) -> Result<ValueId> {
        match self {
            Selection::Slice { starts, steps, sizes } => {
                let (starts, steps, sizes) = (starts.clone(), steps.clone(), sizes.clone());
                b.emit1(Op::Slice { starts, steps, sizes }, &[value])
            }
            Selection::Gather { axis, index } => b.emit1(Op::Gather { axis: *axis }, &[value, *index]),
        }
    }
}

/// What `selection` of `x` is where `x` is made of a product that nothing else reads: the product of the selected rows.
pub fn sink(b: &mut Builder, x: ValueId, selection: &Selection, uses: &Uses) -> Result<Option<ValueId>> {
    if !is_of_rows(b.graph, x, selection, uses, MAX_MAPS) {
        return Ok(None);
    }
    let Some(Node { op, inputs, .. }) = producer(b.graph, x).cloned() else { return Ok(None) };
    match op {
        Op::Contract { batch, m, k, rhs } => {
            let own = b.shape(inputs[0]);
            let rows = match selection {
                Selection::Gather { index, .. } => m - 1 + b.ty(*index).rank(),
                Selection::Slice { .. } => m,
            };
            if rows == 0 {
                return Ok(None);
            }
            // The left operand has the inner axes where the result has that of the columns.
            let selection = match selection.clone() {
                Selection::Slice { mut starts, mut steps, mut sizes } => {
                    starts.truncate(batch + m);
                    steps.truncate(batch + m);
                    sizes.truncate(batch + m);
                    starts.resize(own.len(), Dim::ZERO);
                    steps.resize(own.len(), 1);
                    sizes.extend_from_slice(&own[batch + m..]);
                    // All of the batch, of which the left operand may have one element for all.
                    sizes[..batch].clone_from_slice(&own[..batch]);
                    Selection::Slice { starts, steps, sizes }
                }
                gather => gather,
            };
            let lhs = selection.of(b, inputs[0])?;
            b.emit1(Op::Contract { batch, m: rows, k, rhs }, &[lhs, inputs[1]]).map(Some)
        }
        Op::Map(_) => {
            let shape = b.shape(x);
            let mut operands = Vec::with_capacity(inputs.len());
            for input in inputs {
                match selection.of_operand(b, input, &shape)? {
                    Some(operand) => operands.push(operand),
                    None => return Ok(None),
                }
            }
            b.emit1(op, &operands).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether a product computes `x`, perhaps through maps, whose rows the selection is of; and nothing else reads it.
fn is_of_rows(graph: &Graph, x: ValueId, selection: &Selection, uses: &Uses, maps: usize) -> bool {
    let (Some(node), 1) = (producer(graph, x), uses[x]) else { return false };
    let shape = &graph.ty(x).shape;
    match &node.op {
        Op::Contract { batch, m, rhs: RhsLayout::Plain, .. } => selection.is_of(shape, *batch..batch + m),
        Op::Map(_) if maps > 0 => node.inputs.iter().any(|&input| {
            // Only an operand of the same shape has the same axes.
            graph.ty(input).shape == *shape && is_of_rows(graph, input, selection, uses, maps - 1)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, Origin, Tensor, TensorType};
    use crate::interp;
    use crate::pass::{Options, run_all};
    use crate::scalar::{BinaryFn, UnaryFn};

    fn tensor(shape: &[usize], from: usize) -> Tensor {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (from..from + count).map(|at| ((at * 37) % 23) as f32 - 11.0).collect();
        Tensor::from_slice(shape, &values)
    }

    type Select<'s> = &'s dyn Fn(&mut Builder, ValueId) -> ValueId;

    /// `abs(x . w + bias + more)`, of which `select` takes a part; with a symbolic number of rows.
    fn last_of(select: Select<'_>, read_on: bool) -> Graph {
        let mut graph = Graph::default();
        let origin = Origin { name: "head".into(), op_type: "MatMul".into(), index: 0 };
        let origin = graph.origins.push(origin);
        let mut b = Builder::new(&mut graph, origin);
        let rows = Dim::sym(b.fresh_symbol());
        let ty = |columns: i64| {
            TensorType::new(DType::F32, vec![Dim::from(2i64), rows.clone(), Dim::from(columns)])
        };
        let (x, more) = (b.input("x", ty(4), None), b.input("more", ty(6), None));
        let (weights, bias) = (b.constant(tensor(&[4, 6], 3)), b.constant(tensor(&[6], 5)));
        let op = Op::Contract { batch: 0, m: 2, k: 1, rhs: RhsLayout::Plain };
        let product = b.emit1(op, &[x, weights]).unwrap();
        let sum = b.binary(BinaryFn::Add, product, bias).unwrap();
        let sum = b.binary(BinaryFn::Add, sum, more).unwrap();
        let y = b.unary(UnaryFn::Abs, sum).unwrap();
        let part = select(&mut b, y);
        graph.outputs.push(("part".into(), part));
        if read_on {
            graph.outputs.push(("all".into(), y));
        }
        graph
    }

    fn rows_of_products(graph: &Graph) -> Vec<Vec<Dim>> {
        let nodes = graph.order.iter().map(|&id| &graph.nodes[id]);
        let products = nodes.filter(|node| matches!(node.op, Op::Contract { .. }));
        products.map(|node| graph.ty(node.outputs[0]).shape.clone()).collect()
    }

    #[test]
    fn only_the_rows_that_are_read_are_computed() {
        let last = |b: &mut Builder, y: ValueId| {
            let shape = b.shape(y);
            let starts = vec![Dim::ZERO, shape[1].clone() - Dim::ONE, Dim::ZERO];
            let sizes = vec![shape[0].clone(), Dim::ONE, shape[2].clone()];
            b.emit1(Op::Slice { starts, steps: vec![1; 3], sizes }, &[y]).unwrap()
        };
        let gathered = |index: Tensor| {
            move |b: &mut Builder, y: ValueId| {
                let index = b.constant(index.clone());
                b.emit1(Op::Gather { axis: 1 }, &[y, index]).unwrap()
            }
        };
        let (one, list) = (gathered(Tensor::scalar(-1i64)), gathered(Tensor::from_slice(&[1], &[-1i64])));
        let dims = |sizes: &[i64]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
        let cases: [(Select<'_>, Vec<Dim>); 3] =
            [(&last, dims(&[2, 1, 6])), (&one, dims(&[2, 6])), (&list, dims(&[2, 1, 6]))];
        for (select, wanted) in cases {
            for read_on in [false, true] {
                let before = last_of(select, read_on);
                let mut after = before.clone();
                run_all(&mut after, &Options::default(), &mut |_, _, _| {}).unwrap();
                let rows = rows_of_products(&after);
                assert_eq!(rows == std::slice::from_ref(&wanted), !read_on, "{rows:?}\n{after}");
                let inputs = [tensor(&[2, 3, 4], 0), tensor(&[2, 3, 6], 9)];
                assert_eq!(interp::run(&after, &inputs).unwrap(), interp::run(&before, &inputs).unwrap());
            }
        }
    }

    /// A gather of several rows may take one twice: it stays behind the product.
    #[test]
    fn several_rows_are_gathered_from_the_product() {
        let twice = |b: &mut Builder, y: ValueId| {
            let index = b.constant(Tensor::from_slice(&[4], &[0i64, 1, 1, 0]));
            b.emit1(Op::Gather { axis: 1 }, &[y, index]).unwrap()
        };
        let mut graph = last_of(&twice, false);
        run_all(&mut graph, &Options::default(), &mut |_, _, _| {}).unwrap();
        let [rows] = rows_of_products(&graph).try_into().unwrap();
        assert!(!rows[1].is_const(), "{rows:?}");
    }

    /// Of a batch whose left operand is the same for all.
    #[test]
    fn rows_of_a_repeated_left_operand() {
        let mut graph = Graph::default();
        let origin = Origin { name: "batch".into(), op_type: "MatMul".into(), index: 0 };
        let origin = graph.origins.push(origin);
        let mut b = Builder::new(&mut graph, origin);
        let sized =
            |shape: &[i64]| TensorType::new(DType::F32, shape.iter().map(|&size| Dim::from(size)).collect());
        let (x, y) = (b.input("x", sized(&[1, 3, 4]), None), b.input("y", sized(&[2, 4, 5]), None));
        let op = Op::Contract { batch: 1, m: 1, k: 1, rhs: RhsLayout::Plain };
        let product = b.emit1(op, &[x, y]).unwrap();
        let slice = Op::Slice {
            starts: vec![Dim::ZERO, Dim::ONE, Dim::ZERO],
            steps: vec![1, 2, 1],
            sizes: [2i64, 1, 5].map(Dim::from).to_vec(),
        };
        let part = b.emit1(slice, &[product]).unwrap();
        graph.outputs.push(("part".into(), part));
        let inputs = [tensor(&[1, 3, 4], 1), tensor(&[2, 4, 5], 9)];
        let wanted = interp::run(&graph, &inputs).unwrap();
        run_all(&mut graph, &Options::default(), &mut |_, _, _| {}).unwrap();
        assert_eq!(rows_of_products(&graph), [[2i64, 1, 5].map(Dim::from)]);
        assert_eq!(interp::run(&graph, &inputs).unwrap(), wanted);
    }
}
