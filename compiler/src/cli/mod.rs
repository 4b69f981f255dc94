//! The command line: the only code that touches the file system.

/// A line on standard output. Ends the program with code 1 where it cannot be written, without a message if the reader
/// has gone away.
macro_rules! say {
    ($($argument:tt)*) => { $crate::cli::say(format_args!($($argument)*)) };
}

pub mod archive;
pub mod args;
mod bench;
mod bisect;
mod check;
pub mod compare;
mod compile;
pub mod data;
mod depfile;
pub mod files;
pub mod functions;
mod inspect;
mod linker;
#[cfg(feature = "manual")]
mod manual;
pub mod output;
mod peak;
mod plan;
mod progress;
mod protos;
mod report;
mod run;
pub mod session;
mod shapes;
mod shard;
mod train;
mod train_graph;
pub mod values;
pub mod verify;
mod web;
mod weights;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use args::{Cli, Command};
use onnxc_import::diagnostics;
use onnxc_ir::error::Kind;
#[cfg(not(feature = "manual"))]
use onnxc_ir::error::without;
use session::Problems;
#[cfg(not(feature = "manual"))]
use session::{one, usage};

/// Whether the process began without a standard output.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether nothing but errors goes to standard error.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Runs the command that the arguments name. Exit codes: 0 success; 1 invalid model, wrong results or I/O
/// error; 2 usage error.
///
/// Rust's runtime puts the null device in the place of a standard output that is closed: `stdout_closed` is what was
/// found before.
pub fn main(stdout_closed: bool) -> ExitCode {
    STDOUT_CLOSED.store(stdout_closed, Ordering::Relaxed);
    output::fail_at_the_file_size_limit();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(command);
    match thread.map(JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            complain(format_args!("error: no thread to work on: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Nesting of functions and bodies of a model, and more than the stack that it takes: the command runs on a thread of its own, regardless
/// of the stack it is started with.
const NESTING: u32 = 512;
const STACK: usize = 64 << 20;

fn command() -> ExitCode {
    let cli = Cli::from_arguments(std::env::args_os());
    QUIET.store(cli.quiet, Ordering::Relaxed);
    let result = match cli.command {
        Command::Compile(args) => compile::run(&args).map(|()| true),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args).map(|()| true),
        Command::Run(args) => run::run(&args).map(|()| true),
        Command::Weights(args) => weights::run(&args).map(|()| true),
        Command::TrainGraph(args) => train_graph::run(&args).map(|()| true),
        Command::Shard(args) => shard::run(&args).map(|()| true),
        Command::Verify(args) => verify::run(&args),
        Command::Bench(args) => bench::run(&args).map(|()| true),
        Command::Report(args) => report::run(&args).map(|()| true),
        #[cfg(feature = "manual")]
        Command::Completions(args) => {
            manual::completions(&args);
            Ok(true)
        }
        #[cfg(feature = "manual")]
        Command::Man(args) => manual::pages(&args).map(|()| true),
        #[cfg(not(feature = "manual"))]
        Command::Completions(_) | Command::Man(_) => {
            Err(one(usage(without("manual pages and completions", "manual"))))
        }
        Command::Ops(args) => {
            check::ops(&args);
            Ok(true)
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problems) => fail(&problems),
    }
}

/// One line per problem, and one for those of a kind that are too many.
fn fail(problems: &Problems) -> ExitCode {
    for line in diagnostics::lines(problems) {
        complain(format_args!("error: {line}"));
    }
    let usage = problems.iter().any(|problem| problem.kind == Kind::Usage);
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// A warning, a note or progress: a line on standard error, unless `--quiet` is given.
fn note(text: std::fmt::Arguments<'_>) {
    if !is_quiet() {
        complain(text);
    }
}

/// A line on standard error. Where nobody reads it, as behind `2>&1 | head`, work goes on.
fn complain(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// See the macro.
fn say(text: std::fmt::Arguments<'_>) {
    if STDOUT_CLOSED.load(Ordering::Relaxed) {
        complain(format_args!("error: standard output is closed"));
        std::process::exit(1);
    }
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        if error.kind() != std::io::ErrorKind::BrokenPipe {
            complain(format_args!("error: standard output: {error}"));
        }
        std::process::exit(1);
    }
}
