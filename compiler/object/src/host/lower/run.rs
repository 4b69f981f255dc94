//! The public functions of a model, `<name>_model`, `<name>_workspace` and `<name>_run`, those of its state, and what a
//! parallel-for calls.

use cranelift_entity::EntityRef;

use crate::host::abi::{options, status};
use crate::host::ir::{
    ABORT_RANKS, Address, Binary, CLOSE_STRINGS, Compare, Condition, Event, Frame, FrameField, FuncId,
    FunctionKind, OPEN_STRINGS, Op, Operand, OptionsField, Place, Port, Program, SlotUse, TensorField, Type,
};
use crate::host::lower::Lowered;
use crate::host::lower::builder::Builder;
use crate::host::lower::checks::{Apart, Checks, Verified};
use crate::host::lower::layout::{Plan, Scope};
use crate::host::lower::sizes::{Sizes, given_symbols, leave_if};
use crate::host::lower::state;
use crate::host::lower::{exchange, external};
use onnxc_ir::error::Result;
use onnxc_ir::graph::external::functions;
use onnxc_ir::graph::{Dim, Graph, Sym};

/// The frame of the model.
fn own(field: FrameField) -> Place {
    Place::Frame(Some(Frame::from_u32(0)), field)
}

pub(super) fn lower(
    lowered: &mut Lowered<'_>,
    plan: &Plan,
    scope: &Scope<'_>,
    (steps, trace): (&[FuncId], bool),
) -> Result<()> {
    let program = &mut lowered.program;
    let name = program.name.clone();
    let mut builder = Builder::new("model".into(), FunctionKind::Model);
    let descriptor = builder.address(Address::Descriptor);
    builder.effect(Op::Return(descriptor.into()));
    program.functions.push(builder.finish());
    workspace(program, plan, scope.graph)?;
    if let Some(layout) = &plan.state {
        for function in state::functions(scope.graph, plan, layout)? {
            program.functions.push(function);
        }
    }
    let apart = Apart::new(plan, scope.graph);
    let mut checks = vec![];
    for (verified, chunks) in apart.functions() {
        for tensors in chunks {
            let mut builder = Builder::new(format!("checks{}", checks.len()), FunctionKind::Checks);
            Checks::new(&mut builder, plan, scope, &apart).check_apart(verified, tensors)?;
            builder.effect(ok());
            checks.push((verified, program.functions.push(builder.finish())));
        }
    }
    let begin = scope.graph.rank.map(|own| {
        let mut builder = Builder::new("begin".into(), FunctionKind::Steps(Frame::from_u32(0)));
        exchange::begin(&mut builder, own);
        builder.effect(ok());
        program.functions.push(builder.finish())
    });
    let steps: Vec<FuncId> = begin.into_iter().chain(steps.iter().copied()).collect();
    let mut builder = Builder::new("run".into(), FunctionKind::Run);
    let params = builder.params();
    let mut writer = Checks::new(&mut builder, plan, scope, &apart);
    writer.check_options();
    writer.check_weights(&name);
    writer.check_counts();
    let functions = functions([scope.graph]);
    if let Some((symbol, _)) = functions.iter().find(|(_, function)| function.late) {
        external::check_function(writer.b, symbol);
    }
    writer.check_allocator();
    if let Some(own) = scope.graph.rank {
        exchange::check_communicator(writer.b, own);
    }
    let call = |writer: &mut Checks<'_, '_>, verified: Verified| {
        for (_, check) in checks.iter().filter(|check| check.0 == verified) {
            writer.b.effect(Op::Call(*check, params.clone()));
        }
    };
    call(&mut writer, Verified::Types);
    writer.bind_state();
    writer.bind_symbols();
    call(&mut writer, Verified::Inputs);
    writer.check_inputs()?;
    writer.check_state()?;
    writer.check_sizes()?;
    writer.check_assumptions()?;
    call(&mut writer, Verified::Outputs);
    writer.check_outputs()?;
    writer.check_workspace()?;
    // A run that was cancelled before it began writes nothing.
    writer.b.effect(Op::Poll);
    let (mut sizes, b) = (writer.sizes, writer.b);
    store_sizes(b, plan, scope.graph, &mut sizes)?;
    store_output_dims(b, plan, scope.graph, &mut sizes)?;
    execute(b, plan, scope.graph, (&steps, trace));
    program.functions.push(builder.finish());
    Ok(())
}

fn ok() -> Op {
    Op::Return(i64::from(status::OK).into())
}

/// The function that parallel-for is given: it runs part of a job.
pub(super) fn part(program: &mut Program) {
    let mut builder = Builder::new("part".into(), FunctionKind::Part);
    let [job, begin, end] = [0, 1, 2].map(|number| builder.param(number));
    let result = builder.value(Type::I32, Op::Job { job, begin, end });
    builder.effect(Op::Return(result.into()));
    program.functions.push(builder.finish());
}

fn workspace(program: &mut Program, plan: &Plan, graph: &Graph) -> Result<()> {
    let mut builder = Builder::new("workspace".into(), FunctionKind::Workspace);
    let b = &mut builder;
    let refuse = |b: &mut Builder, bad: Operand, status: i32| leave_if(b, bad, -i64::from(status));
    let (dims, count) = (b.param(0), b.param(1));
    let mut sizes = given_symbols(b, graph, (dims, count), &refuse);
    let (bytes, overflow) = sizes.checked(b, &plan.workspace)?;
    refuse(b, overflow, status::SIZE_OVERFLOW);
    let negative = b.compare(Compare::Lt, bytes, 0);
    refuse(b, negative, status::SIZE_OVERFLOW);
    b.effect(Op::Return(bytes));
    program.functions.push(builder.finish());
    Ok(())
}

/// Symbol values and the table of sizes, at the start of the workspace.
fn store_sizes(b: &mut Builder, plan: &Plan, graph: &Graph, sizes: &mut Sizes) -> Result<()> {
    for sym in graph.symbols.keys() {
        let value = sizes.symbols.get(&sym).copied().unwrap_or(Operand::Int(0));
        b.store(Place::Size(sym.index() as u32), value);
    }
    if let Some(symbol) = graph.seed {
        store_seed(b, symbol);
    }
    let early = |dim: &Dim| !plan.dynamic.decides(dim);
    for (at, dim) in plan.table.iter().enumerate().filter(|(_, dim)| early(dim)) {
        let value = sizes.value(b, dim)?;
        b.store(Place::Size(plan.table_entry(at) as u32), value);
    }
    Ok(())
}

/// The seed of the caller's options, where they have one, in place of 0.
fn store_seed(b: &mut Builder, symbol: Sym) {
    let size = b.load(Place::Options(OptionsField::StructSize));
    let has_seed = b.compare(Compare::Ge, size, options::SECOND_SIZE);
    if let Operand::Value(has_seed) = has_seed {
        b.open();
        let seed = b.load(Place::Options(OptionsField::Seed));
        let seed = b.binary(Binary::And, seed, i64::MAX);
        b.store(Place::Size(symbol.index() as u32), seed);
        let stored = b.close();
        b.if_else(Condition::Value(has_seed), stored, vec![]);
    }
}

fn store_output_dims(b: &mut Builder, plan: &Plan, graph: &Graph, sizes: &mut Sizes) -> Result<()> {
    for at in 0..graph.given_outputs() {
        let port = Port::Output(at as u32);
        // Of one whose rank the run decides, all that is not known to be there is written with it.
        let own_axes = graph.any_rank.get(&at).map_or(usize::MAX, |own| own.least);
        for (axis, dim) in graph.output_ty(at).shape.iter().enumerate().take(own_axes) {
            if !dim.is_const() && !plan.dynamic.decides(dim) {
                let size = sizes.value(b, dim)?;
                b.store(Place::Dim(port, axis as u32), size);
            }
        }
    }
    Ok(())
}

/// Fills slots and frame, and runs the steps. A run that fails gives back all that it has allocated, outputs too.
fn execute(b: &mut Builder, plan: &Plan, graph: &Graph, (steps, trace): (&[FuncId], bool)) {
    let slots = &plan.dynamic.slots;
    if plan.dynamic.keeps_outputs() {
        let outputs = b.param(2);
        b.store(Place::Outputs, outputs);
    }
    slots.keys().for_each(|slot| b.effect(Op::Clear(slot)));
    fill_frame(b, plan, graph);
    if let Some((_, constants)) = plan.strings {
        let [table, options, constants] = [Address::Strings, Address::Options, Address::Weights(constants)]
            .map(|address| b.address(address));
        b.effect(Op::Extern(&OPEN_STRINGS, vec![table.into(), options.into(), constants.into()]));
    }
    let close = |b: &mut Builder| {
        if plan.strings.is_some() {
            let table = b.address(Address::Strings);
            b.effect(Op::Extern(&CLOSE_STRINGS, vec![table.into()]));
        }
    };
    if trace {
        b.effect(Op::Event(Event::RunBegin, 0.into()));
    }
    let frame = b.address(Address::Frame(Frame::from_u32(0)));
    let call = |b: &mut Builder, &function: &FuncId| b.effect(Op::Call(function, vec![frame.into()]));
    if slots.is_empty() && plan.strings.is_none() && graph.rank.is_none() && !trace {
        steps.iter().for_each(|function| call(b, function));
    } else {
        b.open();
        steps.iter().for_each(|function| call(b, function));
        let body = b.close();
        let status = b.fresh(Type::I32);
        b.open();
        abandon(b, plan);
        if graph.rank.is_some() {
            // The others wait for what does not come.
            b.value(Type::I32, Op::Exchange(&ABORT_RANKS, vec![status.into()]));
        }
        close(b);
        if trace {
            let number = b.extend(status);
            b.effect(Op::Event(Event::RunEnd, number.into()));
        }
        b.effect(Op::Return(status.into()));
        let handler = b.close();
        b.effect(Op::Attempt { body, status, handler });
    }
    close(b);
    state::commit(b, plan, graph);
    if trace {
        b.effect(Op::Event(Event::RunEnd, i64::from(status::OK).into()));
    }
    b.effect(ok());
}

fn abandon(b: &mut Builder, plan: &Plan) {
    for (slot, owner) in plan.dynamic.slots.iter() {
        match owner {
            SlotUse::Block => b.effect(Op::Empty(slot)),
            SlotUse::Output(output) => {
                b.open();
                b.effect(Op::Release(slot));
                for field in [TensorField::Data, TensorField::Bytes] {
                    b.store(Place::Tensor(Port::Output(*output as u32), field), 0);
                }
                let given_back = b.close();
                b.if_else(Condition::Holds(slot), given_back, vec![]);
            }
        }
    }
}

fn fill_frame(b: &mut Builder, plan: &Plan, graph: &Graph) {
    for (field, address) in [
        (FrameField::Arena, Address::Arena(crate::host::ir::Extent::Const(0))),
        (FrameField::Weights, Address::Weights(0)),
        (FrameField::Options, Address::Options),
        (FrameField::Sizes, Address::Workspace),
        (FrameField::Cancel, Address::Cancel),
    ] {
        let address = b.address(address);
        b.store(own(field), address);
    }
    let level = b.value(Type::I64, Op::Level);
    b.store(own(FrameField::Level), level);
    let parallel = b.load(Place::Options(OptionsField::ParallelFor));
    b.store(own(FrameField::Parallel), parallel);
    for at in 0..graph.given_inputs() {
        let mut data: Operand = b.load(Place::Tensor(Port::Input(at as u32), TensorField::Data)).into();
        if let Some(offset) = plan.defaults[at] {
            let default = b.address(Address::Weights(offset));
            data = b.select(data, data, default);
        }
        b.store(own(FrameField::Input(at as u32)), data);
    }
    for at in 0..graph.given_outputs() {
        let data = b.load(Place::Tensor(Port::Output(at as u32), TensorField::Data));
        b.store(own(FrameField::Output(at as u32)), data);
    }
    for at in 0..graph.states.len() {
        if let Some(data) = state::address(b, plan, graph, at) {
            b.store(own(FrameField::Input((graph.given_inputs() + at) as u32)), data);
            b.store(own(FrameField::Output((graph.given_outputs() + at) as u32)), data);
        }
    }
}
