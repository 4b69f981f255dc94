//! The text form of host programs, read. `host::print` writes it.
//!
//! ```text
//! program  = "host" STRING "{" "inputs" N "outputs" N "weights" BYTES
//!            size* ["outputs"] slot* frame* "buffers" pointers "arena" "at" OFFSET kernel* function* "}"
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

use cranelift_entity::{EntityRef, PrimaryMap};

use crate::error::Result;
use crate::graph::parse::lexer::{Lexer, Token};
use crate::host::abi::status;
use crate::host::ir::{
    Address, Condition, Extent, Frame, FrameField, FrameLayout, FuncId, Function, FunctionKind, Inst, Kernel,
    Op, Operand, Place, Pointers, Policy, Port, Program, Region, Slot, SlotUse, Type, Value, Version,
    extern_named,
};
use crate::host::print::{BINARIES, CHECKED, COMPARES, FRAME, KINDS, OPTIONS, TENSOR};

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
        self.lexer.keyword("arena")?;
        self.lexer.keyword("at")?;
        self.program.arena = self.integer()?;
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
        let at = if self.lexer.eat_keyword("at")? { Some(self.integer()?) } else { None };
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
                    threads = Policy::From { size, least: self.integer()? };
                }
            }
            versions.push(Version { level, lo, hi, threads });
        }
        Ok(Kernel { name, versions })
    }

    fn extent(&mut self) -> Result<Extent> {
        Ok(match self.lexer.eat_keyword("size")? {
            true => Extent::Size(self.count()?),
            false => Extent::Const(self.integer()?),
        })
    }

    fn integer(&mut self) -> Result<i64> {
        let negative = self.lexer.eat_punct("-")?;
        let magnitude = match *self.lexer.token() {
            Token::Number(digits) => digits.parse::<i128>().ok(),
            _ => None,
        };
        let value = magnitude.map(|value| if negative { -value } else { value });
        let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else {
            return self.lexer.expected("an integer of 64 bits");
        };
        self.lexer.advance()?;
        Ok(value)
    }

    fn count<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let at = self.lexer.position();
        match T::try_from(self.integer()?) {
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
            None => Ok(self.integer()?.into()),
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
        let mut results = vec![];
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

    /// The operation of this name, with the types of its results.
    fn op(&mut self, name: &str) -> Result<Option<(Op, Vec<Type>)>> {
        if let Some(&(binary, _)) = BINARIES.iter().find(|row| row.1 == name) {
            let (a, b) = (self.operand()?, self.next_operand()?);
            let ty = match self.type_of(a).or(self.type_of(b)) {
                Some(Type::I8) => Type::I8,
                _ => Type::I64,
            };
            return Ok(Some((Op::Binary(binary, a, b), vec![ty])));
        }
        if let Some(&(checked, _)) = CHECKED.iter().find(|row| row.1 == name) {
            let (a, b) = (self.operand()?, self.next_operand()?);
            return Ok(Some((Op::Checked(checked, a, b), vec![Type::I64, Type::I8])));
        }
        if let Some(&(compare, _)) = COMPARES.iter().find(|row| row.1 == name) {
            let (a, b) = (self.operand()?, self.next_operand()?);
            return Ok(Some((Op::Compare(compare, a, b), vec![Type::I8])));
        }
        let with_value = match name {
            "select" => {
                let (condition, a, b) = (self.value()?, self.next_operand()?, self.next_operand()?);
                let ty = self.type_of(a).or(self.type_of(b)).unwrap_or(Type::I64);
                (Op::Select(condition, a, b), ty)
            }
            "extend" => (Op::Extend(self.value()?), Type::I64),
            "offset" => (Op::Offset(self.value()?, self.next_operand()?), Type::Ptr),
            "element" => {
                let base = self.value()?;
                (Op::Element { base, index: self.next_operand()?, bytes: self.next_operand()? }, Type::Ptr)
            }
            "address" => (Op::Address(self.address()?), Type::Ptr),
            "level" => (Op::Level, Type::I64),
            "load" => {
                let place = self.place()?;
                (Op::Load(place), place.ty())
            }
            "extern" => {
                let Token::Word(function) = *self.lexer.token() else {
                    return self.lexer.expected("the name of a function");
                };
                let Some(function) = extern_named(function) else {
                    return self.lexer.expected("a function that exists");
                };
                self.lexer.advance()?;
                let op = Op::Extern(function, self.operands()?);
                return Ok(Some((op, function.result.into_iter().collect())));
            }
            "kernel" => (Op::Kernel(self.entity("k")?, self.values_in_parentheses()?), Type::I32),
            "job" => {
                let job = self.value()?;
                (Op::Job { job, begin: self.next_value()?, end: self.next_value()? }, Type::I32)
            }
            _ => return Ok(self.effect(name)?.map(|op| (op, vec![]))),
        };
        Ok(Some((with_value.0, vec![with_value.1])))
    }

    /// The operation of this name that has no result.
    fn effect(&mut self, name: &str) -> Result<Option<Op>> {
        Ok(Some(match name {
            "store" => Op::Store(self.place()?, self.next_operand()?),
            "inherit" => Op::Inherit(self.entity("frame")?),
            "clear" => Op::Clear(self.slot()?),
            "release" => Op::Release(self.slot()?),
            "empty" => Op::Empty(self.slot()?),
            "transfer" => {
                let from = self.slot()?;
                self.lexer.punct(",")?;
                Op::Transfer { from, to: self.slot()? }
            }
            "allocate" => {
                let (slot, bytes) = (self.slot()?, self.next_operand()?);
                Op::Allocate { slot, bytes, what: self.next_string()? }
            }
            "grow" => {
                let (slot, used, bytes) = (self.slot()?, self.next_operand()?, self.next_operand()?);
                Op::Grow { slot, used, bytes, what: self.next_string()? }
            }
            "fail_if" => {
                let condition = self.value()?;
                self.lexer.punct(",")?;
                let status = self.item(&status::NAMES, "a status")?;
                let (template, mut args) = (self.next_string()?, vec![]);
                while self.lexer.eat_punct(",")? {
                    args.push(self.operand()?);
                }
                Op::FailIf { condition, status, template, args }
            }
            "poll" => Op::Poll,
            "call" => {
                let at = self.lexer.position();
                let name = self.lexer.string()?;
                let Some(number) = self.names.iter().position(|known| *known == name) else {
                    return self.lexer.fail_at(at, format!("there is no function {name:?}"));
                };
                Op::Call(FuncId::new(number), self.operands()?)
            }
            "return" => Op::Return(self.operand()?),
            "step_done" => Op::StepDone(self.integer()?),
            "if" => self.choice()?,
            "loop" => self.iteration()?,
            "attempt" => {
                let body = self.region()?;
                self.lexer.keyword("failed")?;
                let status = self.value()?;
                self.define(status, Type::I32)?;
                Op::Attempt { body, status, handler: self.region()? }
            }
            _ => return Ok(None),
        }))
    }

    fn choice(&mut self) -> Result<Op> {
        let condition = match self.lexer.eat_keyword("holds")? {
            true => Condition::Holds(self.slot()?),
            false => Condition::Value(self.value()?),
        };
        let then = self.region()?;
        let otherwise = if self.lexer.eat_keyword("else")? { self.region()? } else { vec![] };
        Ok(Op::If { condition, then, otherwise })
    }

    fn iteration(&mut self) -> Result<Op> {
        let (mut params, mut init) = (vec![], vec![]);
        self.lexer.punct("(")?;
        while !self.lexer.eat_punct(")")? {
            if !params.is_empty() {
                self.lexer.punct(",")?;
            }
            let param = self.value()?;
            self.lexer.punct("=")?;
            let value = self.operand()?;
            self.define(param, self.type_of(value).unwrap_or(Type::I64))?;
            params.push(param);
            init.push(value);
        }
        let head = self.region()?;
        self.lexer.keyword("while")?;
        let condition = self.value()?;
        let body = self.region()?;
        self.lexer.keyword("next")?;
        Ok(Op::Loop { params, init, head, condition, body, next: self.operands()? })
    }

    fn slot(&mut self) -> Result<Slot> {
        self.entity("slot")
    }

    fn next_value(&mut self) -> Result<Value> {
        self.lexer.punct(",")?;
        self.value()
    }

    fn next_string(&mut self) -> Result<String> {
        self.lexer.punct(",")?;
        self.lexer.string()
    }

    fn values_in_parentheses(&mut self) -> Result<Vec<Value>> {
        let at = self.lexer.position();
        let values = self.operands()?.into_iter().map(|operand| match operand {
            Operand::Value(value) => Some(value),
            Operand::Int(_) => None,
        });
        match values.collect() {
            Some(values) => Ok(values),
            None => self.lexer.fail_at(at, "values are expected".to_string()),
        }
    }

    fn address(&mut self) -> Result<Address> {
        if self.named("frame").is_some() {
            return Ok(Address::Frame(self.entity("frame")?));
        }
        if self.lexer.eat_keyword("weights")? {
            return Ok(Address::Weights(self.count()?));
        }
        if self.lexer.eat_keyword("arena")? {
            return Ok(Address::Arena(self.extent()?));
        }
        const PLAIN: [(Address, &str); 4] = [
            (Address::Workspace, "workspace"),
            (Address::Options, "options"),
            (Address::Cancel, "cancel"),
            (Address::Descriptor, "descriptor"),
        ];
        self.item(&PLAIN, "what has an address")
    }

    fn port(&mut self) -> Result<Option<Port>> {
        Ok(if self.lexer.eat_keyword("input")? {
            Some(Port::Input(self.count()?))
        } else if self.lexer.eat_keyword("output")? {
            Some(Port::Output(self.count()?))
        } else {
            None
        })
    }

    fn place(&mut self) -> Result<Place> {
        if self.named("slot").is_some() {
            return Ok(Place::Block(self.slot()?));
        }
        let frame = match self.named("frame") {
            Some(_) => Some(Some(self.entity::<Frame>("frame")?)),
            None => self.lexer.eat_keyword("frame")?.then_some(None),
        };
        if let Some(frame) = frame {
            let field = match self.port()? {
                Some(Port::Input(at)) => FrameField::Input(at),
                Some(Port::Output(at)) => FrameField::Output(at),
                None => self.item(&FRAME, "a field of a frame")?,
            };
            return Ok(Place::Frame(frame, field));
        }
        if let Some(port) = self.port()? {
            return Ok(match self.lexer.eat_keyword("dim")? {
                true => Place::Dim(port, self.count()?),
                false => Place::Tensor(port, self.item(&TENSOR, "a field of a tensor")?),
            });
        }
        if self.lexer.eat_keyword("option")? {
            return Ok(Place::Options(self.item(&OPTIONS, "a field of the options")?));
        }
        if self.lexer.eat_keyword("size")? {
            return Ok(Place::Size(self.count()?));
        }
        if self.lexer.eat_keyword("outputs")? {
            return Ok(Place::Outputs);
        }
        let ty = self.item(&Type::ALL, "a place")?;
        self.lexer.punct("[")?;
        let base = self.value()?;
        let offset = match *self.lexer.token() {
            Token::Punct("+") => {
                self.lexer.advance()?;
                self.integer()?
            }
            Token::Punct("-") => self.integer()?,
            _ => 0,
        };
        self.lexer.punct("]")?;
        Ok(Place::At { ty, base, offset })
    }
}
