//! The official tests and the real models on another machine, under its emulator, or by way of C: prints what passes, and holds it
//! against the same lists as on this one. Exit code 0 if nothing differs.
//!
//! `--machine c` is this machine by way of C, compiled with sanitizers of addresses and undefined behaviour, or by the command of
//! `ONNXC_SOURCE_CC`; `i686` and `wasm32` have C alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Place, Runner};
use onnxc_tests::machine::Machine;
use onnxc_tests::source::{self, Compiler};
use onnxc_tests::suite::{self, Case, KINDS};
use rayon::prelude::*;

/// Cases that are linked into one program.
const BATCH: usize = 64;

type Outcomes = BTreeMap<String, Outcome>;

#[derive(Parser)]
struct Arguments {
    /// Which machine; a wrong name lists all. `c` is this one by way of C; it needs the binary `run_cases` as well.
    #[arg(long)]
    machine: String,
    /// Run the official tests, and not the real models.
    #[arg(long, conflicts_with = "zoo")]
    suite: bool,
    /// Run the real models, and not the official tests.
    #[arg(long)]
    zoo: bool,
    /// Only cases whose name holds this; each is printed, and none held against a list.
    #[arg(long, default_value = "")]
    cases: String,
    #[arg(short = 'O', default_value_t = 2)]
    opt_level: u8,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let (place, target) = place(&arguments.machine)?;
    let place = &place;
    let code = Code { target, opt_level: arguments.opt_level };
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut good = true;
    if !arguments.zoo {
        let (light, others): (Vec<Case>, Vec<Case>) = suite::cases()
            .map_err(|error| error.to_string())?
            .into_iter()
            .filter(|case| case.id.contains(&arguments.cases))
            .partition(|case| case.id.starts_with("light/"));
        // What takes longest is first.
        let batches = light.chunks(1).chain(others.chunks(BATCH)).collect();
        let outcomes = run_batches(place, batches, &code, scratch.path());
        for kind in KINDS {
            let of_kind = outcomes.iter().filter(|(id, _)| id.split('/').next() == Some(kind));
            report(kind, &of_kind.map(|(_, outcome)| outcome).collect::<Vec<_>>());
        }
        good &= hold(&outcomes, "conformance/expected_failures.txt", arguments);
    }
    let root = if arguments.suite { None } else { suite::models_folder() };
    if let Some(root) = root {
        let folder = scratch.path().join("models");
        let cases = zoo(&root, &folder, &arguments.cases).map_err(|error| error.to_string())?;
        let outcomes = run_batches(place, cases.chunks(1).collect(), &code, scratch.path());
        report("zoo", &outcomes.values().collect::<Vec<_>>());
        good &= hold(&outcomes, "zoo/expected_failures.txt", arguments);
    }
    Ok(good)
}

/// Where the machine of a name is, and what is compiled for it.
fn place(name: &str) -> Result<(Place, Target), String> {
    if name == "c" {
        let compiler = Compiler::of_environment();
        if !compiler.is_installed() {
            return Err(format!("there is no {}", compiler.program));
        }
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("run_cases");
        let runner = Runner::sanitized(&program.to_string_lossy(), &compiler);
        return Ok((Place::InC(runner, compiler), source::plain_target()));
    }
    if let Some(machine) = source::machines().into_iter().find(|machine| machine.name == name) {
        if !source::makes_programs(machine) {
            return Err(format!("the tests need {}", machine.packages));
        }
        return Ok((Place::On(machine), machine.target().for_source()));
    }
    let machine = Machine::named(name).map_err(|text| format!("{text}; in C: c, i686, wasm32"))?;
    if !machine.is_there() {
        return Err(format!("the tests need {}", machine.packages));
    }
    Ok((Place::On(machine), machine.target()))
}

fn zoo(root: &Path, folder: &Path, wanted: &str) -> std::io::Result<Vec<Case>> {
    fs::create_dir(folder)?;
    let mut cases = vec![];
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.join("model.onnx").exists() && path.to_string_lossy().contains(wanted) {
            cases.push(suite::zoo_case(&path, folder)?);
        }
    }
    Ok(cases)
}

fn run_batches(place: &Place, batches: Vec<&[Case]>, code: &Code, scratch: &Path) -> Outcomes {
    let batches: Vec<_> = batches.into_iter().enumerate().collect();
    let run = |(at, cases): &(usize, &[Case])| {
        let folder = scratch.join(at.to_string());
        fs::create_dir(&folder).expect("the folder is new");
        let outcomes = place.outcomes(cases, code, &folder);
        fs::remove_dir_all(&folder).expect("the folder is this one's own");
        outcomes
    };
    // One after the other, not halves: the first ones take longest.
    batches.par_iter().with_max_len(1).flat_map_iter(run).collect()
}

/// Prints how many pass, and how many are left out for which reason.
fn report(kind: &str, outcomes: &[&Outcome]) {
    let passed = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Passed)).count();
    let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in outcomes {
        if let Outcome::LeftOut(reason) = outcome {
            *left_out.entry(reason).or_default() += 1;
        }
    }
    println!("{kind} {passed}/{}", outcomes.len());
    left_out.iter().for_each(|(reason, count)| println!("    {count} not run: {reason}"));
}

fn hold(outcomes: &Outcomes, list: &str, arguments: &Arguments) -> bool {
    if !arguments.cases.is_empty() {
        outcomes.iter().for_each(|(id, outcome)| println!("{id}: {outcome:?}"));
        return true;
    }
    let result = expected::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(list), outcomes);
    if let Err(problems) = &result {
        println!("{problems}");
    }
    result.is_ok()
}
