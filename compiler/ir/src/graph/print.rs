//! The text form of the tensor IR, written. `graph::parse` documents the grammar and reads it.
//!
//! Two styles: [`to_text`] is complete and parses back to the same graph; `Display` is for people and
//! replaces the data of large constants by a hash of it.

use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::digest::fnv1a;
use crate::graph::data::Says;
use crate::graph::parse::operation::attributes;
use crate::graph::{
    AnyRank, Assumption, Constant, DType, Def, Graph, Growth, Node, Op, Panels, Rank, Requirement, Tensor,
    TensorType, Value, ValueId,
};

/// What code that is made of a graph depends on: its text without names of values and nodes, and without the data of weights that
/// lie apart. Behind each line is its name in messages: that of a weight or a node.
pub fn structure(graph: &Graph) -> Vec<(String, String)> {
    let mut out = String::new();
    let mut printer = Printer { out: &mut out, style: Style::Structure };
    printer.graph(graph, 0).expect("writing to a string cannot fail");
    let mut numbers = HashMap::new();
    let mut lines = vec![];
    for line in out.lines() {
        let (text, label) = line.split_once(LABEL).unwrap_or((line, ""));
        lines.push((renumbered(text, &mut numbers), label.to_string()));
    }
    lines
}

/// Between a line of [`structure`] and its label.
const LABEL: char = '\t';

/// The text with values numbered in the order in which they are named: the numbers that passes give depend on what they tried.
fn renumbered<'t>(text: &'t str, numbers: &mut HashMap<&'t str, usize>) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut quoted, mut last) = (text, false, ' ');
    while let Some(first) = rest.chars().next() {
        let is_name = first == 'v' && !quoted && !(last.is_alphanumeric() || last == '_');
        let length = rest.bytes().skip(1).take_while(u8::is_ascii_digit).count() + 1;
        if is_name && length > 1 {
            let count = numbers.len();
            let number = numbers.entry(&rest[..length]).or_insert(count);
            let _ = write!(out, "v{number}");
            (rest, last) = (&rest[length..], '0');
            continue;
        }
        quoted ^= first == '"' && last != '\\';
        out.push(first);
        // Two backslashes are one character, which escapes nothing.
        last = if first == '\\' && last == '\\' { ' ' } else { first };
        rest = &rest[first.len_utf8()..];
    }
    out
}

/// Constants of up to this many elements are written as numbers.
const INLINE: usize = 16;

/// The complete text of a graph. Values that nothing live uses are left out.
pub fn to_text(graph: &Graph) -> String {
    let mut out = String::new();
    let mut printer = Printer { out: &mut out, style: Style::Full };
    printer.graph(graph, 0).expect("writing to a string cannot fail");
    out
}

/// For people: large constants as `#` and a hash of their data.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printer { out: f, style: Style::Short }.graph(self, 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Parses back.
    Full,
    /// With hashes of large constants.
    Short,
    /// See [`structure`].
    Structure,
}

struct Printer<'a> {
    out: &'a mut dyn Write,
    style: Style,
}

impl Printer<'_> {
    fn graph(&mut self, graph: &Graph, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        let name = if self.style == Style::Structure { "" } else { graph.name.as_str() };
        writeln!(self.out, "graph {name:?} {{")?;
        let live = graph.live_data_symbols();
        for (sym, symbol) in graph.symbols.iter() {
            write!(self.out, "{indent}  symbol {sym} {:?}", symbol.name)?;
            if graph.seed == Some(sym) {
                write!(self.out, " = seed")?;
            }
            if let Some(data) = graph.data.get(&sym).filter(|_| live.contains(&sym)) {
                write!(self.out, " = {}[{}]", data.value, data.element)?;
                if let Some(bound) = &data.bound {
                    write!(self.out, " <= {bound}")?;
                }
                match data.says.as_ref().filter(|_| self.style != Style::Structure) {
                    Some(Says::Name(name)) => write!(self.out, " named {name:?}")?,
                    Some(Says::Text(text)) => write!(self.out, " says {text:?}")?,
                    None => {}
                }
            }
            writeln!(self.out)?;
        }
        for (key, value) in graph.metadata.iter().filter(|_| self.style != Style::Structure) {
            writeln!(self.out, "{indent}  metadata {key:?} {value:?}")?;
        }
        for Assumption { requirement: Requirement { left, relation, right }, node, claim } in
            graph.assumptions.iter()
        {
            write!(self.out, "{indent}  assume {left} {relation} {right}")?;
            if self.style != Style::Structure && !(node.is_empty() && claim.text.is_empty()) {
                write!(self.out, " {node:?} {:?}", claim.text)?;
                claim.values.iter().try_for_each(|value| write!(self.out, ", {value}"))?;
            }
            writeln!(self.out)?;
        }
        if let Some(strings) = graph.strings.as_ref().filter(|_| depth == 0) {
            write!(self.out, "{indent}  strings")?;
            strings
                .texts()
                .iter()
                .try_for_each(|text| write!(self.out, " {:?}", String::from_utf8_lossy(text)))?;
            writeln!(self.out)?;
        }
        if let Some(Rank { rank, ranks, plan }) = graph.rank {
            writeln!(self.out, "{indent}  rank {rank} of {ranks} plan \"{plan:016x}\"")?;
        }
        for input in &graph.inputs {
            let value = &graph.values[input.value];
            write!(self.out, "{indent}  input {} {:?}", input.value, input.name)?;
            if value.name != input.name && self.style != Style::Structure {
                write!(self.out, " named {:?}", value.name)?;
            }
            write!(self.out, " : {}", value.ty)?;
            self.known(value)?;
            if let Some(default) = &input.default {
                write!(self.out, " = ")?;
                self.tensor(default)?;
            }
            writeln!(self.out)?;
        }
        for state in &graph.states {
            write!(self.out, "{indent}  state {}, {}", state.ports.0, state.ports.1)?;
            if let Some(Growth { axis, size, next, capacity }) = &state.growth {
                write!(self.out, " axis {axis} from {size} to {next} of {capacity}")?;
            }
            if let Some(Panels { axis, width, size }) = &state.panels {
                write!(self.out, " panels of {width} along {axis} of {size}")?;
            }
            writeln!(self.out)?;
        }
        self.body(graph, depth, &indent)?;
        write!(self.out, "{indent}  return")?;
        for (at, (name, value)) in graph.outputs.iter().enumerate() {
            write!(self.out, "{} {value} {name:?}", if at == 0 { "" } else { "," })?;
            if let Some(AnyRank { rank, least }) = graph.any_rank.get(&at) {
                write!(self.out, " rank {rank} from {least}")?;
            }
        }
        write!(self.out, "\n{indent}}}")?;
        if depth == 0 { writeln!(self.out) } else { Ok(()) }
    }

    /// Nodes in their order, each constant before its first use.
    fn body(&mut self, graph: &Graph, depth: usize, indent: &str) -> fmt::Result {
        let mut done = cranelift_entity::EntitySet::new();
        let mut origins = cranelift_entity::EntitySet::new();
        for &id in &graph.order {
            let node = &graph.nodes[id];
            for &input in node.inputs.iter().chain(&graph.needs(id)) {
                self.constants(graph, input, &mut done, depth, indent)?;
            }
            write!(self.out, "{indent}  ")?;
            for (at, &output) in node.outputs.iter().enumerate() {
                if at > 0 {
                    write!(self.out, ", ")?;
                }
                self.defined(graph, output)?;
            }
            write!(self.out, " = ")?;
            self.application(&node.op, &node.inputs, depth)?;
            for (at, &output) in node.outputs.iter().enumerate() {
                write!(self.out, "{}{}", if at == 0 { " : " } else { ", " }, graph.ty(output))?;
                self.known(&graph.values[output])?;
            }
            self.origin(graph, node, &mut origins)?;
            writeln!(self.out)?;
        }
        for (_, value) in &graph.outputs {
            self.constants(graph, *value, &mut done, depth, indent)?;
        }
        Ok(())
    }

    /// An ONNX node is written out where it is first named.
    fn origin(
        &mut self,
        graph: &Graph,
        node: &Node,
        named: &mut cranelift_entity::EntitySet<crate::graph::OriginId>,
    ) -> fmt::Result {
        let origin = graph.origins.get(node.origin);
        if self.style == Style::Structure {
            return match origin {
                Some(origin) => {
                    write!(self.out, "{LABEL}node `{}` ({})", line(&origin.name), line(&origin.op_type))
                }
                None => Ok(()),
            };
        }
        write!(self.out, " @{}", node.origin)?;
        match origin {
            Some(origin) if named.insert(node.origin) => {
                write!(self.out, "({} {:?} {:?})", origin.index, origin.op_type, origin.name)
            }
            _ => Ok(()),
        }
    }

    fn defined(&mut self, graph: &Graph, value: ValueId) -> fmt::Result {
        match graph.values[value].name.as_str() {
            _ if self.style == Style::Structure => write!(self.out, "{value}"),
            "" => write!(self.out, "{value}"),
            name => write!(self.out, "{value} {name:?}"),
        }
    }

    /// `value`, if it is a constant that has not been written, after the constants it is computed from.
    fn constants(
        &mut self,
        graph: &Graph,
        value: ValueId,
        done: &mut cranelift_entity::EntitySet<ValueId>,
        depth: usize,
        indent: &str,
    ) -> fmt::Result {
        let mut stack = vec![(value, false)];
        while let Some((value, ready)) = stack.pop() {
            let Def::Const(constant) = &graph.values[value].def else { continue };
            if let (false, Constant::Deferred { inputs, .. }) = (ready, constant) {
                if !done.contains(value) {
                    stack.push((value, true));
                    stack.extend(inputs.iter().rev().map(|&input| (input, false)));
                }
                continue;
            }
            if !done.insert(value) {
                continue;
            }
            write!(self.out, "{indent}  ")?;
            self.defined(graph, value)?;
            write!(self.out, " = const ")?;
            match constant {
                Constant::Data(tensor) => self.tensor(tensor)?,
                Constant::Deferred { op, inputs } => {
                    self.application(op, inputs, depth)?;
                    write!(self.out, " : {}", graph.ty(value))?;
                }
                Constant::Apart(weight) => {
                    write!(self.out, "apart ")?;
                    if self.style == Style::Structure {
                        write!(self.out, "{}{}", graph.ty(value), weight.facts())?;
                    } else {
                        write!(self.out, "{} ", weight.number)?;
                        self.tensor(&weight.tensor)?;
                    }
                }
            }
            self.known(&graph.values[value])?;
            if self.style == Style::Structure && !graph.values[value].name.is_empty() {
                write!(self.out, "{LABEL}`{}`", line(&graph.values[value].name))?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Known elements, where they are not those that the definition implies.
    fn known(&mut self, value: &Value) -> fmt::Result {
        let implied = match &value.def {
            Def::Const(Constant::Data(tensor)) => tensor.known_elements(),
            _ => None,
        };
        match &value.known {
            known if *known == implied => Ok(()),
            Some(elements) => write!(self.out, " known {elements:?}"),
            None => write!(self.out, " unknown"),
        }
    }

    fn application(&mut self, op: &Op, inputs: &[ValueId], depth: usize) -> fmt::Result {
        write!(self.out, "{}", op.name())?;
        for (at, input) in inputs.iter().enumerate() {
            write!(self.out, "{} {input}", if at == 0 { "" } else { "," })?;
        }
        let attributes = attributes(op);
        let names: &[&str] = if matches!(op, Op::If { .. }) { &["then", "else"] } else { &["body"] };
        if attributes.is_empty() && !op.is_control() {
            return Ok(());
        }
        write!(self.out, " {{{attributes}")?;
        for (at, (name, body)) in names.iter().zip(op.bodies()).enumerate() {
            let separator = if at == 0 && attributes.is_empty() { "" } else { ", " };
            write!(self.out, "{separator}{name}=")?;
            self.graph(body, depth + 1)?;
        }
        write!(self.out, "}}")
    }

    fn tensor(&mut self, tensor: &Tensor) -> fmt::Result {
        let shape = super::dim::dims(&tensor.shape);
        write!(self.out, "{} ", TensorType::new(tensor.dtype, shape))?;
        if tensor.dtype == DType::Str {
            let texts: Vec<String> =
                tensor.texts().iter().map(|text| format!("{:?}", String::from_utf8_lossy(text))).collect();
            return write!(self.out, "[{}]", texts.join(", "));
        }
        if tensor.len() <= INLINE
            && let Some(numbers) = numbers(tensor)
        {
            return write!(self.out, "[{}]", numbers.join(", "));
        }
        if self.style != Style::Full {
            return write!(self.out, "#{:016x}", fnv1a(&tensor.data));
        }
        write!(self.out, "0x")?;
        tensor.data.iter().try_for_each(|byte| write!(self.out, "{byte:02x}"))
    }
}

/// Elements as numbers that read back to the same bits; `None` where a type or a NaN has no such form.
pub fn numbers(tensor: &Tensor) -> Option<Vec<String>> {
    /// Shortest form that reads back as the same number.
    fn float(value: impl fmt::Debug, nan: bool, canonical: bool) -> Option<String> {
        let text = format!("{value:?}").to_lowercase();
        (!nan || canonical).then(|| text.strip_suffix(".0").unwrap_or(&text).to_string())
    }
    match tensor.dtype {
        DType::F32 => tensor
            .values::<f32>()
            .into_iter()
            .map(|v| float(v, v.is_nan(), v.to_bits() == f32::NAN.to_bits()))
            .collect(),
        DType::F64 => tensor
            .values::<f64>()
            .into_iter()
            .map(|v| float(v, v.is_nan(), v.to_bits() == f64::NAN.to_bits()))
            .collect(),
        DType::F16 => tensor
            .values::<half::f16>()
            .into_iter()
            .map(|v| float(v.to_f32(), v.is_nan(), v.to_bits() == half::f16::NAN.to_bits()))
            .collect(),
        DType::BF16 => tensor
            .values::<half::bf16>()
            .into_iter()
            .map(|v| float(v.to_f32(), v.is_nan(), v.to_bits() == half::bf16::NAN.to_bits()))
            .collect(),
        DType::Bool if tensor.data.iter().all(|&byte| byte <= 1) => {
            Some(tensor.values::<bool>().into_iter().map(|v| v.to_string()).collect())
        }
        DType::U64 => Some(tensor.values::<u64>().into_iter().map(|v| v.to_string()).collect()),
        dtype if dtype.is_int() && !dtype.is_packed() => {
            Some(tensor.to_i64s()?.into_iter().map(|v| v.to_string()).collect())
        }
        _ => None,
    }
}

/// A name on one line, without what ends a line of [`structure`].
fn line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
