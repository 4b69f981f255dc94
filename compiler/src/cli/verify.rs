//! `onnxc verify`: computed against expected outputs, or node by node against the reference evaluator.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::cli::args::VerifyArgs;
use crate::cli::check::to_json;
use crate::cli::compare::{Difference, Verdict, compare, default_rtol, rounding};
use crate::cli::session::{Loaded, Problems, Progress, Session, native_options, one, usage};
use crate::cli::shapes::{self, Given};
use crate::cli::{bisect, data, is_quiet, values};
use crate::{Frontend, Options, native};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Def, Graph, Tensor, ValueId};
use onnxc_ir::interp;

/// Whether all outputs of all data sets are as expected.
pub fn run(args: &VerifyArgs) -> std::result::Result<bool, Problems> {
    if args.bisect {
        return bisect::run(args);
    }
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
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
    shapes::from_data(&mut session, &Given::Folder(&sets[0])).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    if args.per_node {
        return per_node(&session, &options, &sets, args);
    }
    let loaded = session.load(&options)?;
    let tolerance = Tolerance::new(args, &loaded.graph);
    let (mut good, mut judged) = (true, vec![]);
    for set in &sets {
        let results = verify_set(&loaded, set, args.rtol, args.atol.unwrap_or(DEFAULT_ATOL)).map_err(one)?;
        for (name, result) in results {
            let distances = result.as_ref().ok().map(|found| (found.max_abs, found.max_rel));
            let (verdict, text) = tolerance.judge(result);
            good &= verdict != Verdict::Wrong;
            let set = set.file_name().unwrap_or(set.as_os_str()).display();
            if args.json {
                judged.push(json!({
                    "set": set.to_string(), "output": name, "verdict": verdict.to_string(), "text": text,
                    "max_abs": distances.map(|found| found.0), "max_rel": distances.map(|found| found.1),
                }));
            } else if verdict == Verdict::Wrong || !is_quiet() {
                say!("{set} {name}: {verdict}, {text}");
            }
        }
    }
    if args.json {
        say!("{}", to_json(&json!({ "good": good, "outputs": judged })));
    }
    Ok(good)
}

const DEFAULT_ATOL: f64 = 1e-4;

/// What counts as noise.
struct Tolerance {
    /// The rounding of the coarsest type that the model computes in, unless the user says what is near enough.
    rounding: Option<f64>,
}

impl Tolerance {
    fn new(args: &VerifyArgs, graph: &Graph) -> Tolerance {
        let given = args.rtol.is_some() || args.atol.is_some();
        Tolerance { rounding: if given { None } else { coarsest_rounding(graph) } }
    }

    fn judge(&self, compared: Compared) -> (Verdict, String) {
        match compared {
            Ok(difference) => (difference.verdict(self.rounding), difference.to_string()),
            Err(text) => (Verdict::Wrong, text),
        }
    }
}

/// The largest rounding error of the types that values are computed in: floats, and small integers that floats are
/// quantised to.
fn coarsest_rounding(graph: &Graph) -> Option<f64> {
    let (mut coarsest, mut open) = (None, vec![graph]);
    while let Some(graph) = open.pop() {
        for &id in &graph.order {
            let node = &graph.nodes[id];
            open.extend(node.op.bodies());
            let from_float = node.inputs.iter().any(|&input| graph.ty(input).dtype.is_float());
            let types = node.outputs.iter().map(|&output| graph.ty(output).dtype);
            let rounded = types.filter(|dtype| from_float || !dtype.is_int() && !node.inputs.is_empty());
            coarsest = rounded.filter_map(rounding).chain(coarsest).reduce(f64::max);
        }
    }
    coarsest
}

/// How an output differs from what is expected; an error where type or shape do.
pub type Compared = std::result::Result<Difference, String>;

/// Runs a model on one folder of test data; how each output differs, with its name. Without `rtol`, that of the
/// output's type serves.
pub fn verify_set(
    loaded: &Loaded,
    folder: &Path,
    rtol: Option<f64>,
    atol: f64,
) -> Result<Vec<(String, Compared)>> {
    let (inputs, wanted) = data::test_values(&loaded.graph, folder)?;
    let shapes = native::output_shapes(&loaded.graph, &inputs)?;
    let got = loaded.model()?.run(&inputs, &shapes)?;
    let got = values::unpack_all(&got, &values::outputs(&loaded.graph))?;
    let mut compared = vec![];
    for ((name, got), wanted) in got.iter().zip(&wanted) {
        match values::pairs(name, got, wanted) {
            Ok(pairs) => compared.extend(pairs.into_iter().map(|(name, got, wanted)| {
                (name, compare(got, wanted, rtol.unwrap_or_else(|| default_rtol(wanted.dtype)), atol))
            })),
            Err(text) => compared.push((name.clone(), Err(text))),
        }
    }
    Ok(compared)
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
    graph.output_parts.clear();
    graph.any_rank.clear();
    let mut progress = Progress::new(false, false, vec![]);
    let (graph, program) = crate::optimize(graph, options, &mut progress).map_err(one)?;
    let frontend =
        Frontend { graph, program, notes: imported.notes, warnings: imported.warnings, entries: vec![] };
    let compiled = crate::backend(frontend, options, &mut progress).map_err(one)?;
    drop(progress);
    let loaded =
        Loaded::with_weights(compiled, (session.functions(), session.weights()), start).map_err(one)?;
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
    let tolerance = Tolerance::new(args, graph);
    let mut worst = Difference::default();
    for (value, got) in named.iter().zip(&got) {
        let Some(wanted) = reference.get(value) else { continue };
        let rtol = args.rtol.unwrap_or_else(|| default_rtol(wanted.dtype));
        let compared = compare(got, wanted, rtol, args.atol.unwrap_or(DEFAULT_ATOL));
        let (verdict, text) = tolerance.judge(compared.clone());
        if let (Ok(difference), true) = (compared, verdict != Verdict::Wrong) {
            worst.max_abs = worst.max_abs.max(difference.max_abs);
            worst.max_rel = worst.max_rel.max(difference.max_rel);
            continue;
        }
        say!("{}: first wrong value at {}: {text}", set.display(), place(graph, *value));
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
