//! Reads of sizes that data decide, the checks that follow, and the outputs whose buffers are checked or allocated then.

use std::collections::BTreeSet;

use cranelift_entity::EntityRef;

use crate::host::abi::status;
use crate::host::ir::{
    Binary, Compare, Condition, FrameField, Op, Operand, OptionsField, Place, Port, TensorField, Type, Value,
};
use crate::host::lower::builder::Builder;
use crate::host::lower::dynamic::{Bind, decided_dims};
use crate::host::lower::internal;
use crate::host::lower::layout::{Plan, Scope};
use crate::host::lower::sizes::Sizes;
use crate::host::lower::text::{source_text, writer_text};
use crate::host::message::{V, printable};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Assumption, DataSymbol, Dim, MAX_BYTES, Relation, Requirement, Sym};
use onnxc_schedule::{ALIGN, BlockId};

/// Leaves with `status` where an assumption does not hold. The message has its values.
pub(super) fn assured(b: &mut Builder, sizes: &mut Sizes, own: &Assumption, status: i32) -> Result<()> {
    let Requirement { left, relation, right } = &own.requirement;
    let (left, right) = (sizes.value(b, left)?, sizes.value(b, right)?);
    let wrong = violated(b, *relation, left, right);
    let values: Vec<Operand> =
        own.claim.values.iter().map(|dim| sizes.value(b, dim)).collect::<Result<_>>()?;
    b.fail_if(wrong, status, &own.sentence(&|_| V.to_string()), &values);
    Ok(())
}

/// What a relation of two sizes that does not hold gives.
fn violated(b: &mut Builder, relation: Relation, left: Operand, right: Operand) -> Operand {
    match relation {
        Relation::Equal => b.compare(Compare::Ne, left, right),
        Relation::AtMost => b.compare(Compare::Gt, left, right),
        Relation::Broadcasts => {
            let other = b.compare(Compare::Ne, left, right);
            let many = b.compare(Compare::Ne, left, 1);
            b.binary(Binary::And, other, many)
        }
    }
}

/// Writes what a scope does about sizes that data decide.
pub(super) struct Binder<'p> {
    pub plan: &'p Plan,
    pub scope: &'p Scope<'p>,
}

impl Binder<'_> {
    /// Reads a symbol from the vector at `source` and completes what waits for it.
    pub(super) fn bind(&self, b: &mut Builder, step: usize, sym: Sym, source: Value) -> Result<()> {
        let graph = self.scope.graph;
        let bind = self.plan.dynamic.bind(self.scope.index, step);
        let bind = bind.ok_or_else(|| internal(format!("{sym} is read by a step without a plan")))?;
        let Some(symbol) = graph.data.get(&sym) else {
            return Err(internal(format!("{sym} is not defined by data")));
        };
        let DataSymbol { value, element, bound, .. } = symbol;
        let size: Operand = b.load_at(Type::I64, source, 8 * *element as i64).into();
        b.store(Place::Size(sym.index() as u32), size);
        let place = source_text(graph, *value, sym);
        let negative = b.compare(Compare::Lt, size, 0);
        let mut sizes = self.sizes(b, bind, bound.as_ref());
        let template = symbol.sentence(&place);
        let mut numbers = vec![size];
        if let Some(bound) = bound {
            let most = sizes.value(b, bound)?;
            numbers.push(most);
            let above = b.compare(Compare::Gt, size, most);
            b.fail_if(above, status::BAD_SIZE, &template, &numbers);
        }
        b.fail_if(negative, status::BAD_SIZE, &template, &numbers);
        self.table(b, bind, &mut sizes, &place)?;
        self.checks(b, bind, &mut sizes)?;
        bind.outputs.iter().try_for_each(|&output| self.output(b, output, &mut sizes))
    }

    /// Checks what must hold before this scope, a body that may not run, does.
    pub(super) fn enter(&self, b: &mut Builder) -> Result<()> {
        let Some(conditions) = self.plan.dynamic.conditions(self.scope.index) else { return Ok(()) };
        let mut sizes = self.sizes(b, conditions, None);
        self.checks(b, conditions, &mut sizes)
    }

    /// The values of all symbols that are needed, as they are in the workspace.
    fn sizes(&self, b: &mut Builder, bind: &Bind, bound: Option<&Dim>) -> Sizes {
        let mut symbols = BTreeSet::new();
        let mut note = |dim: &Dim| dim.visit_symbols(&mut |sym| symbols.extend([sym]));
        bound.into_iter().for_each(&mut note);
        bind.table.iter().for_each(|&at| note(&self.plan.table[at]));
        bind.assumptions.iter().for_each(|assumption| assumption.visit_dims(&mut note));
        bind.dims.iter().for_each(|(_, _, dim)| note(dim));
        bind.bytes.iter().for_each(|(_, dim)| note(dim));
        for &output in &bind.outputs {
            decided_dims(self.scope.graph, output).for_each(&mut note);
        }
        let load = |sym: Sym| (sym, b.load(Place::Size(sym.index() as u32)).into());
        Sizes::new(symbols.into_iter().map(load).collect())
    }

    fn table(&self, b: &mut Builder, bind: &Bind, sizes: &mut Sizes, place: &str) -> Result<()> {
        let mut values = vec![];
        for &at in &bind.table {
            values.push((at, sizes.value(b, &self.plan.table[at])?));
        }
        let (_, overflow) = sizes.checked(b, &Dim::ZERO)?;
        let template = format!("{place}: a size that follows exceeds 64 bits");
        b.fail_if(overflow, status::SIZE_OVERFLOW, &template, &[]);
        for (at, value) in values {
            b.store(Place::Size(self.plan.table_entry(at) as u32), value);
        }
        Ok(())
    }

    fn checks(&self, b: &mut Builder, bind: &Bind, sizes: &mut Sizes) -> Result<()> {
        let graph = self.scope.graph;
        for assumption in &bind.assumptions {
            assured(b, sizes, assumption, status::BAD_SIZE)?;
        }
        for (name, axis, dim) in &bind.dims {
            let size = sizes.value(b, dim)?;
            let negative = b.compare(Compare::Lt, size, 0);
            let template = format!("dimension {axis} of {name} ({}) would be {V}", graph.dim_words(dim));
            b.fail_if(negative, status::BAD_SIZE, &template, &[size]);
        }
        for (node, dim) in &bind.bytes {
            let (bytes, overflow) = sizes.checked(b, dim)?;
            let template = format!("{node}: the bytes of its result exceed 64 bits");
            b.fail_if(overflow, status::SIZE_OVERFLOW, &template, &[]);
            let above = b.compare(Compare::Gt, bytes, MAX_BYTES);
            let template = format!("{node}: its result would have {V} bytes, more than {MAX_BYTES}");
            b.fail_if(above, status::BAD_SIZE, &template, &[bytes]);
        }
        Ok(())
    }

    /// Writes an output's dims, and checks or allocates its buffer.
    fn output(&self, b: &mut Builder, output: usize, sizes: &mut Sizes) -> Result<()> {
        let graph = self.scope.graph;
        let (name, value) = &graph.outputs[output];
        let (what, port) = (format!("output {output} `{}`", printable(name)), Port::Output(output as u32));
        let mut dims = vec![];
        // The sizes of axes that the run's tensor may lack are not the caller's, even if inputs decide them.
        let own_axes = graph.any_rank.get(&output).map_or(usize::MAX, |own| own.least);
        let shape = graph.output_ty(output).shape.iter().enumerate();
        for (axis, dim) in shape.filter(|(axis, dim)| *axis >= own_axes || self.plan.dynamic.decides(dim)) {
            dims.push((axis, sizes.value(b, dim)?));
        }
        let (bytes, overflow) = sizes.checked(b, &graph.ty(*value).bytes())?;
        let template = format!("{what}: the number of bytes exceeds 64 bits");
        b.fail_if(overflow, status::SIZE_OVERFLOW, &template, &[bytes]);
        for (axis, size) in dims {
            b.store(Place::Dim(port, axis as u32), size);
        }
        if let Some(own) = graph.any_rank.get(&output) {
            let rank = sizes.value(b, &own.rank)?;
            // The caller's rank, which is the highest, stays if the rank is not one of these.
            for possible in own.least..graph.output_ty(output).rank() {
                let is_this = b.compare(Compare::Eq, rank, possible as i64);
                b.open();
                b.store(Place::Tensor(port, TensorField::Rank), possible as i64);
                let stored = b.close();
                match is_this {
                    Operand::Value(is_this) => b.if_else(Condition::Value(is_this), stored, vec![]),
                    Operand::Int(_) => {
                        return Err(internal(format!("{what}: its rank is known when compiled")));
                    }
                }
            }
        }
        let data = b.load(Place::Tensor(port, TensorField::Data));
        b.open();
        let capacity = b.load(Place::Tensor(port, TensorField::Bytes));
        let short = b.compare(Compare::LtUnsigned, capacity, bytes);
        let template = format!("{what}: {V} bytes, needs {V}");
        b.fail_if(short, status::BAD_BYTES, &template, &[capacity.into(), bytes]);
        let present = b.close();
        b.open();
        self.allocate_output(b, output, bytes, &what)?;
        let absent = b.close();
        b.if_else(Condition::Value(data), present, absent);
        Ok(())
    }

    /// Without data of the caller the run allocates them; the slot remembers it for a run that fails.
    fn allocate_output(&self, b: &mut Builder, output: usize, bytes: Operand, what: &str) -> Result<()> {
        let slot = self.plan.dynamic.outputs.iter().find(|(at, _)| *at == output);
        let &(_, slot) = slot.ok_or_else(|| internal(format!("output {output} has no slot")))?;
        b.open();
        let template = format!("{what}: data is null, it needs {V} bytes, and there is no allocator");
        for field in [OptionsField::Allocate, OptionsField::Release] {
            let function = b.load(Place::Options(field));
            let none = b.compare(Compare::Eq, function, 0);
            b.fail_if(none, status::NEEDS_ALLOCATOR, &template, &[bytes]);
        }
        b.effect(Op::Allocate { slot, bytes, what: what.to_string() });
        let (data, port) = (b.load(Place::Block(slot)), Port::Output(output as u32));
        b.store(Place::Tensor(port, TensorField::Data), data);
        b.store(Place::Tensor(port, TensorField::Bytes), bytes);
        b.store(Place::Frame(None, FrameField::Output(output as u32)), data);
        let some = b.close();
        match bytes {
            Operand::Value(bytes) => b.if_else(Condition::Value(bytes), some, vec![]),
            Operand::Int(0) => {}
            Operand::Int(_) => some.into_iter().for_each(|inst| b.append(inst)),
        }
        Ok(())
    }

    /// Gets the memory of a block.
    pub(super) fn allocate(&self, b: &mut Builder, block: BlockId, bytes: Operand) -> Result<()> {
        let slot = self.plan.dynamic.slot(self.scope.index, block)?;
        let what = writer_text(self.scope.graph, self.scope.program.heap[block].writer);
        // No allocation is empty.
        let bytes = b.binary(Binary::MaxUnsigned, bytes, ALIGN);
        b.effect(Op::Allocate { slot, bytes, what });
        Ok(())
    }

    /// Gives the memory of a block back.
    pub(super) fn release(&self, b: &mut Builder, block: BlockId) -> Result<()> {
        b.effect(Op::Release(self.plan.dynamic.slot(self.scope.index, block)?));
        Ok(())
    }
}
