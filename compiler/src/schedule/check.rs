//! An independent check of a program: it replays the steps over a model of the memory at several sizes
//! and shares no code with the planner.
//!
//! Every range of bytes remembers which value it holds. A write makes its range hold the written value and
//! nothing else; a read demands that the range holds exactly what is read.

mod chain;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result, Stage};
use crate::graph::{Def, Dim, Graph, NodeId, Op, Requirement, Sym, ValueId};
use crate::schedule::{
    ALIGN, BlockId, Group, GroupId, GroupKind, Place, Program, Scratch, Step, affine_view, handed,
    handed_by_bodies,
};

/// Sizes at which symbolic plans are replayed.
const SIZES: [i64; 4] = [1, 2, 7, 64];

fn fault<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::internal(Stage::Schedule, message))
}

/// Fails when a program of the graph is not right: a group that misses an operand, a value that is
/// overwritten while it is needed or read before it is there, an output written twice or never.
pub fn check(graph: &Graph, program: &Program) -> Result<()> {
    for (id, group) in program.groups.iter() {
        check_group(graph, program, id, group)?;
    }
    check_steps(graph, program)?;
    for (value, place) in program.places.iter() {
        if let Some(Place::Alias(of)) = place {
            check_alias(graph, program, value, *of)?;
        }
    }
    for at in 0..SIZES.len() {
        // Each symbol takes each size once, in different company.
        let sizes = |sym: Sym| {
            let offset = (at * 2 + 1) * sym.as_u32() as usize;
            SIZES[(at + offset) % SIZES.len()]
        };
        for sizes in [&sizes as &dyn Fn(Sym) -> i64, &|_| SIZES[at]] {
            let sizes = within_bounds(graph, sizes);
            replay(graph, program, &sizes)?;
            stays_within(graph, program, &sizes)?;
        }
    }
    for step in &program.steps {
        if let Step::Control { node, bodies, .. } = step {
            graph.nodes[*node]
                .op
                .bodies()
                .iter()
                .zip(bodies)
                .try_for_each(|(graph, body)| check(graph, body))?;
        }
    }
    Ok(())
}

/// Sizes of which those that data decide are at most their bounds.
fn within_bounds<'a>(graph: &Graph, sizes: &'a dyn Fn(Sym) -> i64) -> impl Fn(Sym) -> Option<i64> + 'a {
    let mut bounded: BTreeMap<Sym, i64> = BTreeMap::new();
    for (&sym, data) in &graph.data {
        let size = |sym: Sym| bounded.get(&sym).copied().unwrap_or_else(|| sizes(sym));
        let most = data.bound.as_ref().and_then(|bound| bound.eval(&|sym| Some(size(sym))));
        bounded.insert(sym, most.map_or(sizes(sym), |most| sizes(sym).min(most)));
    }
    move |sym| Some(bounded.get(&sym).copied().unwrap_or_else(|| sizes(sym)))
}

fn materialised(program: &Program, value: ValueId) -> bool {
    !matches!(program.places[value], None | Some(Place::None))
}

/// A group computes each operand of its nodes or lists it as an input.
fn check_group(graph: &Graph, program: &Program, id: GroupId, group: &Group) -> Result<()> {
    let inputs: BTreeSet<ValueId> = group.inputs.iter().copied().collect();
    let (mut computed, mut read) = (BTreeSet::new(), BTreeSet::new());
    for &node in &group.nodes {
        let data = &graph.nodes[node];
        for &operand in &data.inputs {
            if computed.contains(&operand) {
                continue;
            }
            if !inputs.contains(&operand) {
                return fault(format!("{node} of {id} reads {operand}, which is neither computed nor read"));
            }
            read.insert(operand);
        }
        computed.extend(data.outputs.iter().copied());
    }
    if read != inputs || inputs.len() != group.inputs.len() {
        return fault(format!("{id} lists inputs {:?} and reads {read:?}", group.inputs));
    }
    for value in group.inputs.iter().chain(&group.outputs) {
        if !materialised(program, *value) {
            return fault(format!("{value} of {id} has no place"));
        }
    }
    if group.outputs.is_empty() || !group.outputs.iter().all(|value| computed.contains(value)) {
        return fault(format!("{id} does not compute its outputs {:?}", group.outputs));
    }
    if !group.nodes.contains(&group.anchor) {
        return fault(format!("{id} does not hold its anchor {}", group.anchor));
    }
    check_kind(graph, program, id, group)?;
    chain::check(graph, program, id, group)
}

/// What the kind of a group promises to lowering.
fn check_kind(graph: &Graph, program: &Program, id: GroupId, group: &Group) -> Result<()> {
    let count =
        |wanted: fn(&Op) -> bool| group.nodes.iter().filter(|&&node| wanted(&graph.nodes[node].op)).count();
    let contracts = count(|op| matches!(op, Op::Contract { .. }));
    let reductions = count(|op| matches!(op, Op::Reduce { .. }));
    let wanted = match group.kind {
        GroupKind::Contract => (1, 0),
        GroupKind::Reduce => (0, 1),
        GroupKind::Rows => (0, reductions.max(1)),
        GroupKind::Chain => (2, reductions.max(1)),
        GroupKind::Map | GroupKind::Single | GroupKind::Winograd => (0, 0),
    };
    let outputs_fit = match (group.kind, &graph.nodes[group.anchor].op) {
        (GroupKind::Rows, _) => true,
        (GroupKind::Single, Op::Sort { .. }) => group.outputs == graph.nodes[group.anchor].outputs,
        _ => group.outputs.len() == 1,
    };
    if (contracts, reductions) != wanted || !outputs_fit {
        return fault(format!(
            "{id} is {:?} with {contracts} contractions, {reductions} reductions",
            group.kind
        ));
    }
    if group.kind == GroupKind::Contract {
        let lhs = graph.nodes[group.anchor].inputs[0];
        if affine_view(graph, lhs, &|value| materialised(program, value)).is_none() {
            return fault(format!("{lhs}, the left operand of {id}, is no affine view of a buffer"));
        }
    }
    Ok(())
}

/// Every group, loop and choice runs once.
fn check_steps(graph: &Graph, program: &Program) -> Result<()> {
    let mut runs: BTreeMap<GroupId, usize> = program.groups.keys().map(|id| (id, 0)).collect();
    let mut controls: BTreeSet<NodeId> = BTreeSet::new();
    for step in &program.steps {
        match step {
            Step::Run(id) => *runs.entry(*id).or_insert(0) += 1,
            Step::Copy { output, .. } if *output >= graph.outputs.len() => {
                return fault(format!("a copy to output {output} of {}", graph.outputs.len()));
            }
            Step::Copy { .. } | Step::Bind(_) | Step::Allocate(_) | Step::Release(_) => {}
            Step::Control { node, bodies, .. } => {
                let op = &graph.nodes[*node].op;
                if !controls.insert(*node) || !op.is_hosted() || op.bodies().len() != bodies.len() {
                    return fault(format!("{node} is run as control flow"));
                }
            }
        }
    }
    match runs.iter().find(|(_, count)| **count != 1) {
        Some((id, count)) => fault(format!("{id} runs {count} times")),
        None => Ok(()),
    }
}

/// An alias is a reshape of the same bytes, or the result of a group that reads its operand in step.
fn check_alias(graph: &Graph, program: &Program, value: ValueId, of: ValueId) -> Result<()> {
    if !materialised(program, of) || matches!(program.places[of], Some(Place::Alias(_))) {
        return fault(format!("{value} is an alias of {of}, which has no place of its own"));
    }
    if content(graph, program, value) == content(graph, program, of) {
        return Ok(());
    }
    let source = reshaped_from(graph, program, value);
    let writer = program.groups.iter().find(|(_, group)| group.outputs.contains(&source));
    let Some((id, group)) = writer else {
        return fault(format!("{value} is an alias of {of} without reason"));
    };
    let sharing = group.inputs.iter().filter(|&&input| program.storage(input) == of);
    for &input in sharing {
        let (from, to) = (graph.ty(input), graph.ty(source));
        if from.dtype.size() != to.dtype.size() || from.shape != to.shape {
            return fault(format!("{id} writes {source}: {to} over its operand {input}: {from}"));
        }
        if group.outputs != [source] || matches!(group.kind, GroupKind::Rows | GroupKind::Single) {
            return fault(format!("{id} ({:?}) writes {source} over its operand {input}", group.kind));
        }
        in_step(graph, id, group, input, source)?;
    }
    Ok(())
}

/// Every way from a read of `input` to the result goes through elementwise nodes of one shape.
fn in_step(graph: &Graph, id: GroupId, group: &Group, input: ValueId, out: ValueId) -> Result<()> {
    let mut pending = vec![input];
    let mut seen = BTreeSet::new();
    while let Some(value) = pending.pop() {
        for &node in group.nodes.iter().filter(|&&node| graph.nodes[node].inputs.contains(&value)) {
            let result = graph.nodes[node].outputs[0];
            if !matches!(graph.nodes[node].op, Op::Map(_)) || graph.ty(result).shape != graph.ty(out).shape {
                return fault(format!("{id} writes {out} over {input}, which {node} reads at another index"));
            }
            if seen.insert(result) {
                pending.push(result);
            }
        }
    }
    Ok(())
}

/// The value that a chain of aliased reshapes starts from.
fn reshaped_from(graph: &Graph, program: &Program, mut value: ValueId) -> ValueId {
    let computed: BTreeSet<ValueId> =
        program.groups.values().flat_map(|group| group.outputs.iter().copied()).collect();
    while let Def::Node(node, _) = graph.values[value].def {
        match graph.nodes[node].op {
            Op::Reshape { .. } if !computed.contains(&value) => value = graph.nodes[node].inputs[0],
            _ => break,
        }
    }
    value
}

/// What bytes hold when they hold a value: aliased reshapes do not change it.
fn content(graph: &Graph, program: &Program, value: ValueId) -> ValueId {
    match program.places[value] {
        Some(Place::Alias(_)) => reshaped_from(graph, program, value),
        _ => value,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Space {
    Arena,
    Heap(BlockId),
    Output(usize),
    /// Inputs and constants: nothing writes there.
    Fixed,
}

/// Bytes `[start, end)` of a space.
#[derive(Clone, Copy, Debug)]
struct Range {
    space: Space,
    start: i64,
    end: i64,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

struct Replay<'a> {
    graph: &'a Graph,
    program: &'a Program,
    sizes: &'a dyn Fn(Sym) -> Option<i64>,
    /// What ranges hold; they do not overlap.
    holds: Vec<(Range, ValueId)>,
    /// How often each graph output was written.
    written: Vec<usize>,
    /// Data symbols that have been read.
    bound: BTreeSet<Sym>,
    /// Blocks that are allocated, and their bytes.
    blocks: BTreeMap<BlockId, i64>,
    /// Inputs that are states and have been written over.
    replaced: BTreeSet<usize>,
}

fn replay(graph: &Graph, program: &Program, sizes: &dyn Fn(Sym) -> Option<i64>) -> Result<()> {
    if !consistent(graph, program, sizes) {
        return Ok(());
    }
    let written = vec![0; graph.outputs.len()];
    let (bound, blocks) = (BTreeSet::new(), BTreeMap::new());
    let replaced = BTreeSet::new();
    let mut replay = Replay { graph, program, sizes, holds: Vec::new(), written, bound, blocks, replaced };
    for step in &program.steps {
        match step {
            Step::Run(id) => {
                let group = &program.groups[*id];
                group.nodes.iter().try_for_each(|&node| replay.knows_sizes(node))?;
                replay.reads(&group.inputs)?;
                replay.check_overlaps(group)?;
                replay.scratch(*id, group)?;
                replay.writes(&group.outputs)?;
            }
            Step::Copy { from, output } => {
                replay.reads(&[*from])?;
                replay.written[*output] += 1;
                let end = replay.bytes(*from)?;
                let held = content(graph, program, *from);
                replay.replace(*output);
                let space = match program.handed.get(output) {
                    Some(block) => Space::Heap(*block),
                    None => Space::Output(*output),
                };
                replay.put(Range { space, start: 0, end }, held);
            }
            Step::Control { node, bodies, scratch } => replay.control(*node, bodies, scratch)?,
            Step::Bind(sym) => replay.bind(*sym)?,
            Step::Allocate(block) => replay.allocate(*block)?,
            Step::Release(block) => {
                if replay.blocks.remove(block).is_none() {
                    return fault(format!("{block} is given back and not allocated"));
                }
                replay.holds.retain(|(own, _)| own.space != Space::Heap(*block));
            }
        }
    }
    replay.finish()
}

/// Whether the sizes are some that the graph can have: no negative dims, reshapes that keep the number of
/// elements, what else is assumed of sizes that data decide, and no overflow.
fn consistent(graph: &Graph, program: &Program, sizes: &dyn Fn(Sym) -> Option<i64>) -> bool {
    let fits = |dim: &Dim| dim.eval(sizes).is_some_and(|value| value >= 0);
    // What inference assumes of sizes that data decide also bounds them.
    let broken = |Requirement { left, relation, right }: &Requirement| {
        let late = graph.is_data_dim(left) || graph.is_data_dim(right);
        late && !left
            .eval(sizes)
            .zip(right.eval(sizes))
            .is_some_and(|(left, right)| relation.holds(left, right))
    };
    if graph.assumptions.requirements().any(broken) {
        return false;
    }
    program.places.iter().filter(|(_, place)| place.is_some()).all(|(value, _)| {
        let ty = graph.ty(value);
        let storage = program.storage(value);
        ty.shape.iter().all(fits) && fits(&ty.bytes()) && {
            ty.bytes().eval(sizes) == graph.ty(storage).bytes().eval(sizes)
        }
    })
}

/// Whatever the sizes, nothing is read or written beyond a storage, or an output's buffer, before the run finds out that they
/// contradict what is assumed of them.
fn stays_within(graph: &Graph, program: &Program, sizes: &dyn Fn(Sym) -> Option<i64>) -> Result<()> {
    let mut bound = BTreeSet::new();
    let contradicts = |bound: &BTreeSet<Sym>| {
        graph.assumptions.requirements().any(|Requirement { left, relation, right }| {
            let known = [left, right].iter().all(|dim| graph.data_symbols_of(dim).is_subset(bound));
            let sides = left.eval(sizes).zip(right.eval(sizes));
            known && sides.is_none_or(|(left, right)| !relation.holds(left, right))
        })
    };
    if contradicts(&bound) {
        return Ok(());
    }
    for step in &program.steps {
        let values: Vec<ValueId> = match step {
            Step::Run(id) => [&program.groups[*id].inputs[..], &program.groups[*id].outputs].concat(),
            Step::Control { node, .. } => {
                let node = &graph.nodes[*node];
                [&node.inputs[..], &node.outputs].concat()
            }
            Step::Copy { from, .. } => vec![*from],
            Step::Bind(sym) => graph.data.get(sym).map(|data| data.value).into_iter().collect(),
            Step::Allocate(_) | Step::Release(_) => continue,
        };
        for value in values {
            let storage = program.storage(value);
            let room = match program.places[storage] {
                Some(Place::Output(at)) => graph.ty(graph.outputs[at].1),
                _ => graph.ty(storage),
            };
            let (bytes, room) = (graph.ty(value).bytes().eval(sizes), room.bytes().eval(sizes));
            let (Some(bytes), Some(room)) = (bytes, room) else { continue };
            if room >= 0 && bytes > room {
                let what = format!("{value} ({bytes} bytes) is used where {storage} has {room}");
                return fault(format!("{what}, before the run knows that these sizes are wrong"));
            }
        }
        if let Step::Bind(sym) = step {
            bound.insert(*sym);
            if contradicts(&bound) {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Replay<'_> {
    fn eval(&self, dim: &Dim) -> Result<i64> {
        match dim.eval(self.sizes) {
            Some(value) => Ok(value),
            None => fault(format!("the offset or size {dim} has no value")),
        }
    }

    /// Whether every data symbol of some was read before.
    fn knows(&self, symbols: BTreeSet<Sym>, what: impl Fn() -> String) -> Result<()> {
        match symbols.into_iter().find(|sym| !self.bound.contains(sym)) {
            Some(sym) => fault(format!("{} needs {sym} before it is read", what())),
            None => Ok(()),
        }
    }

    fn knows_sizes(&self, node: NodeId) -> Result<()> {
        self.knows(self.graph.data_symbols(node), || node.to_string())
    }

    fn bind(&mut self, sym: Sym) -> Result<()> {
        let Some(data) = self.graph.data.get(&sym) else {
            return fault(format!("{sym} is read and has no definition"));
        };
        self.reads(&[data.value])?;
        if let Some(bound) = &data.bound {
            self.knows(self.graph.data_symbols_of(bound), || format!("the bound of {sym}"))?;
        }
        match self.bound.insert(sym) {
            true => Ok(()),
            false => fault(format!("{sym} is read twice")),
        }
    }

    fn allocate(&mut self, block: BlockId) -> Result<()> {
        let Some(data) = self.program.heap.get(block) else { return fault(format!("there is no {block}")) };
        self.knows(self.graph.data_symbols_of(&data.bytes), || format!("the size of {block}"))?;
        let bytes = self.eval(&data.bytes)?;
        match self.blocks.insert(block, bytes) {
            None => Ok(()),
            Some(_) => fault(format!("{block} is allocated twice")),
        }
    }

    fn bytes(&self, value: ValueId) -> Result<i64> {
        self.eval(&self.graph.ty(value).bytes())
    }

    fn range(&self, value: ValueId) -> Result<Range> {
        let storage = self.program.storage(value);
        let bytes = self.bytes(value)?;
        let whole = |space| Ok(Range { space, start: 0, end: bytes });
        match &self.program.places[storage] {
            Some(Place::Arena { offset, size }) => {
                let (start, size) = (self.eval(offset)?, self.eval(size)?);
                let end = start + bytes;
                if start < 0
                    || start % ALIGN != 0
                    || size < bytes
                    || start + size > self.eval(&self.program.arena)?
                {
                    return fault(format!(
                        "{value} ({bytes} bytes) at [{start}, {}) of the arena",
                        start + size
                    ));
                }
                Ok(Range { space: Space::Arena, start, end })
            }
            Some(Place::Output(at)) => whole(Space::Output(*at)),
            Some(Place::Heap(block)) => match self.blocks.get(block) {
                Some(&size) if size >= bytes => whole(Space::Heap(*block)),
                size => fault(format!("{value} ({bytes} bytes) is in {block}, which has {size:?}")),
            },
            Some(Place::Input(_) | Place::Constant) => whole(Space::Fixed),
            _ => fault(format!("{value} is used and has no place")),
        }
    }

    fn reads(&self, values: &[ValueId]) -> Result<()> {
        for &value in values {
            let range = self.range(value)?;
            if let Some(Place::Input(at)) = self.program.place(value)
                && self.replaced.contains(at)
            {
                return fault(format!("{value} is read from the state {at}, which was written over"));
            }
            if range.space == Space::Fixed || range.start == range.end {
                continue;
            }
            let wanted = content(self.graph, self.program, value);
            let held = self.holds.iter().any(|(own, held)| {
                *held == wanted
                    && own.space == range.space
                    && own.start == range.start
                    && own.end == range.end
            });
            if !held {
                return fault(format!("{value} is read from {range:?}, which does not hold {wanted}"));
            }
        }
        Ok(())
    }

    /// A group may write over an operand only as its alias, and its outputs lie apart.
    fn check_overlaps(&self, group: &Group) -> Result<()> {
        for (at, &out) in group.outputs.iter().enumerate() {
            let range = self.range(out)?;
            for &other in &group.outputs[..at] {
                if range.overlaps(&self.range(other)?) {
                    return fault(format!("the outputs {out} and {other} overlap"));
                }
            }
            for &input in &group.inputs {
                let apart = !range.overlaps(&self.range(input)?);
                if !apart && self.program.storage(out) != self.program.storage(input) {
                    return fault(format!("{out} is written over the operand {input} of its group"));
                }
            }
        }
        Ok(())
    }

    /// Where scratch is and starts, and the bytes of the whole space.
    fn scratch_in(&self, place: &Scratch) -> Result<(Space, i64, i64)> {
        Ok(match place {
            Scratch::Arena(offset) => (Space::Arena, self.eval(offset)?, self.eval(&self.program.arena)?),
            Scratch::Heap(block) => {
                (Space::Heap(*block), 0, self.blocks.get(block).copied().unwrap_or_default())
            }
        })
    }

    /// What a kernel has to itself is apart from what it reads and writes, and holds nothing afterwards.
    fn scratch(&mut self, id: GroupId, group: &Group) -> Result<()> {
        let Some(place) = &self.program.scratch[id] else {
            return if group.has_scratch() { fault(format!("{id} has no scratch")) } else { Ok(()) };
        };
        let (space, start, whole) = self.scratch_in(place)?;
        let end = start + self.eval(&group.scratch)?;
        if start < 0 || start % ALIGN != 0 || end > whole {
            return fault(format!("the scratch of {id} is [{start}, {end}) of {whole} bytes"));
        }
        let range = Range { space, start, end };
        for &value in group.inputs.iter().chain(&group.outputs) {
            if range.overlaps(&self.range(value)?) {
                return fault(format!("the scratch of {id} overlaps its {value}"));
            }
        }
        self.holds.retain(|(own, _)| !own.overlaps(&range));
        Ok(())
    }

    fn writes(&mut self, values: &[ValueId]) -> Result<()> {
        for &value in values {
            let range = self.range(value)?;
            match range.space {
                Space::Fixed => return fault(format!("{value} is written over an input or a constant")),
                Space::Output(at) => {
                    self.replace(at);
                    match self.written.get_mut(at) {
                        Some(count) => *count += 1,
                        None => return fault(format!("{value} is written to output {at}, which is none")),
                    }
                    let rank = self.graph.any_rank.get(&at).map(|own| &own.rank);
                    for dim in self.graph.ty(self.graph.outputs[at].1).shape.iter().chain(rank) {
                        self.knows(self.graph.data_symbols_of(dim), || format!("output {at}"))?;
                    }
                }
                Space::Arena | Space::Heap(_) => {}
            }
            self.put(range, content(self.graph, self.program, value));
        }
        Ok(())
    }

    /// Notes that an output is written: of a state, that the input is gone.
    fn replace(&mut self, output: usize) {
        if self.graph.state_of_output(output).is_some() {
            self.replaced.insert(self.graph.given_inputs() + output - self.graph.given_outputs());
        }
    }

    fn put(&mut self, range: Range, held: ValueId) {
        self.holds.retain(|(own, _)| !own.overlaps(&range));
        self.holds.push((range, held));
    }

    fn control(&mut self, node: NodeId, bodies: &[Program], place: &Scratch) -> Result<()> {
        let (graph, data) = (self.graph, &self.graph.nodes[node]);
        self.knows_sizes(node)?;
        self.reads(&data.inputs)?;
        let (space, start, whole) = self.scratch_in(place)?;
        let mut end = start;
        for body in bodies {
            end = end.max(start + self.eval(&body.arena)?);
        }
        let (handed, mut comes) = (handed(graph, node), BTreeSet::new());
        for (at, &value) in data.outputs.iter().enumerate() {
            match (&self.program.places[value], handed.contains(&at)) {
                (Some(Place::Heap(block)), true) => drop(comes.insert(*block)),
                (_, true) => return fault(format!("{value} of {node} is handed over and is in no block")),
                (_, false) => {}
            }
        }
        let left = handed_by_bodies(graph, node);
        for (body, program) in data.op.bodies().iter().zip(bodies) {
            if !left.iter().eq(program.handed.keys()) {
                return fault(format!(
                    "a body of {node} leaves {:?} in blocks, not {left:?}",
                    program.handed
                ));
            }
            let Op::Scan { states, .. } = &data.op else { continue };
            for at in (0..*states).filter(|at| !left.contains(at)) {
                let bytes = self.eval(&body.ty(body.outputs[at].1).bytes())?;
                end += (bytes + ALIGN - 1) / ALIGN * ALIGN;
            }
        }
        if start % ALIGN != 0 || end > whole {
            return fault(format!("the scratch of {node} is [{start}, {end}) of {whole} bytes"));
        }
        let scratch = Range { space, start, end };
        for &block in &comes {
            if self.blocks.insert(block, i64::MAX).is_some() {
                return fault(format!("{block} comes from {node} and is allocated"));
            }
        }
        for (at, &value) in data.outputs.iter().enumerate() {
            let range = self.range(value)?;
            for &other in data.inputs.iter().chain(&data.outputs[..at]) {
                if range.overlaps(&self.range(other)?) {
                    return fault(format!("{value} of {node} overlaps its {other}"));
                }
            }
        }
        for &value in data.inputs.iter().chain(&data.outputs) {
            if scratch.overlaps(&self.range(value)?) {
                return fault(format!("the scratch of {node} overlaps its {value}"));
            }
        }
        self.holds.retain(|(own, _)| !own.overlaps(&scratch));
        self.writes(&data.outputs)
    }

    /// Every output was written once and holds its value at the end.
    fn finish(self) -> Result<()> {
        let goes: BTreeSet<BlockId> = self.program.handed.values().copied().collect();
        if let Some(block) = self.blocks.keys().find(|block| !goes.contains(block)) {
            return fault(format!("{block} is never given back"));
        }
        for (at, (name, value)) in self.graph.outputs.iter().enumerate() {
            let block = self.program.handed.get(&at);
            let kept = at.checked_sub(self.graph.given_outputs()).is_some_and(|state| {
                let input = self.graph.inputs[self.graph.given_inputs() + state].value;
                self.written[at] == 0 && self.program.storage(*value) == input
            });
            if kept {
                continue;
            }
            if block.is_none() && self.written[at] != 1 {
                return fault(format!("output {at} `{name}` is written {} times", self.written[at]));
            }
            let wanted = content(self.graph, self.program, *value);
            let space = block.map_or(Space::Output(at), |&block| Space::Heap(block));
            let range = Range { space, start: 0, end: self.bytes(*value)? };
            let held = self.holds.iter().any(|(own, held)| own.space == range.space && *held == wanted);
            if range.end > 0 && !held {
                return fault(format!("output {at} `{name}` does not hold {value} at the end"));
            }
        }
        Ok(())
    }
}
