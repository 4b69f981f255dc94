//! The text form of host programs, read. `host::print` writes it.
//!
//! ```text
//! program  = "host" STRING "{" "inputs" N "outputs" N "weights" BYTES
//!            size* ["outputs"] slot* frame* "buffers" pointers ["strings" "at" OFFSET] "arena" "at" OFFSET kernel* function* "}"
//! size     = "size" N STRING                                what a word of the sizes stands for
//! slot     = SLOT ["output" N]
//! frame    = FRAME "inputs" N "outputs" N "pointers" pointers
//! pointers = COUNT ["at" OFFSET]                            in the workspace; without on the stack
//! kernel   = KERNEL STRING version+
//! version  = "level" N ":" extent ".." extent ["threads" ["from" extent ">=" NUMBER]]
//! extent   = NUMBER | "size" N
//! function = "function" STRING kind "(" values ")" region
//! kind     = "model" | "workspace" | "run" | "checks" | "part" | "steps" FRAME
//! region   = "{" inst* "}"
//! inst     = [values "="] NAME operands
//!          | "if" (VALUE | "holds" SLOT) region ["else" region]
//!          | "loop" "(" [VALUE "=" operand ("," ...)*] ")" region "while" VALUE region "next" "(" operands ")"
//!          | "attempt" region "failed" VALUE region
//! operand  = VALUE | NUMBER
//! place    = "option" FIELD | port FIELD | port "dim" N | "size" N | "outputs" | SLOT
//!          | (FRAME | "frame") (FIELD | port) | type "[" VALUE [("+" | "-") NUMBER] "]"
//! port     = ("input" | "output") N
//! ```
//!
//! `VALUE` is `v` and digits, `SLOT` `slot` and digits, `FRAME` `frame` and digits, `KERNEL` `k` and digits; slots, frames and
//! kernels are declared in order from 0. The operands of each operation are as `host::print` writes them; types of values
//! follow from operations. What the text says is checked by `host::verify`, not here.

mod operation;

use cranelift_entity::{EntityRef, PrimaryMap};
use smallvec::SmallVec;

use crate::host::ir::{
    Extent, FrameLayout, Function, FunctionKind, Inst, Kernel, Op, Operand, Pointers, Policy, Program,
    Region, SlotUse, Type, Value, Version,
};
use crate::host::print::KINDS;
use onnxc_ir::error::Result;
use onnxc_ir::graph::parse::lexer::{Lexer, Token};

/// Most values of a function that is read: their numbers need not follow each other.
const MAX_VALUES: usize = 1 << 20;

/// Reads a program; an error gives line, column and what was expected.
pub fn parse(text: &str) -> Result<Program> {
    let names = Lexer::new(text)?;
    let mut parser =
        ProgramParser { lexer: Lexer::new(text)?, program: Program::default(), types: vec![], names: vec![] };
    parser.names = function_names(names)?;
    parser.program()?;
    match *parser.lexer.token() {
        Token::End => Ok(parser.program),
        _ => parser.lexer.expected("the end of the text"),
    }
}

/// Names of the functions, which may be called before the text defines them.
fn function_names(mut lexer: Lexer<'_>) -> Result<Vec<String>> {
    let mut names = vec![];
    while *lexer.token() != Token::End {
        if lexer.eat_keyword("function")? {
            names.push(lexer.string()?);
        } else {
            lexer.advance()?;
        }
    }
    Ok(names)
}

struct ProgramParser<'t> {
    lexer: Lexer<'t>,
    program: Program,
    /// Types of the function's values by number, as far as the text has defined them.
    types: Vec<Option<Type>>,
    names: Vec<String>,
}

impl ProgramParser<'_> {
    fn program(&mut self) -> Result<()> {
        self.lexer.keyword("host")?;
        self.program.name = self.lexer.string()?;
        self.lexer.punct("{")?;
        self.lexer.keyword("inputs")?;
        self.program.inputs = self.count()?;
        self.lexer.keyword("outputs")?;
        self.program.outputs = self.count()?;
        self.lexer.keyword("weights")?;
        self.program.weights = self.count()?;
        while self.lexer.eat_keyword("size")? {
            self.expect_number(self.program.sizes.len())?;
            let text = self.lexer.string()?;
            self.program.sizes.push(text);
        }
        self.program.keeps_outputs = self.lexer.eat_keyword("outputs")?;
        while let Some(number) = self.named("slot") {
            self.next_of("slot", number, self.program.slots.len())?;
            let owner = match self.lexer.eat_keyword("output")? {
                true => SlotUse::Output(self.count()?),
                false => SlotUse::Block,
            };
            self.program.slots.push(owner);
        }
        while let Some(number) = self.named("frame") {
            self.next_of("frame", number, self.program.frames.len())?;
            self.lexer.keyword("inputs")?;
            let inputs = self.count()?;
            self.lexer.keyword("outputs")?;
            let outputs = self.count()?;
            self.lexer.keyword("pointers")?;
            let pointers = self.pointers()?;
            self.program.frames.push(FrameLayout { inputs, outputs, pointers });
        }
        self.lexer.keyword("buffers")?;
        self.program.buffers = self.pointers()?;
        if self.lexer.eat_keyword("strings")? {
            self.lexer.keyword("at")?;
            self.program.strings = Some(self.lexer.integer()?);
        }
        self.lexer.keyword("arena")?;
        self.lexer.keyword("at")?;
        self.program.arena = self.lexer.integer()?;
        while let Some(number) = self.named("k") {
            self.next_of("k", number, self.program.kernels.len())?;
            let kernel = self.kernel()?;
            self.program.kernels.push(kernel);
        }
        while !self.lexer.eat_punct("}")? {
            let function = self.function()?;
            self.program.functions.push(function);
        }
        Ok(())
    }

    fn expect_number(&mut self, wanted: usize) -> Result<()> {
        let at = self.lexer.position();
        match self.count::<usize>()? {
            number if number == wanted => Ok(()),
            _ => self.lexer.fail_at(at, format!("number {wanted} comes next")),
        }
    }

    /// Takes a declared name, which must be the next of its kind.
    fn next_of(&mut self, prefix: &str, number: usize, wanted: usize) -> Result<()> {
        match number == wanted {
            true => self.lexer.advance(),
            false => self.lexer.fail(format!("{prefix}{wanted} comes next")),
        }
    }

    /// The number in a token such as `slot3`.
    fn named(&self, prefix: &str) -> Option<usize> {
        let Token::Word(word) = *self.lexer.token() else { return None };
        word.strip_prefix(prefix)?.parse().ok().filter(|&number| number < MAX_VALUES)
    }

    fn entity<E: EntityRef>(&mut self, prefix: &str) -> Result<E> {
        let Some(number) = self.named(prefix) else {
            return self.lexer.expected(&format!("`{prefix}` and a number"));
        };
        self.lexer.advance()?;
        Ok(E::new(number))
    }

    fn pointers(&mut self) -> Result<Pointers> {
        let count = self.count()?;
        let at = if self.lexer.eat_keyword("at")? { Some(self.lexer.integer()?) } else { None };
        Ok(Pointers { count, at })
    }

    fn kernel(&mut self) -> Result<Kernel> {
        let name = self.lexer.string()?;
        let mut versions = vec![];
        while self.lexer.eat_keyword("level")? {
            let level = self.count()?;
            self.lexer.punct(":")?;
            let lo = self.extent()?;
            self.lexer.punct("..")?;
            let hi = self.extent()?;
            let mut threads = Policy::Never;
            if self.lexer.eat_keyword("threads")? {
                threads = Policy::Always;
                if self.lexer.eat_keyword("from")? {
                    let size = self.extent()?;
                    self.lexer.punct(">=")?;
                    threads = Policy::From { size, least: self.lexer.integer()? };
                }
            }
            versions.push(Version { level, lo, hi, threads });
        }
        Ok(Kernel { name, versions })
    }

    fn extent(&mut self) -> Result<Extent> {
        Ok(match self.lexer.eat_keyword("size")? {
            true => Extent::Size(self.count()?),
            false => Extent::Const(self.lexer.integer()?),
        })
    }

    fn count<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let at = self.lexer.position();
        match T::try_from(self.lexer.integer()?) {
            Ok(value) => Ok(value),
            Err(_) => self.lexer.fail_at(at, "a number of things is expected".to_string()),
        }
    }

    /// The item of a table that the token names.
    fn item<T: Copy>(&mut self, table: &'static [(T, &'static str)], what: &str) -> Result<T> {
        let found = match *self.lexer.token() {
            Token::Word(word) => table.iter().find(|row| row.1 == word),
            _ => None,
        };
        let Some(&(item, _)) = found else { return self.lexer.expected(what) };
        self.lexer.advance()?;
        Ok(item)
    }

    fn function(&mut self) -> Result<Function> {
        self.types.clear();
        self.lexer.keyword("function")?;
        let name = self.lexer.string()?;
        let kind = match self.lexer.eat_keyword("steps")? {
            true => FunctionKind::Steps(self.entity("frame")?),
            false => self.item(&KINDS, "a kind of function")?,
        };
        self.lexer.punct("(")?;
        let mut params = vec![];
        let mut types = kind.signature().0.iter();
        while !self.lexer.eat_punct(")")? {
            if !params.is_empty() {
                self.lexer.punct(",")?;
            }
            let param = self.value()?;
            self.define(param, types.next().copied().unwrap_or(Type::I64))?;
            params.push(param);
        }
        let body = self.region()?;
        let values: PrimaryMap<Value, Type> = self.types.iter().map(|ty| ty.unwrap_or(Type::I64)).collect();
        Ok(Function { name, kind, params, values, body })
    }

    fn value(&mut self) -> Result<Value> {
        let value: Value = self.entity("v")?;
        if self.types.len() <= value.index() {
            self.types.resize(value.index() + 1, None);
        }
        Ok(value)
    }

    fn define(&mut self, value: Value, ty: Type) -> Result<()> {
        match self.types[value.index()].replace(ty) {
            None => Ok(()),
            Some(_) => self.lexer.fail(format!("{value} is defined twice")),
        }
    }

    fn type_of(&self, operand: Operand) -> Option<Type> {
        match operand {
            Operand::Value(value) => self.types[value.index()],
            Operand::Int(_) => None,
        }
    }

    fn operand(&mut self) -> Result<Operand> {
        match self.named("v") {
            Some(_) => Ok(self.value()?.into()),
            None => Ok(self.lexer.integer()?.into()),
        }
    }

    fn operands(&mut self) -> Result<Vec<Operand>> {
        self.lexer.punct("(")?;
        let mut operands = vec![];
        while !self.lexer.eat_punct(")")? {
            if !operands.is_empty() {
                self.lexer.punct(",")?;
            }
            operands.push(self.operand()?);
        }
        Ok(operands)
    }

    fn next_operand(&mut self) -> Result<Operand> {
        self.lexer.punct(",")?;
        self.operand()
    }

    fn region(&mut self) -> Result<Region> {
        self.lexer.punct("{")?;
        let mut region = vec![];
        while !self.lexer.eat_punct("}")? {
            region.push(self.inst()?);
        }
        Ok(region)
    }

    fn inst(&mut self) -> Result<Inst> {
        let mut results = SmallVec::new();
        if self.named("v").is_some() {
            results.push(self.value()?);
            while self.lexer.eat_punct(",")? {
                results.push(self.value()?);
            }
            self.lexer.punct("=")?;
        }
        let at = self.lexer.position();
        let Token::Word(name) = *self.lexer.token() else { return self.lexer.expected("an operation") };
        self.lexer.advance()?;
        let Some((op, types)) = self.op(name)? else {
            return self.lexer.fail_at(at, format!("there is no operation `{name}`"));
        };
        // A result of `extern` may be left out.
        if results.len() != types.len() && !(results.is_empty() && matches!(op, Op::Extern(..))) {
            return self.lexer.fail_at(at, format!("`{name}` has {} results", types.len()));
        }
        for (&result, ty) in results.iter().zip(types) {
            self.define(result, ty)?;
        }
        Ok(Inst { results, op })
    }
}
