//! Ranks of inputs that the model declares without a shape. Where one rank alone serves all that the model does with them,
//! and gives the results their declared shapes, the inputs have that rank: with every other one the model could not run.
//!
//! As with [`lengths`](super::lengths), that rank is searched for by importing the model with each. With several such inputs
//! each is tried alone first, while nothing that reads the others is looked at; only the ranks that are left are tried
//! together.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use onnxc_proto::{GraphProto, ModelProto};

use super::shapes::InputShape;
use super::types::{self, unknown_rank};
use super::{ExternalData, Import, ImportOptions, Limits, import_once, kinds};
use onnxc_ir::error::{Error, Kind};
use onnxc_ir::rules::Rule;
use onnxc_ops::Table;

/// The ranks that are tried: those of convolutions over volumes, and some more.
const RANKS: RangeInclusive<usize> = 0..=8;

/// Nodes imported by all tries together.
const MAX_NODES: usize = 1 << 17;

/// Combinations of ranks of several inputs that are tried.
const MAX_COMBINED: usize = 256;

/// Names of the inputs, and overridable initializers apart, whose rank neither the model nor the user gives.
pub fn open_inputs<'m>(graph: &'m GraphProto, shapes: &[InputShape]) -> Vec<&'m str> {
    let is_open = |name: &str| {
        let is_given = shapes.iter().any(|shape| shape.input == name);
        !is_given && !graph.initializer.iter().any(|tensor| tensor.name() == name)
    };
    let without_shape = graph
        .input
        .iter()
        .filter(|info| kinds::is_tensor(info) && matches!(types::tensor_type(info), Ok((_, None))));
    without_shape.map(|info| info.name()).filter(|name| is_open(name)).collect()
}

/// The import of `model` with the one rank of each open input that serves, where there is one; else `errors`, the problems
/// without it, which then name the ranks that would do.
pub(super) fn search(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
    errors: Vec<Error>,
) -> std::result::Result<Import, Vec<Error>> {
    let Some(graph) = &model.graph else { return Err(errors) };
    let open = open_inputs(graph, &options.input_shapes);
    // A problem of a node that no open input reaches stays for any ranks of these.
    let is_other = |error: &Error| error.kind != Kind::Unsupported || error.node.is_some();
    let tries = open.len() * RANKS.count();
    if tries == 0 || errors.iter().any(is_other) || tries.saturating_mul(graph.node.len()) > MAX_NODES {
        return Err(errors);
    }
    let search = Search { model, options, external, table, tries: (tries + MAX_COMBINED) as u64 };
    let Some(combined) = search.combinations(&open, graph.node.len()) else { return Err(errors) };
    let mut found = None;
    let mut serve: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); open.len()];
    let mut count = 0;
    for ranks in combined {
        let Ok(import) = search.import(&open, &ranks) else { continue };
        if import.warnings.iter().any(|warning| warning.rule == Rule::DeclaredShape) {
            continue;
        }
        count += 1;
        for (serve, &rank) in serve.iter_mut().zip(&ranks) {
            serve.insert(rank);
        }
        found.get_or_insert((import, ranks));
    }
    match found {
        Some((mut import, ranks)) if count == 1 => {
            import.notes.extend(open.iter().zip(ranks).map(|(name, rank)| {
                format!(
                    "input `{name}` has rank {rank}: of the ranks {} to {}, the only one with which the model can run; \
                     --input-shape {name}=DIM,... gives its sizes",
                    RANKS.start(),
                    RANKS.end()
                )
            }));
            Ok(import)
        }
        _ => Err(with_ranks(errors, &open, &serve)),
    }
}

/// The errors about the inputs, with the ranks that serve.
fn with_ranks(errors: Vec<Error>, open: &[&str], serve: &[BTreeSet<usize>]) -> Vec<Error> {
    let about = |error: Error| {
        let Some(at) = open.iter().position(|name| error.message.ends_with(&unknown_rank(name))) else {
            return error;
        };
        let ranks: Vec<String> = serve[at].iter().map(usize::to_string).collect();
        let (least, most) = (RANKS.start(), RANKS.end());
        let serve = match ranks.as_slice() {
            [] => format!("none of the ranks {least} to {most} serves"),
            [rank] => format!("rank {rank} serves"),
            ranks => format!("of the ranks {least} to {most} these serve: {}", ranks.join(", ")),
        };
        error.reworded(|message| format!("{message} ({serve})"))
    };
    errors.into_iter().map(about).collect()
}

struct Search<'s> {
    model: &'s ModelProto,
    options: &'s ImportOptions,
    external: &'s dyn ExternalData,
    table: &'s Table,
    /// How many imports share the budget of one.
    tries: u64,
}

impl Search<'_> {
    /// Imports the model with these ranks of inputs.
    fn import(&self, inputs: &[&str], ranks: &[usize]) -> std::result::Result<Import, Vec<Error>> {
        let mut options = self.options.clone();
        let shapes = inputs.iter().zip(ranks).map(|(name, &rank)| InputShape::of_rank(name, rank));
        options.input_shapes.extend(shapes);
        let primitives = options.limits.primitives / self.tries;
        options.limits = Limits { primitives, ..options.limits };
        import_once(self.model, &options, self.external, self.table)
    }

    /// The ranks of all open inputs that are to be tried together; `None` where these are too many.
    fn combinations(&self, open: &[&str], nodes: usize) -> Option<Vec<Vec<usize>>> {
        let mut combined: Vec<Vec<usize>> = vec![vec![]];
        for name in open {
            // With one input there is nothing to leave out first. Else no error of a node means that all nodes which read this
            // input alone take the rank.
            let serves = |&rank: &usize| {
                let fits = |errors: Vec<Error>| errors.iter().all(|error| error.node.is_none());
                open.len() == 1 || self.import(&[name], &[rank]).map_or_else(fits, |_| true)
            };
            let ranks: Vec<usize> = RANKS.filter(serves).collect();
            let more = |before: &Vec<usize>| {
                let with = |&rank: &usize| [before.as_slice(), &[rank]].concat();
                ranks.iter().map(with).collect::<Vec<_>>()
            };
            combined = combined.iter().flat_map(more).collect();
            if combined.len() > MAX_COMBINED || combined.len().saturating_mul(nodes) > MAX_NODES {
                return None;
            }
        }
        Some(combined)
    }
}
