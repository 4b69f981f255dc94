//! The loop IR interpreter: runs a kernel one element at a time, with every access checked. It is the oracle between
//! lowering and code generation: a kernel that is right here and wrong in machine code is a code generation bug.

mod tiles;

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::tiles::Tile;
use crate::{Access, Buf, Expr, Index, Kernel, Local, Stmt, Term, Var};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::eval::{Single, map_single};
use onnxc_ir::graph::{DType, Dim, MapFn, Sym};

/// What a kernel call gives: 0, or the code of the check that failed.
pub type Code = u32;

/// What the memory of a kernel's frame holds at first.
const UNSPECIFIED: u8 = 0xd5;

/// Runs a kernel on its buffers, which are flat byte arrays of the declared lengths; `symbols` gives the run-time
/// values of dims. An access outside its buffer is an internal error that names it.
pub fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], symbols: &dyn Fn(Sym) -> Option<i64>) -> Result<Code> {
    let mut locals: SecondaryMap<Local, Vec<Single>> = SecondaryMap::new();
    for (local, decl) in &kernel.locals {
        let count: usize = decl.extents.iter().product();
        locals[local] = vec![Single::zero(decl.dtype); count];
    }
    let (vars, frames, tiles) = (SecondaryMap::new(), SecondaryMap::new(), SecondaryMap::new());
    let mut machine = NestRun { kernel, buffers, symbols, vars, locals, frames, tiles };
    for (at, (buf, buffer)) in kernel.buffers.iter().enumerate() {
        let bytes = machine.dim(&buffer.len)? as usize * buffer.dtype.size();
        if buffer.access == Access::Frame {
            machine.frames[buf] = Some(vec![UNSPECIFIED; bytes]);
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

fn integer(value: i64) -> Single {
    Single::new(DType::I64, &value.to_le_bytes())
}

/// A variable in an index.
fn as_index(value: &Single) -> Result<i64> {
    let wide = match value.dtype {
        DType::I64 => *value,
        dtype if dtype.is_float() => return fail(format!("a variable of {dtype} in an index")),
        _ => map_single(MapFn::Cast { to: DType::I64, saturate: false }, &[*value])?,
    };
    Ok(i64::from_le_bytes(wide.data().try_into().expect("eight bytes")))
}

struct NestRun<'a> {
    kernel: &'a Kernel,
    buffers: &'a mut [Vec<u8>],
    symbols: &'a dyn Fn(Sym) -> Option<i64>,
    /// Those that are bound.
    vars: SecondaryMap<Var, Option<Single>>,
    locals: SecondaryMap<Local, Vec<Single>>,
    /// The kernel's own memory.
    frames: SecondaryMap<Buf, Option<Vec<u8>>>,
    /// Elements of the tiles that hold any.
    tiles: SecondaryMap<Tile, Option<Vec<i32>>>,
}

impl NestRun<'_> {
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
                Term::Var(var) => match &self.vars[*var] {
                    Some(value) => as_index(value)?,
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
                    self.vars[*var] = Some(integer(at));
                    match self.block(body)? {
                        0 => at += step,
                        code => return Ok(code),
                    }
                }
            }
            Stmt::Let { var, value } => {
                let value = self.eval(value)?;
                self.vars[*var] = Some(value);
            }
            Stmt::Store { buf, index, value } => {
                let value = self.eval(value)?;
                let decl = &self.kernel.buffers[*buf];
                if decl.access == Access::Read || decl.dtype != value.dtype {
                    return fail(format!("store of {} to the buffer {} ({buf})", value.dtype, decl.name));
                }
                let at = self.element(*buf, index)?;
                let size = decl.dtype.size();
                self.bytes_mut(*buf)[at..at + size].copy_from_slice(value.data());
            }
            Stmt::Set { local, at, value } => {
                let value = self.eval(value)?;
                let at = self.register(*local, at)?;
                self.locals[*local][at] = value;
            }
            Stmt::Accumulate { local, at, op, value } => {
                let value = self.eval(value)?;
                let at = self.register(*local, at)?;
                let old = self.locals[*local][at];
                self.locals[*local][at] = map_single(MapFn::Binary(*op), &[old, value])?;
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
        self.frames[buf].as_ref().unwrap_or_else(|| &self.buffers[buf.index()])
    }

    fn bytes_mut(&mut self, buf: Buf) -> &mut [u8] {
        let buffers = &mut *self.buffers;
        self.frames[buf].as_mut().unwrap_or_else(|| &mut buffers[buf.index()])
    }

    fn truth(&mut self, condition: &Expr) -> Result<bool> {
        Ok(self.eval(condition)?.data()[0] != 0)
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

    fn eval(&mut self, expr: &Expr) -> Result<Single> {
        match expr {
            Expr::Const { dtype, bits } => Ok(Single::new(*dtype, &bits.to_le_bytes()[..dtype.size()])),
            Expr::Index(index) => Ok(integer(self.index(index)?)),
            Expr::Var(var) => match self.vars[*var] {
                Some(value) => Ok(value),
                None => fail(format!("{var} is read before it is bound")),
            },
            Expr::Load { buf, index } => {
                let dtype = self.kernel.buffers[*buf].dtype;
                let at = self.element(*buf, index)?;
                Ok(Single::new(dtype, &self.bytes(*buf)[at..at + dtype.size()]))
            }
            Expr::Word { buf, index } => {
                let size = self.kernel.buffers[*buf].dtype.size();
                let mut bytes = [0; 4];
                for (element, bytes) in bytes.chunks_exact_mut(size).enumerate() {
                    let at = self.element(*buf, &index.add(&Index::int(element as i64)))?;
                    bytes.copy_from_slice(&self.bytes(*buf)[at..at + size]);
                }
                Ok(Single::new(DType::I32, &bytes))
            }
            Expr::Quad { bytes } => {
                let mut quad = [0; 4];
                for (at, byte) in quad.iter_mut().zip(bytes.iter()) {
                    *at = self.eval(byte)?.data()[0];
                }
                Ok(Single::new(DType::I32, &quad))
            }
            Expr::Get { local, at } => {
                let at = self.register(*local, at)?;
                Ok(self.locals[*local][at])
            }
            // All operands are evaluated, also both sides of a choice, as in machine code: none may load what does not exist.
            Expr::Unary { .. }
            | Expr::Binary { .. }
            | Expr::Fma { .. }
            | Expr::Compare { .. }
            | Expr::Select { .. }
            | Expr::Cast { .. }
            | Expr::Bitcast { .. } => {
                let Some(function) = expr.function() else { return fail(format!("no value of {expr}")) };
                let operands = expr.operands().into_iter();
                let values = operands.map(|operand| self.eval(operand)).collect::<Result<Vec<_>>>()?;
                map_single(function, &values)
            }
        }
    }
}
