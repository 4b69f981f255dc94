//! Kernels that run again: a value that is needed much later, as those of a forward pass on the way back, need not be kept until then.
//!
//! The same kernel writes the same bytes from the same operands a second time, right before they are read, so results stay as they are
//! bit for bit, and the object has no more code but for the call. Between its last reader before and its second run a value takes no
//! memory. What the kernel reads must be there: its operands are kept longer, or computed again as well where that is cheaper in
//! memory. Chosen are, at the step at which most is live, those runs that free the most bytes there for their time, until the plan is small
//! enough or nothing is left. Each kernel runs again once at most.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;

use crate::grouper::Grouping;
use crate::order::Task;
use crate::{Bodies, Group, GroupId, GroupKind, aligned, control_scratch, estimate};
use onnxc_ir::graph::{Graph, Op, ValueId};

/// What may be computed again instead of kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recompute {
    #[default]
    Nothing,
    /// All but products and their like, as far as less memory is then needed at once.
    Cheap,
    /// Products too, until all intermediate values fit this number of bytes.
    Within(i64),
}

impl Recompute {
    /// What is cheap, or products too, until intermediate values fit a number of bytes.
    pub fn asked(bytes: Option<u64>) -> Recompute {
        bytes.map_or(Recompute::Cheap, |bytes| Recompute::Within(i64::try_from(bytes).unwrap_or(i64::MAX)))
    }

    /// Bytes at which no more is computed again; `None` where nothing is.
    pub(super) fn target(self) -> Option<i64> {
        match self {
            Recompute::Nothing => None,
            Recompute::Cheap => Some(0),
            Recompute::Within(bytes) => Some(bytes),
        }
    }
}

/// Kernels that one run may need others to run again for.
const MOST: usize = 64;

/// Where kernels run again: each before the task of this number.
type Again = BTreeMap<GroupId, usize>;

struct Search<'a> {
    tasks: &'a [Task],
    /// Storages in the arena that each task reads and writes.
    reads: Vec<Vec<ValueId>>,
    writes: Vec<Vec<ValueId>>,
    scratch: Vec<i64>,
    /// Where a kernel stands in the tasks.
    position: SecondaryMap<GroupId, usize>,
    bytes: SecondaryMap<ValueId, i64>,
    writer: SecondaryMap<ValueId, Option<GroupId>>,
    /// Time of a second run, in no unit; `None` where there may be none.
    cost: SecondaryMap<GroupId, Option<f64>>,
    cheap: SecondaryMap<GroupId, bool>,
    /// Tasks from this one on replace states.
    end: usize,
}

/// What is live when, for an order with second runs.
struct Profile {
    /// Of each item of the order: the task before which it stands, or which it is.
    task: Vec<usize>,
    live: Vec<i64>,
    /// The spans of each storage in items.
    spans: BTreeMap<ValueId, Vec<(usize, usize)>>,
    /// Items that read a storage.
    readers: BTreeMap<ValueId, Vec<usize>>,
}

impl Profile {
    /// The item at which most is live.
    fn peak(&self) -> usize {
        (0..self.live.len()).rev().max_by_key(|&item| self.live[item]).unwrap_or(0)
    }

    fn most(&self) -> i64 {
        self.live.iter().copied().max().unwrap_or(0)
    }
}

/// The tasks, with second runs among them.
pub(super) fn with_second_runs(
    graph: &Graph,
    grouping: &Grouping,
    bodies: &Bodies,
    tasks: Vec<Task>,
    updates: &BTreeSet<GroupId>,
    recompute: Recompute,
) -> Vec<Task> {
    let Some(target) = recompute.target() else { return tasks };
    let search = Search::new(graph, grouping, bodies, &tasks, updates);
    let mut again = Again::new();
    search.reduce(&mut again, target, true);
    if recompute != Recompute::Cheap {
        search.reduce(&mut again, target, false);
    }
    search.order(&again).into_iter().map(|(_, task)| task).collect()
}

impl<'a> Search<'a> {
    fn new(
        graph: &Graph,
        grouping: &Grouping,
        bodies: &Bodies,
        tasks: &'a [Task],
        updates: &BTreeSet<GroupId>,
    ) -> Search<'a> {
        let outputs: BTreeSet<ValueId> =
            graph.outputs.iter().map(|(_, value)| grouping.storage(*value)).collect();
        let mut search = Search {
            tasks,
            reads: vec![],
            writes: vec![],
            scratch: vec![],
            position: SecondaryMap::new(),
            bytes: SecondaryMap::new(),
            writer: SecondaryMap::new(),
            cost: SecondaryMap::new(),
            cheap: SecondaryMap::new(),
            end: tasks.len(),
        };
        let is_update = |task: &Task| matches!(task, Task::Run(id) if updates.contains(id));
        search.end = tasks.iter().position(is_update).unwrap_or(tasks.len());
        let storages = |values: &[ValueId]| -> Vec<ValueId> {
            let all: BTreeSet<ValueId> = values.iter().map(|&value| grouping.storage(value)).collect();
            let own = |value: &ValueId| graph.producer(*value).is_some() && !outputs.contains(value);
            all.into_iter().filter(own).collect()
        };
        for (at, &task) in tasks.iter().enumerate() {
            let (inputs, results, scratch): (&[ValueId], &[ValueId], _) = match task {
                Task::Run(id) => {
                    let group = &grouping.groups[id];
                    search.position[id] = at;
                    (&group.inputs, &group.outputs, estimate(&group.scratch))
                }
                Task::Control(node) => {
                    let scratch = estimate(&control_scratch(graph, node, &bodies[node]).1);
                    (&graph.nodes[node].inputs, &graph.nodes[node].outputs, scratch)
                }
                Task::Bind(sym) => (std::slice::from_ref(&graph.data[&sym].value), &[], 0),
            };
            let written = storages(results);
            for &value in &written {
                search.bytes[value] = estimate(&aligned(&graph.ty(value).bytes()));
            }
            if let Task::Run(id) = task
                && written.len() == results.len()
                && !updates.contains(&id)
                && !results.iter().any(|&value| graph.is_late(value))
            {
                let group = &grouping.groups[id];
                search.cheap[id] = is_cheap(graph, group);
                search.cost[id] = Some(cost(graph, group));
                for &value in &written {
                    search.writer[value] = Some(id);
                }
            }
            search.reads.push(storages(inputs));
            search.writes.push(written);
            search.scratch.push(scratch);
        }
        search
    }

    /// Tasks in order, each with the number of the task that it is or stands before.
    fn order(&self, again: &Again) -> Vec<(usize, Task)> {
        let mut before: BTreeMap<usize, Vec<GroupId>> = BTreeMap::new();
        for (&id, &at) in again {
            before.entry(at).or_default().push(id);
        }
        let mut order = Vec::with_capacity(self.tasks.len() + again.len());
        for (at, &task) in self.tasks.iter().enumerate() {
            let mut runs = before.remove(&at).unwrap_or_default();
            runs.sort_by_key(|&id| self.position[id]);
            order.extend(runs.into_iter().map(|id| (at, Task::Run(id))));
            order.push((at, task));
        }
        order
    }

    fn profile(&self, again: &Again) -> Profile {
        let order = self.order(again);
        let mut profile = Profile {
            task: order.iter().map(|item| item.0).collect(),
            live: vec![],
            spans: BTreeMap::new(),
            readers: BTreeMap::new(),
        };
        let mut change = vec![0i64; order.len() + 1];
        for (item, &(at, task)) in order.iter().enumerate() {
            let at = match task {
                Task::Run(id) => self.position[id],
                _ => at,
            };
            for &value in &self.reads[at] {
                profile.readers.entry(value).or_default().push(item);
                if let Some(span) = profile.spans.get_mut(&value).and_then(|spans| spans.last_mut()) {
                    span.1 = item;
                }
            }
            for &value in &self.writes[at] {
                profile.spans.entry(value).or_default().push((item, item));
            }
            change[item] += self.scratch[at];
            change[item + 1] -= self.scratch[at];
        }
        for (&value, spans) in &profile.spans {
            for &(first, last) in spans {
                change[first] = change[first].saturating_add(self.bytes[value]);
                change[last + 1] = change[last + 1].saturating_sub(self.bytes[value]);
            }
        }
        let mut live = 0i64;
        for by in &change[..order.len()] {
            live = live.saturating_add(*by);
            profile.live.push(live);
        }
        profile
    }

    /// Adds second runs until no more than `target` bytes are live at once, or nothing frees any where most are.
    fn reduce(&self, again: &mut Again, target: i64, cheap: bool) {
        let mut profile = self.profile(again);
        while profile.most() > target {
            let (peak, most) = (profile.peak(), profile.most());
            let mut best: Option<(f64, Again)> = None;
            for (&value, spans) in &profile.spans {
                if !spans.iter().any(|&(first, last)| first < peak && peak < last) {
                    continue;
                }
                let Some(more) = self.freeing(value, peak, &profile, again, cheap) else { continue };
                let new = self.profile(&more);
                // The item at the peak has moved.
                let at = profile.task[peak];
                let now = (0..new.live.len()).rev().find(|&item| new.task[item] == at);
                let freed = now.map_or(0, |item| most - new.live[item]);
                if freed <= 0 || new.most() > most {
                    continue;
                }
                let added = more.keys().filter(|id| !again.contains_key(id));
                let time: f64 = added.filter_map(|&id| self.cost[id]).sum();
                let score = freed as f64 / (time + 1.0);
                if best.as_ref().is_none_or(|best| score > best.0) {
                    best = Some((score, more));
                }
            }
            let Some((_, more)) = best else { return };
            *again = more;
            profile = self.profile(again);
        }
    }

    /// The second runs by which a value need not be there at an item; `None` if it is read then, or cannot be computed again.
    fn freeing(
        &self,
        value: ValueId,
        peak: usize,
        profile: &Profile,
        again: &Again,
        cheap: bool,
    ) -> Option<Again> {
        let readers = profile.readers.get(&value)?;
        let next = readers.iter().copied().find(|&item| item >= peak).filter(|&item| item > peak)?;
        let before = profile.task[next];
        if before >= self.end || before == profile.task[peak] {
            return None;
        }
        let mut more = again.clone();
        let mut open = vec![self.writer[value]?];
        if again.contains_key(&open[0]) {
            return None;
        }
        while let Some(id) = open.pop() {
            let first = !more.contains_key(&id);
            if first && (self.cost[id].is_none() || cheap && !self.cheap[id]) {
                if id == self.writer[value]? {
                    return None;
                }
                // It is kept.
                continue;
            }
            if self.position[id] >= before || more.get(&id).is_some_and(|&at| at <= before) {
                continue;
            }
            more.insert(id, before);
            if more.len() > again.len() + MOST {
                return None;
            }
            for &operand in &self.reads[self.position[id]] {
                let is_there = |&(first, last): &(usize, usize)| first < next && next <= last;
                let spans = profile.spans.get(&operand);
                if !spans.is_some_and(|spans| spans.iter().any(is_there)) {
                    open.extend(self.writer[operand]);
                }
            }
        }
        Some(more)
    }
}

fn is_cheap(graph: &Graph, group: &Group) -> bool {
    let light = |op: &Op| matches!(op, Op::Pack { .. } | Op::Concat { .. } | Op::Pad { .. });
    match group.kind {
        GroupKind::Map | GroupKind::Rows | GroupKind::Reduce => true,
        GroupKind::Single => light(&graph.nodes[group.anchor].op),
        GroupKind::Contract | GroupKind::Winograd | GroupKind::Chain => false,
    }
}

/// About the time of a kernel: bytes that it moves, and operations; products do many of these at once.
fn cost(graph: &Graph, group: &Group) -> f64 {
    let operations = if is_cheap(graph, group) { 2.0 } else { 0.1 };
    estimate(&group.bytes(graph)) as f64 + operations * estimate(&group.flops(graph)) as f64
}
