//! Sizes that data decide: what each read of a data symbol completes.
//!
//! A symbol's value goes to its place among the sizes at the start of the workspace. Then everything with this as its last open symbol
//! follows: sizes made of symbols, assumptions of inference, and the dims of outputs. Buffers of outputs are checked or allocated before
//! anything is written to them.

use std::collections::{BTreeSet, HashMap, HashSet};

use cranelift_entity::PrimaryMap;

use crate::host::ir::{Slot, SlotUse};
use crate::host::lower::internal;
use crate::host::lower::layout::{Plan, Scope};
use crate::host::lower::text::{node_text, value_text, writer_text};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Assumption, Dim, Graph, NodeId, Sym, TensorType};
use onnxc_schedule::{BlockId, Step, Storage};

/// What data decide in a model and its bodies.
#[derive(Default)]
pub(crate) struct Dynamic {
    /// Symbols that data define, of all scopes.
    symbols: BTreeSet<Sym>,
    /// What a step reads and completes, by scope and step number.
    binds: HashMap<(usize, usize), Bind>,
    /// What must hold before a body that may not run does, by its scope.
    conditions: HashMap<usize, Bind>,
    /// Slot of each block, by scope and number.
    blocks: HashMap<(usize, BlockId), Slot>,
    /// Those of the blocks, then one for each output that the run may allocate.
    pub slots: PrimaryMap<Slot, SlotUse>,
    /// Outputs whose dims data decide, with their slots.
    pub outputs: Vec<(usize, Slot)>,
    /// Why a run needs an allocator, for a caller without one.
    pub needs_allocator: Option<String>,
}

/// What is known, and to be checked, when the last of its symbols is.
#[derive(Default)]
pub(crate) struct Bind {
    /// Numbers in the table of sizes.
    pub table: Vec<usize>,
    pub assumptions: Vec<Assumption>,
    /// Dims of values that must not be negative, each with a value's name and an axis.
    pub dims: Vec<(String, usize, Dim)>,
    /// Bytes that results would take which kernels compute and never store, each with the text of its node: no allocator
    /// refuses them, and a kernel over more than memory can hold would not end.
    pub bytes: Vec<(String, Dim)>,
    pub outputs: Vec<usize>,
}

impl Dynamic {
    /// Finds what every step completes.
    pub(crate) fn new(root: Scope<'_>, plan: &Plan) -> Result<Dynamic> {
        let mut dynamic = Dynamic::default();
        let scopes = scopes(root, plan)?;
        for Region { scope, .. } in &scopes {
            dynamic.symbols.extend(scope.graph.data.keys());
            for (id, block) in scope.program.heap.iter() {
                dynamic.blocks.insert((scope.index, id), dynamic.slots.push(SlotUse::Block));
                dynamic.needs_allocator.get_or_insert_with(|| {
                    let node = writer_text(scope.graph, block.writer);
                    format!("{node}: only data decides the size of its result")
                });
            }
        }
        if root.graph.strings.is_some() {
            dynamic
                .needs_allocator
                .get_or_insert_with(|| "strings and decoded images need memory".to_string());
        }
        for at in 0..root.graph.outputs.len() {
            if decided_dims(root.graph, at).any(|dim| dynamic.decides(dim)) {
                dynamic.outputs.push((at, dynamic.slots.push(SlotUse::Output(at))));
            }
        }
        let mut open = Open::new(root, plan, &scopes, &mut dynamic)?;
        let mut bound = BTreeSet::new();
        open.walk(root, plan, &mut bound, &mut dynamic)?;
        match open.table.iter().find(|(_, symbols)| !symbols.is_empty()) {
            Some((at, _)) => Err(internal(format!("the size {} is never known", plan.table[*at]))),
            None => Ok(dynamic),
        }
    }

    /// Whether data decide a dim.
    pub(crate) fn decides(&self, dim: &Dim) -> bool {
        let mut found = false;
        dim.visit_symbols(&mut |sym| found |= self.symbols.contains(&sym));
        found
    }

    /// Whether a run keeps slots, and the address of the caller's outputs beside them.
    pub(crate) fn keeps_outputs(&self) -> bool {
        !self.binds.is_empty() || !self.slots.is_empty()
    }

    /// What a step reads and completes.
    pub(crate) fn bind(&self, scope: usize, step: usize) -> Option<&Bind> {
        self.binds.get(&(scope, step))
    }

    /// What must hold before a body that may not run does.
    pub(crate) fn conditions(&self, scope: usize) -> Option<&Bind> {
        self.conditions.get(&scope)
    }

    /// The slot of a block.
    pub(crate) fn slot(&self, scope: usize, block: BlockId) -> Result<Slot> {
        let slot = self.blocks.get(&(scope, block)).copied();
        slot.ok_or_else(|| internal(format!("{block} has no slot")))
    }

    /// Whether data decide a size that an assumption is about.
    pub(crate) fn awaits(&self, assumption: &Assumption) -> bool {
        let mut found = false;
        assumption.visit_dims(&mut |dim| found |= self.decides(dim));
        found
    }

    fn symbols_of(&self, dim: &Dim) -> BTreeSet<Sym> {
        let mut found = BTreeSet::new();
        dim.visit_symbols(&mut |sym| {
            if self.symbols.contains(&sym) {
                found.insert(sym);
            }
        });
        found
    }
}

/// The dims of an output and its rank, and the dims of what the caller gets for it: strings have texts of any length.
pub(super) fn decided_dims(graph: &Graph, output: usize) -> impl Iterator<Item = &Dim> {
    let rank = graph.any_rank.get(&output).map(|own| &own.rank);
    graph.output_ty(output).shape.iter().chain(rank).chain(&graph.ty(graph.outputs[output].1).shape)
}

/// The results of a scope's nodes that kernels compute and never store, with their bytes.
fn unstored(scope: Scope<'_>) -> Result<Vec<(NodeId, Dim)>> {
    let mut found = vec![];
    for &node in &scope.graph.order {
        for &value in &scope.graph.nodes[node].outputs {
            if matches!(scope.place(value)?.1, Storage::None) {
                found.push((node, spread(scope.graph.ty(value))));
            }
        }
    }
    Ok(found)
}

/// The bytes of a value, or of one with an element where an axis has none: loops go over the other axes all the same.
fn spread(ty: &TensorType) -> Dim {
    let shape = ty.shape.iter().map(|dim| dim.max_dim(&Dim::ONE)).collect::<Vec<_>>();
    TensorType::new(ty.dtype, shape).bytes()
}

/// A scope, and the bodies that may not run which it is in, outermost first.
struct Region<'g> {
    scope: Scope<'g>,
    guards: Vec<usize>,
}

/// A scope and all inside it.
fn scopes<'g>(root: Scope<'g>, plan: &Plan) -> Result<Vec<Region<'g>>> {
    let (mut all, mut next) = (vec![Region { scope: root, guards: vec![] }], 0);
    while let Some(Region { scope, guards }) = all.get(next) {
        let (scope, guards) = (*scope, guards.clone());
        next += 1;
        for (number, step) in scope.program.steps.iter().enumerate() {
            let Step::Control { node, bodies, .. } = step else { continue };
            for body in scope.bodies(*node, bodies, &plan.control(&scope, number)?.bodies)? {
                let own = scope.graph.nodes[*node].op.may_skip_bodies().then_some(body.index);
                all.push(Region { scope: body, guards: guards.iter().copied().chain(own).collect() });
            }
        }
    }
    Ok(all)
}

/// What waits for symbols: each with those that are missing.
struct Open {
    table: Vec<(usize, BTreeSet<Sym>)>,
    assumptions: Vec<(Assumption, BTreeSet<Sym>)>,
    dims: Vec<((String, usize, Dim), BTreeSet<Sym>)>,
    bytes: Vec<((String, Dim), BTreeSet<Sym>)>,
    outputs: Vec<(usize, BTreeSet<Sym>)>,
}

impl Open {
    fn new(root: Scope<'_>, plan: &Plan, scopes: &[Region<'_>], dynamic: &mut Dynamic) -> Result<Open> {
        let table = plan.table.iter().map(|dim| dynamic.symbols_of(dim)).enumerate();
        let mut open = Open {
            table: table.filter(|(_, symbols)| !symbols.is_empty()).collect(),
            assumptions: vec![],
            dims: vec![],
            bytes: vec![],
            outputs: vec![],
        };
        // What the bodies that may not run, and all in them, define: the rest is known when they start.
        let mut inside: HashMap<usize, BTreeSet<Sym>> = HashMap::new();
        for Region { scope, guards } in scopes {
            for &guard in guards {
                inside.entry(guard).or_default().extend(scope.graph.data.keys());
            }
        }
        let (mut seen_requirements, mut seen) = (HashSet::new(), HashSet::new());
        let mut seen_bytes = HashSet::new();
        for Region { scope, guards } in scopes {
            let guard = guards.last().copied();
            let known = |symbols: &BTreeSet<Sym>| match guard {
                Some(guard) => symbols.is_disjoint(&inside[&guard]),
                // Known from the inputs: checked when the run starts.
                None => symbols.is_empty(),
            };
            for assumption in scope.graph.assumptions.iter() {
                let requirement = &assumption.requirement;
                let mut symbols = BTreeSet::new();
                assumption.visit_dims(&mut |dim| symbols.append(&mut dynamic.symbols_of(dim)));
                if !seen_requirements.insert((guard, requirement.clone())) {
                    continue;
                }
                let own = assumption.clone();
                match (known(&symbols), guard) {
                    (true, Some(body)) => dynamic.conditions.entry(body).or_default().assumptions.push(own),
                    (true, None) => {}
                    (false, _) => open.assumptions.push((own, symbols)),
                }
            }
            if dynamic.symbols.is_empty() && guard.is_none() {
                continue;
            }
            for (value, data) in scope.graph.values.iter() {
                if matches!(scope.place(value)?.1, Storage::None) {
                    continue;
                }
                for (axis, dim) in data.ty.shape.iter().enumerate() {
                    let never_negative = dim.bounds().0.is_some_and(|low| low >= 0);
                    if never_negative || dim.is_const() || !seen.insert((guard, dim.clone())) {
                        continue;
                    }
                    let symbols = dynamic.symbols_of(dim);
                    let item = (value_text(scope.graph, value), axis, dim.clone());
                    match (known(&symbols), guard) {
                        (true, Some(body)) => dynamic.conditions.entry(body).or_default().dims.push(item),
                        (true, None) => {}
                        (false, _) => open.dims.push((item, symbols)),
                    }
                }
            }
            for (node, bytes) in unstored(*scope)? {
                let symbols = dynamic.symbols_of(&bytes);
                if symbols.is_empty() || !seen_bytes.insert((guard, bytes.clone())) {
                    continue;
                }
                let item = (node_text(scope.graph, node), bytes);
                match guard.filter(|_| known(&symbols)) {
                    Some(body) => dynamic.conditions.entry(body).or_default().bytes.push(item),
                    None => open.bytes.push((item, symbols)),
                }
            }
        }
        for &(at, _) in &dynamic.outputs {
            let symbols = decided_dims(root.graph, at).flat_map(|dim| dynamic.symbols_of(dim)).collect();
            open.outputs.push((at, symbols));
        }
        Ok(open)
    }

    /// Goes through the steps in the order in which they run.
    fn walk(
        &mut self,
        scope: Scope<'_>,
        plan: &Plan,
        bound: &mut BTreeSet<Sym>,
        dynamic: &mut Dynamic,
    ) -> Result<()> {
        for (number, step) in scope.program.steps.iter().enumerate() {
            match step {
                Step::Bind(sym) => {
                    bound.insert(*sym);
                    let bind = Bind {
                        table: complete(&mut self.table, *sym),
                        assumptions: complete(&mut self.assumptions, *sym),
                        dims: complete(&mut self.dims, *sym),
                        bytes: complete(&mut self.bytes, *sym),
                        outputs: complete(&mut self.outputs, *sym),
                    };
                    dynamic.binds.insert((scope.index, number), bind);
                }
                Step::Control { node, bodies, .. } => {
                    for body in scope.bodies(*node, bodies, &plan.control(&scope, number)?.bodies)? {
                        self.walk(body, plan, bound, dynamic)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Takes a symbol from all that waits for it; gives those that waited for nothing else.
fn complete<T: Clone>(open: &mut [(T, BTreeSet<Sym>)], sym: Sym) -> Vec<T> {
    let mut done = vec![];
    for (item, symbols) in open.iter_mut() {
        if symbols.remove(&sym) && symbols.is_empty() {
            done.push(item.clone());
        }
    }
    done
}
