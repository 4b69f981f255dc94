//! The text form of expressions, written and read; `loops::parse` documents the grammar.

use std::fmt::{self, Display, Formatter, Write};

use crate::parse::KernelParser;
use crate::{Expr, Index};
use onnxc_ir::error::Result;
use onnxc_ir::graph::parse::element_bytes;
use onnxc_ir::graph::parse::lexer::Token;
use onnxc_ir::graph::print::numbers;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

/// The mark between two operands, for the functions that are written that way.
fn infix(op: BinaryFn) -> Option<&'static str> {
    match op {
        BinaryFn::Add => Some("+"),
        BinaryFn::Sub => Some("-"),
        BinaryFn::Mul => Some("*"),
        BinaryFn::Div => Some("/"),
        _ => None,
    }
}

fn comparison(op: CompareFn) -> &'static str {
    match op {
        CompareFn::Eq => "==",
        CompareFn::Ne => "!=",
        CompareFn::Lt => "<",
        CompareFn::Le => "<=",
        CompareFn::Gt => ">",
        CompareFn::Ge => ">=",
    }
}

/// A list of indices in brackets.
pub(super) struct Position<'a>(pub &'a [Index]);

impl Display for Position<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('[')?;
        for (at, index) in self.0.iter().enumerate() {
            write!(f, "{}{index}", if at == 0 { "" } else { ", " })?;
        }
        f.write_char(']')
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const { dtype, bits } => constant(f, *dtype, *bits),
            Expr::Index(index) => write!(f, "index({index})"),
            Expr::Var(var) => write!(f, "{var}"),
            Expr::Load { buf, index } => write!(f, "{buf}[{index}]"),
            Expr::Word { buf, index } => write!(f, "word({buf}[{index}])"),
            Expr::Quad { bytes } => {
                let [a, b, c, d] = &**bytes;
                write!(f, "quad({a}, {b}, {c}, {d})")
            }
            Expr::Get { local, at } => write!(f, "{local}{}", Position(at)),
            Expr::Unary { op, x } => write!(f, "{op}({x})"),
            Expr::Binary { op, a, b } => match infix(*op) {
                Some(mark) => write!(f, "({a} {mark} {b})"),
                None => write!(f, "{op}({a}, {b})"),
            },
            Expr::Fma { a, b, c } => write!(f, "fma({a}, {b}, {c})"),
            Expr::Compare { op, a, b } => write!(f, "({a} {} {b})", comparison(*op)),
            Expr::Select { condition, then, otherwise } => {
                write!(f, "select({condition}, {then}, {otherwise})")
            }
            Expr::Cast { to, saturate: true, x } => write!(f, "cast({x}, {to})"),
            Expr::Cast { to, saturate: false, x } => write!(f, "cast({x}, {to}, unsaturated)"),
            Expr::Bitcast { to, x } => write!(f, "bitcast({x}, {to})"),
        }
    }
}

/// A number, or the bits where no number has exactly these.
fn constant(f: &mut Formatter<'_>, dtype: DType, bits: u64) -> fmt::Result {
    let size = dtype.size();
    let fits = size < 8 && bits >> (8 * size) == 0 || size == 8;
    let number = fits
        .then(|| numbers(&Tensor::new(dtype, vec![], bits.to_le_bytes()[..size].to_vec().into())))
        .flatten();
    match number.as_deref() {
        Some([number]) => write!(f, "{number}:{dtype}"),
        _ => write!(f, "{bits:#x}:{dtype}"),
    }
}

impl KernelParser<'_> {
    pub(super) fn expr(&mut self) -> Result<Expr> {
        self.text.enter("expressions")?;
        let expr = match *self.text.lexer.token() {
            Token::Number(_) | Token::Hex(_) | Token::Punct("-") => self.constant(),
            Token::Word("nan" | "inf" | "true" | "false") => self.constant(),
            Token::Punct("(") => self.infix(),
            Token::Word(_) if self.text.lexer.call_follows() => self.call(),
            Token::Word(word) if word.starts_with('b') => {
                let buf = self.buf()?;
                Ok(Expr::Load { buf, index: self.address()? })
            }
            Token::Word(word) if word.starts_with('r') => {
                let local = self.local_name()?;
                Ok(Expr::Get { local, at: self.position()? })
            }
            Token::Word(_) => Ok(Expr::Var(self.var()?)),
            _ => self.text.lexer.expected("an expression"),
        }?;
        self.text.depth -= 1;
        Ok(expr)
    }

    /// A number and its type, or bits and their type.
    fn constant(&mut self) -> Result<Expr> {
        let at = self.text.lexer.position();
        let negative = self.text.lexer.eat_punct("-")?;
        let token = *self.text.lexer.token();
        self.text.lexer.advance()?;
        self.text.lexer.punct(":")?;
        let dtype = self.dtype()?;
        let bits = match token {
            Token::Hex(digits) if !negative => u64::from_str_radix(digits, 16).ok(),
            Token::Number(text) | Token::Word(text) => element_bytes(dtype, text, negative).map(|bytes| {
                let mut bits = [0; 8];
                bits[..bytes.len()].copy_from_slice(&bytes);
                u64::from_le_bytes(bits)
            }),
            _ => None,
        };
        match bits {
            Some(bits) => Ok(Expr::Const { dtype, bits }),
            None => self.text.lexer.fail_at(at, format!("not a constant of {dtype}")),
        }
    }

    fn infix(&mut self) -> Result<Expr> {
        self.text.lexer.punct("(")?;
        let a = self.expr()?;
        let Token::Punct(mark) = *self.text.lexer.token() else {
            return self.text.lexer.expected("an operator such as + or <");
        };
        let binary = BinaryFn::ALL.iter().find(|op| infix(**op) == Some(mark));
        let compare = CompareFn::ALL.iter().find(|op| comparison(**op) == mark);
        if binary.is_none() && compare.is_none() {
            return self.text.lexer.expected("an operator such as + or <");
        }
        self.text.lexer.advance()?;
        let b = self.expr()?;
        self.text.lexer.punct(")")?;
        Ok(match (binary, compare) {
            (Some(op), _) => Expr::binary(*op, a, b),
            (None, Some(op)) => Expr::compare(*op, a, b),
            (None, None) => unreachable!("the mark is one of the two"),
        })
    }

    /// A name, and operands in parentheses.
    fn call(&mut self) -> Result<Expr> {
        let Token::Word(name) = *self.text.lexer.token() else {
            return self.text.lexer.expected("a function");
        };
        let known = ["index", "word", "quad", "fma", "select", "cast", "bitcast"].contains(&name);
        let (unary, binary) = (UnaryFn::from_name(name), BinaryFn::from_name(name));
        let binary = binary.filter(|op| infix(*op).is_none());
        if !known && unary.is_none() && binary.is_none() {
            return self.text.lexer.expected("a function");
        }
        self.text.lexer.advance()?;
        self.text.lexer.punct("(")?;
        if name == "index" {
            let index = self.index()?;
            self.text.lexer.punct(")")?;
            return Ok(Expr::Index(index));
        }
        if name == "word" {
            let buf = self.buf()?;
            let index = self.address()?;
            self.text.lexer.punct(")")?;
            return Ok(Expr::Word { buf, index });
        }
        let first = self.expr()?;
        let expr = match name {
            "fma" | "select" => {
                self.text.lexer.punct(",")?;
                let second = self.expr()?;
                self.text.lexer.punct(",")?;
                let third = self.expr()?;
                match name {
                    "fma" => Expr::Fma { a: Box::new(first), b: Box::new(second), c: Box::new(third) },
                    _ => Expr::select(first, second, third),
                }
            }
            "quad" => {
                let mut bytes = [const { None }; 3];
                for byte in &mut bytes {
                    self.text.lexer.punct(",")?;
                    *byte = Some(self.expr()?);
                }
                let [Some(second), Some(third), Some(fourth)] = bytes else {
                    return self.text.lexer.expected("four bytes");
                };
                Expr::quad([first, second, third, fourth])
            }
            "cast" | "bitcast" => {
                self.text.lexer.punct(",")?;
                let to = self.dtype()?;
                let x = Box::new(first);
                match name {
                    "bitcast" => Expr::Bitcast { to, x },
                    _ => {
                        let saturate = !self.text.lexer.eat_punct(",")?;
                        if !saturate {
                            self.text.lexer.keyword("unsaturated")?;
                        }
                        Expr::Cast { to, saturate, x }
                    }
                }
            }
            _ => match (unary, binary) {
                (Some(op), _) => Expr::unary(op, first),
                (None, Some(op)) => {
                    self.text.lexer.punct(",")?;
                    Expr::binary(op, first, self.expr()?)
                }
                (None, None) => return self.text.lexer.expected("a function"),
            },
        };
        self.text.lexer.punct(")")?;
        Ok(expr)
    }
}
