//! Graph to graph rewrites. [`PHASES`] is the pipeline: its rows, in their order, drive execution, pass
//! timing, printing after a pass and the names that file tests use. Passes see primitives only.
//!
//! A pass keeps what the graph computes, up to rounding where its own header says so; it never changes
//! the type of an input or output. The graph is verified after each pass in debug builds, and after each phase for what the phase
//! may leave ([`facts`]).

mod algebra;
mod bn_fold;
mod constants;
mod cse;
mod dce;
pub mod digits;
pub mod facts;
mod half;
mod halves;
mod hoist;
#[cfg(test)]
mod identities;
mod implicit_padding;
mod integers;
mod matmul;
mod moments;
mod movement;
mod mul_add;
mod narrow;
pub mod options;
mod order;
mod pack;
mod panels;
pub mod phases;
mod planes;
mod powers;
pub(crate) mod products;
mod quantized;
mod regions;
mod rewrite;
mod rounded;
mod steps;
mod tables;
mod tails;
#[cfg(test)]
mod tests;
mod unfold;
mod unmerge;
mod weights;
mod winograd;

use std::time::{Duration, Instant};

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::verify::verify;
pub use onnxc_tuning::products::PackPolicy;
pub use options::{Options, Precision};
pub use phases::{PHASES, PassDef, Phase, by_name, passes};

use facts::Facts;

pub type Pass = fn(&mut Graph, &Options) -> Result<()>;

/// Runs the pipeline at `options.level`. `observer` hears of each pass once it is done: its name, the graph and the time it took.
///
/// In debug builds the graph is verified after each pass, and after each phase for what the phase may leave.
pub fn run_all(
    graph: &mut Graph,
    options: &Options,
    observer: &mut dyn FnMut(&str, &Graph, Duration),
) -> Result<()> {
    let level = options.level;
    for (at, phase) in PHASES.iter().enumerate() {
        // What a phase requires the one before it leaves.
        if at == 0 {
            hold(graph, phase.requires.at_level(level), &format!("before phase {}", phase.name))?;
        }
        for pass in phase.passes.iter().filter(|pass| pass.min_level <= level) {
            let start = Instant::now();
            run_one(pass, graph, options)?;
            observer(pass.name, graph, start.elapsed());
        }
        hold(graph, phase.leaves.at_level(level), &format!("after phase {}", phase.name))?;
    }
    Ok(())
}

/// In debug builds: a graph has no facts but those.
fn hold(graph: &Graph, allowed: Facts, when: &str) -> Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    facts::verify(graph, allowed)
        .map_err(|error| Error::internal(Stage::Pass, format!("{when}: {}", error.message)))
}

/// Runs one pass; in debug builds the result is verified.
pub fn run_one(pass: &PassDef, graph: &mut Graph, options: &Options) -> Result<()> {
    // A model that came this far is well-formed: what a pass cannot build is a bug of the pass.
    (pass.run)(graph, options).map_err(|error| match error.kind {
        Kind::Malformed => Error::internal(Stage::Pass, format!("pass {}: {}", pass.name, error.message)),
        _ => error,
    })?;
    if cfg!(debug_assertions)
        && let Err(errors) = verify(graph)
    {
        let messages: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
        return Err(Error::internal(
            Stage::Pass,
            format!("after pass {}: {}", pass.name, messages.join("; ")),
        ));
    }
    Ok(())
}
