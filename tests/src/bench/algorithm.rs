//! What a model gives up for speed, and how much error each of these algorithms may add to that of `--exact`.

use std::collections::BTreeMap;

use onnxc::Quiet;
use onnxc::cli::session::{Session, native_options};
use onnxc_ir::graph::{Constant, DType, Def, Graph, MapFn, Node, Op};
use onnxc_ir::scalar::UnaryFn;
use serde::Serialize;

use super::Result;
use super::accuracy::{COLUMNS, Errors, Line, Measure, ROUNDING};
use super::plan::{Plan, arguments, problems};
use super::table::{NONE, markdown, ratio};

/// How the outputs of a model round otherwise than with `--exact`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum Algorithm {
    Direct,
    MinimalFiltering,
    JoinedScales,
    HalfStorage,
    Digits,
}

impl Algorithm {
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Direct,
        Algorithm::MinimalFiltering,
        Algorithm::JoinedScales,
        Algorithm::HalfStorage,
        Algorithm::Digits,
    ];

    fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::MinimalFiltering => "minimal filtering",
            Algorithm::JoinedScales => "joined scales",
            Algorithm::HalfStorage => "16-bit floats",
            Algorithm::Digits => "activations of three digits",
        }
    }

    /// What the root of the mean squared error may be of that with `--exact`; `book/src/accuracy.md` derives it.
    pub fn budget(self) -> f64 {
        match self {
            // Another order of the same sums: the RMS of a few hundred errors that depend on each other varies by a tenth and more.
            Algorithm::Direct => 1.25,
            Algorithm::MinimalFiltering => 5.5,
            Algorithm::JoinedScales | Algorithm::Digits => 2.0,
            Algorithm::HalfStorage => 1.1,
        }
    }

    /// The algorithm of a model, that with the largest share in its error where it has several.
    pub fn of(plan: &Plan) -> Result<Algorithm> {
        let arguments = arguments(&plan.model, &plan.flags)?;
        let session = Session::open(&arguments.model).map_err(|error| error.to_string())?;
        let before = session.import().map_err(|errors| problems(&errors))?.graph;
        let options = native_options(&session, &arguments.code).map_err(|error| error.to_string())?;
        let after = session.frontend(&options, &mut Quiet).map_err(|errors| problems(&errors))?.graph;
        Ok(Algorithm::between(&before, &after))
    }

    /// That of a graph as imported and as optimised.
    fn between(before: &Graph, after: &Graph) -> Algorithm {
        let rounds = |node: &Node, dtype: DType| {
            dtype == DType::F32 && node.op == Op::Map(MapFn::Unary(UnaryFn::Round))
        };
        let filters =
            |node: &Node, dtype: DType| dtype == DType::F32 && matches!(node.op, Op::WinogradOutput { .. });
        // Digits of a left-hand side come beside it.
        let digits = |node: &Node, _: DType| matches!(node.op, Op::Contract { .. }) && node.inputs.len() > 2;
        let halves = before.values.values().any(|value| {
            matches!(value.def, Def::Const(Constant::Data(_)))
                && matches!(value.ty.dtype, DType::F16 | DType::BF16)
        });
        match () {
            () if any(before, &rounds) => Algorithm::JoinedScales,
            () if any(after, &digits) => Algorithm::Digits,
            () if halves => Algorithm::HalfStorage,
            () if any(after, &filters) => Algorithm::MinimalFiltering,
            () => Algorithm::Direct,
        }
    }
}

/// Whether a node of a graph, or of a body in it, is of some kind, by its operation and its result's type.
fn any(graph: &Graph, kind: &dyn Fn(&Node, DType) -> bool) -> bool {
    graph.order.iter().map(|&id| &graph.nodes[id]).any(|node| {
        let own = node.outputs.first().is_some_and(|&output| kind(node, graph.ty(output).dtype));
        own || node.op.bodies().iter().any(|body| any(body, kind))
    })
}

/// The worst lines of an algorithm.
#[derive(Clone, Copy, Default)]
struct Worst {
    lines: usize,
    exact: f64,
    default: f64,
    max: f64,
    ratio: f64,
}

/// The error that the algorithm added, relative to that of `--exact`, or to four roundings of f32 where these are more: a result of few
/// elements may have an error of less by chance.
fn added(line: &Line, of: Measure) -> Option<f64> {
    let [default, exact] = [COLUMNS[0], COLUMNS[1]].map(|column| line.errors.get(column).map(of));
    Some(default? / exact?.max(4.0 * ROUNDING))
}

/// Whether the error that an algorithm added exceeds what it may.
pub fn exceeds(line: &Line) -> bool {
    let budget = line.algorithm.map(Algorithm::budget);
    let within = |added: f64, budget: f64| added <= budget;
    added(line, |errors: &Errors| errors.rms)
        .zip(budget)
        .is_some_and(|(added, budget)| !within(added, budget))
}

/// A row for each algorithm that lines have.
pub fn table(lines: &[Line]) -> String {
    let mut all: BTreeMap<Algorithm, Worst> = BTreeMap::new();
    for line in lines {
        let (Some(algorithm), Some(ratio)) = (line.algorithm, added(line, |errors| errors.rms)) else {
            continue;
        };
        let worst = all.entry(algorithm).or_default();
        let [default, exact] = [COLUMNS[0], COLUMNS[1]].map(|column| line.errors[column]);
        worst.lines += 1;
        worst.exact = worst.exact.max(exact.rms);
        worst.default = worst.default.max(default.rms);
        worst.max = worst.max.max(default.max);
        worst.ratio = worst.ratio.max(ratio);
    }
    let shown = |error: f64| if error == 0.0 { "0".to_string() } else { format!("{error:.1e}") };
    let rows: Vec<Vec<String>> = Algorithm::ALL
        .iter()
        .map(|algorithm| {
            let (name, budget) = (algorithm.name().to_string(), ratio(Some(algorithm.budget())));
            match all.get(algorithm) {
                None => vec![name, "0".into(), NONE.into(), NONE.into(), NONE.into(), NONE.into(), budget],
                Some(Worst { lines, exact, default, max, ratio: worst }) => vec![
                    name,
                    lines.to_string(),
                    shown(*exact),
                    shown(*default),
                    shown(*max),
                    ratio(Some(*worst)),
                    budget,
                ],
            }
        })
        .collect();
    let head = ["algorithm", "lines", "RMS, --exact", "RMS", "max", "largest ratio", "budget"];
    markdown(&head, &rows)
}

pub const NOTE: &str = "\
By algorithm, the worst of the lines above: RMS and max as there, of the outputs by default and with `--exact`, and the largest
ratio of the two RMS errors of one line (an error below four times 2^-24 counts as that). A ratio above the budget is marked ABOVE in its line; the book's page on
accuracy derives the budgets.";

#[cfg(test)]
mod tests {
    use super::*;

    fn line(algorithm: Algorithm, default: f64, exact: f64) -> Line {
        let both = |error| Errors { max: 2.0 * error, rms: error };
        let errors = BTreeMap::from([(COLUMNS[0], both(default)), (COLUMNS[1], both(exact))]);
        Line { what: "m".into(), algorithm: Some(algorithm), errors }
    }

    #[test]
    fn budgets_are_of_the_error_that_an_algorithm_adds() {
        assert!(!exceeds(&line(Algorithm::MinimalFiltering, 5e-6, 1e-6)));
        assert!(exceeds(&line(Algorithm::MinimalFiltering, 6e-6, 1e-6)));
        assert!(
            exceeds(&line(Algorithm::Direct, 2e-6, 1e-6)) && !exceeds(&line(Algorithm::Direct, 6e-8, 0.0))
        );
        assert!(exceeds(&line(Algorithm::JoinedScales, f64::NAN, 1e-3)));
        let lines = [line(Algorithm::Direct, 3e-7, 3e-7), line(Algorithm::MinimalFiltering, 4e-6, 2e-6)];
        let text = table(&lines);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows.len(), Algorithm::ALL.len(), "{text}");
        assert!(
            rows[0].contains("3.0e-7") && rows[0].contains("6.0e-7") && rows[0].contains("1.00"),
            "{text}"
        );
        assert!(
            rows[1].contains("2.0e-6") && rows[1].contains("4.0e-6") && rows[1].contains("2.00"),
            "{text}"
        );
    }
}
