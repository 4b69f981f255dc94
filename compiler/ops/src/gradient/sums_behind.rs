//! Sums over the iterations of a loop that are computed behind it: `sum over t of l[t] * r[t]` is one product of what
//! the iterations stack, which reads and writes its result once, where a loop would for each iteration.

use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Dim, Graph, MapFn, Op, RhsLayout, ValueId};
use onnxc_ir::scalar::BinaryFn;

/// An expression of the body, to be summed over all iterations.
pub(super) enum Behind {
    Product { op: (usize, usize, usize), operands: [ValueId; 2] },
    Transpose(Box<Behind>, Vec<usize>),
    Reshape(Box<Behind>, Vec<Dim>),
    Sum(Box<Behind>, Box<Behind>),
}

impl Behind {
    /// What `value` is, if it is made of products of nodes from number `first` on, whose operands are smaller than results.
    pub(super) fn of(graph: &Graph, value: ValueId, first: usize) -> Option<Behind> {
        let id = graph.producer(value)?;
        let node = &graph.nodes[id];
        if (id.as_u32() as usize) < first {
            return None;
        }
        let inner = |at: usize| Behind::of(graph, node.inputs[at], first).map(Box::new);
        let is_outer = |shape: &[Dim]| !shape.iter().any(|dim| graph.is_data_dim(dim));
        match &node.op {
            Op::Contract { batch, m, k, rhs: RhsLayout::Plain } if node.inputs.len() == 2 => {
                let operands = [node.inputs[0], node.inputs[1]];
                let [l, r] = operands.map(|operand| &graph.ty(operand).shape);
                let result = &graph.ty(value).shape;
                let is_whole = l[..*batch] == r[..*batch] && is_outer(l) && is_outer(r);
                let same = operands.iter().all(|&operand| graph.ty(operand).dtype == graph.ty(value).dtype);
                let count = |shape: &[Dim]| shape.iter().map(Dim::as_const).product::<Option<i64>>();
                let pays = match (count(l), count(r), count(result)) {
                    (Some(l), Some(r), Some(result)) => l + r <= result,
                    _ => true,
                };
                (is_whole && same && pays).then_some(Behind::Product { op: (*batch, *m, *k), operands })
            }
            Op::Transpose { perm } => Some(Behind::Transpose(inner(0)?, perm.clone())),
            Op::Reshape { shape } if is_outer(shape) => Some(Behind::Reshape(inner(0)?, shape.clone())),
            Op::Map(MapFn::Binary(BinaryFn::Add))
                if node.inputs.iter().all(|&operand| graph.ty(operand) == graph.ty(value)) =>
            {
                Some(Behind::Sum(inner(0)?, inner(1)?))
            }
            _ => None,
        }
    }

    /// The values of the body that are to be stacked.
    pub(super) fn operands(&self, into: &mut Vec<ValueId>) {
        match self {
            Behind::Product { operands, .. } => into.extend(operands),
            Behind::Transpose(inner, _) | Behind::Reshape(inner, _) => inner.operands(into),
            Behind::Sum(a, b) => {
                a.operands(into);
                b.operands(into);
            }
        }
    }

    /// The sum, where `stacks` pairs values of the body with what holds those of all iterations.
    pub(super) fn emit(&self, b: &mut Builder<'_>, stacks: &[(ValueId, ValueId)]) -> Result<ValueId> {
        match self {
            Behind::Product { op: (batch, m, k), operands } => {
                let (batch, m, k) = (*batch, *m, *k);
                let stack = |value: ValueId| match stacks.iter().find(|(inside, _)| *inside == value) {
                    Some(&(_, stack)) => Ok(stack),
                    None => Err(Error::internal(Stage::Import, "an operand that no iteration stacks")),
                };
                let (l, r) = (stack(operands[0])?, stack(operands[1])?);
                let move_time = |rank: usize, to: usize| -> Vec<usize> {
                    (1..to + 1).chain([0]).chain(to + 1..rank).collect()
                };
                let l = b.transpose(l, &move_time(b.rank(l), batch + m))?;
                let r = b.transpose(r, &move_time(b.rank(r), batch))?;
                b.emit1(Op::Contract { batch, m, k: k + 1, rhs: RhsLayout::Plain }, &[l, r])
            }
            Behind::Transpose(inner, perm) => {
                let inner = inner.emit(b, stacks)?;
                b.transpose(inner, perm)
            }
            Behind::Reshape(inner, shape) => {
                let inner = inner.emit(b, stacks)?;
                b.reshape(inner, shape.clone())
            }
            Behind::Sum(one, other) => {
                let (one, other) = (one.emit(b, stacks)?, other.emit(b, stacks)?);
                b.binary(BinaryFn::Add, one, other)
            }
        }
    }
}
