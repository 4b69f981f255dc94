//! The state block: the memory in which a caller keeps the tensors that are state. It is the last input of `run`.
//!
//! It begins with words of 64 bits: a tag of the model, then the values of the model's symbols that the states depend on, those
//! of others 0, in the order of the symbols' numbers in the descriptor. The tensors follow, each at a multiple of 64 bytes. The
//! sizes that runs add to are among the symbols, so that a copy of the block is all there is to save.

use crate::host::abi::status;
use crate::host::ir::{
    Address, Binary, Compare, FunctionKind, Op, Operand, Place, Port, TensorField, Type, Value,
};
use crate::host::lower::builder::Builder;
use crate::host::lower::layout::{Initial, Plan, REPEATED, bound_symbols};
use crate::host::lower::sizes::{Sizes, given_symbols, leave_if};
use crate::host::message::{V, printable};
use onnxc_ir::digest::fnv1a;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, Growth, Sym};
use onnxc_schedule::{ALIGN, aligned};

/// The layout of the state block of a model that has states.
#[derive(Clone, Debug)]
pub struct StateLayout {
    /// The first word: no other model has the same but for one of the same states.
    pub tag: i64,
    /// Symbols of the words behind it, in their order; those that no state depends on are 0 there.
    pub symbols: Vec<Sym>,
    /// Where each tensor is, bytes from the start of the block.
    pub offsets: Vec<Dim>,
    pub bytes: Dim,
}

impl StateLayout {
    pub fn new(graph: &Graph) -> Option<StateLayout> {
        if graph.states.is_empty() {
            return None;
        }
        let symbols = bound_symbols(graph);
        let words = 1 + symbols.len() as i64;
        let mut end = aligned(&Dim::from(8 * words));
        let mut offsets = vec![];
        // What decides where what lies.
        let mut text = String::new();
        for at in graph.given_inputs()..graph.inputs.len() {
            let ty = graph.ty(graph.inputs[at].value);
            text += &format!("{}:{ty};", graph.inputs[at].name);
            offsets.push(end.clone());
            end = end + aligned(&ty.bytes());
        }
        Some(StateLayout { tag: fnv1a(text.as_bytes()).cast_signed(), symbols, offsets, bytes: end })
    }

    /// Sizes that a run needs as words of its workspace.
    pub fn needs<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = &'a Dim> {
        self.offsets.iter().chain(growths(graph).map(|growth| &growth.next))
    }

    /// Offset of a symbol's word.
    fn word(&self, sym: Sym) -> i64 {
        let at = self.symbols.iter().position(|&own| own == sym).unwrap_or(0);
        8 * (1 + at as i64)
    }
}

/// How states grow, each size once.
fn growths(graph: &Graph) -> impl Iterator<Item = &Growth> {
    let growths = || graph.states.iter().filter_map(|state| state.growth.as_ref());
    growths()
        .enumerate()
        .filter(move |(at, growth)| !growths().take(*at).any(|other| other.size == growth.size))
        .map(|(_, growth)| growth)
}

/// The port of the block.
pub(super) fn port(graph: &Graph) -> Port {
    Port::Input(graph.given_inputs() as u32)
}

/// Its name in the descriptor and in the header.
pub(crate) const PORT: &str = "state";

/// Its name in messages.
pub(super) const NAME: &str = "the state";

/// Checks the block as far as this can be without sizes; gives the symbols that it determines.
pub(super) fn bind(b: &mut Builder, graph: &Graph, layout: &StateLayout) -> Vec<(Sym, Operand)> {
    let port = port(graph);
    let length = b.load(Place::Tensor(port, TensorField::Bytes));
    let least = 8 * (1 + layout.symbols.len() as i64);
    let short = b.compare(Compare::LtUnsigned, length, least);
    let template = format!("{NAME}: {V} bytes, needs at least {V}");
    b.fail_if(short, status::BAD_STATE, &template, &[length.into(), least.into()]);
    let data = b.load(Place::Tensor(port, TensorField::Data));
    let null = b.compare(Compare::Eq, data, 0);
    b.fail_if(null, status::NULL_POINTER, &format!("{NAME}: data is null"), &[]);
    let low = b.binary(Binary::And, data, ALIGN - 1);
    b.fail_if(low, status::MISALIGNED, &format!("{NAME} is not aligned to {V} bytes"), &[ALIGN.into()]);
    let tag = b.load_at(Type::I64, data, 0);
    let other = b.compare(Compare::Ne, tag, layout.tag);
    b.fail_if(other, status::BAD_STATE, &format!("{NAME} is not of this model: it has not been reset"), &[]);
    let mut values = vec![];
    for sym in graph.state_symbols() {
        let value = b.load_at(Type::I64, data, layout.word(sym));
        let negative = b.compare(Compare::Lt, value, 0);
        let template = format!("{NAME}: `{}` is {V}, which is negative", printable(&graph.symbols[sym].name));
        b.fail_if(negative, status::BAD_STATE, &template, &[value.into()]);
        values.push((sym, value.into()));
    }
    values
}

/// Checks that the block has the bytes of its sizes, and room for what a run appends.
pub(super) fn check(b: &mut Builder, graph: &Graph, layout: &StateLayout, sizes: &mut Sizes) -> Result<()> {
    let (bytes, overflow) = sizes.checked(b, &layout.bytes)?;
    b.fail_if(overflow, status::BAD_STATE, &format!("{NAME}: its sizes exceed 64 bits"), &[]);
    let length = b.load(Place::Tensor(port(graph), TensorField::Bytes));
    let wrong = b.compare(Compare::Ne, length, bytes);
    b.fail_if(wrong, status::BAD_STATE, &format!("{NAME}: {V} bytes, must be {V}"), &[length.into(), bytes]);
    let dim = b.load(Place::Dim(port(graph), 0));
    let wrong = b.compare(Compare::Ne, dim, bytes);
    let template = format!("{NAME}: its dimension is {V}, must be {V}");
    b.fail_if(wrong, status::BAD_DIM, &template, &[dim.into(), bytes]);
    for growth in growths(graph) {
        let name = printable(&graph.symbols[growth.size].name);
        let size = sizes.value(b, &Dim::sym(growth.size))?;
        let (next, overflow) = sizes.checked(b, &growth.next)?;
        b.fail_if(overflow, status::SIZE_OVERFLOW, &format!("`{name}` exceeds 64 bits"), &[]);
        let most = sizes.value(b, &growth.capacity)?;
        let beyond = b.compare(Compare::Gt, size, most);
        let template = format!("{NAME}: `{name}` is {V}, and there is room for {V}");
        b.fail_if(beyond, status::BAD_STATE, &template, &[size, most]);
        let full = b.compare(Compare::Gt, next, most);
        let template = format!("{NAME} is full: `{name}` would become {V}, and there is room for {V}");
        b.fail_if(full, status::STATE_FULL, &template, &[next, most]);
    }
    Ok(())
}

/// The address of a state's tensor.
pub(super) fn address(b: &mut Builder, plan: &Plan, graph: &Graph, state: usize) -> Option<Value> {
    let layout = plan.state.as_ref()?;
    let data = b.load(Place::Tensor(port(graph), TensorField::Data));
    let offset = word_of(b, plan, &layout.offsets[state])?;
    Some(b.offset(data, offset))
}

/// A size that the workspace has.
fn word_of(b: &mut Builder, plan: &Plan, dim: &Dim) -> Option<Operand> {
    match dim.as_const() {
        Some(value) => Some(value.into()),
        None => Some(b.load(Place::Size(plan.size_index(dim)? as u32)).into()),
    }
}

/// Adds to the sizes in the block what a run has appended: the last thing that a run does.
pub(super) fn commit(b: &mut Builder, plan: &Plan, graph: &Graph) {
    let Some(layout) = &plan.state else { return };
    for growth in growths(graph) {
        let data = b.load(Place::Tensor(port(graph), TensorField::Data));
        let Some(next) = word_of(b, plan, &growth.next) else { continue };
        b.store(Place::At { ty: Type::I64, base: data, offset: layout.word(growth.size) }, next);
    }
}

/// `<name>_state_bytes` and `<name>_state_reset`.
pub(super) fn functions(
    graph: &Graph,
    plan: &Plan,
    layout: &StateLayout,
) -> Result<[crate::host::ir::Function; 2]> {
    let mut bytes_of = Builder::new("state_bytes".into(), FunctionKind::StateBytes);
    let b = &mut bytes_of;
    let (symbols, count) = (b.param(0), b.param(1));
    let refuse = |b: &mut Builder, bad: Operand, status: i32| leave_if(b, bad, -i64::from(status));
    let mut sizes = given_symbols(b, graph, (symbols, count), &refuse);
    let bytes = checked_bytes(b, layout, &mut sizes, &refuse)?;
    b.effect(Op::Return(bytes));

    let mut reset = Builder::new("state_reset".into(), FunctionKind::StateReset);
    let b = &mut reset;
    let [block, given, symbols, count] = [0, 1, 2, 3].map(|number| b.param(number));
    let refuse = |b: &mut Builder, bad: Operand, status: i32| leave_if(b, bad, status.into());
    let mut sizes = given_symbols(b, graph, (symbols, count), &refuse);
    let bytes = checked_bytes(b, layout, &mut sizes, &refuse)?;
    let wrong = b.compare(Compare::Ne, given, bytes);
    refuse(b, wrong, status::BAD_STATE);
    let null = b.compare(Compare::Eq, block, 0);
    refuse(b, null, status::NULL_POINTER);
    let low = b.binary(Binary::And, block, ALIGN - 1);
    let misaligned = b.compare(Compare::Ne, low, 0);
    refuse(b, misaligned, status::MISALIGNED);
    zero(b, block, bytes);
    b.store(Place::At { ty: Type::I64, base: block, offset: 0 }, layout.tag);
    let grows: Vec<Sym> = growths(graph).map(|growth| growth.size).collect();
    for sym in graph.state_symbols().into_iter().filter(|sym| !grows.contains(sym)) {
        let value = sizes.value(b, &Dim::sym(sym))?;
        b.store(Place::At { ty: Type::I64, base: block, offset: layout.word(sym) }, value);
    }
    for (at, state) in graph.states.iter().enumerate() {
        let sizes = [layout.offsets[at].as_const(), state.ty.bytes().as_const().filter(|&bytes| bytes > 0)];
        let (Some(initial), [Some(offset), Some(bytes)]) = (plan.initials[at], sizes) else { continue };
        let (from, mut done) = match initial {
            Initial::Zeros => continue,
            Initial::Weights(from) => (from, bytes),
            Initial::Repeated(from) => (from, bytes.min(REPEATED as i64)),
        };
        let (to, from) = (b.offset(block, offset), b.address(Address::Weights(from)));
        b.copy(to, from, done.into());
        while done < bytes {
            let (behind, more) = (b.offset(to, done), done.min(bytes - done));
            b.copy(behind, to, more.into());
            done += more;
        }
    }
    b.effect(Op::Return(i64::from(status::OK).into()));
    Ok([bytes_of.finish(), reset.finish()])
}

fn checked_bytes(
    b: &mut Builder,
    layout: &StateLayout,
    sizes: &mut Sizes,
    refuse: &dyn Fn(&mut Builder, Operand, i32),
) -> Result<Operand> {
    let (bytes, overflow) = sizes.checked(b, &layout.bytes)?;
    refuse(b, overflow, status::SIZE_OVERFLOW);
    let negative = b.compare(Compare::Lt, bytes, 0);
    refuse(b, negative, status::SIZE_OVERFLOW);
    Ok(bytes)
}

/// Zeros a block, whose bytes are a multiple of 8, from its end.
fn zero(b: &mut Builder, block: Value, bytes: Operand) {
    let left = b.fresh(Type::I64);
    b.open();
    let condition = b.compare(Compare::Gt, left, 0);
    let head = b.close();
    b.open();
    let next = b.binary(Binary::Sub, left, 8);
    let at = b.value(Type::Ptr, Op::Element { base: block, index: next, bytes: 1.into() });
    b.store(Place::At { ty: Type::I64, base: at, offset: 0 }, 0);
    let body = b.close();
    if let Operand::Value(condition) = condition {
        b.effect(Op::Loop { params: vec![left], init: vec![bytes], head, condition, body, next: vec![next] });
    }
}
