//! Compiles a model, holds it against every data set beside it, and checks what the C ABI promises. Exit code 0 if all outputs are as
//! expected; 1 with a line that says why not, which begins with `unsupported: ` if the model needs what onnxc does not support yet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use onnxc::cli::compare::{compare, default_rtol};
use onnxc::cli::data;
use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_machine::target::Target;
use onnxc_tests::abi;
use onnxc_tests::compile::{Code, Failure, compile_for};
use onnxc_tests::suite::MODEL_ATOL;

#[derive(Parser)]
struct Arguments {
    model: PathBuf,
    /// Widest vectors to use, in bits.
    #[arg(long)]
    vector_width: Option<usize>,
    /// All kernels are Cranelift's.
    #[arg(long)]
    without_leaf_kernels: bool,
    #[arg(short = 'O', default_value_t = 2)]
    opt_level: u8,
}

fn main() -> ExitCode {
    match verify(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn verify(arguments: &Arguments) -> Result<(), String> {
    let Arguments { model, vector_width, without_leaf_kernels, opt_level } = arguments;
    let start = Instant::now();
    let mut target = Target::host().map_err(|error| error.to_string())?;
    if let Some(bits) = vector_width {
        target = target.with_vector_width(*bits).map_err(|error| error.to_string())?;
    }
    if *without_leaf_kernels {
        target = target.without_leaf_kernels();
    }
    let code = Code { target, opt_level: *opt_level };
    let compiled = compile_for(model, "model", &code).map_err(|errors| {
        let failure = Failure::Errors(errors);
        failure.reason().map_or(failure.to_string(), |reason| format!("unsupported: {reason}"))
    })?;
    let loaded = Loaded::new(compiled, start).map_err(|error| error.to_string())?;
    let sets = data::test_sets(model.parent().unwrap_or(Path::new(".")));
    if sets.is_empty() {
        return Err("no test data".to_string());
    }
    let graph = &loaded.graph;
    let model = loaded.model().map_err(|error| error.to_string())?;
    for (at, set) in sets.iter().enumerate() {
        let (inputs, wanted) = data::test_set(graph, set).map_err(|error| error.to_string())?;
        let shapes = native::output_shapes(graph, &inputs).map_err(|error| error.to_string())?;
        let got = match at {
            0 => abi::check(&model, &inputs, &shapes)?.outputs,
            _ => model.run_guarded(&inputs, &shapes, &Call::default()).map_err(|error| error.to_string())?,
        };
        for (((name, _), got), wanted) in graph.outputs.iter().zip(&got).zip(&wanted) {
            let difference = compare(got, wanted, default_rtol(wanted.dtype), MODEL_ATOL);
            let difference = difference.map_err(|text| format!("{name}: {text}"))?;
            if !difference.matches() {
                return Err(format!("{name}: {difference}"));
            }
        }
    }
    Ok(())
}
