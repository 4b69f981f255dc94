mod arith;
mod cast;
mod control;
mod gemm;
mod operations;

use super::testing::*;
use onnxc_ir::graph::{DType, Dim};
use onnxc_loops::*;

fn buffer(kernel: &mut Kernel, name: &str, dtype: DType, len: impl Into<Dim>, access: Access) -> Buf {
    kernel.buffers.push(Buffer { name: name.to_string(), dtype, len: len.into(), access })
}

fn for_(var: Var, lo: impl Into<Dim>, hi: impl Into<Dim>, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
    Stmt::For { var, lo: Index::dim(lo.into()), hi: Index::dim(hi.into()), step: 1, kind, body }
}

/// `var * by`.
fn scaled(var: Var, by: impl Into<Dim>) -> Index {
    Index::var(var).scale(&by.into())
}

fn load(buf: Buf, index: Index) -> Expr {
    Expr::Load { buf, index }
}
