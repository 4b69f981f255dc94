//! `onnxc bench`: how long a model takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use onnxc_runtime_support::Pool;
use serde::Serialize;

use crate::Options;
use crate::cli::args::{BenchArgs, MeasureArgs};
use crate::cli::check::to_json;
use crate::cli::data;
use crate::cli::peak::Peak;
use crate::cli::session::{Loaded, Problems, Session, native_options, one, usage};
use crate::cli::shapes::{self, Given};
use crate::native::{self, Call, Memory};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Tensor};

#[derive(Serialize)]
pub(super) struct Report {
    pub compile_ms: f64,
    pub load_ms: f64,
    /// The first run, with the workspace's pages not yet in memory.
    pub first_ms: f64,
    pub min_ms: f64,
    pub median_ms: f64,
    pub runs: usize,
    pub threads: usize,
    /// Sizes of the dims that the model leaves open.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<String, usize>,
    pub workspace_bytes: usize,
    pub object_bytes: u64,
    /// What this processor reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Share>,
}

/// What part of the time a step takes.
#[derive(Serialize)]
pub(super) struct Share {
    /// Its number, as passed to `step_done`.
    #[serde(skip)]
    pub step: usize,
    pub nodes: Vec<String>,
    pub operators: Vec<String>,
    /// Type of the first result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    pub kernel: String,
    /// In a run, the least of all runs.
    pub ms: f64,
    /// Of the sum of those.
    pub share: f64,
    #[serde(flatten)]
    pub rate: Option<Rate>,
    /// Why it is not a leaf kernel, where the processor has those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// How fast a kernel is, where its sizes are known.
#[derive(Serialize)]
pub(super) struct Rate {
    pub gflops: f64,
    /// By the bytes of its operands and results, each once.
    pub gbytes: f64,
    /// What would take longer at the peak: operations or bytes.
    pub bound: Bound,
    /// Of that peak; above 1 where the bytes are in a nearer cache than is taken for granted.
    pub of_peak: f64,
    /// How long it would take at the peak.
    pub least_ms: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    Operations,
    Bytes,
}

impl Rate {
    /// Of a step that takes `ms` for these operations and bytes; `None` for one with neither.
    fn new(flops: f64, bytes: f64, ms: f64, peak: &Peak) -> Option<Rate> {
        let (of_flops, of_bytes) = (flops / (peak.gflops * 1e6), bytes / peak.bytes_a_ms(bytes));
        let least_ms = of_flops.max(of_bytes);
        let bound = if of_flops >= of_bytes { Bound::Operations } else { Bound::Bytes };
        let (gflops, gbytes) = (flops / (ms * 1e6), bytes / (ms * 1e6));
        (least_ms > 0.0 && ms > 0.0).then_some(Rate {
            gflops,
            gbytes,
            bound,
            of_peak: least_ms / ms,
            least_ms,
        })
    }

    pub(super) fn text(&self) -> String {
        let (rate, unit) = match self.bound {
            Bound::Operations => (self.gflops, "GFLOP/s"),
            Bound::Bytes => (self.gbytes, "GB/s"),
        };
        format!("{rate:.1} {unit}")
    }
}

impl Share {
    /// Its operators, of many the first and how many more there are.
    pub(super) fn short_name(&self) -> String {
        const SHOWN: usize = 3;
        if self.operators.is_empty() {
            return self.kernel.clone();
        }
        let shown = &self.operators[..self.operators.len().min(SHOWN)];
        match self.operators.len() - shown.len() {
            0 => shown.join(" + "),
            more => format!("{} + {more} more", shown.join(" + ")),
        }
    }
}

pub(super) fn run(args: &BenchArgs) -> std::result::Result<(), Problems> {
    let measure = &args.measure;
    check(measure).map_err(one)?;
    let mut session = Session::open(&args.model).map_err(one)?;
    session.use_weights(args.code.weights_file.as_deref());
    shapes_of_data(&mut session, measure).map_err(one)?;
    let options = native_options(&session, &args.code).map_err(one)?;
    let loaded = session.load(&options)?;
    let inputs = inputs(&session, &loaded, measure).map_err(one)?;
    let mut report = self::measure(&loaded, &inputs, measure).map_err(one)?;
    if args.per_node {
        let options = Options { profile: true, ..options };
        let peak = Peak::measure(report.threads, options.target.core.l2_bytes);
        report.nodes = profile(&session.load(&options)?, &inputs, measure, &peak).map_err(one)?;
        report.peak = Some(peak);
    }
    if args.json {
        say!("{}", to_json(&report))
    } else {
        print(&report, args.verbose)
    }
    Ok(())
}

/// Gives inputs without a shape the ranks of the data that [`inputs`] takes.
pub(super) fn shapes_of_data(session: &mut Session, args: &MeasureArgs) -> Result<()> {
    let folder = args.data.clone().or_else(|| data::test_sets(session.folder()).into_iter().next());
    folder.map_or(Ok(()), |folder| shapes::from_data(session, &Given::Folder(&folder)))
}

pub(super) fn check(args: &MeasureArgs) -> Result<()> {
    if !args.seconds.is_finite() || args.seconds < 0.0 {
        return Err(usage(format!("--seconds is {}; it must be 0 or more", args.seconds)));
    }
    if args.threads == 0 {
        return Err(usage("--threads is 0; it must be 1 or more".to_string()));
    }
    Ok(())
}

fn print(report: &Report, verbose: bool) {
    say!("compile {}, load {}", time_text(report.compile_ms), time_text(report.load_ms));
    let [first, least, median] = [report.first_ms, report.min_ms, report.median_ms].map(time_text);
    say!("first {first}, min {least}, median {median}");
    let Report { runs, threads, .. } = report;
    say!("{runs} runs on {threads} {}", if *threads == 1 { "thread" } else { "threads" });
    if !report.sizes.is_empty() {
        let sizes: Vec<String> = report.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        say!("sizes {} (--size for others)", sizes.join(" "));
    }
    say!("workspace {} bytes, object {} bytes", report.workspace_bytes, report.object_bytes);
    let Some(peak) = &report.peak else { return };
    let Peak { gflops, gbytes, cached_gbytes, how, .. } = peak;
    say!("peak {gflops:.1} GFLOP/s, {gbytes:.1} GB/s, in caches {cached_gbytes:.1} GB/s: {how}");
    let widths = report.nodes.iter().map(|share| share.short_name().len()).max().unwrap_or(0).max(8);
    let shapes = report.nodes.iter().filter_map(|share| share.result.as_ref()).map(String::len).max();
    let shapes = shapes.unwrap_or(0).max(6);
    say!(
        "{:>7} {:>10}  {:<widths$}  {:<shapes$}  {:>14}  of peak",
        "share",
        "time",
        "operator",
        "result",
        "rate"
    );
    for share in &report.nodes {
        let (name, result) = (share.short_name(), share.result.as_deref().unwrap_or("-"));
        let rate = share.rate.as_ref().map_or_else(|| "-".to_string(), Rate::text);
        let of_peak =
            share.rate.as_ref().map_or(String::new(), |rate| format!("{:.0}%", rate.of_peak * 100.0));
        let percent = share.share * 100.0;
        say!(
            "{percent:>6.2}% {:>10}  {name:<widths$}  {result:<shapes$}  {rate:>14}  {of_peak:>7}",
            time_text(share.ms)
        );
        if verbose {
            say!("        {} of {}", share.kernel, share.nodes.join(", "));
            share.refusal.iter().for_each(|why| say!("        no leaf kernel: {why}"));
        }
    }
}

/// The data set that is asked for; else the first one beside the model if it has the sizes that the model is compiled for and no
/// others are asked for, else random values.
pub(super) fn inputs(session: &Session, loaded: &Loaded, args: &MeasureArgs) -> Result<Vec<Option<Tensor>>> {
    let (graph, sizes) = (&loaded.graph, &args.sizes);
    if let Some(folder) = &args.data {
        let inputs = data::test_inputs(graph, folder)?;
        native::output_shapes(graph, &inputs)?;
        return Ok(inputs);
    }
    if sizes.sizes.is_empty()
        && sizes.fill.is_empty()
        && let Some(folder) = data::test_sets(session.folder()).first()
        && let Ok(inputs) = data::test_inputs(graph, folder)
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

pub(super) fn measure(loaded: &Loaded, inputs: &[Option<Tensor>], args: &MeasureArgs) -> Result<Report> {
    let pool = pool(args.threads)?;
    let call = Call { pool: pool.as_ref(), ..Call::default() };
    let shapes = native::output_shapes(&loaded.graph, inputs)?;
    let mut prepared = loaded.model()?.prepare_in(Memory::PLAIN, inputs, &shapes)?;
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
        peak: None,
        nodes: vec![],
    })
}

/// Time of every step in a run, the least of all runs, longest first.
pub(super) fn profile(
    loaded: &Loaded,
    inputs: &[Option<Tensor>],
    args: &MeasureArgs,
    peak: &Peak,
) -> Result<Vec<Share>> {
    let pool = pool(args.threads)?;
    let shapes = native::output_shapes(&loaded.graph, inputs)?;
    let mut prepared = loaded.model()?.prepare_in(Memory::PLAIN, inputs, &shapes)?;
    // The least time of each step, and how often it runs: those of loops more than once a run.
    let mut least: HashMap<usize, (Duration, u32)> = HashMap::new();
    let mut runs = 0u32;
    let begin = Instant::now();
    while runs < 2 || begin.elapsed().as_secs_f64() < args.seconds {
        let mut spent: HashMap<usize, (Duration, u32)> = HashMap::new();
        let mut last = Instant::now();
        let observer = Mutex::new(|step: usize| {
            let now = Instant::now();
            // The end of a scan is reported after its body's steps, which have had their time.
            let (time, times) = spent.entry(step).or_default();
            *time += now - last;
            *times += 1;
            last = now;
        });
        prepared.run(&Call { pool: pool.as_ref(), step_done: Some(&observer), ..Call::default() })?;
        // The first run warms up.
        if runs > 0 {
            for (step, once) in spent {
                least.entry(step).and_modify(|known| *known = once.min(*known)).or_insert(once);
            }
        }
        runs += 1;
    }
    let total: Duration = least.values().map(|(time, _)| time).sum();
    let symbols = data::symbols(&loaded.graph, inputs);
    let size = |dim: &Dim| dim.eval(&|symbol| symbols[symbol]).map(|size| size as f64);
    let share = |(step, (time, times)): (usize, (Duration, u32))| {
        let info = loaded.steps.get(step)?;
        let once = milliseconds(time) / f64::from(times.max(1));
        // Sizes inside of loops are those of one turn, and may not be the caller's.
        let known = if info.scope == 0 { size(&info.flops).zip(size(&info.bytes)) } else { None };
        Some(Share {
            step,
            nodes: info.nodes.clone(),
            operators: info.operators.clone(),
            result: info.result.clone(),
            kernel: info.kernel.clone(),
            refusal: info.refusal.clone(),
            ms: milliseconds(time),
            share: time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE),
            rate: known.and_then(|(flops, bytes)| Rate::new(flops, bytes, once, peak)),
        })
    };
    let mut shares: Vec<Share> = least.into_iter().filter_map(share).collect();
    shares.sort_by(|a, b| b.ms.total_cmp(&a.ms).then(a.step.cmp(&b.step)));
    Ok(shares)
}

/// A time with four digits or so, in the unit that gives it some before the point.
pub(super) fn time_text(milliseconds: f64) -> String {
    let (value, unit) = match milliseconds {
        short if short < 1e-3 => (short * 1e6, "ns"),
        short if short < 1.0 => (short * 1e3, "us"),
        long if long >= 1e3 => (long / 1e3, "s"),
        middle => (middle, "ms"),
    };
    let decimals = if value < 10.0 {
        3
    } else if value < 100.0 {
        2
    } else {
        1
    };
    format!("{value:.decimals$} {unit}")
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (milliseconds, text) in [
            (0.0, "0.000 ns"),
            (0.00025, "250.0 ns"),
            (0.0031, "3.100 us"),
            (0.99, "990.0 us"),
            (1.0, "1.000 ms"),
            (12.345, "12.35 ms"),
            (999.9, "999.9 ms"),
            (61_234.0, "61.23 s"),
        ] {
            assert_eq!(time_text(milliseconds), text);
        }
    }
}
