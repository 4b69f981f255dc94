//! Statements: loops, locals, checks, and the function around them.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, Function, InstBuilder, MemFlagsData, Signature, UserFuncName, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_entity::{EntityRef, SecondaryMap};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::expr::{Kind, Val};
use super::index::{Binding, Instance, InstanceKind, Place, Scope};
use super::lane::{is_f32, rep_type};
use super::memory::LoadKey;
use super::plan;
use crate::error::{Error, Result};
use crate::graph::{DType, Dim};
use crate::loops::{Buf, Expr, Index, Kernel, Local, LoopKind, Stmt, Var};
use crate::scalar::BinaryFn;
use crate::target::Target;

/// Locals are registers: more than this many is a mistake of the caller.
const MAX_REGISTERS: usize = 4096;

/// Cranelift IR of a kernel.
pub fn function(kernel: &Kernel, isa: &dyn TargetIsa, target: &Target) -> Result<Function> {
    let mut signature = Signature::new(CallConv::triple_default(isa.triple()));
    let pointer = isa.pointer_type();
    for ty in [pointer, pointer, types::I64, types::I64] {
        signature.params.push(AbiParam::new(ty));
    }
    signature.returns.push(AbiParam::new(types::I32));
    let mut func = Function::with_name_signature(UserFuncName::user(0, 0), signature);
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut func, &mut context);
    let (entry, exit) = (b.create_block(), b.create_block());
    b.append_block_params_for_function_params(entry);
    b.append_block_param(exit, types::I32);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let params = b.block_params(entry).to_vec();
    let [buffers, dims, lo, hi] = params[..] else {
        return Err(super::fail(kernel, "the function has other parameters than it was given"));
    };
    let mut generator = Gen {
        kernel,
        target,
        b,
        env: SecondaryMap::new(),
        instances: vec![],
        scopes: vec![Scope::default()],
        loads: HashMap::new(),
        splats: HashMap::new(),
        lane_lets: HashMap::new(),
        registers: SecondaryMap::new(),
        buffers: SecondaryMap::new(),
        dims,
        exit,
        depth: 0,
        group: None,
    };
    generator.declare(buffers)?;
    let range = kernel.parallel_range().is_some().then_some((lo, hi));
    generator.body(&kernel.body, range)?;
    let ok = generator.b.ins().iconst(types::I32, 0);
    generator.b.ins().jump(exit, &[BlockArg::Value(ok)]);
    generator.b.switch_to_block(exit);
    generator.b.seal_block(exit);
    let code = generator.b.block_params(exit)[0];
    generator.b.ins().return_(&[code]);
    generator.b.finalize(isa.frontend_config());
    Ok(func)
}

/// The part of a vector loop that is being emitted: `lanes` values of its variable, from `base` on.
#[derive(Clone)]
pub struct Group {
    /// Instance of the loop variable.
    pub lane: Var,
    pub base: Index,
    pub lanes: usize,
}

pub struct Gen<'a, 'f> {
    pub kernel: &'a Kernel,
    pub target: &'a Target,
    pub b: FunctionBuilder<'f>,
    pub env: SecondaryMap<Var, Binding>,
    pub instances: Vec<Instance>,
    pub scopes: Vec<Scope>,
    /// Elements loaded since control last flowed together or apart.
    pub loads: HashMap<LoadKey, Value>,
    /// Vectors of one scalar, made since then.
    pub splats: HashMap<(Value, DType, usize), Value>,
    /// Lanes of index lets, taken out since then.
    pub lane_lets: HashMap<(Var, usize), Var>,
    pub registers: SecondaryMap<Local, Vec<Variable>>,
    pub buffers: SecondaryMap<Buf, Option<Value>>,
    pub dims: Value,
    pub exit: Block,
    /// Loops around the code that is being emitted.
    pub depth: usize,
    pub group: Option<Group>,
}

impl Gen<'_, '_> {
    pub fn internal(&self, message: String) -> Error {
        super::fail(self.kernel, &message)
    }

    pub fn supported(&self, dtype: DType) -> Result<DType> {
        match dtype {
            DType::Str => Err(self.internal(format!("element type {dtype} has no register form"))),
            _ => Ok(dtype),
        }
    }

    /// Loads the buffers' addresses and declares the registers of the locals.
    fn declare(&mut self, buffers: Value) -> Result<()> {
        let kernel = self.kernel;
        for (buf, buffer) in kernel.buffers.iter() {
            self.supported(buffer.dtype)?;
            let offset = i32::try_from(buf.index() * 8)
                .map_err(|_| self.internal(format!("{} buffers", kernel.buffers.len())))?;
            let flags = MemFlagsData::new().with_notrap().with_aligned();
            self.buffers[buf] = Some(self.b.ins().load(types::I64, flags, buffers, offset));
        }
        for (local, decl) in kernel.locals.iter() {
            self.supported(decl.dtype)?;
            let elements = decl.extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
            let lanes = self.register_lanes(local);
            let count = elements.filter(|n| n % lanes == 0).map(|n| n / lanes);
            let Some(count) = count.filter(|&n| n <= MAX_REGISTERS) else {
                return Err(self.internal(format!(
                    "local `{}` has extents {:?} in vectors of {}",
                    decl.name, decl.extents, decl.lanes
                )));
            };
            let ty = rep_type(decl.dtype, lanes);
            self.registers[local] = (0..count).map(|_| self.b.declare_var(ty)).collect();
        }
        Ok(())
    }

    pub fn buffer(&self, buf: Buf) -> Result<Value> {
        self.buffers[buf].ok_or_else(|| self.internal(format!("buffer {buf:?} is not declared")))
    }

    /// Elements in each register of a local.
    fn register_lanes(&self, local: Local) -> usize {
        let decl = &self.kernel.locals[local];
        let size = if is_f32(decl.dtype) { 4 } else { decl.dtype.size().max(1) };
        let most = 16 / size;
        match decl.lanes {
            0 | 1 => 1,
            lanes => 1 << lanes.min(most).trailing_zeros(),
        }
    }

    /// Forgets what memory held and which values the current block has, where control flow changes.
    pub fn forget(&mut self) {
        self.loads.clear();
        self.splats.clear();
        self.lane_lets.clear();
    }

    fn body(&mut self, body: &[Stmt], range: Option<(Value, Value)>) -> Result<()> {
        body.iter().try_for_each(|stmt| self.stmt(stmt, range))
    }

    fn stmt(&mut self, stmt: &Stmt, range: Option<(Value, Value)>) -> Result<()> {
        match stmt {
            Stmt::For { step, .. } if *step < 1 => Err(self.internal(format!("a loop has step {step}"))),
            Stmt::For { var, lo, hi, step, kind, body } => match kind {
                LoopKind::Serial | LoopKind::Parallel => self.serial(*var, lo, hi, *step, body, range),
                LoopKind::Unrolled => {
                    let range = self.constant_range(lo, hi).ok_or_else(|| {
                        self.internal(format!("an unrolled loop runs from {lo:?} to {hi:?}"))
                    })?;
                    for value in range.step_by(*step as usize) {
                        self.env[*var] = Binding::Index(Index::int(value));
                        self.body(body, None)?;
                    }
                    Ok(())
                }
                LoopKind::Vector => self.vector(*var, lo, hi, *step, body),
            },
            Stmt::Let { var, value } => self.bind(*var, value),
            Stmt::Store { buf, index, value } => {
                let raw = plan::moves_bits(self.kernel, value);
                let value = if raw { self.eval_bits(value)? } else { self.eval(value)? };
                self.store(*buf, index, value, raw)
            }
            Stmt::Set { local, at, value } => {
                let value = self.eval(value)?;
                self.set(*local, at, value)
            }
            Stmt::Accumulate { local, at, op, value } => self.accumulate(*local, at, *op, value),
            Stmt::If { condition, then, otherwise } => self.branch(condition, then, otherwise),
            Stmt::Check { condition, code } => self.check(condition, *code),
            // Cranelift has no instruction for it.
            Stmt::Prefetch { .. } => Ok(()),
            Stmt::Tile(_) => Err(self.internal("tiles".to_string())),
        }
    }

    fn serial(
        &mut self,
        var: Var,
        lo: &Index,
        hi: &Index,
        step: i64,
        body: &[Stmt],
        range: Option<(Value, Value)>,
    ) -> Result<()> {
        let (low, high) = (self.resolve(lo)?, self.resolve(hi)?);
        // The argument bounds lie within those of the loop, so an extent by the latter holds for both.
        let extent = (low == Index::zero()).then(|| high.as_dim().cloned()).flatten();
        let (first, end) = match range {
            Some(range) => range,
            None => (self.sum(&low)?, self.sum(&high)?),
        };
        self.env[var] = Binding::Unbound;
        self.hoist(body)?;

        let (header, inside, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let counter = self.b.append_block_param(header, types::I64);
        self.b.ins().jump(header, &[BlockArg::Value(first)]);
        self.b.switch_to_block(header);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, counter, end);
        self.b.ins().brif(more, inside, &[], after, &[]);
        self.b.switch_to_block(inside);
        self.b.seal_block(inside);

        self.forget();
        self.scopes.push(Scope::default());
        self.depth += 1;
        let instance = self.instance(InstanceKind::Scalar(counter), extent);
        self.env[var] = Binding::Index(Index::var(instance));
        self.body(body, None)?;
        self.env[var] = Binding::Unbound;
        self.depth -= 1;
        self.scopes.pop();
        self.forget();

        let next = self.add_int(counter, step);
        self.b.ins().jump(header, &[BlockArg::Value(next)]);
        self.b.seal_block(header);
        self.b.switch_to_block(after);
        self.b.seal_block(after);
        Ok(())
    }

    fn vector(&mut self, var: Var, lo: &Index, hi: &Index, step: i64, body: &[Stmt]) -> Result<()> {
        if self.group.is_some() || step != 1 {
            return Err(self.internal("a vector loop inside another, or with a step".to_string()));
        }
        let (low, high) = (self.resolve(lo)?, self.resolve(hi)?);
        let extent = high.add(&low.scale(&Dim::from(-1i64))).as_int().filter(|&extent| extent >= 0);
        let Some(extent) = extent else {
            return Err(self.internal(format!("a vector loop runs from {lo:?} to {hi:?}")));
        };
        let lanes = plan::lanes(self.kernel, var, body, extent);
        let lane =
            self.instance(InstanceKind::Lane, Some(Dim::from(extent)).filter(|_| low == Index::zero()));
        for first in (0..extent).step_by(lanes) {
            let base = low.add_dim(&Dim::from(first));
            if lanes == 1 {
                self.env[var] = Binding::Index(base);
            } else {
                self.env[var] = Binding::Index(Index::var(lane));
                self.group = Some(Group { lane, base, lanes });
            }
            let done = self.body(body, None);
            self.group = None;
            done?;
        }
        self.env[var] = Binding::Unbound;
        Ok(())
    }

    fn bind(&mut self, var: Var, value: &Expr) -> Result<()> {
        let binding = match value {
            Expr::Index(index) => Binding::Index(self.resolve(index)?),
            _ => {
                let value = self.eval(value)?;
                match value.kind {
                    _ if value.dtype != DType::I64 => Binding::Value(value),
                    Kind::Const(bits) => Binding::Index(Index::int(bits as i64)),
                    Kind::Scalar(v) => {
                        Binding::Index(Index::var(self.instance(InstanceKind::Scalar(v), None)))
                    }
                    Kind::Vector(v) => {
                        Binding::Index(Index::var(self.instance(InstanceKind::Lanes(v), None)))
                    }
                }
            }
        };
        self.env[var] = binding;
        Ok(())
    }

    fn branch(&mut self, condition: &Expr, then: &[Stmt], otherwise: &[Stmt]) -> Result<()> {
        let condition = self.condition(condition)?;
        let outer = match condition.kind {
            Kind::Const(bits) => return self.body(if bits != 0 { then } else { otherwise }, None),
            Kind::Scalar(value) => value,
            Kind::Vector(_) => {
                return Err(self.internal("a condition that differs between lanes".to_string()));
            }
        };
        let (yes, no, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.ins().brif(outer, yes, &[], no, &[]);
        for (block, body) in [(yes, then), (no, otherwise)] {
            self.b.switch_to_block(block);
            self.b.seal_block(block);
            self.forget();
            self.scopes.push(Scope::default());
            self.body(body, None)?;
            self.scopes.pop();
            self.b.ins().jump(after, &[]);
        }
        self.forget();
        self.b.switch_to_block(after);
        self.b.seal_block(after);
        Ok(())
    }

    fn condition(&mut self, condition: &Expr) -> Result<Val> {
        let value = self.eval(condition)?;
        match value.dtype {
            DType::Bool => Ok(value),
            other => Err(self.internal(format!("a condition of type {other}"))),
        }
    }

    /// Checks the element type of what is stored.
    pub fn stores(&self, value: Val, to: DType) -> Result<()> {
        if value.dtype == to {
            return Ok(());
        }
        Err(self.internal(format!("a value of type {} stored to {to}", value.dtype)))
    }

    fn check(&mut self, condition: &Expr, code: u32) -> Result<()> {
        let value = self.condition(condition)?;
        let holds = match value.kind {
            Kind::Vector(mask) => self.b.ins().vall_true(mask),
            _ => self.scalar(value),
        };
        let (fail, next) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(fail);
        self.b.ins().brif(holds, next, &[], fail, &[]);
        self.b.switch_to_block(fail);
        self.b.seal_block(fail);
        let code = self.b.ins().iconst(types::I32, i64::from(code));
        self.b.ins().jump(self.exit, &[BlockArg::Value(code)]);
        self.b.switch_to_block(next);
        self.b.seal_block(next);
        Ok(())
    }

    /// Position of an element of a local: its number, in row-major order.
    fn element(&mut self, local: Local, at: &[Index]) -> Result<Place> {
        let decl = &self.kernel.locals[local];
        if at.len() != decl.extents.len() {
            return Err(self.internal(format!("local `{}` has {} indices", decl.name, at.len())));
        }
        let mut flat = Index::zero();
        for (index, &extent) in at.iter().zip(&decl.extents) {
            flat = flat.scale(&Dim::from(extent)).add(&self.resolve(index)?);
        }
        self.place(flat)
    }

    /// Register and lane of an element of a local.
    fn register(&self, local: Local, flat: &Index) -> Result<(Variable, usize)> {
        let lanes = self.register_lanes(local);
        let at = flat.as_int().and_then(|flat| usize::try_from(flat).ok());
        let found = at.and_then(|at| Some((*self.registers[local].get(at / lanes)?, at % lanes)));
        found.ok_or_else(|| {
            let name = &self.kernel.locals[local].name;
            self.internal(format!("local `{name}` has no element {flat:?}"))
        })
    }

    /// The register that holds exactly the current lanes from element `first` on.
    fn whole_register(&self, local: Local, first: &Index) -> Result<Option<Variable>> {
        let (register, lane) = self.register(local, first)?;
        let lanes = self.group.as_ref().map_or(1, |group| group.lanes);
        Ok((lane == 0 && lanes == self.register_lanes(local)).then_some(register))
    }

    fn lanes_from(&self, first: &Index) -> Vec<Index> {
        let lanes = self.group.as_ref().map_or(1, |group| group.lanes);
        (0..lanes).map(|lane| first.add_dim(&Dim::from(lane))).collect()
    }

    pub fn get(&mut self, local: Local, at: &[Index]) -> Result<Val> {
        let dtype = self.kernel.locals[local].dtype;
        let elements = match self.element(local, at)? {
            Place::Uniform(flat) => return Ok(Val::scalar(dtype, self.get_element(local, &flat)?)),
            Place::Contiguous(first) => {
                if let Some(register) = self.whole_register(local, &first)? {
                    return Ok(Val::vector(dtype, self.b.use_var(register)));
                }
                self.lanes_from(&first)
            }
            Place::Lanes(elements) => elements,
        };
        let scalars =
            elements.iter().map(|flat| self.get_element(local, flat)).collect::<Result<Vec<_>>>()?;
        Ok(Val::vector(dtype, self.join_lanes(&scalars, dtype)))
    }

    fn get_element(&mut self, local: Local, flat: &Index) -> Result<Value> {
        let (register, lane) = self.register(local, flat)?;
        let value = self.b.use_var(register);
        let one = self.register_lanes(local) == 1;
        Ok(if one { value } else { self.extract(value, self.kernel.locals[local].dtype, lane) })
    }

    fn set(&mut self, local: Local, at: &[Index], value: Val) -> Result<()> {
        self.stores(value, self.kernel.locals[local].dtype)?;
        let elements = match self.element(local, at)? {
            Place::Uniform(flat) => {
                if matches!(value.kind, Kind::Vector(_)) {
                    return Err(self.internal("all lanes set one element of a local".to_string()));
                }
                let value = self.scalar(value);
                return self.set_element(local, &flat, value);
            }
            Place::Contiguous(first) => {
                if let Some(register) = self.whole_register(local, &first)? {
                    let value = self.vector_of(value);
                    self.b.def_var(register, value);
                    return Ok(());
                }
                self.lanes_from(&first)
            }
            Place::Lanes(elements) => elements,
        };
        for (lane, flat) in elements.iter().enumerate() {
            let scalar = self.lane_of(value, lane);
            self.set_element(local, flat, scalar)?;
        }
        Ok(())
    }

    fn set_element(&mut self, local: Local, flat: &Index, value: Value) -> Result<()> {
        let (register, lane) = self.register(local, flat)?;
        let lanes = self.register_lanes(local);
        let value = if lanes == 1 {
            value
        } else {
            let old = self.b.use_var(register);
            self.insert(old, value, self.kernel.locals[local].dtype, lane, lanes)
        };
        self.b.def_var(register, value);
        Ok(())
    }

    fn accumulate(&mut self, local: Local, at: &[Index], op: BinaryFn, value: &Expr) -> Result<()> {
        let dtype = self.kernel.locals[local].dtype;
        let new = match value {
            Expr::Binary { op: BinaryFn::Mul, a, b } if op == BinaryFn::Add && dtype.is_float() => {
                let (a, b) = self.factors(a, b)?;
                let old = self.get(local, at)?;
                self.fma(a, b, old)?
            }
            _ => {
                let value = self.eval(value)?;
                let old = self.get(local, at)?;
                self.binary(op, old, value)?
            }
        };
        self.set(local, at, new)
    }
}
