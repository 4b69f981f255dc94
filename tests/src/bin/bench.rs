//! onnxc against its peers; see `onnxc_tests::bench`.
//!
//!     cargo run --release -p onnxc-tests --bin bench -- --threads 1,2 MODEL.onnx ...
//!
//! Exit code 0 if every model has all figures of onnxc that were asked for.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use onnxc::cli::output;
use onnxc_tests::bench::engine::{self, Engine};
use onnxc_tests::bench::gemm::Product;
use onnxc_tests::bench::plan::{self, Sizes};
use onnxc_tests::bench::running::{self, Failure, Report, Settings};
use onnxc_tests::bench::{Result, accuracy, algorithm, chart, defaults, gemm, table};
use onnxc_tests::onnx_env;
use serde::Serialize;

/// Time models or matrix products with onnxc, ONNX Runtime and OpenVINO in turn, or compare their accuracy
#[derive(Parser)]
#[command(name = "bench")]
struct Args {
    /// Models, or folders with models
    #[arg(required_unless_present = "gemm", conflicts_with = "gemm", value_name = "MODEL.onnx|DIR")]
    models: Vec<PathBuf>,
    /// Matrix products of f32, such as 512x512x512: ROWSxINNERxCOLUMNS, as shares of the peak of one thread
    #[arg(long, value_delimiter = ',', value_name = "SIZES")]
    gemm: Vec<Product>,
    /// Numbers of threads, a row for each
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = positive)]
    threads: Vec<usize>,
    /// Rounds of all engines in turn
    #[arg(long, default_value_t = 3, value_parser = positive)]
    rounds: usize,
    /// Seconds of an engine in a round
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Folder for benchmarks.md, benchmarks.svg and benchmarks.json, for accuracy.md and accuracy.json, for defaults.json, or for gemm.md
    /// and gemm.json (default: target/bench)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Engines to compare with: onnxruntime, openvino, both or none
    #[arg(long, value_delimiter = ',', default_value = "onnxruntime,openvino")]
    peers: Vec<String>,
    /// Size of symbolic dims past an input's first, which is 1, where no data set gives them
    #[arg(long, default_value_t = 128, value_parser = positive)]
    dim: usize,
    /// Sizes of symbolic dims in the order in which the inputs name them, such as 1x16,8x64: a row for each
    #[arg(long, value_delimiter = ',', value_parser = size_list)]
    sizes: Vec<SizeList>,
    /// Compare the outputs with the model evaluated in f64, instead of the time
    #[arg(long, conflicts_with = "gemm")]
    accuracy: bool,
    /// Compare objects for no processor in particular with those for this machine's: times, bytes of objects and of code
    #[arg(long, conflicts_with_all = ["gemm", "accuracy", "mcpu"])]
    defaults: bool,
    /// Python interpreter that has the packages (default: an environment with pinned versions, made under target/)
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Longest time of one engine in one round, in seconds
    #[arg(long, default_value_t = 600.0, value_parser = seconds)]
    timeout: f64,
    /// Processor that onnxc compiles for (default: this machine's)
    #[arg(long, value_name = "NAME")]
    mcpu: Option<String>,
    /// Widest vectors that onnxc uses, in bits
    #[arg(long, value_name = "BITS")]
    vector_width: Option<usize>,
}

#[derive(Clone)]
struct SizeList(Vec<usize>);

fn positive(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "it is not a positive number".to_string())
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e9).contains(seconds));
    seconds.ok_or_else(|| "it is not a length of time".to_string())
}

fn size_list(text: &str) -> std::result::Result<SizeList, String> {
    text.split('x').map(positive).collect::<std::result::Result<_, _>>().map(SizeList)
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let result = match engine::serve(&words) {
        Some(result) => result.map(|()| true),
        None => bench(&Args::parse()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn bench(args: &Args) -> Result<bool> {
    let settings = settings(args)?;
    let models = plan::models(&args.models)?;
    let out = args.out.clone().unwrap_or_else(|| onnx_env::target_dir().join("bench"));
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let progress = |text: &str| eprintln!("{text}");
    let failures = if args.accuracy {
        let accuracy = accuracy::run(&settings, &models, &progress)?;
        println!("{}\n{}", accuracy::table(&accuracy), algorithm::table(&accuracy.lines));
        let document = accuracy::document(&accuracy);
        write(&out, &[("accuracy.md", document), ("accuracy.json", json(&accuracy)?)])?;
        accuracy.failures
    } else if !args.gemm.is_empty() {
        let report = gemm::run(&settings, &args.gemm, &progress)?;
        println!("{}", gemm::table(&report));
        write(&out, &[("gemm.md", gemm::document(&report)), ("gemm.json", json(&report)?)])?;
        report.failures
    } else if args.defaults {
        let report = defaults::run(&settings, &models, &progress)?;
        println!("{}", defaults::table(&report));
        write(&out, &[("defaults.json", json(&report)?)])?;
        report.failures
    } else {
        let report = running::run(&settings, &models, &progress)?;
        show(&report);
        let files = [
            ("benchmarks.md", table::document(&report)),
            ("benchmarks.svg", chart::svg(&report)),
            ("benchmarks.json", json(&report)?),
        ];
        write(&out, &files)?;
        report.failures
    };
    for failure in &failures {
        eprintln!("no figures: {failure}");
    }
    // A peer may refuse a model; onnxc may not.
    Ok(failures.iter().all(Failure::is_of_peer))
}

fn settings(args: &Args) -> Result<Settings> {
    let mut peers = Vec::new();
    for name in args.peers.iter().filter(|name| *name != "none") {
        let peer = Engine::PEERS.into_iter().find(|peer| peer.key() == name);
        let peer =
            peer.ok_or_else(|| format!("--peers {name}: there are onnxruntime and openvino, or none"))?;
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    let mut flags = Vec::new();
    for (flag, value) in
        [("--mcpu", args.mcpu.clone()), ("--vector-width", args.vector_width.map(|bits| bits.to_string()))]
    {
        flags.extend(value.into_iter().flat_map(|value| [flag.to_string(), value]));
    }
    let python = match &args.python {
        Some(python) => Some(python.clone()),
        None if peers.is_empty() && !args.accuracy => None,
        None => Some(onnx_env::PEERS.interpreter().map_err(|error| error.to_string())?),
    };
    Ok(Settings {
        threads: args.threads.clone(),
        rounds: args.rounds,
        seconds: args.seconds,
        peers,
        sizes: Sizes { dim: args.dim, lists: args.sizes.iter().map(|list| list.0.clone()).collect() },
        flags,
        python,
        timeout: Duration::from_secs_f64(args.timeout),
    })
}

fn show(report: &Report) {
    println!("{}\n{}\n{}", table::speed(report), table::start(report), table::compiling(report));
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Each file appears complete or not at all.
fn write(folder: &Path, files: &[(&str, String)]) -> Result<()> {
    for (name, text) in files {
        output::write_bytes(&folder.join(name), text.as_bytes()).map_err(|error| error.to_string())?;
    }
    eprintln!(
        "written: {}",
        files.iter().map(|(name, _)| folder.join(name).display().to_string()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}
