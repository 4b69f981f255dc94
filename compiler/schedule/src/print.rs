//! Text form and summary of a program, for people.

use std::fmt::{self, Write};

use crate::{GroupId, GroupKind, Program, Scratch, Step, Storage};
use onnxc_ir::graph::{Dim, Graph, ValueId};

/// Numbers about a program; bodies are counted in.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Stats {
    /// Groups of each kind.
    pub map: usize,
    pub contract: usize,
    pub winograd: usize,
    pub reduce: usize,
    pub rows: usize,
    pub chain: usize,
    pub single: usize,
    pub controls: usize,
    pub copies: usize,
    /// Values with bytes of the arena of their own, and values that share another's bytes.
    pub buffers: usize,
    pub aliases: usize,
    /// Blocks that a run allocates.
    pub heap: usize,
    /// Bytes, of the outermost program.
    pub arena: Dim,
    pub bound: Dim,
}

impl Stats {
    /// Number of kernels.
    pub fn groups(&self) -> usize {
        self.map + self.contract + self.winograd + self.reduce + self.rows + self.chain + self.single
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { map, contract, winograd, reduce, rows, chain, single, controls, copies, .. } = self;
        write!(
            f,
            "{} groups ({contract} contract, {winograd} winograd, {rows} rows, {chain} chain, ",
            self.groups()
        )?;
        write!(f, "{reduce} reduce, {map} map, {single} single), {controls} loops and choices, ")?;
        write!(f, "{copies} copies, ")?;
        write!(f, "{} buffers, {} aliases, ", self.buffers, self.aliases)?;
        if self.heap > 0 {
            write!(f, "{} allocated, ", self.heap)?;
        }
        write!(f, "arena {} bytes, bound {}", self.arena, self.bound)
    }
}

impl Program {
    pub fn stats(&self) -> Stats {
        let mut stats = Stats { arena: self.arena.clone(), bound: self.bound.clone(), ..Stats::default() };
        let mut stack = vec![self];
        while let Some(program) = stack.pop() {
            for group in program.groups.values() {
                *match group.kind {
                    GroupKind::Map => &mut stats.map,
                    GroupKind::Contract => &mut stats.contract,
                    GroupKind::Winograd => &mut stats.winograd,
                    GroupKind::Reduce => &mut stats.reduce,
                    GroupKind::Rows => &mut stats.rows,
                    GroupKind::Chain => &mut stats.chain,
                    GroupKind::Single => &mut stats.single,
                } += 1;
            }
            for (_, place) in program.places.iter() {
                match place {
                    Some(Storage::Arena { .. }) => stats.buffers += 1,
                    Some(Storage::Alias(_)) => stats.aliases += 1,
                    _ => {}
                }
            }
            for step in &program.steps {
                match step {
                    Step::Run(_) | Step::Bind(_) | Step::Release(_) => {}
                    Step::Allocate(_) => stats.heap += 1,
                    Step::Copy { .. } => stats.copies += 1,
                    Step::Control { bodies, .. } => {
                        stats.controls += 1;
                        stack.extend(bodies);
                    }
                }
            }
        }
        stats
    }

    /// The text form with the operations and types of the graph it was made from.
    pub fn text(&self, graph: &Graph) -> String {
        let mut out = String::new();
        self.write(&mut out, Some(graph), 0).expect("writing to a string does not fail");
        out
    }

    fn write(&self, out: &mut dyn Write, graph: Option<&Graph>, indent: usize) -> fmt::Result {
        let pad = " ".repeat(indent * 2);
        writeln!(out, "{pad}arena {} bytes, bound {}", self.arena, self.bound)?;
        for step in &self.steps {
            match step {
                Step::Run(id) => {
                    write!(out, "{pad}{id} ")?;
                    self.write_group(out, *id, graph)?;
                }
                Step::Copy { from, output } => {
                    writeln!(out, "{pad}copy {} to output {output}", self.placed(*from, graph))?;
                }
                Step::Bind(sym) => match graph.map(|graph| &graph.data[sym]) {
                    Some(data) => writeln!(out, "{pad}bind {sym} = {}[{}]", data.value, data.element)?,
                    None => writeln!(out, "{pad}bind {sym}")?,
                },
                Step::Allocate(block) => {
                    writeln!(out, "{pad}allocate {block}: {} bytes", self.heap[*block].bytes)?;
                }
                Step::Release(block) => writeln!(out, "{pad}release {block}")?,
                Step::Control { node, bodies, scratch } => {
                    let op = graph.map(|graph| &graph.nodes[*node].op);
                    let name = op.map_or("control", |op| op.name());
                    match scratch {
                        Scratch::Arena(offset) => writeln!(out, "{pad}{name} {node} at {offset}")?,
                        Scratch::Heap(block) => writeln!(out, "{pad}{name} {node} in {block}")?,
                    }
                    for (at, body) in bodies.iter().enumerate() {
                        let inner = op.and_then(|op| op.bodies().get(at));
                        body.write(out, inner, indent + 1)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_group(&self, out: &mut dyn Write, id: GroupId, graph: Option<&Graph>) -> fmt::Result {
        let group = &self.groups[id];
        let kind = match group.kind {
            GroupKind::Map => "map",
            GroupKind::Contract => "contract",
            GroupKind::Winograd => "winograd",
            GroupKind::Reduce => "reduce",
            GroupKind::Rows => "rows",
            GroupKind::Chain => "chain",
            GroupKind::Single => "single",
        };
        let list = |values: &[ValueId]| -> String {
            let texts: Vec<String> = values.iter().map(|&value| self.placed(value, graph)).collect();
            texts.join(", ")
        };
        let nodes: Vec<String> = group
            .nodes
            .iter()
            .map(|&node| match graph {
                Some(graph) => format!("{} {node}", graph.nodes[node].op.name()),
                None => node.to_string(),
            })
            .collect();
        let (outputs, inputs) = (list(&group.outputs), list(&group.inputs));
        write!(out, "{kind} ({outputs}) = {{{}}}({inputs})", nodes.join(", "))?;
        match &self.scratch[id] {
            Some(Scratch::Arena(offset)) => write!(out, " scratch [{offset} +{}]", group.scratch)?,
            Some(Scratch::Heap(block)) => write!(out, " scratch in {block}")?,
            None => {}
        }
        writeln!(out)
    }

    /// A value, where it lies, and its type.
    fn placed(&self, value: ValueId, graph: Option<&Graph>) -> String {
        let mut text = value.to_string();
        match &self.places[value] {
            None | Some(Storage::None) => text.push_str(" nowhere"),
            Some(Storage::Input(at)) => text.push_str(&format!(" input {at}")),
            Some(Storage::Output(at)) => text.push_str(&format!(" output {at}")),
            Some(Storage::Constant) => text.push_str(" constant"),
            Some(Storage::Arena { offset, size }) => text.push_str(&format!(" [{offset} +{size}]")),
            Some(Storage::Heap(block)) => text.push_str(&format!(" in {block}")),
            Some(Storage::Alias(of)) => text.push_str(&format!(" in {of}")),
        }
        if let Some(graph) = graph {
            text.push_str(&format!(": {}", graph.ty(value)));
        }
        text
    }
}

/// One line per step: groups with their kind, outputs, nodes and inputs, each value with its place.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None, 0)
    }
}
