//! The text form of the tensor IR, read. `graph::print` writes it.
//!
//! ```text
//! graph     = "graph" STRING "{" symbol* metadata* assume* [strings] [rank] input* state* statement* return "}"
//! symbol    = "symbol" SYM STRING ["=" VALUE "[" INDEX "]" ["<=" dim]]   s0, s1, ... in order; defined by data
//! metadata  = "metadata" STRING STRING                  key, value
//! assume    = "assume" dim ("=" | "<=" | "->") dim [STRING STRING]   checked in every run; node and claim, for messages
//! strings   = "strings" STRING*                         the constant strings, by their numbers; of the outermost graph
//! rank      = "rank" INDEX "of" INDEX "plan" STRING      of a partitioned model: see `graph::exchange`
//! input     = "input" VALUE STRING ["named" STRING] ":" type [known] ["=" tensor]
//! state     = "state" INDEX "," INDEX ["axis" INDEX "from" SYM "to" dim "of" dim ["by" INDEX]]
//!                                                                      of the last inputs and outputs: see `graph::state`
//! statement = results "=" op ":" type [known] ("," type [known])* ["@" origin]
//!           | VALUE [STRING] "=" "const" tensor [known]
//!           | VALUE [STRING] "=" "const" op ":" type [known]      deferred
//!           | VALUE [STRING] "=" "const" "apart" INDEX tensor     a weight apart from the code: see `graph::apart`
//! results   = VALUE [STRING] ("," VALUE [STRING])*
//! return    = "return" [output ("," output)*]
//! output    = VALUE STRING ["rank" dim "from" INDEX]    the rank where only the run decides it, and the least that it may be
//! op        = NAME [VALUE ("," VALUE)*] ["{" attribute ("," attribute)* "}"]
//! attribute = NAME "=" (dim | NAME | "[" ... "]" | graph)
//! type      = DTYPE "[" [dim ("," dim)*] "]"
//! tensor    = type ("[" NUMBER, ... "]" | "0x" HEX)     elements, or all bytes in memory order
//! known     = "known" "[" [dim ("," dim)*] "]" | "unknown"
//! origin    = "o" DIGITS ["(" INDEX STRING STRING ")"]  position, operator, node name; once per origin
//! dim       = ["-"] product (("+" | "-") product)*
//! product   = factor ("*" factor)*
//! factor    = DIGITS | SYM | ("floordiv" | "mod" | "min" | "max" | "broadcast") "(" dim "," dim ")" | "(" dim ")"
//! ```
//!
//! `VALUE` is `v` and digits, `SYM` is `s` and digits; strings are those of Rust; `//` begins a comment.
//! A value is defined before it is used. Numbers of values and origins are kept; numbers that the text skips
//! become unused constants and empty origins. A body (of `scan`) may use the symbols of the graphs around
//! it. `#` and a hash stands for data that was left out, which cannot be read back. The parser checks the
//! form; `verify` checks the types.

pub mod lexer;
pub(super) mod operation;
mod parts;

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use cranelift_entity::EntityRef;

use crate::error::Result;
use crate::graph::claim::V;
use crate::graph::data::Says;
use crate::graph::dim::Sym;
use crate::graph::{
    AnyRank, Assumption, Claim, Constant, DType, DataSymbol, Def, Dim, Graph, Growth, Input, Node, NodeId,
    Origin, OriginId, Panels, Rank, Relation, Requirement, State, Strings, Symbol, Tensor, TensorType, Value,
    ValueId, Weight, strings::share,
};
use lexer::Token;
pub use parts::Parser;

/// Reads a graph; an error gives line, column and what was expected.
pub fn parse(text: &str) -> Result<Graph> {
    let mut parser = Parser::new(text, 0)?;
    let mut graph = parser.graph()?;
    if let Some(strings) = graph.strings.clone() {
        share(&mut graph, &strings);
    }
    match parser.lexer.token() {
        Token::End => Ok(graph),
        _ => parser.lexer.expected("the end of the text"),
    }
}

/// A graph while it is read; values have gaps until all are known.
#[derive(Default)]
struct Draft {
    graph: Graph,
    values: Vec<Option<Value>>,
    origins: Vec<Option<Origin>>,
}

impl Draft {
    fn is_defined(&self, value: ValueId) -> bool {
        self.values.get(value.index()).is_some_and(Option::is_some)
    }

    fn define(&mut self, id: ValueId, value: Value) {
        if self.values.len() <= id.index() {
            self.values.resize(id.index() + 1, None);
        }
        self.values[id.index()] = Some(value);
    }

    fn finish(mut self) -> Graph {
        for value in self.values {
            self.graph.values.push(value.unwrap_or_else(unused_value));
        }
        for origin in self.origins {
            let empty = Origin::default();
            self.graph.origins.push(origin.unwrap_or(empty));
        }
        self.graph
    }
}

/// What stands in for a value that the text skips.
fn unused_value() -> Value {
    let tensor = Tensor::from_slice::<bool>(&[0], &[]);
    Value {
        name: String::new(),
        ty: TensorType::new(DType::Bool, vec![Dim::ZERO]),
        known: tensor.known_elements(),
        def: Def::Const(Constant::Data(tensor)),
    }
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<Graph> {
        self.enter("graphs")?;
        let outer = self.symbols;
        self.lexer.keyword("graph")?;
        let mut draft = Draft::default();
        draft.graph.name = self.lexer.string()?;
        self.lexer.punct("{")?;
        while self.lexer.eat_keyword("symbol")? {
            self.symbol(&mut draft.graph)?;
        }
        while self.lexer.eat_keyword("metadata")? {
            let key = self.lexer.string()?;
            draft.graph.metadata.push((key, self.lexer.string()?));
        }
        while self.lexer.eat_keyword("assume")? {
            let assumption = self.assumption()?;
            draft.graph.assumptions.insert(assumption);
        }
        if self.lexer.eat_keyword("strings")? {
            let mut texts = vec![];
            while let Token::Str(_) = self.lexer.token() {
                texts.push(Bytes::from(self.lexer.string()?));
            }
            if texts.iter().collect::<HashSet<_>>().len() < texts.len() {
                return self.lexer.fail("a string is among the constant ones twice".to_string());
            }
            draft.graph.strings = Some(Strings::new(texts));
        }
        if self.lexer.eat_keyword("rank")? {
            draft.graph.rank = Some(self.rank()?);
        }
        while self.lexer.eat_keyword("input")? {
            self.input(&mut draft)?;
        }
        let mut growths = vec![];
        while self.lexer.eat_keyword("state")? {
            let input = self.index()?;
            self.lexer.punct(",")?;
            let ports = (input, self.index()?);
            growths.push((ports, self.growth()?, self.panels()?));
        }
        let first = draft.graph.inputs.len().saturating_sub(growths.len());
        for (input, (ports, growth, panels)) in draft.graph.inputs[first..].iter().zip(growths) {
            let stored = draft.values[input.value.index()].as_ref().map(|value| &value.ty);
            let whole =
                |ty: &TensorType| panels.as_ref().map_or_else(|| ty.clone(), |panels| panels.whole(ty));
            let ty = stored.map(whole);
            draft.graph.states.extend(ty.map(|ty| State { ports, ty, growth, panels }));
        }
        while !self.lexer.eat_keyword("return")? {
            self.statement(&mut draft)?;
        }
        if !self.lexer.is_punct("}") {
            loop {
                let value = self.used(&draft)?;
                let at = draft.graph.outputs.len();
                draft.graph.outputs.push((self.lexer.string()?, value));
                if self.lexer.eat_keyword("rank")? {
                    let rank = self.dim()?;
                    self.lexer.keyword("from")?;
                    draft.graph.any_rank.insert(at, AnyRank { rank, least: self.index()? });
                }
                if !self.lexer.eat_punct(",")? {
                    break;
                }
            }
        }
        if let Some((sym, data)) = draft.graph.data.iter().find(|(_, data)| !draft.is_defined(data.value)) {
            let message = format!("{sym} is defined by {}, which is not defined", data.value);
            return self.lexer.fail(message);
        }
        self.lexer.punct("}")?;
        self.symbols = outer;
        self.depth -= 1;
        Ok(draft.finish())
    }

    fn rank(&mut self) -> Result<Rank> {
        let rank = self.index()? as i64;
        self.lexer.keyword("of")?;
        let ranks = self.index()? as i64;
        self.lexer.keyword("plan")?;
        let at = self.lexer.position();
        match u64::from_str_radix(&self.lexer.string()?, 16) {
            Ok(plan) if rank < ranks => Ok(Rank { rank, ranks, plan: plan.cast_signed() }),
            Ok(_) => self.lexer.fail_at(at, format!("there is no rank {rank} of {ranks}")),
            Err(_) => self.lexer.fail_at(at, "expected a plan of hexadecimal digits".to_string()),
        }
    }

    fn growth(&mut self) -> Result<Option<Growth>> {
        if !self.lexer.eat_keyword("axis")? {
            return Ok(None);
        }
        let axis = self.index()?;
        self.lexer.keyword("from")?;
        let at = self.lexer.position();
        let Some(size) = self.dim()?.as_sym() else {
            return self.lexer.fail_at(at, "a state grows from a symbol".to_string());
        };
        self.lexer.keyword("to")?;
        let next = self.dim()?;
        self.lexer.keyword("of")?;
        let capacity = self.dim()?;
        Ok(Some(Growth { axis, size, next, capacity }))
    }

    fn panels(&mut self) -> Result<Option<Panels>> {
        if !self.lexer.eat_keyword("panels")? {
            return Ok(None);
        }
        self.lexer.keyword("of")?;
        let width = self.index()?;
        self.lexer.keyword("along")?;
        let axis = self.index()?;
        self.lexer.keyword("of")?;
        Ok(Some(Panels { axis, width, size: self.dim()? }))
    }

    fn symbol(&mut self, graph: &mut Graph) -> Result<()> {
        let wanted = Sym::new(graph.symbols.len());
        match self.lexer.token() {
            Token::Word(word) if *word == wanted.to_string() => self.lexer.advance()?,
            _ => return self.lexer.expected(&format!("the symbol {wanted}")),
        }
        let sym = graph.symbols.push(Symbol { name: self.lexer.string()? });
        self.symbols = self.symbols.max(graph.symbols.len());
        if self.lexer.eat_punct("=")? {
            if self.lexer.eat_keyword("seed")? {
                graph.seed = Some(sym);
                return Ok(());
            }
            let value = ValueId::new(self.numbered('v', "a value such as v0")?);
            self.lexer.punct("[")?;
            let element = self.index()?;
            self.lexer.punct("]")?;
            let bound = if self.lexer.eat_punct("<=")? { Some(self.dim()?) } else { None };
            let says = if self.lexer.eat_keyword("named")? {
                Some(Says::Name(self.lexer.string()?.into()))
            } else if self.lexer.eat_keyword("says")? {
                Some(Says::Text(self.lexer.string()?.into()))
            } else {
                None
            };
            graph.data.insert(sym, DataSymbol { value, element, bound, says });
        }
        Ok(())
    }

    /// A value that is defined here for the first time.
    fn fresh(&mut self, draft: &Draft) -> Result<ValueId> {
        let at = self.lexer.position();
        let id = ValueId::new(self.numbered('v', "a value such as v0")?);
        match draft.is_defined(id) {
            true => self.lexer.fail_at(at, format!("{id} is defined twice")),
            false => Ok(id),
        }
    }

    fn used(&mut self, draft: &Draft) -> Result<ValueId> {
        let at = self.lexer.position();
        let id = ValueId::new(self.numbered('v', "a value such as v0")?);
        match draft.is_defined(id) {
            true => Ok(id),
            false => self.lexer.fail_at(at, format!("{id} is not defined before its use")),
        }
    }

    fn assumption(&mut self) -> Result<Assumption> {
        let left = self.dim()?;
        let relation = if self.lexer.eat_punct("<=")? {
            Relation::AtMost
        } else if self.lexer.eat_punct("->")? {
            Relation::Broadcasts
        } else {
            self.lexer.punct("=")?;
            Relation::Equal
        };
        let requirement = Requirement { left, relation, right: self.dim()? };
        let (mut node, mut text, mut values) = (String::new(), String::new(), vec![]);
        if matches!(self.lexer.token(), Token::Str(_)) {
            (node, text) = (self.lexer.string()?, self.lexer.string()?);
            while self.lexer.eat_punct(",")? {
                values.push(self.dim()?);
            }
        }
        let at = self.lexer.position();
        if text.matches(V).count() != values.len() {
            return self.lexer.fail_at(at, format!("{} values of {text:?}", values.len()));
        }
        Ok(Assumption { requirement, node: node.into(), claim: Claim::new(text, values) })
    }

    fn input(&mut self, draft: &mut Draft) -> Result<()> {
        let id = self.fresh(draft)?;
        let name = self.lexer.string()?;
        let value_name = if self.lexer.eat_keyword("named")? { self.lexer.string()? } else { name.clone() };
        self.lexer.punct(":")?;
        let ty = self.ty()?;
        let known = self.known(None)?;
        let default = if self.lexer.eat_punct("=")? { Some(self.tensor()?) } else { None };
        let def = Def::Input(draft.graph.inputs.len());
        draft.define(id, Value { name: value_name, ty, def, known });
        draft.graph.inputs.push(Input { name, value: id, default });
        Ok(())
    }

    /// `known [...]`, `unknown`, or what the definition implies.
    fn known(&mut self, implied: Option<Arc<[Dim]>>) -> Result<Option<Arc<[Dim]>>> {
        if self.lexer.eat_keyword("known")? {
            Ok(Some(self.dims()?.into()))
        } else if self.lexer.eat_keyword("unknown")? {
            Ok(None)
        } else {
            Ok(implied)
        }
    }

    fn statement(&mut self, draft: &mut Draft) -> Result<()> {
        let mut results: Vec<(ValueId, String)> = Vec::new();
        loop {
            let at = self.lexer.position();
            let id = self.fresh(draft)?;
            if results.iter().any(|(other, _)| *other == id) {
                return self.lexer.fail_at(at, format!("{id} is defined twice"));
            }
            let name = if self.lexer.is_string() { self.lexer.string()? } else { String::new() };
            results.push((id, name));
            if !self.lexer.eat_punct(",")? {
                break;
            }
        }
        self.lexer.punct("=")?;
        if self.lexer.eat_keyword("const")? {
            return match <[(ValueId, String); 1]>::try_from(results) {
                Ok([(id, name)]) => self.constant(draft, id, name),
                Err(_) => self.lexer.fail("a constant defines one value".to_string()),
            };
        }
        let (op, inputs) = self.operation(draft)?;
        let node = NodeId::new(draft.graph.nodes.len());
        let outputs = results.iter().map(|(id, _)| *id).collect();
        for (at, (id, name)) in results.into_iter().enumerate() {
            self.lexer.punct(if at == 0 { ":" } else { "," })?;
            let ty = self.ty()?;
            let known = self.known(None)?;
            draft.define(id, Value { name, ty, def: Def::Node(node, at), known });
        }
        let origin = self.origin(draft)?;
        draft.graph.nodes.push(Node { op, inputs, outputs, origin });
        draft.graph.order.push(node);
        Ok(())
    }

    fn constant(&mut self, draft: &mut Draft, id: ValueId, name: String) -> Result<()> {
        let is_type = matches!(self.lexer.token(), Token::Word(word) if DType::from_name(word).is_some());
        let value = if is_type {
            let tensor = self.tensor()?;
            let shape = super::dim::dims(&tensor.shape);
            Value {
                name,
                ty: TensorType::new(tensor.dtype, shape),
                known: self.known(tensor.known_elements())?,
                def: Def::Const(Constant::Data(tensor)),
            }
        } else if self.lexer.eat_keyword("apart")? {
            let number = self.index()? as u32;
            let tensor = self.tensor()?;
            let shape = super::dim::dims(&tensor.shape);
            let ty = TensorType::new(tensor.dtype, shape);
            let def = Def::Const(Constant::Apart(Weight::new(number, tensor)));
            Value { name, ty, known: self.known(None)?, def }
        } else {
            let (op, inputs) = self.operation(draft)?;
            self.lexer.punct(":")?;
            let ty = self.ty()?;
            let def = Def::Const(Constant::Deferred { op: Arc::new(op), inputs });
            Value { name, ty, known: self.known(None)?, def }
        };
        draft.define(id, value);
        Ok(())
    }

    /// `@o3(7 "Conv" "conv1")`, `@o3`, or nothing for origin 0.
    fn origin(&mut self, draft: &mut Draft) -> Result<OriginId> {
        if !self.lexer.eat_punct("@")? {
            return Ok(OriginId::new(0));
        }
        let at = self.lexer.position();
        let number = self.numbered('o', "an origin such as o0")?;
        if self.lexer.eat_punct("(")? {
            let index = self.index()?;
            let op_type = self.lexer.string()?;
            let name = self.lexer.string()?;
            self.lexer.punct(")")?;
            if draft.origins.len() <= number {
                draft.origins.resize(number + 1, None);
            }
            if draft.origins[number].replace(Origin::new(name, op_type, index)).is_some() {
                return self.lexer.fail_at(at, format!("o{number} is described twice"));
            }
        }
        Ok(OriginId::new(number))
    }

    fn ty(&mut self) -> Result<TensorType> {
        let dtype = match self.lexer.token() {
            Token::Word(word) => DType::from_name(word),
            _ => None,
        };
        let Some(dtype) = dtype else { return self.lexer.expected("an element type such as f32") };
        self.lexer.advance()?;
        Ok(TensorType::new(dtype, self.dims()?))
    }

    /// A type without symbols, then elements.
    fn tensor(&mut self) -> Result<Tensor> {
        let at = self.lexer.position();
        let ty = self.ty()?;
        let bytes = ty.static_shape().and_then(|shape| {
            let bytes = shape.iter().try_fold(ty.dtype.size(), |bytes, &size| bytes.checked_mul(size))?;
            Some((shape, bytes))
        });
        let Some((shape, bytes)) = bytes else {
            return self.lexer.fail_at(at, format!("{ty} is not the type of a constant"));
        };
        if ty.dtype == DType::Str {
            let texts = self.list(|parser| parser.lexer.string())?;
            if texts.len() != shape.iter().product::<usize>() {
                return self.lexer.fail_at(at, format!("{ty} takes other than {} texts", texts.len()));
            }
            return Ok(Tensor::from_texts(&shape, &texts));
        }
        let data = match *self.lexer.token() {
            Token::Hex(digits) => {
                let data: Option<Vec<u8>> = digits
                    .as_bytes()
                    .chunks(2)
                    .map(|pair| {
                        u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|p| p.len() == 2)?, 16).ok()
                    })
                    .collect();
                let Some(data) = data else { return self.lexer.expected("two hex digits per byte") };
                self.lexer.advance()?;
                data
            }
            Token::Punct("[") => self.elements(ty.dtype)?,
            Token::Punct("#") => {
                return self.lexer.fail("this text leaves out the data of constants".to_string());
            }
            _ => return self.lexer.expected("the elements, as [..] or 0x.."),
        };
        if data.len() != bytes {
            let message = format!("{ty} takes {bytes} bytes, not {}", data.len());
            return self.lexer.fail_at(at, message);
        }
        Ok(Tensor::new(ty.dtype, shape, Bytes::from(data)))
    }

    fn elements(&mut self, dtype: DType) -> Result<Vec<u8>> {
        let parts = self.list(|parser| {
            let negative = parser.lexer.eat_punct("-")?;
            let (Token::Number(text) | Token::Word(text)) = *parser.lexer.token() else {
                return parser.lexer.expected("a number");
            };
            match element_bytes(dtype, text, negative) {
                Some(bytes) => {
                    parser.lexer.advance()?;
                    Ok(bytes)
                }
                None => parser.lexer.expected(&format!("an element of {dtype}")),
            }
        })?;
        Ok(parts.concat())
    }
}

/// The bytes of one element; `None` where the text is not a value of the type.
pub fn element_bytes(dtype: DType, text: &str, negative: bool) -> Option<Vec<u8>> {
    macro_rules! float {
        ($float:ty, $nan:expr, $convert:expr) => {{
            let magnitude: $float = text.parse().ok()?;
            let value = if negative { -magnitude } else { magnitude };
            // The sign of a NaN that is written as a number is plus.
            let value = if magnitude.is_nan() { $nan } else { $convert(value) };
            Some(value.to_le_bytes().to_vec())
        }};
    }
    macro_rules! int {
        ($int:ty) => {{
            let magnitude: i128 = text.parse().ok()?;
            let value = <$int>::try_from(if negative { -magnitude } else { magnitude }).ok()?;
            Some(value.to_le_bytes().to_vec())
        }};
    }
    use half::{bf16, f16};
    match dtype {
        DType::F32 => float!(f32, f32::NAN, |value| value),
        DType::F64 => float!(f64, f64::NAN, |value| value),
        DType::F16 => float!(f32, f16::NAN, f16::from_f32),
        DType::BF16 => float!(f32, bf16::NAN, bf16::from_f32),
        DType::I8 => int!(i8),
        DType::I16 => int!(i16),
        DType::I32 => int!(i32),
        DType::I64 => int!(i64),
        DType::U8 => int!(u8),
        DType::U16 => int!(u16),
        DType::U32 => int!(u32),
        DType::U64 => int!(u64),
        DType::Bool if !negative => Some(vec![u8::from(text.parse::<bool>().ok()?)]),
        _ => None,
    }
}
