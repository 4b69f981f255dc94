//! Draws models from the ONNX schemas, compiles and runs them, and reports every result that differs from what ONNX's
//! reference computes. Exit code 0 if there is none.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::differential::{Plan, Summary, run};
use onnxc_tests::harness::{Place, Runner};
use onnxc_tests::machine::Machine;
use onnxc_tests::proof::Table;

#[derive(Parser)]
struct Arguments {
    /// Number of cases
    #[arg(long, default_value_t = 1000)]
    cases: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case, to run one again: `--first N --cases 1`
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this operator
    #[arg(long)]
    operator: Option<String>,
    /// Python with onnx, and with onnxruntime for its opinion
    #[arg(long)]
    python: Option<PathBuf>,
    /// Folder for the models and their data
    #[arg(long)]
    keep: Option<PathBuf>,
    /// 0, 1 or 2
    #[arg(short = 'O', default_value_t = 2)]
    opt_level: u8,
    /// Run on this machine under its emulator, see `src/machine.rs`
    #[arg(long, conflicts_with = "proof")]
    machine: Option<String>,
    /// Write the proof table, with this run's cases and more where they leave pairs without proof
    #[arg(long)]
    proof: Option<PathBuf>,
    /// File for all results as JSON lines
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let machine = arguments.machine.as_deref().map(Machine::named).transpose()?;
    let place = match machine {
        Some(machine) => Place::On(machine),
        None => {
            let runner = std::env::current_exe()?.with_file_name("run_cases");
            Runner::native(&runner.to_string_lossy()).into()
        }
    };
    let target = machine.map_or_else(Target::host, |machine| Ok(machine.target()))?;
    let code = Code { target, opt_level: arguments.opt_level };
    let plan = Plan {
        seed: arguments.seed,
        first: arguments.first,
        count: arguments.cases,
        operator: arguments.operator,
        python: arguments.python,
        keep: arguments.keep,
    };
    let results = run(&plan, &code, &place)?;
    if let Some(path) = arguments.results {
        let lines: Vec<String> = results
            .iter()
            .map(|(drawn, outcome)| format!("{}\t{:?}\n", serde_json::json!(drawn), outcome))
            .collect();
        std::fs::write(path, lines.concat())?;
    }
    if let Some(path) = arguments.proof {
        let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
        let mut table = Table::of_suites(&lists)?;
        table.note(&results, plan.seed)?;
        table.draw_missing(&plan, 12, &code, &place)?;
        std::fs::write(path, table.markdown())?;
    }
    let summary = Summary::new(&results);
    println!("{summary}");
    Ok(if summary.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
