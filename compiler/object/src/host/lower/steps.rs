//! The functions that run a program's steps. The addresses that they hand to kernels are those of inputs, outputs and
//! constants, or the arena's plus an offset, constant or from the table of sizes.

use std::collections::BTreeMap;

use cranelift_entity::PrimaryMap;

use crate::host::StepInfo;
use crate::host::abi::status;
use crate::host::ir::{
    Address, Compare, Condition, Event, Extent, FAULT_OF_STRINGS, FrameField, FuncId, FunctionKind, Kernel,
    KernelId, Op, Operand, OptionsField, Place, Policy, Traced, Type, Value, Version,
};
use crate::host::lower::bind::Binder;
use crate::host::lower::builder::Builder;
use crate::host::lower::control::Control;
use crate::host::lower::layout::{ConstantPlace, ControlPlan, Plan, Scope};
use crate::host::lower::text::node_text;
use crate::host::lower::{Calls, KernelUse, Lowered, internal};
use crate::host::message::{self, V, printable};
use onnxc_backend::codegen::kernels::{Explanation, Failure, KernelCode, KernelVersion};
use onnxc_ir::error::Result;
use onnxc_ir::graph::call::{LARGE_IMAGE, Subject};
use onnxc_ir::graph::{Call, Dim, Graph, NodeId, Op as GraphOp, ValueId};
use onnxc_loops::work::Threads;
use onnxc_schedule::{BlockId, Group, GroupId, Scratch, Step, Storage};

/// Steps per function: large programs become several functions, which compile in parallel.
const STEPS_PER_FUNCTION: usize = 48;

/// Writes the step functions of a scope and of the scopes inside it. They are to be called in order while they return 0.
pub(super) fn lower<'g>(
    lowered: &mut Lowered<'g>,
    plan: &Plan,
    scope: &Scope<'g>,
    calls: Calls,
) -> Result<Vec<FuncId>> {
    let kernels = add_kernels(lowered, plan, scope)?;
    let mut functions = vec![];
    let is_update =
        |step: &Step| matches!(step, Step::Run(id) if scope.program.replaces_states(scope.graph, *id));
    let replaces = scope.program.steps.iter().position(is_update);
    for (part, steps) in scope.program.steps.chunks(STEPS_PER_FUNCTION).enumerate() {
        let first = part * STEPS_PER_FUNCTION;
        let mut work = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            work.push(prepare(lowered, plan, scope, step, (first + at, calls))?);
        }
        let name = format!("{}.steps{part}", scope_name(scope));
        let mut builder = Builder::new(name, FunctionKind::Steps(scope.frame()));
        let mut writer = StepWriter { b: &mut builder, plan, scope, kernels: &kernels, calls, replaces };
        work.iter().try_for_each(|work| writer.step(work))?;
        builder.effect(Op::Return(i64::from(status::OK).into()));
        functions.push(lowered.program.functions.push(builder.finish()));
    }
    Ok(functions)
}

/// The kernels of a scope.
#[derive(Default)]
struct ScopeKernels {
    of_groups: PrimaryMap<GroupId, KernelId>,
    /// Those that explain why the kernel of a group failed.
    explaining: BTreeMap<GroupId, KernelId>,
}

/// Declares the kernels of a scope.
fn add_kernels<'g>(lowered: &mut Lowered<'g>, plan: &Plan, scope: &Scope<'g>) -> Result<ScopeKernels> {
    let mut kernels = ScopeKernels::default();
    for (number, id) in scope.program.groups.keys().enumerate() {
        let (group, code) = scope.group(id)?;
        let mut add = |code: &'g KernelCode, explains: Option<&'g Explanation>| -> Result<KernelId> {
            let name = format!("{}.kernel{number}.{}", scope_name(scope), symbol_text(&code.name));
            let versions = versions(plan, code)?;
            lowered.kernels.push(KernelUse { code, graph: scope.graph, group, explains });
            Ok(lowered.program.kernels.push(Kernel { name, versions }))
        };
        kernels.of_groups.push(add(code, None)?);
        if let Failure::Explained(explanation) = &code.failure {
            kernels.explaining.insert(id, add(&explanation.code, Some(&**explanation))?);
        }
    }
    Ok(kernels)
}

fn versions(plan: &Plan, code: &KernelCode) -> Result<Vec<Version>> {
    code.baseline()?;
    let version = |version: &KernelVersion| {
        let (lo, hi) = match &version.range {
            Some((lo, hi)) => (extent(plan, lo)?, extent(plan, hi)?),
            None => (Extent::Const(0), Extent::Const(1)),
        };
        let single = |range: &(Dim, Dim)| {
            (range.1.clone() - range.0.clone()).as_const().is_some_and(|extent| extent <= 1)
        };
        let threads = match (&version.range, &version.threads) {
            (Some(range), Threads::Always) if !single(range) => Policy::Always,
            (Some(range), Threads::From { size, least }) if !single(range) => {
                Policy::From { size: extent(plan, size)?, least: *least }
            }
            _ => Policy::Never,
        };
        Ok(Version { level: version.level, lo, hi, threads })
    };
    code.versions.iter().map(version).collect()
}

fn extent(plan: &Plan, dim: &Dim) -> Result<Extent> {
    if let Some(value) = dim.as_const() {
        return Ok(Extent::Const(value));
    }
    let index = plan.size_index(dim);
    let index = index.ok_or_else(|| internal(format!("the size {dim} is not in the table")))?;
    Ok(Extent::Size(index as u32))
}

/// A step with what had to be written before it.
struct Work<'p> {
    step: &'p Step,
    /// Its number in its program.
    at: usize,
    /// Its number among all steps of the model.
    number: usize,
    traced: Traced,
    /// Of control flow: its plan, and its bodies with their functions.
    control: Option<&'p ControlPlan>,
    bodies: Vec<(Scope<'p>, Vec<FuncId>)>,
}

fn prepare<'p, 'g: 'p>(
    lowered: &mut Lowered<'g>,
    plan: &'p Plan,
    scope: &Scope<'g>,
    step: &'g Step,
    (at, calls): (usize, Calls),
) -> Result<Work<'p>> {
    let number = lowered.steps.len();
    let info = info(scope, step)?;
    let has_bodies = matches!(step, Step::Control { bodies, .. } if !bodies.is_empty());
    let traced = Traced { has_bodies, kernel: info.kernel.clone(), nodes: few(&info.nodes) };
    lowered.steps.push(info);
    let (mut bodies, mut control) = (vec![], None);
    if let Step::Control { node, bodies: programs, .. } = step {
        let found = plan.control(scope, at)?;
        for inner in scope.bodies(*node, programs, &found.bodies)? {
            let functions = lower(lowered, plan, &inner, calls)?;
            bodies.push((inner, functions));
        }
        control = Some(found);
    }
    Ok(Work { step, at, number, traced, control, bodies })
}

/// What a step is, for profiles.
fn info(scope: &Scope<'_>, step: &Step) -> Result<StepInfo> {
    let graph = scope.graph;
    let origin = |node: &NodeId| {
        let origin = &graph.origins[graph.nodes[*node].origin];
        format!("{} ({})", origin.name, origin.op_type)
    };
    let of_group = match step {
        Step::Run(id) => Some(scope.group(*id)?.0),
        _ => None,
    };
    let (kernel, nodes, refusal) = match step {
        Step::Run(id) => {
            let (group, kernel) = scope.group(*id)?;
            (kernel.name.clone(), node_texts(graph, group), kernel.refusal().map(String::from))
        }
        Step::Copy { from, .. } => ("copy".into(), graph.producer(*from).iter().map(origin).collect(), None),
        Step::Control { node, .. } => (graph.nodes[*node].op.name().into(), vec![origin(node)], None),
        Step::Bind(sym) => {
            let reader = graph.producer(graph.data[sym].value);
            ("bind".into(), reader.iter().map(origin).collect(), None)
        }
        Step::Allocate(block) | Step::Release(block) => {
            let name = if matches!(step, Step::Release(_)) { "release" } else { "allocate" };
            (name.into(), scope.program.heap[*block].writer.iter().map(origin).collect(), None)
        }
    };
    let result = of_group.and_then(|group| group.outputs.first()).map(|&value| {
        let ty = graph.ty(value);
        let dims: Vec<String> = ty.shape.iter().map(|dim| graph.dim_text(dim)).collect();
        format!("{}[{}]", ty.dtype, dims.join(", "))
    });
    Ok(StepInfo {
        kernel,
        nodes,
        operators: of_group.map_or_else(Vec::new, |group| group.operators(graph)),
        result,
        flops: of_group.map_or(Dim::ZERO, |group| group.flops(graph)),
        bytes: of_group.map_or(Dim::ZERO, |group| group.bytes(graph)),
        scope: scope.index,
        refusal,
    })
}

/// Names of nodes in the text of an object: the first ones.
fn few(nodes: &[String]) -> String {
    const MOST: usize = 4;
    let mut text = nodes[..nodes.len().min(MOST)].join(", ");
    if nodes.len() > MOST {
        text += &format!(" and {} more", nodes.len() - MOST);
    }
    printable(&text).to_string()
}

/// The ONNX nodes that a group computes.
pub(super) fn node_texts(graph: &Graph, group: &Group) -> Vec<String> {
    let origins = group.nodes.iter().map(|node| &graph.origins[graph.nodes[*node].origin]);
    let mut nodes: Vec<String> =
        origins.map(|origin| format!("{} ({})", origin.name, origin.op_type)).collect();
    nodes.dedup();
    nodes
}

fn scope_name(scope: &Scope<'_>) -> String {
    if scope.index == 0 { "main".to_string() } else { format!("body{}", scope.index) }
}

/// The part of a name that every assembler and debugger accepts, of bounded length.
pub(crate) fn symbol_text(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// Writes the steps of one function.
pub(super) struct StepWriter<'c, 'p> {
    pub(super) b: &'c mut Builder,
    pub(super) plan: &'p Plan,
    pub(super) scope: &'p Scope<'p>,
    kernels: &'c ScopeKernels,
    calls: Calls,
    /// The first step that writes states where they stay.
    replaces: Option<usize>,
}

impl<'p> StepWriter<'_, 'p> {
    fn step(&mut self, work: &Work<'p>) -> Result<()> {
        let number = work.number as i64;
        // A run does not end where some states are replaced and others are not; what is copied at the end may be states.
        let polls =
            !matches!(work.step, Step::Copy { .. }) && self.replaces.is_none_or(|first| work.at <= first);
        self.b.effect(Op::Step { number, polls, what: self.calls.trace.then(|| work.traced.clone()) });
        match work.step {
            Step::Run(id) => self.run(*id)?,
            Step::Copy { from, output } => {
                let bytes = self.size(&self.scope.graph.ty(*from).bytes())?;
                let to = match self.scope.program.handed.get(output) {
                    Some(block) => self.block(*block)?,
                    None => self.b.load(Place::Frame(None, FrameField::Output(*output as u32))),
                };
                let from = self.address(*from)?;
                self.b.copy(to, from, bytes);
            }
            Step::Control { node, scratch, .. } => {
                let plan = work.control.ok_or_else(|| internal("unplanned control flow".into()))?;
                let work = Control { node: *node, scratch, plan, bodies: &work.bodies };
                match &self.scope.graph.nodes[*node].op {
                    GraphOp::If { .. } => self.choice(&work)?,
                    GraphOp::Call(call) => self.call(*node, call)?,
                    GraphOp::External(external) => self.external(*node, external)?,
                    GraphOp::Exchange(exchange) => self.exchange(*node, exchange)?,
                    _ => self.scan(&work)?,
                }
            }
            Step::Bind(sym) => {
                let source = self.address(self.scope.graph.data[sym].value)?;
                self.binder().bind(self.b, work.at, *sym, source)?;
            }
            Step::Allocate(block) => {
                let bytes = self.size(&self.scope.program.heap[*block].bytes)?;
                self.binder().allocate(self.b, *block, bytes)?;
            }
            Step::Release(block) => self.binder().release(self.b, *block)?,
        }
        if self.calls.trace && work.traced.has_bodies {
            self.b.effect(Op::Event(Event::Leave, number.into()));
        }
        if self.calls.profile {
            self.b.effect(Op::StepDone(number));
        }
        Ok(())
    }

    fn binder(&self) -> Binder<'p> {
        Binder { plan: self.plan, scope: self.scope }
    }

    pub(super) fn poll(&mut self) {
        self.b.effect(Op::Poll);
    }

    /// A size at run time.
    pub(super) fn size(&mut self, dim: &Dim) -> Result<Operand> {
        Ok(match extent(self.plan, dim)? {
            Extent::Const(value) => value.into(),
            Extent::Size(index) => self.b.load(Place::Size(index)).into(),
        })
    }

    /// An address in the arena.
    pub(super) fn arena(&mut self, offset: &Dim) -> Result<Value> {
        let offset = extent(self.plan, offset)?;
        Ok(self.b.address(Address::Arena(offset)))
    }

    pub(super) fn address(&mut self, value: ValueId) -> Result<Value> {
        let (value, place) = self.scope.place(value)?;
        Ok(match place {
            Storage::Input(number) => self.b.load(Place::Frame(None, FrameField::Input(*number as u32))),
            Storage::Output(number) => self.b.load(Place::Frame(None, FrameField::Output(*number as u32))),
            Storage::Constant => match self.plan.constant(self.scope, value)? {
                ConstantPlace::Inside(offset) => self.b.address(Address::Weights(offset)),
                ConstantPlace::Apart(offset) => {
                    let weights = self.b.load(Place::Options(OptionsField::Weights));
                    self.b.offset(weights, offset as i64)
                }
            },
            Storage::Arena { offset, .. } => self.arena(offset)?,
            Storage::Heap(block) => self.block(*block)?,
            Storage::None | Storage::Alias(_) => {
                return Err(internal(format!("{value} is used and has no place")));
            }
        })
    }

    /// Address of a block.
    pub(super) fn block(&mut self, block: BlockId) -> Result<Value> {
        let slot = self.plan.dynamic.slot(self.scope.index, block)?;
        Ok(self.b.load(Place::Block(slot)))
    }

    /// Address of a step's scratch.
    pub(super) fn scratch(&mut self, scratch: &Scratch) -> Result<Value> {
        match scratch {
            Scratch::Arena(offset) => self.arena(offset),
            Scratch::Heap(block) => self.block(*block),
        }
    }

    /// Calls a function of the runtime.
    fn call(&mut self, node: NodeId, call: &'p Call) -> Result<()> {
        let data = &self.scope.graph.nodes[node];
        let mut args = vec![self.b.address(Address::Strings).into()];
        for &value in data.inputs.iter().chain(&data.outputs) {
            args.push(self.address(value)?.into());
        }
        for number in &call.numbers {
            args.push(self.size(number)?);
        }
        let result = self.b.value(Type::I32, Op::Extern(&call.function.symbol, args));
        let result = self.b.extend(result);
        let place = node_text(self.scope.graph, node);
        let texts = [
            (status::OUT_OF_MEMORY, "the allocator has no memory for texts"),
            (status::NEEDS_ALLOCATOR, "texts need memory, and there is no allocator"),
            (status::NULL_POINTER, "the data of a text is null"),
        ];
        let statuses: &[(i32, &str)] = match call.function.subject {
            Subject::Texts => &texts,
            Subject::Image => {
                &[(status::OUT_OF_MEMORY, LARGE_IMAGE), (status::CANCELLED, "cancelled by the caller")]
            }
        };
        for &(status, what) in statuses {
            let is = self.b.compare(Compare::Eq, result, i64::from(status));
            self.b.fail_if(is, status, &format!("{place}: {what}"), &[]);
        }
        let failed = self.b.compare(Compare::Ne, result, i64::from(status::OK));
        let Operand::Value(failed) = failed else { return Ok(()) };
        self.b.open();
        if call.function.subject == Subject::Texts {
            self.faulty_text(&place, call, result.into(), data.inputs[0]);
        }
        let template = format!("{place}: a size is not what the data need (status {V})");
        self.b.fail_if(1.into(), status::OUT_OF_RANGE, &template, &[result.into()]);
        let failure = self.b.close();
        self.b.if_else(Condition::Value(failed), failure, vec![]);
        Ok(())
    }

    /// Leaves where a function says that one of the elements that it was given is wrong, with the number of that element.
    fn faulty_text(&mut self, place: &str, call: &Call, result: Operand, input: ValueId) {
        let name = match self.scope.graph.values[input].name.as_str() {
            "" => "its input".to_string(),
            name => format!("`{}`", printable(name)),
        };
        let what = match call.function.name {
            "parse" => "is no number of the type of the result",
            "change_case" | "unigram" => "is not UTF-8",
            "sentencepiece_text" => "is no token of the vocabulary",
            _ => "is not what is needed here",
        };
        let table = self.b.address(Address::Strings);
        let element = self.b.value(Type::I64, Op::Extern(&FAULT_OF_STRINGS, vec![table.into()]));
        for (status, what) in [(status::BAD_TEXT, what), (status::OUT_OF_RANGE, "is a number without a text")]
        {
            let is = self.b.compare(Compare::Eq, result, i64::from(status));
            let template = format!("{place}: element {V} of {name} {what}");
            self.b.fail_if(is, status, &template, &[element.into()]);
        }
    }

    fn run(&mut self, id: GroupId) -> Result<()> {
        let (group, code) = self.scope.group(id)?;
        let mut buffers = vec![];
        for &value in group.inputs.iter().chain(&group.outputs) {
            buffers.push(self.address(value)?);
        }
        if let Some(scratch) = &self.scope.program.scratch[id] {
            let mut next = self.scratch(scratch)?;
            let parts = group.scratch_buffers(self.scope.graph);
            for (at, bytes) in parts.iter().enumerate() {
                buffers.push(next);
                if at + 1 < parts.len() {
                    let bytes = self.size(bytes)?;
                    next = self.b.offset(next, bytes);
                }
            }
        }
        let kernel = self.kernels.of_groups[id];
        let result = self.b.value(Type::I32, Op::Kernel(kernel, buffers));
        let node = node_text(self.scope.graph, group.anchor);
        let other = match &code.failure {
            // A kernel that several threads share may also fail for what shares it.
            Failure::Never if code.versions.iter().all(|version| version.threads == Threads::Never) => {
                return Ok(());
            }
            Failure::Never => format!("{node}: parallel_for has failed and gave {V}"),
            _ => format!("{node}: an index or a size of its operands is out of range"),
        };
        self.b.open();
        if let Failure::Explained(explanation) = &code.failure {
            self.explain(id, group, explanation)?;
        }
        let number = self.b.extend(result);
        self.b.fail_if(1.into(), status::OUT_OF_RANGE, &other, &[number.into()]);
        let failed = self.b.close();
        self.b.if_else(Condition::Value(result), failed, vec![]);
        Ok(())
    }

    /// Looks for what made a kernel fail, and leaves with it.
    fn explain(&mut self, id: GroupId, group: &Group, explanation: &Explanation) -> Result<()> {
        let kernel = self.kernels.explaining.get(&id);
        let &kernel = kernel.ok_or_else(|| internal(format!("{id} has no kernel that explains it")))?;
        let mut buffers = vec![];
        for &value in &group.inputs {
            buffers.push(self.address(value)?);
        }
        let report = self.b.address(Address::Report);
        buffers.push(report);
        let code = self.b.value(Type::I32, Op::Kernel(kernel, buffers));
        let code = self.b.extend(code);
        for (at, text) in explanation.texts.iter().enumerate() {
            let found = self.b.compare(Compare::Eq, code, at as i64 + 1);
            let words = 0..message::numbers(text) as i64;
            let numbers: Vec<Operand> =
                words.map(|word| self.b.load_at(Type::I64, report, 8 * word).into()).collect();
            self.b.fail_if(found, status::OUT_OF_RANGE, text, &numbers);
        }
        Ok(())
    }
}
