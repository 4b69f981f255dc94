//! Mutated models through the compiler; see `onnxc_tests::fuzz`.
//!
//!     cargo run --release -p onnxc-tests --bin fuzz -- --cases 200000
//!
//! Exit code 0 if no model made the compiler panic, hang, use too much memory or blame itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use onnxc_tests::fuzz::{Fuzzer, Plan, Report, supervise};

/// Compile mutated models; none may make the compiler panic, hang or use too much memory
#[derive(Parser)]
struct Args {
    /// How many models
    #[arg(long, default_value_t = 10_000)]
    cases: u64,
    /// Number of the first
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Processes at a time (default: one per core)
    #[arg(long)]
    workers: Option<usize>,
    /// Longest time of a model, in seconds
    #[arg(long, default_value_t = 5.0)]
    patience: f64,
    /// Begin no model after this many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Write the model of a case to a file instead
    #[arg(long, value_name = "FILE", conflicts_with = "cases")]
    write: Option<PathBuf>,
    /// Be a worker
    #[arg(long, hide = true)]
    worker: bool,
}

/// Most bytes of the heap that a model may take.
const HEAP: usize = 1 << 30;

/// The system's allocator with a meter and a limit.
struct Metered;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Metered = Metered;

// SAFETY: every block comes from the system's allocator and goes back to it with the layout it came with.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        if used > HEAP {
            USED.fetch_sub(layout.size(), Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let cases = args.first..args.first + args.cases;
    let folder = tempfile::tempdir()?;
    if args.worker {
        work(&Fuzzer::new(folder.path())?, cases)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Made once, before several processes would.
    let fuzzer = Fuzzer::new(folder.path())?;
    if let Some(path) = &args.write {
        std::fs::write(path, fuzzer.model(args.first))?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("mutating {} models", fuzzer.corpus());
    let plan = Plan {
        cases,
        workers: args.workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        patience: Duration::try_from_secs_f64(args.patience)?,
        time: args.seconds.map(Duration::try_from_secs_f64).transpose()?,
    };
    let program = std::env::current_exe()?;
    let summary = supervise(&plan, &|cases: Range<u64>| {
        let mut command = Command::new(&program);
        let (first, count) = (cases.start.to_string(), (cases.end - cases.start).to_string());
        command.args(["--worker", "--first", &first, "--cases", &count]);
        // The workers are the parallelism: one compiles with one thread.
        command.env("RAYON_NUM_THREADS", "1");
        command
    })?;
    for (case, fault) in &summary.faults {
        println!("case {case}: {fault}");
    }
    println!("{summary}");
    Ok(if summary.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn work(fuzzer: &Fuzzer, cases: Range<u64>) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let mut tell = |report: &Report| -> Result<(), Box<dyn Error>> {
        serde_json::to_writer(&mut out, report)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    };
    for case in cases {
        tell(&Report::Start(case))?;
        let before = USED.load(Relaxed);
        PEAK.store(before, Relaxed);
        let outcome = fuzzer.run(case);
        tell(&Report::Done(outcome, (PEAK.load(Relaxed) - before) as u64))?;
    }
    Ok(())
}
