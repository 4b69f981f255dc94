//! The pipeline: [`PHASES`], in order, and the passes of each.

use crate::facts::{Fact, Facts};
use crate::{
    Pass, algebra, bn_fold, constants, cse, dce, half, halves, hoist, implicit_padding, integers, matmul,
    moments, movement, mul_add, narrow, order, pack, panels, planes, powers, products, quantized, regions,
    rounded, tables, tails, unfold, unmerge, winograd,
};

/// A part of the pipeline, for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// One line, for the documentation.
    pub doc: &'static str,
    /// What a graph may have when the phase begins.
    pub requires: Facts,
    /// What it may have when the phase is done.
    pub leaves: Facts,
    pub passes: &'static [PassDef],
}

/// A row of the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PassDef {
    pub name: &'static str,
    pub run: Pass,
    /// The lowest optimization level that runs it; 0 for what code generation requires.
    pub min_level: u8,
    /// One line, for `--help` and the documentation.
    pub doc: &'static str,
    /// Passes that must have run before, wherever they are.
    pub after: &'static [After],
}

/// A pass that must run before another one.
#[derive(Clone, Copy, Debug)]
pub struct After {
    pub pass: &'static str,
    /// Why.
    pub why: &'static str,
}

const fn row(name: &'static str, run: Pass, min_level: u8, doc: &'static str) -> PassDef {
    PassDef { name, run, min_level, doc, after: &[] }
}

const fn after(pass: &'static str, why: &'static str) -> After {
    After { pass, why }
}

impl PassDef {
    const fn after(self, after: &'static [After]) -> PassDef {
        PassDef { after, ..self }
    }
}

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

/// The rows of all phases, in order.
pub fn passes() -> impl Iterator<Item = &'static PassDef> {
    PHASES.iter().flat_map(|phase| phase.passes)
}

/// The pass of a name.
pub fn by_name(name: &str) -> Option<&'static PassDef> {
    passes().find(|pass| pass.name == name)
}

/// The table of phases in `ARCHITECTURE.md`.
pub fn markdown() -> String {
    let mut text = String::from("| phase | for | passes | a graph may then have |\n|---|---|---|---|\n");
    for phase in PHASES {
        let passes: Vec<String> = phase.passes.iter().map(|pass| format!("`{}`", pass.name)).collect();
        text += &format!("| {} | {} | {} | {} |\n", phase.name, phase.doc, passes.join(" "), phase.leaves);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the order of some rows breaks, in words.
    fn broken(rows: &[PassDef]) -> Vec<String> {
        let mut found = vec![];
        for (at, row) in rows.iter().enumerate() {
            for After { pass, why } in row.after {
                let comes_late = rows[at..].iter().any(|other| other.name == *pass);
                // A pass that runs twice needs the other one before each run of its own.
                if comes_late || rows[..at].iter().all(|other| other.name != *pass) {
                    found.push(format!("{} is not behind {pass}: {why}", row.name));
                }
            }
        }
        found
    }

    #[test]
    fn passes_are_behind_those_they_name() {
        let rows: Vec<PassDef> = passes().copied().collect();
        assert_eq!(broken(&rows), [""; 0]);
        for (at, row) in rows.iter().enumerate() {
            for After { pass, why } in row.after {
                assert!(by_name(pass).is_some() && !why.is_empty(), "{} after {pass}", row.name);
                // Moved to just before the last of that name, the row is reported.
                let mut moved = rows.clone();
                let row = moved.remove(at);
                let last = moved.iter().rposition(|other| other.name == *pass).unwrap();
                moved.insert(last, row);
                let wanted = format!("{} is not behind {pass}: {why}", row.name);
                assert!(broken(&moved).contains(&wanted), "{wanted}");
            }
        }
    }

    #[test]
    fn phases_follow_each_other() {
        for pair in PHASES.windows(2) {
            assert_eq!(pair[0].leaves, pair[1].requires, "{} and {}", pair[0].name, pair[1].name);
        }
        // A fact that some phase leaves and a later one does not: that one has a pass of the level from which on it is so.
        for pair in PHASES.windows(2) {
            for fact in pair[0].leaves.iter().filter(|fact| !pair[1].leaves.has(*fact)) {
                let levels: Vec<u8> = pair[1].passes.iter().map(|pass| pass.min_level).collect();
                assert!(levels.contains(&fact.ends_at()), "{} of {}", fact.name(), pair[1].name);
            }
        }
    }
}
