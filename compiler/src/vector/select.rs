//! Loop IR to vector IR: statements, loops and registers. `address.rs` forms addresses, `value.rs` evaluates
//! expressions, `arith.rs` has the functions, `cast.rs` conversions, `memory.rs` loads and stores, `tiles.rs` tiles.
//!
//! A kernel is taken whole or not at all: what has no form here is left to the other back end, which has one for
//! everything. The loop IR's locals and lets become SSA values; a loop passes on the locals that it changes as
//! parameters of its header.

mod address;
mod arith;
mod cast;
mod memory;
mod tiles;
mod value;

use std::collections::{HashMap, HashSet};

use cranelift_entity::{EntityRef, PrimaryMap};

use address::Scope;
use value::{Form, Val};

use crate::graph::{DType, Dim};
use crate::loops::{Access, Buf, Expr, Index, Kernel, Local, LoopKind, Stmt, Var, visit};
use crate::scalar::{BinaryFn, CompareFn};
use crate::vector::ir::{Block, BlockId, Class, Cond, End, Func, Inst, Lanes, Mem, Op, Operand, Reg};
use crate::vector::isa::Isa;

/// Why a kernel is left to the other back end.
pub struct Refusal(pub String);

pub type Selected<T> = Result<T, Refusal>;

pub fn refuse<T>(reason: impl Into<String>) -> Selected<T> {
    Err(Refusal(reason.into()))
}

/// Selects instructions for a whole kernel.
pub fn select(kernel: &Kernel, isa: Isa) -> Selected<Func> {
    let mut func = Func::default();
    let params: Vec<Reg> = (0..4).map(|_| func.regs.push(Class::Int)).collect();
    let entry = func.blocks.push(Block { params: params.clone(), insts: vec![], end: End::Return(0) });
    let mut cx = Select {
        kernel,
        isa,
        func,
        block: entry,
        env: HashMap::new(),
        instances: PrimaryMap::new(),
        lets: HashMap::new(),
        registers: HashMap::new(),
        bases: HashMap::new(),
        symbols: params[1],
        dims: HashMap::new(),
        scopes: vec![Scope::default()],
        group: None,
    };
    // Variables bound here are numbered after the kernel's own, so that one may stand in place of the other.
    for _ in 0..kernel.vars.len() {
        cx.instances.push(Instance { reg: None, depth: 0, extent: None });
    }
    let pointers = params[0];
    for (buf, buffer) in kernel.buffers.iter() {
        if Form::of(buffer.dtype).is_err() {
            return refuse(format!("a buffer of {}", buffer.dtype));
        }
        if buffer.access == Access::Frame {
            continue;
        }
        if buffer.dtype == DType::F16 && !isa.has(Op::Unpack(Lanes::X1)) {
            return refuse("f16 without conversions");
        }
        let mem = Mem::At { base: pointers, disp: 8 * buf.index() as i32 };
        let base = cx.inst(Op::LoadInt, Class::Int, vec![], Some(mem));
        cx.bases.insert(buf, base);
    }
    cx.frame()?;
    let range = kernel.parallel_range().is_some().then_some((params[2], params[3]));
    cx.body(&kernel.body, range)?;
    Ok(cx.func)
}

/// A variable of the addresses: a loop's counter or an index that a let computes.
#[derive(Clone)]
pub struct Instance {
    /// `None` for the lane of a vector loop.
    pub reg: Option<Reg>,
    /// Loops around its definition.
    pub depth: usize,
    /// It is below this, where that is known, and never negative.
    pub extent: Option<Dim>,
}

/// The lanes of a vector loop that are being selected: `lanes` of them from `base` on.
#[derive(Clone, Copy)]
pub struct Group {
    pub lane: Var,
    pub base: i64,
    pub lanes: usize,
}

pub struct Select<'k> {
    pub kernel: &'k Kernel,
    pub isa: Isa,
    pub func: Func,
    block: BlockId,
    /// What the kernel's index variables stand for, in terms of instances.
    pub env: HashMap<Var, Index>,
    pub instances: PrimaryMap<Var, Instance>,
    pub lets: HashMap<Var, Val>,
    /// Current value of each register of a local.
    registers: HashMap<Local, Vec<Option<Reg>>>,
    pub bases: HashMap<Buf, Reg>,
    /// Address of the values of the graph's symbols, and the dims computed from them, in the first block.
    pub symbols: Reg,
    pub dims: HashMap<Dim, Reg>,
    /// What has been computed in the open loops and branches, outermost first.
    pub scopes: Vec<Scope>,
    pub group: Option<Group>,
}

impl Select<'_> {
    pub fn reg(&mut self, class: Class) -> Reg {
        self.func.regs.push(class)
    }

    /// Appends an instruction with a result.
    pub fn inst(&mut self, op: Op, class: Class, uses: Vec<Reg>, mem: Option<Mem>) -> Reg {
        let dst = self.reg(class);
        let block = &mut self.func.blocks[self.block];
        block.insts.push(Inst { op, dst: Some(dst), uses, mem });
        dst
    }

    pub fn vec(&mut self, op: Op, uses: Vec<Reg>) -> Reg {
        self.inst(op, Class::Vec, uses, None)
    }

    pub fn int(&mut self, op: Op, uses: Vec<Reg>) -> Reg {
        self.inst(op, Class::Int, uses, None)
    }

    /// Appends an instruction to the first block, where all blocks see its result.
    pub fn first(&mut self, op: Op, uses: Vec<Reg>, mem: Option<Mem>) -> Reg {
        let block = std::mem::replace(&mut self.block, BlockId::new(0));
        let dst = self.inst(op, Class::Int, uses, mem);
        self.block = block;
        dst
    }

    pub fn store(&mut self, lanes: Lanes, value: Reg, mem: Mem) {
        self.push(Inst { op: Op::Store(lanes), dst: None, uses: vec![value], mem: Some(mem) });
    }

    pub fn push(&mut self, inst: Inst) {
        self.func.blocks[self.block].insts.push(inst);
    }

    /// Lanes of the code that is being selected, for elements of `width` bytes.
    pub fn lanes(&self, width: usize) -> Selected<Lanes> {
        let count = self.group.map_or(1, |group| group.lanes);
        match self.isa.lanes_of(count, width) {
            Some(lanes) => Ok(lanes),
            None => refuse(format!("{count} lanes of {width} bytes")),
        }
    }

    fn new_block(&mut self, params: Vec<Reg>) -> BlockId {
        self.func.blocks.push(Block { params, insts: vec![], end: End::Return(0) })
    }

    /// Ends the current block; what follows goes to `next`.
    fn end(&mut self, end: End, next: BlockId) {
        self.func.blocks[self.block].end = end;
        self.block = next;
    }

    fn body(&mut self, body: &[Stmt], range: Option<(Reg, Reg)>) -> Selected<()> {
        body.iter().try_for_each(|stmt| self.stmt(stmt, range))
    }

    fn stmt(&mut self, stmt: &Stmt, range: Option<(Reg, Reg)>) -> Selected<()> {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => match kind {
                LoopKind::Serial | LoopKind::Parallel => self.serial(*var, lo, hi, *step, body, range),
                LoopKind::Unrolled => {
                    let (Some(lo), Some(hi)) = (lo.as_int(), hi.as_int()) else {
                        return refuse("an unrolled loop without constant bounds");
                    };
                    for value in (lo..hi).step_by((*step).max(1) as usize) {
                        self.env.insert(*var, Index::int(value));
                        self.body(body, None)?;
                    }
                    Ok(())
                }
                LoopKind::Vector => self.vector(*var, lo, hi, body),
            },
            Stmt::Let { var, value } => self.bind(*var, value),
            Stmt::Store { buf, index, value } => self.store_element(*buf, index, value),
            Stmt::Set { local, at, value } => {
                let value = self.eval(value)?;
                self.set(*local, at, value)
            }
            Stmt::Accumulate { local, at, op, value } => self.accumulate(*local, at, *op, value),
            Stmt::If { condition, then, otherwise } => self.branch(condition, then, otherwise),
            Stmt::Check { .. } => refuse("a check"),
            Stmt::Prefetch { buf, index } => {
                let index = self.resolve(index)?;
                let mem = self.mem(*buf, &index)?;
                self.push(Inst { op: Op::Prefetch, dst: None, uses: vec![], mem: Some(mem) });
                Ok(())
            }
            Stmt::Tile(stmt) => self.tile_stmt(stmt),
        }
    }

    /// Binds an index to a new instance of a variable.
    pub fn instance(&mut self, reg: Option<Reg>, extent: Option<Dim>) -> Var {
        let depth = self.scopes.len();
        self.instances.push(Instance { reg, depth, extent })
    }

    fn bind(&mut self, var: Var, value: &Expr) -> Selected<()> {
        if let Expr::Index(index) = value {
            let index = self.resolve(index)?;
            let index = if index.divides() {
                let reg = self.sum(&index)?;
                Index::var(self.instance(Some(reg), None))
            } else {
                index
            };
            self.env.insert(var, index);
            return Ok(());
        }
        let value = self.eval(value)?;
        self.lets.insert(var, value);
        Ok(())
    }

    fn serial(
        &mut self,
        var: Var,
        lo: &Index,
        hi: &Index,
        step: i64,
        body: &[Stmt],
        range: Option<(Reg, Reg)>,
    ) -> Selected<()> {
        let Ok(step) = i32::try_from(step) else { return refuse("a loop with a large step") };
        let (lo, hi) = (self.resolve(lo)?, self.resolve(hi)?);
        let extent = hi.as_dim().cloned();
        let (first, last) = match range {
            Some((lo, hi)) => (lo, Operand::Reg(hi)),
            None => (self.sum(&lo)?, self.operand(&hi)?),
        };
        self.env.remove(&var);
        self.hoist(body)?;
        let carried = self.carried(&[body]);

        let counter = self.reg(Class::Int);
        let mut params = vec![counter];
        params.extend(carried.iter().map(|_| self.func.regs.push(Class::Vec)));
        let mut start = vec![first];
        start.extend(self.values(&carried)?);
        let header = self.new_block(params.clone());
        self.end(End::Jump(header, start), header);
        self.take(&carried, &params[1..]);
        let (inside, after) = (self.new_block(vec![]), self.new_block(vec![]));
        let test = End::Branch { cond: Cond::Lt, a: counter, b: last, then: inside, otherwise: after };
        self.end(test, inside);

        self.scopes.push(Scope::default());
        let instance = self.instance(Some(counter), extent);
        self.env.insert(var, Index::var(instance));
        self.body(body, None)?;
        let next = self.int(Op::AddInt(step), vec![counter]);
        let mut back = vec![next];
        back.extend(self.values(&carried)?);
        self.end(End::Jump(header, back), after);
        self.env.remove(&var);
        self.scopes.pop();

        self.forget(&[body]);
        self.take(&carried, &params[1..]);
        Ok(())
    }

    fn vector(&mut self, var: Var, lo: &Index, hi: &Index, body: &[Stmt]) -> Selected<()> {
        let (lo, hi) = (self.resolve(lo)?, self.resolve(hi)?);
        let (Some(lo), Some(hi)) = (lo.as_int(), hi.as_int()) else {
            return refuse("a vector loop without constant bounds");
        };
        let extent = usize::try_from(hi - lo).unwrap_or(0);
        let widest = self.widest(body);
        let lanes = if extent.is_multiple_of(widest) { widest } else { extent & extent.wrapping_neg() };
        if Lanes::of(lanes, 4).is_none() {
            return refuse(format!("vectors of {lanes}"));
        }
        for base in (lo..hi).step_by(lanes) {
            let lane = self.instance(None, None);
            self.group = Some(Group { lane, base, lanes });
            self.env.insert(var, Index::var(lane));
            let result = self.body(body, None);
            self.group = None;
            result?;
        }
        self.env.remove(&var);
        Ok(())
    }

    /// Most lanes that a body can run in: its widest elements fill vectors, and its locals have no more.
    fn widest(&self, body: &[Stmt]) -> usize {
        let mut lanes = self.isa.lanes(4);
        let mut registers = |local: Local| match self.kernel.locals[local].lanes {
            0 | 1 => {}
            most => lanes = lanes.min(most),
        };
        visit::stmts(body, &mut |stmt| {
            if let Stmt::Set { local, .. } | Stmt::Accumulate { local, .. } = stmt {
                registers(*local);
            }
        });
        let mut wide = false;
        visit::exprs(body, &mut |expr| {
            if let Expr::Get { local, .. } = expr {
                registers(*local);
            }
            let dtype = self.kernel.dtype(expr);
            wide |= matches!(dtype, DType::F64 | DType::I64) && !matches!(expr, Expr::Index(_));
        });
        if wide { lanes.min(self.isa.lanes(8)) } else { lanes }
    }

    /// A branch on a comparison of indices.
    fn branch(&mut self, condition: &Expr, then: &[Stmt], otherwise: &[Stmt]) -> Selected<()> {
        let Expr::Compare { op, a, b } = condition else { return refuse("a branch on data") };
        let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return refuse("a branch on data") };
        let (a, b, cond) = match op {
            CompareFn::Lt => (a, b, Cond::Lt),
            CompareFn::Ge => (a, b, Cond::Ge),
            CompareFn::Gt => (b, a, Cond::Lt),
            CompareFn::Le => (b, a, Cond::Ge),
            CompareFn::Eq => (a, b, Cond::Eq),
            CompareFn::Ne => (a, b, Cond::Ne),
        };
        let (a, b) = (self.resolve(a)?, self.resolve(b)?);
        let (a, b) = (self.sum(&a)?, self.operand(&b)?);
        let changed = self.carried(&[then, otherwise]);
        let before = self.values(&changed)?;
        let (left, right) = (self.new_block(vec![]), self.new_block(vec![]));
        let params: Vec<Reg> = changed.iter().map(|_| self.func.regs.push(Class::Vec)).collect();
        let join = self.new_block(params.clone());
        self.end(End::Branch { cond, a, b, then: left, otherwise: right }, left);
        for (body, next) in [(then, right), (otherwise, join)] {
            self.scopes.push(Scope::default());
            self.body(body, None)?;
            self.scopes.pop();
            let values = self.values(&changed)?;
            self.end(End::Jump(join, values), next);
            self.take(&changed, &before);
        }
        self.forget(&[then, otherwise]);
        self.take(&changed, &params);
        Ok(())
    }

    /// Registers with a value that the statements give another one.
    fn carried(&self, bodies: &[&[Stmt]]) -> Vec<(Local, usize)> {
        let mut places = Vec::new();
        for local in assigned(bodies) {
            let registers = self.registers.get(&local).map_or(&[][..], Vec::as_slice);
            places.extend((0..registers.len()).filter(|&at| registers[at].is_some()).map(|at| (local, at)));
        }
        places
    }

    /// After statements that may not have run, the locals that they set have no value.
    fn forget(&mut self, bodies: &[&[Stmt]]) {
        for local in assigned(bodies) {
            self.registers.remove(&local);
        }
    }

    fn current(&self, &(local, at): &(Local, usize)) -> Option<Reg> {
        *self.registers.get(&local)?.get(at)?
    }

    fn values(&self, places: &[(Local, usize)]) -> Selected<Vec<Reg>> {
        let value = |place| self.current(place).map_or_else(|| refuse("a local that loses its value"), Ok);
        places.iter().map(value).collect()
    }

    fn take(&mut self, places: &[(Local, usize)], regs: &[Reg]) {
        for (&(local, at), &reg) in places.iter().zip(regs) {
            self.put(local, at, reg);
        }
    }

    fn put(&mut self, local: Local, at: usize, reg: Reg) {
        let registers = self.registers.entry(local).or_default();
        if registers.len() <= at {
            registers.resize(at + 1, None);
        }
        registers[at] = Some(reg);
    }

    /// Which register of a local an index means, and the lane in it; no lane where the lanes of the vector loop are
    /// those of the register.
    fn place(&self, local: Local, at: &[Index]) -> Selected<(usize, Option<usize>)> {
        let decl = &self.kernel.locals[local];
        if Form::of(decl.dtype)? == Form::Mask {
            return refuse(format!("a local of {}", decl.dtype));
        }
        let mut flat = Index::zero();
        for (index, &extent) in at.iter().zip(&decl.extents) {
            flat = flat.scale(&Dim::from(extent)).add(&self.resolve(index)?);
        }
        let (element, whole) = match self.group {
            Some(group) if flat.mentions(group.lane) => {
                let alone = flat.coefficient(group.lane) == Some(Dim::ONE);
                let fits = alone && decl.lanes == group.lanes;
                (flat.substitute(group.lane, &Index::int(group.base)), fits.then_some(()))
            }
            _ => (flat, None),
        };
        let Some(element) = element.as_int().and_then(|element| usize::try_from(element).ok()) else {
            return refuse("a local at an index that varies");
        };
        let lanes = decl.lanes.max(1);
        let (register, lane) = (element / lanes, element % lanes);
        match whole {
            Some(()) if lane == 0 => Ok((register, None)),
            Some(()) => refuse("lanes across the registers of a local"),
            None if self.group.is_some() && lanes > 1 => refuse("one lane of a local in a vector loop"),
            None => Ok((register, Some(lane))),
        }
    }

    pub fn get(&mut self, local: Local, at: &[Index]) -> Selected<Val> {
        let (register, lane) = self.place(local, at)?;
        let Some(reg) = self.current(&(local, register)) else { return refuse("a local without a value") };
        let decl = &self.kernel.locals[local];
        let width = Form::of(decl.dtype)?.width();
        let one = if width == 8 { Lanes::D1 } else { Lanes::X1 };
        Ok(match lane {
            None => Val::vector(reg, width),
            Some(_) if decl.lanes <= 1 => Val::scalar(reg, width),
            Some(lane) => Val::scalar(self.vec(Op::Extract(lane as u8, one), vec![reg]), width),
        })
    }

    fn set(&mut self, local: Local, at: &[Index], value: Val) -> Selected<()> {
        let (register, lane) = self.place(local, at)?;
        let reg = match lane {
            None => {
                let lanes = self.lanes(value.width)?;
                self.spread(value, lanes)
            }
            Some(_) if self.kernel.locals[local].lanes <= 1 => self.scalar(value)?,
            Some(_) => return refuse("setting one lane of a local"),
        };
        self.put(local, register, reg);
        Ok(())
    }

    /// A sum of a product is one instruction.
    fn accumulate(&mut self, local: Local, at: &[Index], op: BinaryFn, value: &Expr) -> Selected<()> {
        let dtype = self.kernel.locals[local].dtype;
        let float = Form::of(dtype)?.is_float();
        let result = match (op, value) {
            (BinaryFn::Add, Expr::Binary { op: BinaryFn::Dot, a, b }) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let sum = self.get(local, at)?;
                self.dot(sum, a, b)?
            }
            (BinaryFn::Add, Expr::Binary { op: BinaryFn::Mul, a, b }) if float => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let sum = self.get(local, at)?;
                let value = self.fma(a, b, sum)?;
                self.round(value, dtype)?
            }
            _ => {
                let value = self.eval(value)?;
                let sum = self.get(local, at)?;
                self.binary(op, dtype, sum, value)?
            }
        };
        self.set(local, at, result)
    }
}

fn assigned(bodies: &[&[Stmt]]) -> Vec<Local> {
    let mut locals = HashSet::new();
    for body in bodies {
        visit::stmts(body, &mut |stmt| {
            if let Stmt::Set { local, .. } | Stmt::Accumulate { local, .. } = stmt {
                locals.insert(*local);
            }
        });
    }
    let mut locals: Vec<Local> = locals.into_iter().collect();
    // In one order: the same kernel gives the same code.
    locals.sort();
    locals
}
