//! Data movement: views compose, and transposes sink, meet and cancel.
//!
//! Two steps alternate until no transpose is saved: [`simplify`] rewrites single nodes (a reshape of a
//! reshape, a slice of a concatenation, an expand that a map does by itself), [`layout`] chooses the axis
//! order in which each operation runs. Every convolution is lowered channels-last between two
//! transposes; after this pass a convolutional network runs channels-last from its first layer to its last.

mod layout;
mod plan;
mod simplify;

use crate::rewrite::{bodies, fixpoint, rewrite};
use crate::{Options, dce};
use onnxc_ir::error::Result;
use onnxc_ir::graph::Graph;

/// Rounds of both steps; one is enough for most models.
const ROUNDS: usize = 3;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    simplify_all(graph)?;
    for _ in 0..ROUNDS {
        let before = layout::transpose_cost(graph);
        let saved = graph.clone();
        layout::assign(graph)?;
        simplify_all(graph)?;
        let after = layout::transpose_cost(graph);
        // The first round also saves reshapes between equal layouts, which cost nothing here.
        if after > before {
            *graph = saved;
        }
        if after >= before {
            break;
        }
    }
    if rewrite(graph, simplify::unit_transpose)? {
        simplify_all(graph)?;
    }
    bodies(graph, options, run)
}

fn simplify_all(graph: &mut Graph) -> Result<()> {
    fixpoint(6, || {
        let uses = graph.use_counts();
        let changed = rewrite(graph, |b, id| simplify::node(b, id, &uses))?;
        dce::sweep(graph);
        Ok(changed)
    })
}
