//! How much work a kernel is: whether it pays to split it over threads, and to have versions of it for better processors.

use crate::{Expr, Index, Kernel, LoopKind, Stmt, Term};
use onnxc_ir::graph::Dim;

/// Operations below which a kernel does not pay for handing a part to another thread: some four microseconds of work, where
/// the hand-over takes one or two if the thread is awake.
const WORTH_THREADS: f64 = 48_000.0;

/// Assumed lanes per vector operation.
const LANES: f64 = 8.0;

/// Operations below which a kernel is not made for better processors too: it would gain less than the tens of
/// nanoseconds that its call takes.
const WORTH_UPGRADES: f64 = 256.0;

/// What the extent of a loop that data decide is taken for, and where a kernel's versions are chosen, each symbol.
const TYPICAL: i64 = 64;

/// Largest size tried for such an extent, where it decides whether threads share a kernel.
const MOST: i64 = 1 << 20;

/// When a kernel's work outweighs waking threads.
#[derive(Clone, PartialEq, Debug)]
pub enum Threads {
    Never,
    Always,
    /// Where `size`, the elements of its largest buffer, is at least `least`: those that it has where all symbols are as large as
    /// makes just enough work. Work may grow faster than buffers do, with the square of a length.
    From {
        size: Dim,
        least: i64,
    },
}

/// Whether a kernel does enough for versions of its own for better processors.
pub fn worth_upgrades(kernel: &Kernel) -> bool {
    // Of sizes that are not known, any may be large.
    work(kernel, 1.0, TYPICAL) >= WORTH_UPGRADES || open_sizes(kernel).next().is_some()
}

/// When a kernel has a parallel loop with enough work to split.
pub fn worth_threads(kernel: &Kernel) -> Threads {
    if kernel.parallel_range().is_none() {
        return Threads::Never;
    }
    let is_enough = |symbols: i64| work(kernel, LANES, symbols) >= WORTH_THREADS;
    if open_sizes(kernel).next().is_none() {
        return if is_enough(TYPICAL) { Threads::Always } else { Threads::Never };
    }
    let (mut few, mut many) = (0, 1);
    while !is_enough(many) {
        (few, many) = (many, 2 * many);
        if many > MOST {
            return Threads::Never;
        }
    }
    while many - few > 1 {
        let middle = few + (many - few) / 2;
        if is_enough(middle) {
            many = middle;
        } else {
            few = middle;
        }
    }
    let sizes = open_sizes(kernel).map(|size| (size, size_of(size, many).max(1)));
    // Of equals the first, in the order of the buffers.
    let largest = sizes.reduce(|best, next| if next.1 > best.1 { next } else { best });
    let (size, least) = largest.expect("there is one, as seen above");
    Threads::From { size: size.clone(), least }
}

/// The sizes of buffers that only a run knows.
fn open_sizes(kernel: &Kernel) -> impl Iterator<Item = &Dim> {
    kernel.buffers.values().map(|buffer| &buffer.len).filter(|size| !size.is_const())
}

/// A dim where each symbol is `symbols`.
fn size_of(dim: &Dim, symbols: i64) -> i64 {
    dim.eval(&|_| Some(symbols)).map_or(symbols, |value| value.max(0))
}

/// Operations of a kernel, roughly, those of vector loops for `lanes` elements each, where each symbol is `symbols`. In
/// fractions: a part of a loop may have less than one of its turns.
fn work(kernel: &Kernel, lanes: f64, symbols: i64) -> f64 {
    kernel.body.iter().map(|stmt| stmt_work(stmt, lanes, symbols)).sum()
}

fn stmt_work(stmt: &Stmt, lanes: f64, symbols: i64) -> f64 {
    let all = |body: &[Stmt]| body.iter().map(|stmt| stmt_work(stmt, lanes, symbols)).sum::<f64>();
    match stmt {
        Stmt::For { lo, hi, step, kind, body, .. } => {
            let extent = extent(lo, hi, *step, symbols);
            let turns = if *kind == LoopKind::Vector { (extent / lanes).ceil() } else { extent };
            turns * all(body)
        }
        Stmt::If { then, otherwise, .. } => all(then).max(all(otherwise)) + 1.0,
        Stmt::Let { value, .. }
        | Stmt::Store { value, .. }
        | Stmt::Set { value, .. }
        | Stmt::Accumulate { value, .. } => expr_work(value) as f64 + 1.0,
        Stmt::Check { .. } => 1.0,
        Stmt::Prefetch { .. } => 0.0,
        // A row a cycle, as a few vector operations.
        Stmt::Tile(_) => 32.0,
    }
}

fn extent(lo: &Index, hi: &Index, step: i64, symbols: i64) -> f64 {
    match hi.add(&lo.scale(&Dim::from(-1i64))).as_dim() {
        Some(extent) => (size_of(extent, symbols) / step.saturating_abs().max(1)) as f64,
        None => part(lo, hi, symbols).unwrap_or(symbols as f64),
    }
}

/// Extent of a loop over one of several equal parts of a range: from `floor(i * n / parts)` to the same for `i + 1`. Where there are
/// fewer elements than parts, the first of these is 0.
fn part(lo: &Index, hi: &Index, symbols: i64) -> Option<f64> {
    let [(Term::FloorDiv(to, by), _)] = hi.terms.as_slice() else { return None };
    let all = match lo.terms.as_slice() {
        [(Term::FloorDiv(from, _), _)] => to.constant.clone() - from.constant.clone(),
        [] if matches!(to.terms.as_slice(), [(_, each)] if *each == to.constant) => to.constant.clone(),
        _ => return None,
    };
    let (all, parts) = (size_of(&all, symbols), size_of(by, symbols));
    (parts > 0).then(|| all as f64 / parts as f64)
}

fn expr_work(expr: &Expr) -> u64 {
    let own = !matches!(expr, Expr::Const { .. } | Expr::Index(_) | Expr::Var(_) | Expr::Get { .. });
    u64::from(own) + expr.operands().into_iter().map(expr_work).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Buffer, LoopKind};
    use onnxc_ir::graph::DType;

    fn fill(rows: i64) -> Kernel {
        fill_rows(Dim::from(rows))
    }

    fn fill_rows(rows: Dim) -> Kernel {
        let mut kernel = Kernel::new("fill");
        let len = rows.clone() * Dim::from(100i64);
        let buf =
            kernel.buffers.push(Buffer { name: "y".into(), dtype: DType::F32, len, access: Access::Write });
        let (row, column) = (kernel.loop_var("row"), kernel.loop_var("column"));
        let index = Index::var(row).scale(&Dim::from(100i64)).add(&Index::var(column));
        let value = Expr::Const { dtype: DType::F32, bits: 0 };
        let inner = vec![Stmt::Store { buf, index, value }];
        let nest = |var, hi, kind, body| Stmt::For {
            var,
            lo: Index::zero(),
            hi: Index::dim(hi),
            step: 1,
            kind,
            body,
        };
        let inner = vec![nest(column, Dim::from(100i64), LoopKind::Serial, inner)];
        kernel.body = vec![nest(row, rows, LoopKind::Parallel, inner)];
        kernel
    }

    #[test]
    fn small_kernels_stay_on_one_thread() {
        assert_eq!(worth_threads(&fill(10)), Threads::Never);
        assert_eq!(worth_threads(&fill(10_000)), Threads::Always);
        assert_eq!(worth_threads(&Kernel::new("empty")), Threads::Never);
        assert!(worth_upgrades(&fill(10)));
        assert!(!worth_upgrades(&fill(1)));
    }

    /// The size of a run decides as it would if it were known.
    #[test]
    fn sizes_of_a_run_decide() {
        let rows = Dim::sym(onnxc_ir::graph::Sym::from_u32(0));
        let Threads::From { size, least } = worth_threads(&fill_rows(rows.clone())) else {
            panic!("a kernel of any size");
        };
        assert_eq!(size, rows.clone() * Dim::from(100i64));
        for count in [0, 1, 10, 100, 300, 1000, 10_000] {
            let many = worth_threads(&fill(count)) == Threads::Always;
            assert_eq!(size.eval(&|_| Some(count)).unwrap() >= least, many, "{count} rows, from {least} on");
        }
        assert!(worth_upgrades(&fill_rows(rows)));
    }

    /// Work that grows with the square of a length is not taken for as much at a short one as a line through a long one gives.
    #[test]
    fn squares_of_a_length_decide() {
        let length = Dim::sym(onnxc_ir::graph::Sym::from_u32(0));
        let mut kernel = fill_rows(length.clone());
        let inner = std::mem::take(&mut kernel.body);
        let var = kernel.loop_var("again");
        kernel.body = vec![Stmt::For {
            var,
            lo: Index::zero(),
            hi: Index::dim(length.clone()),
            step: 1,
            kind: LoopKind::Parallel,
            body: inner,
        }];
        let Threads::From { size, least } = worth_threads(&kernel) else { panic!("a kernel of any size") };
        for count in [1, 5, 10, 15, 20, 21, 22, 23, 30, 64, 500] {
            let many = (count * count * 100) as f64 >= WORTH_THREADS;
            assert_eq!(size.eval(&|_| Some(count)).unwrap() >= least, many, "{count} rows, from {least} on");
        }
    }

    /// The rows of [`fill_rows`] in equal parts, for one thread each.
    fn fill_in_parts(rows: &Dim, parts: i64) -> Kernel {
        let mut parted = fill_rows(rows.clone());
        let (part, parts) = (parted.loop_var("part"), Dim::from(parts));
        let end = |number: Index| number.scale(rows).floor_div(&parts, &|_| Some(parts.clone()));
        let (from, to) = (end(Index::var(part)), end(Index::var(part).add(&Index::int(1))));
        let Some(Stmt::For { lo, hi, kind, .. }) = parted.body.first_mut() else {
            panic!("a loop over rows")
        };
        (*lo, *hi, *kind) = (from, to, LoopKind::Serial);
        let (lo, hi, body) = (Index::zero(), Index::dim(parts.clone()), std::mem::take(&mut parted.body));
        parted.body = vec![Stmt::For { var: part, lo, hi, step: 1, kind: LoopKind::Parallel, body }];
        parted
    }

    /// Rows with less than one per part, at typical sizes, are as much work as undivided ones.
    #[test]
    fn parts_of_few_rows_are_work() {
        let rows = Dim::sym(onnxc_ir::graph::Sym::from_u32(0));
        let parted = fill_in_parts(&rows, 4 * TYPICAL);
        assert_eq!(worth_threads(&parted), worth_threads(&fill_rows(rows)));
    }

    /// The rest of an even number is one row for all parts, not one for each.
    #[test]
    fn parts_of_a_rest_are_little_work() {
        let (rows, two) = (Dim::sym(onnxc_ir::graph::Sym::from_u32(0)), Dim::from(2i64));
        let rest = rows.clone() - rows.floor_div(&two).unwrap() * two;
        let parted = fill_in_parts(&rest, 12);
        let Stmt::For { body, .. } = &parted.body[0] else { panic!("a loop over parts") };
        assert!(matches!(&body[..], [Stmt::For { lo, .. }] if lo.as_int() == Some(0)), "{parted}");
        assert_eq!(worth_threads(&parted), Threads::Never);
    }
}
