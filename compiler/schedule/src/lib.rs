//! From a graph of primitives to a program: fusion groups on a petgraph DAG, an order that keeps peak memory
//! low, and one arena planned from liveness.
//!
//! A *group* becomes one kernel. A value is *materialised* (it has a buffer) or *inlined* (it exists only
//! as an expression inside the groups that read it). The result of this module, [`Program`], is all that
//! lowering and code generation read.

mod chain;
mod check;
mod cost;
mod grouper;
mod groups;
mod inline;
mod memory;
mod offsets;
mod order;
mod print;
mod recompute;
mod regions;
mod rows;
mod scratch;
mod updates;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};

pub use chain::{Blocks, Slots, is_split};
pub use check::check;
pub use cost::flops;
pub use onnxc_ir::graph::view::{View, affine_view};
pub use print::Stats;
pub use recompute::Recompute;
pub use rows::{KeptRow, keeps_columns};
pub use scratch::{KeptBoxes, RadixSort};

use onnxc_ir::error::Result;
use onnxc_ir::graph::{Bounds, Dim, Graph, NodeId, Op, Sym, ValueId};
use onnxc_machine::target::Goal;
use onnxc_tuning::Settings;
use onnxc_tuning::chain::CHAIN_ABOVE;

/// A fusion group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u32);
entity_impl!(GroupId, "g");

/// A block of memory that a run allocates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);
entity_impl!(BlockId, "h");

/// See [`BlockId`].
#[derive(Clone, PartialEq, Debug)]
pub struct HeapBlock {
    pub bytes: Dim,
    /// The node that writes to it; `None` for a copy of what no node computes.
    pub writer: Option<NodeId>,
}

/// How a group is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupKind {
    /// One loop nest over the (common) shape of the outputs; every other node is inlined in it.
    Map,
    /// A `Contract` over packed panels, then the elementwise nodes after it as epilogue on the register tile.
    Contract,
    /// The output transform of a Winograd convolution, then an elementwise epilogue on the results.
    Winograd,
    /// A reduction whose operand is inlined, then an elementwise epilogue on the result.
    Reduce,
    /// Elementwise nodes and reductions over the last axis that share their leading axes: one pass per row, the
    /// row hot in cache (softmax, layer normalization and their kin).
    Rows,
    /// A contraction, a rows group on its result and a contraction of what that gives, in blocks of rows: attention.
    /// What the stages hand on stays in the group's scratch, a block at a time.
    Chain,
    /// One of the primitives with a loop nest of its own: scatter, cumulate, argreduce, sort, suppress, concat, pad,
    /// pack, the input transform of a Winograd convolution.
    Single,
}

/// Nodes that one kernel computes.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    pub kind: GroupKind,
    /// All nodes computed in the kernel, in topological order, views and inlined nodes included. A view or a cheap
    /// node may be in several groups.
    pub nodes: Vec<NodeId>,
    /// The node that gives the loop nest its form: the contraction or the (first) reduction; for `Map`, the
    /// last node.
    pub anchor: NodeId,
    /// Materialised values it reads, each once (inputs, constants and other groups' outputs).
    pub inputs: Vec<ValueId>,
    /// Materialised values it writes.
    pub outputs: Vec<ValueId>,
    /// Of a chain: the three groups it was made of. Between them, values have no buffers.
    pub stages: Vec<Group>,
    /// Bytes that the kernel has to itself while it runs, where this is not 0: see [`Group::scratch_buffers`].
    pub scratch: Dim,
    /// Numbers that its lowering takes in place of those that the cost model chooses.
    pub settings: Settings,
}

impl Group {
    pub fn has_scratch(&self) -> bool {
        self.scratch != Dim::ZERO
    }

    /// Bytes of each buffer of the scratch, which are behind inputs and outputs and follow each other in memory.
    pub fn scratch_buffers(&self, graph: &Graph) -> Vec<Dim> {
        match Blocks::of_group(graph, self) {
            Some(blocks) => blocks.buffers(),
            None if self.has_scratch() => vec![self.scratch.clone()],
            None => vec![],
        }
    }
}

/// Where a materialised value lives.
#[derive(Clone, PartialEq, Debug)]
pub enum Storage {
    /// Not materialised.
    None,
    /// Graph input number.
    Input(usize),
    /// Graph output number; the caller's buffer.
    Output(usize),
    /// Constant data of the object.
    Constant,
    /// Bytes `[offset, offset + size)` of the arena; offsets are multiples of [`ALIGN`].
    Arena { offset: Dim, size: Dim },
    /// A block of its own: only data decides its size, and nothing bounds it well enough; see `Bounds::reserved`.
    Heap(BlockId),
    /// The same bytes as another value, from its start: a reshape, or a map computed in place.
    Alias(ValueId),
}

/// Alignment of everything in the arena, bytes.
pub const ALIGN: i64 = 64;

/// One step of a program.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Run(GroupId),
    /// Copies a materialised value into graph output number `output`: an input or a constant that is also an
    /// output, or one value that is several outputs.
    Copy {
        from: ValueId,
        output: usize,
    },
    /// A loop or a choice: see `Op::Scan` and `Op::If`. The bodies' values live in plans of their own, whose arenas are
    /// placed in `scratch`: see [`control_scratch`].
    Control {
        node: NodeId,
        bodies: Vec<Program>,
        scratch: Scratch,
    },
    /// Reads a data symbol from the value that defines it, checks it, and computes the sizes that depend on it.
    Bind(Sym),
    /// Gets a block, whose size is known by now.
    Allocate(BlockId),
    /// Gives a block back.
    Release(BlockId),
}

/// Memory of a step, beside that of its values.
#[derive(Clone, PartialEq, Debug)]
pub enum Scratch {
    /// Offset in the program's arena, bytes.
    Arena(Dim),
    Heap(BlockId),
}

/// A scheduled graph.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    pub groups: PrimaryMap<GroupId, Group>,
    pub steps: Vec<Step>,
    pub places: SecondaryMap<ValueId, Option<Storage>>,
    /// Where the scratch of a group is, for those that have some; offsets are multiples of [`ALIGN`].
    pub scratch: SecondaryMap<GroupId, Option<Scratch>>,
    /// Blocks that a run allocates.
    pub heap: PrimaryMap<BlockId, HeapBlock>,
    /// Of a body: the outputs that it leaves in blocks, which the program around takes over; see [`handed`].
    pub handed: BTreeMap<usize, BlockId>,
    /// Bytes of the arena.
    pub arena: Dim,
    /// The liveness bound, bytes: the largest sum of the sizes of simultaneously live arena values. With
    /// symbolic sizes: that sum at the step where it is largest for the sizes an estimate takes.
    pub bound: Dim,
}

/// What to do without, for comparisons and for finding faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Several nodes in one kernel; without it, only views are inlined.
    pub fuse: bool,
    /// Results that take the bytes of an operand that dies.
    pub in_place: bool,
    /// Attention whose scores outweigh its keys by more bytes than this is one kernel that stores no scores.
    pub chain_above: Option<i64>,
    /// What the numbers of each group are chosen for.
    pub goal: Goal,
    /// What is computed again instead of kept; not in bodies.
    pub recompute: Recompute,
}

impl Default for Options {
    fn default() -> Options {
        let (chain_above, recompute) = (Some(CHAIN_ABOVE), Recompute::Nothing);
        Options { fuse: true, in_place: true, chain_above, goal: Goal::Speed, recompute }
    }
}

/// Groups, orders and places a graph of primitives. Every right-hand side of a `Contract` must be a
/// constant, or become one buffer: `Pack` made it or it is materialised for it.
///
/// The plans of bodies are part of their step. In builds with debug assertions the result is rechecked by
/// [`check`].
pub fn schedule(graph: &Graph, options: Options) -> Result<Program> {
    let with = |recompute| schedule_unchecked(graph, Options { recompute, ..options }, &BTreeSet::new());
    let bytes = |program: &Program| estimate(&program.arena);
    let mut program = with(Recompute::Nothing)?;
    let wanted = options.recompute.target().unwrap_or(i64::MAX);
    // Gaps between blocks count as well, so that what is live at once must be smaller by them.
    let mut recompute = options.recompute;
    for _ in 0..ROUNDS {
        if bytes(&program) <= wanted {
            break;
        }
        let other = with(recompute)?;
        let excess = bytes(&other).saturating_sub(wanted);
        // What runs again does not share the bytes of its operands: a plan may be larger.
        if bytes(&other) < bytes(&program) {
            program = other;
        }
        match &mut recompute {
            Recompute::Within(within) if *within > 0 => *within = within.saturating_sub(excess).max(0),
            _ => break,
        }
    }
    checked(graph, program)
}

/// Plans that are made for a number of bytes, at most.
const ROUNDS: usize = 4;

fn checked(graph: &Graph, program: Program) -> Result<Program> {
    if cfg!(debug_assertions) {
        check(graph, &program)?;
    }
    Ok(program)
}

/// `leaves`: outputs that the program leaves in blocks of their own.
fn schedule_unchecked(graph: &Graph, options: Options, leaves: &BTreeSet<usize>) -> Result<Program> {
    let mut grouping = groups::group(graph, options)?;
    for group in grouping.groups.values_mut() {
        group.settings.goal = options.goal;
        group.stages.iter_mut().for_each(|stage| stage.settings.goal = options.goal);
    }
    let mut bodies: Bodies = SecondaryMap::new();
    for &node in &grouping.controls {
        let leaves = handed_by_bodies(graph, node);
        for body in graph.nodes[node].op.bodies() {
            let options = Options { recompute: Recompute::Nothing, ..options };
            bodies[node].push(schedule_unchecked(body, options, &leaves)?);
        }
    }
    let mut steps = order::order(graph, &grouping, &bodies)?;
    let updates = match options.in_place {
        true => updates::in_place(graph, &grouping, &mut steps),
        false => BTreeSet::new(),
    };
    let steps = recompute::with_second_runs(graph, &grouping, &bodies, steps, &updates, options.recompute);
    memory::plan(graph, grouping, bodies, &steps, options, (leaves, &updates))
}

/// The programs of the bodies of control flow.
type Bodies = SecondaryMap<NodeId, Vec<Program>>;

/// Results of control flow that are known to need memory only when they are there: they get no buffer before the step,
/// but what the step leaves in a block. Of a loop these are states that change their sizes and stacked outputs of
/// unknown length; of a choice, results whose size is not the same in both bodies.
pub fn handed(graph: &Graph, node: NodeId) -> BTreeSet<usize> {
    if graph.data.is_empty() {
        return BTreeSet::new();
    }
    // Most control flow has no such results, and bounds are those of all symbols.
    let bounds = OnceCell::new();
    let reserved = |value| bounds.get_or_init(|| Bounds::new(graph)).reserved_for(value);
    let allocated = |value: ValueId| graph.is_late(value) && reserved(value).is_none();
    let outputs = graph.nodes[node].outputs.iter().enumerate();
    outputs.filter(|&(_, &value)| allocated(value)).map(|(at, _)| at).collect()
}

/// The outputs that bodies of control flow leave in blocks of their own: of the results that are [`handed`], all but
/// parts of stacked outputs whose size is known before the loop.
pub fn handed_by_bodies(graph: &Graph, node: NodeId) -> BTreeSet<usize> {
    let mut numbers = handed(graph, node);
    if let Op::Scan { body, states, .. } = &graph.nodes[node].op {
        let own = |at: usize| body.ty(body.outputs[at].1).shape.iter().any(|dim| body.is_data_dim(dim));
        numbers.retain(|&at| at < *states || own(at));
    }
    numbers
}

impl Program {
    /// Where a value's bytes are, aliases resolved; `None` when it is not materialised.
    pub fn place(&self, value: ValueId) -> Option<&Storage> {
        match self.places[self.storage(value)].as_ref()? {
            Storage::None => None,
            place => Some(place),
        }
    }

    /// The value whose place holds a value's bytes: itself unless it is an alias.
    pub fn storage(&self, mut value: ValueId) -> ValueId {
        while let Some(Storage::Alias(of)) = self.places[value] {
            value = of;
        }
        value
    }

    /// Groups that read constants and nothing else, no sizes either: they compute the same in every run.
    pub fn constant_groups(&self, graph: &Graph) -> Vec<GroupId> {
        let is_fixed = |node: &NodeId| {
            let node = &graph.nodes[*node];
            node.op.dims().iter().all(|dim| dim.is_const())
                && node.outputs.iter().all(|&output| graph.ty(output).static_shape().is_some())
        };
        let computes_the_same = |group: &Group| {
            let mut inputs = group.inputs.iter();
            !group.inputs.is_empty()
                && inputs.all(|&input| graph.is_constant(self.storage(input)))
                && group.nodes.iter().all(is_fixed)
        };
        self.groups.iter().filter(|(_, group)| computes_the_same(group)).map(|(id, _)| id).collect()
    }

    /// Whether a value has a buffer.
    pub fn is_materialised(&self, value: ValueId) -> bool {
        self.place(value).is_some()
    }
}

/// What a [`Step::Control`] uses of its scratch memory, in bytes from its start: the arena of the body that runs at 0,
/// then, of a loop, one buffer for each next state (while the body reads a state, it writes the next one there) at the
/// given offsets; a state that is handed over has none. The last item is the size of all of it.
pub fn control_scratch(graph: &Graph, node: NodeId, bodies: &[Program]) -> (Vec<Option<Dim>>, Dim) {
    let arenas = bodies.iter().map(|program| program.arena.clone());
    let mut end = arenas.fold(Dim::ZERO, |most, arena| most.max_dim(&arena));
    let mut offsets = vec![];
    if let Op::Scan { body, states, .. } = &graph.nodes[node].op {
        let handed = handed_by_bodies(graph, node);
        for (at, (_, value)) in body.outputs.iter().enumerate().take(*states) {
            let own = !handed.contains(&at);
            offsets.push(own.then(|| end.clone()));
            if own {
                end = end + aligned(&body.ty(*value).bytes());
            }
        }
    }
    (offsets, end)
}

/// A size in bytes rounded up to [`ALIGN`].
pub fn aligned(bytes: &Dim) -> Dim {
    let align = Dim::from(ALIGN);
    bytes.ceil_div(&align).expect("the alignment is not zero") * align
}

/// What each symbol is taken to be where sizes must be compared.
const TYPICAL: i64 = 64;

/// A dim with every symbol at [`TYPICAL`]; very large where that overflows.
fn estimate(dim: &Dim) -> i64 {
    estimate_at(dim, &|_| TYPICAL)
}

fn estimate_at(dim: &Dim, value: &dyn Fn(Sym) -> i64) -> i64 {
    dim.eval(&|sym| Some(value(sym))).unwrap_or(i64::MAX / 4).clamp(0, i64::MAX / 4)
}
