//! Replays the steps of a program over a model of the memory, at one choice of sizes.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckedPlan, consistent, fault};
use crate::{ALIGN, BlockId, Group, GroupId, Program, Scratch, Step, Storage, handed, handed_by_bodies};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, NodeId, Op, Sym, ValueId};

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
    plan: &'a CheckedPlan<'a>,
    graph: &'a Graph,
    program: &'a Program,
    sizes: &'a dyn Fn(Sym) -> Option<i64>,
    /// What ranges of a space hold; they do not overlap.
    holds: BTreeMap<Space, Vec<(Range, ValueId)>>,
    /// How often each graph output was written.
    written: Vec<usize>,
    /// Data symbols that have been read.
    bound: BTreeSet<Sym>,
    /// Blocks that are allocated, and their bytes.
    blocks: BTreeMap<BlockId, i64>,
    /// Inputs that are states and have been written over.
    replaced: BTreeSet<usize>,
}

/// Fails where a step reads what is not there, or writes what is still needed.
pub(super) fn replay(plan: &CheckedPlan<'_>, sizes: &dyn Fn(Sym) -> Option<i64>) -> Result<()> {
    let CheckedPlan { graph, program, .. } = *plan;
    if !consistent(graph, program, sizes) {
        return Ok(());
    }
    let written = vec![0; graph.outputs.len()];
    let (bound, blocks) = (BTreeSet::new(), BTreeMap::new());
    let (holds, replaced) = (BTreeMap::new(), BTreeSet::new());
    let mut replay = Replay { plan, graph, program, sizes, holds, written, bound, blocks, replaced };
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
                let held = plan.content(*from);
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
                replay.holds.remove(&Space::Heap(*block));
            }
        }
    }
    replay.finish()
}

impl Replay<'_> {
    fn eval(&self, dim: &Dim) -> Result<i64> {
        match dim.eval(self.sizes) {
            Some(value) => Ok(value),
            None => fault(format!("the offset or size {dim} has no value")),
        }
    }

    /// Whether every data symbol of some was read before.
    fn knows(&self, symbols: &BTreeSet<Sym>, what: impl Fn() -> String) -> Result<()> {
        match symbols.iter().find(|sym| !self.bound.contains(sym)) {
            Some(sym) => fault(format!("{} needs {sym} before it is read", what())),
            None => Ok(()),
        }
    }

    fn knows_sizes(&self, node: NodeId) -> Result<()> {
        match self.plan.needs.get(&node) {
            Some(symbols) => self.knows(symbols, || node.to_string()),
            None => fault(format!("{node} is in no step")),
        }
    }

    fn bind(&mut self, sym: Sym) -> Result<()> {
        let Some(data) = self.graph.data.get(&sym) else {
            return fault(format!("{sym} is read and has no definition"));
        };
        self.reads(&[data.value])?;
        if let Some(bound) = &data.bound {
            self.knows(&self.graph.data_symbols_of(bound), || format!("the bound of {sym}"))?;
        }
        match self.bound.insert(sym) {
            true => Ok(()),
            false => fault(format!("{sym} is read twice")),
        }
    }

    fn allocate(&mut self, block: BlockId) -> Result<()> {
        let Some(data) = self.program.heap.get(block) else { return fault(format!("there is no {block}")) };
        self.knows(&self.graph.data_symbols_of(&data.bytes), || format!("the size of {block}"))?;
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
            Some(Storage::Arena { offset, size }) => {
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
            Some(Storage::Output(at)) => whole(Space::Output(*at)),
            Some(Storage::Heap(block)) => match self.blocks.get(block) {
                Some(&size) if size >= bytes => whole(Space::Heap(*block)),
                size => fault(format!("{value} ({bytes} bytes) is in {block}, which has {size:?}")),
            },
            Some(Storage::Input(_) | Storage::Constant) => whole(Space::Fixed),
            _ => fault(format!("{value} is used and has no place")),
        }
    }

    fn reads(&self, values: &[ValueId]) -> Result<()> {
        for &value in values {
            let range = self.range(value)?;
            if let Some(Storage::Input(at)) = self.program.place(value)
                && self.replaced.contains(at)
            {
                return fault(format!("{value} is read from the state {at}, which was written over"));
            }
            if range.space == Space::Fixed || range.start == range.end {
                continue;
            }
            let wanted = self.plan.content(value);
            let held = self
                .held(range.space)
                .iter()
                .any(|(own, held)| *held == wanted && own.start == range.start && own.end == range.end);
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
        self.forget(&range);
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
                        self.knows(&self.graph.data_symbols_of(dim), || format!("output {at}"))?;
                    }
                }
                Space::Arena | Space::Heap(_) => {}
            }
            self.put(range, self.plan.content(value));
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
        self.forget(&range);
        self.holds.entry(range.space).or_default().push((range, held));
    }

    fn held(&self, space: Space) -> &[(Range, ValueId)] {
        self.holds.get(&space).map_or(&[], Vec::as_slice)
    }

    /// A range holds nothing any more.
    fn forget(&mut self, range: &Range) {
        if let Some(holds) = self.holds.get_mut(&range.space) {
            holds.retain(|(own, _)| !own.overlaps(range));
        }
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
                (Some(Storage::Heap(block)), true) => drop(comes.insert(*block)),
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
        self.forget(&scratch);
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
            let wanted = self.plan.content(*value);
            let space = block.map_or(Space::Output(at), |&block| Space::Heap(block));
            let range = Range { space, start: 0, end: self.bytes(*value)? };
            let held = self.held(range.space).iter().any(|(_, held)| *held == wanted);
            if range.end > 0 && !held {
                return fault(format!("output {at} `{name}` does not hold {value} at the end"));
            }
        }
        Ok(())
    }
}
