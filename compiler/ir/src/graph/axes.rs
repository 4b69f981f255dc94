//! Which axis of a result follows which axis of an operand: the ways in which parts of a tensor can be computed from parts of others.
//!
//! A way is one axis, in equal shares: what ranks divide asks for it. Offsets along an axis (regions), another order of axes (movement),
//! and the element at an index (lowering of expressions, inlining) are other questions of the same operations.

use crate::graph::{Dim, MapFn, Op, RhsLayout, TensorType, dim::product};
use crate::scalar::ReduceFn;

/// What part of a value a way takes or gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of it.
    Whole,
    /// A range along an axis, in multiples of `scale`: the same number of them as in all others of the way.
    Range { axis: usize, scale: i64 },
    /// As large as all of it; combined over all parts it is the value.
    Partial(ReduceFn),
}

/// A way: with these shares of the operands the operation gives those of the results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Way {
    pub operands: Vec<Share>,
    pub results: Vec<Share>,
}

fn range(axis: usize) -> Share {
    Share::Range { axis, scale: 1 }
}

/// A way in which every operand has an axis or none, and every result the same axis.
fn way(operands: impl IntoIterator<Item = Option<usize>>, results: impl IntoIterator<Item = Share>) -> Way {
    let share = |axis: Option<usize>| axis.map_or(Share::Whole, range);
    Way { operands: operands.into_iter().map(share).collect(), results: results.into_iter().collect() }
}

/// The ways of an operation, other than to compute all of it. An operation that is not known here has none.
pub fn ways(op: &Op, inputs: &[&TensorType], results: &[&TensorType]) -> Vec<Way> {
    let Some(result) = results.first() else { return vec![] };
    let axes = 0..result.rank();
    // The same axis of all operands and results.
    let same = |axis: usize| {
        let fits = inputs.iter().chain(results).all(|ty| ty.shape.get(axis) == Some(&result.shape[axis]));
        fits.then(|| way(inputs.iter().map(|_| Some(axis)), results.iter().map(|_| range(axis))))
    };
    match op {
        Op::Map(function) => axes.filter_map(|axis| map(*function, inputs, result, axis)).collect(),
        Op::Reduce { op, axes: reduced } => (0..inputs[0].rank())
            .map(|axis| {
                let result = if reduced.contains(&axis) { Share::Partial(*op) } else { range(axis) };
                way([Some(axis)], [result])
            })
            .collect(),
        Op::ArgReduce { axis: own, .. } => axes.filter(|axis| axis != own).filter_map(same).collect(),
        Op::Cumulate { axis: own, .. } | Op::Sort { axis: own, .. } => {
            let of = |axis: usize| way([Some(axis)], results.iter().map(|_| range(axis)));
            axes.filter(|axis| axis != own).map(of).collect()
        }
        Op::Concat { axis: own } => axes.filter(|axis| axis != own).filter_map(same).collect(),
        Op::Append { axis: own, panel: None, .. } => {
            let of = |axis: usize| way([Some(axis), Some(axis)], [range(axis)]);
            axes.filter(|axis| axis != own).map(of).collect()
        }
        Op::Contract { batch, m, k, rhs: RhsLayout::Plain } if inputs.len() == 2 => {
            contract(inputs, result, (*batch, *m, *k))
        }
        Op::Reshape { .. } => reshape(&inputs[0].shape, &result.shape),
        Op::Transpose { perm } => axes.map(|axis| way([Some(perm[axis])], [range(axis)])).collect(),
        Op::Expand { .. } => {
            let lead = result.rank() - inputs[0].rank();
            axes.filter_map(|axis| {
                let own = axis.checked_sub(lead);
                match own.map(|own| &inputs[0].shape[own]) {
                    Some(size) if *size == result.shape[axis] => Some(way([own], [range(axis)])),
                    // It repeats along the axis.
                    None => Some(way([None], [range(axis)])),
                    Some(size) if *size == Dim::ONE => Some(way([None], [range(axis)])),
                    Some(_) => None,
                }
            })
            .collect()
        }
        Op::Slice { starts, steps, sizes } => {
            let whole = |&axis: &usize| {
                starts[axis] == Dim::ZERO && steps[axis] == 1 && sizes[axis] == inputs[0].shape[axis]
            };
            axes.filter(whole).map(|axis| way([Some(axis)], [range(axis)])).collect()
        }
        Op::Pad { lo, hi } => {
            let whole = |&axis: &usize| lo[axis] == Dim::ZERO && hi[axis] == Dim::ZERO;
            axes.filter(whole).map(|axis| way([Some(axis), None], [range(axis)])).collect()
        }
        Op::Window { first, kernel, .. } => {
            let behind = first + kernel.len();
            let outer = (0..*first).map(|axis| way([Some(axis)], [range(axis)]));
            let inner = behind..inputs[0].rank();
            outer.chain(inner.map(|axis| way([Some(axis)], [range(axis + kernel.len())]))).collect()
        }
        Op::Gather { axis } => {
            let count = inputs[1].rank();
            axes.map(|at| match at {
                at if at < *axis => way([Some(at), None], [range(at)]),
                at if at < axis + count => way([None, Some(at - axis)], [range(at)]),
                at => way([Some(at + 1 - count), None], [range(at)]),
            })
            .chain(by_rows(result).then(|| way([Some(*axis), None], [Share::Partial(ReduceFn::Sum)])))
            .collect()
        }
        Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
            axes.filter(|at| at != axis).filter_map(same).collect()
        }
        Op::GatherNd { batch } => {
            let picked = inputs[1].shape.last().and_then(Dim::as_const).unwrap_or(0) as usize;
            let lead = inputs[1].rank() - 1;
            axes.filter_map(|at| match at {
                at if at < *batch => same_of_two(inputs, result, at),
                at if at < lead => Some(way([None, Some(at)], [range(at)])),
                at => Some(way([Some(batch + picked + at - lead), None], [range(at)])),
            })
            .collect()
        }
        Op::Iota { axis, .. } => axes.filter(|at| at != axis).map(|at| way([], [range(at)])).collect(),
        _ => vec![],
    }
}

/// Whether what is gathered may be a sum over the parts of the axis that indices pick from: each part gives what it has, and otherwise what
/// changes no number that it is added to. Indices are then those of a part, which whoever follows this way must see to.
fn by_rows(result: &TensorType) -> bool {
    (result.dtype.is_float() || result.dtype.is_int()) && crate::graph::exchange::combines(result.dtype)
}

fn same_of_two(inputs: &[&TensorType], result: &TensorType, axis: usize) -> Option<Way> {
    let fits = inputs.iter().all(|ty| ty.shape.get(axis) == Some(&result.shape[axis]));
    fits.then(|| way([Some(axis), Some(axis)], [range(axis)]))
}

/// The axis of an operand that is broadcast; `Err` where only the run shows whether it repeats.
fn aligned(ty: &TensorType, result: &TensorType, axis: usize) -> Result<Option<usize>, ()> {
    let own = (axis + ty.rank()).checked_sub(result.rank());
    match own.map(|own| &ty.shape[own]) {
        None => Ok(None),
        Some(size) if *size == result.shape[axis] && *size != Dim::ONE => Ok(own),
        Some(size) if *size == Dim::ONE => Ok(None),
        Some(_) => Err(()),
    }
}

fn map(_function: MapFn, inputs: &[&TensorType], result: &TensorType, axis: usize) -> Option<Way> {
    let operands: Result<Vec<Option<usize>>, ()> =
        inputs.iter().map(|ty| aligned(ty, result, axis)).collect();
    Some(way(operands.ok()?, [range(axis)]))
}

fn contract(inputs: &[&TensorType], result: &TensorType, (batch, m, k): (usize, usize, usize)) -> Vec<Way> {
    let side = |ty: &TensorType, axis: usize| {
        let size = &ty.shape[axis];
        match *size == result.shape[axis] {
            true => Ok(Some(axis)),
            false if *size == Dim::ONE => Ok(None),
            false => Err(()),
        }
    };
    let of_batch = |axis: usize| {
        let operands = [side(inputs[0], axis).ok()?, side(inputs[1], axis).ok()?];
        Some(way(operands, [range(axis)]))
    };
    let mut ways: Vec<Way> = (0..batch).filter_map(of_batch).collect();
    ways.extend((batch..batch + m).map(|axis| way([Some(axis), None], [range(axis)])));
    ways.push(way([None, Some(batch + k)], [range(batch + m)]));
    let inner =
        (0..k).map(|at| way([Some(batch + m + at), Some(batch + at)], [Share::Partial(ReduceFn::Sum)]));
    ways.extend(inner.filter(|_| crate::graph::exchange::combines(result.dtype)));
    ways
}

/// Axes of equal extent: the first of a run of axes is what the other run's first one is a multiple of.
fn reshape(from: &[Dim], to: &[Dim]) -> Vec<Way> {
    // Of nothing every product is equal.
    if from.iter().chain(to).any(|size| *size == Dim::ZERO) {
        return vec![];
    }
    let axes =
        |shape: &[Dim]| -> Vec<usize> { (0..shape.len()).filter(|&axis| shape[axis] != Dim::ONE).collect() };
    let (own, new) = (axes(from), axes(to));
    let sizes = |shape: &[Dim], axes: &[usize]| -> Vec<Dim> {
        axes.iter().map(|&axis| shape[axis].clone()).collect()
    };
    let (mut at, mut ways) = ((0, 0), vec![]);
    while at.0 < own.len() && at.1 < new.len() {
        let runs =
            (at.0 + 1..=own.len()).flat_map(|end| (at.1 + 1..=new.len()).map(move |other| (end, other)));
        let equal = |&(end, other): &(usize, usize)| {
            product(&sizes(from, &own[at.0..end])) == product(&sizes(to, &new[at.1..other]))
        };
        let Some(end) = runs.into_iter().find(equal) else { break };
        let inner =
            (product(&sizes(from, &own[at.0 + 1..end.0])), product(&sizes(to, &new[at.1 + 1..end.1])));
        if let Some(scales) = scales(&inner.0, &inner.1) {
            ways.push(Way {
                operands: vec![Share::Range { axis: own[at.0], scale: scales.0 }],
                results: vec![Share::Range { axis: new[at.1], scale: scales.1 }],
            });
        }
        at = end;
    }
    ways
}

/// How many steps along an axis are a block, where a step of one has `own` elements and one of the other `new`.
fn scales(own: &Dim, new: &Dim) -> Option<(i64, i64)> {
    if own == new {
        return Some((1, 1));
    }
    let ratio = |large: &Dim, small: &Dim| large.exact_div(small)?.as_const().filter(|&ratio| ratio > 0);
    if let Some(ratio) = ratio(own, new) {
        return Some((1, ratio));
    }
    if let Some(ratio) = ratio(new, own) {
        return Some((ratio, 1));
    }
    let (own, new) = (own.as_const().filter(|&size| size > 0)?, new.as_const().filter(|&size| size > 0)?);
    let (mut a, mut b) = (own, new);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Some((new / a, own / a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|&size| Dim::from(size)).collect()
    }

    fn of(from: &[i64], to: &[i64]) -> Vec<((usize, i64), (usize, i64))> {
        let pair = |share: &Share| match share {
            Share::Range { axis, scale } => (*axis, *scale),
            _ => unreachable!("reshapes have ranges"),
        };
        reshape(&dims(from), &dims(to))
            .iter()
            .map(|way| (pair(&way.operands[0]), pair(&way.results[0])))
            .collect()
    }

    #[test]
    fn heads_follow_columns() {
        assert_eq!(
            of(&[2, 7, 768], &[2, 7, 12, 64]),
            [((0, 1), (0, 1)), ((1, 1), (1, 1)), ((2, 64), (2, 1))]
        );
        assert_eq!(of(&[2, 12, 64], &[2, 768]), [((0, 1), (0, 1)), ((1, 1), (1, 64))]);
        assert_eq!(of(&[1, 6, 1], &[6]), [((1, 1), (0, 1))]);
        // 6 rows of 4 as 4 rows of 6: blocks of 12 elements.
        assert_eq!(of(&[6, 4], &[4, 6]), [((0, 3), (0, 2))]);
        assert_eq!(of(&[0, 3], &[0, 5]), []);
    }
}
