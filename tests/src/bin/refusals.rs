//! Kernels that have no leaf form, by reason, and their share of the time of models.
//!
//!     cargo build --release -p onnxc && cargo run --release -p onnxc-tests --bin refusals -- MODEL.onnx|DIR ...

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde::Deserialize;

/// Kernels other than leaf kernels: by reason, how many there are, and their share of the run time
#[derive(Parser)]
struct Args {
    /// Models, or folders with models anywhere beneath
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// The compiler (default: the one beside this program)
    #[arg(long)]
    onnxc: Option<PathBuf>,
    /// Seconds that each model is run for, at least
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Name each model with such kernels, too
    #[arg(long)]
    by_model: bool,
}

/// What `onnxc bench --per-node --json` writes.
#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    nodes: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    kernel: String,
    share: f64,
    refusal: Option<String>,
}

/// Kernels that were refused for one reason.
#[derive(Default)]
struct Reason {
    kernels: usize,
    models: usize,
    /// Sum of their shares of the time of each model.
    share: f64,
    /// The model where they take most of the time.
    worst: (f64, String),
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let onnxc = match &args.onnxc {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("onnxc"),
    };
    let mut models = vec![];
    args.models.iter().try_for_each(|path| find(path, &mut models))?;
    let mut reasons: BTreeMap<String, Reason> = BTreeMap::new();
    let (mut kernels, mut measured, mut failed) = (0, 0, 0);
    for model in &models {
        let Some(report) = measure(&onnxc, model, args.seconds)? else {
            failed += 1;
            continue;
        };
        measured += 1;
        kernels += report.nodes.len();
        let mut own: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for step in &report.nodes {
            let Some(why) = &step.refusal else { continue };
            let entry = own.entry(why).or_default();
            *entry = (entry.0 + 1, entry.1 + step.share);
            if args.by_model {
                println!("{:>6.2}% {} {}: {why}", 100.0 * step.share, model.display(), step.kernel);
            }
        }
        for (why, (count, share)) in own {
            let reason = reasons.entry(why.to_string()).or_default();
            reason.kernels += count;
            reason.models += 1;
            reason.share += share;
            if share > reason.worst.0 {
                reason.worst = (share, model.display().to_string());
            }
        }
    }
    println!("{measured} models, {kernels} kernels and other steps; {failed} models were not run\n");
    println!("| reason | kernels | models | mean share of all models | most, where |\n|---|---|---|---|---|");
    let mut rows: Vec<(String, Reason)> = reasons.into_iter().collect();
    rows.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
    for (why, Reason { kernels, models, share, worst }) in rows {
        let mean = 100.0 * share / measured.max(1) as f64;
        println!("| {why} | {kernels} | {models} | {mean:.3}% | {:.1}%, {} |", 100.0 * worst.0, worst.1);
    }
    Ok(())
}

/// The models at a path or beneath it, in order.
fn find(path: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        found.push(path.to_path_buf());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() || entry.extension().is_some_and(|extension| extension == "onnx") {
            find(&entry, found)?;
        }
    }
    Ok(())
}

/// The steps of a model; nothing where it does not compile or run.
fn measure(onnxc: &Path, model: &Path, seconds: f64) -> Result<Option<Report>, Box<dyn Error>> {
    let output = Command::new(onnxc)
        .args(["bench", "--per-node", "--json", "--threads", "1", "--seconds", &seconds.to_string()])
        .arg(model)
        .output()?;
    if !output.status.success() {
        eprintln!("{}: {}", model.display(), String::from_utf8_lossy(&output.stderr).trim_end());
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&output.stdout)?))
}
