//! Taps of windows that read nothing but padding.
//!
//! A window with wide gaps between its taps reaches far over the border: where an image is not larger than the gaps, all
//! taps but the middle ones read zeros only. So does a window over an axis of few elements, as a video has images. The sizes of a run
//! determine which taps do, for each tile of rows at once; products with zeros are left out.

use std::collections::HashMap;

use super::{Job, Tile};
use crate::lower::{Lowering, internal};
use crate::nest::Nest;
use crate::{Expr, Index, Stmt, Var};
use onnxc_ir::error::Result;
use onnxc_ir::graph::taps::{PaddedWindows, Taps};
use onnxc_ir::graph::{Dim, ValueId};
use onnxc_ir::scalar::CompareFn;

/// A window over an axis with gaps of 1 has taps left out if at least one in this number reads padding.
const SHARE: i64 = 25;

/// Least extent of the last row axis whose lines are tiles of their own for that: sums of fewer rows wait for each other.
const LINE: i64 = 7;

/// An axis of a window, over an axis padded with zeros.
pub(super) struct Tap {
    /// Number among the row axes, and among the inner axes.
    row: usize,
    inner: usize,
    taps: Taps,
}

/// The axes of a window along which steps are left out that read padding.
#[derive(Default)]
pub(super) struct LeftOut {
    axes: Vec<Tap>,
    /// Whether no padding is read: it has no memory.
    pub is_implicit: bool,
}

impl Lowering<'_> {
    /// The axes along which many taps of a left-hand side's window read padding, where products with that are 0: those with gaps between
    /// the taps, and with `short_too` short ones along which no tile goes.
    pub(super) fn left_out(
        &self,
        lhs: ValueId,
        (batch, rows): (usize, usize),
        rhs: ValueId,
        short_too: bool,
    ) -> Result<LeftOut> {
        let graph = self.graph;
        let Some(PaddedWindows { taps, is_implicit, .. }) = PaddedWindows::of(graph, lhs) else {
            return Ok(LeftOut::default());
        };
        if !graph.is_finite(rhs) {
            return match is_implicit {
                true => internal("products of zeros that have no memory with what may be infinite"),
                false => Ok(LeftOut::default()),
            };
        }
        let line = rows.checked_sub(1).and_then(|last| graph.ty(lhs).shape[batch + last].as_const());
        let tiles_lines = line.is_some_and(|extent| extent >= LINE);
        let axes = taps.into_iter().filter_map(|taps| {
            let row = taps.axis.checked_sub(batch).filter(|row| *row < rows)?;
            let inner = taps.tap_axis.checked_sub(batch + rows)?;
            let all = taps.positions.clone() * Dim::from(taps.kernel);
            let of_padding = (taps.before.clone() + taps.after.clone()) * Dim::from(SHARE);
            let short = row + 1 < rows && of_padding.as_const() >= all.as_const() && all.is_const();
            let wide = taps.kernel > 1 && (taps.dilation > 1 || short_too && short && tiles_lines);
            (wide && taps.is_padded()).then_some(Tap { row, inner, taps })
        });
        Ok(LeftOut { axes: axes.collect(), is_implicit })
    }
}

impl LeftOut {
    pub(super) fn is_empty(&self) -> bool {
        self.axes.is_empty()
    }

    /// Of padding without memory, the first row axis along which there is some.
    pub(super) fn first_axis(&self) -> Option<usize> {
        self.axes.iter().map(|tap| tap.row).min().filter(|_| self.is_implicit)
    }

    /// Where parts of the row axes from `first` on end, the start before them: in a part the same taps read the image.
    pub(super) fn ends(&self, first: usize, axes: &[Dim]) -> Result<Vec<Vec<Dim>>> {
        let ends = axes.iter().enumerate().map(|(at, extent)| {
            let own = self.axes.iter().find(|tap| tap.row == first + at);
            let breaks = own.map_or(Some(vec![]), |tap| tap.taps.breaks());
            breaks.map(|breaks| [&[Dim::ZERO], &breaks[..], std::slice::from_ref(extent)].concat())
        });
        match ends.collect() {
            Some(ends) => Ok(ends),
            None => internal("taps that read an image in an order that only a run knows"),
        }
    }
}

impl Job {
    /// For the loops of a nest over the inner axes: what holds where a step of the loop reads elements other than padding.
    /// `inner` has the variables of the axes.
    pub(super) fn conditions(
        &self,
        tile: &Tile,
        nest: &Nest,
        inner: &[Index],
    ) -> Result<HashMap<Var, Vec<Expr>>> {
        let mut conditions = HashMap::new();
        let (Some(first), Some(last)) = (tile.rows.first(), tile.rows.last()) else { return Ok(conditions) };
        let is_implicit = self.left_out.is_implicit;
        let alike = is_implicit || self.tile.row_loops + 1 == self.rows || tile.rows.len() == 1;
        for Tap { row, inner: axis, taps } in &self.left_out.axes {
            // Of axes that became one loop there is one variable. The rows of a tile are alike, or follow each other along the last axis
            // where the others have loops.
            let own = nest.axes.iter().find(|own| inner[*axis] == Index::var(own.var));
            let Some(axis) = own.filter(|own| alike && own.extent == self.inner[*axis]) else {
                if is_implicit {
                    return internal("steps that read padding without memory have no loop of their own");
                }
                continue;
            };
            let position = |at: &[Index]| {
                let step = Index::var(axis.var).scale(&Dim::from(taps.dilation));
                Expr::Index(at[*row].scale(&Dim::from(taps.stride)).add(&step))
            };
            let from = Expr::Index(Index::dim(taps.before.clone()));
            let to = Expr::Index(Index::dim(taps.before.clone() + taps.extent.clone()));
            let after_start = Expr::compare(CompareFn::Ge, position(last), from);
            let before_end = Expr::compare(CompareFn::Lt, position(first), to);
            conditions.insert(axis.var, vec![after_start, before_end]);
        }
        Ok(conditions)
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
