//! `onnxc bench`: how long a model takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onnxc_runtime_support::Pool;
use serde::Serialize;

use crate::cli::args::{BenchArgs, SizeArgs};
use crate::cli::check::to_json;
use crate::cli::data;
use crate::cli::session::{Loaded, Problems, Session, native_options, one, usage};
use crate::error::Result;
use crate::graph::Tensor;
use crate::native::{self, Call};

#[derive(Serialize)]
struct Report {
    compile_ms: f64,
    load_ms: f64,
    /// The first run, with the workspace's pages not yet in memory.
    first_ms: f64,
    min_ms: f64,
    median_ms: f64,
    runs: usize,
    threads: usize,
    /// Sizes of the dims that the model leaves open.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sizes: BTreeMap<String, usize>,
    workspace_bytes: usize,
    object_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<Share>,
}

/// What part of the time the kernels of some ONNX nodes take.
#[derive(Serialize)]
struct Share {
    nodes: Vec<String>,
    kernel: String,
    ms: f64,
    share: f64,
    /// Why it is no leaf kernel, where the processor has those.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

pub fn run(args: &BenchArgs) -> std::result::Result<(), Problems> {
    if !args.seconds.is_finite() || args.seconds < 0.0 {
        return Err(one(usage(format!("--seconds is {}; it must be 0 or more", args.seconds))));
    }
    let session = Session::open(&args.model).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    let inputs = inputs(&session, &loaded, &args.sizes).map_err(one)?;
    let mut report = measure(&loaded, &inputs, args).map_err(one)?;
    if args.per_node {
        let mut options = options;
        options.profile = true;
        report.nodes = profile(&session.load(&options)?, &inputs, args).map_err(one)?;
    }
    if args.json {
        say!("{}", to_json(&report))
    } else {
        print(&report)
    }
    Ok(())
}

fn print(report: &Report) {
    say!("compile {:.1} ms, load {:.3} ms", report.compile_ms, report.load_ms);
    let Report { first_ms, min_ms, median_ms, runs, threads, .. } = report;
    say!("first {first_ms:.3} ms, min {min_ms:.3} ms, median {median_ms:.3} ms");
    say!("{runs} runs on {threads} threads");
    if !report.sizes.is_empty() {
        let sizes: Vec<String> = report.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        say!("sizes {} (--size for others)", sizes.join(" "));
    }
    say!("workspace {} bytes, object {} bytes", report.workspace_bytes, report.object_bytes);
    for share in &report.nodes {
        let nodes = share.nodes.join(", ");
        let note = share.refusal.as_ref().map_or(String::new(), |why| format!(" (no leaf kernel: {why})"));
        say!("{:>6.2}% {:>9.4} ms  {} {nodes}{note}", share.share * 100.0, share.ms, share.kernel);
    }
}

/// The first data set beside the model if it has the sizes that the model is compiled for and no others are asked for, else
/// random values.
fn inputs(session: &Session, loaded: &Loaded, sizes: &SizeArgs) -> Result<Vec<Option<Tensor>>> {
    let graph = &loaded.graph;
    if sizes.sizes.is_empty()
        && sizes.fill.is_empty()
        && let Some(folder) = data::test_sets(session.folder()).first()
        && let Ok((inputs, _)) = data::test_set(graph, folder)
        && native::output_shapes(graph, &inputs).is_ok()
    {
        return Ok(inputs);
    }
    let mut inputs = vec![None; graph.inputs.len()];
    data::fill(graph, &mut inputs, &sizes.sizes, &sizes.fill)?;
    data::fill_randomly(graph, &mut inputs, &sizes.sizes, 0)?;
    Ok(inputs)
}

fn pool(threads: usize) -> Result<Option<Pool>> {
    if threads == 1 {
        return Ok(None);
    }
    Pool::new(threads).map(Some).map_err(|error| usage(format!("--threads {threads}: {error}")))
}

fn measure(loaded: &Loaded, inputs: &[Option<Tensor>], args: &BenchArgs) -> Result<Report> {
    let pool = pool(args.threads)?;
    let call = Call { pool: pool.as_ref(), ..Call::default() };
    let shapes = native::output_shapes(&loaded.graph, inputs)?;
    let mut prepared = loaded.model()?.prepare(inputs, &shapes)?;
    let mut once = || -> Result<f64> {
        let start = Instant::now();
        prepared.run(&call)?;
        Ok(milliseconds(start.elapsed()))
    };
    let first_ms = once()?;
    let mut times = Vec::new();
    let start = Instant::now();
    while times.is_empty() || start.elapsed().as_secs_f64() < args.seconds {
        times.push(once()?);
    }
    prepared.check_guards()?;
    times.sort_by(f64::total_cmp);
    Ok(Report {
        compile_ms: milliseconds(loaded.compile_time),
        load_ms: milliseconds(loaded.load_time),
        first_ms,
        min_ms: times[0],
        median_ms: times[times.len() / 2],
        runs: times.len(),
        threads: pool.as_ref().map_or(1, Pool::threads),
        sizes: data::open_sizes(&loaded.graph, inputs),
        workspace_bytes: prepared.workspace_bytes(),
        object_bytes: loaded.object_bytes,
        nodes: vec![],
    })
}

/// Mean time of every step, longest first, over a second or the time of the benchmark if that is less.
fn profile(loaded: &Loaded, inputs: &[Option<Tensor>], args: &BenchArgs) -> Result<Vec<Share>> {
    let pool = pool(args.threads)?;
    let shapes = native::output_shapes(&loaded.graph, inputs)?;
    let mut prepared = loaded.model()?.prepare(inputs, &shapes)?;
    let mut spent: HashMap<usize, Duration> = HashMap::new();
    let mut last = Instant::now();
    let mut runs = 0u32;
    let begin = Instant::now();
    while runs < 2 || begin.elapsed().as_secs_f64() < args.seconds.min(1.0) {
        let observer = Mutex::new(|step: usize| {
            let now = Instant::now();
            // The first run warms up. The end of a scan is told after its body's steps, which have had their time.
            if runs > 0 {
                *spent.entry(step).or_default() += now - last;
            }
            last = now;
        });
        prepared.run(&Call { pool: pool.as_ref(), step_done: Some(&observer), ..Call::default() })?;
        runs += 1;
        last = Instant::now();
    }
    let total: Duration = spent.values().sum();
    let mut shares: Vec<Share> = spent
        .into_iter()
        .filter_map(|(step, time)| {
            let info = loaded.steps.get(step)?;
            Some(Share {
                nodes: info.nodes.clone(),
                kernel: info.kernel.clone(),
                refusal: info.refusal.clone(),
                ms: milliseconds(time) / f64::from(runs - 1),
                share: time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE),
            })
        })
        .collect();
    shares.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(shares)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
