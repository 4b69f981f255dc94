//! Taps of windows that read nothing but padding.
//!
//! A window with wide gaps between its taps reaches far over the border: where an image is not larger than the gaps, all
//! taps but the middle ones read zeros only. So does a window over an axis of few elements, as a video has images. Which do is told
//! by the sizes of a run, for each tile of rows at once; products with zeros are left out.

use std::collections::HashMap;

use super::{Job, Tile};
use crate::graph::{Constant, Def, Dim, Graph, Op, Tensor, ValueId};
use crate::loops::lower::Lowering;
use crate::loops::nest::Nest;
use crate::loops::{Expr, Index, Stmt, Var};
use crate::scalar::CompareFn;

/// A window over an axis with gaps of 1 has taps left out from one of so many that read padding.
const SHARE: i64 = 25;

/// Least extent of the last row axis whose lines are tiles of their own for that: sums of fewer rows wait for each other.
const LINE: i64 = 7;

/// An axis of a window, over an axis padded with zeros.
pub(super) struct Tap {
    /// Number among the row axes, and among the inner axes.
    row: usize,
    inner: usize,
    stride: usize,
    dilation: usize,
    /// Zeros before the image, and its extent.
    before: Dim,
    extent: Dim,
}

impl Lowering<'_> {
    /// The axes of the window that a left-hand side is of which many taps read padding, where products with that are 0: those with
    /// gaps between the taps, and with `short_too` short ones along which no tile goes.
    pub(super) fn taps(
        &self,
        lhs: ValueId,
        (batch, rows): (usize, usize),
        rhs: ValueId,
        short_too: bool,
    ) -> Vec<Tap> {
        let graph = self.graph;
        let node = |value| graph.producer(value).map(|node| &graph.nodes[node]);
        let Some((Op::Window { first, kernel, strides, dilations }, [padded])) =
            node(lhs).map(|node| (&node.op, &node.inputs[..]))
        else {
            return vec![];
        };
        let Some((Op::Pad { lo, hi }, &[x, fill])) = node(*padded).map(|node| (&node.op, &node.inputs[..]))
        else {
            return vec![];
        };
        if !graph.constant_data(fill).is_some_and(is_zero) || !made_of(graph, rhs, &is_finite) {
            return vec![];
        }
        let line = rows.checked_sub(1).and_then(|last| graph.ty(lhs).shape[batch + last].as_const());
        let tiles_lines = line.is_some_and(|extent| extent >= LINE);
        let taps = (0..kernel.len()).filter_map(|axis| {
            let padded = first + axis;
            let row = padded.checked_sub(batch).filter(|row| *row < rows)?;
            let inner = (padded + kernel.len()).checked_sub(batch + rows)?;
            let (before, after) = (&lo[padded], &hi[padded]);
            let positions = &graph.ty(lhs).shape[padded];
            let all = positions.clone() * Dim::from(kernel[axis]);
            let of_padding = (before.clone() + after.clone()) * Dim::from(SHARE);
            let short = row + 1 < rows && of_padding.as_const() >= all.as_const() && all.is_const();
            let wide = kernel[axis] > 1 && (dilations[axis] > 1 || short_too && short && tiles_lines);
            (wide && (before, after) != (&Dim::ZERO, &Dim::ZERO)).then(|| Tap {
                row,
                inner,
                stride: strides[axis],
                dilation: dilations[axis],
                before: before.clone(),
                extent: graph.ty(x).shape[padded].clone(),
            })
        });
        taps.collect()
    }
}

fn is_zero(tensor: &Tensor) -> bool {
    match tensor.to_f64s() {
        Some(all) => all.iter().all(|value| *value == 0.0),
        None => tensor.data.iter().all(|byte| *byte == 0),
    }
}

fn is_finite(tensor: &Tensor) -> bool {
    match tensor.to_f64s() {
        Some(all) => all.iter().all(|value| value.is_finite()),
        None => tensor.dtype.is_int(),
    }
}

/// Whether a value is a constant made of tensors for which `holds`, by moving their elements.
pub(super) fn made_of(graph: &Graph, value: ValueId, holds: &dyn Fn(&Tensor) -> bool) -> bool {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        match &graph.values[value].def {
            Def::Const(Constant::Data(tensor)) => {
                if !holds(tensor) {
                    return false;
                }
            }
            Def::Const(Constant::Deferred { op, inputs }) if !op.computes() => pending.extend(inputs),
            _ => return false,
        }
    }
    true
}

impl Job {
    /// For the loops of a nest over the inner axes: what holds where a step of the loop reads elements that are no padding.
    /// `inner` has the variables of the axes.
    pub(super) fn conditions(&self, tile: &Tile, nest: &Nest, inner: &[Index]) -> HashMap<Var, Vec<Expr>> {
        let mut conditions = HashMap::new();
        let (Some(first), Some(last)) = (tile.rows.first(), tile.rows.last()) else { return conditions };
        // The rows of a tile follow each other along the last axis only where the others have loops.
        if self.tile.row_loops + 1 < self.rows && tile.rows.len() > 1 {
            return conditions;
        }
        for tap in &self.taps {
            // Of axes that became one loop there is one variable.
            let own = nest.axes.iter().find(|axis| inner[tap.inner] == Index::var(axis.var));
            let Some(axis) = own.filter(|axis| axis.extent == self.inner[tap.inner]) else { continue };
            let position = |row: &[Index]| {
                let step = Index::var(axis.var).scale(&Dim::from(tap.dilation));
                Expr::Index(row[tap.row].scale(&Dim::from(tap.stride)).add(&step))
            };
            let from = Expr::Index(Index::dim(tap.before.clone()));
            let to = Expr::Index(Index::dim(tap.before.clone() + tap.extent.clone()));
            let after_start = Expr::compare(CompareFn::Ge, position(last), from);
            let before_end = Expr::compare(CompareFn::Lt, position(first), to);
            conditions.insert(axis.var, vec![after_start, before_end]);
        }
        conditions
    }
}

/// The loops of a nest, each body where its conditions hold.
pub(super) fn loops(nest: Nest, conditions: &HashMap<Var, Vec<Expr>>) -> Vec<Stmt> {
    let mut body = nest.body;
    for axis in nest.axes.into_iter().rev() {
        for condition in conditions.get(&axis.var).into_iter().flatten() {
            body = vec![Stmt::If { condition: condition.clone(), then: body, otherwise: vec![] }];
        }
        body = Nest { axes: vec![axis], body }.into_stmts();
    }
    body
}
