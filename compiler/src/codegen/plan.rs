//! How many lanes of a vector loop run at once: as many as the widest value that differs between lanes
//! allows.

use std::collections::HashSet;

use super::lane::{is_f32, is_narrow_float};
use crate::graph::DType;
use crate::loops::{Expr, Index, Kernel, Stmt, Term, Var};

/// The greatest power of two that fits the widest value of the body and divides the extent.
pub fn lanes(kernel: &Kernel, var: Var, body: &[Stmt], extent: i64) -> usize {
    let mut plan = Plan { kernel, varying: HashSet::from([var]), bits: 8 };
    plan.body(body);
    let most = 128 / plan.bits as usize;
    let divides = 1usize << extent.trailing_zeros().min(4);
    most.min(divides)
}

/// Whether an expression only moves elements of a float type that is held as f32, so that their bits can
/// be moved instead.
pub fn moves_bits(kernel: &Kernel, expr: &Expr) -> bool {
    fn moves(expr: &Expr) -> bool {
        match expr {
            Expr::Load { .. } | Expr::Const { .. } => true,
            Expr::Select { then, otherwise, .. } => moves(then) && moves(otherwise),
            _ => false,
        }
    }
    is_narrow_float(kernel.dtype(expr)) && moves(expr)
}

struct Plan<'a> {
    kernel: &'a Kernel,
    /// Variables that differ between lanes.
    varying: HashSet<Var>,
    bits: u32,
}

impl Plan<'_> {
    fn need(&mut self, dtype: DType) {
        let bits = if is_f32(dtype) { 32 } else { dtype.bits().max(8) };
        self.bits = self.bits.max(bits.min(64));
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::For { body, .. } => self.body(body),
                Stmt::Let { var, value: Expr::Index(index) } => {
                    if self.index(index) {
                        self.varying.insert(*var);
                    }
                }
                Stmt::Let { var, value } => {
                    if self.expr(value) {
                        self.varying.insert(*var);
                    }
                }
                Stmt::Store { buf, index, value } => {
                    let raw = moves_bits(self.kernel, value);
                    if raw {
                        self.moved(value);
                    } else {
                        self.expr(value);
                    }
                    if self.index(index) {
                        let dtype = self.kernel.buffers[*buf].dtype;
                        self.element(dtype, raw);
                    }
                }
                Stmt::Set { local, at, value } | Stmt::Accumulate { local, at, value, .. } => {
                    self.expr(value);
                    if at.iter().any(|index| self.index(index)) {
                        self.need(self.kernel.locals[*local].dtype);
                    }
                }
                Stmt::If { condition, then, otherwise } => {
                    self.expr(condition);
                    self.body(then);
                    self.body(otherwise);
                }
                Stmt::Check { condition, .. } => {
                    self.expr(condition);
                }
                Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
            }
        }
    }

    fn element(&mut self, dtype: DType, raw: bool) {
        if raw {
            self.bits = self.bits.max(8 * dtype.size() as u32);
        } else {
            self.need(dtype);
        }
    }

    /// A value whose bits are moved: only conditions are computed.
    fn moved(&mut self, expr: &Expr) {
        match expr {
            Expr::Select { condition, then, otherwise } => {
                self.expr(condition);
                self.moved(then);
                self.moved(otherwise);
            }
            Expr::Load { index, .. } if self.index(index) => self.element(self.kernel.dtype(expr), true),
            _ => {}
        }
    }

    /// Whether the value differs between lanes; if so, takes its width into account.
    fn expr(&mut self, expr: &Expr) -> bool {
        let varies = match expr {
            Expr::Const { .. } => false,
            Expr::Index(index) | Expr::Load { index, .. } | Expr::Word { index, .. } => self.index(index),
            Expr::Var(var) => self.varying.contains(var),
            Expr::Get { at, .. } => at.iter().any(|index| self.index(index)),
            Expr::Unary { x, .. } | Expr::Cast { x, .. } | Expr::Bitcast { x, .. } => self.expr(x),
            Expr::Binary { a, b, .. } | Expr::Compare { a, b, .. } => self.expr(a) | self.expr(b),
            Expr::Fma { a, b, c } => self.expr(a) | self.expr(b) | self.expr(c),
            Expr::Select { condition, then, otherwise } => {
                self.expr(condition) | self.expr(then) | self.expr(otherwise)
            }
        };
        if varies {
            self.need(self.kernel.dtype(expr));
        }
        varies
    }

    fn index(&self, index: &Index) -> bool {
        index.terms.iter().any(|(term, _)| match term {
            Term::Var(var) => self.varying.contains(var),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => self.index(x),
        })
    }
}
