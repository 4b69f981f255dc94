//! Sizes that data decide: what each read of a data symbol completes, and the code that reads it.
//!
//! A symbol's value goes to its place among the sizes at the start of the workspace. Then everything whose last open
//! symbol it is follows: sizes made of symbols, what inference assumed of them, and the dims of outputs, whose
//! buffers are checked or allocated before anything is written to them.

use std::collections::{BTreeSet, HashMap, HashSet};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_entity::EntityRef;

use crate::codegen::emit::abi::{frame, options, status, tensor};
use crate::codegen::emit::func::Code;
use crate::codegen::emit::layout::{Plan, Scope, internal};
use crate::codegen::emit::message::{A, B, printable};
use crate::codegen::emit::size::Sizes;
use crate::error::Result;
use crate::graph::{Assumption, DataSymbol, Dim, Graph, NodeId, Op, Relation, Requirement, Sym, ValueId};
use crate::schedule::{ALIGN, BlockId, Place, Step};

/// What data decide in a model and its bodies.
#[derive(Default)]
pub(super) struct Dynamic {
    /// Symbols that data define, of all scopes.
    symbols: BTreeSet<Sym>,
    /// What a step reads and completes, by scope and step number.
    binds: HashMap<(usize, usize), Bind>,
    /// What must hold before a body of a choice runs, by its scope.
    conditions: HashMap<usize, Bind>,
    /// Slot of each block, by scope and number; a slot has a pointer and a number of bytes.
    blocks: HashMap<(usize, BlockId), usize>,
    /// Slots of the blocks, then one for each output that the run may allocate.
    slots: usize,
    /// Outputs whose dims data decide, with their slots.
    pub outputs: Vec<(usize, usize)>,
    /// Names a value in a block, for a caller without allocator.
    pub needs_allocator: Option<String>,
    /// Offset of the pointer to the caller's outputs in the workspace, bytes; the slots follow.
    at: i64,
}

/// See [`Dynamic::binds`].
#[derive(Default)]
struct Bind {
    /// Numbers in the table of sizes.
    table: Vec<usize>,
    assumptions: Vec<Assumption>,
    /// Dims of values that must not be negative, each with a value's name and an axis.
    dims: Vec<(String, usize, Dim)>,
    outputs: Vec<usize>,
}

impl Dynamic {
    /// Finds what every step completes. `entries` is the number of words before the slots.
    pub fn new(root: Scope<'_>, plan: &Plan, entries: usize) -> Result<Dynamic> {
        let mut dynamic = Dynamic { at: 8 * entries as i64, ..Dynamic::default() };
        let scopes = scopes(root, plan)?;
        for Region { scope, .. } in &scopes {
            dynamic.symbols.extend(scope.graph.data.keys());
            for (id, block) in scope.program.heap.iter() {
                dynamic.blocks.insert((scope.index, id), dynamic.slots);
                dynamic.slots += 1;
                dynamic.needs_allocator.get_or_insert_with(|| writer_text(scope.graph, block.writer));
            }
        }
        for at in 0..root.graph.outputs.len() {
            if root.graph.output_ty(at).shape.iter().any(|dim| dynamic.decides(dim)) {
                dynamic.outputs.push((at, dynamic.slots));
                dynamic.slots += 1;
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
    pub fn decides(&self, dim: &Dim) -> bool {
        let mut found = false;
        dim.visit_symbols(&mut |sym| found |= self.symbols.contains(&sym));
        found
    }

    /// Words of the workspace that hold the outputs' address and the slots; none in a model without all this.
    pub fn words(&self) -> usize {
        match self.binds.is_empty() && self.slots == 0 {
            true => 0,
            false => 1 + 2 * self.slots,
        }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Offset of the address of the caller's outputs in the workspace.
    pub fn outputs_at(&self) -> i64 {
        self.at
    }

    /// Offset of a slot in the workspace.
    pub fn slot_at(&self, slot: usize) -> i64 {
        self.at + 8 + 16 * slot as i64
    }

    /// Offset of a block's slot in the workspace.
    pub fn block_at(&self, scope: usize, block: BlockId) -> Result<i64> {
        match self.blocks.get(&(scope, block)) {
            Some(&slot) => Ok(self.slot_at(slot)),
            None => Err(internal(format!("{block} has no slot"))),
        }
    }

    /// Whether data decide a size that a requirement is about.
    pub fn awaits(&self, requirement: &Requirement) -> bool {
        self.decides(&requirement.left) || self.decides(&requirement.right)
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

/// A scope, and the bodies of choices that it is in, outermost first.
struct Region<'g> {
    scope: Scope<'g>,
    choices: Vec<usize>,
}

/// A scope and all inside it.
fn scopes<'g>(root: Scope<'g>, plan: &Plan) -> Result<Vec<Region<'g>>> {
    let (mut all, mut next) = (vec![Region { scope: root, choices: vec![] }], 0);
    while let Some(Region { scope, choices }) = all.get(next) {
        let (scope, choices) = (*scope, choices.clone());
        next += 1;
        for (number, step) in scope.program.steps.iter().enumerate() {
            let Step::Control { node, bodies, .. } = step else { continue };
            for body in scope.bodies(*node, bodies, &plan.control(&scope, number)?.bodies)? {
                let own = matches!(scope.graph.nodes[*node].op, Op::If { .. }).then_some(body.index);
                all.push(Region { scope: body, choices: choices.iter().copied().chain(own).collect() });
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
    outputs: Vec<(usize, BTreeSet<Sym>)>,
}

impl Open {
    fn new(root: Scope<'_>, plan: &Plan, scopes: &[Region<'_>], dynamic: &mut Dynamic) -> Result<Open> {
        let table = plan.table.iter().map(|dim| dynamic.symbols_of(dim)).enumerate();
        let mut open = Open {
            table: table.filter(|(_, symbols)| !symbols.is_empty()).collect(),
            assumptions: vec![],
            dims: vec![],
            outputs: vec![],
        };
        // What the bodies of choices, and all in them, define: the rest is known when they start.
        let mut inside: HashMap<usize, BTreeSet<Sym>> = HashMap::new();
        for Region { scope, choices } in scopes {
            for &choice in choices {
                inside.entry(choice).or_default().extend(scope.graph.data.keys());
            }
        }
        let (mut seen_requirements, mut seen) = (HashSet::new(), HashSet::new());
        for Region { scope, choices } in scopes {
            let choice = choices.last().copied();
            let known = |symbols: &BTreeSet<Sym>| match choice {
                Some(choice) => symbols.is_disjoint(&inside[&choice]),
                // The inputs tell it: checked when the run starts.
                None => symbols.is_empty(),
            };
            for assumption in scope.graph.assumptions.iter() {
                let requirement = &assumption.requirement;
                let mut symbols = dynamic.symbols_of(&requirement.left);
                symbols.append(&mut dynamic.symbols_of(&requirement.right));
                if !seen_requirements.insert((choice, requirement.clone())) {
                    continue;
                }
                let own = assumption.clone();
                match (known(&symbols), choice) {
                    (true, Some(body)) => dynamic.conditions.entry(body).or_default().assumptions.push(own),
                    (true, None) => {}
                    (false, _) => open.assumptions.push((own, symbols)),
                }
            }
            if dynamic.symbols.is_empty() && choice.is_none() {
                continue;
            }
            for (value, data) in scope.graph.values.iter() {
                if matches!(scope.place(value)?.1, Place::None) {
                    continue;
                }
                for (axis, dim) in data.ty.shape.iter().enumerate() {
                    let never_negative = dim.bounds().0.is_some_and(|low| low >= 0);
                    if never_negative || dim.is_const() || !seen.insert((choice, dim.clone())) {
                        continue;
                    }
                    let symbols = dynamic.symbols_of(dim);
                    let item = (data.name.clone(), axis, dim.clone());
                    match (known(&symbols), choice) {
                        (true, Some(body)) => dynamic.conditions.entry(body).or_default().dims.push(item),
                        (true, None) => {}
                        (false, _) => open.dims.push((item, symbols)),
                    }
                }
            }
        }
        for &(at, _) in &dynamic.outputs {
            let ty = root.graph.output_ty(at);
            open.outputs.push((at, ty.shape.iter().flat_map(|dim| dynamic.symbols_of(dim)).collect()));
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

/// `node `name` (Op)`
pub(super) fn node_text(graph: &Graph, node: NodeId) -> String {
    match graph.origins.get(graph.nodes[node].origin) {
        Some(origin) => format!("node `{}` ({})", printable(&origin.name), printable(&origin.op_type)),
        None => format!("node {node}"),
    }
}

fn writer_text(graph: &Graph, writer: Option<NodeId>) -> String {
    writer.map_or_else(|| "the output of a body".to_string(), |node| node_text(graph, node))
}

fn source_text(graph: &Graph, value: ValueId) -> String {
    match graph.producer(value) {
        Some(node) => node_text(graph, node),
        None => format!("`{}`", printable(&graph.values[value].name)),
    }
}

/// Whether a relation of two sizes does not hold.
pub(super) fn violated(code: &mut Code<'_>, relation: Relation, left: Value, right: Value) -> Value {
    match relation {
        Relation::Equal => code.icmp(IntCC::NotEqual, left, right),
        Relation::AtMost => code.icmp(IntCC::SignedGreaterThan, left, right),
        Relation::Broadcasts => {
            let (other, many) =
                (code.icmp(IntCC::NotEqual, left, right), code.icmp_imm(IntCC::NotEqual, left, 1));
            code.b.ins().band(other, many)
        }
    }
}

/// Template of the message of an assumption that does not hold.
pub(super) fn violation(graph: &Graph, assumption: &Assumption) -> String {
    let sentence = assumption.sentence(&|dim| graph.dim_text(dim));
    format!("{}: {A} {} {B}", printable(&sentence), assumption.requirement.relation.negated())
}

/// What the code of a step needs to know.
pub(super) struct Context<'p> {
    pub plan: &'p Plan,
    pub scope: &'p Scope<'p>,
    pub frame: Value,
    pub options: Value,
    /// Start of the workspace.
    pub dims: Value,
}

impl Context<'_> {
    /// Reads a symbol from the vector at `source` and completes what waits for it.
    pub fn bind(&self, code: &mut Code<'_>, step: usize, sym: Sym, source: Value) -> Result<()> {
        let (graph, dynamic) = (self.scope.graph, &self.plan.dynamic);
        let bind = dynamic.binds.get(&(self.scope.index, step));
        let bind = bind.ok_or_else(|| internal(format!("{sym} is read by a step without a plan")))?;
        let Some(DataSymbol { value, element, bound }) = graph.data.get(&sym) else {
            return Err(internal(format!("{sym} is not defined by data")));
        };
        let size = code.load64(source, 8 * *element as i64);
        code.store(size, self.dims, 8 * sym.index() as i64);
        let place = source_text(graph, *value);
        let negative = code.icmp_imm(IntCC::SignedLessThan, size, 0);
        let template = format!("{place}: a size is {A}, which is negative or does not fit the others");
        code.fail_if(negative, status::BAD_SIZE, &template, [size, size], self.options);
        let mut sizes = self.sizes(code, bind, bound.as_ref())?;
        if let Some(bound) = bound {
            let most = sizes.value(code, bound)?;
            let above = code.icmp(IntCC::SignedGreaterThan, size, most);
            let template = format!("{place}: a size is {A}, more than {B}");
            code.fail_if(above, status::BAD_SIZE, &template, [size, most], self.options);
        }
        self.table(code, bind, &mut sizes, &place)?;
        self.checks(code, bind, &mut sizes)?;
        bind.outputs.iter().try_for_each(|&output| self.output(code, output, &mut sizes))
    }

    /// Checks what must hold before this scope, a body of a choice, runs.
    pub fn enter(&self, code: &mut Code<'_>) -> Result<()> {
        let Some(conditions) = self.plan.dynamic.conditions.get(&self.scope.index) else { return Ok(()) };
        let mut sizes = self.sizes(code, conditions, None)?;
        self.checks(code, conditions, &mut sizes)
    }

    /// The values of all symbols that are needed, as they are in the workspace.
    fn sizes(&self, code: &mut Code<'_>, bind: &Bind, bound: Option<&Dim>) -> Result<Sizes> {
        let graph = self.scope.graph;
        let mut symbols = BTreeSet::new();
        let mut note = |dim: &Dim| dim.visit_symbols(&mut |sym| symbols.extend([sym]));
        bound.into_iter().for_each(&mut note);
        bind.table.iter().for_each(|&at| note(&self.plan.table[at]));
        for Assumption { requirement, .. } in &bind.assumptions {
            [&requirement.left, &requirement.right].into_iter().for_each(&mut note);
        }
        bind.dims.iter().for_each(|(_, _, dim)| note(dim));
        for &output in &bind.outputs {
            graph.output_ty(output).shape.iter().for_each(&mut note);
        }
        let load = |sym: Sym| (sym, code.load64(self.dims, 8 * sym.index() as i64));
        Ok(Sizes::new(symbols.into_iter().map(load).collect()))
    }

    fn table(&self, code: &mut Code<'_>, bind: &Bind, sizes: &mut Sizes, place: &str) -> Result<()> {
        let mut values = vec![];
        for &at in &bind.table {
            values.push((at, sizes.value(code, &self.plan.table[at])?));
        }
        let zero = code.int(0);
        let (_, overflow) = sizes.checked(code, &Dim::ZERO)?;
        if let Some(overflow) = overflow {
            let template = format!("{place}: a size that follows exceeds 64 bits");
            code.fail_if(overflow, status::SIZE_OVERFLOW, &template, [zero, zero], self.options);
        }
        for (at, value) in values {
            code.store(value, self.dims, 8 * self.plan.table_entry(at) as i64);
        }
        Ok(())
    }

    fn checks(&self, code: &mut Code<'_>, bind: &Bind, sizes: &mut Sizes) -> Result<()> {
        let text = |dim: &Dim| printable(&self.scope.graph.dim_text(dim));
        for assumption in &bind.assumptions {
            let Requirement { left, relation, right } = &assumption.requirement;
            let (left, right) = (sizes.value(code, left)?, sizes.value(code, right)?);
            let wrong = violated(code, *relation, left, right);
            let template = violation(self.scope.graph, assumption);
            code.fail_if(wrong, status::BAD_SIZE, &template, [left, right], self.options);
        }
        for (name, axis, dim) in &bind.dims {
            let size = sizes.value(code, dim)?;
            let negative = code.icmp_imm(IntCC::SignedLessThan, size, 0);
            let template =
                format!("dimension {axis} of value `{}` ({}) would be {A}", printable(name), text(dim));
            code.fail_if(negative, status::BAD_SIZE, &template, [size, size], self.options);
        }
        Ok(())
    }

    /// Writes an output's dims, and checks or allocates its buffer.
    fn output(&self, code: &mut Code<'_>, output: usize, sizes: &mut Sizes) -> Result<()> {
        let graph = self.scope.graph;
        let (name, value) = &graph.outputs[output];
        let (what, ty) = (format!("output {output} `{}`", printable(name)), graph.ty(*value));
        let given = code.load64(self.dims, self.plan.dynamic.outputs_at());
        let given = code.add(given, output as i64 * tensor::SIZE);
        let dims = code.load64(given, tensor::DIMS);
        let shape = graph.output_ty(output).shape.iter().enumerate();
        for (axis, dim) in shape.filter(|(_, dim)| self.plan.dynamic.decides(dim)) {
            let size = sizes.value(code, dim)?;
            code.store(size, dims, 8 * axis as i64);
        }
        let (bytes, overflow) = sizes.checked(code, &ty.bytes())?;
        if let Some(overflow) = overflow {
            let template = format!("{what}: the number of bytes exceeds 64 bits");
            code.fail_if(overflow, status::SIZE_OVERFLOW, &template, [bytes, bytes], self.options);
        }
        let data = code.load64(given, tensor::DATA);
        let (present, absent, next) = (code.block(), code.cold_block(), code.block());
        code.branch(data, present, absent);
        code.b.switch_to_block(present);
        let capacity = code.load64(given, tensor::BYTES);
        let short = code.b.ins().icmp(IntCC::UnsignedLessThan, capacity, bytes);
        let template = format!("{what}: {A} bytes, needs {B}");
        code.fail_if(short, status::BAD_BYTES, &template, [capacity, bytes], self.options);
        code.jump(next, &[]);
        code.b.switch_to_block(absent);
        self.allocate_output(code, output, given, bytes, &what)?;
        code.jump(next, &[]);
        code.b.switch_to_block(next);
        Ok(())
    }

    /// Without data of the caller the run allocates them; the slot remembers it for a run that fails.
    fn allocate_output(
        &self,
        code: &mut Code<'_>,
        output: usize,
        given: Value,
        bytes: Value,
        what: &str,
    ) -> Result<()> {
        let slot = self.plan.dynamic.outputs.iter().find(|(at, _)| *at == output);
        let &(_, slot) = slot.ok_or_else(|| internal(format!("output {output} has no slot")))?;
        let (some, done) = (code.block(), code.block());
        code.branch(bytes, some, done);
        code.b.switch_to_block(some);
        let template = format!("{what}: data is null, it needs {A} bytes, and there is no allocator");
        for offset in [options::ALLOCATE, options::RELEASE] {
            let function = code.load64(self.options, offset);
            let none = code.icmp_imm(IntCC::Equal, function, 0);
            code.fail_if(none, status::NEEDS_ALLOCATOR, &template, [bytes, bytes], self.options);
        }
        let data = self.allocated(code, self.plan.dynamic.slot_at(slot), bytes, what)?;
        code.store(data, given, tensor::DATA);
        code.store(bytes, given, tensor::BYTES);
        let place = self.scope.graph.inputs.len() + output;
        code.store(data, self.frame, frame::IO + 8 * place as i64);
        code.jump(done, &[]);
        code.b.switch_to_block(done);
        Ok(())
    }

    /// Gets the memory of a block.
    pub fn allocate(&self, code: &mut Code<'_>, block: BlockId, bytes: Value) -> Result<()> {
        let slot = self.plan.dynamic.block_at(self.scope.index, block)?;
        let what = writer_text(self.scope.graph, self.scope.program.heap[block].writer);
        // No allocation is empty.
        let least = code.int(ALIGN);
        let bytes = code.b.ins().umax(bytes, least);
        self.allocated(code, slot, bytes, &what)?;
        Ok(())
    }

    /// Memory of the caller's allocator, noted in a slot.
    fn allocated(&self, code: &mut Code<'_>, slot: i64, bytes: Value, what: &str) -> Result<Value> {
        let signature = code.unit.signature(&[types::I64; 3], Some(types::I64));
        let (allocate, allocator) =
            (code.load64(self.options, options::ALLOCATE), code.load64(self.options, options::ALLOCATOR));
        let align = code.int(ALIGN);
        let data = code
            .call_pointer(&signature, allocate, &[allocator, bytes, align])
            .ok_or_else(|| internal("allocators have a result".into()))?;
        let none = code.icmp_imm(IntCC::Equal, data, 0);
        let template = format!("{what}: the allocator has no {A} bytes");
        code.fail_if(none, status::OUT_OF_MEMORY, &template, [bytes, bytes], self.options);
        code.store(data, self.dims, slot);
        code.store(bytes, self.dims, slot + 8);
        Ok(data)
    }

    /// Gives the memory of a block back.
    pub fn release(&self, code: &mut Code<'_>, block: BlockId) -> Result<()> {
        let slot = self.plan.dynamic.block_at(self.scope.index, block)?;
        release(code, self.options, self.dims, slot);
        Ok(())
    }

    /// Gives back what a slot holds, if it holds something.
    pub fn empty(&self, code: &mut Code<'_>, slot: i64) {
        let (some, next) = (code.block(), code.block());
        let data = code.load64(self.dims, slot);
        code.branch(data, some, next);
        code.b.switch_to_block(some);
        release(code, self.options, self.dims, slot);
        code.jump(next, &[]);
        code.b.switch_to_block(next);
    }

    /// Moves what slot `from` holds to slot `to`, which holds nothing.
    pub fn transfer(&self, code: &mut Code<'_>, from: i64, to: i64) {
        for word in [0, 8] {
            let value = code.load64(self.dims, from + word);
            code.store(value, self.dims, to + word);
        }
        let zero = code.int(0);
        code.store(zero, self.dims, from);
    }

    /// Lets a slot hold at least `bytes`, of which the first `used` stay; at least twice what it held where that is
    /// too little, so that growing by small steps costs little.
    pub fn grow(&self, code: &mut Code<'_>, slot: i64, used: Value, bytes: Value, what: &str) -> Result<()> {
        let (more, next) = (code.block(), code.block());
        let (old, zero) = (code.load64(self.dims, slot), code.int(0));
        // The number of bytes means nothing in an empty slot.
        let held = code.load64(self.dims, slot + 8);
        let held = code.b.ins().select(old, held, zero);
        let empty = code.icmp_imm(IntCC::Equal, held, 0);
        let short = code.b.ins().icmp(IntCC::UnsignedLessThan, held, bytes);
        let grows = code.b.ins().bor(empty, short);
        code.branch(grows, more, next);
        code.b.switch_to_block(more);
        let (twice, least) = (code.b.ins().iadd(held, held), code.int(ALIGN));
        let wanted = code.b.ins().umax(twice, bytes);
        let wanted = code.b.ins().umax(wanted, least);
        let new = self.allocated(code, slot, wanted, what)?;
        let (copy, done) = (code.block(), code.block());
        code.branch(held, copy, done);
        code.b.switch_to_block(copy);
        code.memcpy(new, old, used)?;
        give_back(code, self.options, old, held);
        code.jump(done, &[]);
        code.b.switch_to_block(done);
        code.jump(next, &[]);
        code.b.switch_to_block(next);
        Ok(())
    }
}

/// Gives back what a slot holds, which is something.
fn release(code: &mut Code<'_>, options: Value, workspace: Value, slot: i64) {
    let (data, bytes) = (code.load64(workspace, slot), code.load64(workspace, slot + 8));
    give_back(code, options, data, bytes);
    let zero = code.int(0);
    code.store(zero, workspace, slot);
}

fn give_back(code: &mut Code<'_>, options: Value, data: Value, bytes: Value) {
    let signature = code.unit.signature(&[types::I64; 4], None);
    let (release, allocator) =
        (code.load64(options, options::RELEASE), code.load64(options, options::ALLOCATOR));
    let align = code.int(ALIGN);
    code.call_pointer(&signature, release, &[allocator, data, bytes, align]);
}

/// The code before the first step: empties the slots and notes where the outputs are.
pub(super) fn begin(code: &mut Code<'_>, dynamic: &Dynamic, workspace: Value, outputs: Value) {
    if dynamic.words() == 0 {
        return;
    }
    code.store(outputs, workspace, dynamic.outputs_at());
    let zero = code.int(0);
    for slot in 0..dynamic.slots() {
        code.store(zero, workspace, dynamic.slot_at(slot));
    }
}

/// The code of a run that fails: gives back all that it has allocated, outputs too.
pub(super) fn abandon(
    code: &mut Code<'_>,
    dynamic: &Dynamic,
    options: Value,
    workspace: Value,
    outputs: Value,
) {
    for slot in 0..dynamic.slots() {
        let (some, next) = (code.cold_block(), code.cold_block());
        let data = code.load64(workspace, dynamic.slot_at(slot));
        code.branch(data, some, next);
        code.b.switch_to_block(some);
        release(code, options, workspace, dynamic.slot_at(slot));
        if let Some((output, _)) = dynamic.outputs.iter().find(|(_, own)| *own == slot) {
            let given = code.add(outputs, *output as i64 * tensor::SIZE);
            let zero = code.int(0);
            code.store(zero, given, tensor::DATA);
            code.store(zero, given, tensor::BYTES);
        }
        code.jump(next, &[]);
        code.b.switch_to_block(next);
    }
}
