//! verify_model MODEL RTOL ATOL: compiles a model and holds it against every data set beside it. Exit code 0 if all
//! outputs are as expected; 1 with a line that tells why not, which begins with `unsupported: ` if the model needs what
//! onnxc does not support yet.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use onnxc::cli::data;
use onnxc::cli::session::Loaded;
use onnxc::cli::verify::verify_set;
use onnxc_tests::compile::{Failure, compile};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, rtol, atol] = arguments.as_slice() else {
        return Err("usage: verify_model MODEL RTOL ATOL".into());
    };
    let (model, rtol, atol) = (Path::new(model), rtol.parse()?, atol.parse()?);
    match verify(model, rtol, atol) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(text) => {
            println!("{text}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn verify(model: &Path, rtol: f64, atol: f64) -> Result<(), String> {
    let start = Instant::now();
    let compiled = compile(model, "model").map_err(|errors| {
        let failure = Failure::Errors(errors);
        failure.reason().map_or(failure.to_string(), |reason| format!("unsupported: {reason}"))
    })?;
    let loaded = Loaded::new(compiled, start).map_err(|error| error.to_string())?;
    let sets = data::test_sets(model.parent().unwrap_or(Path::new(".")));
    if sets.is_empty() {
        return Err("no test data".to_string());
    }
    for set in sets {
        for (name, verdict) in verify_set(&loaded, &set, rtol, atol).map_err(|error| error.to_string())? {
            let difference = verdict.map_err(|text| format!("{name}: {text}"))?;
            if !difference.matches() {
                return Err(format!("{name}: {difference}"));
            }
        }
    }
    Ok(())
}
