//! `onnxc verify`: computed against expected outputs, or node by node against the reference evaluator.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cli::args::VerifyArgs;
use crate::cli::bisect;
use crate::cli::compare::{Difference, compare, default_rtol};
use crate::cli::data;
use crate::cli::session::{Loaded, Problems, Progress, Session, native_options, one, usage};
use crate::error::Result;
use crate::graph::{Def, Graph, Tensor, ValueId};
use crate::{Frontend, Options, interp, native};

/// Whether all outputs of all data sets are as expected.
pub fn run(args: &VerifyArgs) -> std::result::Result<bool, Problems> {
    if args.bisect {
        return bisect::run(args);
    }
    let session = Session::open(&args.model).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let sets = match &args.data {
        Some(folder) => vec![folder.clone()],
        None => data::test_sets(session.folder()),
    };
    if sets.is_empty() {
        let folder = session.folder().display();
        return Err(one(usage(format!(
            "no test_data_set_* in {folder}; --data names a folder of test data"
        ))));
    }
    if args.per_node {
        return per_node(&session, &options, &sets, args);
    }
    let loaded = session.load(&options)?;
    let mut good = true;
    for set in &sets {
        for (name, result) in verify_set(&loaded, set, args.rtol, args.atol).map_err(one)? {
            let (passed, text) = match result {
                Ok(difference) => (difference.matches(), difference.to_string()),
                Err(text) => (false, text),
            };
            good &= passed;
            let verdict = if passed { "ok" } else { "WRONG" };
            say!("{} {name}: {verdict}, {text}", set.file_name().unwrap_or(set.as_os_str()).display());
        }
    }
    Ok(good)
}

/// How an output differs from what is expected; an error where type or shape do.
pub type Verdict = std::result::Result<Difference, String>;

/// Runs a model on one folder of test data; a verdict per output, with its name. Without `rtol`, that of the
/// output's type serves.
pub fn verify_set(
    loaded: &Loaded,
    folder: &Path,
    rtol: Option<f64>,
    atol: f64,
) -> Result<Vec<(String, Verdict)>> {
    let (inputs, wanted) = data::test_set(&loaded.graph, folder)?;
    let shapes = native::output_shapes(&loaded.graph, &inputs)?;
    let got = loaded.model()?.run(&inputs, &shapes)?;
    let names = loaded.graph.outputs.iter().map(|(name, _)| name.clone());
    let verdicts = got
        .iter()
        .zip(&wanted)
        .map(|(got, wanted)| compare(got, wanted, rtol.unwrap_or_else(|| default_rtol(wanted.dtype)), atol));
    Ok(names.zip(verdicts).collect())
}

/// Compares every value that has an ONNX name with the reference evaluator's, in the order of computation. The model
/// is compiled with all of them as outputs, which keeps passes from fusing them away.
fn per_node(
    session: &Session,
    options: &Options,
    sets: &[PathBuf],
    args: &VerifyArgs,
) -> std::result::Result<bool, Problems> {
    let start = Instant::now();
    let imported = session.import()?;
    let mut graph = imported.graph.clone();
    let named = named_values(&graph);
    graph.outputs = named.iter().map(|&value| (graph.values[value].name.clone(), value)).collect();
    let mut progress = Progress::new(false, false, vec![]);
    let (graph, program) = crate::optimize(graph, options, &mut progress).map_err(one)?;
    let frontend = Frontend { graph, program, notes: imported.notes };
    let compiled = crate::backend(frontend, options, &mut progress).map_err(one)?;
    drop(progress);
    let loaded = Loaded::new(compiled, start).map_err(one)?;
    let mut good = true;
    for set in sets {
        good &= per_node_set(&imported.graph, &named, &loaded, set, args).map_err(one)?;
    }
    Ok(good)
}

/// Values of nodes that the model names, in the order of computation, each name once.
fn named_values(graph: &Graph) -> Vec<ValueId> {
    let mut names = HashSet::new();
    let values = graph.order.iter().flat_map(|&node| &graph.nodes[node].outputs).copied();
    values.filter(|&value| named(graph, value) && names.insert(graph.values[value].name.as_str())).collect()
}

fn named(graph: &Graph, value: ValueId) -> bool {
    !graph.values[value].name.is_empty()
}

fn per_node_set(
    graph: &Graph,
    named: &[ValueId],
    loaded: &Loaded,
    set: &Path,
    args: &VerifyArgs,
) -> Result<bool> {
    let (inputs, _) = data::test_set(graph, set)?;
    let filled: Option<Vec<Tensor>> = inputs
        .iter()
        .zip(&graph.inputs)
        .map(|(tensor, input)| tensor.clone().or_else(|| input.default.clone()))
        .collect();
    let filled = filled.ok_or_else(|| usage(format!("{}: an input is missing", set.display())))?;
    let wanted_values: HashSet<ValueId> = named.iter().copied().collect();
    let mut reference: HashMap<ValueId, Tensor> = HashMap::new();
    interp::run_with(graph, &filled, &mut |node, results| {
        for (&output, tensor) in graph.nodes[node].outputs.iter().zip(results) {
            if wanted_values.contains(&output) {
                reference.insert(output, tensor.clone());
            }
        }
    })?;
    let shapes = native::output_shapes(&loaded.graph, &inputs)?;
    let got = loaded.model()?.run(&inputs, &shapes)?;
    let mut worst = Difference::default();
    for (value, got) in named.iter().zip(&got) {
        let Some(wanted) = reference.get(value) else { continue };
        let rtol = args.rtol.unwrap_or_else(|| default_rtol(wanted.dtype));
        let text = match compare(got, wanted, rtol, args.atol) {
            Ok(difference) if difference.matches() => {
                worst.max_abs = worst.max_abs.max(difference.max_abs);
                worst.max_rel = worst.max_rel.max(difference.max_rel);
                continue;
            }
            Ok(difference) => difference.to_string(),
            Err(text) => text,
        };
        say!("{}: first difference at {}: {text}", set.display(), place(graph, *value));
        return Ok(false);
    }
    say!("{}: all {} named values agree, {worst}", set.display(), named.len());
    Ok(true)
}

/// A value and the ONNX node that it comes from.
fn place(graph: &Graph, value: ValueId) -> String {
    let name = &graph.values[value].name;
    match graph.values[value].def {
        Def::Node(node, _) => {
            let origin = &graph.origins[graph.nodes[node].origin];
            format!("`{name}` of node {} `{}` ({})", origin.index, origin.name, origin.op_type)
        }
        _ => format!("`{name}`"),
    }
}
