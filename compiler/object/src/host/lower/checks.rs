//! The checks of a run: it trusts nothing that it is given. All of them come before the first write, in an order that lets
//! each rely on those before it: options, counts, then for every tensor its type, dims, bytes and address.

mod apart;

use std::collections::{HashMap, HashSet};

use crate::host::abi::{alignment, options, status};
use crate::host::ir::{Binary, Compare, Condition, Operand, OptionsField, Place, Port, TensorField, Type};
use crate::host::lower::bind::assured;
use crate::host::lower::builder::Builder;
use crate::host::lower::layout::{Plan, Scope};
use crate::host::lower::sizes::Sizes;
use crate::host::lower::state;
use crate::host::lower::text::value_text;
use crate::host::message::{V, printable};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, Sym, TensorType};
use onnxc_runtime_support::weights::{self, word};
use onnxc_schedule::{ALIGN, Step, Storage};

pub(super) use apart::{Apart, Verified};

/// A tensor of the caller.
#[derive(Clone)]
struct Given {
    port: Port,
    /// `input 0 `x``, for messages.
    what: String,
}

fn given(graph: &Graph, port: Port) -> Given {
    let (kind, at, name) = match port {
        Port::Input(at) => ("input", at, &graph.inputs[at as usize].name),
        Port::Output(at) => ("output", at, &graph.outputs[at as usize].0),
    };
    Given { port, what: format!("{kind} {at} `{}`", printable(name)) }
}

/// Writes the checks of `run`, or of a function that it calls for some of them.
pub(super) struct Checks<'c, 'p> {
    pub b: &'c mut Builder,
    pub plan: &'p Plan,
    pub scope: &'p Scope<'p>,
    pub apart: &'p Apart,
    pub sizes: Sizes,
    /// Who decided a symbol: `dimension 0 of input 0 `x``.
    deciders: HashMap<Sym, String>,
}

impl<'c, 'p> Checks<'c, 'p> {
    pub(super) fn new(b: &'c mut Builder, plan: &'p Plan, scope: &'p Scope<'p>, apart: &'p Apart) -> Self {
        Checks { b, plan, scope, apart, sizes: Sizes::default(), deciders: HashMap::new() }
    }

    fn fail_unless_equal(&mut self, found: Operand, wanted: i64, status: i32, template: &str) {
        let wrong = self.b.compare(Compare::Ne, found, wanted);
        let found = match found {
            Operand::Value(found) => self.b.extend(found).into(),
            found => found,
        };
        self.b.fail_if(wrong, status, template, &[found, wanted.into()]);
    }

    fn fail_if_null(&mut self, pointer: Operand, template: &str) {
        let null = self.b.compare(Compare::Eq, pointer, 0);
        self.b.fail_if(null, status::NULL_POINTER, template, &[]);
    }

    pub(super) fn check_options(&mut self) {
        let size = self.b.load(Place::Options(OptionsField::StructSize));
        let short = self.b.compare(Compare::LtUnsigned, size, options::SIZE);
        let mut short = short;
        let earlier = [
            options::FIRST_SIZE,
            options::SECOND_SIZE,
            options::THIRD_SIZE,
            options::FOURTH_SIZE,
            options::FIFTH_SIZE,
        ];
        for known in earlier {
            let other = self.b.compare(Compare::Ne, size, known);
            short = self.b.binary(Binary::And, short, other);
        }
        let given = self.b.param(6);
        let given = self.b.compare(Compare::Ne, given, 0);
        let bad = self.b.binary(Binary::And, short, given);
        // The message buffer of such options cannot be trusted either.
        self.b.fail_if(bad, status::BAD_OPTIONS, "", &[]);
    }

    /// A model with its weights apart needs those of its own layout.
    pub(super) fn check_weights(&mut self, name: &str) {
        let Some(apart) = &self.plan.apart else { return };
        let (bytes, layout) = (apart.bytes as i64, apart.layout);
        let none = format!("`{name}` has its weights in a file, and the options have none");
        let size = self.b.load(Place::Options(OptionsField::StructSize));
        let short = self.b.compare(Compare::LtUnsigned, size, options::FIFTH_SIZE);
        self.b.fail_if(short, status::NEEDS_WEIGHTS, &none, &[]);
        let data = self.b.load(Place::Options(OptionsField::Weights));
        let null = self.b.compare(Compare::Eq, data, 0);
        self.b.fail_if(null, status::NEEDS_WEIGHTS, &none, &[]);
        let low = self.b.binary(Binary::And, data, ALIGN - 1);
        let template = format!("the weights are not aligned to {V} bytes");
        self.b.fail_if(low, status::MISALIGNED, &template, &[ALIGN.into()]);
        let given = self.b.load(Place::Options(OptionsField::WeightsBytes));
        // Not even a header can be read.
        let template = format!("the weights have {V} bytes, and `{name}` needs {V}");
        let short = self.b.compare(Compare::LtUnsigned, given, weights::HEADER_BYTES as i64);
        self.b.fail_if(short, status::BAD_WEIGHTS, &template, &[given.into(), bytes.into()]);
        let word = |b: &mut Builder, at: usize| b.load_at(Type::I64, data, 8 * at as i64);
        for (at, wanted) in [(word::MAGIC, weights::MAGIC), (word::VERSION, weights::VERSION)] {
            let found = word(self.b, at);
            let other = self.b.compare(Compare::Ne, found, wanted as i64);
            let template = "the weights are not a file of weights of this version and byte order";
            self.b.fail_if(other, status::BAD_WEIGHTS, template, &[]);
        }
        let number = word(self.b, word::NUMBER);
        let wanted = weights::number(&layout) as i64;
        let numbers = [number.into(), wanted.into()];
        let other = format!(
            "the weights have the layout number {V}, and `{name}` takes those with {V}: they are of another model or compilation"
        );
        for (at, wanted) in weights::words(&layout).into_iter().enumerate() {
            let found = word(self.b, word::LAYOUT + at);
            let differs = self.b.compare(Compare::Ne, found, wanted as i64);
            self.b.fail_if(differs, status::OTHER_WEIGHTS, &other, &numbers);
        }
        let short = self.b.compare(Compare::LtUnsigned, given, bytes);
        self.b.fail_if(short, status::BAD_WEIGHTS, &template, &[given.into(), bytes.into()]);
    }

    /// A model with values that only data size needs an allocator.
    pub(super) fn check_allocator(&mut self) {
        let Some(what) = &self.plan.dynamic.needs_allocator else { return };
        let template = format!("{what}, and there is no allocator");
        for field in [OptionsField::Allocate, OptionsField::Release] {
            let function = self.b.load(Place::Options(field));
            let none = self.b.compare(Compare::Eq, function, 0);
            self.b.fail_if(none, status::NEEDS_ALLOCATOR, &template, &[]);
        }
    }

    pub(super) fn check_counts(&mut self) {
        let graph = self.scope.graph;
        let inputs = graph.given_inputs() + usize::from(!graph.states.is_empty());
        for (what, at, count) in [("input", 0, inputs), ("output", 2, graph.given_outputs())] {
            let template = format!("{V} {what}s given, the model has {V}");
            let (array, given) = (self.b.param(at), self.b.param(at + 1));
            self.fail_unless_equal(given.into(), count as i64, status::BAD_COUNT, &template);
            if count > 0 {
                self.fail_if_null(array.into(), &format!("the array of {what}s is null"));
            }
        }
    }

    /// Element type, rank, and that the dims can be read.
    fn check_type(&mut self, given: &Given, ty: &TensorType) {
        let what = &given.what;
        let template = format!("{what}: element type {V}, must be {V} ({})", ty.dtype);
        let dtype = self.b.load(Place::Tensor(given.port, TensorField::Dtype));
        self.fail_unless_equal(dtype.into(), i64::from(ty.dtype.to_onnx()), status::BAD_DTYPE, &template);
        let own = match given.port {
            Port::Output(at) => self.scope.graph.any_rank.get(&(at as usize)),
            Port::Input(_) => None,
        };
        let why = own.map_or(String::new(), |own| {
            format!(" ({}: dims need room for the highest)", own.text(ty.rank()))
        });
        let template = format!("{what}: rank {V}, must be {V}{why}");
        let rank = self.b.load(Place::Tensor(given.port, TensorField::Rank));
        self.fail_unless_equal(rank.into(), ty.rank() as i64, status::BAD_RANK, &template);
        if ty.rank() > 0 {
            let dims = self.b.load(Place::Tensor(given.port, TensorField::Dims));
            self.fail_if_null(dims.into(), &format!("{what}: dims is null"));
        }
    }

    fn dim(&mut self, given: &Given, axis: usize) -> Operand {
        self.b.load(Place::Dim(given.port, axis as u32)).into()
    }

    /// The state block, and the symbols that it determines.
    pub(super) fn bind_state(&mut self) {
        let graph = self.scope.graph;
        let Some(layout) = &self.plan.state else { return };
        let given = Given { port: state::port(graph), what: state::NAME.to_string() };
        self.check_type(&given, &TensorType::new(DType::U8, vec![layout.bytes.clone()]));
        for (sym, value) in state::bind(self.b, graph, layout) {
            self.sizes.symbols.insert(sym, value);
            self.deciders.insert(sym, state::NAME.to_string());
        }
    }

    /// The checks of the state block that need values of all symbols.
    pub(super) fn check_state(&mut self) -> Result<()> {
        match &self.plan.state {
            Some(layout) => state::check(self.b, self.scope.graph, layout, &mut self.sizes),
            None => Ok(()),
        }
    }

    /// Types of all inputs without default; their lone symbolic dims give the symbols their values.
    pub(super) fn bind_symbols(&mut self) {
        let graph = self.scope.graph;
        for at in (0..graph.given_inputs()).filter(|&at| graph.inputs[at].default.is_none()) {
            let port = Port::Input(at as u32);
            let (given, ty) = (given(graph, port), graph.input_ty(at));
            if self.apart.has(port) {
                self.load_symbols(ty);
                continue;
            }
            self.check_type(&given, ty);
            self.decide(&given, ty);
        }
    }

    pub(super) fn check_inputs(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for (at, input) in graph.inputs.iter().enumerate().take(graph.given_inputs()) {
            let port = Port::Input(at as u32);
            if self.apart.has(port) {
                continue;
            }
            let (given, ty) = (given(graph, port), graph.input_ty(at));
            // Evaluated here, where everything that follows may use them.
            let dims = self.dims(ty)?;
            let bytes = self.bytes(&given, ty)?;
            let Some(default) = &input.default else {
                self.check_dims(&given, ty, &dims, |_, _| true);
                self.check_data(&given, ty, bytes, true);
                continue;
            };
            let data = self.b.load(Place::Tensor(port, TensorField::Data));
            self.b.open();
            self.check_type(&given, ty);
            self.check_dims(&given, ty, &dims, |_, _| true);
            self.check_data(&given, ty, bytes, true);
            let present = self.b.close();
            self.b.open();
            self.check_default(&given, &default.shape, ty, &dims);
            let absent = self.b.close();
            self.b.if_else(Condition::Value(data), present, absent);
        }
        Ok(())
    }

    fn dims(&mut self, ty: &TensorType) -> Result<Vec<Operand>> {
        ty.shape.iter().map(|dim| self.sizes.value(self.b, dim)).collect()
    }

    /// Bytes of a tensor; leaves if they overflow.
    fn bytes(&mut self, given: &Given, ty: &TensorType) -> Result<Operand> {
        let (bytes, overflow) = self.sizes.checked(self.b, &ty.stored_bytes())?;
        let template = format!("{}: the number of bytes exceeds 64 bits", given.what);
        self.b.fail_if(overflow, status::SIZE_OVERFLOW, &template, &[]);
        Ok(bytes)
    }

    /// Dims that are `wanted`, where `checked(axis, dim)`.
    fn check_dims(
        &mut self,
        given: &Given,
        ty: &TensorType,
        wanted: &[Operand],
        checked: impl Fn(usize, &Dim) -> bool,
    ) {
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(axis, dim)| checked(*axis, dim)) {
            let found = self.dim(given, axis);
            let wrong = self.b.compare(Compare::Ne, found, wanted[axis]);
            let template =
                format!("{}: dimension {axis} is {V}, must be {V}{}", given.what, self.reason(dim));
            self.b.fail_if(wrong, status::BAD_DIM, &template, &[found, wanted[axis]]);
        }
    }

    /// Why a symbolic dim has its value.
    fn reason(&self, dim: &Dim) -> String {
        if dim.is_const() {
            return String::new();
        }
        let text = self.scope.graph.dim_words(dim);
        let is_named = |sym: Sym| !self.scope.graph.symbols[sym].name.starts_with('?');
        match dim.as_sym().and_then(|sym| Some((sym, self.deciders.get(&sym)?))) {
            Some((sym, decider)) if is_named(sym) => format!(" (`{text}`, as in {decider})"),
            Some((_, decider)) => format!(" (as in {decider})"),
            None => format!(" (`{text}`)"),
        }
    }

    /// The default of an input must have the shape that the other inputs ask for.
    fn check_default(&mut self, given: &Given, shape: &[usize], ty: &TensorType, dims: &[Operand]) {
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(_, dim)| !dim.is_const()) {
            let own = shape[axis] as i64;
            let wrong = self.b.compare(Compare::Ne, dims[axis], own);
            let template = format!(
                "{}: dimension {axis} of its default is {V}, must be {V}{}",
                given.what,
                self.reason(dim)
            );
            self.b.fail_if(wrong, status::BAD_DIM, &template, &[own.into(), dims[axis]]);
        }
    }

    /// Length in bytes (exact, or enough), and a pointer that is not null and is aligned.
    fn check_data(&mut self, given: &Given, ty: &TensorType, bytes: Operand, exact: bool) {
        let what = &given.what;
        let (compare, must) = match exact {
            true => (Compare::Ne, "must be"),
            false => (Compare::LtUnsigned, "needs"),
        };
        let length = self.b.load(Place::Tensor(given.port, TensorField::Bytes));
        let wrong = self.b.compare(compare, length, bytes);
        let template = format!("{what}: {V} bytes, {must} {V}");
        self.b.fail_if(wrong, status::BAD_BYTES, &template, &[length.into(), bytes]);
        let data = self.b.load(Place::Tensor(given.port, TensorField::Data));
        let null = self.b.compare(Compare::Eq, data, 0);
        let some = self.b.compare(Compare::Ne, bytes, 0);
        let missing = self.b.binary(Binary::And, null, some);
        self.b.fail_if(missing, status::NULL_POINTER, &format!("{what}: data is null"), &[]);
        self.check_alignment(given, ty);
    }

    fn check_alignment(&mut self, given: &Given, ty: &TensorType) {
        let align = alignment(ty);
        if align > 1 {
            let data = self.b.load(Place::Tensor(given.port, TensorField::Data));
            let low = self.b.binary(Binary::And, data, align - 1);
            let template = format!("{}: data is not aligned to {V} bytes", given.what);
            self.b.fail_if(low, status::MISALIGNED, &template, &[align.into()]);
        }
    }

    /// No dim of a value that has a buffer may become negative: inputs can be too small for the model.
    pub(super) fn check_sizes(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        for scope in self.surely_run()? {
            for (value, data) in scope.graph.values.iter() {
                if matches!(scope.place(value)?.1, Storage::None) {
                    continue;
                }
                for (axis, dim) in data.ty.shape.iter().enumerate() {
                    let never_negative = dim.bounds().0.is_some_and(|low| low >= 0);
                    if never_negative || self.plan.dynamic.decides(dim) || !seen.insert(dim.clone()) {
                        continue;
                    }
                    let size = self.sizes.value(self.b, dim)?;
                    let negative = self.b.compare(Compare::Lt, size, 0);
                    let template = format!(
                        "the inputs are too small: dimension {axis} of {} ({}) would be {V}",
                        value_text(scope.graph, value),
                        self.scope.graph.dim_words(dim)
                    );
                    self.b.fail_if(negative, status::BAD_DIM, &template, &[size]);
                }
            }
        }
        Ok(())
    }

    /// The scopes that every run gets to. What the others need is checked before they run.
    fn surely_run(&self) -> Result<Vec<Scope<'p>>> {
        let (mut scopes, mut next) = (vec![*self.scope], 0);
        while let Some(&scope) = scopes.get(next) {
            next += 1;
            for step in &scope.program.steps {
                if let Step::Control { node, bodies, .. } = step
                    && !bodies.is_empty()
                    && !scope.graph.nodes[*node].op.may_skip_bodies()
                {
                    scopes.extend(scope.bodies(*node, bodies, &[scope.index])?);
                }
            }
        }
        Ok(scopes)
    }

    /// What inference assumed of dims that only the inputs decide.
    pub(super) fn check_assumptions(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        for Scope { graph, .. } in self.surely_run()? {
            for assumption in graph.assumptions.iter() {
                if self.plan.dynamic.awaits(assumption) || !seen.insert(assumption.requirement.clone()) {
                    continue;
                }
                assured(self.b, &mut self.sizes, assumption, status::BAD_DIM)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_outputs(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for at in 0..graph.given_outputs() {
            let port = Port::Output(at as u32);
            if self.apart.has(port) {
                continue;
            }
            let (given, ty) = (given(graph, port), graph.output_ty(at));
            self.check_type(&given, ty);
            if self.plan.dynamic.outputs.iter().any(|(output, _)| *output == at) {
                self.check_late_output(&given, ty)?;
                continue;
            }
            let dims = self.dims(ty)?;
            self.check_dims(&given, ty, &dims, |_, dim| dim.is_const());
            let bytes = self.bytes(&given, ty)?;
            self.check_data(&given, ty, bytes, false);
        }
        Ok(())
    }

    /// The checks of an output that need no dims that data decide.
    fn check_late_output(&mut self, given: &Given, ty: &TensorType) -> Result<()> {
        let Port::Output(at) = given.port else { return Ok(()) };
        let own = self.scope.graph.any_rank.get(&(at as usize));
        let own_axes = own.map_or(usize::MAX, |own| own.least);
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(_, dim)| !self.plan.dynamic.decides(dim)) {
            let wanted = self.sizes.value(self.b, dim)?;
            if !dim.is_const() || axis >= own_axes {
                continue;
            }
            let found = self.dim(given, axis);
            let wrong = self.b.compare(Compare::Ne, found, wanted);
            let template = format!("{}: dimension {axis} is {V}, must be {V}", given.what);
            self.b.fail_if(wrong, status::BAD_DIM, &template, &[found, wanted]);
        }
        self.check_alignment(given, ty);
        Ok(())
    }

    pub(super) fn check_workspace(&mut self) -> Result<()> {
        let (pointer, given) = (self.b.param(4), self.b.param(5));
        for dim in self.plan.table.iter().filter(|dim| !self.plan.dynamic.decides(dim)) {
            self.sizes.value(self.b, dim)?;
        }
        let (bytes, overflow) = self.sizes.checked(self.b, &self.plan.workspace)?;
        let template = "the sizes of this run exceed 64 bits";
        self.b.fail_if(overflow, status::SIZE_OVERFLOW, template, &[]);
        let negative = self.b.compare(Compare::Lt, bytes, 0);
        let template = format!("the workspace would have {V} bytes");
        self.b.fail_if(negative, status::SIZE_OVERFLOW, &template, &[bytes]);
        let short = self.b.compare(Compare::LtUnsigned, given, bytes);
        let template = format!("workspace: {V} bytes, needs {V}");
        self.b.fail_if(short, status::BAD_WORKSPACE, &template, &[given.into(), bytes]);
        let null = self.b.compare(Compare::Eq, pointer, 0);
        let some = self.b.compare(Compare::Ne, bytes, 0);
        let missing = self.b.binary(Binary::And, null, some);
        self.b.fail_if(missing, status::NULL_POINTER, "workspace is null", &[]);
        let low = self.b.binary(Binary::And, pointer, ALIGN - 1);
        let misaligned = self.b.select(some, low, 0);
        let template = format!("workspace is not aligned to {V} bytes");
        self.b.fail_if(misaligned, status::MISALIGNED, &template, &[ALIGN.into()]);
        Ok(())
    }
}
