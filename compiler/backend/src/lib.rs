//! Compiles a fusion group to machine code, by the back end that takes it.
//!
//! Where the target has leaf kernels, a group is lowered for their wide vectors and tried there first. What has no
//! instructions there, and everything on other targets, is lowered for Cranelift, for which the same selector takes every kernel. A target
//! of several levels has all this once a level: same graph, same schedule, other machine code.
//!
//! Models repeat their layers: kernels that are equal but for names, and for the numbers of symbols that lie as far from each other,
//! are compiled once, and the time that compiling takes grows with the unlike kernels of a model.

pub mod codegen;
pub mod leaf;
#[cfg(any(test, feature = "load"))]
pub mod loaded;
#[cfg(all(test, unix))]
mod lowering_tests;
pub mod vector;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cranelift_codegen::isa::OwnedTargetIsa;
use rayon::prelude::*;

use crate::codegen::Code;
use crate::codegen::isa::{Opt, isa};
use crate::codegen::kernels::{Explanation, Failure, KernelCode, KernelVersion, Kernels, MachineCode};
use onnxc_ir::digest::digest;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, Sym, ValueId};
use onnxc_loops as loops;
use onnxc_loops::work;
use onnxc_loops::{Expr, Kernel, visit};
use onnxc_machine::target::{Core, Target};
use onnxc_machine::vector::isa::Isa;
use onnxc_schedule::{GroupId, GroupKind, Program, Step};

/// How far compiling is.
#[derive(Default, Debug)]
pub struct Counter {
    total: AtomicUsize,
    done: AtomicUsize,
}

impl Counter {
    /// More kernels are to be compiled.
    pub fn expect(&self, kernels: usize) {
        self.total.fetch_add(kernels, Ordering::Relaxed);
    }

    /// A kernel is compiled.
    pub fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Kernels that are compiled, and all; none before the first is begun.
    pub fn get(&self) -> (usize, usize) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// The back ends of one level of a target.
pub struct Backends<'t> {
    target: &'t Target,
    /// The machine as leaf kernels see it.
    leaf: Option<Core>,
    /// Cranelift with its optimizer, and without.
    speed: OwnedTargetIsa,
    plain: OwnedTargetIsa,
    /// What became of the kernels so far.
    leaf_done: Done<std::result::Result<Code, String>>,
    done: Done<Code>,
}

/// Results by the digest of a kernel, its names aside: kernels themselves would be most of the memory of a model of thousands.
struct Done<T>(Mutex<HashMap<[u64; 2], T>>);

impl<T: Clone> Done<T> {
    fn new() -> Done<T> {
        Done(Mutex::default())
    }

    /// The result for a kernel; several threads may compute one at once, and compute the same.
    fn get_or(&self, kernel: &Shared, compute: impl FnOnce(&Kernel) -> Result<T>) -> Result<T> {
        let key = digest(&kernel.0);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known.clone());
        }
        let result = compute(&kernel.0)?;
        lock().insert(key, result.clone());
        Ok(result)
    }
}

/// A kernel without names, and with its symbols numbered from 0. Machine code reads their values at fixed distances from an
/// address: it serves wherever symbols lie as far from each other.
struct Shared(Kernel);

impl Shared {
    /// The form of a kernel, and the number of its first symbol.
    fn new(kernel: &Kernel) -> (Shared, u32) {
        let mut kernel = kernel.clone();
        kernel.name.clear();
        kernel.tuning.clear();
        kernel.buffers.values_mut().for_each(|buffer| buffer.name.clear());
        kernel.locals.values_mut().for_each(|local| local.name.clear());
        kernel.vars.values_mut().for_each(|var| var.name.clear());
        kernel.tiles.values_mut().for_each(|tile| tile.name.clear());
        let mut first: Option<Sym> = None;
        visit::dims_mut(&mut kernel, &mut |dim| {
            dim.visit_symbols(&mut |sym| first = Some(first.map_or(sym, |first| first.min(sym))));
        });
        let first = first.map_or(0, Sym::as_u32);
        if first > 0 {
            let number = |sym: Sym| Dim::sym(Sym::from_u32(sym.as_u32() - first));
            let mut known = HashMap::new();
            visit::dims_mut(&mut kernel, &mut |dim| {
                if !dim.is_const() {
                    *dim = known.entry(dim.clone()).or_insert_with(|| dim.substitute(&number)).clone();
                }
            });
        }
        (Shared(kernel), first)
    }
}

/// A group's kernel as it was lowered for the back end that took it, and its machine code.
pub struct Built {
    pub kernel: Kernel,
    /// Is called with the address of the value of `first_symbol`.
    pub code: Code,
    pub first_symbol: u32,
    /// Why it is not a leaf kernel, where the target has those.
    pub refusal: Option<String>,
}

impl Backends<'_> {
    pub fn new(target: &Target) -> Result<Backends<'_>> {
        let (speed, plain) = (isa(target, Opt::Speed)?, isa(target, Opt::None)?);
        let (leaf_done, done) = (Done::new(), Done::new());
        Ok(Backends { target, leaf: target.leaf(), speed, plain, leaf_done, done })
    }

    /// Name of the level.
    pub fn cpu(&self) -> &str {
        &self.target.cpu
    }

    /// Compiles a group.
    pub fn build(&self, graph: &Graph, program: &Program, group: GroupId) -> Result<Built> {
        let mut refusal = None;
        if let (Some(core), Some(isa)) = (&self.leaf, self.target.wide) {
            match self.leaf_kernel(lower(graph, program, group, core)?, isa)? {
                Ok(built) => return Ok(built),
                Err(reason) => refusal = Some(reason),
            }
        }
        let kernel = lower(graph, program, group, &self.target.core)?;
        let (shared, first_symbol) = Shared::new(&kernel);
        let compile = |kernel: &Kernel| codegen::compile(kernel, self.isa(kernel), self.target);
        let code = Code { name: kernel.name.clone(), ..self.done.get_or(&shared, compile)? };
        Ok(Built { kernel, code, first_symbol, refusal })
    }

    /// What says why a group's kernel failed. It runs once in a run that has failed: it is made for little code.
    fn explanation(&self, graph: &Graph, program: &Program, group: GroupId) -> Result<Failure> {
        let Some((found, lost)) = explaining(graph, program, group, &self.target.core)? else {
            return Ok(Failure::Unexplained);
        };
        let loops::lower::explain::Explanation { kernel, texts } = found;
        let name = kernel.name.clone();
        let kernel = expanded(kernel)?;
        let (shared, first_symbol) = Shared::new(&kernel);
        let compile = |kernel: &Kernel| codegen::compile(kernel, self.isa(kernel), self.target);
        let code = Code { name: name.clone(), ..self.done.get_or(&shared, compile)? };
        let built = Built { code, kernel, first_symbol, refusal: None };
        let versions = vec![version((0, built))];
        let code = KernelCode { name, versions, failure: Failure::Never };
        Ok(Failure::Explained(Box::new(Explanation { code, texts, lost })))
    }

    /// Compiles a kernel for wide vectors; gives the reason where it is refused.
    fn leaf_kernel(&self, kernel: Kernel, isa: Isa) -> Result<std::result::Result<Built, String>> {
        let (shared, first_symbol) = Shared::new(&kernel);
        let code = self.leaf_done.get_or(&shared, |kernel| leaf::compile(kernel, isa))?;
        Ok(code.map(|code| {
            let code = Code { name: kernel.name.clone(), ..code };
            Built { kernel, code, first_symbol, refusal: None }
        }))
    }

    /// Vector IR of a group: that of a leaf kernel, or what Cranelift is given.
    pub fn vector(&self, built: &Built) -> String {
        let name = &built.kernel.name;
        let (note, isa) = match (&built.refusal, self.target.wide) {
            (Some(reason), _) => (format!(": no leaf kernel: {reason}"), self.target.narrow),
            (None, Some(isa)) => (String::new(), isa),
            (None, None) => (String::new(), self.target.narrow),
        };
        match vector::lower(&built.kernel, isa) {
            Ok(func) => format!("// {name}{note}\n{func}"),
            Err(reason) => format!("// {name}: {reason}\n"),
        }
    }

    /// Cranelift IR of a group as text, also of one that is a leaf kernel.
    pub fn clif(&self, graph: &Graph, program: &Program, group: GroupId) -> Result<String> {
        let kernel = lower(graph, program, group, &self.target.core)?;
        codegen::clif(&kernel, self.isa(&kernel), self.target)
    }

    /// Assembly of a group's machine code.
    pub fn assembly(&self, built: &Built) -> Result<String> {
        let Built { kernel, code, refusal, .. } = built;
        let maker = match (&self.leaf, refusal) {
            (None, _) => String::new(),
            (Some(_), None) => " // leaf kernel".to_string(),
            (Some(_), Some(reason)) => format!(" // no leaf kernel: {reason}"),
        };
        Ok(format!("{}:{maker}\n{}", kernel.name, codegen::disassemble(code, self.plain.as_ref())?))
    }

    fn isa(&self, kernel: &Kernel) -> &dyn cranelift_codegen::isa::TargetIsa {
        if codegen::prefers_speed(kernel) { self.speed.as_ref() } else { self.plain.as_ref() }
    }
}

/// Loop nests of a group for a machine's vectors, ready for a back end.
fn lower(graph: &Graph, program: &Program, group: GroupId, core: &Core) -> Result<Kernel> {
    let group_name = kernel_name(graph, program, group);
    expanded(loops::lower::lower(graph, &program.groups[group], &group_name, core)?)
}

/// A lowered kernel with its functions as arithmetic.
fn expanded(mut kernel: Kernel) -> Result<Kernel> {
    if cfg!(debug_assertions) {
        loops::verify::verify(&kernel)?;
    }
    loops::math::expand(&mut kernel);
    if cfg!(debug_assertions) {
        loops::verify::verify(&kernel)?;
    }
    Ok(kernel)
}

/// Whether a kernel has products of small integers or of bf16, or reads what products of bytes may be made of: bytes of both kinds.
fn has_narrow_products(kernel: &Kernel) -> bool {
    let reads = |dtype| kernel.buffers.values().any(|buffer| buffer.dtype == dtype);
    let mut found = reads(DType::U8) && reads(DType::I8);
    visit::exprs(&kernel.body, &mut |expr| {
        found |= matches!(expr, Expr::Binary { op, .. } if op.is_dot());
    });
    found
}

fn has_bf16(kernel: &Kernel) -> bool {
    let mut found = kernel.buffers.values().any(|buffer| buffer.dtype == DType::BF16);
    visit::exprs(&kernel.body, &mut |expr| found |= matches!(expr, Expr::Cast { to: DType::BF16, .. }));
    found
}

/// A group's kernel is named by its number and the ONNX node of its anchor.
fn kernel_name(graph: &Graph, program: &Program, group: GroupId) -> String {
    let node = program.groups[group].anchor;
    let origin = &graph.origins[graph.nodes[node].origin];
    format!("{group}_{}", origin.op_type)
}

/// The back ends of every level of a target.
pub struct Levels<'t>(Vec<Backends<'t>>);

impl<'t> Levels<'t> {
    pub fn new(target: &'t Target) -> Result<Levels<'t>> {
        target.levels().map(Backends::new).collect::<Result<_>>().map(Levels)
    }

    /// Whether a level has nothing for a kernel that another one, which it includes, has not: all that it adds is for types that
    /// the kernel does without.
    fn adds_nothing(&self, level: usize, before: usize, kind: GroupKind, kernel: &Kernel) -> bool {
        let (own, before) = (self.0[level].target, self.0[before].target);
        // Only reductions join bytes.
        let joins = kind == GroupKind::Reduce && own.adds_joined_bytes(before);
        own.adds_narrow_types_only(before)
            && !((own.adds_narrow_products(before) || joins) && has_narrow_products(kernel))
            && !(own.adds_bf16(before) && has_bf16(kernel))
    }

    pub fn get(&self, level: usize) -> &Backends<'t> {
        &self.0[level]
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// A group at the least level, and at the others where it is worth it and the code is not that of the version which would run
    /// there without; each with its level.
    pub fn build(&self, graph: &Graph, program: &Program, group: GroupId) -> Result<Vec<(usize, Built)>> {
        let kind = program.groups[group].kind;
        let mut versions: Vec<(usize, Built)> = vec![];
        for (level, backends) in self.0.iter().enumerate() {
            let included = |(other, _): &&(usize, Built)| backends.target.includes(self.0[*other].target);
            let before = versions.iter().rfind(included);
            if before.is_some_and(|(before, last)| self.adds_nothing(level, *before, kind, &last.kernel)) {
                continue;
            }
            let built = backends.build(graph, program, group)?;
            let worth_more = work::worth_upgrades(&built.kernel);
            let same = |(_, last): &(usize, Built)| {
                last.code == built.code
                    && last.first_symbol == built.first_symbol
                    && last.kernel.parallel_range() == built.kernel.parallel_range()
            };
            if !before.is_some_and(same) {
                versions.push((level, built));
            }
            if !worth_more {
                break;
            }
        }
        Ok(versions)
    }
}

/// Machine code of every kernel for every level of the target, bodies included. Kernels are compiled in
/// parallel.
pub fn compile_kernels(
    graph: &Graph,
    program: &Program,
    target: &Target,
    counter: &Counter,
) -> Result<Kernels> {
    counter.expect(count_kernels(program));
    if target.is_source {
        return describe_program(graph, program, target, counter);
    }
    compile_program(graph, program, &Levels::new(target)?, counter)
}

/// Kernels of a program, bodies included.
fn count_kernels(program: &Program) -> usize {
    let of_bodies = program.steps.iter().map(|step| match step {
        Step::Control { bodies, .. } => bodies.iter().map(count_kernels).sum(),
        _ => 0,
    });
    program.groups.len() + of_bodies.sum::<usize>()
}

/// What host programs need to know of kernels, without code: writers of source lower the nests again when they print them.
fn describe_program(graph: &Graph, program: &Program, target: &Target, counter: &Counter) -> Result<Kernels> {
    each_group(graph, program, counter, &|graph, program, group| {
        let name = kernel_name(graph, program, group);
        let kernel = lower(graph, program, group, &target.core)?;
        let failure = match visit::may_fail(&kernel.body) {
            true => describe_explanation(graph, program, group, target)?,
            false => Failure::Never,
        };
        Ok(KernelCode { name, versions: vec![described(&kernel)], failure })
    })
}

/// The kernels of a program and of the bodies of its steps: `kernel` of each group, several at a time.
fn each_group(
    graph: &Graph,
    program: &Program,
    counter: &Counter,
    kernel: &(dyn Fn(&Graph, &Program, GroupId) -> Result<KernelCode> + Sync),
) -> Result<Kernels> {
    let ids: Vec<GroupId> = program.groups.keys().collect();
    let counted = |group: GroupId| kernel(graph, program, group).inspect(|_| counter.count());
    // Taken in their order: threads that began at different layers would compile the same kernels at the same time.
    let numbered = ids.into_iter().enumerate().par_bridge();
    let mut codes: Vec<(usize, Result<KernelCode>)> =
        numbered.map(|(at, group)| (at, counted(group))).collect();
    codes.sort_unstable_by_key(|code| code.0);
    let mut kernels = Kernels::default();
    for (_, code) in codes {
        kernels.groups.push(code?);
    }
    for step in &program.steps {
        if let Step::Control { node, bodies, .. } = step {
            let bodies = graph.nodes[*node].op.bodies().iter().zip(bodies);
            let bodies = bodies.map(|(graph, program)| each_group(graph, program, counter, kernel));
            kernels.bodies.insert(*node, bodies.collect::<Result<Vec<_>>>()?);
        }
    }
    Ok(kernels)
}

fn describe_explanation(
    graph: &Graph,
    program: &Program,
    group: GroupId,
    target: &Target,
) -> Result<Failure> {
    let Some((found, lost)) = explaining(graph, program, group, &target.core)? else {
        return Ok(Failure::Unexplained);
    };
    let loops::lower::explain::Explanation { kernel, texts } = found;
    let versions = vec![described(&expanded(kernel.clone())?)];
    let code = KernelCode { name: kernel.name, versions, failure: Failure::Never };
    Ok(Failure::Explained(Box::new(Explanation { code, texts, lost })))
}

/// The one version of a kernel that has no machine code.
fn described(kernel: &Kernel) -> KernelVersion {
    KernelVersion {
        level: 0,
        refusal: None,
        first_symbol: 0,
        threads: work::worth_threads(kernel),
        range: kernel.parallel_range().map(|(lo, hi)| (lo.clone(), hi.clone())),
        code: MachineCode { bytes: vec![], alignment: 1, stack: 0, unwind: vec![] },
    }
}

/// The kernel that says why a group's kernel failed, and the inputs that this has overwritten.
fn explaining(
    graph: &Graph,
    program: &Program,
    group: GroupId,
    core: &Core,
) -> Result<Option<(loops::lower::explain::Explanation, Vec<ValueId>)>> {
    let name = format!("{}.explain", kernel_name(graph, program, group));
    let own = &program.groups[group];
    let is_lost = |input: &&ValueId| {
        own.outputs.iter().any(|&output| program.storage(output) == program.storage(**input))
    };
    let lost: Vec<ValueId> = own.inputs.iter().filter(is_lost).copied().collect();
    let found = loops::lower::explain::explain(graph, own, &lost, &name, core)?;
    Ok(found.map(|found| (found, lost)))
}

fn compile_program(
    graph: &Graph,
    program: &Program,
    levels: &Levels<'_>,
    counter: &Counter,
) -> Result<Kernels> {
    each_group(graph, program, counter, &|graph, program, group| {
        let built = levels.build(graph, program, group)?;
        let failure = match built.iter().any(|(_, built)| visit::may_fail(&built.kernel.body)) {
            true => levels.get(0).explanation(graph, program, group)?,
            false => Failure::Never,
        };
        let versions = built.into_iter().map(version).collect();
        Ok(KernelCode { name: kernel_name(graph, program, group), versions, failure })
    })
}

fn version((level, built): (usize, Built)) -> KernelVersion {
    let Built { kernel, code, first_symbol, refusal } = built;
    KernelVersion {
        level,
        refusal,
        first_symbol,
        threads: work::worth_threads(&kernel),
        range: kernel.parallel_range().map(|(lo, hi)| (lo.clone(), hi.clone())),
        code: MachineCode {
            bytes: code.bytes,
            alignment: u64::from(code.align),
            stack: code.stack,
            unwind: code.unwind,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::parse::parse;
    use onnxc_schedule as schedule;

    /// Layers whose symbols lie as far from each other have one machine code, called with the sizes from their first symbol on.
    #[test]
    fn kernels_that_differ_by_the_numbers_of_symbols_share_their_code() {
        let text = r#"graph "layers" {
  symbol s0 "a"
  symbol s1 "b"
  symbol s2 "c"
  input v0 "x" : f32[s0, s1, 3]
  input v1 "y" : f32[s1, s2, 3]
  input v2 "z" : f32[s0, s2, 3]
  v3 = transpose v0 {perm=[1, 0, 2]} : f32[s1, s0, 3] @o0(0 "Exp" "first")
  v4 = transpose v1 {perm=[1, 0, 2]} : f32[s2, s1, 3] @o0
  v5 = transpose v2 {perm=[1, 0, 2]} : f32[s2, s0, 3] @o0
  v6 = exp v3 : f32[s1, s0, 3] @o0
  v7 = exp v4 : f32[s2, s1, 3] @o0
  v8 = exp v5 : f32[s2, s0, 3] @o0
  return v6 "p", v7 "q", v8 "r"
}
"#;
        let graph = parse(text).unwrap();
        let program = schedule::schedule(&graph, schedule::Options::default()).unwrap();
        let target = Target::parse("x86_64-unknown-linux-gnu", None).unwrap();
        let kernels = compile_kernels(&graph, &program, &target, &Counter::default()).unwrap();
        let mut codes = Vec::new();
        for (id, kernel) in &kernels.groups {
            let code = kernel.versions[0].code.clone();
            codes.push((
                graph.ty(program.groups[id].outputs[0]).to_string(),
                kernel.versions[0].first_symbol,
                code,
            ));
        }
        codes.sort_by(|a, b| a.0.cmp(&b.0));
        let first: Vec<u32> = codes.iter().map(|code| code.1).collect();
        assert_eq!(first, [0, 0, 1], "of f32[s1, s0, 3], f32[s2, s0, 3] and f32[s2, s1, 3]");
        assert!(codes[0].2 == codes[2].2, "symbols 0 and 1, and 1 and 2");
        assert!(codes[0].2 != codes[1].2, "symbols 0 and 2 lie further from each other");
    }
}
