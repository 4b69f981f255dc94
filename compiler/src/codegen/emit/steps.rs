//! The functions that run a program's steps. They read everything from a frame (see `abi::frame`): the
//! addresses they hand to kernels are a base plus an offset, constant or from the table of sizes.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Signature, StackSlot, Value, types};
use cranelift_entity::EntityRef;
use cranelift_module::FuncId;

use crate::codegen::Threads;
use crate::codegen::emit::abi::{frame, options, status};
use crate::codegen::emit::control::Control;
use crate::codegen::emit::dynamic::Context;
use crate::codegen::emit::func::Code;
use crate::codegen::emit::layout::{ControlPlan, Plan, PointerArray, Scope, internal};
use crate::codegen::emit::message::{A, printable};
use crate::codegen::emit::object::Unit;
use crate::codegen::emit::{KernelCode, KernelVersion, StepInfo};
use crate::error::Result;
use crate::graph::{Dim, NodeId, Op, ValueId};
use crate::schedule::{BlockId, GroupId, Place, Scratch, Step};

/// Steps per function: large programs become several functions, which compile in parallel.
const STEPS_PER_FUNCTION: usize = 48;

/// Functions and signatures that all steps share.
pub(super) struct Shared {
    pub message: FuncId,
    trampoline: FuncId,
    kernel: Signature,
    parallel_for: Signature,
    steps: Signature,
    step_done: Signature,
    /// Names of the target's levels.
    levels: Vec<String>,
    /// Call the `step_done` callback of the options after each step.
    profile: bool,
    /// What each step is, in the order of their numbers.
    pub infos: Vec<StepInfo>,
    /// Bytes of kernels' code.
    pub kernel_bytes: u64,
}

impl Shared {
    pub fn new(unit: &mut Unit, message: FuncId, levels: Vec<String>, profile: bool) -> Result<Shared> {
        let (p, i) = (types::I64, types::I32);
        let kernel = unit.signature(&[p, p, p, p], Some(i));
        let range = unit.signature(&[p, p, p], Some(i));
        let trampoline = unit.declare("part", &range)?;
        let kernel_signature = kernel.clone();
        unit.build(trampoline, |code| {
            trampoline_body(code, &kernel_signature);
            Ok(())
        })?;
        Ok(Shared {
            message,
            trampoline,
            kernel,
            parallel_for: unit.signature(&[p, p, p, p, p], Some(i)),
            steps: unit.signature(&[p], Some(i)),
            step_done: unit.signature(&[p, p], None),
            levels,
            profile,
            infos: vec![],
            kernel_bytes: 0,
        })
    }
}

/// `int32_t part(void *job, int64_t begin, int64_t end)`: one part of a parallel kernel. A job is the kernel,
/// its buffers and its dims.
fn trampoline_body(code: &mut Code<'_>, kernel: &Signature) {
    let params = code.params();
    let function = code.load64(params[0], 0);
    let buffers = code.load64(params[0], 8);
    let dims = code.load64(params[0], 16);
    let result = code
        .call_pointer(kernel, function, &[buffers, dims, params[1], params[2]])
        .expect("kernels have a result");
    code.b.ins().return_(&[result]);
}

/// Emits the kernels and step functions of a scope and of the scopes inside it. The functions, each
/// `int32_t steps(frame)`, are to be called in order while they return 0.
pub(super) fn emit(
    unit: &mut Unit,
    plan: &Plan,
    scope: &Scope<'_>,
    shared: &mut Shared,
) -> Result<Vec<FuncId>> {
    let kernels = place_kernels(unit, scope, shared)?;
    let mut functions = vec![];
    for (part, steps) in scope.program.steps.chunks(STEPS_PER_FUNCTION).enumerate() {
        let first = part * STEPS_PER_FUNCTION;
        let mut work = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            work.push(prepare(unit, plan, scope, shared, step, first + at)?);
        }
        let id = unit.declare(&format!("{}.steps{part}", scope_name(scope)), &shared.steps.clone())?;
        unit.build(id, |code| {
            let mut writer = StepWriter::new(code, plan, scope, shared, &kernels);
            for work in &work {
                writer.step(work)?;
            }
            writer.finish();
            Ok(())
        })?;
        functions.push(id);
    }
    Ok(functions)
}

/// Places the versions of every kernel; gives their functions, by number of the kernel.
fn place_kernels(unit: &mut Unit, scope: &Scope<'_>, shared: &mut Shared) -> Result<Vec<Vec<FuncId>>> {
    let mut kernels = Vec::with_capacity(scope.kernels.groups.len());
    for (number, kernel) in scope.kernels.groups.values().enumerate() {
        kernel.baseline()?;
        let mut functions = Vec::with_capacity(kernel.versions.len());
        for version in &kernel.versions {
            let level = match shared.levels.get(version.level) {
                _ if version.level == 0 => String::new(),
                Some(level) => format!(".{}", symbol_text(level)),
                None => return Err(internal(format!("kernel `{}` has an unknown level", kernel.name))),
            };
            let name = format!("{}.kernel{number}.{}{level}", scope_name(scope), symbol_text(&kernel.name));
            let id = unit.declare(&name, &shared.kernel.clone())?;
            unit.place(id, &version.code)?;
            shared.kernel_bytes += version.code.bytes.len() as u64;
            functions.push(id);
        }
        kernels.push(functions);
    }
    Ok(kernels)
}

/// A step with what had to be emitted before it.
struct Work<'p> {
    step: &'p Step,
    /// Its number in its program.
    at: usize,
    /// Its number among all steps of the model.
    number: usize,
    /// Of control flow: its plan, and its bodies with their functions.
    control: Option<&'p ControlPlan>,
    bodies: Vec<(Scope<'p>, Vec<FuncId>)>,
}

fn prepare<'p>(
    unit: &mut Unit,
    plan: &'p Plan,
    scope: &Scope<'p>,
    shared: &mut Shared,
    step: &'p Step,
    at: usize,
) -> Result<Work<'p>> {
    let number = shared.infos.len();
    shared.infos.push(info(scope, step)?);
    let (mut bodies, mut control) = (vec![], None);
    if let Step::Control { node, bodies: programs, .. } = step {
        let found = plan.control(scope, at)?;
        for inner in scope.bodies(*node, programs, &found.bodies)? {
            let functions = emit(unit, plan, &inner, shared)?;
            bodies.push((inner, functions));
        }
        control = Some(found);
    }
    Ok(Work { step, at, number, control, bodies })
}

/// What a step is, for profiles.
fn info(scope: &Scope<'_>, step: &Step) -> Result<StepInfo> {
    let origin = |node: &NodeId| {
        let origin = &scope.graph.origins[scope.graph.nodes[*node].origin];
        format!("{} ({})", origin.name, origin.op_type)
    };
    Ok(match step {
        Step::Run(id) => {
            let (group, kernel) = scope.group(*id)?;
            let mut nodes: Vec<String> = group.nodes.iter().map(origin).collect();
            nodes.dedup();
            StepInfo { kernel: kernel.name.clone(), nodes, scope: scope.index }
        }
        Step::Copy { from, .. } => StepInfo {
            kernel: "copy".into(),
            nodes: scope.graph.producer(*from).iter().map(origin).collect(),
            scope: scope.index,
        },
        Step::Control { node, .. } => StepInfo {
            kernel: scope.graph.nodes[*node].op.name().into(),
            nodes: vec![origin(node)],
            scope: scope.index,
        },
        Step::Bind(sym) => StepInfo {
            kernel: "bind".into(),
            nodes: scope.graph.producer(scope.graph.data[sym].value).iter().map(origin).collect(),
            scope: scope.index,
        },
        Step::Allocate(block) | Step::Release(block) => StepInfo {
            kernel: if matches!(step, Step::Release(_)) { "release" } else { "allocate" }.into(),
            nodes: scope.program.heap[*block].writer.iter().map(origin).collect(),
            scope: scope.index,
        },
    })
}

fn scope_name(scope: &Scope<'_>) -> String {
    if scope.index == 0 { "main".to_string() } else { format!("body{}", scope.index) }
}

/// The part of a name that every assembler and debugger accepts, of bounded length.
fn symbol_text(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// Writes the steps of one function.
pub(super) struct StepWriter<'c, 'a, 'p> {
    pub(super) code: &'c mut Code<'a>,
    pub(super) plan: &'p Plan,
    pub(super) scope: &'p Scope<'p>,
    pub(super) shared: &'p Shared,
    kernels: &'p [Vec<FuncId>],
    pub(super) frame: Value,
    pub(super) arena: Value,
    weights: Value,
    pub(super) options: Value,
    pub(super) dims: Value,
    cancel: Value,
    /// See [`frame::LEVEL`].
    level: Value,
    /// Pointers for one kernel call; every call of the function reuses it.
    buffers: StackSlot,
    /// The frame of a body; every step of control flow reuses it.
    body_frame: StackSlot,
    job: StackSlot,
    /// Returns the status it is given; the message has been written.
    pub(super) leave: Block,
}

impl<'c, 'a, 'p> StepWriter<'c, 'a, 'p> {
    fn new(
        code: &'c mut Code<'a>,
        plan: &'p Plan,
        scope: &'p Scope<'p>,
        shared: &'p Shared,
        kernels: &'p [Vec<FuncId>],
    ) -> StepWriter<'c, 'a, 'p> {
        let frame = code.params()[0];
        let (buffers, body_frame, job) = (code.slot(0), code.slot(0), code.slot(24));
        let leave = code.cold_block();
        code.b.append_block_param(leave, types::I32);
        StepWriter {
            arena: code.load64(frame, frame::ARENA),
            weights: code.load64(frame, frame::WEIGHTS),
            options: code.load64(frame, frame::OPTIONS),
            dims: code.load64(frame, frame::DIMS),
            cancel: code.load64(frame, frame::CANCEL),
            level: code.load64(frame, frame::LEVEL),
            code,
            plan,
            scope,
            shared,
            kernels,
            frame,
            buffers,
            body_frame,
            job,
            leave,
        }
    }

    fn finish(self) {
        let ok = self.code.int32(status::OK);
        self.code.b.ins().return_(&[ok]);
        self.code.b.switch_to_block(self.leave);
        let result = self.code.b.block_params(self.leave)[0];
        self.code.b.ins().return_(&[result]);
        self.code.write_fail_block(self.shared.message);
    }

    fn step(&mut self, work: &Work<'p>) -> Result<()> {
        match work.step {
            Step::Run(id) => {
                self.poll();
                self.run(*id)?;
            }
            Step::Copy { from, output } => {
                let bytes = self.size(&self.scope.graph.ty(*from).bytes())?;
                let slot = self.scope.graph.inputs.len() + output;
                let to = match self.scope.program.handed.get(output) {
                    Some(block) => self.block(*block)?,
                    None => self.code.load64(self.frame, frame::IO + 8 * slot as i64),
                };
                let from = self.address(*from)?;
                self.code.memcpy(to, from, bytes)?;
            }
            Step::Control { node, scratch, .. } => {
                let plan = work.control.ok_or_else(|| internal("unplanned control flow".into()))?;
                let work = Control { node: *node, scratch, plan, bodies: &work.bodies };
                match &self.scope.graph.nodes[*node].op {
                    Op::If { .. } => self.choice(&work)?,
                    _ => self.scan(&work)?,
                }
            }
            Step::Bind(sym) => {
                let source = self.address(self.scope.graph.data[sym].value)?;
                self.context().bind(self.code, work.at, *sym, source)?;
            }
            Step::Allocate(block) => {
                let bytes = self.size(&self.scope.program.heap[*block].bytes)?;
                self.context().allocate(self.code, *block, bytes)?;
            }
            Step::Release(block) => self.context().release(self.code, *block)?,
        }
        if self.shared.profile {
            self.step_done(work.number);
        }
        Ok(())
    }

    pub(super) fn context(&self) -> Context<'p> {
        let StepWriter { plan, scope, frame, options, dims, .. } = *self;
        Context { plan, scope, frame, options, dims }
    }

    pub(super) fn poll(&mut self) {
        self.code.poll(self.cancel, self.options);
    }

    fn step_done(&mut self, number: usize) {
        let callback = self.code.load64(self.options, options::STEP_DONE);
        let (call, next) = (self.code.block(), self.code.block());
        self.code.branch(callback, call, next);
        self.code.b.switch_to_block(call);
        let context = self.code.load64(self.options, options::STEP_CONTEXT);
        let number = self.code.int(number as i64);
        let signature = self.shared.step_done.clone();
        self.code.call_pointer(&signature, callback, &[context, number]);
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
    }

    /// A size at run time.
    pub(super) fn size(&mut self, dim: &Dim) -> Result<Value> {
        if let Some(value) = dim.as_const() {
            return Ok(self.code.int(value));
        }
        let index = self
            .plan
            .size_index(dim)
            .ok_or_else(|| internal(format!("the size {dim} is not in the table")))?;
        Ok(self.code.load64(self.dims, 8 * index as i64))
    }

    pub(super) fn offset(&mut self, base: Value, offset: &Dim) -> Result<Value> {
        match offset.as_const() {
            Some(offset) => Ok(self.code.add(base, offset)),
            None => {
                let offset = self.size(offset)?;
                Ok(self.code.b.ins().iadd(base, offset))
            }
        }
    }

    pub(super) fn address(&mut self, value: ValueId) -> Result<Value> {
        let (value, place) = self.scope.place(value)?;
        match place {
            Place::Input(number) => Ok(self.code.load64(self.frame, frame::IO + 8 * *number as i64)),
            Place::Output(number) => {
                let slot = self.scope.graph.inputs.len() + number;
                Ok(self.code.load64(self.frame, frame::IO + 8 * slot as i64))
            }
            Place::Constant => {
                let offset = self.plan.constant(self.scope, value)?;
                Ok(self.code.add(self.weights, offset as i64))
            }
            Place::Arena { offset, .. } => self.offset(self.arena, offset),
            Place::Heap(block) => self.block(*block),
            Place::None | Place::Alias(_) => Err(internal(format!("{value} is used and has no place"))),
        }
    }

    /// Address of an array of pointers, on the stack or in the workspace.
    pub(super) fn pointers(&mut self, array: PointerArray) -> Value {
        let slot = match array {
            PointerArray::Frame(_) => self.body_frame,
            PointerArray::Buffers => self.buffers,
        };
        match self.plan.pointers(array) {
            (_, Some(offset)) => self.code.add(self.dims, offset),
            (bytes, None) => self.code.slot_addr_of(slot, bytes),
        }
    }

    /// Address of a block.
    pub(super) fn block(&mut self, block: BlockId) -> Result<Value> {
        let slot = self.plan.dynamic.block_at(self.scope.index, block)?;
        Ok(self.code.load64(self.dims, slot))
    }

    /// Address of a step's scratch.
    pub(super) fn scratch(&mut self, scratch: &Scratch) -> Result<Value> {
        match scratch {
            Scratch::Arena(offset) => self.offset(self.arena, offset),
            Scratch::Heap(block) => self.block(*block),
        }
    }

    fn run(&mut self, id: GroupId) -> Result<()> {
        let (group, kernel) = self.scope.group(id)?;
        let buffers = self.pointers(PointerArray::Buffers);
        for (at, &value) in group.inputs.iter().chain(&group.outputs).enumerate() {
            let address = self.address(value)?;
            self.code.store(address, buffers, 8 * at as i64);
        }
        if let Some(scratch) = &self.scope.program.scratch[id] {
            let address = self.scratch(scratch)?;
            let at = group.inputs.len() + group.outputs.len();
            self.code.store(address, buffers, 8 * at as i64);
        }
        let result = self.best_version(id, kernel, buffers)?;
        let origin = &self.scope.graph.origins[self.scope.graph.nodes[group.anchor].origin];
        let template = format!(
            "node `{}` ({}): an index or a size is out of range (check {A})",
            printable(&origin.name),
            printable(&origin.op_type)
        );
        let zero = self.code.int(0);
        let check = self.code.b.ins().sextend(types::I64, result);
        self.code.fail_if(result, status::OUT_OF_RANGE, &template, [check, zero], self.options);
        Ok(())
    }

    /// Runs the best version that the processor is good for; gives its result.
    fn best_version(&mut self, id: GroupId, kernel: &'p KernelCode, buffers: Value) -> Result<Value> {
        let functions = &self.kernels[id.index()];
        let (baseline, function) = (kernel.baseline()?, functions[0]);
        if functions.len() == 1 {
            return self.version(baseline, function, buffers);
        }
        let join = self.code.block();
        self.code.b.append_block_param(join, types::I32);
        for (version, &function) in kernel.versions.iter().zip(functions).skip(1).rev() {
            let (this, lesser) = (self.code.block(), self.code.block());
            let good = self.code.icmp_imm(IntCC::SignedGreaterThan, self.level, version.level as i64);
            self.code.branch(good, this, lesser);
            self.code.b.switch_to_block(this);
            let result = self.version(version, function, buffers)?;
            self.code.jump(join, &[result]);
            self.code.b.switch_to_block(lesser);
        }
        let result = self.version(baseline, function, buffers)?;
        self.code.jump(join, &[result]);
        self.code.b.switch_to_block(join);
        Ok(self.code.b.block_params(join)[0])
    }

    fn version(&mut self, version: &KernelVersion, function: FuncId, buffers: Value) -> Result<Value> {
        let (lo, hi) = match &version.range {
            Some((lo, hi)) => (self.size(lo)?, self.size(hi)?),
            None => (self.code.int(0), self.code.int(1)),
        };
        let single = |range: &(Dim, Dim)| {
            (range.1.clone() - range.0.clone()).as_const().is_some_and(|extent| extent <= 1)
        };
        let enough = match (&version.range, &version.threads) {
            (Some(range), Threads::Always) if !single(range) => None,
            (Some(range), Threads::From { size, least }) if !single(range) => {
                let size = self.size(size)?;
                Some(self.code.icmp_imm(IntCC::SignedGreaterThanOrEqual, size, *least))
            }
            _ => return Ok(self.code.call(function, &[buffers, self.dims, lo, hi])),
        };
        Ok(self.parallel(function, buffers, [lo, hi], enough))
    }

    /// Runs a kernel through the caller's parallel-for, or here if there is none or not `enough` work.
    fn parallel(
        &mut self,
        function: FuncId,
        buffers: Value,
        [lo, hi]: [Value; 2],
        enough: Option<Value>,
    ) -> Value {
        let (threads, alone, join) = (self.code.block(), self.code.block(), self.code.block());
        self.code.b.append_block_param(join, types::I32);
        let parallel_for = self.code.load64(self.frame, frame::PARALLEL);
        let extent = self.code.b.ins().isub(hi, lo);
        let given = self.code.icmp_imm(IntCC::NotEqual, parallel_for, 0);
        let several = self.code.icmp_imm(IntCC::SignedGreaterThan, extent, 1);
        let shared = self.code.b.ins().band(given, several);
        let shared = enough.map_or(shared, |enough| self.code.b.ins().band(shared, enough));
        self.code.branch(shared, threads, alone);

        self.code.b.switch_to_block(alone);
        let result = self.code.call(function, &[buffers, self.dims, lo, hi]);
        self.code.jump(join, &[result]);

        self.code.b.switch_to_block(threads);
        let job = self.code.slot_addr(self.job);
        let kernel = self.code.function_addr(function);
        for (offset, value) in [(0, kernel), (8, buffers), (16, self.dims)] {
            self.code.store(value, job, offset);
        }
        let part = self.code.function_addr(self.shared.trampoline);
        self.code.unit.note_call(self.shared.trampoline, function);
        let pool = self.code.load64(self.options, options::POOL);
        let signature = self.shared.parallel_for.clone();
        let result = self
            .code
            .call_pointer(&signature, parallel_for, &[pool, lo, hi, part, job])
            .expect("parallel_for has a result");
        self.code.jump(join, &[result]);
        self.code.b.switch_to_block(join);
        self.code.b.block_params(join)[0]
    }
}
