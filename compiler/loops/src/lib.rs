//! The loop IR: one small grammar between fusion groups and machine code.
//!
//! ```text
//! kernel  = name, tuning, buffers, locals, tiles, body
//! stmt    = for var in lo..hi step kind { stmt* }      kind = serial | parallel | vector | unrolled
//!         | let var = expr
//!         | buf[index] = expr                          store
//!         | local[index, ..] = expr                    set
//!         | local[index, ..] op= expr                  accumulate
//!         | if expr { stmt* } else { stmt* }
//!         | fail unless expr                           run-time check, ends the kernel with an error
//!         | prefetch buf[index]                        a hint: that element will be read soon
//!         | zero, load, store or dot of tiles          see `tiles.rs`
//! expr    = const | index | var | buf[index] | word(buf[index]) | local[index, ..]
//!         | unary | binary | compare | select | cast | fma | quad(expr, expr, expr, expr)
//! index   = sum of dim * term + dim                    term = var | floordiv(index, dim) | mod(index, dim)
//! ```
//!
//! A *buffer* is memory that a caller passes in, or of the kernel's own frame: a flat array of elements. A *local* is a small array of
//! registers: after unrolling, every index into it is a constant or the vector loop's own index. A vector
//! loop runs its constant number of lanes at once; its body is straight-line. Indices are 64-bit
//! integers, affine in the loop variables with coefficients that may be symbolic dims, so that two back
//! ends can form addresses by strength reduction.
//!
//! This module knows neither ONNX nor a machine: widths and tile sizes come from [`onnxc_machine::target`].

pub mod expr;
pub mod index;
pub mod interp;
pub mod lower;
pub mod math;
pub mod nest;
pub mod parse;
pub mod print;
pub mod program;
#[cfg(test)]
mod tests;
mod text;
pub mod tiles;
pub mod verify;
pub mod visit;
pub mod work;

use cranelift_entity::{PrimaryMap, entity_impl};

pub use expr::Expr;

use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::BinaryFn;
use onnxc_tuning::Tuned;
use tiles::{Tile, TileDecl, TileStmt};

/// A buffer parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buf(u32);
entity_impl!(Buf, "b");

/// A local: an array of registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Local(u32);
entity_impl!(Local, "r");

/// A loop variable or a let-bound value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(u32);
entity_impl!(Var, "i");

/// One compiled function: the code of a fusion group.
///
/// Symbols in [`Dim`]s are those of the graph; a kernel is called with their run-time values. When the
/// outermost statement is a `parallel` loop (it is then the only statement that writes), the caller may run
/// disjoint parts of its range on several threads.
///
/// Calling convention of the compiled function, C ABI of the target:
/// `int32_t kernel(void *const *buffers, const int64_t *dims, int64_t lo, int64_t hi)`: one pointer per buffer but those
/// of the frame, which come last,
/// the run-time values of all graph symbols by number, and the part of the parallel range to run (ignored
/// without one). The result is 0, or the code of the `check` that failed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Kernel {
    pub name: String,
    /// The numbers that its lowering took, and those of each stage of a chain; they change nothing by themselves.
    pub tuning: Vec<Tuned>,
    pub buffers: PrimaryMap<Buf, Buffer>,
    pub locals: PrimaryMap<Local, LocalDecl>,
    pub tiles: PrimaryMap<Tile, TileDecl>,
    pub vars: PrimaryMap<Var, VarDecl>,
    pub body: Vec<Stmt>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    pub name: String,
    pub dtype: DType,
    /// Elements.
    pub len: Dim,
    pub access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
    /// Memory of one call of the kernel, of a constant number of elements; unspecified at first.
    Frame,
}

impl Access {
    /// The word of the text form.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "readwrite",
            Access::Frame => "frame",
        }
    }
}

/// An array of registers. The last extent is held in vectors of `lanes` elements (it is a multiple of
/// `lanes`); `lanes` is 1 for scalars.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LocalDecl {
    pub name: String,
    pub dtype: DType,
    pub extents: Vec<usize>,
    pub lanes: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VarDecl {
    pub name: String,
    /// I64 for loop variables; the type of the bound value for lets.
    pub dtype: DType,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LoopKind {
    Serial,
    /// Iterations are independent.
    Parallel,
    /// Constant extent: the lanes of one vector register of the body's element type (or several).
    /// Every statement of the body runs for all lanes at once; iterations are independent.
    Vector,
    /// Constant extent, expanded when code is generated.
    Unrolled,
}

impl LoopKind {
    /// The word of the text form.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LoopKind::Serial => "serial",
            LoopKind::Parallel => "parallel",
            LoopKind::Vector => "vector",
            LoopKind::Unrolled => "unrolled",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stmt {
    For {
        var: Var,
        lo: Index,
        hi: Index,
        step: i64,
        kind: LoopKind,
        body: Vec<Stmt>,
    },
    Let {
        var: Var,
        value: Expr,
    },
    Store {
        buf: Buf,
        index: Index,
        value: Expr,
    },
    Set {
        local: Local,
        at: Vec<Index>,
        value: Expr,
    },
    /// `local[at] = op(local[at], value)`; `add` of a product is one fused multiply-add where the target
    /// has it.
    Accumulate {
        local: Local,
        at: Vec<Index>,
        op: BinaryFn,
        value: Expr,
    },
    If {
        condition: Expr,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    /// Ends the kernel with the error `code` unless the condition holds.
    Check {
        condition: Expr,
        code: u32,
    },
    /// A hint that changes no value: the cache line of this element will be read soon. The index may lie outside of
    /// the buffer.
    Prefetch {
        buf: Buf,
        index: Index,
    },
    Tile(TileStmt),
}

/// A factor of an index.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Term {
    /// A loop variable or an i64 let.
    Var(Var),
    FloorDiv(Box<Index>, Dim),
    Mod(Box<Index>, Dim),
}

/// An affine index: `sum(coefficient * term) + constant`, in canonical form (terms sorted, distinct, no
/// zero coefficients).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Index {
    pub terms: Vec<(Term, Dim)>,
    pub constant: Dim,
}

impl Kernel {
    /// The buffers that a caller gives: all but those of the frame.
    pub fn operands(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.values().filter(|buffer| buffer.access != Access::Frame)
    }

    pub fn new(name: impl Into<String>) -> Kernel {
        Kernel { name: name.into(), ..Kernel::default() }
    }

    /// A fresh loop variable.
    pub fn loop_var(&mut self, name: &str) -> Var {
        self.vars.push(VarDecl { name: name.to_string(), dtype: DType::I64 })
    }

    /// A fresh let variable.
    pub fn let_var(&mut self, name: &str, dtype: DType) -> Var {
        self.vars.push(VarDecl { name: name.to_string(), dtype })
    }

    pub fn local(&mut self, name: &str, dtype: DType, extents: &[usize], lanes: usize) -> Local {
        self.locals.push(LocalDecl { name: name.to_string(), dtype, extents: extents.to_vec(), lanes })
    }

    /// Range of the outermost loop when that loop is parallel; a caller may then run disjoint parts of it.
    pub fn parallel_range(&self) -> Option<(&Dim, &Dim)> {
        match self.body.as_slice() {
            [Stmt::For { lo, hi, step: 1, kind: LoopKind::Parallel, .. }] => {
                Some((lo.as_dim()?, hi.as_dim()?))
            }
            _ => None,
        }
    }
}
