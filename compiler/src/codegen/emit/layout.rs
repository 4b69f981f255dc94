//! What one object holds before any code is written: the layout of the weights, of the workspace and of the
//! sizes that depend on the inputs.
//!
//! The workspace of a run is: the values of the symbols and of all sizes made of them (nothing in a static model),
//! then the program's arena, then the state buffers of its scans. Every part starts at a multiple of 64.

use std::collections::HashMap;

use cranelift_entity::EntityRef;

use crate::codegen::emit::{KernelCode, Kernels};
use crate::error::{Error, Result, Stage};
use crate::graph::{Constant, Def, Dim, Graph, NodeId, Op, Sym, Tensor, ValueId};
use crate::schedule::{ALIGN, Group, GroupId, Place, Program, Step};

/// A program and what it refers to: the model's own, or the body of a scan.
#[derive(Clone, Copy)]
pub(super) struct Scope<'g> {
    pub graph: &'g Graph,
    pub program: &'g Program,
    pub kernels: &'g Kernels,
    /// Number of the scope: 0 for the model, then bodies in the order of the steps.
    pub index: usize,
}

impl<'g> Scope<'g> {
    pub fn group(&self, id: GroupId) -> Result<(&'g Group, &'g KernelCode)> {
        match (self.program.groups.get(id), self.kernels.groups.get(id)) {
            (Some(group), Some(kernel)) => Ok((group, kernel)),
            _ => Err(internal(format!("a step runs {id}, which has no kernel"))),
        }
    }

    /// The place of a value, behind aliases.
    pub fn place(&self, value: ValueId) -> Result<(ValueId, &'g Place)> {
        let mut at = value;
        for _ in 0..=self.graph.values.len() {
            match self.program.places.get(at).and_then(Option::as_ref) {
                Some(Place::Alias(other)) => at = *other,
                Some(place) => return Ok((at, place)),
                // A constant needs no decision of the schedule.
                None if self.graph.is_constant(at) => return Ok((at, &Place::Constant)),
                None => return Ok((at, &Place::None)),
            }
        }
        Err(internal(format!("{value} is an alias of itself")))
    }

    /// A scan of the graph behind a step.
    pub fn scan(&self, node: NodeId) -> Result<Scan<'g>> {
        let node_ref = self.graph.nodes.get(node).ok_or_else(|| internal(format!("no node {node}")))?;
        match &node_ref.op {
            Op::Scan { body, trip, states, scans, reverse } => Ok(Scan {
                inputs: &node_ref.inputs,
                outputs: &node_ref.outputs,
                body,
                trip,
                states: *states,
                scans: *scans,
                reverse,
            }),
            other => Err(internal(format!("a scan step on {}", other.name()))),
        }
    }

    pub fn body(&self, node: NodeId, program: &'g Program, index: usize) -> Result<Scope<'g>> {
        let kernels =
            self.kernels.bodies.get(&node).ok_or_else(|| internal(format!("no kernels of scan {node}")))?;
        Ok(Scope { graph: self.scan(node)?.body, program, kernels, index })
    }
}

/// The parts of an `Op::Scan` node.
pub(super) struct Scan<'g> {
    pub inputs: &'g [ValueId],
    pub outputs: &'g [ValueId],
    pub body: &'g Graph,
    pub trip: &'g Dim,
    pub states: usize,
    pub scans: usize,
    pub reverse: &'g [bool],
}

/// Buffers of a scan that no plan holds, as offsets from the start of the scans' buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct ScanBuffers {
    /// Number of the body's scope.
    pub body: usize,
    /// Per state: where every second iteration writes.
    pub states: Vec<Dim>,
    /// Per output that nothing reads: where it goes.
    pub unused: HashMap<usize, Dim>,
}

/// Constant data, at `offset` of the weights.
pub(super) struct Weight<'g> {
    pub graph: &'g Graph,
    pub source: WeightSource<'g>,
    pub offset: u64,
    pub bytes: u64,
}

pub(super) enum WeightSource<'g> {
    Value(ValueId),
    Tensor(&'g Tensor),
}

#[derive(Default)]
pub(super) struct Plan<'g> {
    pub weights: Vec<Weight<'g>>,
    pub weight_bytes: u64,
    offsets: HashMap<(usize, ValueId), u64>,
    /// Offset of the default of each graph input that has one.
    pub defaults: Vec<Option<u64>>,
    /// Distinct symbolic sizes that steps use.
    pub table: Vec<Dim>,
    table_index: HashMap<Dim, usize>,
    symbols: usize,
    /// Per scan step, by scope and step number.
    pub scans: HashMap<(usize, usize), ScanBuffers>,
    scopes: usize,
    /// Offset of the arena in the workspace, bytes.
    pub arena_at: i64,
    /// Offset of the scans' buffers in the workspace.
    pub scratch_at: Dim,
    /// Bytes of a whole workspace.
    pub workspace: Dim,
}

/// Nesting of scans that is accepted.
const SCAN_DEPTH: usize = 64;

impl<'g> Plan<'g> {
    pub fn new(root: Scope<'g>) -> Result<Plan<'g>> {
        let mut plan = Plan { symbols: root.graph.symbols.len(), scopes: 1, ..Plan::default() };
        let scratch = plan.scope(root, &Dim::ZERO, 0)?;
        for input in &root.graph.inputs {
            let offset = match &input.default {
                Some(tensor) => {
                    let bytes = tensor.data.len() as u64;
                    Some(plan.weight(root.graph, WeightSource::Tensor(tensor), bytes)?)
                }
                None => None,
            };
            plan.defaults.push(offset);
        }
        let arena = &root.program.arena;
        let entries = plan.symbols + plan.table.len();
        let dynamic = !arena.is_const() || !plan.table.is_empty() || plan.symbols > 0;
        plan.arena_at = if dynamic { round_up(8 * entries as i64) } else { 0 };
        plan.scratch_at = Dim::from(plan.arena_at) + aligned(arena);
        plan.workspace = if scratch == Dim::ZERO {
            Dim::from(plan.arena_at) + arena.clone()
        } else {
            plan.scratch_at.clone() + scratch
        };
        Ok(plan)
    }

    /// Offset of a constant in the weights.
    pub fn constant(&self, scope: &Scope<'_>, value: ValueId) -> Result<u64> {
        self.offsets
            .get(&(scope.index, value))
            .copied()
            .ok_or_else(|| internal(format!("{value} is not among the constants")))
    }

    /// Where a symbolic size is found at run time: its number in the array of symbol values and table entries.
    pub fn size_index(&self, dim: &Dim) -> Option<usize> {
        match dim.as_sym() {
            Some(sym) => Some(sym.index()),
            None => Some(self.symbols + self.table_index.get(dim)?),
        }
    }

    /// Collects one scope; `scratch` is where its scans' buffers may start. Gives where they end.
    fn scope(&mut self, scope: Scope<'g>, scratch: &Dim, depth: usize) -> Result<Dim> {
        if depth > SCAN_DEPTH {
            return Err(Error::unsupported(Stage::Codegen, "loops nested more than 64 deep"));
        }
        let mut end = scratch.clone();
        for (number, step) in scope.program.steps.iter().enumerate() {
            match step {
                Step::Run(id) => {
                    let (group, kernel) = scope.group(*id)?;
                    for &value in group.inputs.iter().chain(&group.outputs) {
                        self.value(&scope, value)?;
                    }
                    if let Some((lo, hi)) = &kernel.range {
                        self.size(lo);
                        self.size(hi);
                    }
                }
                Step::Copy { from, to } => {
                    self.value(&scope, *from)?;
                    self.value(&scope, *to)?;
                    self.size(&scope.graph.ty(*from).bytes());
                }
                Step::Scan { node, body, arena } => {
                    self.size(arena);
                    let used = self.scan(&scope, number, *node, body, scratch, depth)?;
                    // Scans run one after the other: they share the space.
                    end = end.max_dim(&used);
                }
            }
        }
        Ok(end)
    }

    fn scan(
        &mut self,
        scope: &Scope<'g>,
        step: usize,
        node: NodeId,
        program: &'g Program,
        scratch: &Dim,
        depth: usize,
    ) -> Result<Dim> {
        let scan = scope.scan(node)?;
        let mut buffers = ScanBuffers { body: self.scopes, ..ScanBuffers::default() };
        self.scopes += 1;
        self.size(scan.trip);
        let mut at = scratch.clone();
        let mut reserve = |plan: &mut Self, bytes: &Dim| {
            let offset = at.clone();
            plan.size(&offset);
            at = at.clone() + aligned(bytes);
            offset
        };
        for (number, &value) in scan.outputs.iter().enumerate() {
            self.value(scope, value)?;
            let (_, element) = scan
                .body
                .outputs
                .get(number)
                .ok_or_else(|| internal(format!("scan {node} has more results than its body")))?;
            let bytes = scan.body.ty(*element).bytes();
            self.size(&bytes);
            if number < scan.states {
                buffers.states.push(reserve(self, &bytes));
            }
            if *scope.place(value)?.1 == Place::None {
                buffers.unused.insert(number, reserve(self, &bytes));
            }
        }
        for &value in scan.inputs {
            self.value(scope, value)?;
        }
        for input in scan.body.inputs.iter().skip(scan.states).take(scan.scans) {
            self.size(&scan.body.ty(input.value).bytes());
        }
        let body = scope.body(node, program, buffers.body)?;
        self.scans.insert((scope.index, step), buffers);
        self.scope(body, &at, depth + 1)
    }

    /// Notes what the address of a value needs: a place in the weights, a size.
    fn value(&mut self, scope: &Scope<'g>, value: ValueId) -> Result<()> {
        let (value, place) = scope.place(value)?;
        match place {
            Place::Constant if !self.offsets.contains_key(&(scope.index, value)) => {
                if !matches!(
                    scope.graph.values[value].def,
                    Def::Const(Constant::Data(_) | Constant::Deferred { .. })
                ) {
                    return Err(internal(format!("{value} has a constant's place and is none")));
                }
                let bytes = scope.graph.ty(value).bytes().as_const();
                let bytes = bytes
                    .and_then(|bytes| u64::try_from(bytes).ok())
                    .ok_or_else(|| internal(format!("the constant {value} has no static size")))?;
                let offset = self.weight(scope.graph, WeightSource::Value(value), bytes)?;
                self.offsets.insert((scope.index, value), offset);
            }
            Place::Arena { offset, .. } => self.size(offset),
            _ => {}
        }
        Ok(())
    }

    fn weight(&mut self, graph: &'g Graph, source: WeightSource<'g>, bytes: u64) -> Result<u64> {
        let too_large = || Error::unsupported(Stage::Emit, "weights of more than 2^63 bytes");
        let offset = self.weight_bytes.next_multiple_of(ALIGN as u64);
        self.weight_bytes = offset.checked_add(bytes).filter(|&end| end < 1 << 62).ok_or_else(too_large)?;
        self.weights.push(Weight { graph, source, offset, bytes });
        Ok(offset)
    }

    fn size(&mut self, dim: &Dim) {
        if dim.is_const() || dim.as_sym().is_some() || self.table_index.contains_key(dim) {
            return;
        }
        self.table_index.insert(dim.clone(), self.table.len());
        self.table.push(dim.clone());
    }
}

/// Symbols that a lone dim of some input without default decides, in the order of their numbers.
pub(super) fn bound_symbols(graph: &Graph) -> Vec<Sym> {
    let mut symbols: Vec<Sym> = graph
        .inputs
        .iter()
        .filter(|input| input.default.is_none())
        .flat_map(|input| graph.ty(input.value).shape.iter().filter_map(Dim::as_sym))
        .collect();
    symbols.sort();
    symbols.dedup();
    symbols
}

/// A size rounded up to the alignment of the arena.
fn aligned(dim: &Dim) -> Dim {
    let align = Dim::from(ALIGN);
    match dim.as_const() {
        Some(bytes) => Dim::from(round_up(bytes)),
        None => match dim.ceil_div(&align) {
            Some(blocks) => blocks * align,
            None => dim.clone(),
        },
    }
}

fn round_up(bytes: i64) -> i64 {
    bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}

pub(super) fn internal(message: String) -> Error {
    Error::internal(Stage::Codegen, message)
}
