//! The memory plan: which values share bytes, how long each buffer is live, and where in the arena it lies.

use std::collections::BTreeSet;

use cranelift_entity::{EntitySet, SecondaryMap};

use crate::grouper::Grouping;
use crate::offsets::{ArenaSpan, assign};
use crate::order::Task;
use crate::{
    Bodies, Group, GroupId, GroupKind, HeapBlock, Options, Program, Scratch, Step, Storage, aligned,
    control_scratch, estimate, handed,
};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::dim::overgrown;
use onnxc_ir::graph::{Bounds, Def, Dim, Graph, NodeId, Op, Relation, Requirement, Sym, TensorType, ValueId};

/// Largest arena of constant size, bytes.
const MAX_ARENA: i64 = 1 << 47;

/// A program whose values all have places.
pub(super) fn plan(
    graph: &Graph,
    grouping: Grouping,
    mut bodies: Bodies,
    tasks: &[Task],
    options: Options,
    (leaves, updates): (&BTreeSet<usize>, &BTreeSet<GroupId>),
) -> Result<Program> {
    let mut planner = Planner::new(graph, &grouping, tasks);
    planner.take_outputs(leaves, updates);
    if options.in_place {
        planner.share();
    }
    let Blocks { blocks, owners, heap } = planner.blocks(&bodies, leaves);
    let bound = bound(&blocks, tasks.len());
    let (offsets, arena) = assign(&blocks);
    if arena.is_overgrown() || bound.is_overgrown() {
        return Err(overgrown(Stage::Schedule, "the size of all intermediate values"));
    }
    if arena.as_const().is_some_and(|bytes| bytes > MAX_ARENA) {
        return Err(too_large(graph, &grouping, &arena, blocks.iter().zip(&owners)));
    }
    let copies = planner.ordered_copies()?;
    let Planner { alias, output, .. } = planner;
    let mut program = Program { arena, bound, ..Program::default() };
    let mut scratch_at: SecondaryMap<NodeId, Option<Scratch>> = SecondaryMap::new();
    for (owner, (offset, size)) in owners.into_iter().zip(offsets) {
        match owner {
            Owner::Value(value) => program.places[value] = Some(Storage::Arena { offset, size }),
            Owner::Scratch(group) => program.scratch[group] = Some(Scratch::Arena(offset)),
            Owner::Control(node) => scratch_at[node] = Some(Scratch::Arena(offset)),
            // These are in blocks.
            Owner::Output => {}
        }
    }
    let (mut first, mut last) = (vec![vec![]; tasks.len() + 1], vec![vec![]; tasks.len() + 1]);
    for HeapUse { owner, block, writer, comes, goes } in heap {
        let id = program.heap.push(HeapBlock { bytes: block.bytes, writer });
        match owner {
            Owner::Value(value) => program.places[value] = Some(Storage::Heap(id)),
            Owner::Scratch(group) => program.scratch[group] = Some(Scratch::Heap(id)),
            Owner::Control(node) => scratch_at[node] = Some(Scratch::Heap(id)),
            Owner::Output => {}
        }
        if !comes {
            first[block.first].push(Step::Allocate(id));
        }
        match goes {
            Some(output) => drop(program.handed.insert(output, id)),
            None => last[block.last].push(Step::Release(id)),
        }
    }
    for (value, data) in graph.values.iter().filter(|&(value, _)| grouping.materialised[value]) {
        let place = match (alias[value], output[value], &data.def) {
            (Some(_), ..) => Some(Storage::Alias(root(&alias, value))),
            (_, Some(at), _) => Some(Storage::Output(at)),
            (_, _, Def::Input(at)) => Some(Storage::Input(*at)),
            _ => continue,
        };
        program.places[value] = place;
    }
    for (at, &task) in tasks.iter().enumerate() {
        program.steps.append(&mut first[at]);
        program.steps.push(match task {
            Task::Run(group) => Step::Run(group),
            Task::Bind(sym) => Step::Bind(sym),
            Task::Control(node) => Step::Control {
                node,
                bodies: std::mem::take(&mut bodies[node]),
                scratch: scratch_at[node].take().unwrap_or(Scratch::Arena(Dim::ZERO)),
            },
        });
        program.steps.append(&mut last[at]);
    }
    program.steps.extend(first.pop().unwrap_or_default());
    program.steps.extend(copies.into_iter().map(|(from, output)| Step::Copy { from, output }));
    program.steps.extend(last.pop().unwrap_or_default());
    program.groups = grouping.groups;
    place_constants(graph, &mut program);
    Ok(program)
}

/// The error for an arena that no machine has; names the node with the largest block.
fn too_large<'a>(
    graph: &Graph,
    grouping: &Grouping,
    arena: &Dim,
    blocks: impl Iterator<Item = (&'a ArenaSpan, &'a Owner)>,
) -> Error {
    let largest = blocks.max_by_key(|(block, _)| estimate(&block.bytes));
    let (bytes, node) = largest.map_or((Dim::ZERO, None), |(block, owner)| {
        let node = match owner {
            Owner::Value(value) => graph.producer(*value),
            Owner::Scratch(group) => Some(grouping.groups[*group].anchor),
            Owner::Control(node) => Some(*node),
            Owner::Output => None,
        };
        (block.bytes.clone(), node)
    });
    let message = format!(
        "intermediate values need {arena} bytes, more than {MAX_ARENA}; the largest, {bytes} bytes, is of this node"
    );
    let error = Error::new(Stage::Schedule, Kind::Budget, message);
    match node {
        Some(node) => error.at(graph.node_ref(node)),
        None => error,
    }
}

/// Constants that something reads.
fn place_constants(graph: &Graph, program: &mut Program) {
    let mut used: Vec<ValueId> = program.groups.values().flat_map(|group| group.inputs.clone()).collect();
    for step in &program.steps {
        match step {
            Step::Run(_) | Step::Allocate(_) | Step::Release(_) => {}
            Step::Copy { from, .. } => used.push(*from),
            Step::Bind(sym) => used.push(graph.data[sym].value),
            Step::Control { node, .. } => used.extend(&graph.nodes[*node].inputs),
        }
    }
    for value in used {
        let value = program.storage(value);
        if graph.is_constant(value) {
            program.places[value] = Some(Storage::Constant);
        }
    }
}

fn root(alias: &SecondaryMap<ValueId, Option<ValueId>>, mut value: ValueId) -> ValueId {
    while let Some(of) = alias[value] {
        value = of;
    }
    value
}

enum Owner {
    Value(ValueId),
    Scratch(GroupId),
    Control(NodeId),
    /// Of a body: an output that is copied into a block.
    Output,
}

/// What needs memory, and for how long.
#[derive(Default)]
struct Blocks {
    /// In the arena.
    blocks: Vec<ArenaSpan>,
    owners: Vec<Owner>,
    heap: Vec<HeapUse>,
}

/// A block that the run allocates.
struct HeapUse {
    owner: Owner,
    block: ArenaSpan,
    writer: Option<NodeId>,
    /// It comes from the bodies of control flow, which have written to it.
    comes: bool,
    /// It goes to the program around, as this output.
    goes: Option<usize>,
}

struct Planner<'a> {
    graph: &'a Graph,
    grouping: &'a Grouping,
    tasks: &'a [Task],
    alias: SecondaryMap<ValueId, Option<ValueId>>,
    /// The graph output that a storage is.
    output: SecondaryMap<ValueId, Option<usize>>,
    copies: Vec<(ValueId, usize)>,
    /// The output as which a storage is left in a block.
    leaves: SecondaryMap<ValueId, Option<usize>>,
    /// Last task that reads or writes a storage.
    last: SecondaryMap<ValueId, usize>,
    /// Of a storage that kernels write again: the tasks between which it is needed, but for the last one.
    spans: SecondaryMap<ValueId, Vec<(usize, usize)>>,
    /// Kernels that run again.
    twice: BTreeSet<GroupId>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, grouping: &'a Grouping, tasks: &'a [Task]) -> Planner<'a> {
        let mut planner = Planner {
            graph,
            grouping,
            tasks,
            alias: grouping.alias.clone(),
            output: SecondaryMap::new(),
            copies: Vec::new(),
            leaves: SecondaryMap::new(),
            last: SecondaryMap::new(),
            spans: SecondaryMap::new(),
            twice: BTreeSet::new(),
        };
        let mut first: SecondaryMap<GroupId, Option<usize>> = SecondaryMap::new();
        for (at, &task) in tasks.iter().enumerate() {
            let (inputs, outputs) = planner.ends(task);
            if let Task::Run(id) = task
                && let Some(from) = first[id].replace(at)
            {
                planner.twice.insert(id);
                for &value in outputs {
                    let last = planner.last[value];
                    planner.spans[value].push((from, last));
                }
            }
            for &value in inputs.iter().chain(outputs) {
                let storage = planner.root(value);
                planner.last[storage] = at;
            }
        }
        planner
    }

    fn root(&self, value: ValueId) -> ValueId {
        root(&self.alias, value)
    }

    fn ends(&self, task: Task) -> (&'a [ValueId], &'a [ValueId]) {
        match task {
            Task::Run(id) => (&self.grouping.groups[id].inputs, &self.grouping.groups[id].outputs),
            Task::Control(node) => (&self.graph.nodes[node].inputs, &self.graph.nodes[node].outputs),
            Task::Bind(sym) => (std::slice::from_ref(&self.graph.data[&sym].value), &[]),
        }
    }

    /// Gives each graph output to the storage of its value; what cannot be computed there is copied. Those of `leaves`
    /// become blocks; `updates` write states where they stay.
    fn take_outputs(&mut self, leaves: &BTreeSet<usize>, updates: &BTreeSet<GroupId>) {
        let written = updates.iter().flat_map(|&id| &self.grouping.groups[id].outputs);
        let in_place: BTreeSet<ValueId> = written.copied().collect();
        let bounds = Bounds::new(self.graph);
        for (at, (_, value)) in self.graph.outputs.iter().enumerate() {
            let storage = self.root(*value);
            if let Some(state) = self.graph.state_of_output(at) {
                match state.growth {
                    // What is appended is written where it stays.
                    Some(_) => self.output[storage] = Some(at),
                    // A run reads the old one as long as it likes, and one that fails keeps it.
                    None if self.state_input(at) == Some(storage) => {}
                    None if in_place.contains(value) => self.output[storage] = Some(at),
                    None => {
                        self.copies.push((*value, at));
                        self.last[storage] = self.tasks.len();
                    }
                }
                continue;
            }
            let (ty, own) = (self.graph.ty(*value), self.graph.ty(storage));
            // The caller's buffer is checked once the output's dims are known, perhaps after its bytes are computed.
            let late = ty.shape != own.shape && ty.shape.iter().any(|dim| self.graph.is_data_dim(dim))
                || self.graph.is_late(storage)
                || !self.surely_has_bytes_of(storage, ty);
            let taken = self.graph.producer(storage).is_none()
                || self.output[storage].is_some()
                || self.leaves[storage].is_some();
            // A block of its own has its exact size, which is known only after control flow: until then a bounded value lies where the
            // maximum fits.
            let early = self.graph.is_late(storage) && bounds.reserved_for(storage).is_some();
            // So it is for one whose rank may be known only after its bytes.
            let any_rank = self.graph.any_rank.contains_key(&at);
            if taken || any_rank || late && !leaves.contains(&at) || early {
                self.copies.push((*value, at));
                // Copies come after all tasks.
                self.last[storage] = self.tasks.len();
            } else if leaves.contains(&at) {
                self.leaves[storage] = Some(at);
                self.last[storage] = self.tasks.len();
            } else {
                self.output[storage] = Some(at);
            }
        }
    }

    /// Whether a storage has an output's bytes when it is computed, for any later sizes: either has the same number of
    /// elements, or what is assumed of these numbers is checked by then.
    fn surely_has_bytes_of(&self, storage: ValueId, output: &TensorType) -> bool {
        let (graph, own) = (self.graph, self.graph.ty(storage));
        if own.bytes() == output.bytes() {
            return true;
        }
        let bound: BTreeSet<Sym> = own.shape.iter().flat_map(|dim| graph.data_symbols_of(dim)).collect();
        let counts = [own.elements(), output.elements()];
        graph.assumptions.requirements().any(|Requirement { left, relation, right }| {
            let same = [left, right] == [&counts[0], &counts[1]] || [right, left] == [&counts[0], &counts[1]];
            let known = [left, right].iter().all(|dim| graph.data_symbols_of(dim).is_subset(&bound));
            *relation == Relation::Equal && same && known
        })
    }

    /// The input that is the same tensor as an output.
    fn state_input(&self, output: usize) -> Option<ValueId> {
        self.graph.state_of_output(output)?;
        let at = self.graph.given_inputs() + output - self.graph.given_outputs();
        Some(self.graph.inputs[at].value)
    }

    /// The copies in an order in which no state is replaced before it is read.
    fn ordered_copies(&mut self) -> Result<Vec<(ValueId, usize)>> {
        let mut pending = std::mem::take(&mut self.copies);
        let mut ordered = vec![];
        while !pending.is_empty() {
            let is_read_by_others = |at: usize| {
                let state = self.state_input(pending[at].1);
                let mut others = pending.iter().enumerate().filter(|(other, _)| *other != at);
                state.is_some() && others.any(|(_, (from, _))| Some(self.root(*from)) == state)
            };
            let Some(next) = (0..pending.len()).find(|&at| !is_read_by_others(at)) else {
                let names: Vec<&str> =
                    pending.iter().map(|(_, at)| self.graph.outputs[*at].0.as_str()).collect();
                let message = format!("the states {} take each other's values", names.join(", "));
                return Err(Error::unsupported(Stage::Schedule, message));
            };
            ordered.push(pending.remove(next));
        }
        Ok(ordered)
    }

    /// Lets results take the bytes of an operand that dies.
    fn share(&mut self) {
        for (at, &task) in self.tasks.iter().enumerate() {
            let Task::Run(id) = task else { continue };
            let group = &self.grouping.groups[id];
            let &[out] = group.outputs.as_slice() else { continue };
            if matches!(group.kind, GroupKind::Rows | GroupKind::Single)
                || self.twice.contains(&id)
                || self.output[out].is_some()
                || self.leaves[out].is_some()
            {
                continue;
            }
            let candidate = group.inputs.iter().copied().find(|&input| self.dies_into(group, input, out, at));
            if let Some(input) = candidate {
                let storage = self.root(input);
                self.last[storage] = self.last[out];
                self.alias[out] = Some(storage);
            }
        }
    }

    fn dies_into(&self, group: &Group, input: ValueId, out: ValueId, at: usize) -> bool {
        let storage = self.root(input);
        let (from, to) = (self.graph.ty(input), self.graph.ty(out));
        self.graph.producer(storage).is_some()
            && self.output[storage].is_none()
            && self.last[storage] == at
            && from.shape == to.shape
            && from.dtype.size() == to.dtype.size()
            && group.inputs.iter().all(|&other| other == input || self.root(other) != storage)
            && reads_in_step(self.graph, group, input)
    }

    /// The task that writes a value last, where task number `first` writes it first.
    fn again_at(&self, value: ValueId, first: usize) -> usize {
        if self.spans[value].is_empty() {
            return first;
        }
        let writes = |task: &Task| self.ends(*task).1.contains(&value);
        self.tasks.iter().rposition(writes).unwrap_or(first)
    }

    /// The bytes that a task has to itself, and the node that errors about them name.
    fn scratch(&self, task: Task, bodies: &Bodies) -> Option<(Owner, Dim, NodeId)> {
        match task {
            Task::Run(id) => {
                let group = &self.grouping.groups[id];
                group.has_scratch().then(|| (Owner::Scratch(id), group.scratch.clone(), group.anchor))
            }
            Task::Control(node) => {
                Some((Owner::Control(node), control_scratch(self.graph, node, &bodies[node]).1, node))
            }
            Task::Bind(_) => None,
        }
    }

    /// Storages with their lifetimes in tasks, and the scratch of groups and control flow, in the arena or allocated.
    fn blocks(&self, bodies: &Bodies, leaves: &BTreeSet<usize>) -> Blocks {
        let bounds = Bounds::new(self.graph);
        let mut all = Blocks::default();
        let mut place = |wanted: HeapUse, most: Option<Dim>| match most {
            Some(bytes) => {
                all.blocks.push(ArenaSpan { bytes, ..wanted.block });
                all.owners.push(wanted.owner);
            }
            None => all.heap.push(wanted),
        };
        for (at, &task) in self.tasks.iter().enumerate() {
            let come = match task {
                Task::Control(node) => handed(self.graph, node),
                _ => BTreeSet::new(),
            };
            for (number, &value) in self.ends(task).1.iter().enumerate() {
                let Some(writer) = self.graph.producer(value) else { continue };
                let before = &self.spans[value];
                // It is there already where it is written again.
                let is_again = before.first().is_some_and(|span| span.0 < at);
                if self.alias[value].is_some() || self.output[value].is_some() || is_again {
                    continue;
                }
                let (ty, goes) = (self.graph.ty(value), self.leaves[value]);
                let mut spans = before.clone();
                spans.push((self.again_at(value, at), self.last[value]));
                let (first, last) = spans.remove(0);
                let block = ArenaSpan { bytes: ty.bytes(), first, last, again: spans };
                let (owner, comes) = (Owner::Value(value), come.contains(&number));
                let wanted = HeapUse { owner, block, writer: Some(writer), comes, goes };
                place(wanted, bounds.reserved_for(value).filter(|_| goes.is_none()));
            }
            let Some((owner, bytes, node)) = self.scratch(task, bodies) else { continue };
            let most = bounds.reserved(&bytes);
            let runs: Vec<usize> = match task {
                Task::Run(id) if self.twice.contains(&id) => {
                    (0..self.tasks.len()).filter(|&other| self.tasks[other] == task).collect()
                }
                _ => vec![at],
            };
            if runs[0] < at {
                continue;
            }
            let again = runs[1..].iter().map(|&at| (at, at)).collect();
            let block = ArenaSpan { bytes, first: at, last: at, again };
            place(HeapUse { owner, block, writer: Some(node), comes: false, goes: None }, most);
        }
        let end = self.tasks.len();
        for &(value, output) in self.copies.iter().filter(|(_, output)| leaves.contains(output)) {
            let bytes = self.graph.ty(value).bytes();
            let block = ArenaSpan { bytes, first: end, last: end, ..Default::default() };
            let (owner, writer) = (Owner::Output, self.graph.producer(value));
            all.heap.push(HeapUse { owner, block, writer, comes: false, goes: Some(output) });
        }
        all
    }
}

/// Whether the group reads `input`, and only at the index at which it writes its outputs, which have one shape.
pub(super) fn reads_in_step(graph: &Graph, group: &Group, input: ValueId) -> bool {
    let shape = &graph.ty(group.outputs[0]).shape;
    let (mut here, mut elsewhere) = (EntitySet::new(), EntitySet::new());
    for &out in &group.outputs {
        here.insert(out);
    }
    for &node in group.nodes.iter().rev() {
        let data = &graph.nodes[node];
        let result = data.outputs[0];
        let in_step = matches!(data.op, Op::Map(_)) && graph.ty(result).shape == *shape;
        for &operand in &data.inputs {
            if here.contains(result) && in_step && graph.ty(operand).shape == *shape {
                here.insert(operand);
            } else {
                elsewhere.insert(operand);
            }
            if elsewhere.contains(result) {
                elsewhere.insert(operand);
            }
        }
    }
    here.contains(input) && !elsewhere.contains(input)
}

/// The largest sum of sizes live at one task.
fn bound(blocks: &[ArenaSpan], tasks: usize) -> Dim {
    // Copies at the end are one task more.
    let mut change = vec![0i128; tasks + 2];
    for block in blocks {
        let bytes = i128::from(estimate(&aligned(&block.bytes)));
        for (first, last) in block.spans() {
            change[first] += bytes;
            change[last + 1] -= bytes;
        }
    }
    let (mut live, mut best) = (0, (0, 0));
    for (at, by) in change.iter().enumerate() {
        live += by;
        if live > best.0 {
            best = (live, at);
        }
    }
    blocks
        .iter()
        .filter(|block| block.spans().any(|(first, last)| (first..=last).contains(&best.1)))
        .fold(Dim::ZERO, |sum, block| sum + aligned(&block.bytes))
}
