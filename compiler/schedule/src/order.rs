//! The order of kernels: topological, and such that little is live at once.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::grouper::Grouping;
use crate::{Bodies, GroupId, control_scratch, estimate};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Graph, NodeId, Sym, ValueId};

/// What runs, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Run(GroupId),
    Control(NodeId),
    /// Reads a data symbol.
    Bind(Sym),
}

struct Item {
    task: Task,
    /// Arena storages it reads and writes, each once.
    reads: Vec<ValueId>,
    writes: Vec<ValueId>,
    /// Bytes it needs while it runs.
    scratch: i64,
    /// Where its last node stands in the graph's order.
    position: usize,
    /// Data symbols that must be bound before.
    symbols: BTreeSet<Sym>,
}

impl Item {
    /// One that reads and writes nothing.
    fn new(task: Task, scratch: i64, position: usize, symbols: BTreeSet<Sym>) -> Item {
        Item { task, reads: Vec::new(), writes: Vec::new(), scratch, position, symbols }
    }
}

struct Tasks {
    items: DiGraph<Item, ()>,
    /// Estimated bytes of arena storages, and how many tasks read them.
    bytes: SecondaryMap<ValueId, i64>,
    readers: SecondaryMap<ValueId, u32>,
}

/// The better of two orders: nearest to the graph's own, and the greedy one that always runs what frees
/// most.
pub(super) fn order(graph: &Graph, grouping: &Grouping, bodies: &Bodies) -> Result<Vec<Task>> {
    let tasks = Tasks::new(graph, grouping, bodies);
    let own = tasks.sorted(false);
    if own.len() != tasks.items.node_count() {
        return Err(Error::internal(Stage::Schedule, "the groups depend on each other in a cycle"));
    }
    let greedy = tasks.sorted(true);
    let best = if tasks.peak(&greedy) < tasks.peak(&own) { greedy } else { own };
    Ok(best.into_iter().map(|at| tasks.items[at].task).collect())
}

impl Tasks {
    fn new(graph: &Graph, grouping: &Grouping, bodies: &Bodies) -> Tasks {
        let mut tasks =
            Tasks { items: DiGraph::new(), bytes: SecondaryMap::new(), readers: SecondaryMap::new() };
        let mut position: SecondaryMap<NodeId, usize> = SecondaryMap::new();
        for (at, &node) in graph.order.iter().enumerate() {
            position[node] = at;
        }
        for (id, group) in grouping.groups.iter() {
            let last = group.nodes.iter().map(|&node| position[node]).max().unwrap_or(0);
            let scratch = estimate(&group.scratch);
            let symbols = group.nodes.iter().flat_map(|&node| graph.data_symbols(node)).collect();
            let item = Item::new(Task::Run(id), scratch, last, symbols);
            tasks.add(graph, grouping, item, &group.inputs, &group.outputs);
        }
        for &node in &grouping.controls {
            let scratch = estimate(&control_scratch(graph, node, &bodies[node]).1);
            let data = &graph.nodes[node];
            let item = Item::new(Task::Control(node), scratch, position[node], graph.data_symbols(node));
            tasks.add(graph, grouping, item, &data.inputs, &data.outputs);
        }
        for &sym in &grouping.symbols {
            let data = &graph.data[&sym];
            let at = graph.producer(data.value).map_or(0, |node| position[node]);
            let symbols = data.bound.iter().flat_map(|bound| graph.data_symbols_of(bound)).collect();
            tasks.add(graph, grouping, Item::new(Task::Bind(sym), 0, at, symbols), &[data.value], &[]);
        }
        tasks.connect();
        // Outputs have buffers of the caller and free nothing.
        let mut owned: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for (_, value) in &graph.outputs {
            owned[grouping.storage(*value)] = true;
        }
        for (value, data) in graph.values.iter() {
            if !owned[value] {
                tasks.bytes[value] = estimate(&data.ty.bytes());
            }
        }
        tasks
    }

    /// A task that reads and writes some values. It waits for the sizes of the views that it reads too: they say whether the
    /// view has the bytes of its storage.
    fn add(
        &mut self,
        graph: &Graph,
        grouping: &Grouping,
        mut item: Item,
        inputs: &[ValueId],
        outputs: &[ValueId],
    ) {
        let storages = |values: &[ValueId]| -> Vec<ValueId> {
            let set: BTreeSet<ValueId> = values.iter().map(|&value| grouping.storage(value)).collect();
            set.into_iter().collect()
        };
        (item.reads, item.writes) = (storages(inputs), storages(outputs));
        item.symbols.extend(grouping.view_symbols(graph, inputs));
        for &value in &item.reads {
            self.readers[value] += 1;
        }
        self.items.add_node(item);
    }

    /// Edges from the writer of each storage to its readers, and from what binds a symbol to what mentions it. What
    /// nothing writes is an input or a constant, and free.
    fn connect(&mut self) {
        let mut writer: SecondaryMap<ValueId, Option<NodeIndex>> = SecondaryMap::new();
        for at in self.items.node_indices() {
            for &value in &self.items[at].writes {
                writer[value] = Some(at);
            }
        }
        let mut binders: BTreeMap<Sym, NodeIndex> = BTreeMap::new();
        for at in self.items.node_indices() {
            if let Task::Bind(sym) = self.items[at].task {
                binders.insert(sym, at);
            }
        }
        for at in self.items.node_indices() {
            let symbols = std::mem::take(&mut self.items[at].symbols);
            for from in symbols.iter().filter_map(|sym| binders.get(sym)) {
                self.items.update_edge(*from, at, ());
            }
            let mut reads = std::mem::take(&mut self.items[at].reads);
            reads.retain(|&value| writer[value].is_some());
            for from in reads.iter().filter_map(|&value| writer[value]) {
                self.items.update_edge(from, at, ());
            }
            self.items[at].reads = reads;
        }
    }

    /// A topological order: by position, or (`greedy`) by the bytes that running a ready task frees, then by
    /// position. Shorter than the number of tasks if there is a cycle.
    fn sorted(&self, greedy: bool) -> Vec<NodeIndex> {
        let mut waiting: Vec<usize> = self
            .items
            .node_indices()
            .map(|at| self.items.neighbors_directed(at, Direction::Incoming).count())
            .collect();
        let mut readers = self.readers.clone();
        let key = |at: NodeIndex| (self.items[at].position, at);
        let mut ready: BTreeSet<(usize, NodeIndex)> =
            self.items.node_indices().filter(|at| waiting[at.index()] == 0).map(key).collect();
        let mut order = Vec::with_capacity(waiting.len());
        while let Some(&first) = ready.first() {
            let next = if greedy {
                // The first of the best: ties go to the earlier position.
                let gain = |at: NodeIndex| self.gain(at, &readers);
                ready.iter().copied().max_by_key(|&(position, at)| (gain(at), std::cmp::Reverse(position)))
            } else {
                None
            };
            let next = next.unwrap_or(first);
            ready.remove(&next);
            order.push(next.1);
            for &value in &self.items[next.1].reads {
                readers[value] = readers[value].saturating_sub(1);
            }
            for to in self.items.neighbors_directed(next.1, Direction::Outgoing) {
                waiting[to.index()] -= 1;
                if waiting[to.index()] == 0 {
                    ready.insert(key(to));
                }
            }
        }
        order
    }

    /// Bytes freed minus bytes allocated by running a task now.
    fn gain(&self, at: NodeIndex, readers: &SecondaryMap<ValueId, u32>) -> i64 {
        let item = &self.items[at];
        let total = |sum: i64, value: &ValueId| sum.saturating_add(self.bytes[*value]);
        let freed = item.reads.iter().filter(|&&value| readers[value] == 1).fold(0, total);
        freed.saturating_sub(item.writes.iter().fold(0, total))
    }

    /// Largest sum of the bytes live at once in an order.
    fn peak(&self, order: &[NodeIndex]) -> i64 {
        let mut readers = self.readers.clone();
        let (mut live, mut peak) = (0i64, 0i64);
        for &at in order {
            let item = &self.items[at];
            for &value in &item.writes {
                live = live.saturating_add(self.bytes[value]);
            }
            peak = peak.max(live.saturating_add(item.scratch));
            for &value in &item.reads {
                readers[value] -= 1;
                if readers[value] == 0 {
                    live = live.saturating_sub(self.bytes[value]);
                }
            }
            for &value in item.writes.iter().filter(|&&value| self.readers[value] == 0) {
                live = live.saturating_sub(self.bytes[value]);
            }
        }
        peak
    }
}
