//! How time and memory of compiling grow with the model; see `onnxc_tests::scaling`.
//!
//!     cargo build --release -p onnxc && cargo run --release -p onnxc-tests --bin scaling -- --out tests/benchmarks/scaling.md

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use onnxc_tests::scaling::{Cost, FAMILIES, Family, compile, exponent};

/// Time and peak memory of compiling models of growing size, as a table
#[derive(Parser)]
struct Args {
    /// Only families whose names contain one of these
    names: Vec<String>,
    /// The compiler (default: the one beside this program)
    #[arg(long)]
    onnxc: Option<PathBuf>,
    /// Another compiler, whose figures come first
    #[arg(long)]
    before: Option<PathBuf>,
    /// Time of the processor that one model may take, in seconds
    #[arg(long, default_value_t = 120.0)]
    patience: f64,
    /// Write the table to a file, too
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write a model, as `FAMILY SIZE`, to a file instead
    #[arg(long, value_name = "FILE", hide = true)]
    write: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let (Some(path), [name, size]) = (&args.write, args.names.as_slice()) {
        let family = FAMILIES.iter().find(|family| family.name == name).ok_or("there is no such family")?;
        return Ok(family.write(size.parse()?, path)?);
    }
    let wanted =
        |family: &&Family| args.names.is_empty() || args.names.iter().any(|n| family.name.contains(n));
    let program = std::env::current_exe()?;
    let onnxc = args.onnxc.clone().unwrap_or_else(|| program.with_file_name("onnxc"));
    let compilers: Vec<&Path> = args.before.as_deref().into_iter().chain([onnxc.as_path()]).collect();
    let patience = Duration::try_from_secs_f64(args.patience)?;
    let folder = tempfile::tempdir()?;
    let mut table = header(compilers.len());
    print!("{table}");
    for family in FAMILIES.iter().filter(wanted) {
        let mut last: Vec<Option<(usize, Cost)>> = vec![None; compilers.len()];
        for &size in family.sizes {
            let model = folder.path().join("model.onnx");
            // Another process makes the model: the system counts the memory of this one as that of its children, too.
            Command::new(&program)
                .args([family.name, &size.to_string()])
                .arg("--write")
                .arg(&model)
                .status()?;
            let mut row = format!("| {} | {size} |", family.name);
            for (compiler, last) in compilers.iter().zip(&mut last) {
                let cost = compile(compiler, &model, patience)?;
                row += &cells(size, cost, *last, patience);
                *last = cost.map(|cost| (size, cost));
            }
            println!("{row}");
            writeln!(table, "{row}")?;
        }
    }
    if let Some(path) = &args.out {
        std::fs::write(path, table)?;
    }
    Ok(())
}

fn header(compilers: usize) -> String {
    let mut table = String::from(
        "# Compile time and memory by size\n\n`e` is the exponent in `cost ~ size^e` from the row above: 1 is linear.\n\n",
    );
    let (mut names, mut rule) = (String::from("| models | size |"), String::from("|---|---:|"));
    for at in 0..compilers {
        let when = if compilers == 1 { "" } else { [" before", " after"][at] };
        names += &format!(" ms{when} | e | MiB{when} | e |");
        rule += "---:|---:|---:|---:|";
    }
    table += &format!("{names}\n{rule}\n");
    table
}

fn cells(size: usize, cost: Option<Cost>, last: Option<(usize, Cost)>, patience: Duration) -> String {
    let Some(cost) = cost else { return format!(" refused, or over {} s | | | |", patience.as_secs()) };
    let grown = |of: fn(&Cost) -> f64| match &last {
        Some((small, less)) => format!("{:.2}", exponent((*small, of(less)), (size, of(&cost)))),
        None => String::new(),
    };
    format!(
        " {:.0} | {} | {} | {} |",
        cost.seconds * 1e3,
        grown(|cost| cost.seconds),
        cost.peak >> 20,
        grown(|cost| cost.peak as f64)
    )
}
