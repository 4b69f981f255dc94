//! Lowering: fusion groups become loop nests.
//!
//! Every value of a group that has no buffer is an expression of the index at which it is read; `expr.rs`
//! builds these by walking back through maps and views. What remains for each kind of group is the shape of
//! its loops: `map.rs`, `reduce.rs`, `rows.rs`, `contract.rs`, `single.rs`, and `chain.rs` for groups made of groups.

mod chain;
mod clamped;
mod codes;
pub mod contract;
pub mod explain;
mod expr;
mod leaves;
mod map;
mod picks;
mod primitives;
mod radix;
mod reduce;
mod rows;
mod runs;
mod single;
mod sort;
mod suppress;
mod winograd;

use std::collections::{HashMap, HashSet};

use self::chain::Slot;
use crate::{Access, Buf, Buffer, Expr, Index, Kernel, LoopKind, Stmt, Term, Var, visit};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Graph, Node, NodeId, ValueId};
use onnxc_machine::target::Core;
use onnxc_schedule::{Group, GroupKind};
use onnxc_tuning::{Picker, SHARED_TURNS, shared_axes};

/// Lowers one group to a kernel. Its buffers are the group's inputs, then its outputs, in their order, then its scratch.
pub fn lower(graph: &Graph, group: &Group, name: &str, core: &Core) -> Result<Kernel> {
    let mut cx = Lowering::new(graph, group, name, core);
    match group.kind {
        GroupKind::Map => cx.map()?,
        GroupKind::Reduce => cx.reduce()?,
        GroupKind::Rows => cx.rows()?,
        GroupKind::Chain => cx.chain()?,
        GroupKind::Contract => cx.contract()?,
        GroupKind::Winograd => cx.winograd_output()?,
        GroupKind::Single => cx.single()?,
    }
    if cx.kernel.tuning.is_empty() {
        // A group that reads no numbers takes no settings.
        cx.tuned(cx.picker())?;
    }
    visit::drop_idle(&mut cx.kernel);
    visit::drop_unused_lets(&mut cx.kernel.body);
    Ok(cx.kernel)
}

/// How often each value is read by the nodes of a group.
fn uses(graph: &Graph, group: &Group) -> HashMap<ValueId, u32> {
    let mut uses = HashMap::new();
    for &input in group.nodes.iter().flat_map(|&node| &graph.nodes[node].inputs) {
        *uses.entry(input).or_insert(0) += 1;
    }
    uses
}

fn internal<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::internal(Stage::Loops, message))
}

/// State of the lowering of one group.
struct Lowering<'a> {
    graph: &'a Graph,
    /// The group, or the stage of a chain, that is being lowered.
    group: &'a Group,
    core: &'a Core,
    kernel: Kernel,
    /// Buffers of materialised values.
    buffers: HashMap<ValueId, Buf>,
    inputs: HashSet<ValueId>,
    /// Extents of loop variables, which let divisions simplify.
    extents: HashMap<Var, Dim>,
    /// Names of a row's indices along its axes, and what they stand for: in an address they may make one stride again.
    row_names: HashMap<Var, Index>,
    /// Statements being collected; lets that an expression needs go to the innermost list.
    out: Vec<Vec<Stmt>>,
    /// Values already computed at an index in the open scopes.
    memo: Vec<HashMap<(ValueId, Vec<Index>), Expr>>,
    /// Values that are computed by the group's own loops: how to read them at an index.
    overrides: HashMap<ValueId, Override>,
    /// The value that a buffer holds once the kernel has written to it, where several take turns in it.
    holds: HashMap<Buf, ValueId>,
    /// Whether loads are bound and shared too; worth it where several elements are computed side by side.
    share_loads: bool,
    /// How often each value is read inside the group.
    uses: HashMap<ValueId, u32>,
    /// Number of the stage of a chain that is being lowered.
    stage: Option<usize>,
    /// Where that stage keeps the rows of its block, and where it stores what it makes of them if that is another place.
    slot: Option<Slot>,
    narrow_slot: Option<Slot>,
    /// Where a rows group keeps a row that is not a result, and its buffer.
    kept: Option<(Slot, Buf)>,
}

/// How a value that the group's loops have computed is read.
#[derive(Clone)]
enum Override {
    /// The same expression at every index: a register, or a let.
    Expr(Expr),
    /// From a buffer with the value's own row-major layout.
    Buffer(Buf),
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, group: &'a Group, name: &str, core: &'a Core) -> Lowering<'a> {
        let mut kernel = Kernel::new(name);
        let mut buffers = HashMap::new();
        let all = group.inputs.iter().map(|v| (v, Access::Read));
        for (&value, access) in all.chain(group.outputs.iter().map(|v| (v, Access::Write))) {
            let ty = graph.ty(value);
            let buffer = Buffer { name: value.to_string(), dtype: ty.dtype, len: ty.elements(), access };
            let buf = kernel.buffers.push(buffer);
            buffers.insert(value, buf);
        }
        Lowering {
            graph,
            group,
            core,
            kernel,
            buffers,
            inputs: group.inputs.iter().copied().collect(),
            extents: HashMap::new(),
            row_names: HashMap::new(),
            out: vec![vec![]],
            memo: vec![HashMap::new()],
            overrides: HashMap::new(),
            holds: HashMap::new(),
            share_loads: false,
            uses: uses(graph, group),
            stage: None,
            slot: None,
            narrow_slot: None,
            kept: None,
        }
    }

    /// Takes the numbers that a lowering reads.
    fn picker(&self) -> Picker<'a> {
        Picker::new(&self.kernel.name, self.stage, &self.group.settings)
    }

    /// Notes the numbers that were taken. A stage of a chain is lowered once for whole blocks and once for the rest, whose
    /// numbers follow from the same choice.
    fn tuned(&mut self, pick: Picker<'a>) -> Result<()> {
        let tuned = pick.finish()?;
        if !tuned.values.is_empty() && self.kernel.tuning.iter().all(|known| known.stage != tuned.stage) {
            self.kernel.tuning.push(tuned);
        }
        Ok(())
    }

    fn push(&mut self, stmt: Stmt) {
        self.out.last_mut().expect("a scope is open").push(stmt);
    }

    /// Collects the statements that `fill` produces in a scope of its own.
    fn scope(&mut self, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Stmt>> {
        self.out.push(vec![]);
        self.memo.push(HashMap::new());
        let result = fill(self);
        self.memo.pop();
        let stmts = self.out.pop().expect("the scope opened above");
        result.map(|()| stmts)
    }

    /// A loop over `0..extent` whose body `fill` produces; nothing but the body for an extent of 1.
    fn for_each(
        &mut self,
        name: &str,
        extent: &Dim,
        kind: LoopKind,
        fill: impl FnOnce(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        if *extent == Dim::ONE {
            return fill(self, Index::zero());
        }
        let var = self.kernel.loop_var(name);
        self.extents.insert(var, extent.clone());
        let body = self.scope(|cx| fill(cx, Index::var(var)))?;
        self.push(Stmt::For { var, lo: Index::zero(), hi: Index::dim(extent.clone()), step: 1, kind, body });
        Ok(())
    }

    /// Nested loops over a shape; the first loop has kind `first`, the others are serial.
    fn for_shape(
        &mut self,
        shape: &[Dim],
        first: LoopKind,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        self.for_rest(shape, first, vec![], fill)
    }

    fn for_rest(
        &mut self,
        shape: &[Dim],
        kind: LoopKind,
        index: Vec<Index>,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        let at = index.len();
        let Some(extent) = shape.get(at) else { return fill(self, index) };
        let next = if *extent == Dim::ONE { kind } else { LoopKind::Serial };
        self.for_each(&format!("x{at}"), extent, kind, |cx, var| {
            let mut index = index;
            index.push(var);
            cx.for_rest(shape, next, index, fill)
        })
    }

    /// Nested loops over a shape for threads to share: the outermost one joins the leading axes that together have enough turns for any
    /// size of an unknown batch.
    fn for_shared(
        &mut self,
        shape: &[Dim],
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        let (outer, inner) = shape.split_at(shared_axes(shape, SHARED_TURNS));
        self.for_each("x", &product(outer), LoopKind::Parallel, |cx, row| {
            let outer = cx.split_axes(&row, outer);
            cx.for_shape(inner, LoopKind::Serial, &mut |cx, inner| fill(cx, [outer.clone(), inner].concat()))
        })
    }

    /// Row number `row` of the flattened `axes` as an index per axis, each computed once.
    fn split_axes(&mut self, row: &Index, axes: &[Dim]) -> Vec<Index> {
        let indices = self.split_rows(row, axes);
        indices
            .into_iter()
            .zip(axes)
            .map(|(index, extent)| {
                if !index.divides() {
                    return index;
                }
                let var = self.name(index);
                self.extents.insert(var, extent.clone());
                Index::var(var)
            })
            .collect()
    }

    /// The same of two axes.
    fn split_pair(&mut self, row: &Index, axes: [&Dim; 2]) -> [Index; 2] {
        let indices = self.split_axes(row, &axes.map(Dim::clone));
        indices.try_into().expect("one of each axis")
    }

    /// Takes the statements collected at the outermost level as the kernel's body.
    fn finish(&mut self) {
        let body = std::mem::take(&mut self.out[0]);
        self.kernel.body.extend(body);
    }

    /// Address of an element of a value in its buffer: row-major, but for the rows of a chain's block.
    fn address(&self, value: ValueId, index: &[Index]) -> Index {
        let slots = self.slot.iter().chain(&self.narrow_slot).chain(self.kept.iter().map(|(slot, _)| slot));
        if let Some(slot) = slots.into_iter().find(|slot| slot.values.contains(&value)) {
            return slot.address(index);
        }
        let address = Index::row_major(index, &self.graph.ty(value).shape);
        self.at_one_stride(&address).unwrap_or(address)
    }

    /// An index that needs a division gets a name, so that it is computed once.
    fn named(&mut self, index: Index) -> Index {
        if index.divides() { Index::var(self.name(index)) } else { index }
    }

    /// The same for a row's index along an axis.
    fn named_row(&mut self, index: Index) -> Index {
        if !index.divides() {
            return index;
        }
        let var = self.name(index.clone());
        self.row_names.insert(var, index);
        Index::var(var)
    }

    fn name(&mut self, index: Index) -> Var {
        let var = self.kernel.let_var("row", DType::I64);
        self.push(Stmt::Let { var, value: Expr::Index(index) });
        var
    }

    /// An address whose named rows follow each other at one stride, without dividing their number.
    fn at_one_stride(&self, address: &Index) -> Option<Index> {
        let divided =
            |(term, _): &(Term, Dim)| matches!(term, Term::Var(var) if self.row_names.contains_key(var));
        if !address.terms.iter().any(divided) {
            return None;
        }
        let mut meaning = |var| Some(self.row_names.get(&var).cloned().unwrap_or_else(|| Index::var(var)));
        address.rewrite(&mut meaning, &self.extent_fn()).filter(|address| !address.divides())
    }

    /// Stores an expression into a materialised value.
    fn store(&mut self, value: ValueId, index: &[Index], expr: Expr) {
        let index = self.address(value, index);
        let buf = self.buffers[&value];
        self.holds.insert(buf, value);
        self.push(Stmt::Store { buf, index, value: expr });
    }

    /// Stores an element of each output of the group at its index. Every one of them is computed before the first is
    /// stored, since that may end what another is computed from: a row that is kept in an output's place.
    fn store_all(&mut self, outputs: Vec<(ValueId, Vec<Index>)>) -> Result<()> {
        let several = outputs.len() > 1;
        let mut elements = Vec::with_capacity(outputs.len());
        for (output, index) in &outputs {
            let element = self.expr_at(*output, index)?;
            elements.push(if several { self.bind("out", element) } else { element });
        }
        for ((output, index), element) in outputs.iter().zip(elements) {
            self.store(*output, index, element);
        }
        Ok(())
    }

    /// The element of a value in a buffer, which must not have passed on to another value.
    fn load(&self, value: ValueId, buf: Buf, index: &[Index]) -> Result<Expr> {
        match self.holds.get(&buf) {
            Some(&now) if now != value => internal(format!("{value} is read after {now} took its place")),
            _ => Ok(Expr::Load { buf, index: self.address(value, index) }),
        }
    }

    /// Binds an expression to a name, unless it is one already.
    fn bind(&mut self, name: &str, expr: Expr) -> Expr {
        if matches!(expr, Expr::Const { .. } | Expr::Var(_)) {
            return expr;
        }
        let dtype = self.kernel.dtype(&expr);
        let var = self.kernel.let_var(name, dtype);
        self.push(Stmt::Let { var, value: expr });
        Expr::Var(var)
    }

    /// An i64 expression as an index.
    fn as_index(&mut self, expr: Expr) -> Index {
        match expr {
            Expr::Index(index) => index,
            other => match self.bind("ix", other) {
                Expr::Var(var) => Index::var(var),
                Expr::Const { bits, .. } => Index::int(bits as i64),
                _ => unreachable!("bind gives a variable or a constant"),
            },
        }
    }

    fn extent_fn(&self) -> impl Fn(Var) -> Option<Dim> + '_ {
        |var| self.extents.get(&var).cloned()
    }

    /// The group's node that computes a value.
    fn group_producer(&self, value: ValueId) -> Option<&'a Node> {
        let node = self.graph.producer(value).filter(|node| self.group.nodes.contains(node))?;
        Some(&self.graph.nodes[node])
    }

    fn node_output(&self, node: NodeId) -> ValueId {
        self.graph.nodes[node].outputs[0]
    }
}
