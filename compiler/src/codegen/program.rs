//! The kernels of a whole program: every group lowered, its functions expanded and compiled, in parallel.

use std::sync::Arc;

use cranelift_codegen::isa::OwnedTargetIsa;
use rayon::prelude::*;

use crate::codegen::emit::{KernelCode, Kernels, MachineCode};
use crate::codegen::{compile, prefers_speed};
use crate::error::{Error, Result, Stage};
use crate::graph::{Graph, Op};
use crate::loops::lower::lower;
use crate::loops::{Expr, Index, Kernel, Stmt, math};
use crate::schedule::{Group, GroupId, Program, Step};
use crate::target::{Opt, Target};

/// Operations below which a kernel does not pay for waking threads: some ten microseconds of work.
const WORTH_THREADS: u64 = 100_000;

/// Compiles the kernels of a scheduled graph and of the bodies of its scans. The result does not depend on the
/// number of threads. Errors: what lowering cannot express, named by the ONNX node it comes from.
pub fn compile_program(graph: &Graph, program: &Program, target: &Target) -> Result<Kernels> {
    let isas = Arc::new([target.isa(Opt::None)?, target.isa(Opt::Speed)?]);
    scope(graph, program, target, &isas)
}

fn scope(graph: &Graph, program: &Program, target: &Target, isas: &[OwnedTargetIsa; 2]) -> Result<Kernels> {
    let groups: Vec<(GroupId, &Group)> = program.groups.iter().collect();
    let compiled: Vec<Result<KernelCode>> =
        groups.par_iter().map(|(id, group)| compile_group(graph, *id, group, target, isas)).collect();
    let mut kernels = Kernels::default();
    for kernel in compiled {
        kernels.groups.push(kernel?);
    }
    for step in &program.steps {
        if let Step::Scan { node, body, .. } = step {
            let Op::Scan { body: graph, .. } = &graph.nodes[*node].op else {
                return Err(Error::internal(Stage::Codegen, format!("{node} is run as a scan")));
            };
            kernels.bodies.insert(*node, scope(graph, body, target, isas)?);
        }
    }
    Ok(kernels)
}

fn compile_group(
    graph: &Graph,
    id: GroupId,
    group: &Group,
    target: &Target,
    isas: &[OwnedTargetIsa; 2],
) -> Result<KernelCode> {
    let origin = &graph.origins[graph.nodes[group.anchor].origin];
    let name = format!("{id}_{}", origin.name);
    let mut kernel = lower(graph, group, &name, target)?;
    math::expand(&mut kernel);
    let isa = &isas[usize::from(prefers_speed(&kernel))];
    let code = compile(&kernel, &**isa, target)?;
    let range = kernel.parallel_range().map(|(lo, hi)| (lo.clone(), hi.clone()));
    let worth_threads = range.is_some() && work(&kernel) >= WORTH_THREADS;
    let code = MachineCode { bytes: code.bytes, alignment: u64::from(code.align) };
    Ok(KernelCode { name, code, range, worth_threads })
}

/// Operations of a kernel, roughly; loops of unknown extent count as long.
fn work(kernel: &Kernel) -> u64 {
    kernel.body.iter().map(stmt_work).fold(0, u64::saturating_add)
}

fn stmt_work(stmt: &Stmt) -> u64 {
    let all = |body: &[Stmt]| body.iter().map(stmt_work).fold(0, u64::saturating_add);
    match stmt {
        Stmt::For { lo, hi, step, body, .. } => extent(lo, hi, *step).saturating_mul(all(body)),
        Stmt::If { then, otherwise, .. } => all(then).max(all(otherwise)).saturating_add(1),
        Stmt::Let { value, .. }
        | Stmt::Store { value, .. }
        | Stmt::Set { value, .. }
        | Stmt::Accumulate { value, .. } => expr_work(value).saturating_add(1),
        Stmt::Check { .. } => 1,
    }
}

fn extent(lo: &Index, hi: &Index, step: i64) -> u64 {
    /// What a loop of unknown extent is taken for.
    const UNKNOWN: u64 = 1024;
    match (hi.as_int(), lo.as_int()) {
        (Some(hi), Some(lo)) => hi.saturating_sub(lo).max(0).unsigned_abs() / step.unsigned_abs().max(1),
        _ => UNKNOWN,
    }
}

fn expr_work(expr: &Expr) -> u64 {
    match expr {
        Expr::Const { .. } | Expr::Index(_) | Expr::Var(_) | Expr::Get { .. } => 0,
        Expr::Load { .. } => 1,
        Expr::Unary { x, .. } | Expr::Cast { x, .. } | Expr::Bitcast { x, .. } => 1 + expr_work(x),
        Expr::Binary { a, b, .. } | Expr::Compare { a, b, .. } => 1 + expr_work(a) + expr_work(b),
        Expr::Fma { a, b, c } => 1 + expr_work(a) + expr_work(b) + expr_work(c),
        Expr::Select { condition, then, otherwise } => {
            1 + expr_work(condition) + expr_work(then) + expr_work(otherwise)
        }
    }
}
