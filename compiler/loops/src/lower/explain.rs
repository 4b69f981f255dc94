//! Why a kernel failed: a nest of its own for a group with indices that data decide, which looks for the first of them that is
//! out of range.
//!
//! Kernels check indices where they use them, several threads at once, and say only that one is wrong. When a kernel has
//! failed, the host program runs this nest, on one thread: it goes over the indices in their order, regardless of those that the kernel
//! read, and so finds the same one for every number of threads. What it found is in its last buffer.

use std::fmt::Write;

use super::Lowering;
use super::picks::{self, Range};
use crate::{Access, Buf, Buffer, Expr, Index, Kernel, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::claim::{V, printable};
use onnxc_ir::graph::op::Picks;
use onnxc_ir::graph::{DType, Dim, Graph, NodeId, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_machine::target::Core;
use onnxc_schedule::{Group, GroupKind};

/// Most axes of indices whose places are reported one by one; of more, the place in all is.
const MOST_AXES: usize = 8;

/// Words of what a nest reports: the place of an index, the index, and its bounds.
pub const REPORT_WORDS: usize = MOST_AXES + 3;

/// A nest that explains a failure. Its buffers are the group's inputs, and one of [`REPORT_WORDS`] numbers.
pub struct Explanation {
    pub kernel: Kernel,
    /// What code number 1, 2, ... of the nest means: a text in which each [`V`] stands for the next number of the report.
    pub texts: Vec<String>,
}

/// The nest of a group; `None` where it has no such indices, or nobody has any more what they are computed from. `lost` are
/// inputs that the group's kernel overwrites.
pub fn explain(
    graph: &Graph,
    group: &Group,
    lost: &[ValueId],
    name: &str,
    core: &Core,
) -> Result<Option<Explanation>> {
    // Without outputs no value is taken to be in a buffer that the failed kernel would have written.
    let bare =
        Group { kind: GroupKind::Map, outputs: vec![], stages: vec![], scratch: Dim::ZERO, ..group.clone() };
    let mut cx = Lowering::new(graph, &bare, name, core);
    cx.inputs.retain(|value| !lost.contains(value));
    let len = Dim::from(REPORT_WORDS);
    let report = Buffer { name: "report".into(), dtype: DType::I64, len, access: Access::Write };
    let report = cx.kernel.buffers.push(report);
    let mut texts = vec![];
    for &node in &group.nodes {
        let Some(checked) = Checked::of(graph, node) else { continue };
        let code = texts.len() as u32 + 1;
        // Operands that this group has computed and kept for itself have no expression.
        if let Ok(stmts) = cx.scope(|cx| checked.lower(cx, report, code)) {
            stmts.into_iter().for_each(|stmt| cx.push(stmt));
            texts.push(checked.text(graph));
        }
    }
    if texts.is_empty() {
        return Ok(None);
    }
    cx.finish();
    crate::visit::drop_unused_lets(&mut cx.kernel.body);
    Ok(Some(Explanation { kernel: cx.kernel, texts }))
}

/// Indices that are checked when they are used.
struct Checked {
    node: NodeId,
    picks: ValueId,
    /// Extents of the axes that they index: one, or one for each element along their last axis.
    extents: Vec<Dim>,
    is_tuple: bool,
    range: Range,
}

impl Checked {
    fn of(graph: &Graph, id: NodeId) -> Option<Checked> {
        let node = &graph.nodes[id];
        let data = |first: usize, count: usize| graph.ty(node.inputs[0]).shape[first..first + count].to_vec();
        let depth = || {
            let depth = graph.ty(node.inputs[1]).shape.last()?.as_const()?;
            usize::try_from(depth).ok()
        };
        let (extents, is_tuple) = match node.op.picks()? {
            Picks::Index { axis } => (data(axis, 1), false),
            Picks::Tuple { first } => (data(first, depth()?), true),
        };
        let picks = node.inputs[1];
        let range = match is_tuple {
            true => Range::Unknown,
            false => picks::range(graph, picks, &extents[0]),
        };
        let is_byte = graph.ty(picks).dtype == DType::U8;
        let fits_byte = |extent: &Dim| extent.as_const().is_some_and(|extent| extent > u8::MAX.into());
        let is_certain = range == Range::Inside || is_byte && extents.iter().all(fits_byte);
        (!is_certain).then_some(Checked { node: id, picks, extents, is_tuple, range })
    }

    /// Loops over the indices, each written to the report and then checked.
    fn lower(&self, cx: &mut Lowering<'_>, report: Buf, code: u32) -> Result<()> {
        if self.range == Range::Clamped {
            let (zero, extent) = (Index::zero(), Index::dim(self.extents[0].clone()));
            let condition = Expr::compare(CompareFn::Lt, Expr::Index(zero), Expr::Index(extent));
            cx.push(Stmt::Check { condition, code });
            return Ok(());
        }
        let shape = cx.graph.ty(self.picks).shape.clone();
        let looped = if self.is_tuple { &shape[..shape.len() - 1] } else { &shape[..] };
        cx.for_shape(looped, LoopKind::Serial, &mut |cx, index| {
            for (at, extent) in self.extents.iter().enumerate() {
                let mut index = index.clone();
                if self.is_tuple {
                    index.push(Index::int(at as i64));
                }
                self.check(cx, &index, extent, report, code)?;
            }
            Ok(())
        })
    }

    fn check(
        &self,
        cx: &mut Lowering<'_>,
        index: &[Index],
        extent: &Dim,
        report: Buf,
        code: u32,
    ) -> Result<()> {
        let pick = cx.expr_at(self.picks, index)?;
        let pick = if cx.kernel.dtype(&pick) == DType::I64 { pick } else { Expr::cast(DType::I64, pick) };
        let pick = cx.bind("pick", pick);
        let (size, zero) = (Expr::Index(Index::dim(extent.clone())), Expr::constant(DType::I64, 0.0));
        let low = cx.bind("low", Expr::binary(BinaryFn::Sub, zero, size.clone()));
        let high = Expr::Index(Index::dim(extent.clone() - Dim::ONE));
        let place = self.place(cx, index).into_iter().map(Expr::Index);
        let found = match cx.graph.indices_of(self.node).fault.and_then(|fault| fault.above) {
            Some(above) => {
                Expr::binary(BinaryFn::Sub, pick.clone(), Expr::constant(DType::I64, above as f64))
            }
            None => pick.clone(),
        };
        let words = place.chain([found, low.clone(), high]);
        for (at, value) in words.enumerate() {
            cx.push(Stmt::Store { buf: report, index: Index::int(at as i64), value });
        }
        let inside = Expr::binary(
            BinaryFn::And,
            Expr::compare(CompareFn::Ge, pick.clone(), low),
            Expr::compare(CompareFn::Lt, pick, size),
        );
        cx.push(Stmt::Check { condition: inside, code });
        Ok(())
    }

    /// Where an index is in the operand of the ONNX node.
    fn place(&self, cx: &Lowering<'_>, index: &[Index]) -> Vec<Index> {
        let (mut value, mut at) = (self.picks, index.to_vec());
        for shaped in cx.graph.moved_indices(self.picks) {
            let (from, to) = (&cx.graph.ty(shaped).shape, &cx.graph.ty(value).shape);
            if from != to {
                at = cx.reshape_index(from, to, &at);
            }
            value = shaped;
        }
        match at.len() {
            0..=MOST_AXES => at,
            _ => vec![Index::row_major(&at, &cx.graph.ty(value).shape)],
        }
    }

    fn text(&self, graph: &Graph) -> String {
        let origin = &graph.origins[graph.nodes[self.node].origin];
        let mut text = format!("node `{}` ({}): ", printable(&origin.name), printable(&origin.op_type));
        let indices = graph.indices_of(self.node);
        if self.range == Range::Clamped {
            let _ = write!(text, "the axis that {} take elements of has none", indices.name);
            return text;
        }
        let operand = graph.moved_indices(self.picks).last().unwrap_or(self.picks);
        let axes = match graph.ty(operand).rank() {
            axes @ 0..=MOST_AXES => axes,
            _ => 1,
        };
        text.push_str(&indices.sentence(&vec![V.to_string(); axes], [&V, &V, &V]));
        text
    }
}
