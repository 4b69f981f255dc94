//! What is decided before any code is written: the layout of the weights, of the workspace and of the sizes that depend
//! on the inputs.
//!
//! The workspace of a run is: the values of the symbols and of all sizes made of them (nothing in a static model),
//! what a run with sizes that data decide keeps of its allocations, pointers that are too many for the stack, then the
//! program's arena, at a multiple of 64.

use std::collections::HashMap;
use std::sync::Arc;

use cranelift_entity::{EntityRef, PrimaryMap};
use onnxc_runtime_support::strings::STATE_BYTES;
use onnxc_runtime_support::weights::HEADER_BYTES;

use crate::host::abi::frame;
use crate::host::ir::{Frame, FrameLayout, Pointers};
use crate::host::lower::dynamic::Dynamic;
use crate::host::lower::internal;
use crate::host::lower::state::StateLayout;
use onnxc_backend::codegen::kernels::{KernelCode, Kernels};
use onnxc_ir::borders::stored_default;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Constant, Def, Dim, Graph, NodeId, Op, Sym, Tensor, TensorType, ValueId};
use onnxc_loops::work::Threads;
use onnxc_schedule::{
    ALIGN, Group, GroupId, Program, Scratch, Step, Storage, control_scratch, handed_by_bodies,
};

/// A program and what it refers to: the model's own, or a body.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'g> {
    pub graph: &'g Graph,
    pub program: &'g Program,
    pub kernels: &'g Kernels,
    /// Number of the scope: 0 for the model, then bodies in the order of the steps.
    pub index: usize,
}

impl<'g> Scope<'g> {
    pub(crate) fn frame(&self) -> Frame {
        Frame::new(self.index)
    }

    pub(crate) fn group(&self, id: GroupId) -> Result<(&'g Group, &'g KernelCode)> {
        match (self.program.groups.get(id), self.kernels.groups.get(id)) {
            (Some(group), Some(kernel)) => Ok((group, kernel)),
            _ => Err(internal(format!("a step runs {id}, which has no kernel"))),
        }
    }

    /// The place of a value, behind aliases.
    pub(crate) fn place(&self, value: ValueId) -> Result<(ValueId, &'g Storage)> {
        let mut at = value;
        for _ in 0..=self.graph.values.len() {
            match self.program.places.get(at).and_then(Option::as_ref) {
                Some(Storage::Alias(other)) => at = *other,
                Some(place) => return Ok((at, place)),
                // A constant needs no decision of the schedule.
                None if self.graph.is_constant(at) => return Ok((at, &Storage::Constant)),
                None => return Ok((at, &Storage::None)),
            }
        }
        Err(internal(format!("{value} is an alias of itself")))
    }

    /// The bodies of a step of control flow, with the numbers of their scopes.
    pub(crate) fn bodies(
        &self,
        node: NodeId,
        programs: &'g [Program],
        numbers: &[usize],
    ) -> Result<Vec<Scope<'g>>> {
        let graphs = self.graph.nodes[node].op.bodies();
        let kernels = self.kernels.bodies.get(&node).map_or(&[][..], Vec::as_slice);
        let count = graphs.len();
        if [programs.len(), numbers.len(), kernels.len()] != [count; 3] {
            return Err(internal(format!("{node} has {count} bodies, and {} programs", programs.len())));
        }
        let parts = graphs.iter().zip(programs).zip(kernels).zip(numbers);
        Ok(parts
            .map(|(((graph, program), kernels), &index)| Scope { graph, program, kernels, index })
            .collect())
    }
}

/// A step of control flow: the numbers of its bodies' scopes, and offsets in the arena or block that its scratch is in.
#[derive(Clone, Debug, Default)]
pub(crate) struct ControlPlan {
    pub bodies: Vec<usize>,
    /// Per state of a loop: where every second iteration writes, unless it leaves a block.
    pub states: Vec<Option<Dim>>,
}

/// Constant data, at `offset` of the weights.
pub(crate) struct Weight {
    /// The nodes, and which of their bodies, that lead to the graph of the constant.
    pub path: Path,
    pub source: WeightSource,
    pub offset: u64,
    pub bytes: u64,
}

/// Most bytes of pointers in one place on the stack.
const MAX_STACK_POINTERS: usize = 1 << 10;

/// Parts of a formula beyond which it is not shown.
const MAX_SHOWN_WEIGHT: u32 = 64;

/// What a state is before the first run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Initial {
    /// All bytes are 0, as a reset leaves them.
    Zeros,
    /// At this offset in the weights.
    Weights(u64),
    /// The [`REPEATED`] bytes at this offset in the weights, again and again.
    Repeated(u64),
}

/// Bytes that an object has of an initial value whose elements are all equal.
pub(crate) const REPEATED: usize = 64;

/// See [`Weight::path`].
pub(crate) type Path = Arc<[(NodeId, usize)]>;

#[derive(Clone, Copy)]
pub(crate) enum WeightSource {
    Value(ValueId),
    /// The default of a graph input.
    Default(usize),
    /// The first bytes of one that repeats them.
    Beginning(usize),
    /// The constant strings.
    Strings,
}

/// Where a constant is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConstantPlace {
    /// At this offset of the object's own.
    Inside(u64),
    /// At this offset of the file of weights.
    Apart(u64),
}

/// The constants of a program that lie apart.
pub(crate) struct Apart {
    /// Their offsets are those in the file.
    pub weights: Vec<Weight>,
    /// Where those of this program, and of those before it, end: what a run needs of the file.
    pub bytes: u64,
    /// The digest of what the layout of all programs depends on.
    pub layout: [u8; 32],
}

#[derive(Default)]
pub(crate) struct Plan {
    pub weights: Vec<Weight>,
    pub weight_bytes: u64,
    pub apart: Option<Apart>,
    offsets: HashMap<(usize, ValueId), ConstantPlace>,
    /// Offset of the default of each input that has one, of those that callers give.
    pub defaults: Vec<Option<u64>>,
    /// Of each state that has an initial value.
    pub initials: Vec<Option<Initial>>,
    /// Distinct symbolic sizes that steps use.
    pub table: Vec<Dim>,
    table_index: HashMap<Dim, usize>,
    symbols: usize,
    /// Per step of control flow, by scope and step number.
    pub controls: HashMap<(usize, usize), ControlPlan>,
    /// What data decide.
    pub dynamic: Dynamic,
    /// The frame of each scope, by its number.
    pub frames: PrimaryMap<Frame, FrameLayout>,
    /// The buffers of a kernel.
    pub buffers: Pointers,
    /// The state block, if there is one.
    pub state: Option<StateLayout>,
    /// Offset of the table of strings in the workspace, and of the constant strings in the weights.
    pub strings: Option<(i64, u64)>,
    /// Offset of the arena in the workspace, bytes.
    pub arena_at: i64,
    /// Bytes of a whole workspace.
    pub workspace: Dim,
}

/// The programs of an object that come before another one: the first of them, and where their constants end.
#[derive(Clone, Copy)]
pub(crate) struct Before<'p> {
    pub first: &'p Plan,
    pub last: &'p Plan,
}

impl Plan {
    /// `layout`: the digest of what the layout of weights depends on, where they are apart.
    pub(crate) fn new(root: Scope<'_>, before: Option<Before<'_>>, layout: Option<[u8; 32]>) -> Result<Plan> {
        let weight_bytes = before.map_or(0, |before| before.last.weight_bytes);
        let bytes = before
            .and_then(|before| before.last.apart.as_ref())
            .map_or(HEADER_BYTES as u64, |apart| apart.bytes);
        let apart = layout.map(|layout| Apart { weights: vec![], bytes, layout });
        let mut plan = Plan { symbols: root.graph.symbols.len(), weight_bytes, apart, ..Plan::default() };
        plan.add_frames(1);
        let path: Path = Arc::new([]);
        plan.scope(root, &path)?;
        plan.state = StateLayout::new(root.graph);
        let needed: Vec<Dim> = plan.state.iter().flat_map(|state| state.needs(root.graph)).cloned().collect();
        needed.iter().for_each(|dim| plan.size(dim));
        for (at, input) in root.graph.inputs.iter().enumerate() {
            let default = input.default.as_ref().map(|tensor| stored_default(root.graph, tensor));
            let Some(state) = at.checked_sub(root.graph.given_inputs()) else {
                let offset = default
                    .map(|tensor| plan.weight(&path, WeightSource::Default(at), tensor.data.len() as u64))
                    .transpose()?;
                plan.defaults.push(offset);
                continue;
            };
            let known = before.and_then(|before| *before.first.initials.get(state)?);
            let initial = match default {
                Some(_) if known.is_some() => known,
                Some(tensor) => Some(plan.initial(&path, at, &tensor)?),
                None => None,
            };
            plan.initials.push(initial);
        }
        let entries = plan.symbols + plan.table.len();
        plan.dynamic = Dynamic::new(root, &plan)?;
        let kept = if plan.dynamic.keeps_outputs() { 1 + 2 * plan.dynamic.slots.len() } else { 0 };
        let mut used = 8 * (entries + kept);
        let frames = plan.frames.values_mut().map(|frame| &mut frame.pointers);
        for pointers in frames.chain([&mut plan.buffers]) {
            let bytes = 8 * pointers.count;
            if bytes > MAX_STACK_POINTERS {
                pointers.at = Some(used as i64);
                used += bytes;
            }
        }
        if let Some(strings) = &root.graph.strings {
            let constants = plan.weight(&path, WeightSource::Strings, strings.blob().len() as u64)?;
            plan.strings = Some((used as i64, constants));
            used += STATE_BYTES;
        }
        plan.arena_at = round_up(used as i64);
        plan.workspace = Dim::from(plan.arena_at) + root.program.arena.clone();
        Ok(plan)
    }

    /// What an object needs of the initial value of a state, which is the default of an input.
    fn initial(&mut self, path: &Path, input: usize, value: &Tensor) -> Result<Initial> {
        let (data, element) = (&value.data, value.dtype.size());
        let equal = element > 0 && data.len() >= element && data[element..] == data[..data.len() - element];
        if equal && data[..element].iter().all(|&byte| byte == 0) {
            return Ok(Initial::Zeros);
        }
        if equal && REPEATED.is_multiple_of(element) && data.len() > REPEATED {
            return Ok(Initial::Repeated(self.weight(
                path,
                WeightSource::Beginning(input),
                REPEATED as u64,
            )?));
        }
        Ok(Initial::Weights(self.weight(path, WeightSource::Default(input), data.len() as u64)?))
    }

    /// Where a constant is.
    pub(crate) fn constant(&self, scope: &Scope<'_>, value: ValueId) -> Result<ConstantPlace> {
        self.offsets
            .get(&(scope.index, value))
            .copied()
            .ok_or_else(|| internal(format!("{value} is not among the constants")))
    }

    /// Where a symbolic size is found at run time: its number in the array of symbol values and table entries.
    pub(crate) fn size_index(&self, dim: &Dim) -> Option<usize> {
        match dim.as_sym() {
            Some(sym) => Some(sym.index()),
            None => Some(self.symbols + self.table_index.get(dim)?),
        }
    }

    /// What each word of the sizes stands for: names of symbols, then formulas; one that is long is cut.
    pub(crate) fn size_texts(&self, graph: &Graph) -> Vec<String> {
        let symbols = graph.symbols.values().map(|symbol| symbol.name.clone());
        let formula = |dim: &Dim| match dim.weight() {
            weight if weight > MAX_SHOWN_WEIGHT => format!("a formula of {weight} parts"),
            _ => graph.dim_text(dim),
        };
        symbols.chain(self.table.iter().map(formula)).collect()
    }

    /// Number of a table entry in the array of symbol values and table entries.
    pub(crate) fn table_entry(&self, at: usize) -> usize {
        self.symbols + at
    }

    /// The plan of a step of control flow.
    pub(crate) fn control(&self, scope: &Scope<'_>, step: usize) -> Result<&ControlPlan> {
        let control = self.controls.get(&(scope.index, step));
        control.ok_or_else(|| internal("unplanned control flow".into()))
    }

    /// Frames of scopes that are laid out later.
    fn add_frames(&mut self, count: usize) {
        for _ in 0..count {
            self.frames.push(FrameLayout::of(0, 0));
        }
    }

    fn scope(&mut self, scope: Scope<'_>, path: &Path) -> Result<()> {
        self.frames[scope.frame()] = FrameLayout::of(scope.graph.inputs.len(), scope.graph.outputs.len());
        for (number, step) in scope.program.steps.iter().enumerate() {
            match step {
                Step::Run(id) => {
                    let (group, kernel) = scope.group(*id)?;
                    for &value in group.inputs.iter().chain(&group.outputs) {
                        self.value(&scope, path, value)?;
                    }
                    let parts = group.scratch_buffers(scope.graph);
                    let buffers = group.inputs.len() + group.outputs.len() + parts.len().max(1);
                    self.buffers.count = buffers.max(self.buffers.count);
                    if let Some(Scratch::Arena(offset)) = &scope.program.scratch[*id] {
                        self.size(offset);
                    }
                    parts.iter().rev().skip(1).for_each(|bytes| self.size(bytes));
                    for version in &kernel.versions {
                        version.range.iter().flat_map(|(lo, hi)| [lo, hi]).for_each(|end| self.size(end));
                        if let Threads::From { size, .. } = &version.threads {
                            self.size(size);
                        }
                    }
                }
                Step::Copy { from, .. } => {
                    self.value(&scope, path, *from)?;
                    self.size(&scope.graph.ty(*from).bytes());
                }
                Step::Control { node, bodies, scratch } => {
                    self.add_control(scope, path, (number, *node), bodies, scratch)?;
                }
                Step::Bind(sym) => match scope.graph.data.get(sym) {
                    Some(data) => self.value(&scope, path, data.value)?,
                    None => return Err(internal(format!("{sym} is not defined by data"))),
                },
                Step::Allocate(block) => self.size(&scope.program.heap[*block].bytes),
                Step::Release(_) => {}
            }
        }
        Ok(())
    }

    fn add_control(
        &mut self,
        scope: Scope<'_>,
        path: &Path,
        (step, node): (usize, NodeId),
        programs: &[Program],
        scratch: &Scratch,
    ) -> Result<()> {
        let data = &scope.graph.nodes[node];
        let (offsets, _) = control_scratch(scope.graph, node, programs);
        let base = match scratch {
            Scratch::Arena(offset) => offset.clone(),
            Scratch::Heap(_) => Dim::ZERO,
        };
        let states = offsets.into_iter().map(|offset| offset.map(|offset| base.clone() + offset)).collect();
        let bodies: Vec<usize> = (self.frames.len()..self.frames.len() + programs.len()).collect();
        let plan = ControlPlan { bodies, states };
        self.add_frames(programs.len());
        self.size(&base);
        plan.states.iter().flatten().for_each(|offset| self.size(offset));
        for &value in data.inputs.iter().chain(&data.outputs) {
            self.value(&scope, path, value)?;
        }
        if let Op::Call(call) = &data.op {
            call.numbers.iter().for_each(|number| self.size(number));
        }
        if let Op::Exchange(exchange) = &data.op {
            self.size(&exchange.ty.bytes());
            self.size(&exchange.ty.elements());
        }
        if let Op::External(external) = &data.op {
            external.dims().for_each(|dim| self.size(dim));
            let types: Vec<&TensorType> = data.inputs.iter().map(|&input| scope.graph.ty(input)).collect();
            let record = external.record(&types);
            for ty in record.tensors.iter().filter_map(|tensor| tensor.ty()) {
                ty.shape.iter().for_each(|dim| self.size(dim));
                self.size(&ty.stored_bytes());
            }
        }
        if let Op::Scan { body, trip, states, scans, .. } = &data.op {
            if data.outputs.len() != body.outputs.len() || *states > data.outputs.len() {
                return Err(internal(format!("{node} and its body have different results")));
            }
            self.size(trip);
            body.outputs.iter().for_each(|(_, value)| self.size(&body.ty(*value).bytes()));
            let scanned = body.inputs.iter().skip(*states).take(*scans);
            scanned.for_each(|input| self.size(&body.ty(input.value).bytes()));
            for at in handed_by_bodies(scope.graph, node).into_iter().filter(|at| at < states) {
                self.size(&scope.graph.ty(data.inputs[at]).bytes());
            }
        }
        let scopes = scope.bodies(node, programs, &plan.bodies)?;
        self.controls.insert((scope.index, step), plan);
        for (which, body) in scopes.into_iter().enumerate() {
            let path: Path = path.iter().copied().chain([(node, which)]).collect();
            self.scope(body, &path)?;
        }
        Ok(())
    }

    /// Notes what the address of a value needs: a place in the weights, a size.
    fn value(&mut self, scope: &Scope<'_>, path: &Path, value: ValueId) -> Result<()> {
        let (value, storage) = scope.place(value)?;
        match storage {
            Storage::Constant if !self.offsets.contains_key(&(scope.index, value)) => {
                if !matches!(
                    scope.graph.values[value].def,
                    Def::Const(Constant::Data(_) | Constant::Apart(_) | Constant::Deferred { .. })
                ) {
                    return Err(internal(format!("{value} has a constant's place and is none")));
                }
                let bytes = scope.graph.ty(value).bytes().as_const();
                let bytes = bytes
                    .and_then(|bytes| u64::try_from(bytes).ok())
                    .ok_or_else(|| internal(format!("the constant {value} has no static size")))?;
                let source = WeightSource::Value(value);
                let place = match &mut self.apart {
                    Some(apart) if scope.graph.is_apart(value) => ConstantPlace::Apart(place(
                        &mut apart.weights,
                        &mut apart.bytes,
                        (path, source, bytes),
                    )?),
                    _ => ConstantPlace::Inside(self.weight(path, source, bytes)?),
                };
                self.offsets.insert((scope.index, value), place);
            }
            Storage::Arena { offset, .. } => self.size(offset),
            _ => {}
        }
        Ok(())
    }

    fn weight(&mut self, path: &Path, source: WeightSource, bytes: u64) -> Result<u64> {
        place(&mut self.weights, &mut self.weight_bytes, (path, source, bytes))
    }

    fn size(&mut self, dim: &Dim) {
        if dim.is_const() || dim.as_sym().is_some() || self.table_index.contains_key(dim) {
            return;
        }
        self.table_index.insert(dim.clone(), self.table.len());
        self.table.push(dim.clone());
    }
}

/// Gives a constant a place behind others, which end at `end`.
fn place(
    weights: &mut Vec<Weight>,
    end: &mut u64,
    (path, source, bytes): (&Path, WeightSource, u64),
) -> Result<u64> {
    let too_large = || Error::unsupported(Stage::Emit, "weights of more than 2^63 bytes");
    let offset = end.next_multiple_of(ALIGN as u64);
    *end = offset.checked_add(bytes).filter(|&end| end < 1 << 62).ok_or_else(too_large)?;
    weights.push(Weight { path: path.clone(), source, offset, bytes });
    Ok(offset)
}

/// Symbols that a lone dim of some input without default decides, and those of states, in the order of their numbers. Those
/// that data define are not among them.
pub fn bound_symbols(graph: &Graph) -> Vec<Sym> {
    let mut symbols: Vec<Sym> = (0..graph.inputs.len())
        .filter(|&at| graph.inputs[at].default.is_none())
        .flat_map(|at| graph.input_ty(at).shape.iter().filter_map(Dim::as_sym))
        .chain(graph.state_symbols())
        .collect();
    symbols.sort();
    symbols.dedup();
    symbols
}

impl FrameLayout {
    fn of(inputs: usize, outputs: usize) -> FrameLayout {
        let count = frame::IO as usize / 8 + inputs + outputs;
        FrameLayout { inputs, outputs, pointers: Pointers { count, at: None } }
    }
}

fn round_up(bytes: i64) -> i64 {
    bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}
