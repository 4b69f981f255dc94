//! Einsum: sums of products in index notation, operands taken left to right.

use super::AttrDefault::Required;
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, req, var};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Op, Requirement, RhsLayout, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

pub const ROWS: &[OpDef] = &[EINSUM, EINSUM.since(28).types(&[("T", NUMERIC)])];

const EINSUM: OpDef = op("Einsum", 12, einsum)
    .inputs(&[var("Inputs", "T")])
    .outputs(&[req("Output", "T")])
    .attributes(&[attr("equation", Required(AttrKind::Str))])
    .types(&[("T", NUMERIC_NO_BF16)])
    .doc("sum of products in index notation");

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// An index: a letter, or an axis of the ellipsis counted from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Index {
    Ellipsis(usize),
    Letter(char),
}

impl std::fmt::Display for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Index::Ellipsis(_) => f.write_str("`...`"),
            Index::Letter(letter) => write!(f, "the index `{letter}`"),
        }
    }
}

/// A tensor whose axes carry distinct indices.
struct Term {
    value: ValueId,
    axes: Vec<Index>,
}

fn einsum(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let equation: String = cx.str("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let inputs = cx.all_inputs()?;
    let b = &mut *cx.b;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != inputs.len() {
        return malformed(format!("equation `{equation}` for {} operands", inputs.len()));
    }
    let mut raw = Vec::with_capacity(inputs.len());
    for (text, &value) in terms.iter().zip(&inputs) {
        raw.push((value, term_indices(text, b.rank(value), &equation)?));
    }
    let widest = raw.iter().flat_map(|(_, axes)| axes).filter_map(|index| match index {
        Index::Ellipsis(from_end) => Some(from_end + 1),
        Index::Letter(_) => None,
    });
    let ellipsis: Vec<Index> = (0..widest.max().unwrap_or(0)).rev().map(Index::Ellipsis).collect();
    let output = match right {
        Some(text) => output_indices(text, &ellipsis, &equation)?,
        None => implicit_output(&raw, &ellipsis),
    };
    let all = |index: &Index| raw.iter().any(|(_, axes)| axes.contains(index));
    if let Some(unknown) = output.iter().find(|index| !all(index)) {
        return malformed(format!("{unknown} of the result of `{equation}` is in no operand"));
    }
    let mut operands = Vec::with_capacity(raw.len());
    for (value, axes) in raw {
        operands.push(diagonal(b, value, axes)?);
    }
    Ok(vec![sum_of_products(b, operands, &output)?])
}

/// Indices of one operand's axes.
fn term_indices(text: &str, rank: usize, equation: &str) -> Result<Vec<Index>> {
    let letters = |part: &str| -> Result<Vec<Index>> {
        match part.chars().find(|c| !c.is_ascii_alphabetic()) {
            Some(other) => malformed(format!("`{other}` in equation `{equation}`")),
            None => Ok(part.chars().map(Index::Letter).collect()),
        }
    };
    let axes = match text.split_once("...") {
        None => letters(text)?,
        Some((head, tail)) => {
            let (mut axes, tail) = (letters(head)?, letters(tail)?);
            let Some(count) = rank.checked_sub(axes.len() + tail.len()) else {
                return malformed(format!("term `{text}` of `{equation}` for an operand of rank {rank}"));
            };
            axes.extend((0..count).rev().map(Index::Ellipsis));
            axes.extend(tail);
            axes
        }
    };
    match axes.len() == rank {
        true => Ok(axes),
        false => malformed(format!("term `{text}` of `{equation}` for an operand of rank {rank}")),
    }
}

fn output_indices(text: &str, ellipsis: &[Index], equation: &str) -> Result<Vec<Index>> {
    let letters = text.chars().filter(|&c| c != '.').count();
    let rank = letters + if text.contains("...") { ellipsis.len() } else { 0 };
    let axes = term_indices(text, rank, equation)?;
    match (1..axes.len()).any(|at| axes[..at].contains(&axes[at])) {
        true => malformed(format!("the result of `{equation}` repeats an index")),
        false => Ok(axes),
    }
}

/// Without an arrow: the ellipsis, then every letter that occurs once, in alphabetical order.
fn implicit_output(raw: &[(ValueId, Vec<Index>)], ellipsis: &[Index]) -> Vec<Index> {
    let mut letters: Vec<Index> = raw
        .iter()
        .flat_map(|(_, axes)| axes)
        .filter(|index| matches!(index, Index::Letter(_)))
        .copied()
        .collect();
    letters.sort_unstable();
    let once = letters.chunk_by(|a, b| a == b).filter(|run| run.len() == 1).map(|run| run[0]);
    ellipsis.iter().copied().chain(once).collect()
}

/// Takes the diagonal over axes that share an index.
fn diagonal(b: &mut Builder<'_>, value: ValueId, axes: Vec<Index>) -> Result<Term> {
    let (mut value, mut axes) = (value, axes);
    while let Some(second) = (1..axes.len()).find(|&at| axes[..at].contains(&axes[at])) {
        let first = axes.iter().position(|index| *index == axes[second]).unwrap_or(0);
        let shape = b.shape(value);
        if shape[first] != shape[second] {
            let requirement = Requirement::equal(shape[first].clone(), shape[second].clone());
            let name = format!("dimension {first} of an operand");
            b.require(requirement.says(name, format!("dimension {second}, with which it shares an index")))?;
            let mut equal = shape.clone();
            equal[second] = shape[first].clone();
            value = b.reshape(value, equal)?;
        }
        let mut picks = shape;
        picks[second] = Dim::ONE;
        let picks = b.iota(picks, first)?;
        value = b.emit1(Op::GatherElements { axis: second }, &[value, picks])?;
        value = b.squeeze(value, &[second])?;
        axes.remove(second);
    }
    Ok(Term { value, axes })
}

fn sum_of_products(b: &mut Builder<'_>, operands: Vec<Term>, output: &[Index]) -> Result<ValueId> {
    let mut rest: std::collections::VecDeque<Term> = operands.into();
    let Some(mut result) = rest.pop_front() else { return malformed("Einsum of nothing".to_string()) };
    result = sum_unused(b, result, |index| {
        output.contains(index) || rest.iter().any(|term| term.axes.contains(index))
    })?;
    while let Some(next) = rest.pop_front() {
        let needed =
            |index: &Index| output.contains(index) || rest.iter().any(|term| term.axes.contains(index));
        let next = {
            let partner = &result.axes;
            sum_unused(b, next, |index| needed(index) || partner.contains(index))?
        };
        result = multiply(b, result, next, &needed)?;
    }
    let perm: Option<Vec<usize>> =
        output.iter().map(|index| result.axes.iter().position(|axis| axis == index)).collect();
    match perm {
        Some(perm) if perm.len() == result.axes.len() => b.transpose(result.value, &perm),
        _ => malformed(format!("result {output:?} of factors {:?}", result.axes)),
    }
}

/// Sums over the axes that nothing else needs.
fn sum_unused(b: &mut Builder<'_>, term: Term, needed: impl Fn(&Index) -> bool) -> Result<Term> {
    let unused: Vec<usize> = (0..term.axes.len()).filter(|&at| !needed(&term.axes[at])).collect();
    if unused.is_empty() {
        return Ok(term);
    }
    let sum = b.reduce(ReduceFn::Sum, term.value, &unused)?;
    let value = b.squeeze(sum, &unused)?;
    Ok(Term { value, axes: term.axes.into_iter().filter(|index| needed(index)).collect() })
}

/// The product of two terms, summed over the indices that are in both and not needed any more.
fn multiply(b: &mut Builder<'_>, lhs: Term, rhs: Term, needed: &dyn Fn(&Index) -> bool) -> Result<Term> {
    let shared = |index: &&Index| rhs.axes.contains(index);
    let batch: Vec<Index> = lhs.axes.iter().filter(shared).filter(|index| needed(index)).copied().collect();
    let inner: Vec<Index> = lhs.axes.iter().filter(shared).filter(|index| !needed(index)).copied().collect();
    let rows: Vec<Index> = lhs.axes.iter().filter(|index| !rhs.axes.contains(index)).copied().collect();
    let columns: Vec<Index> = rhs.axes.iter().filter(|index| !lhs.axes.contains(index)).copied().collect();
    let (lhs, rhs) = agree(b, lhs, rhs, &inner)?;
    let axes: Vec<Index> = [batch.as_slice(), &rows, &columns].concat();
    if inner.is_empty() {
        let left = arranged(b, &lhs, &[batch.as_slice(), &rows].concat())?;
        let left = trailing_ones(b, left, columns.len())?;
        let right = arranged(b, &rhs, &[batch.as_slice(), &columns].concat())?;
        let right = b.unsqueeze(right, &vec![batch.len(); rows.len()])?;
        return Ok(Term { value: b.binary(BinaryFn::Mul, left, right)?, axes });
    }
    let left = arranged(b, &lhs, &[batch.as_slice(), &rows, &inner].concat())?;
    let right = arranged(b, &rhs, &[batch.as_slice(), &inner, &columns].concat())?;
    let (left, m) =
        if rows.is_empty() { (b.unsqueeze(left, &[batch.len()])?, 1) } else { (left, rows.len()) };
    let mut shape = b.shape(right);
    let column_dims = shape.split_off(batch.len() + inner.len());
    shape.push(product(&column_dims));
    let right = b.reshape(right, shape)?;
    let op = Op::Contract { batch: batch.len(), m, k: inner.len(), rhs: RhsLayout::Plain };
    let value = b.emit1(op, &[left, right])?;
    // Sums of products of bytes are wider; those of the model wrap.
    let value = b.cast(value, b.dtype(left))?;
    let mut shape = b.shape(value);
    shape.pop();
    shape.truncate(batch.len() + rows.len());
    shape.extend(column_dims);
    Ok(Term { value: b.reshape(value, shape)?, axes })
}

/// Repeats size-1 axes of one operand where the other is longer, for indices that are summed over.
fn agree(b: &mut Builder<'_>, lhs: Term, rhs: Term, inner: &[Index]) -> Result<(Term, Term)> {
    let (mut left, mut right) = (b.shape(lhs.value), b.shape(rhs.value));
    for index in inner {
        let at = |term: &Term| term.axes.iter().position(|axis| axis == index).unwrap_or(0);
        let (i, j) = (at(&lhs), at(&rhs));
        if left[i] == Dim::ONE {
            left[i] = right[j].clone();
        } else if right[j] == Dim::ONE {
            right[j] = left[i].clone();
        }
    }
    let value = b.expand(lhs.value, left)?;
    let lhs = Term { value, axes: lhs.axes };
    let value = b.expand(rhs.value, right)?;
    Ok((lhs, Term { value, axes: rhs.axes }))
}

/// The term with its axes in the order of `order`, a permutation of them.
fn arranged(b: &mut Builder<'_>, term: &Term, order: &[Index]) -> Result<ValueId> {
    let perm: Vec<usize> =
        order.iter().filter_map(|index| term.axes.iter().position(|axis| axis == index)).collect();
    b.transpose(term.value, &perm)
}

fn trailing_ones(b: &mut Builder<'_>, x: ValueId, count: usize) -> Result<ValueId> {
    let mut shape = b.shape(x);
    shape.resize(shape.len() + count, Dim::ONE);
    b.reshape(x, shape)
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    /// Also where nothing is left that a reshape could miss.
    #[test]
    fn axes_of_one_index_have_one_size() {
        let diagonal = |shape: &[usize]| {
            let elements = vec![1f32; shape.iter().product()];
            Case::new("Einsum", 12).symbolic(&["m", "n", "k"], shape, &elements).str("equation", "iij->ij")
        };
        diagonal(&[2, 2, 0]).gives(0, &[2, 0], &[]);
        for wrong in [[2, 3, 1], [2, 3, 0], [0, 3, 1]] {
            let error = diagonal(&wrong).run().unwrap_err();
            assert!(error.message.contains("shares an index"), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn products_traces_and_ellipsis() {
        let case = Case::new("Einsum", 12).ramp(&[2, 3], 1).ramp(&[3, 2], 2).str("equation", "ij,jk->ik");
        case.gives(0, &[2, 2], &[0.875, 0.5625, 0.8125, 0.5625]);
        let case = Case::new("Einsum", 12).ramp(&[3, 2], 1).ramp(&[2, 3], 2).str("equation", "jk,ij");
        case.gives(0, &[2, 2], &[0.6875, 0.875, 0.5, 0.75]);
        let case = Case::new("Einsum", 12).ramp(&[3, 3], 1).str("equation", "ii->i");
        case.gives(0, &[3], &[-0.5, 1.0, -0.25]);
        let case = Case::new("Einsum", 12).ramp(&[3, 3], 1).str("equation", "ii");
        case.gives(0, &[], &[0.25]);
        let case = Case::new("Einsum", 12)
            .ramp(&[2, 1, 2, 2], 1)
            .ramp(&[2, 2, 2], 2)
            .str("equation", "...ij,...jk->...ik");
        case.gives(
            0,
            &[2, 2, 2, 2],
            &[
                1.125, 0.375, -0.6875, -0.1875, 0.1875, -1.9375, -0.0625, 1.125, 0.25, -0.75, 0.5, 0.75,
                -1.0, 0.75, 0.8125, -1.6875,
            ],
        );
        let case = Case::new("Einsum", 12).ramp(&[2], 1).ramp(&[3], 2).str("equation", "i,j->ij");
        case.gives(0, &[2, 3], &[-0.125, 0.375, -0.5, 0.3125, -0.9375, 1.25]);
        let case = Case::new("Einsum", 12)
            .ramp(&[1, 2, 2], 1)
            .ramp(&[2, 3], 2)
            .ramp(&[3, 2], 3)
            .str("equation", "abc,cd,de->abe");
        case.gives(0, &[1, 2, 2], &[0.640625, -1.203125, -0.421875, 0.8125]);
        let case = Case::new("Einsum", 12).ramp(&[2, 2, 2], 1).ramp(&[2, 2], 2).str("equation", "bij,bj->bi");
        case.gives(0, &[2, 2], &[-1.0625, 0.625, 1.0, -1.0]);
        let case = Case::new("Einsum", 12).ramp(&[2, 1], 1).ramp(&[2, 2], 2).str("equation", "ab,cd->dbca");
        case.gives(0, &[2, 1, 2, 2], &[-0.125, 0.3125, -0.5, 1.25, 0.375, -0.9375, 0.0, 0.0]);
        let case = Case::new("Einsum", 12).ramp(&[2, 2], 1).ramp(&[2, 2], 2).str("equation", "ij,ij->");
        case.gives(0, &[], &[-0.8125]);
    }
}
