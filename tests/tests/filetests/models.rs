//! ONNX models as text: what they are imported as, and small networks at every level. See `filetests/README.md` for the format.

use std::path::Path;

use onnxc_import::state::Choice;
use onnxc_import::{DimPin, ImportOptions, NoExternalData, import};
use onnxc_ir::digest::sha1;
use onnxc_ir::graph::parse::parse;
use onnxc_ir::graph::print::to_text;
use onnxc_ir::graph::{Graph, Tensor};
use onnxc_ir::interp;
use onnxc_tests::onnx_text;

use super::{
    PIPELINE, checked, hold, loops_text, paths, renumbered, run_files, run_host_case, run_pass,
    run_schedule_case, run_vector_case, same_meaning, updates, wide_core,
};

/// The processor of the snapshots of networks.
const CPU: &str = "x86-64-v3";

/// Most lines of a snapshot; of a longer one the rest is a number and a digest.
const MOST_LINES: usize = 140;

/// Most columns of a line, such as one of constants; of a longer one the rest is a digest.
const MOST_COLUMNS: usize = 240;

/// A file of `imports`, taken apart.
struct Case {
    header: String,
    options: ImportOptions,
    model: String,
    expected: String,
}

fn read_case(text: &str) -> Result<Case, String> {
    let count = text.lines().take_while(|line| line.starts_with(';')).count();
    let header: Vec<&str> = text.lines().take(count).collect();
    let rest: Vec<&str> = text.lines().skip(count).collect();
    if header.first() != Some(&"; import") {
        return Err("the first line is not `; import`".into());
    }
    let mut options = ImportOptions::default();
    let mut states = vec![];
    for line in &header[1..] {
        let directive = line[1..].trim();
        match directive.split_once(' ').unwrap_or((directive, "")) {
            ("strict", "") => options.strict = true,
            ("defaults", "") => options.overridable_defaults = true,
            ("output", name) => options.outputs.push(name.into()),
            ("state", pair) => states.push(pair.to_string()),
            ("size", pin) => {
                let (target, size) = pin.split_once('=').ok_or("a size is `NAME=N`")?;
                let size = size.parse().map_err(|_| format!("`{size}` is not a size"))?;
                options.input_dims.push(DimPin { target: target.into(), size });
            }
            _ => return Err(format!("unknown directive `{directive}`")),
        }
    }
    options.state = Choice::parse(&states, None).map_err(|error| error.to_string())?;
    let arrow = rest.iter().position(|line| *line == "=>").unwrap_or(rest.len());
    let expected = rest.get(arrow + 1..).unwrap_or_default().join("\n");
    Ok(Case { header: header.join("\n"), options, model: rest[..arrow].join("\n"), expected })
}

/// The graph of a model and what is said of it, or the problems of one that is refused.
fn imported(model: &str, options: &ImportOptions) -> Result<(Option<Graph>, String), String> {
    let model = onnx_text::parse(model)?;
    let import = match import(&model, options, &NoExternalData, onnxc::operators()) {
        Ok(import) => import,
        Err(errors) => {
            let lines = errors.iter().map(|error| format!("// error: {error}\n"));
            return Ok((None, lines.collect()));
        }
    };
    let graph = import.graph;
    checked(&graph, "before")?;
    let printed = to_text(&graph);
    if to_text(&parse(&printed).map_err(|error| error.to_string())?) != printed {
        return Err(format!("what is printed is read as something else:\n{printed}"));
    }
    let warnings = import.warnings.iter().map(|warning| format!("// warning: {}\n", warning.problem));
    let notes = import.notes.iter().map(|note| format!("// note: {note}\n"));
    Ok((Some(graph), warnings.chain(notes).chain([renumbered(&printed)]).collect()))
}

/// The graph after all passes; it gives what the graph gives.
fn optimized(graph: &Graph) -> Result<Graph, String> {
    let mut after = graph.clone();
    run_pass(PIPELINE, Some(CPU), &mut after)?;
    checked(&after, "after")?;
    for seed in 1..=2 {
        same_meaning(graph, &|inputs: &[Tensor]| interp::run(&after, inputs), seed)?;
    }
    Ok(after)
}

/// Runs the files of a folder; gives how many models are imported, and how many are refused.
pub(super) fn run_imports(folder: &Path) -> (usize, usize) {
    let (mut positive, mut negative) = (0, 0);
    run_files(folder, |path| {
        let case = read_case(&std::fs::read_to_string(path).map_err(|error| error.to_string())?)?;
        let (graph, actual) = imported(&case.model, &case.options)?;
        match graph {
            Some(graph) => {
                positive += 1;
                optimized(&graph)?;
            }
            None => negative += 1,
        }
        hold(path, [&case.header, &case.model, &case.expected], &actual)
    });
    (positive, negative)
}

fn digest(text: &str) -> String {
    sha1(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text in full, or its first lines and the first columns of these, with digests of the others, so that a change in them is seen as
/// well.
fn shortened(text: &str) -> String {
    let line = |line: &str| match line.char_indices().nth(MOST_COLUMNS) {
        Some((at, _)) => format!("{} ... {}", &line[..at], digest(&line[at..])),
        None => line.to_string(),
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    let (shown, rest) = lines.split_at(lines.len().min(MOST_LINES));
    let mut short = shown.join("\n") + "\n";
    if !rest.is_empty() {
        short += &format!("... {} more lines, {}\n", rest.len(), digest(&rest.join("\n")));
    }
    short
}

/// A network at every level, each with the name of its file. What each level computes is held against the graph before it.
fn levels(model: &str) -> Result<Vec<(&'static str, String)>, String> {
    let (graph, import) = imported(model, &ImportOptions::default())?;
    let graph = graph.ok_or_else(|| import.clone())?;
    let after = optimized(&graph)?;
    Ok(vec![
        ("1_import", import),
        ("2_passes", renumbered(&to_text(&after))),
        ("3_schedule", run_schedule_case(&after)?),
        ("4_loops", loops_text(&after, &wide_core(CPU)?, &[])?),
        ("5_vector", run_vector_case(&after, CPU)?),
        ("6_host", run_host_case(&after, &["main.steps".into(), "body".into()])?),
    ])
}

/// Compares every network of a folder with its snapshots.
pub(super) fn run_networks(folder: &Path) {
    let mut paths = paths(folder);
    paths.retain(|path| path.is_file());
    assert!(paths.len() >= 6, "{} networks", paths.len());
    let mut failures = vec![];
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a model");
        let snapshots = path.with_extension("");
        let found = match levels(&text) {
            Ok(found) => found,
            Err(message) => {
                failures.push(format!("{}: {message}", path.display()));
                continue;
            }
        };
        for (level, actual) in found {
            let (place, actual) = (snapshots.join(format!("{level}.txt")), shortened(&actual));
            if updates() {
                std::fs::create_dir_all(&snapshots).expect("a folder of snapshots");
                std::fs::write(&place, &actual).expect("a snapshot");
            }
            let expected = std::fs::read_to_string(&place).unwrap_or_default();
            if expected != actual {
                failures.push(format!("{}: expected\n{expected}\ngot\n{actual}", place.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn long_texts_are_shortened() {
    let long = |last: &str| (0..200).map(|at| format!("{at}\n")).collect::<String>() + last;
    let short = shortened(&long("a"));
    assert_eq!(short.lines().count(), MOST_LINES + 1);
    assert!(short.contains("\n139\n... 61 more lines, "));
    assert_ne!(short, shortened(&long("b")));
    assert_eq!(shortened("a\nb\n"), "a\nb\n");
    let wide = |last: &str| format!("{}{last}\n", "x".repeat(MOST_COLUMNS));
    assert!(shortened(&wide("a")).starts_with(&format!("{} ... ", "x".repeat(MOST_COLUMNS))));
    assert_ne!(shortened(&wide("a")), shortened(&wide("b")));
}

#[test]
fn malformed_imports_are_refused() {
    let refused = |text: &str, reason: &str| {
        let message = read_case(text).err().unwrap_or_default();
        assert!(message.contains(reason), "{text:?} gave {message:?}");
    };
    refused("; pass: dce\n", "the first line is not `; import`");
    refused("; import\n; size n\n", "a size is `NAME=N`");
    refused("; import\n; size n=many\n", "`many` is not a size");
    refused("; import\n; opset 3\n", "unknown directive `opset 3`");
}
