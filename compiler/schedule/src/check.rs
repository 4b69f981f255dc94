//! An independent check of a program: it replays the steps over a model of the memory at several sizes
//! and shares no code with the planner.
//!
//! Every range of bytes remembers which value it holds. A write makes its range hold the written value and
//! nothing else; a read demands that the range holds exactly what is read.

mod chain;
mod replay;

use std::collections::{BTreeMap, BTreeSet};

use crate::{Group, GroupId, GroupKind, Program, Step, Storage};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::view::affine_view;
use onnxc_ir::graph::{Def, Dim, Graph, NodeId, Op, Requirement, Sym, ValueId};

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
    check_states(graph, program)?;
    let plan = CheckedPlan::new(graph, program);
    for (value, place) in program.places.iter() {
        if let Some(Storage::Alias(of)) = place {
            check_alias(&plan, value, *of)?;
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
            replay::replay(&plan, &sizes)?;
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

/// A program with what is asked of it often.
struct CheckedPlan<'a> {
    graph: &'a Graph,
    program: &'a Program,
    /// The data symbols that each node needs.
    needs: BTreeMap<NodeId, BTreeSet<Sym>>,
    /// The groups that compute values with a place.
    writers: BTreeMap<ValueId, GroupId>,
}

impl<'a> CheckedPlan<'a> {
    fn new(graph: &'a Graph, program: &'a Program) -> CheckedPlan<'a> {
        let nodes = program.steps.iter().flat_map(|step| match step {
            Step::Run(id) => program.groups[*id].nodes.to_vec(),
            Step::Control { node, .. } => vec![*node],
            _ => vec![],
        });
        let writers =
            program.groups.iter().flat_map(|(id, group)| group.outputs.iter().map(move |&value| (value, id)));
        CheckedPlan {
            graph,
            program,
            needs: nodes.map(|node| (node, graph.data_symbols(node))).collect(),
            writers: writers.collect(),
        }
    }

    /// The value that a chain of aliased reshapes starts from.
    fn reshaped_from(&self, mut value: ValueId) -> ValueId {
        while let Def::Node(node, _) = self.graph.values[value].def {
            let node = &self.graph.nodes[node];
            match node.op {
                Op::Reshape { .. } if !self.writers.contains_key(&value) => value = node.inputs[0],
                _ => break,
            }
        }
        value
    }

    /// What bytes hold when they hold a value: aliased reshapes do not change it.
    fn content(&self, value: ValueId) -> ValueId {
        match self.program.places[value] {
            Some(Storage::Alias(_)) => self.reshaped_from(value),
            _ => value,
        }
    }
}

/// Sizes, those that data decide limited to their bounds.
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
    !matches!(program.places[value], None | Some(Storage::None))
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
        (GroupKind::Map, _) => {
            let shape = |value: ValueId| &graph.ty(value).shape;
            group.outputs.iter().all(|&out| shape(out) == shape(group.outputs[0]))
        }
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
            return fault(format!("{lhs}, the left operand of {id}, is not an affine view of a buffer"));
        }
    }
    Ok(())
}

/// Every group runs, again where its results are needed once more; loops and choices run once.
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
    match runs.iter().find(|(_, count)| **count == 0) {
        Some((id, _)) => fault(format!("{id} does not run")),
        None => Ok(()),
    }
}

/// What writes states where they stay reads them in step, and nothing that can fail follows.
fn check_states(graph: &Graph, program: &Program) -> Result<()> {
    let mut begun = false;
    for step in &program.steps {
        let Step::Run(id) = step else {
            if begun && !matches!(step, Step::Copy { .. } | Step::Release(_)) {
                return fault(format!("{step:?} follows what replaces states"));
            }
            continue;
        };
        let group = &program.groups[*id];
        let replaces = program.replaces_states(graph, *id);
        if begun && !replaces {
            return fault(format!("{id} follows what replaces states"));
        }
        begun |= replaces;
        for &out in group.outputs.iter().filter(|_| replaces) {
            let Some(Storage::Output(at)) = program.places[out] else {
                return fault(format!("{id} replaces states and gives {out}"));
            };
            let Some(state) = at.checked_sub(graph.given_outputs()) else {
                return fault(format!("{id} replaces states and gives output {at}"));
            };
            let state = graph.inputs[graph.given_inputs() + state].value;
            for &input in group.inputs.iter().filter(|&&input| program.storage(input) == state) {
                in_step(graph, *id, group, input, out)?;
            }
        }
    }
    Ok(())
}

/// An alias is a reshape of the same bytes, or the result of a group that reads its operand in step.
fn check_alias(plan: &CheckedPlan<'_>, value: ValueId, of: ValueId) -> Result<()> {
    let CheckedPlan { graph, program, .. } = *plan;
    if !materialised(program, of) || matches!(program.places[of], Some(Storage::Alias(_))) {
        return fault(format!("{value} is an alias of {of}, which has no place of its own"));
    }
    if plan.content(value) == plan.content(of) {
        return Ok(());
    }
    let source = plan.reshaped_from(value);
    let Some(&id) = plan.writers.get(&source) else {
        return fault(format!("{value} is an alias of {of} without reason"));
    };
    let group = &program.groups[id];
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

/// Whether the sizes are some that the graph can have: no negative dims, reshapes that keep the number of
/// elements, the other assumptions on sizes that data decide, and no overflow.
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

/// For any sizes, nothing is read or written beyond a storage, or an output's buffer, before the run finds out that they
/// contradict what is assumed of them.
fn stays_within(graph: &Graph, program: &Program, sizes: &dyn Fn(Sym) -> Option<i64>) -> Result<()> {
    let mut contradictions = Contradictions::new(graph, sizes);
    if contradictions.found {
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
                Some(Storage::Output(at)) => graph.ty(graph.outputs[at].1),
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
            contradictions.bind(*sym);
            if contradictions.found {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What is assumed of sizes and does not hold: the run finds out once it has read the last data symbol that is mentioned.
struct Contradictions {
    /// Of each assumption that does not hold: the symbols that are not read yet.
    missing: Vec<usize>,
    /// The assumptions that mention a symbol.
    of: BTreeMap<Sym, Vec<usize>>,
    found: bool,
}

impl Contradictions {
    fn new(graph: &Graph, sizes: &dyn Fn(Sym) -> Option<i64>) -> Contradictions {
        let mut contradictions = Contradictions { missing: vec![], of: BTreeMap::new(), found: false };
        for Requirement { left, relation, right } in graph.assumptions.requirements() {
            let sides = left.eval(sizes).zip(right.eval(sizes));
            if sides.is_some_and(|(left, right)| relation.holds(left, right)) {
                continue;
            }
            let symbols: BTreeSet<Sym> =
                [left, right].into_iter().flat_map(|dim| graph.data_symbols_of(dim)).collect();
            contradictions.found |= symbols.is_empty();
            for &sym in &symbols {
                contradictions.of.entry(sym).or_default().push(contradictions.missing.len());
            }
            contradictions.missing.push(symbols.len());
        }
        contradictions
    }

    fn bind(&mut self, sym: Sym) {
        for at in self.of.remove(&sym).unwrap_or_default() {
            self.missing[at] -= 1;
            self.found |= self.missing[at] == 0;
        }
    }
}
