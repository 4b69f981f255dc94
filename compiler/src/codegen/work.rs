//! How much work a kernel is: whether it pays to split it over threads.

use crate::graph::Dim;
use crate::loops::{Expr, Index, Kernel, LoopKind, Stmt, Term};

/// Operations below which a kernel does not pay for handing a part to another thread: some five microseconds of work,
/// where the hand-over takes one if the thread is awake.
const WORTH_THREADS: u64 = 16_000;

/// Elements that one operation of a vector loop is for, about.
const LANES: u64 = 8;

/// Operations below which a kernel is not made for better processors too: it would gain less than the tens of
/// nanoseconds that its call takes.
const WORTH_UPGRADES: u64 = 256;

/// Whether a kernel does enough for versions of its own for better processors.
pub fn worth_upgrades(kernel: &Kernel) -> bool {
    work(kernel, 1) >= WORTH_UPGRADES
}

/// Whether a kernel has a parallel loop with enough work to split.
pub fn worth_threads(kernel: &Kernel) -> bool {
    kernel.parallel_range().is_some() && work(kernel, LANES) >= WORTH_THREADS
}

/// Operations of a kernel, roughly, those of vector loops for `lanes` elements each; loops of unknown extent count as
/// long.
fn work(kernel: &Kernel, lanes: u64) -> u64 {
    kernel.body.iter().map(|stmt| stmt_work(stmt, lanes)).fold(0, u64::saturating_add)
}

fn stmt_work(stmt: &Stmt, lanes: u64) -> u64 {
    let all = |body: &[Stmt]| body.iter().map(|stmt| stmt_work(stmt, lanes)).fold(0, u64::saturating_add);
    match stmt {
        Stmt::For { lo, hi, step, kind, body, .. } => {
            let extent = extent(lo, hi, *step);
            let turns = if *kind == LoopKind::Vector { extent.div_ceil(lanes) } else { extent };
            turns.saturating_mul(all(body))
        }
        Stmt::If { then, otherwise, .. } => all(then).max(all(otherwise)).saturating_add(1),
        Stmt::Let { value, .. }
        | Stmt::Store { value, .. }
        | Stmt::Set { value, .. }
        | Stmt::Accumulate { value, .. } => expr_work(value).saturating_add(1),
        Stmt::Check { .. } => 1,
        Stmt::Prefetch { .. } => 0,
        // A row a cycle, as a few vector operations.
        Stmt::Tile(_) => 32,
    }
}

fn extent(lo: &Index, hi: &Index, step: i64) -> u64 {
    /// What a loop of unknown extent is taken for.
    const UNKNOWN: u64 = 1024;
    match hi.add(&lo.scale(&Dim::from(-1i64))).as_int() {
        Some(extent) => extent.max(0).unsigned_abs() / step.unsigned_abs().max(1),
        None => part(lo, hi).unwrap_or(UNKNOWN),
    }
}

/// Extent of a loop over one of several equal parts of a range: from `floor(i * n / parts)` to the same for `i + 1`.
fn part(lo: &Index, hi: &Index) -> Option<u64> {
    let [(Term::FloorDiv(from, by), _)] = lo.terms.as_slice() else { return None };
    let [(Term::FloorDiv(to, _), _)] = hi.terms.as_slice() else { return None };
    let size = to.constant.as_const()?.checked_sub(from.constant.as_const()?)?;
    u64::try_from(size).ok()?.checked_div(u64::try_from(by.as_const()?).ok()?)
}

fn expr_work(expr: &Expr) -> u64 {
    match expr {
        Expr::Const { .. } | Expr::Index(_) | Expr::Var(_) | Expr::Get { .. } => 0,
        Expr::Load { .. } | Expr::Word { .. } => 1,
        Expr::Unary { x, .. } | Expr::Cast { x, .. } | Expr::Bitcast { x, .. } => 1 + expr_work(x),
        Expr::Binary { a, b, .. } | Expr::Compare { a, b, .. } => 1 + expr_work(a) + expr_work(b),
        Expr::Fma { a, b, c } => 1 + expr_work(a) + expr_work(b) + expr_work(c),
        Expr::Select { condition, then, otherwise } => {
            1 + expr_work(condition) + expr_work(then) + expr_work(otherwise)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::DType;
    use crate::loops::{Access, Buffer, LoopKind};

    fn fill(rows: i64) -> Kernel {
        let mut kernel = Kernel::new("fill");
        let len = Dim::from(rows * 100);
        let buf =
            kernel.buffers.push(Buffer { name: "y".into(), dtype: DType::F32, len, access: Access::Write });
        let (row, column) = (kernel.loop_var("row"), kernel.loop_var("column"));
        let index = Index::var(row).scale(&Dim::from(100i64)).add(&Index::var(column));
        let value = Expr::Const { dtype: DType::F32, bits: 0 };
        let inner = vec![Stmt::Store { buf, index, value }];
        let nest = |var, hi, kind, body| Stmt::For {
            var,
            lo: Index::zero(),
            hi: Index::int(hi),
            step: 1,
            kind,
            body,
        };
        let inner = vec![nest(column, 100, LoopKind::Serial, inner)];
        kernel.body = vec![nest(row, rows, LoopKind::Parallel, inner)];
        kernel
    }

    #[test]
    fn small_kernels_stay_on_one_thread() {
        assert!(!worth_threads(&fill(10)));
        assert!(worth_threads(&fill(10_000)));
        assert!(!worth_threads(&Kernel::new("empty")));
        assert!(worth_upgrades(&fill(10)));
        assert!(!worth_upgrades(&fill(1)));
    }
}
