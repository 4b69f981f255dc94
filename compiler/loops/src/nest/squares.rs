//! Transposing nests by squares: each is read along its rows, turned in the kernel's frame, and used along its columns.
//!
//! A nest that reads a transposed tensor has one access that strides along the innermost axis, so its loops have no vectors and every
//! element costs a cache line; where the stride is a power of two these lines fall into one set of the cache and are gone before
//! the next element of them is read. A square of a few lines is read whole, in vectors, and then lies in the first-level cache.

use super::{Axis, Nest, depends, fills_vectors, rename_lets, split_vector, vector_lanes};
use super::{Varying, collect_bound};
use crate::{Access, Buf, Buffer, Expr, Index, Kernel, LoopKind, Stmt, Term, Var, visit};
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::CompareFn;
use onnxc_machine::target::{Core, Goal};
use onnxc_tuning::map as tuning;
use std::collections::HashSet;

/// Transposed operands of one nest that have squares; each takes two in the frame.
const MOST_OPERANDS: usize = 4;

/// Along a piece of fewer elements the original loops run.
const LEAST_PIECE: usize = 4;

/// A transposed operand: where its elements are loaded from, and its squares.
struct Operand {
    buf: Buf,
    index: Index,
    /// As in memory, and turned.
    square: [Buf; 2],
}

/// Part of an axis: `blocks` blocks of a constant length from `start` on, or all of the rest, whose length may be open.
#[derive(Clone)]
struct Piece {
    blocks: Option<(Var, Dim)>,
    start: Index,
    length: Dim,
}

impl Nest {
    /// The nest as statements that turn squares; `None` where it transposes nothing, or gains nothing.
    pub(super) fn in_squares(&self, kernel: &mut Kernel, core: &Core, goal: Goal) -> Option<Vec<Stmt>> {
        let (inner, outer) = self.axes.split_last()?;
        if goal != Goal::Speed || outer.is_empty() || inner.kind != LoopKind::Serial {
            return None;
        }
        let strided = self.transposed_loads(kernel, inner.var)?;
        let along = |axis: &Axis| {
            let runs = |index: &Index| index.coefficient(axis.var) == Some(Dim::ONE);
            matches!(axis.kind, LoopKind::Serial | LoopKind::Parallel)
                && strided.iter().all(|(_, index)| runs(index))
        };
        let at = outer.iter().position(along)?;
        let widest = strided.iter().map(|(buf, _)| kernel.buffers[*buf].dtype.size()).max()?;
        let side = tuning::square(widest, outer[at].extent.as_const(), inner.extent.as_const())?;
        let reads_vectors = strided.iter().all(|(buf, _)| core.lanes_of(kernel.buffers[*buf].dtype) > 1);
        if !reads_vectors || !self.stays_in_any_order(&[outer[at].var, inner.var]) {
            return None;
        }
        let operands: Vec<Operand> = strided
            .into_iter()
            .map(|(buf, index)| {
                let dtype = kernel.buffers[buf].dtype;
                let square = ["rows", "columns"].map(|name| {
                    let len = Dim::from(side * side);
                    kernel.buffers.push(Buffer { name: name.into(), dtype, len, access: Access::Frame })
                });
                Operand { buf, index, square }
            })
            .collect();
        let squares = Squares { nest: self, operands, side, at, core, goal };
        Some(squares.loops(kernel))
    }

    /// The loads that stride along `inner`, where they alone keep the body from running in vectors.
    fn transposed_loads(&self, kernel: &Kernel, inner: Var) -> Option<Vec<(Buf, Index)>> {
        let mut bound = Vec::new();
        collect_bound(&self.body, &mut bound);
        let free = |index: &Index| {
            !visit::any_term(index, &|term| matches!(term, Term::Var(var) if bound.contains(var)))
        };
        let stored = visit::stored(&self.body);
        let varying = Varying { vars: HashSet::from([inner]), stored: HashSet::new() };
        let (mut found, mut fits) = (Vec::new(), true);
        for stmt in &self.body {
            let value = match stmt {
                Stmt::Let { value, .. } => value,
                Stmt::Store { index, value, .. } => {
                    fits &= index.coefficient(inner) == Some(Dim::ONE) && free(index);
                    value
                }
                _ => return None,
            };
            fits &= loads_of(value, false, &mut |load, chosen| {
                let Expr::Load { buf, index } = load else { return !depends(load, &varying) };
                match index.coefficient(inner) {
                    Some(step) if step == Dim::ZERO || step == Dim::ONE => true,
                    // What is not chosen need not exist.
                    Some(_) if !chosen && free(index) && !stored.contains(buf) => {
                        if !found.contains(&(*buf, index.clone())) {
                            found.push((*buf, index.clone()));
                        }
                        kernel.buffers[*buf].dtype != DType::Bool
                    }
                    _ => false,
                }
            });
        }
        (fits && !found.is_empty() && found.len() <= MOST_OPERANDS).then_some(found)
    }

    /// Whether the iterations of some loops may run in any order: each stores elements of its own, and reads none that another stores.
    fn stays_in_any_order(&self, vars: &[Var]) -> bool {
        let stored = visit::stored(&self.body);
        let mut fits = true;
        visit::exprs(&self.body, &mut |expr| {
            fits &= expr.reads().is_none_or(|reads| !stored.contains(&reads.buf));
        });
        fits && self.body.iter().all(|stmt| match stmt {
            Stmt::Store { index, .. } => {
                vars.iter().all(|&var| index.coefficient(var).is_some_and(|step| step != Dim::ZERO))
            }
            _ => true,
        })
    }
}

/// Calls `visit` for every read of an expression, and with whether a condition chooses it, until one gives false.
fn loads_of(expr: &Expr, chosen: bool, visit: &mut dyn FnMut(&Expr, bool) -> bool) -> bool {
    if expr.reads().is_some() {
        return visit(expr, chosen);
    }
    let chosen = chosen || matches!(expr, Expr::Select { .. });
    expr.operands().into_iter().all(|operand| loads_of(operand, chosen, visit))
}

struct Squares<'a> {
    nest: &'a Nest,
    operands: Vec<Operand>,
    side: usize,
    /// The axis along which the operands lie in memory.
    at: usize,
    core: &'a Core,
    goal: Goal,
}

impl Squares<'_> {
    fn outer(&self) -> &Axis {
        &self.nest.axes[self.at]
    }

    fn inner(&self) -> &Axis {
        &self.nest.axes[self.nest.axes.len() - 1]
    }

    /// Whole blocks of an axis, and what is left.
    fn pieces(&self, kernel: &mut Kernel, axis: &Axis) -> Vec<Piece> {
        let side = Dim::from(self.side);
        let blocks = axis.extent.floor_div(&side).expect("a square has a side");
        let start = blocks.clone() * side.clone();
        let rest = axis.extent.clone() - start.clone();
        let mut pieces = Vec::new();
        if blocks != Dim::ZERO {
            let var = kernel.loop_var("square");
            let first = Index::var(var).scale(&side);
            pieces.push(Piece { blocks: Some((var, blocks)), start: first, length: side });
        }
        if rest != Dim::ZERO {
            pieces.push(Piece { blocks: None, start: Index::dim(start), length: rest });
        }
        pieces
    }

    fn loops(&self, kernel: &mut Kernel) -> Vec<Stmt> {
        let (outer, inner) = (self.outer().clone(), self.inner().clone());
        let mut rows = self.pieces(kernel, &outer);
        let shared = kernel.loop_var("square");
        if outer.kind == LoopKind::Parallel {
            // All pieces are iterations of one loop, the rest being the last.
            for row in &mut rows {
                row.start = Index::var(shared).scale(&Dim::from(self.side));
            }
        }
        let mut parts = Vec::new();
        for row in rows {
            let mut part = Vec::new();
            for column in self.pieces(kernel, &inner) {
                let square = self.square(kernel, &row, &column);
                part.extend(over(column.blocks.as_ref(), LoopKind::Serial, square));
            }
            parts.push((row, part));
        }
        let last = self.nest.axes.len() - 1;
        // The loops between those of the square, of variables of their own in each part.
        for (_, part) in &mut parts {
            for axis in self.nest.axes[self.at + 1..last].iter().rev() {
                let var = kernel.loop_var(&kernel.vars[axis.var].name.clone());
                visit::substitute(part, axis.var, &Index::var(var));
                *part = over(Some(&(var, axis.extent.clone())), axis.kind, std::mem::take(part));
            }
        }
        let mut body: Vec<Stmt> = if outer.kind == LoopKind::Parallel {
            parallel(shared, &outer, self.side, parts)
        } else {
            let rows = parts.into_iter().flat_map(|(row, part)| over(row.blocks.as_ref(), outer.kind, part));
            rows.collect()
        };
        for axis in self.nest.axes[..self.at].iter().rev() {
            body = over(Some(&(axis.var, axis.extent.clone())), axis.kind, body);
        }
        body
    }

    /// The nest's body over a piece of both axes.
    fn square(&self, kernel: &mut Kernel, row: &Piece, column: &Piece) -> Vec<Stmt> {
        let size = |piece: &Piece| piece.length.as_const().map(|length| length as usize);
        let turned = match (size(row), size(column)) {
            (Some(rows), Some(columns)) => rows >= LEAST_PIECE && columns >= LEAST_PIECE,
            _ => false,
        };
        let mut stmts = Vec::new();
        if turned {
            for operand in &self.operands {
                stmts.extend(self.turn(kernel, operand, row, column));
            }
        }
        let side = Dim::from(self.side);
        let [y, x] = ["y", "x"].map(|name| kernel.loop_var(name));
        let mut body = self.nest.body.clone();
        if turned {
            visit::exprs_mut(&mut body, &mut |expr| {
                let Expr::Load { buf, index } = expr else { return };
                let own = |operand: &&Operand| operand.buf == *buf && operand.index == *index;
                if let Some(operand) = self.operands.iter().find(own) {
                    *buf = operand.square[1];
                    *index = Index::var(y).scale(&side).add(&Index::var(x));
                }
            });
        }
        rename_lets(kernel, &mut body);
        visit::substitute(&mut body, self.outer().var, &row.start.add(&Index::var(y)));
        visit::substitute(&mut body, self.inner().var, &column.start.add(&Index::var(x)));
        let axis =
            |var: Var, piece: &Piece| Axis { var, extent: piece.length.clone(), kind: LoopKind::Serial };
        let nest = Nest { axes: vec![axis(y, row), axis(x, column)], body };
        stmts.extend(if turned { nest.vectorize(kernel, self.core, self.goal) } else { nest.into_stmts() });
        stmts
    }

    /// Reads a square along the rows of an operand and writes it along the columns.
    fn turn(&self, kernel: &mut Kernel, operand: &Operand, row: &Piece, column: &Piece) -> Vec<Stmt> {
        let side = Dim::from(self.side);
        let [rows, columns] = operand.square;
        let place = |y: Var, x: Var| Index::var(y).scale(&side).add(&Index::var(x));
        let [y, x] = ["y", "x"].map(|name| kernel.loop_var(name));
        let from = operand.index.substitute(self.outer().var, &row.start.add(&Index::var(x)));
        let from = from.substitute(self.inner().var, &column.start.add(&Index::var(y)));
        let value = Expr::Load { buf: operand.buf, index: from };
        let copy = vec![Stmt::Store { buf: rows, index: place(y, x), value }];
        let lanes = vector_lanes(kernel, self.core, x, &copy);
        let copy = match fills_vectors(&row.length, lanes) {
            true => split_vector(kernel, x, &row.length, lanes, lanes, &copy),
            false => over(Some(&(x, row.length.clone())), LoopKind::Serial, copy),
        };
        let mut stmts = over(Some(&(y, column.length.clone())), LoopKind::Serial, copy);
        let [y, x] = ["y", "x"].map(|name| kernel.loop_var(name));
        let value = Expr::Load { buf: rows, index: place(x, y) };
        let turn = vec![Stmt::Store { buf: columns, index: place(y, x), value }];
        let turn = over(Some(&(x, column.length.clone())), LoopKind::Unrolled, turn);
        stmts.extend(over(Some(&(y, row.length.clone())), LoopKind::Serial, turn));
        stmts
    }
}

/// A loop over `0..count`, or the body alone.
fn over(axis: Option<&(Var, Dim)>, kind: LoopKind, body: Vec<Stmt>) -> Vec<Stmt> {
    match axis {
        Some((var, count)) => {
            let (lo, hi) = (Index::zero(), Index::dim(count.clone()));
            vec![Stmt::For { var: *var, lo, hi, step: 1, kind, body }]
        }
        None => body,
    }
}

/// One loop over whole blocks and what is left, which threads share.
fn parallel(var: Var, axis: &Axis, side: usize, parts: Vec<(Piece, Vec<Stmt>)>) -> Vec<Stmt> {
    let count = axis.extent.ceil_div(&Dim::from(side)).expect("a square has a side");
    let mut body = Vec::new();
    for (piece, part) in parts.into_iter().rev() {
        body = match piece.blocks {
            Some((_, blocks)) if !body.is_empty() => {
                let blocks = Expr::Index(Index::dim(blocks));
                let condition = Expr::compare(CompareFn::Lt, Expr::Index(Index::var(var)), blocks);
                vec![Stmt::If { condition, then: part, otherwise: body }]
            }
            _ => part,
        };
    }
    over(Some(&(var, count)), LoopKind::Parallel, body)
}
