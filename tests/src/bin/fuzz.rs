//! Mutated models through the compiler; see `onnxc_tests::fuzz`.
//!
//!     cargo run --release -p onnxc-tests --bin fuzz -- --cases 200000
//!     cargo run --release -p onnxc-tests --bin fuzz -- --cases 10000000 --frontend
//!
//! Exit code 0 if no model made the compiler panic, hang, use too much memory or blame itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser;
use onnxc_tests::fuzz::{Depth, Fuzzer, Plan, Position, Tally, supervise};

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
    /// Time of the processors that a model may take, in seconds
    #[arg(long, default_value_t = 5.0)]
    patience: f64,
    /// Begin no model after this many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// Write the model of a case to a file instead
    #[arg(long, value_name = "FILE", conflicts_with = "cases")]
    write: Option<PathBuf>,
    /// Only decode, import, rewrite and schedule
    #[arg(long)]
    frontend: bool,
    /// Be a worker that keeps its position in this file
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
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
        match take(layout.size()) {
            // SAFETY: the caller's promises are passed on.
            true => unsafe { System.alloc(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        let moved = unsafe { System.realloc(block, layout, size) };
        let gone = if moved.is_null() { size } else { layout.size() };
        USED.fetch_sub(gone, Relaxed);
        moved
    }
}

/// Counts bytes; false, and nothing counted, where that is too much.
fn take(bytes: usize) -> bool {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    if used > HEAP {
        USED.fetch_sub(bytes, Relaxed);
        return false;
    }
    PEAK.fetch_max(used, Relaxed);
    true
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let cases = args.first..args.first + args.cases;
    let folder = tempfile::tempdir()?;
    let depth = if args.frontend { Depth::Schedule } else { Depth::Object };
    if let Some(position) = &args.worker {
        work(&Fuzzer::new(folder.path())?, cases, depth, &Position::open(position)?)?;
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
    let summary = supervise(&plan, &|cases: Range<u64>, position: &Path| {
        let mut command = Command::new(&program);
        let (first, count) = (cases.start.to_string(), (cases.end - cases.start).to_string());
        command.arg("--worker").arg(position).args(["--first", &first, "--cases", &count]);
        if args.frontend {
            command.arg("--frontend");
        }
        // The workers are the parallelism: one compiles with one thread.
        command.env("RAYON_NUM_THREADS", "1");
        command
    })?;
    for (case, fault) in &summary.tally.faults {
        println!("case {case}: {fault}");
    }
    println!("{summary}");
    Ok(if summary.tally.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often a worker reports the outcomes of its cases.
const TELL: Duration = Duration::from_millis(500);

fn work(fuzzer: &Fuzzer, cases: Range<u64>, depth: Depth, position: &Position) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let mut tell = |tally: &Tally| -> Result<(), Box<dyn Error>> {
        serde_json::to_writer(&mut out, tally)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    };
    let (mut tally, mut told) = (Tally::default(), Instant::now());
    for case in cases {
        position.set(case)?;
        let before = USED.load(Relaxed);
        PEAK.store(before, Relaxed);
        let start = Instant::now();
        let outcome = fuzzer.run(case, depth);
        tally.add(case, outcome, (PEAK.load(Relaxed) - before) as u64, start.elapsed());
        if told.elapsed() > TELL {
            tell(&std::mem::take(&mut tally))?;
            told = Instant::now();
        }
    }
    if tally.cases > 0 {
        tell(&tally)?;
    }
    Ok(())
}
