//! The text form of kernels, read. `loops::print` writes it.
//!
//! ```text
//! kernel  = "kernel" STRING "{" tuning* buffer* local* tile* stmt* "}"
//! tuning  = "tuning" ["stage" NUMBER] "{" [NAME "=" NUMBER ("," NAME "=" NUMBER)*] "}"
//! buffer  = "buffer" BUF STRING ":" ("read" | "write" | "readwrite" | "frame") DTYPE "[" dim "]"     elements
//! local   = "local" LOCAL STRING ":" DTYPE "[" [NUMBER ("," NUMBER)*] "]" ["lanes" NUMBER]
//! tile    = "tile" TILE STRING ":" DTYPE "[" NUMBER "," NUMBER "]"                            rows, columns
//! stmt    = "for" VAR [STRING] "in" index ".." index ["step" NUMBER] [kind] block
//!         | "let" VAR [STRING] ":" DTYPE "=" expr
//!         | BUF "[" index "]" "=" expr                       store
//!         | position "=" expr                                set
//!         | position ("+=" | "*=" | NAME "=") expr           accumulate, such as `r0[1] max= i3`
//!         | "if" expr block ["else" block]
//!         | "fail" NUMBER "unless" expr
//!         | "zero" TILE | "dot" TILE "+=" TILE "*" TILE
//!         | "load" TILE "=" BUF "[" index "]" "stride" NUMBER
//!         | "store" BUF "[" index "]" "stride" NUMBER "=" TILE
//! kind    = "serial" | "parallel" | "vector" | "unrolled"    serial where none is given
//! block   = "{" stmt* "}"
//! expr    = ["-"] NUMBER ":" DTYPE | ("nan" | ["-"] "inf" | "true" | "false") ":" DTYPE
//!         | "0x" HEX ":" DTYPE                               bits
//!         | "index" "(" index ")"
//!         | VAR
//!         | BUF "[" index "]" | position
//!         | "(" expr ("+" | "-" | "*" | "/" | "==" | "!=" | "<" | "<=" | ">" | ">=") expr ")"
//!         | NAME "(" expr ["," expr] ")"                     unary and other binary functions
//!         | ("fma" | "select") "(" expr "," expr "," expr ")"
//!         | "quad" "(" expr "," expr "," expr "," expr ")"
//!         | "cast" "(" expr "," DTYPE ["," "unsaturated"] ")" | "bitcast" "(" expr "," DTYPE ")"
//! position = LOCAL "[" [index ("," index)*] "]"
//! index   = ["-"] product (("+" | "-") product)*             at most one factor of a product has variables
//! product = factor ("*" factor)*
//! factor  = VAR | DIGITS | SYM | "(" index ")" | ("floordiv" | "mod") "(" index "," dim ")"
//!         | ("min" | "max") "(" dim "," dim ")"
//! ```
//!
//! `BUF` is `b`, `LOCAL` is `r`, `TILE` is `t`, `VAR` is `i` and digits; all but variables come in order from 0. Dims, names and
//! comments are those of the tensor IR's text. Numbers of variables are kept; numbers that the text skips
//! become variables that nothing uses. A variable is bound before it is used, once. What the text says is checked
//! by `loops::verify`, not here.

use cranelift_entity::EntityRef;

use crate::tiles::{Tile, TileDecl, TileStmt};
use crate::{Access, Buf, Buffer, Index, Kernel, Local, LocalDecl, LoopKind, Stmt, Term, Var, VarDecl};
use onnxc_ir::error::Result;
use onnxc_ir::graph::parse::Parser;
use onnxc_ir::graph::parse::lexer::Token;
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::scalar::BinaryFn;
use onnxc_tuning::Tuned;

/// How deep loops, expressions and parentheses may nest, together.
const MAX_DEPTH: usize = 256;

/// Reads a kernel; an error gives line, column and what was expected.
pub fn parse(text: &str) -> Result<Kernel> {
    // A kernel's text does not declare the symbols of its graph.
    let mut text = Parser::new(text, usize::MAX)?;
    text.most = MAX_DEPTH;
    let mut parser = KernelParser { text, kernel: Kernel::default(), vars: vec![] };
    parser.kernel()?;
    if *parser.text.lexer.token() != Token::End {
        return parser.text.lexer.expected("the end of the text");
    }
    let mut kernel = parser.kernel;
    for var in parser.vars {
        kernel.vars.push(var.unwrap_or(VarDecl { name: String::new(), dtype: DType::I64 }));
    }
    Ok(kernel)
}

pub(super) struct KernelParser<'t> {
    pub(super) text: Parser<'t>,
    kernel: Kernel,
    /// Variables by number, as far as they are bound.
    vars: Vec<Option<VarDecl>>,
}

impl KernelParser<'_> {
    fn kernel(&mut self) -> Result<()> {
        self.text.lexer.keyword("kernel")?;
        self.kernel.name = self.text.lexer.string()?;
        self.text.lexer.punct("{")?;
        while self.text.lexer.eat_keyword("tuning")? {
            let tuned = self.tuning()?;
            self.kernel.tuning.push(tuned);
        }
        while self.text.lexer.eat_keyword("buffer")? {
            self.buffer()?;
        }
        while self.text.lexer.eat_keyword("local")? {
            self.local()?;
        }
        while self.text.lexer.eat_keyword("tile")? {
            self.tile_decl()?;
        }
        self.kernel.body = self.stmts()?;
        Ok(())
    }

    fn tuning(&mut self) -> Result<Tuned> {
        let stage = if self.text.lexer.eat_keyword("stage")? { Some(self.text.index()?) } else { None };
        let mut tuned = Tuned { stage, values: vec![] };
        self.text.lexer.punct("{")?;
        while !self.text.lexer.eat_punct("}")? {
            if !tuned.values.is_empty() {
                self.text.lexer.punct(",")?;
            }
            let Token::Word(name) = *self.text.lexer.token() else {
                return self.text.lexer.expected("the name of a number");
            };
            self.text.lexer.advance()?;
            self.text.lexer.punct("=")?;
            tuned.values.push((name.to_string(), self.text.lexer.integer()?));
        }
        Ok(tuned)
    }

    fn buffer(&mut self) -> Result<()> {
        let at = self.text.lexer.position();
        let number = self.text.numbered('b', "a buffer such as b0")?;
        if number != self.kernel.buffers.len() {
            return self.text.lexer.fail_at(at, format!("buffer {} comes next", self.kernel.buffers.len()));
        }
        let name = self.text.lexer.string()?;
        self.text.lexer.punct(":")?;
        let accesses = [Access::Read, Access::Write, Access::ReadWrite, Access::Frame];
        let access = accesses.into_iter().find(|a| *self.text.lexer.token() == Token::Word(a.name()));
        let Some(access) = access else {
            return self.text.lexer.expected("`read`, `write`, `readwrite` or `frame`");
        };
        self.text.lexer.advance()?;
        let dtype = self.dtype()?;
        self.text.lexer.punct("[")?;
        let len = self.text.dim()?;
        self.text.lexer.punct("]")?;
        self.kernel.buffers.push(Buffer { name, dtype, len, access });
        Ok(())
    }

    fn local(&mut self) -> Result<()> {
        let at = self.text.lexer.position();
        let number = self.text.numbered('r', "a local such as r0")?;
        if number != self.kernel.locals.len() {
            return self.text.lexer.fail_at(at, format!("local {} comes next", self.kernel.locals.len()));
        }
        let name = self.text.lexer.string()?;
        self.text.lexer.punct(":")?;
        let dtype = self.dtype()?;
        let extents = self.text.list(|text| text.index())?;
        let lanes = if self.text.lexer.eat_keyword("lanes")? { self.text.index()? } else { 1 };
        self.kernel.locals.push(LocalDecl { name, dtype, extents, lanes });
        Ok(())
    }

    fn tile_decl(&mut self) -> Result<()> {
        let at = self.text.lexer.position();
        let number = self.text.numbered('t', "a tile such as t0")?;
        if number != self.kernel.tiles.len() {
            return self.text.lexer.fail_at(at, format!("tile {} comes next", self.kernel.tiles.len()));
        }
        let name = self.text.lexer.string()?;
        self.text.lexer.punct(":")?;
        let dtype = self.dtype()?;
        let at = self.text.lexer.position();
        let &[rows, columns] = self.text.list(|text| text.index())?.as_slice() else {
            return self.text.lexer.fail_at(at, "a tile has rows and columns".to_string());
        };
        self.kernel.tiles.push(TileDecl { name, dtype, rows, columns });
        Ok(())
    }

    fn tile(&mut self) -> Result<Tile> {
        let at = self.text.lexer.position();
        let number = self.text.numbered('t', "a tile such as t0")?;
        match number < self.kernel.tiles.len() {
            true => Ok(Tile::new(number)),
            false => self.text.lexer.fail_at(at, format!("t{number} is not declared")),
        }
    }

    fn tile_stmt(&mut self, word: &str) -> Result<TileStmt> {
        Ok(match word {
            "zero" => TileStmt::Zero { tile: self.tile()? },
            "dot" => {
                let acc = self.tile()?;
                self.text.lexer.punct("+=")?;
                let a = self.tile()?;
                self.text.lexer.punct("*")?;
                TileStmt::Dot { acc, a, b: self.tile()? }
            }
            "load" => {
                let tile = self.tile()?;
                self.text.lexer.punct("=")?;
                let (buf, index, stride) = self.tile_place()?;
                TileStmt::Load { tile, buf, index, stride }
            }
            _ => {
                let (buf, index, stride) = self.tile_place()?;
                self.text.lexer.punct("=")?;
                TileStmt::Store { tile: self.tile()?, buf, index, stride }
            }
        })
    }

    fn tile_place(&mut self) -> Result<(Buf, Index, i64)> {
        let (buf, index) = (self.buf()?, self.address()?);
        self.text.lexer.keyword("stride")?;
        Ok((buf, index, self.text.index()? as i64))
    }

    pub(super) fn dtype(&mut self) -> Result<DType> {
        let dtype = match self.text.lexer.token() {
            Token::Word(word) => DType::from_name(word),
            _ => None,
        };
        match dtype {
            Some(dtype) => self.text.lexer.advance().map(|()| dtype),
            None => self.text.lexer.expected("an element type such as f32"),
        }
    }

    /// Statements up to a closing brace, which is read.
    fn stmts(&mut self) -> Result<Vec<Stmt>> {
        self.text.enter("blocks")?;
        let mut stmts = Vec::new();
        while !self.text.lexer.eat_punct("}")? {
            stmts.push(self.stmt()?);
        }
        self.text.depth -= 1;
        Ok(stmts)
    }

    fn block(&mut self) -> Result<Vec<Stmt>> {
        self.text.lexer.punct("{")?;
        self.stmts()
    }

    fn stmt(&mut self) -> Result<Stmt> {
        let Token::Word(word) = *self.text.lexer.token() else {
            return self.text.lexer.expected("a statement or `}`");
        };
        match word {
            "for" => self.loop_stmt(),
            "let" => self.let_stmt(),
            "if" => {
                self.text.lexer.advance()?;
                let condition = self.expr()?;
                let then = self.block()?;
                let otherwise = if self.text.lexer.eat_keyword("else")? { self.block()? } else { vec![] };
                Ok(Stmt::If { condition, then, otherwise })
            }
            "fail" => {
                self.text.lexer.advance()?;
                let code = u32::try_from(self.text.index()?).unwrap_or(u32::MAX);
                self.text.lexer.keyword("unless")?;
                Ok(Stmt::Check { condition: self.expr()?, code })
            }
            "prefetch" => {
                self.text.lexer.advance()?;
                Ok(Stmt::Prefetch { buf: self.buf()?, index: self.address()? })
            }
            "zero" | "load" | "store" | "dot" => {
                self.text.lexer.advance()?;
                self.tile_stmt(word).map(Stmt::Tile)
            }
            _ if word.starts_with('b') => {
                let buf = self.buf()?;
                let index = self.address()?;
                self.text.lexer.punct("=")?;
                Ok(Stmt::Store { buf, index, value: self.expr()? })
            }
            _ if word.starts_with('r') => self.register_stmt(),
            _ => self.text.lexer.expected("a statement or `}`"),
        }
    }

    fn loop_stmt(&mut self) -> Result<Stmt> {
        self.text.lexer.advance()?;
        let at = self.text.lexer.position();
        let (var, name) = self.binder()?;
        self.text.lexer.keyword("in")?;
        let lo = self.index()?;
        self.text.lexer.punct("..")?;
        let hi = self.index()?;
        let step = match self.text.lexer.eat_keyword("step")? {
            true => self.text.index()? as i64,
            false => 1,
        };
        let kinds = [LoopKind::Serial, LoopKind::Parallel, LoopKind::Vector, LoopKind::Unrolled];
        let kind = kinds.into_iter().find(|kind| *self.text.lexer.token() == Token::Word(kind.name()));
        if kind.is_some() {
            self.text.lexer.advance()?;
        }
        self.bind(at, var, VarDecl { name, dtype: DType::I64 })?;
        let body = self.block()?;
        Ok(Stmt::For { var, lo, hi, step, kind: kind.unwrap_or(LoopKind::Serial), body })
    }

    fn let_stmt(&mut self) -> Result<Stmt> {
        self.text.lexer.advance()?;
        let at = self.text.lexer.position();
        let (var, name) = self.binder()?;
        self.text.lexer.punct(":")?;
        let dtype = self.dtype()?;
        self.text.lexer.punct("=")?;
        let value = self.expr()?;
        self.bind(at, var, VarDecl { name, dtype })?;
        Ok(Stmt::Let { var, value })
    }

    /// `local[at] = value`, or an accumulation.
    fn register_stmt(&mut self) -> Result<Stmt> {
        let local = self.local_name()?;
        let at = self.position()?;
        let op = match *self.text.lexer.token() {
            Token::Punct("=") => {
                self.text.lexer.advance()?;
                return Ok(Stmt::Set { local, at, value: self.expr()? });
            }
            Token::Punct("+=") => BinaryFn::Add,
            Token::Punct("*=") => BinaryFn::Mul,
            Token::Word(word) => match BinaryFn::from_name(word) {
                Some(op) => {
                    self.text.lexer.advance()?;
                    if !self.text.lexer.is_punct("=") {
                        return self.text.lexer.expected("`=`");
                    }
                    op
                }
                None => return self.text.lexer.expected("a binary function"),
            },
            _ => return self.text.lexer.expected("`=`, `+=` or a function and `=`"),
        };
        self.text.lexer.advance()?;
        Ok(Stmt::Accumulate { local, at, op, value: self.expr()? })
    }

    fn binder(&mut self) -> Result<(Var, String)> {
        let var = Var::new(self.text.numbered('i', "a variable such as i0")?);
        let name = if self.text.lexer.is_string() { self.text.lexer.string()? } else { String::new() };
        Ok((var, name))
    }

    fn bind(&mut self, position: usize, var: Var, decl: VarDecl) -> Result<()> {
        if self.vars.len() <= var.index() {
            self.vars.resize(var.index() + 1, None);
        }
        match self.vars[var.index()].replace(decl) {
            None => Ok(()),
            Some(_) => self.text.lexer.fail_at(position, format!("{var} is bound twice")),
        }
    }

    pub(super) fn var(&mut self) -> Result<Var> {
        let at = self.text.lexer.position();
        let var = Var::new(self.text.numbered('i', "a variable such as i0")?);
        match self.vars.get(var.index()) {
            Some(Some(_)) => Ok(var),
            _ => self.text.lexer.fail_at(at, format!("{var} is not bound before its use")),
        }
    }

    pub(super) fn buf(&mut self) -> Result<Buf> {
        let at = self.text.lexer.position();
        let buf = Buf::new(self.text.numbered('b', "a buffer such as b0")?);
        match self.kernel.buffers.is_valid(buf) {
            true => Ok(buf),
            false => self.text.lexer.fail_at(at, format!("{buf} is not declared")),
        }
    }

    pub(super) fn local_name(&mut self) -> Result<Local> {
        let at = self.text.lexer.position();
        let local = Local::new(self.text.numbered('r', "a local such as r0")?);
        match self.kernel.locals.is_valid(local) {
            true => Ok(local),
            false => self.text.lexer.fail_at(at, format!("{local} is not declared")),
        }
    }

    pub(super) fn address(&mut self) -> Result<Index> {
        self.text.lexer.punct("[")?;
        let index = self.index()?;
        self.text.lexer.punct("]")?;
        Ok(index)
    }

    pub(super) fn position(&mut self) -> Result<Vec<Index>> {
        self.text.lexer.punct("[")?;
        let mut at = Vec::new();
        while !self.text.lexer.eat_punct("]")? {
            if !at.is_empty() {
                self.text.lexer.punct(",")?;
            }
            at.push(self.index()?);
        }
        Ok(at)
    }

    pub(super) fn index(&mut self) -> Result<Index> {
        self.text.enter("indices")?;
        let mut sum = Index::zero();
        let mut negative = self.text.lexer.eat_punct("-")?;
        loop {
            sum = sum.plus(&self.product(negative)?);
            negative = match self.text.lexer.token() {
                Token::Punct("+") => false,
                Token::Punct("-") => true,
                _ => break,
            };
            self.text.lexer.advance()?;
        }
        self.text.depth -= 1;
        Ok(sum)
    }

    fn product(&mut self, negative: bool) -> Result<Index> {
        let at = self.text.lexer.position();
        let mut coefficient = if negative { -1i128 } else { 1 };
        let (mut scale, mut varying) = (Dim::ONE, None);
        loop {
            if let Token::Number(text) = *self.text.lexer.token() {
                let number = text.parse::<u64>().ok().and_then(|value| coefficient.checked_mul(value.into()));
                match number {
                    Some(number) => coefficient = number,
                    None => return self.text.lexer.expected("an integer below 2^63"),
                }
                self.text.lexer.advance()?;
            } else {
                let position = self.text.lexer.position();
                let factor = self.factor()?;
                match (factor.as_dim(), &varying) {
                    (Some(dim), _) => scale = scale * dim.clone(),
                    (None, None) => varying = Some(factor),
                    (None, Some(_)) => {
                        return self.text.lexer.fail_at(position, "a product of variables".to_string());
                    }
                }
            }
            if !self.text.lexer.eat_punct("*")? {
                break;
            }
        }
        let Ok(coefficient) = i64::try_from(coefficient) else {
            return self.text.lexer.fail_at(at, format!("{coefficient} exceeds 64 bits"));
        };
        let scale = scale * Dim::from(coefficient);
        Ok(varying.map_or_else(|| Index::dim(scale.clone()), |index| index.scale(&scale)))
    }

    fn factor(&mut self) -> Result<Index> {
        if self.text.lexer.eat_punct("(")? {
            let index = self.index()?;
            self.text.lexer.punct(")")?;
            return Ok(index);
        }
        match *self.text.lexer.token() {
            Token::Word(word @ ("floordiv" | "mod")) => {
                self.text.lexer.advance()?;
                self.text.lexer.punct("(")?;
                let x = self.index()?;
                self.text.lexer.punct(",")?;
                let at = self.text.lexer.position();
                let by = self.text.dim()?;
                self.text.lexer.punct(")")?;
                if by == Dim::ZERO {
                    return self.text.lexer.fail_at(at, "division by zero".to_string());
                }
                Ok(Index::term(match word {
                    "floordiv" => Term::FloorDiv(Box::new(x), by),
                    _ => Term::Mod(Box::new(x), by),
                }))
            }
            Token::Word(word) if word.starts_with('i') => Ok(Index::var(self.var()?)),
            _ => Ok(Index::dim(self.text.factor()?)),
        }
    }
}
