//! The command line: the only code that touches the file system.

/// A line on standard output. A reader that has gone away is no fault of the program's, which then ends quietly.
macro_rules! say {
    ($($argument:tt)*) => { $crate::cli::say(format_args!($($argument)*)) };
}

pub mod args;
mod bench;
mod bisect;
mod check;
pub mod compare;
mod compile;
pub mod data;
pub mod external;
pub mod files;
mod inspect;
mod run;
pub mod session;
pub mod verify;

use std::io::Write;
use std::process::ExitCode;

use crate::error::Kind;
use args::{Cli, Command};
use session::Problems;

/// Runs the command that the arguments name. Exit codes: 0 all is well, 1 the model or its results are not, 2 the
/// arguments are not.
pub fn main() -> ExitCode {
    let cli = Cli::from_arguments(std::env::args_os());
    let result = match cli.command {
        Command::Compile(args) => compile::run(&args).map(|()| true),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args).map(|()| true),
        Command::Run(args) => run::run(&args).map(|()| true),
        Command::Verify(args) => verify::run(&args),
        Command::Bench(args) => bench::run(&args).map(|()| true),
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

/// One line per problem.
fn fail(problems: &Problems) -> ExitCode {
    for problem in problems {
        eprintln!("error: {problem}");
    }
    let usage = problems.iter().all(|problem| problem.kind == Kind::Usage);
    if usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// See the macro.
fn say(text: std::fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        let gone = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !gone {
            eprintln!("error: standard output: {error}");
        }
        std::process::exit(i32::from(!gone));
    }
}
