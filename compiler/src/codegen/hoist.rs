//! What a loop's indices need and is known before it, computed before it.

use super::index::Binding;
use super::kernel::Gen;
use crate::error::Result;
use crate::graph::Dim;
use crate::loops::{Buf, Expr, Index, LoopKind, Stmt, Term};

impl Gen<'_, '_> {
    /// Computes, before a loop over `body`, what its indices need and is known already.
    pub fn hoist(&mut self, body: &[Stmt]) -> Result<()> {
        for stmt in body {
            match stmt {
                Stmt::For { var, lo, hi, step, kind, body } => {
                    self.hoist_index(None, lo)?;
                    self.hoist_index(None, hi)?;
                    let range = self.constant_range(lo, hi);
                    match (kind, range) {
                        (LoopKind::Unrolled, Some(range)) => {
                            for value in range.step_by((*step).max(1) as usize) {
                                self.env[*var] = Binding::Index(Index::int(value));
                                self.hoist(body)?;
                            }
                        }
                        (LoopKind::Vector, Some(range)) => {
                            self.env[*var] = Binding::Index(Index::int(range.start));
                            self.hoist(body)?;
                        }
                        _ => {
                            self.env[*var] = Binding::Unbound;
                            self.hoist(body)?;
                        }
                    }
                    self.env[*var] = Binding::Unbound;
                }
                Stmt::Let { var, value } => {
                    self.hoist_expr(value)?;
                    self.env[*var] = match value {
                        Expr::Index(index) => match self.partly_resolve(index) {
                            (bound, loose) if loose.is_empty() => Binding::Index(bound),
                            _ => Binding::Unbound,
                        },
                        _ => Binding::Unbound,
                    };
                }
                Stmt::Store { buf, index, value } => {
                    self.hoist_expr(value)?;
                    self.hoist_index(Some(*buf), index)?;
                }
                Stmt::Set { value, .. } | Stmt::Accumulate { value, .. } => self.hoist_expr(value)?,
                Stmt::If { condition, then, otherwise } => {
                    self.hoist_expr(condition)?;
                    self.hoist(then)?;
                    self.hoist(otherwise)?;
                }
                Stmt::Check { condition, .. } => self.hoist_expr(condition)?,
                Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
            }
        }
        Ok(())
    }

    /// Values of an unrolled loop's variable, where both bounds are constants.
    pub fn constant_range(&self, lo: &Index, hi: &Index) -> Option<std::ops::Range<i64>> {
        let value = |index: &Index| match self.partly_resolve(index) {
            (bound, loose) if loose.is_empty() => bound.as_int(),
            _ => None,
        };
        Some(value(lo)?..value(hi)?)
    }

    fn hoist_expr(&mut self, expr: &Expr) -> Result<()> {
        match expr {
            Expr::Const { .. } | Expr::Var(_) | Expr::Get { .. } => Ok(()),
            Expr::Index(index) => self.hoist_index(None, index),
            Expr::Load { buf, index } | Expr::Word { buf, index } => self.hoist_index(Some(*buf), index),
            Expr::Unary { x, .. } | Expr::Cast { x, .. } | Expr::Bitcast { x, .. } => self.hoist_expr(x),
            Expr::Binary { a, b, .. } | Expr::Compare { a, b, .. } => {
                self.hoist_expr(a)?;
                self.hoist_expr(b)
            }
            Expr::Fma { a, b, c } => {
                self.hoist_expr(a)?;
                self.hoist_expr(b)?;
                self.hoist_expr(c)
            }
            Expr::Select { condition, then, otherwise } => {
                self.hoist_expr(condition)?;
                self.hoist_expr(then)?;
                self.hoist_expr(otherwise)
            }
        }
    }

    fn hoist_index(&mut self, buf: Option<Buf>, index: &Index) -> Result<()> {
        let (bound, loose) = self.partly_resolve(index);
        let size = buf.map_or(1, |buf| self.kernel.buffers[buf].dtype.size());
        for coefficient in &loose {
            if !coefficient.is_const() {
                self.dim(&(coefficient.clone() * Dim::from(size)))?;
            }
        }
        let (bound, _) = bound.split_constant();
        match buf {
            Some(buf) => {
                self.pointer(buf, bound)?;
            }
            None if loose.is_empty() => {
                self.sum(&bound)?;
            }
            None => {}
        }
        Ok(())
    }

    /// The part of an index whose variables are bound, and the coefficients of the other terms.
    fn partly_resolve(&self, index: &Index) -> (Index, Vec<Dim>) {
        let mut bound = Index::dim(index.constant.clone());
        let mut loose = vec![];
        for (term, coefficient) in &index.terms {
            let one = Index { terms: vec![(term.clone(), coefficient.clone())], constant: Dim::ZERO };
            match self.try_resolve(&one) {
                Some(part) if !Gen::any_instance(&part, &|v| !self.is_scalar(v)) => bound = bound.add(&part),
                _ => {
                    loose.push(coefficient.clone());
                    if let Term::FloorDiv(x, by) | Term::Mod(x, by) = term {
                        loose.push(by.clone());
                        loose.extend(x.terms.iter().map(|(_, coefficient)| coefficient.clone()));
                    }
                }
            }
        }
        (bound, loose)
    }
}
