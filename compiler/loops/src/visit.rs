//! Walks over statements and the expressions in them.

use std::collections::HashSet;

use cranelift_entity::PrimaryMap;

use crate::{Buf, Buffer, Expr, Index, Kernel, Stmt, Term, Var};
use onnxc_ir::graph::Dim;

/// Calls `visit` for every index of the statements: bounds, addresses, register indices and index values.
pub fn indices_mut(body: &mut [Stmt], visit: &mut dyn FnMut(&mut Index)) {
    for stmt in body {
        match stmt {
            Stmt::For { lo, hi, body, .. } => {
                visit(lo);
                visit(hi);
                indices_mut(body, visit);
            }
            Stmt::Let { value, .. } => expr_indices_mut(value, visit),
            Stmt::Store { index, value, .. } => {
                visit(index);
                expr_indices_mut(value, visit);
            }
            Stmt::Set { at, value, .. } | Stmt::Accumulate { at, value, .. } => {
                at.iter_mut().for_each(&mut *visit);
                expr_indices_mut(value, visit);
            }
            Stmt::If { condition, then, otherwise } => {
                expr_indices_mut(condition, visit);
                indices_mut(then, visit);
                indices_mut(otherwise, visit);
            }
            Stmt::Check { condition, .. } => expr_indices_mut(condition, visit),
            Stmt::Prefetch { index, .. } => visit(index),
            Stmt::Tile(stmt) => stmt.index_mut().into_iter().for_each(&mut *visit),
        }
    }
}

fn expr_indices_mut(expr: &mut Expr, visit: &mut dyn FnMut(&mut Index)) {
    expr.indices_mut().into_iter().for_each(&mut *visit);
    expr.operands_mut().into_iter().for_each(|operand| expr_indices_mut(operand, visit));
}

/// Calls `visit` for every dim of a kernel: lengths of buffers, and what indices are made of. The order of the terms of an index
/// stays, so changed dims must be in the order that they were in.
pub fn dims_mut(kernel: &mut Kernel, visit: &mut dyn FnMut(&mut Dim)) {
    kernel.buffers.values_mut().for_each(|buffer| visit(&mut buffer.len));
    indices_mut(&mut kernel.body, &mut |index| index_dims_mut(index, visit));
}

fn index_dims_mut(index: &mut Index, visit: &mut dyn FnMut(&mut Dim)) {
    for (term, coefficient) in &mut index.terms {
        if let Term::FloorDiv(inner, by) | Term::Mod(inner, by) = term {
            index_dims_mut(inner, visit);
            visit(by);
        }
        visit(coefficient);
    }
    visit(&mut index.constant);
}

/// The expression that a statement computes or decides by; those of statements inside it are theirs.
pub fn own_expr(stmt: &Stmt) -> Option<&Expr> {
    match stmt {
        Stmt::Let { value, .. }
        | Stmt::Store { value, .. }
        | Stmt::Set { value, .. }
        | Stmt::Accumulate { value, .. } => Some(value),
        Stmt::If { condition, .. } | Stmt::Check { condition, .. } => Some(condition),
        Stmt::For { .. } | Stmt::Prefetch { .. } | Stmt::Tile(_) => None,
    }
}

/// Whether a kernel may end with an error.
pub fn may_fail(body: &[Stmt]) -> bool {
    let mut found = false;
    stmts(body, &mut |stmt| found |= matches!(stmt, Stmt::Check { .. }));
    found
}

/// Calls `visit` for every statement, the ones inside after the one around them.
pub fn stmts(body: &[Stmt], visit: &mut dyn FnMut(&Stmt)) {
    for stmt in body {
        visit(stmt);
        match stmt {
            Stmt::For { body, .. } => stmts(body, visit),
            Stmt::If { then, otherwise, .. } => {
                stmts(then, visit);
                stmts(otherwise, visit);
            }
            _ => {}
        }
    }
}

/// Buffers that statements store to.
pub fn stored(body: &[Stmt]) -> HashSet<Buf> {
    let mut found = HashSet::new();
    stmts(body, &mut |stmt| match stmt {
        Stmt::Store { buf, .. } => found.extend([*buf]),
        Stmt::Tile(stmt) => found.extend(stmt.stored()),
        _ => {}
    });
    found
}

/// Calls `visit` for every expression of the statements, operands first.
pub fn exprs(body: &[Stmt], visit: &mut dyn FnMut(&Expr)) {
    fn each(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
        expr.operands().into_iter().for_each(|operand| each(operand, visit));
        visit(expr);
    }
    stmts(body, &mut |stmt| {
        if let Some(expr) = own_expr(stmt) {
            each(expr, visit);
        }
    });
}

/// Calls `visit` for every expression of the statements, operands first, to change it in place.
pub fn exprs_mut(body: &mut [Stmt], visit: &mut dyn FnMut(&mut Expr)) {
    fn each(expr: &mut Expr, visit: &mut dyn FnMut(&mut Expr)) {
        expr.operands_mut().into_iter().for_each(|operand| each(operand, visit));
        visit(expr);
    }
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } => exprs_mut(body, visit),
            Stmt::Let { value, .. }
            | Stmt::Store { value, .. }
            | Stmt::Set { value, .. }
            | Stmt::Accumulate { value, .. } => each(value, visit),
            Stmt::If { condition, then, otherwise } => {
                each(condition, visit);
                exprs_mut(then, visit);
                exprs_mut(otherwise, visit);
            }
            Stmt::Check { condition, .. } => each(condition, visit),
            Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
        }
    }
}

/// Replaces a loop variable by an index everywhere.
pub fn substitute(body: &mut [Stmt], var: Var, by: &Index) {
    indices_mut(body, &mut |index| {
        if index.mentions(var) {
            *index = index.substitute(var, by);
        }
    });
}

/// Removes loops that are known to run no iteration, stores to buffers of no element, and loops and branches around nothing.
///
/// The run may check that a result is empty, while the loops count by earlier knowledge: they run no iteration, and only the buffer shows
/// it.
pub fn drop_idle(kernel: &mut Kernel) {
    drop_idle_of(&mut kernel.body, &kernel.buffers);
}

fn drop_idle_of(body: &mut Vec<Stmt>, buffers: &PrimaryMap<Buf, Buffer>) {
    body.retain_mut(|stmt| match stmt {
        Stmt::For { lo, hi, body, .. } => {
            drop_idle_of(body, buffers);
            let count = hi.add(&lo.scale(&Dim::from(-1i64))).as_int();
            !body.is_empty() && count.is_none_or(|count| count > 0)
        }
        Stmt::If { then, otherwise, .. } => {
            drop_idle_of(then, buffers);
            drop_idle_of(otherwise, buffers);
            !then.is_empty() || !otherwise.is_empty()
        }
        Stmt::Store { buf, .. } => buffers[*buf].len.as_const() != Some(0),
        _ => true,
    });
}

/// Removes names that nothing reads. Computing a value has no effect but the value.
pub fn drop_unused_lets(body: &mut Vec<Stmt>) {
    drop_unused(body, &mut HashSet::new());
}

/// Removes the names that neither the statements nor what follows them reads; `used` is what that reads, and then what
/// all of them read.
fn drop_unused(body: &mut Vec<Stmt>, used: &mut HashSet<Var>) {
    let mut kept = Vec::with_capacity(body.len());
    while let Some(mut stmt) = body.pop() {
        match &mut stmt {
            Stmt::Let { var, .. } if !used.contains(var) => continue,
            Stmt::For { lo, hi, body, .. } => {
                drop_unused(body, used);
                index_variables(lo, used);
                index_variables(hi, used);
            }
            Stmt::If { then, otherwise, .. } => {
                drop_unused(then, used);
                drop_unused(otherwise, used);
            }
            Stmt::Store { index, .. } | Stmt::Prefetch { index, .. } => index_variables(index, used),
            Stmt::Set { at, .. } | Stmt::Accumulate { at, .. } => {
                at.iter().for_each(|index| index_variables(index, used));
            }
            Stmt::Tile(stmt) => stmt.place().into_iter().for_each(|(_, index)| index_variables(index, used)),
            Stmt::Let { .. } | Stmt::Check { .. } => {}
        }
        if let Some(expr) = own_expr(&stmt) {
            variables(expr, used);
        }
        kept.push(stmt);
    }
    kept.reverse();
    *body = kept;
}

/// Adds the variables of an expression.
fn variables(expr: &Expr, found: &mut HashSet<Var>) {
    if let Expr::Var(var) = expr {
        found.insert(*var);
    }
    expr.indices().into_iter().for_each(|index| index_variables(index, found));
    expr.operands().into_iter().for_each(|operand| variables(operand, found));
}

fn index_variables(index: &Index, found: &mut HashSet<Var>) {
    for (term, _) in &index.terms {
        match term {
            Term::Var(var) => {
                found.insert(*var);
            }
            Term::FloorDiv(x, _) | Term::Mod(x, _) => index_variables(x, found),
        }
    }
}

/// Whether an index or any division inside it satisfies `test` on a term.
pub fn any_term(index: &Index, test: &dyn Fn(&Term) -> bool) -> bool {
    index.terms.iter().any(|(term, _)| {
        test(term)
            || match term {
                Term::Var(_) => false,
                Term::FloorDiv(x, _) | Term::Mod(x, _) => any_term(x, test),
            }
    })
}
