//! What a graph may have in some phases and not in others. A phase states the set of these facts that it may leave, and one verifier
//! checks the set after every phase.

use std::collections::HashSet;
use std::fmt;

use crate::dce;
use crate::half::is_half;
use onnxc_ir::error::{Error, Stage};
use onnxc_ir::graph::{Constant, Def, Graph, MapFn, NodeId, Op, RhsLayout, ValueId};

/// Something that a graph has, because one of its operations is so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    /// A product whose right-hand side lies as the model has it.
    PlainProducts,
    /// A product of panels.
    PanelProducts,
    /// A product of panels whose rows have an order of their own.
    OrderedProducts,
    /// An operation that lays out panels.
    Packing,
    /// Weights of few bits in panels.
    Codes,
    /// A state that is appended to in panels.
    PanelStates,
    /// A transform of minimal filtering.
    MinimalFiltering,
    /// Zeros around an image that are not stored.
    ImplicitPadding,
    /// Arithmetic on floats of 16 bits that the run computes.
    HalfArithmetic,
    /// A node that nothing reads.
    DeadNodes,
}

impl Fact {
    pub const ALL: &[Fact] = &[
        Fact::PlainProducts,
        Fact::PanelProducts,
        Fact::OrderedProducts,
        Fact::Packing,
        Fact::Codes,
        Fact::PanelStates,
        Fact::MinimalFiltering,
        Fact::ImplicitPadding,
        Fact::HalfArithmetic,
        Fact::DeadNodes,
    ];

    /// What it is called in messages and in `ARCHITECTURE.md`.
    pub fn name(self) -> &'static str {
        match self {
            Fact::PlainProducts => "plain products",
            Fact::PanelProducts => "products of panels",
            Fact::OrderedProducts => "products of ordered panels",
            Fact::Packing => "packing",
            Fact::Codes => "codes in panels",
            Fact::PanelStates => "states in panels",
            Fact::MinimalFiltering => "minimal filtering",
            Fact::ImplicitPadding => "implicit padding",
            Fact::HalfArithmetic => "16-bit arithmetic",
            Fact::DeadNodes => "dead nodes",
        }
    }

    /// The lowest optimization level whose passes rid a graph of it. Below, a phase may leave it.
    pub fn ends_at(self) -> u8 {
        match self {
            Fact::HalfArithmetic | Fact::DeadNodes => 1,
            Fact::PlainProducts
            | Fact::PanelProducts
            | Fact::OrderedProducts
            | Fact::Packing
            | Fact::Codes
            | Fact::PanelStates
            | Fact::MinimalFiltering
            | Fact::ImplicitPadding => 0,
        }
    }
}

/// A set of facts.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts(u32);

impl Facts {
    pub const fn of(facts: &[Fact]) -> Facts {
        let (mut bits, mut at) = (0, 0);
        while at < facts.len() {
            bits |= 1 << facts[at] as u32;
            at += 1;
        }
        Facts(bits)
    }

    pub const fn and(self, facts: &[Fact]) -> Facts {
        Facts(self.0 | Facts::of(facts).0)
    }

    pub const fn without(self, facts: &[Fact]) -> Facts {
        Facts(self.0 & !Facts::of(facts).0)
    }

    pub const fn has(self, fact: Fact) -> bool {
        self.0 & (1 << fact as u32) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Fact> {
        Fact::ALL.iter().copied().filter(move |&fact| self.has(fact))
    }

    /// The set at an optimization level that leaves out the passes which rid graphs of some facts.
    pub(crate) fn at_level(self, level: u8) -> Facts {
        let stays = |fact: &Fact| self.has(*fact) || level < fact.ends_at();
        Facts::of(&Fact::ALL.iter().copied().filter(stays).collect::<Vec<_>>())
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Fact::name).collect::<Vec<_>>().join(", "))
    }
}

/// The fact that an operation of a run shows, and a deferred constant as well, but for products: the compiler computes those of constants.
fn shown(op: &Op) -> Option<Fact> {
    match op {
        Op::Contract { rhs: RhsLayout::Plain, .. } => Some(Fact::PlainProducts),
        Op::Contract { rhs: RhsLayout::Panels { .. }, .. } => Some(Fact::PanelProducts),
        Op::Contract { rhs: RhsLayout::Ordered { .. }, .. } => Some(Fact::OrderedProducts),
        Op::Pack { .. } => Some(Fact::Packing),
        Op::Dequantize { .. } => Some(Fact::Codes),
        Op::Append { panel: Some(_), .. } => Some(Fact::PanelStates),
        Op::WinogradInput { .. } | Op::WinogradFilter { .. } | Op::WinogradOutput { .. } => {
            Some(Fact::MinimalFiltering)
        }
        Op::ImplicitPad { .. } => Some(Fact::ImplicitPadding),
        _ => None,
    }
}

/// Checks that a graph and the bodies in it have no facts but those of a set. The message names for each other fact the first operation
/// that shows it.
pub fn verify(graph: &Graph, allowed: Facts) -> Result<(), Error> {
    let mut found = Found { allowed, seen: Facts::default(), messages: vec![] };
    found.graph(graph, "");
    match found.messages.is_empty() {
        true => Ok(()),
        false => Err(Error::internal(Stage::Pass, found.messages.join("; "))),
    }
}

struct Found {
    allowed: Facts,
    /// What there is a message of.
    seen: Facts,
    messages: Vec<String>,
}

impl Found {
    fn add(&mut self, fact: Fact, what: impl FnOnce() -> String) {
        if !self.allowed.has(fact) && !self.seen.has(fact) {
            self.seen = self.seen.and(&[fact]);
            self.messages.push(format!("{}: {}", fact.name(), what()));
        }
    }

    fn graph(&mut self, graph: &Graph, body: &str) {
        // Values that are computed from constants alone: the compiler computes them in the types of the model.
        let mut fixed: HashSet<ValueId> = HashSet::new();
        let mut constants: HashSet<ValueId> = HashSet::new();
        let needed: HashSet<NodeId> = dce::needed(graph).into_iter().collect();
        for &id in &graph.order {
            let node = &graph.nodes[id];
            let name = || format!("{}{body}", node_name(graph, id));
            if let Some(fact) = shown(&node.op) {
                self.add(fact, name);
            }
            let is_fixed = |input: &ValueId| graph.is_constant(*input) || fixed.contains(input);
            if node.inputs.iter().all(is_fixed) {
                fixed.extend(&node.outputs);
            } else if computes_halves(graph, id) {
                self.add(Fact::HalfArithmetic, name);
            }
            if !needed.contains(&id) {
                self.add(Fact::DeadNodes, name);
            }
            for &input in &node.inputs {
                self.constant(graph, input, &mut constants, &name);
            }
            for inner in node.op.bodies() {
                self.graph(inner, &format!(" of a body of {}{body}", node_name(graph, id)));
            }
        }
        for (output, value) in &graph.outputs {
            self.constant(graph, *value, &mut constants, &|| format!("output `{output}`{body}"));
        }
    }

    /// The operations that a deferred constant is made by.
    fn constant(
        &mut self,
        graph: &Graph,
        value: ValueId,
        known: &mut HashSet<ValueId>,
        user: &dyn Fn() -> String,
    ) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if let Def::Const(Constant::Deferred { op, inputs }) = &graph.values[value].def
                && known.insert(value)
            {
                if let Some(fact) = shown(op).filter(|_| !matches!(**op, Op::Contract { .. })) {
                    self.add(fact, || format!("constant {value} ({}), which {} reads", op.name(), user()));
                }
                open.extend(inputs);
            }
        }
    }
}

fn node_name(graph: &Graph, id: NodeId) -> String {
    let node = &graph.nodes[id];
    match graph.origins.get(node.origin) {
        Some(origin) => format!("{id} ({}) of node `{}` ({})", node.op.name(), origin.name, origin.op_type),
        None => format!("{id} ({})", node.op.name()),
    }
}

/// Whether the results of a node are sums, products or comparisons of floats of 16 bits.
fn computes_halves(graph: &Graph, id: NodeId) -> bool {
    let node = &graph.nodes[id];
    let of_halves = || node.inputs.iter().any(|&input| is_half(graph.ty(input).dtype));
    match &node.op {
        Op::Map(MapFn::Unary(_) | MapFn::Binary(_) | MapFn::Compare(_)) | Op::Reduce { .. } => of_halves(),
        Op::Contract { .. } => node.outputs.iter().any(|&output| is_half(graph.ty(output).dtype)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, PHASES, run_all};
    use onnxc_ir::graph::parse::parse;

    /// The graph of a text, and what [`verify`] says if no facts are allowed.
    fn refused(body: &str, allowed: Facts) -> String {
        let graph =
            parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap_or_else(|error| panic!("{error}\n{body}"));
        verify(&graph, allowed).map_or_else(|error| error.message, |()| String::new())
    }

    /// A graph for each fact, and the operation that shows it.
    fn examples() -> Vec<(Fact, &'static str, &'static str)> {
        vec![
            (
                Fact::PlainProducts,
                r#"
                input v0 "x" : f32[4, 8]
                input v1 "w" : f32[8, 3]
                v2 = contract v0, v1 {batch=0, m=1, k=1} : f32[4, 3] @o0(0 "MatMul" "product")
                return v2 "y""#,
                "n0 (contract) of node `product` (MatMul)",
            ),
            (
                Fact::PanelProducts,
                r#"
                input v0 "x" : f32[4, 8]
                input v1 "w" : f32[1, 8, 4]
                v2 = contract v0, v1 {batch=0, m=1, k=1, nr=4, n=3} : f32[4, 3] @o0(0 "MatMul" "product")
                return v2 "y""#,
                "n0 (contract) of node `product` (MatMul)",
            ),
            (
                Fact::OrderedProducts,
                r#"
                input v0 "x" : u8[2, 8]
                input v1 "w" : i8[1, 2, 16]
                v2 = contract v0, v1 {batch=0, m=1, k=1, nr=4, short=1, n=4} : i32[2, 4] @o0(0 "MatMulInteger" "bytes")
                return v2 "y""#,
                "n0 (contract) of node `bytes` (MatMulInteger)",
            ),
            (
                Fact::Packing,
                r#"
                input v0 "x" : f32[8, 3]
                v1 = pack v0 {batch=0, k=1, nr=4} : f32[1, 8, 4] @o0(0 "MatMul" "product")
                return v1 "y""#,
                "n0 (pack) of node `product` (MatMul)",
            ),
            (
                Fact::Codes,
                r#"
                input v0 "codes" : u8[1, 2, 16, 16]
                input v1 "scales" : f32[1, 2, 16]
                v2 = dequantize v0, v1 {bits=8, bias=8} : f32[1, 2, 16, 16] @o0(0 "MatMulNBits" "product")
                return v2 "y""#,
                "n0 (dequantize) of node `product` (MatMulNBits)",
            ),
            (
                Fact::PanelStates,
                r#"
                symbol s0 "new"
                symbol s1 "past"
                symbol s2 "past.capacity"
                input v0 "k" : f32[2, s0, 64]
                input v1 "past" : f32[2, floordiv(15 + s2, 16), 64, 16]
                state 1, 0 axis 1 from s1 to s0 + s1 of s2 panels of 16 along 1 of s2
                v2 = append v1, v0 {axis=1, at=s1, panel=16} : f32[2, floordiv(15 + s2, 16), 64, 16] @o0(0 "Concat" "keys")
                return v2 "present""#,
                "n0 (append) of node `keys` (Concat)",
            ),
            (
                Fact::MinimalFiltering,
                r#"
                input v0 "x" : f32[1, 6, 6, 8]
                v1 = winograd_input v0 {tile=2} : f32[1, 2, 2, 16, 8] @o0(0 "Conv" "conv")
                return v1 "y""#,
                "n0 (winograd_input) of node `conv` (Conv)",
            ),
            (
                Fact::ImplicitPadding,
                r#"
                input v0 "x" : f32[4]
                v1 = implicit_pad v0 {lo=[1], hi=[1]} : f32[6] @o0(0 "Conv" "dilated")
                return v1 "y""#,
                "n0 (implicit_pad) of node `dilated` (Conv)",
            ),
            (
                Fact::HalfArithmetic,
                r#"
                input v0 "x" : f16[4]
                v1 = tanh v0 : f16[4] @o0(0 "Tanh" "tanh")
                return v1 "y""#,
                "n0 (tanh) of node `tanh` (Tanh)",
            ),
            (
                Fact::DeadNodes,
                r#"
                input v0 "x" : f32[4]
                v1 = tanh v0 : f32[4] @o0(0 "Tanh" "tanh")
                return v0 "y""#,
                "n0 (tanh) of node `tanh` (Tanh)",
            ),
        ]
    }

    #[test]
    fn what_a_phase_must_not_leave_is_refused_with_its_name() {
        let examples = examples();
        for fact in Fact::ALL {
            assert!(examples.iter().any(|(own, ..)| own == fact), "no graph for {fact:?}");
        }
        for (fact, text, operation) in &examples {
            let own = Facts::of(&[*fact]);
            assert_eq!(refused(text, own), "", "{fact:?}");
            assert_eq!(refused(text, Facts::default()), format!("{}: {operation}", fact.name()));
            for phase in PHASES.iter().filter(|phase| !phase.leaves.has(*fact)) {
                assert!(refused(text, phase.leaves).contains(operation), "{fact:?} after {}", phase.name);
            }
            // The first phase is not given what only later ones make.
            if !PHASES[0].requires.has(*fact) {
                let mut graph = parse(&format!("graph \"g\" {{\n{text}\n}}")).unwrap();
                let error = run_all(&mut graph, &Options::default(), &mut |_, _, _| {}).unwrap_err();
                assert!(
                    error.message.contains("before phase") && error.message.contains(operation),
                    "{error}"
                );
            }
        }
    }
}
