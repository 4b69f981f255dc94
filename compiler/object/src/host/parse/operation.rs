//! Operations and what they name.

use cranelift_entity::EntityRef;

use super::ProgramParser;
use crate::host::abi::status;
use crate::host::ir::{
    Address, Callee, Condition, Frame, FrameField, FuncId, Op, Operand, Place, Port, Slot, Traced, Type,
    Value, exchange_function, extern_named,
};
use crate::host::print::{BINARIES, CHECKED, COMPARES, EVENTS, FRAME, OPTIONS, TENSOR, TRACED};
use onnxc_ir::error::Result;
use onnxc_ir::graph::parse::lexer::Token;

impl ProgramParser<'_> {
    /// The operation of this name, with the types of its results.
    pub(super) fn op(&mut self, name: &str) -> Result<Option<(Op, Vec<Type>)>> {
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
            "exchange" => {
                let Token::Word(function) = *self.lexer.token() else {
                    return self.lexer.expected("the name of a function");
                };
                let Some(function) = exchange_function(function) else {
                    return self.lexer.expected("a function of communicators");
                };
                self.lexer.advance()?;
                (Op::Exchange(function, self.operands()?), Type::I32)
            }
            "external" | "late" => {
                let late = name == "late";
                let Token::Word(symbol) = *self.lexer.token() else {
                    return self.lexer.expected("the name of a function");
                };
                self.lexer.advance()?;
                let operands = self.values_in_parentheses()?;
                let &[record] = &operands[..] else { return self.lexer.expected("one operand of external") };
                (Op::External(Callee { symbol: symbol.into(), late }, record), Type::I32)
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
            "step" | "unpolled_step" => {
                let polls = name == "step";
                let (number, mut what) = (self.lexer.integer()?, None);
                if self.lexer.eat_punct(",")? {
                    let has_bodies = self.item(&TRACED, "a kind of step")?;
                    what =
                        Some(Traced { has_bodies, kernel: self.next_string()?, nodes: self.next_string()? });
                }
                Op::Step { number, polls, what }
            }
            "event" => {
                let event = self.item(&EVENTS, "an event")?;
                self.lexer.punct(",")?;
                Op::Event(event, self.operand()?)
            }
            "step_done" => Op::StepDone(self.lexer.integer()?),
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
        const PLAIN: [(Address, &str); 6] = [
            (Address::Workspace, "workspace"),
            (Address::Options, "options"),
            (Address::Cancel, "cancel"),
            (Address::Report, "report"),
            (Address::Descriptor, "descriptor"),
            (Address::Strings, "strings"),
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
                self.lexer.integer()?
            }
            Token::Punct("-") => self.lexer.integer()?,
            _ => 0,
        };
        self.lexer.punct("]")?;
        Ok(Place::At { ty, base, offset })
    }
}
