//! What replaces states: the new values of a parameter and of what its optimizer keeps are one kernel, which reads each element once,
//! and writes where the states stay.
//!
//! A run that fails leaves its states as they were. So these kernels are the last ones, and only those write in place that cannot fail;
//! the host program does not ask in between whether the run is cancelled.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::grouper::{Grouping, MAX_INPUTS, MAX_NODES};
use crate::memory::reads_in_step;
use crate::order::Task;
use crate::{Group, GroupId, GroupKind, Program};
use onnxc_ir::graph::{Graph, NodeId, Op, ValueId};

/// Makes one group of two elementwise ones: the first gives a new state, and the second alone reads it, each element where it writes its
/// own.
pub(super) fn merge(graph: &Graph, grouping: &mut Grouping) {
    if graph.states.is_empty() {
        return;
    }
    let replaced: BTreeSet<ValueId> = (graph.given_outputs()..graph.outputs.len())
        .filter(|&at| graph.state_of_output(at).is_some_and(|state| state.growth.is_none()))
        .map(|at| graph.outputs[at].1)
        .collect();
    let readers = Readers::new(graph, grouping);
    let mut position: SecondaryMap<NodeId, usize> = SecondaryMap::new();
    for (at, &node) in graph.order.iter().enumerate() {
        position[node] = at;
    }
    let mut groups: SecondaryMap<GroupId, Option<Group>> = SecondaryMap::new();
    let ids: Vec<GroupId> = grouping.groups.keys().collect();
    for (id, group) in std::mem::take(&mut grouping.groups) {
        groups[id] = Some(group);
    }
    // Where a group has gone.
    let mut into: BTreeMap<GroupId, GroupId> = BTreeMap::new();
    for &id in &ids {
        let (Some(first), Some(reader)) = (&groups[id], readers.only(&groups, id)) else { continue };
        let reader = std::iter::successors(Some(reader), |id| into.get(id).copied()).last().unwrap_or(reader);
        let Some(second) = groups[reader].as_ref().filter(|_| reader != id) else { continue };
        let new = first.outputs[0];
        if !replaced.contains(&new) || !second.inputs.contains(&new) {
            continue;
        }
        let Some(one) = joined(graph, first, second, &position) else { continue };
        (groups[id], groups[reader]) = (None, Some(one));
        into.insert(id, reader);
    }
    grouping.groups = ids.iter().filter_map(|&id| groups[id].take()).collect::<PrimaryMap<GroupId, Group>>();
}

/// Who reads storages.
struct Readers {
    groups: SecondaryMap<ValueId, Vec<GroupId>>,
    /// Control flow, and what reads sizes.
    others: BTreeSet<ValueId>,
}

impl Readers {
    fn new(graph: &Graph, grouping: &Grouping) -> Readers {
        let mut groups: SecondaryMap<ValueId, Vec<GroupId>> = SecondaryMap::new();
        for (id, group) in grouping.groups.iter() {
            let storages: BTreeSet<ValueId> =
                group.inputs.iter().map(|&input| grouping.storage(input)).collect();
            storages.into_iter().for_each(|storage| groups[storage].push(id));
        }
        let controls = grouping.controls.iter().flat_map(|&node| &graph.nodes[node].inputs).copied();
        let others = controls.chain(graph.data.values().map(|data| data.value));
        Readers { groups, others: others.map(|value| grouping.storage(value)).collect() }
    }

    /// The one reader of what an elementwise group writes.
    fn only(&self, groups: &SecondaryMap<GroupId, Option<Group>>, id: GroupId) -> Option<GroupId> {
        let group = groups[id].as_ref().filter(|group| group.kind == GroupKind::Map)?;
        let &[out] = group.outputs.as_slice() else { return None };
        match self.groups[out].as_slice() {
            &[reader] if !self.others.contains(&out) => Some(reader),
            _ => None,
        }
    }
}

/// Two groups as one.
fn joined(
    graph: &Graph,
    first: &Group,
    second: &Group,
    position: &SecondaryMap<NodeId, usize>,
) -> Option<Group> {
    let new = first.outputs[0];
    let shape = &graph.ty(new).shape;
    let alike = second.outputs.iter().all(|&out| graph.ty(out).shape == *shape);
    if second.kind != GroupKind::Map || !alike || !reads_in_step(graph, second, new) {
        return None;
    }
    let nodes: BTreeSet<NodeId> = first.nodes.iter().chain(&second.nodes).copied().collect();
    let inputs: BTreeSet<ValueId> = first.inputs.iter().chain(&second.inputs).copied().collect();
    let inputs: Vec<ValueId> = inputs.into_iter().filter(|&input| input != new).collect();
    if nodes.len() > MAX_NODES || inputs.len() > MAX_INPUTS {
        return None;
    }
    let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
    nodes.sort_by_key(|&node| position[node]);
    let outputs = [&first.outputs[..], &second.outputs].concat();
    Some(Group { nodes, inputs, outputs, ..second.clone() })
}

/// The groups that write states where they stay; they become the last tasks.
pub(super) fn in_place(graph: &Graph, grouping: &Grouping, tasks: &mut Vec<Task>) -> BTreeSet<GroupId> {
    // What allocates or checks at the end of a run may fail there.
    if graph.states.is_empty()
        || !graph.data.is_empty()
        || !graph.any_rank.is_empty()
        || graph.strings.is_some()
    {
        return BTreeSet::new();
    }
    let readers = Readers::new(graph, grouping);
    let mut outputs: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
    for (at, (_, value)) in graph.outputs.iter().enumerate() {
        outputs.entry(grouping.storage(*value)).or_default().push(at);
    }
    // The states that a group replaces, if it can do so in place.
    let replaced = |group: &Group| -> Option<Vec<ValueId>> {
        let is_safe =
            |node: &NodeId| matches!(graph.nodes[*node].op, Op::Map(_)) || graph.nodes[*node].op.is_view();
        if group.kind != GroupKind::Map || !group.nodes.iter().all(is_safe) {
            return None;
        }
        let state_of = |&out: &ValueId| {
            let &[at] = outputs.get(&out)?.as_slice() else { return None };
            graph.state_of_output(at).filter(|state| state.growth.is_none())?;
            let state = graph.inputs[graph.given_inputs() + at - graph.given_outputs()].value;
            let alone = graph.outputs[at].1 == out
                && graph.ty(state) == graph.ty(out)
                && !outputs.contains_key(&state);
            let unread = readers.groups[out].is_empty() && !readers.others.contains(&out);
            let views = group.inputs.iter().any(|&input| input != state && grouping.storage(input) == state);
            let in_step = !group.inputs.contains(&state) || reads_in_step(graph, group, state);
            (alone && unread && !views && in_step).then_some(state)
        };
        group.outputs.iter().map(state_of).collect()
    };
    let all = grouping.groups.iter();
    let mut found: BTreeMap<GroupId, Vec<ValueId>> =
        all.filter_map(|(id, group)| Some((id, replaced(group)?))).collect();
    // None of them may read what another one has replaced.
    loop {
        let is_read = |id: &GroupId, states: &[ValueId]| {
            let mut others = states.iter().flat_map(|&state| &readers.groups[state]);
            others.any(|other| other != id && found.contains_key(other))
        };
        let Some(id) = found.iter().find(|(id, states)| is_read(id, states)).map(|(&id, _)| id) else {
            break;
        };
        found.remove(&id);
    }
    let is_last = |task: &Task| matches!(task, Task::Run(id) if found.contains_key(id));
    let (last, others): (Vec<Task>, Vec<Task>) = tasks.iter().partition(|task| is_last(task));
    *tasks = [others, last].concat();
    found.into_keys().collect()
}

impl Program {
    /// Whether a group writes states where they stay, which a run that goes on must not leave half done.
    pub fn replaces_states(&self, graph: &Graph, id: GroupId) -> bool {
        let replaces = |&out: &ValueId| match self.places[out] {
            Some(crate::Storage::Output(at)) => {
                graph.state_of_output(at).is_some_and(|state| state.growth.is_none())
            }
            _ => false,
        };
        self.groups[id].outputs.iter().any(replaces)
    }
}
