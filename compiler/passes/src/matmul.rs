//! Brings contractions to one form, so that later passes and kernels meet few shapes of them:
//!
//! - inner axes of size 1 go (a 1x1 convolution becomes a plain product);
//! - operands that are only broadcast along batch axes are read unbroadcast;
//! - a right-hand side that every batch shares makes the batch axes rows.

use crate::Options;
use crate::rewrite::{bodies, fixpoint, is_one, producer, rewrite};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, Node, NodeId, Op, RhsLayout, ValueId};
use onnxc_ir::infer::broadcast_shapes;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    fixpoint(4, || rewrite(graph, canonicalise))?;
    bodies(graph, options, run)
}

/// A contraction with a plain right-hand side.
#[derive(Clone, PartialEq)]
struct Product {
    lhs: ValueId,
    rhs: ValueId,
    batch: usize,
    m: usize,
    k: usize,
}

fn canonicalise(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let old = Product { lhs: inputs[0], rhs: inputs[1], batch: *batch, m: *m, k: *k };
    let mut new = old.clone();
    drop_unit_inner_axes(b, &mut new)?;
    drop_expands(b, &mut new)?;
    share_rhs(b, &mut new)?;
    if new == old {
        return Ok(None);
    }
    let op = Op::Contract { batch: new.batch, m: new.m, k: new.k, rhs: RhsLayout::Plain };
    b.emit1(op, &[new.lhs, new.rhs]).map(Some)
}

/// Keeps at least one inner axis.
fn drop_unit_inner_axes(b: &mut Builder, product: &mut Product) -> Result<()> {
    let (lhs, rhs) = (b.shape(product.lhs), b.shape(product.rhs));
    let inner = product.batch + product.m;
    let is_unit = |at: &usize| is_one(&lhs[inner + at]) && is_one(&rhs[product.batch + at]);
    let mut dropped: Vec<usize> = (0..product.k).filter(is_unit).collect();
    if dropped.len() == product.k {
        dropped.pop();
    }
    if dropped.is_empty() {
        return Ok(());
    }
    let without = |shape: &[Dim], first: usize| -> Vec<Dim> {
        let kept = |&axis: &usize| axis < first || !dropped.contains(&(axis - first));
        (0..shape.len()).filter(kept).map(|axis| shape[axis].clone()).collect()
    };
    product.lhs = b.reshape(product.lhs, without(&lhs, inner))?;
    product.rhs = b.reshape(product.rhs, without(&rhs, product.batch))?;
    product.k -= dropped.len();
    Ok(())
}

/// Reads an operand under an expand that changes batch axes only, if the other operand still gives the
/// batch shape.
fn drop_expands(b: &mut Builder, product: &mut Product) -> Result<()> {
    let batch = product.batch;
    for left in [false, true] {
        let (this, other) = if left { (product.lhs, product.rhs) } else { (product.rhs, product.lhs) };
        let Some(Node { op: Op::Expand { shape }, inputs, .. }) = producer(b.graph, this) else { continue };
        let (source, wide) = (inputs[0], shape.clone());
        let mut narrow = b.shape(source);
        narrow.splice(0..0, std::iter::repeat_n(Dim::ONE, wide.len() - narrow.len()));
        if narrow[batch..] != wide[batch..] {
            continue;
        }
        let others = b.shape(other);
        let before = broadcast_shapes(&[&wide[..batch], &others[..batch]]);
        if broadcast_shapes(&[&narrow[..batch], &others[..batch]]) != before {
            continue;
        }
        let source = b.reshape(source, narrow)?;
        *(if left { &mut product.lhs } else { &mut product.rhs }) = source;
    }
    Ok(())
}

fn share_rhs(b: &mut Builder, product: &mut Product) -> Result<()> {
    let rhs = b.shape(product.rhs);
    if product.batch == 0 || !rhs[..product.batch].iter().all(is_one) {
        return Ok(());
    }
    product.rhs = b.reshape(product.rhs, rhs[product.batch..].to_vec())?;
    product.m += product.batch;
    product.batch = 0;
    Ok(())
}
