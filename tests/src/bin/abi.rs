//! Checks on models what the C ABI promises of every model: runs between protected pages, misuse, exact workspace, stack.
//!
//! abi [--size NAME=N] MODEL.onnx|DIR ...: every model in a process of its own, on its first data set or on random
//! inputs. Prints a line per model; exit code 1 if one breaks a promise, or ends with a signal.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;
use onnxc::cli::data;
use onnxc::cli::session::Loaded;
use onnxc::native;
use onnxc_machine::target::Target;
use onnxc_tests::abi;
use onnxc_tests::compile::{Failure, compile_for};

#[derive(Parser)]
struct Arguments {
    /// Size of an open dim of random inputs, else 1.
    #[arg(long, value_name = "NAME=N")]
    size: Vec<String>,
    /// Check the one model in this process.
    #[arg(long, hide = true)]
    here: bool,
    #[arg(required = true)]
    models: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.here {
        return match check(&arguments.models[0], &arguments.size) {
            Ok(text) => {
                println!("{text}");
                ExitCode::SUCCESS
            }
            Err(text) => {
                println!("FAILED: {text}");
                ExitCode::FAILURE
            }
        };
    }
    let mut models = vec![];
    arguments.models.iter().for_each(|path| find(path, &mut models));
    let (mut good, mut skipped) = (0, 0);
    for model in &models {
        let (text, end) = apart(model, &arguments.size);
        println!("{}: {text}", model.display());
        good += usize::from(end == End::Good);
        skipped += usize::from(end == End::Skipped);
    }
    println!("{good} of {} models keep all promises, {skipped} do not compile", models.len());
    if good + skipped == models.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(PartialEq)]
enum End {
    Good,
    Skipped,
    Failed,
}

/// Models at a path: the file, or all beneath the folder.
fn find(path: &Path, models: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        models.push(path.to_path_buf());
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "onnx") {
            find(&path, models);
        }
    }
}

/// Checks a model in another process.
fn apart(model: &Path, sizes: &[String]) -> (String, End) {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return (error.to_string(), End::Failed),
    };
    let sizes = sizes.iter().flat_map(|size| ["--size", size.as_str()]);
    match Command::new(program).arg("--here").args(sizes).arg(model).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
            match output.status.success() {
                true if text.starts_with("does not compile") => (text, End::Skipped),
                true => (text, End::Good),
                false => (format!("{text} ({})", output.status), End::Failed),
            }
        }
        Err(error) => (error.to_string(), End::Failed),
    }
}

fn check(model: &Path, sizes: &[String]) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let target = Target::host().map_err(text)?;
    let start = Instant::now();
    let compiled = match compile_for(model, "model", &target.into()) {
        Ok(compiled) => compiled,
        Err(errors) => return Ok(format!("does not compile: {}", Failure::Errors(errors))),
    };
    let loaded = Loaded::new(compiled, start).map_err(text)?;
    let graph = &loaded.graph;
    let sets = data::test_sets(model.parent().unwrap_or(Path::new(".")));
    let from_set = sets.first().and_then(|set| data::test_set(graph, set).ok()).map(|(inputs, _)| inputs);
    let inputs = match from_set {
        Some(inputs) => inputs,
        None => {
            let mut inputs = vec![None; graph.inputs.len()];
            data::fill_randomly(graph, &mut inputs, sizes, 1).map_err(text)?;
            inputs
        }
    };
    let shapes = native::output_shapes(graph, &inputs).map_err(text)?;
    let findings = abi::check(&loaded.model().map_err(text)?, &inputs, &shapes)?;
    let abi::Findings { refused, stack, workspace, .. } = findings;
    let computed = loaded.stats.stack_bytes;
    Ok(format!("workspace {workspace}, stack {stack} (computed {computed}), {refused} wrong calls refused"))
}
