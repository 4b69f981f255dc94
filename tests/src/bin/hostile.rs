//! Hostile models through `onnxc check` and `onnxc compile`; see `onnxc_tests::hostile`.
//!
//!     cargo build --release -p onnxc && cargo run --release -p onnxc-tests --bin hostile
//!
//! Exit code 0 if every model was compiled or refused within the limits.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::Parser;
use onnxc_tests::hostile::{COMMANDS, Case, Limits, Verdict, cases, run};
use onnxc_tests::measure::slowness;

/// Check and compile hostile models; each must end within 10 s and 256 MiB + 4 times its file
#[derive(Parser)]
struct Args {
    /// Only models whose names contain one of these
    names: Vec<String>,
    /// The compiler (default: the one beside this program)
    #[arg(long)]
    onnxc: Option<PathBuf>,
    /// Allow this many times the time and the memory, as for a build without optimization
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// Scale the time by that of a fixed piece of work on this machine, beside a model that takes longer
    #[arg(long)]
    calibrated: bool,
    /// Only `compile` of the smallest model of each family, and `check` of the next one
    #[arg(long)]
    short: bool,
    /// Models at a time (default: one per core)
    #[arg(long)]
    jobs: Option<usize>,
    /// Only list the names
    #[arg(long)]
    list: bool,
    /// Write the first model to a file instead
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let mut cases = cases();
    if let (Some(path), Some(name)) = (&args.write, args.names.first()) {
        let case = cases.iter().find(|case| case.name == *name).ok_or("there is no such model")?;
        std::fs::write(path, case.bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    cases.retain(|case| !case.short.is_empty() || !args.short);
    cases.retain(|case| args.names.is_empty() || args.names.iter().any(|name| case.name.contains(name)));
    if args.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe()?;
    let onnxc = args.onnxc.clone().unwrap_or_else(|| program.with_file_name("onnxc"));
    let limits = Limits::default();
    let limits = Limits {
        time: limits.time.mul_f64(args.slack),
        memory: (limits.memory as f64 * args.slack) as u64,
        slowness: args.calibrated.then(slowness),
        ..limits
    };
    let write = |case: &Case, path: &Path| -> io::Result<()> {
        let done = Command::new(&program).arg(&case.name).arg("--write").arg(path).status()?;
        if done.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot be made", case.name))) }
    };
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<[usize; 3]> {
        let folder = tempfile::tempdir()?;
        let (mut handled, mut compiled, mut faults) = (0, 0, 0);
        while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
            let commands = if args.short { case.short } else { COMMANDS };
            let findings = run(case, commands, &onnxc, limits, folder.path(), &write)?;
            for finding in &findings {
                println!("{finding}");
            }
            let is_fault = |verdict: &Verdict| matches!(verdict, Verdict::Fault(_));
            faults += usize::from(findings.iter().any(|finding| is_fault(&finding.verdict)));
            compiled += usize::from(findings.iter().all(|finding| finding.verdict == Verdict::Compiled));
            handled += 1;
        }
        Ok([handled, compiled, faults])
    };
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let counts = threads.into_iter().map(|thread| thread.join().expect("a run does not panic"));
        counts.collect::<io::Result<Vec<_>>>()
    })?;
    let [handled, compiled, faults] =
        [0, 1, 2].map(|at| counts.iter().map(|counts| counts[at]).sum::<usize>());
    println!(
        "{handled} models: {compiled} compiled, {} refused, {faults} faults",
        handled - compiled - faults
    );
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
