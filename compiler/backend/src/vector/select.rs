//! Loop IR to vector IR: statements and loops. `locals.rs` keeps locals in registers, `lanes.rs` says how many lanes run at
//! once, `address.rs` forms addresses, `value.rs` evaluates expressions, `arith.rs` has the functions of floats and those
//! that all numbers have, `integer.rs` those of integers, `cast.rs` conversions, `narrow.rs` the floats of 16 bits and less,
//! `memory.rs` loads and stores, `table.rs` numbers of few bits, `tiles.rs` tiles.
//!
//! A kernel is taken whole or not at all: where the machine has neither an instruction nor a form lane by lane, it is
//! refused. The loop IR's locals and lets become SSA values; a loop passes on the locals that it changes as parameters of
//! its header.

mod address;
mod arith;
mod cast;
mod integer;
mod lanes;
mod locals;
mod memory;
mod narrow;
mod table;
mod tiles;
mod value;

use std::collections::HashMap;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};

use address::Scope;
use value::{Form, Val, ValKind};

use onnxc_ir::graph::dim::Monomial;
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::CompareFn;
use onnxc_loops::{Access, Buf, Expr, Index, Kernel, Local, LoopKind, Stmt, Var};
use onnxc_machine::vector::ir::{
    Binary, Block, BlockId, Class, Cond, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, Small,
};
use onnxc_machine::vector::isa::Isa;

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
        register_lanes: lanes::register_lanes(kernel, isa),
        bases: HashMap::new(),
        ramps: HashMap::new(),
        symbols: params[1],
        dims: HashMap::new(),
        sums: HashMap::new(),
        scopes: vec![Scope::default()],
        group: None,
    };
    // Variables bound here are numbered after the kernel's own, so that one may stand in place of the other.
    for _ in 0..kernel.vars.len() {
        cx.instances.push(Instance { value: Value::Unbound, depth: 0, extent: None });
    }
    let pointers = params[0];
    for (buf, buffer) in kernel.buffers.iter() {
        if Form::of(buffer.dtype).is_err() || buffer.dtype == DType::C128 && isa.lanes_of(2, 8).is_none() {
            return refuse(format!("a buffer of {}", buffer.dtype));
        }
        if buffer.access == Access::Frame {
            continue;
        }
        let mem = Mem::at(pointers, 8 * buf.index() as i32);
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
    pub value: Value,
    /// Loops around its definition.
    pub depth: usize,
    /// It is below this, where that is known, and never negative.
    pub extent: Option<Dim>,
}

#[derive(Clone, Copy)]
pub enum Value {
    /// A variable of the kernel itself.
    Unbound,
    /// In a general register.
    Int(Reg),
    /// A scalar that was computed from data.
    Scalar(Reg),
    /// The lane of a vector loop.
    Lane,
    /// What a let in a vector loop computes from data: one integer for each lane.
    Lanes(Reg),
}

/// The lanes of a vector loop that are being selected: `lanes` of them from `base` on.
#[derive(Clone)]
pub struct LaneRange {
    pub lane: Var,
    pub base: Index,
    pub lanes: usize,
    /// A value common to all lanes is widened in it beyond a vector of these lanes: such values stay scalars.
    pub widens: bool,
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
    /// How many elements each of them holds.
    register_lanes: SecondaryMap<Local, usize>,
    pub bases: HashMap<Buf, Reg>,
    /// Vectors of rising floats in the first block, by the bits of the first one.
    ramps: HashMap<u64, Reg>,
    /// Address of the values of the graph's symbols, and the dims computed from them, in the first block.
    pub symbols: Reg,
    pub dims: HashMap<Dim, Reg>,
    /// Sums of terms: that of all but the last, and the last one.
    pub sums: HashMap<(Option<Reg>, Monomial, i64), Reg>,
    /// What has been computed in the open loops and branches, outermost first.
    pub scopes: Vec<Scope>,
    pub group: Option<LaneRange>,
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
        let count = self.group.as_ref().map_or(1, |group| group.lanes);
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
                    let (lo, hi) = (self.resolve(lo)?, self.resolve(hi)?);
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
            Stmt::Check { condition, code } => self.check(condition, *code),
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
    pub fn instance(&mut self, value: Value, extent: Option<Dim>) -> Var {
        let depth = self.scopes.len();
        self.instances.push(Instance { value, depth, extent })
    }

    fn bind(&mut self, var: Var, value: &Expr) -> Selected<()> {
        if let Expr::Index(index) = value {
            let index = self.resolve(index)?;
            let index = if index.divides() && !self.varies(&index) {
                let reg = self.sum(&index)?;
                Index::var(self.instance(Value::Int(reg), None))
            } else {
                index
            };
            self.env.insert(var, index);
            return Ok(());
        }
        if let Some(reg) = self.loaded_index(value)? {
            let index = Index::var(self.instance(Value::Int(reg), None));
            self.env.insert(var, index);
            return Ok(());
        }
        let value = self.eval(value)?;
        if self.kernel.vars[var].dtype == DType::I64 {
            let index = match value.kind {
                ValKind::Const(bits) => Index::int(bits as i64),
                ValKind::Scalar(reg) => Index::var(self.instance(Value::Scalar(reg), None)),
                ValKind::Vector(reg) => Index::var(self.instance(Value::Lanes(reg), None)),
            };
            self.env.insert(var, index);
        }
        self.lets.insert(var, value);
        Ok(())
    }

    /// An index that is loaded, in a general register.
    fn loaded_index(&mut self, value: &Expr) -> Selected<Option<Reg>> {
        let (load, widened) = match value {
            Expr::Cast { to: DType::I64, x, .. } => (x.as_ref(), true),
            other => (other, false),
        };
        let Expr::Load { buf, index } = load else { return Ok(None) };
        let op = match (self.kernel.buffers[*buf].dtype, widened) {
            (DType::I64, _) => Op::LoadInt,
            (DType::I32, true) => Op::LoadInt32,
            (DType::U8, true) => Op::LoadPart(Small::U8),
            (DType::U16, true) => Op::LoadPart(Small::U16),
            _ => return Ok(None),
        };
        let index = self.resolve(index)?;
        if self.varies(&index) {
            return Ok(None);
        }
        let mem = self.mem(*buf, &index)?;
        Ok(Some(self.inst(op, Class::Int, vec![], Some(mem))))
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
        let instance = self.instance(Value::Int(counter), extent);
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
        let Some(extent) = lanes::extent(&lo, &hi) else {
            return refuse("a vector loop without a constant number of lanes");
        };
        let lanes = lanes::group_lanes(self.kernel, self.isa, &self.register_lanes, var, extent, body);
        let Some(lanes) = lanes else { return refuse("vectors of two lanes of 64 bits") };
        let widens = self.isa.lanes_of(lanes, 8).is_none() && lanes::widens(self.kernel, body);
        for first in (0..extent).step_by(lanes) {
            let base = lo.add_dim(&Dim::from(first));
            if lanes == 1 {
                self.env.insert(var, base);
            } else {
                let lane = self.instance(Value::Lane, None);
                self.env.insert(var, Index::var(lane));
                self.group = Some(LaneRange { lane, base, lanes, widens });
            }
            let result = self.body(body, None);
            self.group = None;
            result?;
        }
        self.env.remove(&var);
        Ok(())
    }

    fn branch(&mut self, condition: &Expr, then: &[Stmt], otherwise: &[Stmt]) -> Selected<()> {
        let (cond, a, b) = match self.condition(condition)? {
            Test::Known(holds) => return self.body(if holds { then } else { otherwise }, None),
            Test::Branch(cond, a, b) => (cond, a, b),
        };
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

    /// A comparison of indices, or data: a bool that is not the same as 0.
    fn condition(&mut self, condition: &Expr) -> Selected<Test> {
        if let Expr::Compare { op, a, b } = condition
            && let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b)
            && let (a, b) = (self.resolve(a)?, self.resolve(b)?)
            && !self.varies(&a)
            && !self.varies(&b)
        {
            let (a, b, cond) = match op {
                CompareFn::Lt => (a, b, Cond::Lt),
                CompareFn::Ge => (a, b, Cond::Ge),
                CompareFn::Gt => (b, a, Cond::Lt),
                CompareFn::Le => (b, a, Cond::Ge),
                CompareFn::Eq => (a, b, Cond::Eq),
                CompareFn::Ne => (a, b, Cond::Ne),
            };
            return Ok(Test::Branch(cond, self.sum(&a)?, self.operand(&b)?));
        }
        let value = self.eval(condition)?;
        if let Some(bit) = value.as_bits() {
            return Ok(Test::Known(bit != 0));
        }
        let bits = self.mask_as_bits(value)?;
        let mut all = self.lane_of(bits, 0)?;
        // It holds where it does for all lanes.
        for lane in 1..self.group.as_ref().filter(|_| bits.is_vector()).map_or(1, |group| group.lanes) {
            let other = self.lane_of(bits, lane)?;
            all = self.vec(Op::Binary(Binary::And, Lanes::X1), vec![all, other]);
        }
        let all = self.int(Op::ToGeneral(Lanes::X1), vec![all]);
        Ok(Test::Branch(Cond::Ne, all, Operand::Imm(0)))
    }

    /// Returns a code unless the condition holds.
    fn check(&mut self, condition: &Expr, code: u32) -> Selected<()> {
        let (fail, next) = match self.condition(condition)? {
            Test::Known(true) => return Ok(()),
            // What follows is not reached, but has to be selected all the same.
            Test::Known(false) => {
                let zero = self.int(Op::Int(0), vec![]);
                self.check_branch(Cond::Ne, zero, Operand::Imm(0))
            }
            Test::Branch(cond, a, b) => self.check_branch(cond, a, b),
        };
        self.func.blocks[fail].end = End::Return(code as i32);
        self.block = next;
        Ok(())
    }

    fn check_branch(&mut self, cond: Cond, a: Reg, b: Operand) -> (BlockId, BlockId) {
        let (fail, next) = (self.new_block(vec![]), self.new_block(vec![]));
        self.end(End::Branch { cond, a, b, then: next, otherwise: fail }, next);
        (fail, next)
    }
}

/// What decides a branch.
enum Test {
    Known(bool),
    Branch(Cond, Reg, Operand),
}
