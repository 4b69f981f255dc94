//! Which axis of a result follows which axis of an operand.
//!
//! [`Op::sources`] says where an element of an operand stands for the element of the result at an index. Views, expressions of kernels,
//! regions that are read, orders of axes and the [`ways`] in which ranks share an operation ask it.

use crate::graph::{Dim, Op, RhsLayout, TensorType, dim::product};
use crate::scalar::ReduceFn;

/// The place along an axis of an operand that is read for an element of the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// `offset` and, of each term `(axis, by)`, `by` times the index along this axis of the result. Without terms there is one place.
    Along { offset: Dim, terms: Vec<(usize, i64)> },
    /// The index along an axis of the result, or 0 if the operand has one element there: only the run knows.
    Repeated(usize),
    /// What another operand says.
    Picked,
    /// Every place, or one that follows from the whole index.
    All,
}

impl Source {
    /// The index along an axis.
    pub fn axis(axis: usize) -> Source {
        Source::Along { offset: Dim::ZERO, terms: vec![(axis, 1)] }
    }

    /// The first place for every index.
    pub fn first() -> Source {
        Source::Along { offset: Dim::ZERO, terms: vec![] }
    }

    /// The axis of the result whose index it is.
    pub fn same(&self) -> Option<usize> {
        match self {
            Source::Along { offset, terms } if *offset == Dim::ZERO => match terms[..] {
                [(axis, 1)] => Some(axis),
                _ => None,
            },
            _ => None,
        }
    }

    /// Axes of the result on whose index the place depends, in order.
    pub fn axes(&self) -> Vec<usize> {
        match self {
            Source::Along { terms, .. } => terms.iter().map(|term| term.0).collect(),
            Source::Repeated(axis) => vec![*axis],
            Source::Picked | Source::All => vec![],
        }
    }
}

/// The axes of an operand with borders of these sizes before it.
pub(super) fn shifted(lo: &[Dim]) -> Vec<Source> {
    let source =
        |(axis, before): (usize, &Dim)| Source::Along { offset: -before.clone(), terms: vec![(axis, 1)] };
    lo.iter().enumerate().map(source).collect()
}

/// The axes of an operand that is broadcast, the last ones of the result. One of a single element has its first, as wide as the result is.
pub(super) fn broadcast(shape: &[Dim], result: &[Dim]) -> Vec<Source> {
    let lead = result.len().saturating_sub(shape.len());
    let of = |(at, size): (usize, &Dim)| match result.get(lead + at) {
        _ if *size == Dim::ONE => Source::first(),
        Some(wanted) if size == wanted => Source::axis(lead + at),
        _ if size.is_const() => Source::axis(lead + at),
        _ => Source::Repeated(lead + at),
    };
    shape.iter().enumerate().map(of).collect()
}

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

/// The ways of an operation, other than to compute all of it.
pub fn ways(op: &Op, inputs: &[&TensorType], results: &[&TensorType]) -> Vec<Way> {
    let Some(result) = results.first() else { return vec![] };
    let axes = 0..result.rank();
    let sources: Vec<Vec<Source>> =
        (0..inputs.len()).map(|operand| op.sources(operand, inputs, result)).collect();
    // The axis of an operand with the same extent, if it has one; `Err` where it is read otherwise along the axis of the result.
    let follows = |ty: &TensorType, sources: &[Source], at: usize| {
        let mut found = None;
        for (axis, source) in sources.iter().enumerate().filter(|(_, source)| source.axes().contains(&at)) {
            match source.same() {
                Some(_) if ty.shape[axis] == result.shape[at] => found = Some(axis),
                _ => return Err(()),
            }
        }
        Ok(found)
    };
    let along = |at: usize| {
        let operands = inputs.iter().zip(&sources).map(|(ty, sources)| follows(ty, sources, at));
        let operands: Vec<Option<usize>> = operands.collect::<Result<_, ()>>().ok()?;
        // A broadcast repeats along axes that its operand does not have.
        let is_followed = operands.iter().any(Option::is_some) || matches!(op, Op::Expand { .. });
        is_followed.then(|| way(operands, results.iter().map(|_| range(at))))
    };
    match op {
        Op::Reshape { .. } => reshape(&inputs[0].shape, &result.shape),
        Op::Iota { axis, .. } => axes.filter(|at| at != axis).map(|at| way([], [range(at)])).collect(),
        Op::Reduce { op, axes: reduced } => axes
            .filter_map(|axis| match reduced.contains(&axis) {
                true => Some(way([Some(axis)], [Share::Partial(*op)])),
                false => along(axis),
            })
            .collect(),
        Op::Gather { axis } => axes
            .filter_map(along)
            .chain(by_rows(result).then(|| way([Some(*axis), None], [Share::Partial(ReduceFn::Sum)])))
            .collect(),
        Op::GatherElements { axis } => axes.filter(|at| at != axis).filter_map(along).collect(),
        Op::Contract { batch, m, k, rhs: RhsLayout::Plain } if inputs.len() == 2 => {
            let inner = (0..*k)
                .map(|at| way([Some(batch + m + at), Some(batch + at)], [Share::Partial(ReduceFn::Sum)]));
            let sums = inner.filter(|_| crate::graph::exchange::combines(result.dtype));
            axes.filter_map(along).chain(sums).collect()
        }
        Op::Contract { .. } => vec![],
        _ => axes.filter_map(along).collect(),
    }
}

/// Whether what is gathered may be a sum over the parts of the axis that indices pick from: each part gives what it has, and otherwise what
/// changes no number that it is added to. Indices are then those of a part, which whoever follows this way must see to.
fn by_rows(result: &TensorType) -> bool {
    (result.dtype.is_float() || result.dtype.is_int()) && crate::graph::exchange::combines(result.dtype)
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

    /// An axis of one element has its first, whether it is repeated or not; where only the run knows the size, that is said.
    #[test]
    fn one_element_is_the_first() {
        let open = Dim::sym(crate::graph::Sym::from_u32(0));
        let shape = [dims(&[1, 3, 1]), vec![open.clone(), open.clone()]].concat();
        let result = [dims(&[7, 4, 3, 1]), vec![open.clone(), Dim::from(2i64)]].concat();
        let wanted =
            [Source::first(), Source::axis(2), Source::first(), Source::axis(4), Source::Repeated(5)];
        assert_eq!(broadcast(&shape, &result), wanted);
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
