//! Long sums of floats, made of partial sums.
//!
//! Added up one by one, `n` terms have an error of up to `(n-1) u sum |x|` with `u = 2^-24` for f32 (Higham, "Accuracy and stability
//! of numerical algorithms", section 4.2), and come close to it where neighbours are alike, as the pixels of a page are: each
//! addition rounds in the same direction. The mean of 184 x 240 of them may be off by 4e-4. Of sums of at most `k` terms each, which are
//! added up in turn, the error is at most `(k-1 + m-1) u sum |x|`, `m` being their number, and that of three levels likewise.

use super::identity;
use crate::lower::Lowering;
use crate::nest::{Axis, rename_lets};
use crate::{Expr, Index, Local, LoopKind, Stmt, Var, visit};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};
use onnxc_tuning::sum_part;

/// Terms of a partial sum, at least: with fewer, the number of parts could be that of the terms.
const LEAST_TERMS: i64 = 8;

/// The registers that a reduction combines its elements in.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    pub local: Local,
    pub dtype: DType,
    /// One axis of elements, or several blocks of one vector each.
    pub shape: Vec<usize>,
    pub lanes: usize,
}

/// Statements that add to registers.
pub(super) struct Level {
    pub registers: Registers,
    pub stmts: Vec<Stmt>,
    /// What each register is given by them: terms, or partial sums.
    terms: Option<i64>,
}

/// Statements for the elements of the innermost axis from an index on, over an extent: `step` of them are a term of each register.
type Elements<'e> = &'e mut dyn FnMut(&mut Lowering, &Index, &Dim) -> Vec<Stmt>;

impl Lowering<'_> {
    /// The loops along the innermost axis: parts of at most `limit` terms, where there is a limit, and what is left of them.
    pub(super) fn parts_of(
        &mut self,
        acc: &Registers,
        extent: &Dim,
        step: usize,
        limit: Option<i64>,
        elements: Elements<'_>,
    ) -> Result<Level> {
        let terms = extent.ceil_div(&Dim::from(step)).and_then(|terms| terms.as_const());
        let limit = limit.map(|limit| limit.max(LEAST_TERMS));
        let Some(limit) = limit.filter(|&limit| terms.is_none_or(|terms| terms > limit)) else {
            let stmts = elements(self, &Index::zero(), extent);
            return Ok(Level { registers: acc.clone(), stmts, terms });
        };
        let equal = extent.exact_div(&Dim::from(step)).and_then(|terms| sum_part(terms.as_const()?, limit));
        let terms = equal.unwrap_or(limit);
        let size = Dim::from(terms) * Dim::from(step);
        let parts = extent.floor_div(&size).unwrap_or(Dim::ZERO);
        let whole = parts.clone() * size.clone();
        let rest = extent.clone() - whole.clone();
        let var = self.kernel.loop_var("part");
        self.extents.insert(var, parts.clone());
        let stmts = elements(self, &Index::var(var).scale(&size), &size);
        let part = self.closed(Level { registers: acc.clone(), stmts, terms: Some(terms) })?;
        let mut level =
            self.around(part, Axis { var, extent: parts, kind: LoopKind::Serial }, Some(limit))?;
        if rest != Dim::ZERO {
            let stmts = elements(self, &Index::dim(whole), &rest);
            let rest =
                self.one_part(&level.registers, Level { registers: acc.clone(), stmts, terms: None })?;
            level.stmts.extend(rest);
            level.terms = level.terms.map(|terms| terms + 1);
        }
        Ok(level)
    }

    /// Pushes loops over `axes`, the last one innermost, around a level. Gives the registers of the sums.
    pub(super) fn level_loops(
        &mut self,
        mut level: Level,
        axes: Vec<Axis>,
        limit: Option<i64>,
        acc: &Registers,
    ) -> Result<Registers> {
        for axis in axes.into_iter().rev() {
            level = self.around(level, axis, limit)?;
        }
        if level.registers.local != acc.local {
            let clear = self.set_registers(&level.registers, &zero(level.registers.dtype)?);
            clear.into_iter().for_each(|stmt| self.push(stmt));
        }
        level.stmts.into_iter().for_each(|stmt| self.push(stmt));
        Ok(level.registers)
    }

    /// A loop around a level: around a part of its own where there would be more than `limit` terms.
    fn around(&mut self, level: Level, axis: Axis, limit: Option<i64>) -> Result<Level> {
        let terms =
            level.terms.zip(axis.extent.as_const()).and_then(|(terms, turns)| terms.checked_mul(turns));
        let limit = limit.map(|limit| limit.max(LEAST_TERMS));
        let Some(limit) = limit.filter(|&limit| terms.is_none_or(|terms| terms > limit)) else {
            return Ok(Level { stmts: vec![over(axis, level.stmts)], terms, ..level });
        };
        if level.terms != Some(1) {
            let part = self.closed(level)?;
            return self.around(part, axis, Some(limit));
        }
        // One term each turn: the loop itself is long, or may be.
        let Some(turns) = axis.extent.as_const() else {
            return Ok(Level { stmts: vec![over(axis, level.stmts)], terms: None, ..level });
        };
        let Axis { var, extent, kind } = axis;
        let Level { registers, stmts, .. } = level;
        let size = Dim::from(sum_part(turns, limit).unwrap_or(limit));
        let parts = extent.floor_div(&size).unwrap_or(Dim::ZERO);
        let whole = parts.clone() * size.clone();
        let rest = extent - whole.clone();
        let part = self.kernel.loop_var("part");
        self.extents.insert(part, parts.clone());
        let one = self.turns(&stmts, var, &Index::var(part).scale(&size), &size, kind);
        let one =
            self.closed(Level { registers: registers.clone(), stmts: vec![one], terms: size.as_const() })?;
        let mut level = self.around(one, Axis { var: part, extent: parts, kind }, Some(limit))?;
        if rest != Dim::ZERO {
            let rest = vec![self.turns(&stmts, var, &Index::dim(whole), &rest, kind)];
            let rest = self.one_part(&level.registers, Level { registers, stmts: rest, terms: None })?;
            level.stmts.extend(rest);
            level.terms = level.terms.map(|terms| terms + 1);
        }
        Ok(level)
    }

    /// A part, added to registers of their own.
    fn closed(&mut self, level: Level) -> Result<Level> {
        let Registers { dtype, shape, lanes, .. } = &level.registers;
        let local = self.kernel.local("sums", *dtype, shape, *lanes);
        let sums = Registers { local, ..level.registers.clone() };
        let stmts = self.one_part(&sums, level)?;
        Ok(Level { registers: sums, stmts, terms: Some(1) })
    }

    /// The statements of a part, which is added to `sums`.
    fn one_part(&mut self, sums: &Registers, part: Level) -> Result<Vec<Stmt>> {
        let mut stmts = self.set_registers(&part.registers, &zero(part.registers.dtype)?);
        stmts.extend(part.stmts);
        let from = part.registers.local;
        stmts.extend(self.each_register(sums, &|local, at| {
            let value = Expr::Get { local: from, at: at.clone() };
            Stmt::Accumulate { local, at, op: BinaryFn::Add, value }
        }));
        Ok(stmts)
    }

    /// Turns of a loop from one of them on, in a copy of its body.
    pub(super) fn turns(
        &mut self,
        body: &[Stmt],
        var: Var,
        from: &Index,
        turns: &Dim,
        kind: LoopKind,
    ) -> Stmt {
        let own = self.kernel.loop_var("x");
        self.extents.insert(own, turns.clone());
        let mut body = body.to_vec();
        rename_lets(&mut self.kernel, &mut body);
        visit::substitute(&mut body, var, &from.add(&Index::var(own)));
        over(Axis { var: own, extent: turns.clone(), kind }, body)
    }

    /// Sets all registers.
    pub(super) fn set_registers(&mut self, registers: &Registers, value: &Expr) -> Vec<Stmt> {
        self.each_register(registers, &|local, at| Stmt::Set { local, at, value: value.clone() })
    }

    /// A statement for each vector of registers.
    fn each_register(
        &mut self,
        registers: &Registers,
        stmt: &dyn Fn(Local, Vec<Index>) -> Stmt,
    ) -> Vec<Stmt> {
        let Registers { local, shape, lanes, .. } = registers;
        let vector = |cx: &mut Self, width: usize, stmts: &dyn Fn(Index) -> Vec<Stmt>| {
            if *lanes == 1 && width == 1 {
                return stmts(Index::zero());
            }
            let var = cx.kernel.loop_var("v");
            let (lo, hi) = (Index::zero(), Index::int(width as i64));
            vec![Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body: stmts(Index::var(var)) }]
        };
        match shape[..] {
            [width] => vector(self, width, &|lane| vec![stmt(*local, vec![lane])]),
            [blocks, width] => vector(self, width, &|lane| {
                (0..blocks).map(|block| stmt(*local, vec![Index::int(block as i64), lane.clone()])).collect()
            }),
            _ => vec![],
        }
    }
}

/// The sum of nothing.
fn zero(dtype: DType) -> Result<Expr> {
    identity(ReduceFn::Sum, dtype)
}

/// A loop.
pub(super) fn over(axis: Axis, body: Vec<Stmt>) -> Stmt {
    let (lo, hi) = (Index::zero(), Index::dim(axis.extent));
    Stmt::For { var: axis.var, lo, hi, step: 1, kind: axis.kind, body }
}
