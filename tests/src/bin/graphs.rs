//! Draws random graphs, compiles and runs each in every way, and reports every result that differs. Exit code 0 if there is
//! none.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use onnxc_tests::graphs::driver::{Kind, Plan, Summary, run};
use onnxc_tests::graphs::progress::{Journal, Progress};
use onnxc_tests::graphs::worker;

#[derive(Parser)]
struct Arguments {
    #[arg(long, value_enum, default_value_t)]
    kind: Kind,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first graph, to run one again: `--first N --count 1`
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Number of graphs
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Python with onnx and onnxruntime
    #[arg(long)]
    python: Option<PathBuf>,
    /// Folder for the smallest models that fail
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Processes side by side
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Leave failing graphs as they are
    #[arg(long)]
    no_shrink: bool,
    /// End at the first graph that fails
    #[arg(long)]
    stop: bool,
    /// Begin no graph after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// File for the table of figures
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// File that keeps what is said about each graph: those it has are not run again
    #[arg(long)]
    journal: Option<PathBuf>,
    /// Serve requests on standard input: what the Python side starts
    #[arg(long)]
    serve: bool,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    if arguments.serve {
        worker::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = Plan {
        kind: arguments.kind,
        seed: arguments.seed,
        first: arguments.first,
        count: arguments.count,
        python: arguments.python,
        keep: arguments.keep,
        worker: std::env::current_exe()?,
        jobs: arguments.jobs,
        shrink: !arguments.no_shrink,
    };
    let (journal, done) = match arguments.journal.as_deref().map(Journal::open).transpose()? {
        Some((journal, done)) => (Some(journal), done),
        None => (None, Vec::new()),
    };
    let progress = Progress::new(arguments.stop, arguments.seconds.map(Duration::from_secs), journal);
    let summary = Summary::new(&run(&plan, done, &|line| progress.add(line))?);
    let table = summary.markdown(&plan);
    println!("{summary}\n{table}");
    if let Some(path) = arguments.markdown {
        std::fs::write(path, table)?;
    }
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
