//! The text form of kernels, written. `loops::parse` documents the grammar and reads it.

use std::fmt::{self, Display, Formatter, Write};

use crate::text::Position;
use crate::tiles::{TileDecl, TileStmt};
use crate::{Index, Kernel, LoopKind, Stmt, Term, Var};
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::BinaryFn;

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {:?} {{", self.name)?;
        for tuned in &self.tuning {
            writeln!(f, "  {tuned}")?;
        }
        for (buf, buffer) in self.buffers.iter() {
            let (name, access, dtype, len) = (&buffer.name, buffer.access.name(), buffer.dtype, &buffer.len);
            writeln!(f, "  buffer {buf} {name:?} : {access} {dtype}[{len}]")?;
        }
        for (local, decl) in self.locals.iter() {
            write!(f, "  local {local} {:?} : {}{:?}", decl.name, decl.dtype, decl.extents)?;
            match decl.lanes {
                1 => writeln!(f)?,
                lanes => writeln!(f, " lanes {lanes}")?,
            }
        }
        for (tile, decl) in self.tiles.iter() {
            let TileDecl { name, dtype, rows, columns } = decl;
            writeln!(f, "  tile {tile} {name:?} : {dtype}[{rows}, {columns}]")?;
        }
        Printer { kernel: self, f }.block(&self.body, 1)?;
        writeln!(f, "}}")
    }
}

struct Printer<'a, 'f> {
    kernel: &'a Kernel,
    f: &'a mut Formatter<'f>,
}

impl Printer<'_, '_> {
    fn block(&mut self, body: &[Stmt], depth: usize) -> fmt::Result {
        body.iter().try_for_each(|stmt| self.stmt(stmt, depth))
    }

    fn stmt(&mut self, stmt: &Stmt, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        self.f.write_str(&indent)?;
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                self.f.write_str("for ")?;
                self.bound(*var)?;
                write!(self.f, " in {lo}..{hi}")?;
                if *step != 1 {
                    write!(self.f, " step {step}")?;
                }
                if *kind != LoopKind::Serial {
                    write!(self.f, " {}", kind.name())?;
                }
                writeln!(self.f, " {{")?;
                self.block(body, depth + 1)?;
                write!(self.f, "{indent}}}")?;
            }
            Stmt::Let { var, value } => {
                self.f.write_str("let ")?;
                self.bound(*var)?;
                let dtype = self.kernel.vars.get(*var).map_or(DType::I64, |decl| decl.dtype);
                write!(self.f, " : {dtype} = {value}")?;
            }
            Stmt::Store { buf, index, value } => write!(self.f, "{buf}[{index}] = {value}")?,
            Stmt::Set { local, at, value } => write!(self.f, "{local}{} = {value}", Position(at))?,
            Stmt::Accumulate { local, at, op, value } => {
                let at = Position(at);
                match op {
                    BinaryFn::Add => write!(self.f, "{local}{at} += {value}")?,
                    BinaryFn::Mul => write!(self.f, "{local}{at} *= {value}")?,
                    op => write!(self.f, "{local}{at} {op}= {value}")?,
                }
            }
            Stmt::If { condition, then, otherwise } => {
                writeln!(self.f, "if {condition} {{")?;
                self.block(then, depth + 1)?;
                write!(self.f, "{indent}}}")?;
                if !otherwise.is_empty() {
                    writeln!(self.f, " else {{")?;
                    self.block(otherwise, depth + 1)?;
                    write!(self.f, "{indent}}}")?;
                }
            }
            Stmt::Prefetch { buf, index } => write!(self.f, "prefetch {buf}[{index}]")?,
            Stmt::Tile(stmt) => self.tile(stmt)?,
            Stmt::Check { condition, code } => write!(self.f, "fail {code} unless {condition}")?,
        }
        self.f.write_char('\n')
    }

    fn tile(&mut self, stmt: &TileStmt) -> fmt::Result {
        match stmt {
            TileStmt::Zero { tile } => write!(self.f, "zero {tile}"),
            TileStmt::Load { tile, buf, index, stride } => {
                write!(self.f, "load {tile} = {buf}[{index}] stride {stride}")
            }
            TileStmt::Store { tile, buf, index, stride } => {
                write!(self.f, "store {buf}[{index}] stride {stride} = {tile}")
            }
            TileStmt::Dot { acc, a, b } => write!(self.f, "dot {acc} += {a} * {b}"),
        }
    }

    /// A variable where it is bound.
    fn bound(&mut self, var: Var) -> fmt::Result {
        match self.kernel.vars.get(var).map_or("", |decl| decl.name.as_str()) {
            "" => write!(self.f, "{var}"),
            name => write!(self.f, "{var} {name:?}"),
        }
    }
}

impl Display for Index {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return write!(f, "{}", self.constant);
        }
        for (at, (term, coefficient)) in self.terms.iter().enumerate() {
            let known = coefficient.as_const();
            match (at, known.is_some_and(|value| value < 0)) {
                (0, false) => {}
                (0, true) => f.write_char('-')?,
                (_, false) => f.write_str(" + ")?,
                (_, true) => f.write_str(" - ")?,
            }
            match term {
                Term::Var(var) => write!(f, "{var}")?,
                Term::FloorDiv(x, by) => write!(f, "floordiv({x}, {by})")?,
                Term::Mod(x, by) => write!(f, "mod({x}, {by})")?,
            }
            match known.map(i64::unsigned_abs) {
                Some(1) => {}
                Some(value) => write!(f, "*{value}")?,
                None if coefficient.as_sym().is_some() => write!(f, "*{coefficient}")?,
                None => write!(f, "*({coefficient})")?,
            }
        }
        match self.constant.as_const() {
            Some(0) => Ok(()),
            Some(value) if value < 0 => write!(f, " - {}", value.unsigned_abs()),
            Some(value) => write!(f, " + {value}"),
            None => summand(f, &self.constant),
        }
    }
}

/// A symbolic dim after other terms; a sign in front of it would not be read there.
fn summand(f: &mut Formatter<'_>, dim: &Dim) -> fmt::Result {
    let text = dim.to_string();
    if text.starts_with('-') { write!(f, " + ({text})") } else { write!(f, " + {text}") }
}
