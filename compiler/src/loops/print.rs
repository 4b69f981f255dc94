//! Loop IR as text, for people.

use std::fmt::{self, Display, Formatter, Write};

use crate::graph::{DType, Dim};
use crate::interp;
use crate::loops::{Access, Expr, Index, Kernel, LoopKind, Stmt, Term};
use crate::scalar::BinaryFn;

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} {{", self.name)?;
        for (buf, buffer) in self.buffers.iter() {
            let access = match buffer.access {
                Access::Read => "read",
                Access::Write => "write",
                Access::ReadWrite => "readwrite",
            };
            writeln!(f, "  {access} {buf}: {}[{}]  // {}", buffer.dtype, buffer.len, buffer.name)?;
        }
        for (local, decl) in self.locals.iter() {
            write!(f, "  local {local}: {}{:?}", decl.dtype, decl.extents)?;
            if decl.lanes > 1 {
                write!(f, " x{}", decl.lanes)?;
            }
            writeln!(f, "  // {}", decl.name)?;
        }
        statements(self, f, &self.body, 1)?;
        writeln!(f, "}}")
    }
}

fn statements(kernel: &Kernel, f: &mut Formatter<'_>, body: &[Stmt], depth: usize) -> fmt::Result {
    body.iter().try_for_each(|stmt| statement(kernel, f, stmt, depth))
}

fn statement(kernel: &Kernel, f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    match stmt {
        Stmt::For { var, lo, hi, step, kind, body } => {
            let kind = match kind {
                LoopKind::Serial => "for",
                LoopKind::Parallel => "parallel",
                LoopKind::Vector => "vector",
                LoopKind::Unrolled => "unrolled",
            };
            write!(f, "{pad}{kind} {var} in {lo}..{hi}")?;
            if *step != 1 {
                write!(f, " step {step}")?;
            }
            writeln!(f, " {{")?;
            statements(kernel, f, body, depth + 1)?;
            writeln!(f, "{pad}}}")
        }
        Stmt::Let { var, value } => writeln!(f, "{pad}let {var}: {} = {value}", kernel.vars[*var].dtype),
        Stmt::Store { buf, index, value } => writeln!(f, "{pad}{buf}[{index}] = {value}"),
        Stmt::Set { local, at, value } => writeln!(f, "{pad}{local}{} = {value}", Subscript(at)),
        Stmt::Accumulate { local, at, op, value } => match symbol(*op) {
            Some(symbol) => writeln!(f, "{pad}{local}{} {symbol}= {value}", Subscript(at)),
            None => writeln!(f, "{pad}{local}{} = {op}({local}{}, {value})", Subscript(at), Subscript(at)),
        },
        Stmt::If { condition, then, otherwise } => {
            writeln!(f, "{pad}if {condition} {{")?;
            statements(kernel, f, then, depth + 1)?;
            if !otherwise.is_empty() {
                writeln!(f, "{pad}}} else {{")?;
                statements(kernel, f, otherwise, depth + 1)?;
            }
            writeln!(f, "{pad}}}")
        }
        Stmt::Check { condition, code } => writeln!(f, "{pad}check {condition} else {code}"),
    }
}

/// Operators that have a sign.
fn symbol(op: BinaryFn) -> Option<char> {
    match op {
        BinaryFn::Add => Some('+'),
        BinaryFn::Sub => Some('-'),
        BinaryFn::Mul => Some('*'),
        BinaryFn::Div => Some('/'),
        _ => None,
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const { dtype, bits } => constant(f, *dtype, *bits),
            Expr::Index(index) => write!(f, "index({index})"),
            Expr::Var(var) => write!(f, "{var}"),
            Expr::Load { buf, index } => write!(f, "{buf}[{index}]"),
            Expr::Get { local, at } => write!(f, "{local}{}", Subscript(at)),
            Expr::Unary { op, x } => write!(f, "{op}({x})"),
            Expr::Binary { op, a, b } => match symbol(*op) {
                Some(symbol) => write!(f, "({a} {symbol} {b})"),
                None => write!(f, "{op}({a}, {b})"),
            },
            Expr::Fma { a, b, c } => write!(f, "fma({a}, {b}, {c})"),
            Expr::Compare { op, a, b } => write!(f, "{op}({a}, {b})"),
            Expr::Select { condition, then, otherwise } => {
                write!(f, "select({condition}, {then}, {otherwise})")
            }
            Expr::Cast { to, saturate, x } => {
                write!(f, "{}.{to}({x})", if *saturate { "cast" } else { "wrap" })
            }
            Expr::Bitcast { to, x } => write!(f, "bitcast.{to}({x})"),
        }
    }
}

/// Numbers in decimal; other types by their bits.
fn constant(f: &mut Formatter<'_>, dtype: DType, bits: u64) -> fmt::Result {
    match dtype {
        DType::F32 => write!(f, "{:?}{dtype}", f32::from_bits(bits as u32)),
        DType::F64 => write!(f, "{:?}{dtype}", f64::from_bits(bits)),
        DType::Bool => write!(f, "{}", bits != 0),
        dtype if dtype.is_int() => {
            let data = bits.to_le_bytes()[..dtype.size()].to_vec();
            let tensor = crate::graph::Tensor::new(dtype, vec![], data.into());
            write!(f, "{}{dtype}", interp::cast(&tensor, DType::I64, true).values::<i64>()[0])
        }
        _ => write!(f, "{bits:#x}{dtype}"),
    }
}

struct Subscript<'a>(&'a [Index]);

impl Display for Subscript<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = self.0.iter().map(Index::to_string).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

impl Display for Index {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, (term, coefficient)) in self.terms.iter().enumerate() {
            if at > 0 {
                f.write_str(" + ")?;
            }
            write!(f, "{term}")?;
            if *coefficient != Dim::ONE {
                f.write_char('*')?;
                dim(f, coefficient)?;
            }
        }
        if self.terms.is_empty() {
            return write!(f, "{}", self.constant);
        }
        if self.constant != Dim::ZERO {
            f.write_str(" + ")?;
            dim(f, &self.constant)?;
        }
        Ok(())
    }
}

/// A dim inside a sum or product.
fn dim(f: &mut Formatter<'_>, dim: &Dim) -> fmt::Result {
    if dim.is_const() || dim.as_sym().is_some() { write!(f, "{dim}") } else { write!(f, "({dim})") }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Term::Var(var) => write!(f, "{var}"),
            Term::FloorDiv(index, by) => write!(f, "({index} floordiv {by})"),
            Term::Mod(index, by) => write!(f, "({index} mod {by})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{DType, Dim};
    use crate::loops::{Access, Buffer, Expr, Index, Kernel, LoopKind, Stmt};
    use crate::scalar::BinaryFn;

    #[test]
    fn kernels_print() {
        let mut kernel = Kernel::new("double");
        let len = Dim::from(8usize);
        let buffer =
            |name: &str, access| Buffer { name: name.into(), dtype: DType::F32, len: len.clone(), access };
        let x = kernel.buffers.push(buffer("v0", Access::Read));
        let y = kernel.buffers.push(buffer("v1", Access::Write));
        let sum = kernel.local("sum", DType::F32, &[2, 8], 4);
        let i = kernel.loop_var("i");
        let load =
            Expr::Load { buf: x, index: Index::var(i).scale(&Dim::from(2usize)).add_dim(&Dim::from(1usize)) };
        let value = Expr::binary(BinaryFn::Max, load.clone(), Expr::constant(DType::F32, 0.5));
        let at = vec![Index::int(1), Index::var(i)];
        let body = vec![
            Stmt::Accumulate { local: sum, at, op: BinaryFn::Add, value: load },
            Stmt::Store { buf: y, index: Index::var(i), value },
        ];
        let (lo, hi, kind) = (Index::zero(), Index::int(8), LoopKind::Vector);
        kernel.body.push(Stmt::For { var: i, lo, hi, step: 1, kind, body });
        let wanted = "kernel double {\n  read b0: f32[8]  // v0\n  write b1: f32[8]  // v1\n  \
                      local r0: f32[2, 8] x4  // sum\n  vector i0 in 0..8 {\n    \
                      r0[1, i0] += b0[i0*2 + 1]\n    b1[i0] = max(b0[i0*2 + 1], 0.5f32)\n  }\n}\n";
        assert_eq!(kernel.to_string(), wanted);
    }
}
