//! Runs compiled tests of one library in a process of its own, so that a crash of generated code ends nothing else.
//!
//! run_cases BATCH REPORT FIRST: BATCH is a `suite::Batch` as JSON; reports of the cases from number FIRST on are
//! appended to REPORT, each before and after the case runs.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;

use onnxc::native::Models;
use onnxc_tests::suite::{Batch, Miss, Report};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [batch, report, first] = arguments.as_slice() else {
        return Err("usage: run_cases BATCH REPORT FIRST".into());
    };
    let batch: Batch = serde_json::from_str(&fs::read_to_string(batch)?)?;
    let mut report = File::options().append(true).create(true).open(report)?;
    let models = Models::load(&batch.library)?;
    for (at, case) in batch.cases.iter().enumerate().skip(first.parse()?) {
        write(&mut report, &Report::Start(at))?;
        let model = models.get(&case.symbol).map_err(Miss::from);
        let result = model.and_then(|model| case.run(&model, batch.checks));
        write(&mut report, &Report::Done(at, result.err()))?;
    }
    Ok(())
}

/// One line per report, written at once: nothing of it may stay behind in a crash.
fn write(file: &mut File, report: &Report) -> Result<(), Box<dyn Error>> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    Ok(file.write_all(&line)?)
}
