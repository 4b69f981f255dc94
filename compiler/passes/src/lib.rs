//! Graph to graph rewrites. [`PASSES`] is the pipeline: its rows, in their order, drive execution, pass
//! timing, printing after a pass and the names that file tests use. Passes see primitives only.
//!
//! A pass keeps what the graph computes, up to rounding where its own header says so; it never changes
//! the type of an input or output. The graph is verified after each pass in debug builds.

mod algebra;
mod bn_fold;
mod constants;
mod cse;
mod dce;
pub mod digits;
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
mod order;
mod pack;
mod panels;
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
mod unmerge;
mod weights;
mod winograd;

use std::time::{Duration, Instant};

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::verify::verify;
use onnxc_machine::target::Goal;

pub use pack::PackPolicy;

/// What the passes may know besides the graph. Nothing here names a target.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Optimisation level, 0 to 3.
    pub level: u8,
    pub pack: PackPolicy,
    /// Nothing that rounds otherwise than the model says, for the sake of speed.
    pub exact: bool,
    /// Whether the object is to be small or fast.
    pub goal: Goal,
    /// In what products of floats are computed: f32 or bf16.
    pub precision: Precision,
}

/// What the operands of products of floats are rounded to; sums are f32.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Precision {
    /// Not rounded.
    #[default]
    F32,
    Bf16,
    /// As [`Precision::Bf16`] where the processor multiplies bf16, else as [`Precision::F32`].
    Auto,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Auto => "auto",
        })
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Precision, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "auto" => Ok(Precision::Auto),
            "f16" => Err("products of f16 are not supported: f32, bf16 and auto are".into()),
            _ => Err("not a precision: f32, bf16 and auto are".into()),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            level: 3,
            pack: PackPolicy::NARROW,
            exact: false,
            goal: Goal::Speed,
            precision: Precision::F32,
        }
    }
}

pub type Pass = fn(&mut Graph, &Options) -> Result<()>;

/// A row of the pipeline.
#[derive(Clone, Copy)]
pub struct PassDef {
    pub name: &'static str,
    pub run: Pass,
    /// The lowest optimisation level that runs it; 0 for what code generation requires.
    pub min_level: u8,
    /// One line, for `--help` and the documentation.
    pub doc: &'static str,
}

const fn row(name: &'static str, run: Pass, min_level: u8, doc: &'static str) -> PassDef {
    PassDef { name, run, min_level, doc }
}

/// The pipeline, in order. A pass may occur more than once.
pub const PASSES: &[PassDef] = &[
    row("powers", powers::run, 0, "powers with known exponents as products and roots"),
    row("dce", dce::run, 1, "drop nodes that no output needs"),
    row("cse", cse::run, 1, "compute equal expressions once"),
    // Before constants become floats.
    row("narrow", narrow::run, 1, "select codes, and dequantize what is selected"),
    row("quantized", quantized::run, 1, "products of dequantized values as products of integers"),
    row("half", half::run, 1, "arithmetic on 16-bit floats as arithmetic on f32 that is rounded"),
    row("constants", constants::run, 1, "compute what depends on constants alone"),
    row("algebra", algebra::run, 1, "identities of arithmetic"),
    row("matmul", matmul::run, 1, "bring contractions to one form"),
    // Before selections become views of views.
    row("regions", regions::run, 1, "compute only the region of a value that is read"),
    // Before layouts are chosen.
    row("unmerge", unmerge::run, 1, "reductions over merged axes over the axes themselves"),
    row("movement", movement::run, 1, "compose views and cancel transposes"),
    row("bn_fold", bn_fold::run, 1, "fold constant scales and shifts into weights"),
    row("hoist", hoist::run, 1, "move loop invariants out of scans"),
    row("cse", cse::run, 1, "compute equal expressions once"),
    row("dce", dce::run, 1, "drop nodes that no output needs"),
    // Behind the last search for equal expressions: a row has deviations of its own.
    row("moments", moments::run, 1, "deviations of images from a mean, row by row"),
    // Behind what folds into weights: those are rounded once.
    row("products", products::run, 0, "round the operands of products to bf16, where that is asked for"),
    row(
        "rounded",
        rounded::run,
        1,
        "values that only products of bf16 read, rounded where they are computed",
    ),
    row("winograd", winograd::run, 2, "3x3 convolutions by minimal filtering, where that is faster"),
    // Behind what takes windows of channels, and what cancels transposes.
    row(
        "planes",
        planes::run,
        1,
        "windows of images with few channels, read from the planes that the images come in",
    ),
    // Behind those that round: every sum of these floats must stay exact.
    row("integers", integers::run, 1, "products of small integers as exact products of floats"),
    row("mul_add", mul_add::run, 1, "products and sums that are rounded to integers, in one operation"),
    row("tails", tails::run, 1, "zeros for what is next to nothing in a softmax that products read"),
    row("pack", pack::run, 0, "lay out right-hand sides of contractions as column panels"),
    row("panels", panels::run, 1, "keep states that products read as right-hand sides in their panels"),
    row("constants", constants::run, 1, "compute what depends on constants alone"),
    row("order", order::run, 1, "products of bytes with sums that fit 16 bits before the others"),
    // Behind what computes constants: these stay views.
    row("tables", tables::run, 1, "read tables that are weights of a product, too, from its panels"),
    row("halves", halves::run, 1, "store weights of sums of small integers in 16 or 8 bits"),
    // Behind what looks at paddings.
    row(
        "implicit_padding",
        implicit_padding::run,
        1,
        "no memory for the zeros around images that dilated convolutions need not read",
    ),
    row("unfold", constants::unfold, 0, "leave to the run what takes too long to compute now"),
];

/// The pass of a name.
pub fn by_name(name: &str) -> Option<&'static PassDef> {
    PASSES.iter().find(|pass| pass.name == name)
}

/// Runs the pipeline at `options.level`. `observer` hears of each pass once it is done: its name, the graph
/// and the time it took.
pub fn run_all(
    graph: &mut Graph,
    options: &Options,
    observer: &mut dyn FnMut(&str, &Graph, Duration),
) -> Result<()> {
    for pass in PASSES.iter().filter(|pass| pass.min_level <= options.level) {
        let start = Instant::now();
        run_one(pass, graph, options)?;
        observer(pass.name, graph, start.elapsed());
    }
    Ok(())
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
