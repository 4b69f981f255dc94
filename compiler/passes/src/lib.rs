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
mod requantized;
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
pub use phases::{PassDef, Phase, by_name, passes};

use facts::{Fact, Facts};
use phases::{after, row};

pub type Pass = fn(&mut Graph, &Options) -> Result<()>;

const CSE: PassDef = row("cse", cse::run, 1, "compute equal expressions once");
const DCE: PassDef = row("dce", dce::run, 1, "drop nodes that no output needs");
const CONSTANTS: PassDef = row("constants", constants::run, 1, "compute what depends on constants alone")
    .after(&[after("narrow", "constants become floats, and it selects their codes")]);

/// What the importer gives.
const IMPORTED: Facts = Facts::of(&[Fact::PlainProducts, Fact::HalfArithmetic, Fact::DeadNodes]);
const IN_F32: Facts = IMPORTED.without(&[Fact::HalfArithmetic]);
const SIMPLE: Facts = IN_F32.without(&[Fact::DeadNodes]);
const CHOSEN: Facts = SIMPLE.and(&[Fact::MinimalFiltering, Fact::DeadNodes]);
const PACKED: Facts = CHOSEN.without(&[Fact::PlainProducts]).and(&[
    Fact::PanelProducts,
    Fact::Packing,
    Fact::Codes,
    Fact::PanelStates,
]);
const FINISHED: Facts = PACKED.and(&[Fact::OrderedProducts, Fact::ImplicitPadding]);

/// The pipeline, in order. A pass may occur more than once.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "clean",
        doc: "what is not needed, and what is there twice",
        requires: IMPORTED,
        leaves: IMPORTED,
        passes: &[
            row("powers", powers::run, 0, "powers with known exponents as products and roots"),
            DCE,
            CSE,
        ],
    },
    Phase {
        name: "types",
        doc: "the element types in which the run computes",
        requires: IMPORTED,
        leaves: IN_F32,
        passes: &[
            row("narrow", narrow::run, 1, "select codes, and dequantize what is selected"),
            row("quantized", quantized::run, 1, "products of dequantized values as products of integers"),
            row("half", half::run, 1, "arithmetic on 16-bit floats as arithmetic on f32 that is rounded"),
        ],
    },
    Phase {
        name: "simplify",
        doc: "less to compute and to move",
        requires: IN_F32,
        leaves: SIMPLE,
        passes: &[
            CONSTANTS,
            row("algebra", algebra::run, 1, "identities of arithmetic"),
            row("matmul", matmul::run, 1, "bring contractions to one form"),
            row("regions", regions::run, 1, "compute only the region of a value that is read"),
            row("unmerge", unmerge::run, 1, "reductions over merged axes over the axes themselves"),
            row("movement", movement::run, 1, "compose views and cancel transposes").after(&[
                after("regions", "selections become views of views"),
                after("unmerge", "it chooses layouts"),
            ]),
            row("bn_fold", bn_fold::run, 1, "fold constant scales and shifts into weights"),
            row("hoist", hoist::run, 1, "move loop invariants out of scans"),
            CSE,
            DCE,
        ],
    },
    Phase {
        name: "choose",
        doc: "the arithmetic of products and sums",
        requires: SIMPLE,
        leaves: CHOSEN,
        passes: &[
            row("moments", moments::run, 1, "deviations of images from a mean, row by row")
                .after(&[after("cse", "equal deviations must be one: a row has its own")]),
            row(
                "products",
                products::run,
                0,
                "round the operands of products to bf16, where that is asked for",
            )
            .after(&[after("bn_fold", "weights are rounded once, with what is folded into them")]),
            row(
                "rounded",
                rounded::run,
                1,
                "values that only products of bf16 read, rounded where they are computed",
            )
            .after(&[after("products", "it makes these products")]),
            row("winograd", winograd::run, 2, "3x3 convolutions by minimal filtering, where that is faster"),
            row(
                "planes",
                planes::run,
                1,
                "windows of images with few channels, read from the planes that the images come in",
            )
            .after(&[
                after("winograd", "it takes windows of channels that are innermost"),
                after("movement", "the transpose into planes must not be cancelled"),
            ]),
            row("integers", integers::run, 1, "products of small integers as exact products of floats")
                .after(&[
                    after("products", "every sum of these floats must stay exact, and it rounds their terms"),
                    after("winograd", "every sum of these floats must stay exact, and it rounds otherwise"),
                ]),
            row(
                "mul_add",
                mul_add::run,
                1,
                "products and sums that are rounded to integers, in one operation",
            ),
            row(
                "requantized",
                requantized::run,
                1,
                "products that are rounded to bytes as multiplications and shifts, where floats are slow",
            )
            .after(&[
                after("integers", "what it sums up in floats stays there"),
                after("mul_add", "it joins what is multiplied and added"),
            ]),
            row("tails", tails::run, 1, "zeros for what is next to nothing in a softmax that products read"),
        ],
    },
    Phase {
        name: "pack",
        doc: "right-hand sides as kernels read them",
        requires: CHOSEN,
        leaves: PACKED,
        passes: &[
            row("pack", pack::run, 0, "lay out right-hand sides of contractions as column panels"),
            row(
                "panels",
                panels::run,
                1,
                "keep states that products read as right-hand sides in their panels",
            ),
        ],
    },
    Phase {
        name: "finish",
        doc: "how constants and paddings lie in memory",
        requires: PACKED,
        leaves: FINISHED,
        passes: &[
            CONSTANTS,
            row("order", order::run, 1, "products of bytes with sums that fit 16 bits before the others"),
            row("tables", tables::run, 1, "read tables that are weights of a product, too, from its panels")
                .after(&[after("constants", "what is read of the panels must stay a view")]),
            row("halves", halves::run, 1, "store weights of sums of small integers in 16 or 8 bits"),
            row(
                "implicit_padding",
                implicit_padding::run,
                1,
                "no memory for the zeros around images that dilated convolutions need not read",
            ),
            row("unfold", unfold::run, 0, "leave to the run what takes too long to compute now"),
        ],
    },
];

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
