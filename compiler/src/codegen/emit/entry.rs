//! The public functions of a model: `<name>_model`, `<name>_workspace` and `<name>_run`.
//!
//! `run` trusts nothing it is given. All checks come before the first write, in an order that lets each
//! rely on those before it: options, counts, then for every tensor its type, dims, bytes and address.

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use cranelift_entity::EntityRef;
use cranelift_module::FuncId;

use crate::codegen::emit::abi::{frame, options, status, tensor};
use crate::codegen::emit::dynamic::{abandon, begin, violated, violation};
use crate::codegen::emit::func::Code;
use crate::codegen::emit::layout::{Plan, PointerArray, Scope, bound_symbols};
use crate::codegen::emit::message::{A, B, printable};
use crate::codegen::emit::object::Unit;
use crate::codegen::emit::size::Sizes;
use crate::error::Result;
use crate::graph::{Assumption, Dim, Graph, Op, Requirement, Sym, TensorType};
use crate::schedule::{ALIGN, Place, Step};

/// The public functions, under their local names.
pub(super) struct Entries {
    pub model: FuncId,
    pub workspace: FuncId,
    pub run: FuncId,
}

pub(super) fn define(
    unit: &mut Unit,
    plan: &Plan,
    scope: &Scope<'_>,
    message: FuncId,
    steps: &[FuncId],
) -> Result<Entries> {
    let (p, i) = (types::I64, types::I32);
    let model = unit.declare("model", &unit.signature(&[], Some(p)))?;
    let descriptor = unit.descriptor_symbol()?;
    unit.build(model, |code| {
        let address = code.data_addr(descriptor, true);
        code.b.ins().return_(&[address]);
        Ok(())
    })?;
    let workspace = unit.declare("workspace", &unit.signature(&[p, p], Some(p)))?;
    unit.build(workspace, |code| workspace_body(code, plan, scope.graph))?;
    let signature = unit.signature(&[p; 7], Some(i));
    let apart = Apart::new(plan, scope.graph);
    let mut checks = Vec::with_capacity(apart.tensors.len() / CHECKS_PER_FUNCTION + 1);
    for (number, tensors) in apart.tensors.chunks(CHECKS_PER_FUNCTION).enumerate() {
        let id = unit.declare(&format!("checks{number}"), &signature)?;
        unit.build(id, |code| {
            let mut run = Run::new(code, plan, scope, &apart);
            tensors.iter().try_for_each(|&tensor| run.check_static(tensor))?;
            let ok = run.code.int32(status::OK);
            run.code.b.ins().return_(&[ok]);
            code.write_fail_block(message);
            Ok(())
        })?;
        checks.push(id);
    }
    let run = unit.declare("run", &signature)?;
    unit.build(run, |code| {
        let mut run = Run::new(code, plan, scope, &apart);
        run.check_options();
        run.check_counts();
        run.check_allocator();
        run.check_apart(&checks);
        run.bind_symbols();
        run.check_inputs()?;
        run.check_sizes()?;
        run.check_assumptions()?;
        run.check_outputs()?;
        run.check_workspace()?;
        run.check_cancel();
        run.execute(steps)?;
        code.write_fail_block(message);
        Ok(())
    })?;
    Ok(Entries { model, workspace, run })
}

/// `int64_t workspace(const int64_t *dims, size_t count)`: bytes, or minus a status.
fn workspace_body(code: &mut Code<'_>, plan: &Plan, graph: &Graph) -> Result<()> {
    let params = code.params();
    let leave = code.cold_block();
    code.b.append_block_param(leave, types::I64);
    let leave_if = |code: &mut Code<'_>, bad: Value, status: i32| {
        let next = code.block();
        let status = code.int(-i64::from(status));
        code.b.ins().brif(bad, leave, &[status.into()], next, &[]);
        code.b.switch_to_block(next);
    };
    let symbols = bound_symbols(graph);
    let miscounted = code.icmp_imm(IntCC::NotEqual, params[1], symbols.len() as i64);
    leave_if(code, miscounted, status::BAD_COUNT);
    if !symbols.is_empty() {
        let null = code.icmp_imm(IntCC::Equal, params[0], 0);
        leave_if(code, null, status::NULL_POINTER);
    }
    let mut values = HashMap::new();
    for (at, &symbol) in symbols.iter().enumerate() {
        let value = code.load64(params[0], 8 * at as i64);
        let negative = code.icmp_imm(IntCC::SignedLessThan, value, 0);
        leave_if(code, negative, status::BAD_DIM);
        values.insert(symbol, value);
    }
    let (bytes, overflow) = Sizes::new(values).checked(code, &plan.workspace)?;
    if let Some(overflow) = overflow {
        leave_if(code, overflow, status::SIZE_OVERFLOW);
    }
    if !plan.workspace.is_const() {
        let negative = code.icmp_imm(IntCC::SignedLessThan, bytes, 0);
        leave_if(code, negative, status::SIZE_OVERFLOW);
    }
    code.b.ins().return_(&[bytes]);
    code.b.switch_to_block(leave);
    let status = code.b.block_params(leave)[0];
    code.b.ins().return_(&[status]);
    Ok(())
}

/// One tensor descriptor of the caller. Its fields are loaded where they are needed: of a model with thousands of inputs
/// they would fill the stack.
#[derive(Clone)]
struct Given {
    /// `input 0 `x``, for messages.
    what: String,
    /// The caller's array, and the descriptor's offset in it.
    array: Value,
    at: i64,
}

impl Given {
    fn data(&self, code: &mut Code<'_>) -> Value {
        code.load64(self.array, self.at + tensor::DATA)
    }

    fn bytes(&self, code: &mut Code<'_>) -> Value {
        code.load64(self.array, self.at + tensor::BYTES)
    }

    fn dtype(&self, code: &mut Code<'_>) -> Value {
        code.load(types::I32, self.array, self.at + tensor::DTYPE)
    }

    fn rank(&self, code: &mut Code<'_>) -> Value {
        code.load(types::I32, self.array, self.at + tensor::RANK)
    }

    fn dims(&self, code: &mut Code<'_>) -> Value {
        code.load64(self.array, self.at + tensor::DIMS)
    }

    fn dim(&self, code: &mut Code<'_>, axis: usize) -> Value {
        let dims = self.dims(code);
        code.load64(dims, 8 * axis as i64)
    }
}

fn given(array: Value, at: usize, kind: &str, name: &str) -> Given {
    Given { what: format!("{kind} {at} `{}`", printable(name)), array, at: at as i64 * tensor::SIZE }
}

/// Tensors that a function checks: the register allocator takes more than linear time for a long one.
const CHECKS_PER_FUNCTION: usize = 64;

/// An input or an output, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Tensor {
    Input(usize),
    Output(usize),
}

/// Tensors of static shape of a model that has many: functions of their own check them.
struct Apart {
    tensors: Vec<Tensor>,
    all: HashSet<Tensor>,
}

impl Apart {
    fn new(plan: &Plan, graph: &Graph) -> Apart {
        let is_static = |ty: &TensorType| ty.shape.iter().all(Dim::is_const);
        let inputs = graph.inputs.iter().enumerate();
        let inputs = inputs.filter(|(at, input)| input.default.is_none() && is_static(graph.input_ty(*at)));
        let late: HashSet<usize> = plan.dynamic.outputs.iter().map(|(output, _)| *output).collect();
        let outputs = 0..graph.outputs.len();
        let outputs = outputs.filter(|at| !late.contains(at) && is_static(graph.output_ty(*at)));
        let tensors = inputs.map(|(at, _)| Tensor::Input(at)).chain(outputs.map(Tensor::Output));
        let mut tensors: Vec<Tensor> = tensors.collect();
        if tensors.len() <= 2 * CHECKS_PER_FUNCTION {
            tensors.clear();
        }
        Apart { all: tensors.iter().copied().collect(), tensors }
    }
}

/// `run` while it is written.
struct Run<'c, 'a, 'p> {
    code: &'c mut Code<'a>,
    plan: &'p Plan,
    scope: &'p Scope<'p>,
    params: Vec<Value>,
    /// The caller's options, or zeros.
    options: Value,
    zeros: Value,
    sizes: Sizes,
    /// Who decided a symbol: `dimension 0 of input 0 `x``.
    deciders: HashMap<Sym, String>,
    inputs: Vec<Given>,
    outputs: Vec<Given>,
    apart: &'p Apart,
}

impl<'c, 'a, 'p> Run<'c, 'a, 'p> {
    fn new(
        code: &'c mut Code<'a>,
        plan: &'p Plan,
        scope: &'p Scope<'p>,
        apart: &'p Apart,
    ) -> Run<'c, 'a, 'p> {
        let params = code.params();
        let text = code.unit.text_symbol();
        let zeros = code.data_addr(text, true);
        let options = code.b.ins().select(params[6], params[6], zeros);
        Run {
            code,
            plan,
            scope,
            params,
            options,
            zeros,
            sizes: Sizes::new(HashMap::new()),
            deciders: HashMap::new(),
            inputs: vec![],
            outputs: vec![],
            apart,
        }
    }

    /// Checks what functions of their own check.
    fn check_apart(&mut self, checks: &[FuncId]) {
        let params = self.params.clone();
        for &check in checks {
            let result = self.code.call(check, &params);
            let (leave, next) = (self.code.cold_block(), self.code.block());
            self.code.branch(result, leave, next);
            self.code.b.switch_to_block(leave);
            self.code.b.ins().return_(&[result]);
            self.code.b.switch_to_block(next);
        }
    }

    /// All of a tensor of static shape.
    fn check_static(&mut self, tensor: Tensor) -> Result<()> {
        let graph = self.scope.graph;
        let (given, ty, exact) = match tensor {
            Tensor::Input(at) => {
                (given(self.params[0], at, "input", &graph.inputs[at].name), graph.input_ty(at), true)
            }
            Tensor::Output(at) => {
                (given(self.params[2], at, "output", &graph.outputs[at].0), graph.output_ty(at), false)
            }
        };
        self.check_type(&given, ty);
        let dims = self.dims(ty)?;
        self.check_dims(&given, ty, &dims, |_, _| true);
        let bytes = self.bytes(&given, ty)?;
        self.check_data(&given, ty, bytes, exact);
        Ok(())
    }

    fn is_apart(&self, tensor: Tensor) -> bool {
        self.apart.all.contains(&tensor)
    }

    fn fail_if(&mut self, bad: Value, status: i32, template: &str, a: Value, b: Value) {
        self.code.fail_if(bad, status, template, [a, b], self.options);
    }

    fn fail_unless_equal(&mut self, found: Value, wanted: i64, status: i32, template: &str) {
        let wrong = self.code.icmp_imm(IntCC::NotEqual, found, wanted);
        let (found, wanted) = (self.widen(found), self.code.int(wanted));
        self.fail_if(wrong, status, template, found, wanted);
    }

    fn fail_if_zero(&mut self, pointer: Value, template: &str) {
        let null = self.code.icmp_imm(IntCC::Equal, pointer, 0);
        self.fail_if(null, status::NULL_POINTER, template, pointer, pointer);
    }

    fn widen(&mut self, value: Value) -> Value {
        if self.code.b.func.dfg.value_type(value) == types::I64 {
            return value;
        }
        self.code.b.ins().sextend(types::I64, value)
    }

    fn check_options(&mut self) {
        let size = self.code.load64(self.options, options::STRUCT_SIZE);
        let short = self.code.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, size, options::SIZE);
        let given = self.code.icmp_imm(IntCC::NotEqual, self.params[6], 0);
        let bad = self.code.b.ins().band(short, given);
        // The message buffer of such options cannot be trusted either.
        let zeros = self.zeros;
        self.code.fail_if(bad, status::BAD_OPTIONS, "", [size, size], zeros);
    }

    /// A model with values that only data size needs an allocator.
    fn check_allocator(&mut self) {
        let Some(node) = &self.plan.dynamic.needs_allocator else { return };
        let template = format!("{node}: only data decides the size of its result, and there is no allocator");
        for offset in [options::ALLOCATE, options::RELEASE] {
            let function = self.code.load64(self.options, offset);
            let none = self.code.icmp_imm(IntCC::Equal, function, 0);
            self.fail_if(none, status::NEEDS_ALLOCATOR, &template, function, function);
        }
    }

    fn check_counts(&mut self) {
        let graph = self.scope.graph;
        for (what, at, count) in [("input", 0, graph.inputs.len()), ("output", 2, graph.outputs.len())] {
            let template = format!("{A} {what}s given, the model has {B}");
            self.fail_unless_equal(self.params[at + 1], count as i64, status::BAD_COUNT, &template);
            if count > 0 {
                self.fail_if_zero(self.params[at], &format!("the array of {what}s is null"));
            }
        }
        for (at, input) in graph.inputs.iter().enumerate() {
            self.inputs.push(given(self.params[0], at, "input", &input.name));
        }
        for (at, (name, _)) in graph.outputs.iter().enumerate() {
            self.outputs.push(given(self.params[2], at, "output", name));
        }
    }

    /// Element type, rank, and that the dims can be read.
    fn check_type(&mut self, given: &Given, ty: &TensorType) {
        let what = &given.what;
        let template = format!("{what}: element type {A}, must be {B} ({})", ty.dtype);
        let dtype = given.dtype(self.code);
        self.fail_unless_equal(dtype, i64::from(ty.dtype.to_onnx()), status::BAD_DTYPE, &template);
        let template = format!("{what}: rank {A}, must be {B}");
        let rank = given.rank(self.code);
        self.fail_unless_equal(rank, ty.rank() as i64, status::BAD_RANK, &template);
        if ty.rank() > 0 {
            let dims = given.dims(self.code);
            self.fail_if_zero(dims, &format!("{what}: dims is null"));
        }
    }

    /// Types of all inputs without default; their lone symbolic dims give the symbols their values.
    fn bind_symbols(&mut self) {
        let graph = self.scope.graph;
        for at in (0..graph.inputs.len()).filter(|&at| graph.inputs[at].default.is_none()) {
            if self.is_apart(Tensor::Input(at)) {
                continue;
            }
            let (given, ty) = (self.inputs[at].clone(), graph.input_ty(at));
            self.check_type(&given, ty);
            for (axis, dim) in ty.shape.iter().enumerate() {
                let Some(sym) = dim.as_sym().filter(|sym| !self.deciders.contains_key(sym)) else { continue };
                let value = given.dim(self.code, axis);
                let negative = self.code.icmp_imm(IntCC::SignedLessThan, value, 0);
                let template = format!("{}: dimension {axis} is {A}, which is negative", given.what);
                self.fail_if(negative, status::BAD_DIM, &template, value, value);
                self.sizes.symbols.insert(sym, value);
                self.deciders.insert(sym, format!("dimension {axis} of {}", given.what));
            }
        }
    }

    fn check_inputs(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for (at, input) in graph.inputs.iter().enumerate() {
            if self.is_apart(Tensor::Input(at)) {
                continue;
            }
            let (given, ty) = (self.inputs[at].clone(), graph.input_ty(at));
            // Evaluated here, where every later block may use them.
            let dims = self.dims(ty)?;
            let bytes = self.bytes(&given, ty)?;
            match &input.default {
                None => {
                    self.check_dims(&given, ty, &dims, |_, _| true);
                    self.check_data(&given, ty, bytes, true);
                }
                Some(default) => {
                    let (present, absent, next) = (self.code.block(), self.code.block(), self.code.block());
                    let data = given.data(self.code);
                    self.code.branch(data, present, absent);
                    self.code.b.switch_to_block(present);
                    self.check_type(&given, ty);
                    self.check_dims(&given, ty, &dims, |_, _| true);
                    self.check_data(&given, ty, bytes, true);
                    self.code.jump(next, &[]);
                    self.code.b.switch_to_block(absent);
                    self.check_default(&given, &default.shape, ty, &dims);
                    self.code.jump(next, &[]);
                    self.code.b.switch_to_block(next);
                }
            }
        }
        Ok(())
    }

    fn dims(&mut self, ty: &TensorType) -> Result<Vec<Value>> {
        ty.shape.iter().map(|dim| self.sizes.value(self.code, dim)).collect()
    }

    /// Bytes of a tensor; leaves if they overflow.
    fn bytes(&mut self, given: &Given, ty: &TensorType) -> Result<Value> {
        let (bytes, overflow) = self.sizes.checked(self.code, &ty.stored_bytes())?;
        if let Some(overflow) = overflow {
            let template = format!("{}: the number of bytes exceeds 64 bits", given.what);
            self.fail_if(overflow, status::SIZE_OVERFLOW, &template, bytes, bytes);
        }
        Ok(bytes)
    }

    /// Dims that are `wanted`, where `checked(axis, dim)`.
    fn check_dims(
        &mut self,
        given: &Given,
        ty: &TensorType,
        wanted: &[Value],
        checked: impl Fn(usize, &Dim) -> bool,
    ) {
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(axis, dim)| checked(*axis, dim)) {
            let found = given.dim(self.code, axis);
            let wrong = self.code.icmp(IntCC::NotEqual, found, wanted[axis]);
            let template =
                format!("{}: dimension {axis} is {A}, must be {B}{}", given.what, self.reason(dim));
            self.fail_if(wrong, status::BAD_DIM, &template, found, wanted[axis]);
        }
    }

    /// Why a symbolic dim has its value.
    fn reason(&self, dim: &Dim) -> String {
        if dim.is_const() {
            return String::new();
        }
        let text = printable(&self.scope.graph.dim_text(dim));
        match dim.as_sym().and_then(|sym| self.deciders.get(&sym)) {
            Some(decider) => format!(" (`{text}`, as in {decider})"),
            None => format!(" (`{text}`)"),
        }
    }

    /// The default of an input must have the shape that the other inputs ask for.
    fn check_default(&mut self, given: &Given, shape: &[usize], ty: &TensorType, dims: &[Value]) {
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(_, dim)| !dim.is_const()) {
            let wrong = self.code.icmp_imm(IntCC::NotEqual, dims[axis], shape[axis] as i64);
            let own = self.code.int(shape[axis] as i64);
            let template = format!(
                "{}: dimension {axis} of its default is {A}, must be {B}{}",
                given.what,
                self.reason(dim)
            );
            self.fail_if(wrong, status::BAD_DIM, &template, own, dims[axis]);
        }
    }

    /// Length in bytes (exact, or enough), and a pointer that is not null and is aligned.
    fn check_data(&mut self, given: &Given, ty: &TensorType, bytes: Value, exact: bool) {
        let what = &given.what;
        let (cc, must) = match exact {
            true => (IntCC::NotEqual, "must be"),
            false => (IntCC::UnsignedLessThan, "needs"),
        };
        let length = given.bytes(self.code);
        let wrong = self.code.icmp(cc, length, bytes);
        let template = format!("{what}: {A} bytes, {must} {B}");
        self.fail_if(wrong, status::BAD_BYTES, &template, length, bytes);
        let data = given.data(self.code);
        let null = self.code.icmp_imm(IntCC::Equal, data, 0);
        let some = self.code.icmp_imm(IntCC::NotEqual, bytes, 0);
        let missing = self.code.b.ins().band(null, some);
        self.fail_if(missing, status::NULL_POINTER, &format!("{what}: data is null"), bytes, bytes);
        self.check_alignment(given, ty);
    }

    fn check_alignment(&mut self, given: &Given, ty: &TensorType) {
        let align = alignment(ty);
        if align > 1 {
            let data = given.data(self.code);
            let low = self.code.b.ins().band_imm_u(data, align - 1);
            let align = self.code.int(align);
            let template = format!("{}: data is not aligned to {A} bytes", given.what);
            self.fail_if(low, status::MISALIGNED, &template, align, align);
        }
    }

    /// No dim of a value that has a buffer may become negative: inputs can be too small for the model.
    fn check_sizes(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let mut scopes = vec![*self.scope];
        while let Some(scope) = scopes.pop() {
            for (value, data) in scope.graph.values.iter() {
                if matches!(scope.place(value)?.1, Place::None) {
                    continue;
                }
                for (axis, dim) in data.ty.shape.iter().enumerate() {
                    let never_negative = dim.bounds().0.is_some_and(|low| low >= 0);
                    if never_negative || self.plan.dynamic.decides(dim) || !seen.insert(dim.clone()) {
                        continue;
                    }
                    let size = self.sizes.value(self.code, dim)?;
                    let negative = self.code.icmp_imm(IntCC::SignedLessThan, size, 0);
                    let template = format!(
                        "the inputs are too small: dimension {axis} of value `{}` ({}) would be {A}",
                        printable(&data.name),
                        printable(&self.scope.graph.dim_text(dim))
                    );
                    self.fail_if(negative, status::BAD_DIM, &template, size, size);
                }
            }
            for step in &scope.program.steps {
                // What runs only under a condition is checked there.
                if let Step::Control { node, bodies, .. } = step
                    && matches!(scope.graph.nodes[*node].op, Op::Scan { .. })
                {
                    scopes.extend(scope.bodies(*node, bodies, &[scope.index])?);
                }
            }
        }
        Ok(())
    }

    /// What inference assumed of dims that only the inputs decide.
    fn check_assumptions(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        let dynamic = &self.plan.dynamic;
        let early = |assumption: &&Assumption| !dynamic.awaits(&assumption.requirement);
        for assumption in graph.assumptions.iter().filter(early) {
            let Requirement { left, relation, right } = &assumption.requirement;
            let (left, right) = (self.sizes.value(self.code, left)?, self.sizes.value(self.code, right)?);
            let wrong = violated(self.code, *relation, left, right);
            let template = violation(graph, assumption);
            self.fail_if(wrong, status::BAD_DIM, &template, left, right);
        }
        Ok(())
    }

    fn check_outputs(&mut self) -> Result<()> {
        let graph = self.scope.graph;
        for at in 0..graph.outputs.len() {
            if self.is_apart(Tensor::Output(at)) {
                continue;
            }
            let (given, ty) = (self.outputs[at].clone(), graph.output_ty(at));
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

    /// What can be told of an output before data decide its dims.
    fn check_late_output(&mut self, given: &Given, ty: &TensorType) -> Result<()> {
        for (axis, dim) in ty.shape.iter().enumerate().filter(|(_, dim)| dim.is_const()) {
            let (found, wanted) = (given.dim(self.code, axis), self.sizes.value(self.code, dim)?);
            let wrong = self.code.icmp(IntCC::NotEqual, found, wanted);
            let template = format!("{}: dimension {axis} is {A}, must be {B}", given.what);
            self.fail_if(wrong, status::BAD_DIM, &template, found, wanted);
        }
        self.check_alignment(given, ty);
        Ok(())
    }

    fn check_workspace(&mut self) -> Result<()> {
        let (pointer, given) = (self.params[4], self.params[5]);
        for dim in self.plan.table.iter().filter(|dim| !self.plan.dynamic.decides(dim)) {
            self.sizes.value(self.code, dim)?;
        }
        let (bytes, overflow) = self.sizes.checked(self.code, &self.plan.workspace)?;
        if let Some(overflow) = overflow {
            let template = "the sizes of this run exceed 64 bits";
            self.fail_if(overflow, status::SIZE_OVERFLOW, template, bytes, bytes);
        }
        let negative = self.code.icmp_imm(IntCC::SignedLessThan, bytes, 0);
        self.fail_if(
            negative,
            status::SIZE_OVERFLOW,
            &format!("the workspace would have {A} bytes"),
            bytes,
            bytes,
        );
        let short = self.code.icmp(IntCC::UnsignedLessThan, given, bytes);
        let template = format!("workspace: {A} bytes, needs {B}");
        self.fail_if(short, status::BAD_WORKSPACE, &template, given, bytes);
        let null = self.code.icmp_imm(IntCC::Equal, pointer, 0);
        let some = self.code.icmp_imm(IntCC::NotEqual, bytes, 0);
        let missing = self.code.b.ins().band(null, some);
        self.fail_if(missing, status::NULL_POINTER, "workspace is null", bytes, bytes);
        let low = self.code.b.ins().band_imm_u(pointer, ALIGN - 1);
        let misaligned = self.code.b.ins().select(some, low, bytes);
        let align = self.code.int(ALIGN);
        let template = format!("workspace is not aligned to {A} bytes");
        self.fail_if(misaligned, status::MISALIGNED, &template, align, align);
        Ok(())
    }

    /// A run that was cancelled before it began writes nothing.
    fn check_cancel(&mut self) {
        let cancel = self.cancel();
        self.code.poll(cancel, self.options);
    }

    /// The caller's flag, or a zero.
    fn cancel(&mut self) -> Value {
        let cancel = self.code.load64(self.options, options::CANCEL);
        self.code.b.ins().select(cancel, cancel, self.zeros)
    }

    fn execute(&mut self, steps: &[FuncId]) -> Result<()> {
        self.store_sizes()?;
        self.store_output_dims()?;
        let (workspace, outputs) = (self.params[4], self.params[2]);
        begin(self.code, &self.plan.dynamic, workspace, outputs);
        let frame = self.fill_frame()?;
        let leave = self.code.cold_block();
        self.code.b.append_block_param(leave, types::I32);
        for &function in steps {
            let result = self.code.call(function, &[frame]);
            let next = self.code.block();
            self.code.b.ins().brif(result, leave, &[result.into()], next, &[]);
            self.code.b.switch_to_block(next);
        }
        let ok = self.code.int32(status::OK);
        self.code.b.ins().return_(&[ok]);
        self.code.b.switch_to_block(leave);
        let result = self.code.b.block_params(leave)[0];
        abandon(self.code, &self.plan.dynamic, self.options, workspace, outputs);
        self.code.b.ins().return_(&[result]);
        Ok(())
    }

    /// Symbol values and the table of sizes, at the start of the workspace.
    fn store_sizes(&mut self) -> Result<()> {
        let symbols = self.scope.graph.symbols.len();
        for sym in self.scope.graph.symbols.keys() {
            let value = match self.sizes.symbols.get(&sym) {
                Some(&value) => value,
                None => self.code.int(0),
            };
            self.code.store(value, self.params[4], 8 * sym.index() as i64);
        }
        let early = |dim: &Dim| !self.plan.dynamic.decides(dim);
        for (at, dim) in self.plan.table.iter().enumerate().filter(|(_, dim)| early(dim)) {
            let value = self.sizes.value(self.code, dim)?;
            self.code.store(value, self.params[4], 8 * (symbols + at) as i64);
        }
        Ok(())
    }

    fn store_output_dims(&mut self) -> Result<()> {
        for at in 0..self.outputs.len() {
            if self.is_apart(Tensor::Output(at)) {
                continue;
            }
            let dims = self.outputs[at].dims(self.code);
            for (axis, dim) in self.scope.graph.output_ty(at).shape.iter().enumerate() {
                if !dim.is_const() && !self.plan.dynamic.decides(dim) {
                    let size = self.sizes.value(self.code, dim)?;
                    self.code.store(size, dims, 8 * axis as i64);
                }
            }
        }
        Ok(())
    }

    /// See [`frame::LEVEL`]. The processor is tested in the first run, or in those that several threads begin before
    /// the first has stored the result.
    fn level(&mut self) -> Value {
        let Some(test) = self.code.unit.level() else { return self.code.int(1) };
        let word = self.code.data_addr(test.known, true);
        let (unknown, next) = (self.code.cold_block(), self.code.block());
        self.code.b.append_block_param(next, types::I32);
        let known = self.code.b.ins().atomic_load(types::I32, MemFlagsData::trusted(), word);
        self.code.b.ins().brif(known, next, &[known.into()], unknown, &[]);
        self.code.b.switch_to_block(unknown);
        let level = self.code.call(test.function, &[]);
        let level = self.code.add(level, 1);
        self.code.b.ins().atomic_store(MemFlagsData::trusted(), level, word);
        self.code.jump(next, &[level]);
        self.code.b.switch_to_block(next);
        let level = self.code.b.block_params(next)[0];
        self.widen(level)
    }

    fn fill_frame(&mut self) -> Result<Value> {
        let workspace = self.params[4];
        let frame = match self.plan.pointers(PointerArray::Frame(self.scope.index)) {
            (_, Some(offset)) => self.code.add(workspace, offset),
            (bytes, None) => {
                let slot = self.code.slot(bytes);
                self.code.slot_addr(slot)
            }
        };
        let weights = self.code.weights_addr();
        let level = self.level();
        let cancel = self.cancel();
        let fields = [
            (frame::ARENA, self.code.add(workspace, self.plan.arena_at)),
            (frame::WEIGHTS, weights),
            (frame::OPTIONS, self.options),
            (frame::DIMS, workspace),
            (frame::CANCEL, cancel),
            (frame::LEVEL, level),
            (frame::PARALLEL, self.code.load64(self.options, options::PARALLEL_FOR)),
        ];
        for (offset, value) in fields {
            self.code.store(value, frame, offset);
        }
        for at in 0..self.inputs.len() {
            let mut data = self.inputs[at].data(self.code);
            if let Some(offset) = self.plan.defaults[at] {
                let default = self.code.add(weights, offset as i64);
                data = self.code.b.ins().select(data, data, default);
            }
            self.code.store(data, frame, frame::IO + 8 * at as i64);
        }
        for at in 0..self.outputs.len() {
            let slot = self.inputs.len() + at;
            let data = self.outputs[at].data(self.code);
            self.code.store(data, frame, frame::IO + 8 * slot as i64);
        }
        Ok(frame)
    }
}

/// Alignment that a tensor's data needs, bytes: that of its element, or of an element's parts.
pub(super) fn alignment(ty: &TensorType) -> i64 {
    (ty.dtype.size() as i64).min(8)
}
