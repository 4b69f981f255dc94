//! How many lanes of a vector loop run at once, and how many elements each register of a local holds.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use super::value::Form;
use onnxc_ir::graph::Dim;
use onnxc_loops::{Expr, Index, Kernel, Local, LoopKind, Stmt, Term, Var, visit};
use onnxc_machine::vector::ir::Op;
use onnxc_machine::vector::isa::Isa;

/// Elements in the registers of each local: its declared number, if all vector loops over it have that number of lanes. Loops over fewer
/// that only read them take parts of registers.
pub(super) fn register_lanes(kernel: &Kernel, isa: Isa) -> SecondaryMap<Local, usize> {
    let mut lanes: SecondaryMap<Local, usize> = SecondaryMap::new();
    for (local, decl) in kernel.locals.iter() {
        lanes[local] = decl.lanes.max(1).min(isa.lanes(4));
    }
    loop {
        let mut changed = false;
        visit::stmts(&kernel.body, &mut |stmt| {
            let Stmt::For { var, lo, hi, kind: LoopKind::Vector, body, .. } = stmt else { return };
            let Some(extent) = extent(lo, hi) else { return };
            let count = group_lanes(kernel, isa, &lanes, *var, extent, body).unwrap_or(1);
            let written = written(body);
            for local in locals(body) {
                let parts = !written.contains(&local) && extent == count;
                let parts = parts && has_parts(kernel, isa, local, lanes[local], count);
                if count > 1 && lanes[local] > count && !parts {
                    lanes[local] = count;
                    changed = true;
                }
            }
        });
        if !changed {
            return lanes;
        }
    }
}

/// Lanes of a vector loop, where they are a constant.
pub(super) fn extent(lo: &Index, hi: &Index) -> Option<usize> {
    let extent = hi.add(&lo.scale(&Dim::from(-1i64))).as_int()?;
    usize::try_from(extent).ok()
}

/// Lanes that run at once: the number that the widest value that differs between them allows and its locals have, and that divides the
/// loop. None where the machine has no vectors of such values.
pub(super) fn group_lanes(
    kernel: &Kernel,
    isa: Isa,
    registers: &SecondaryMap<Local, usize>,
    var: Var,
    extent: usize,
    body: &[Stmt],
) -> Option<usize> {
    let mut varying = Varying { kernel, vars: HashSet::from([var]), width: 4 };
    varying.body(body);
    if isa.has_vectors() {
        isa.lanes_of(isa.lanes(varying.width), varying.width)?;
    }
    let vectors = locals(body).into_iter().map(|local| registers[local]).filter(|&lanes| lanes > 1);
    let widest = vectors.fold(isa.lanes(varying.width), usize::min).max(1);
    let lanes = if extent.is_multiple_of(widest) { widest } else { extent & extent.wrapping_neg() };
    Some(if isa.lanes_of(lanes, varying.width).is_some() { lanes } else { 1 })
}

/// Whether statements convert a value to a type of 8 bytes from a smaller one.
pub(super) fn widens(kernel: &Kernel, body: &[Stmt]) -> bool {
    let mut widens = false;
    visit::exprs(body, &mut |expr| {
        if let Expr::Cast { to, x, .. } = expr {
            widens |= to.size() == 8 && kernel.dtype(x).size() < 8;
        }
    });
    widens
}

/// Whether registers of a local, of `lanes` lanes, can be read by parts of `count`: halves, halves of these and so on.
fn has_parts(kernel: &Kernel, isa: Isa, local: Local, lanes: usize, count: usize) -> bool {
    let width = Form::of(kernel.locals[local].dtype).map_or(4, Form::width);
    let halves = std::iter::successors(Some(count), |size| Some(2 * size)).take_while(|&size| size < lanes);
    let has_half = |size| isa.lanes_of(size, width).is_some_and(|lanes| isa.has(Op::UpperHalf(lanes)));
    lanes.is_multiple_of(count) && halves.into_iter().all(has_half)
}

/// The locals that statements set.
pub(super) fn written(body: &[Stmt]) -> HashSet<Local> {
    let mut locals = HashSet::new();
    visit::stmts(body, &mut |stmt| {
        if let Stmt::Set { local, .. } | Stmt::Accumulate { local, .. } = stmt {
            locals.insert(*local);
        }
    });
    locals
}

/// The locals that statements name.
fn locals(body: &[Stmt]) -> HashSet<Local> {
    let mut locals = written(body);
    visit::exprs(body, &mut |expr| {
        if let Expr::Get { local, .. } = expr {
            locals.insert(*local);
        }
    });
    locals
}

/// Finds the widest value that differs between lanes.
struct Varying<'k> {
    kernel: &'k Kernel,
    vars: HashSet<Var>,
    width: usize,
}

impl Varying<'_> {
    fn need(&mut self, dtype: onnxc_ir::graph::DType) {
        let width = Form::of(dtype).map_or(4, Form::width);
        self.width = self.width.max(width.min(8));
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Let { var, value: Expr::Index(index) } => {
                    if self.index(index) {
                        self.vars.insert(*var);
                    }
                }
                Stmt::Let { var, value } => {
                    if self.expr(value) {
                        self.vars.insert(*var);
                    }
                }
                Stmt::Store { buf, index, value } => {
                    self.expr(value);
                    if self.index(index) {
                        self.need(self.kernel.buffers[*buf].dtype);
                    }
                }
                Stmt::Set { local, at, value } | Stmt::Accumulate { local, at, value, .. } => {
                    self.expr(value);
                    if at.iter().any(|index| self.index(index)) {
                        self.need(self.kernel.locals[*local].dtype);
                    }
                }
                Stmt::Check { condition, .. } => {
                    self.expr(condition);
                }
                Stmt::For { .. } | Stmt::If { .. } | Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
            }
        }
    }

    /// Whether a value differs between lanes; takes its width into account if so.
    fn expr(&mut self, expr: &Expr) -> bool {
        let varies = match expr {
            Expr::Var(var) => self.vars.contains(var),
            _ => {
                let by_index = expr.indices().into_iter().any(|index| self.index(index));
                // Each operand's width counts.
                expr.operands().into_iter().fold(by_index, |varies, operand| self.expr(operand) | varies)
            }
        };
        if varies {
            self.need(self.kernel.dtype(expr));
        }
        varies
    }

    fn index(&self, index: &Index) -> bool {
        index.terms.iter().any(|(term, _)| match term {
            Term::Var(var) => self.vars.contains(var),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => self.index(x),
        })
    }
}
