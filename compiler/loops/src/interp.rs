//! The loop IR interpreter: runs a kernel one element at a time, with every access checked. It is the oracle between
//! lowering and code generation: a kernel that is right here and wrong in machine code is a code generation bug.

mod tiles;

use std::collections::HashMap;

use crate::tiles::Tile;
use crate::{Access, Buf, Expr, Index, Kernel, Local, Stmt, Term, Var};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, MapFn, Op, Sym, Tensor};
use onnxc_ir::interp;

/// What a kernel call gives: 0, or the code of the check that failed.
pub type Code = u32;

/// What the memory of a kernel's frame holds at first.
const UNSPECIFIED: u8 = 0xd5;

/// Runs a kernel on its buffers, which are flat byte arrays of the declared lengths; `symbols` gives the run-time
/// values of dims. An access outside its buffer is an internal error that names it.
pub fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], symbols: &dyn Fn(Sym) -> Option<i64>) -> Result<Code> {
    let locals = kernel.locals.iter().map(|(local, decl)| {
        let count: usize = decl.extents.iter().product();
        (local, vec![scalar(&Expr::constant(decl.dtype, 0.0)); count])
    });
    let locals = locals.collect();
    let (vars, frames, tiles) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut machine = Machine { kernel, buffers, symbols, vars, locals, frames, tiles };
    for (at, (buf, buffer)) in kernel.buffers.iter().enumerate() {
        let bytes = machine.dim(&buffer.len)? as usize * buffer.dtype.size();
        if buffer.access == Access::Frame {
            machine.frames.insert(buf, vec![UNSPECIFIED; bytes]);
            continue;
        }
        if machine.buffers.get(at).map_or(0, Vec::len) < bytes {
            return fail(format!("buffer {} needs {bytes} bytes", buffer.name));
        }
    }
    machine.block(&kernel.body)
}

fn fail<T>(message: String) -> Result<T> {
    Err(Error::internal(Stage::Loops, message))
}

fn scalar(expr: &Expr) -> Tensor {
    match expr {
        Expr::Const { dtype, bits } => {
            let data = bits.to_le_bytes()[..dtype.size()].to_vec();
            Tensor::new(*dtype, vec![], data.into())
        }
        _ => unreachable!("constants only"),
    }
}

struct Machine<'a> {
    kernel: &'a Kernel,
    buffers: &'a mut [Vec<u8>],
    symbols: &'a dyn Fn(Sym) -> Option<i64>,
    vars: HashMap<Var, Tensor>,
    locals: HashMap<Local, Vec<Tensor>>,
    /// The kernel's own memory.
    frames: HashMap<Buf, Vec<u8>>,
    /// Elements of the tiles that hold any.
    tiles: HashMap<Tile, Vec<i32>>,
}

impl Machine<'_> {
    fn dim(&self, dim: &Dim) -> Result<i64> {
        match dim.eval(self.symbols) {
            Some(value) => Ok(value),
            None => fail(format!("the dim {dim} has no value")),
        }
    }

    fn index(&self, index: &Index) -> Result<i64> {
        let mut sum = self.dim(&index.constant)?;
        for (term, coefficient) in &index.terms {
            let value = match term {
                Term::Var(var) => match self.vars.get(var).and_then(Tensor::to_i64s) {
                    Some(value) => value[0],
                    None => return fail(format!("{var} is read before it is bound")),
                },
                Term::FloorDiv(x, by) => self.dividend(x)? / self.dim(by)?.max(1),
                Term::Mod(x, by) => self.dividend(x)? % self.dim(by)?.max(1),
            };
            sum += value * self.dim(coefficient)?;
        }
        Ok(sum)
    }

    /// What is divided is never negative: machine code divides without sign.
    fn dividend(&self, index: &Index) -> Result<i64> {
        match self.index(index)? {
            value if value < 0 => fail(format!("{index} is divided, and is {value}")),
            value => Ok(value),
        }
    }

    fn block(&mut self, body: &[Stmt]) -> Result<Code> {
        for stmt in body {
            match self.stmt(stmt)? {
                0 => {}
                code => return Ok(code),
            }
        }
        Ok(0)
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<Code> {
        match stmt {
            Stmt::For { var, lo, hi, step, body, .. } => {
                let (mut at, end) = (self.index(lo)?, self.index(hi)?);
                while at < end {
                    self.vars.insert(*var, Tensor::scalar(at));
                    match self.block(body)? {
                        0 => at += step,
                        code => return Ok(code),
                    }
                }
            }
            Stmt::Let { var, value } => {
                let value = self.eval(value)?;
                self.vars.insert(*var, value);
            }
            Stmt::Store { buf, index, value } => {
                let value = self.eval(value)?;
                let decl = &self.kernel.buffers[*buf];
                if decl.access == Access::Read || decl.dtype != value.dtype {
                    return fail(format!("store of {} to the buffer {} ({buf})", value.dtype, decl.name));
                }
                let at = self.element(*buf, index)?;
                let size = decl.dtype.size();
                self.bytes_mut(*buf)[at..at + size].copy_from_slice(&value.data);
            }
            Stmt::Set { local, at, value } => {
                let value = self.eval(value)?;
                let at = self.register(*local, at)?;
                self.locals.get_mut(local).expect("all locals exist")[at] = value;
            }
            Stmt::Accumulate { local, at, op, value } => {
                let value = self.eval(value)?;
                let at = self.register(*local, at)?;
                let old = self.locals[local][at].clone();
                let new = map(MapFn::Binary(*op), &[&old, &value])?;
                self.locals.get_mut(local).expect("all locals exist")[at] = new;
            }
            Stmt::If { condition, then, otherwise } => {
                let taken = if self.truth(condition)? { then } else { otherwise };
                return self.block(taken);
            }
            Stmt::Prefetch { .. } => {}
            Stmt::Tile(stmt) => self.tile_stmt(stmt)?,
            Stmt::Check { condition, code } => {
                if !self.truth(condition)? {
                    return Ok(*code);
                }
            }
        }
        Ok(0)
    }

    fn bytes(&self, buf: Buf) -> &[u8] {
        self.frames.get(&buf).unwrap_or_else(|| &self.buffers[buf.as_u32() as usize])
    }

    fn bytes_mut(&mut self, buf: Buf) -> &mut [u8] {
        let buffers = &mut *self.buffers;
        self.frames.get_mut(&buf).unwrap_or_else(|| &mut buffers[buf.as_u32() as usize])
    }

    fn truth(&mut self, condition: &Expr) -> Result<bool> {
        Ok(self.eval(condition)?.data[0] != 0)
    }

    /// Byte offset of an element.
    fn element(&self, buf: Buf, index: &Index) -> Result<usize> {
        let decl = &self.kernel.buffers[buf];
        let (at, len) = (self.index(index)?, self.dim(&decl.len)?);
        if !(0..len).contains(&at) {
            return fail(format!("element {at} of the buffer {} of {len} ({})", decl.name, self.kernel.name));
        }
        Ok(at as usize * decl.dtype.size())
    }

    fn register(&self, local: Local, at: &[Index]) -> Result<usize> {
        let decl = &self.kernel.locals[local];
        let mut offset = 0;
        for (index, &extent) in at.iter().zip(&decl.extents) {
            let index = self.index(index)?;
            if !(0..extent as i64).contains(&index) {
                return fail(format!("register {index} of {extent} of {}", decl.name));
            }
            offset = offset * extent + index as usize;
        }
        Ok(offset)
    }

    fn eval(&mut self, expr: &Expr) -> Result<Tensor> {
        match expr {
            Expr::Const { .. } => Ok(scalar(expr)),
            Expr::Index(index) => Ok(Tensor::scalar(self.index(index)?)),
            Expr::Var(var) => match self.vars.get(var) {
                Some(value) => Ok(value.clone()),
                None => fail(format!("{var} is read before it is bound")),
            },
            Expr::Load { buf, index } => {
                let dtype = self.kernel.buffers[*buf].dtype;
                let at = self.element(*buf, index)?;
                let data = self.bytes(*buf)[at..at + dtype.size()].to_vec();
                Ok(Tensor::new(dtype, vec![], data.into()))
            }
            Expr::Word { buf, index } => {
                let size = self.kernel.buffers[*buf].dtype.size();
                let mut bytes = Vec::with_capacity(4);
                for element in 0..4 / size {
                    let at = self.element(*buf, &index.add(&Index::int(element as i64)))?;
                    bytes.extend_from_slice(&self.bytes(*buf)[at..at + size]);
                }
                Ok(Tensor::new(DType::I32, vec![], bytes.into()))
            }
            Expr::Quad { bytes } => {
                let bytes = bytes.iter().map(|byte| Ok(self.eval(byte)?.data[0]));
                Ok(Tensor::new(DType::I32, vec![], bytes.collect::<Result<Vec<u8>>>()?.into()))
            }
            Expr::Get { local, at } => {
                let at = self.register(*local, at)?;
                Ok(self.locals[local][at].clone())
            }
            // All operands are evaluated, also both sides of a choice, as in machine code: none may load what does not exist.
            _ => {
                let Some(function) = expr.function() else { return fail(format!("no value of {expr}")) };
                let operands = expr.operands().into_iter();
                let values = operands.map(|operand| self.eval(operand)).collect::<Result<Vec<_>>>()?;
                map(function, &values.iter().collect::<Vec<_>>())
            }
        }
    }
}

fn map(function: MapFn, operands: &[&Tensor]) -> Result<Tensor> {
    Ok(interp::eval(&Op::Map(function), operands)?.remove(0))
}
