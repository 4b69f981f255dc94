//! Runs of compiled tests: objects of a batch linked into one shared library, which other processes load and run, so that
//! a crash or a hang of generated code is one test's failure; or into a program for another machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onnxc::{Compiled, native};

use crate::compile::{Code, compile_to};
use crate::cross;
use crate::expected::Outcome;
use crate::machine::Machine;
use crate::measure::Watch;
use crate::remote::{self, ALL_RUNS};
use crate::source::{self, Compiler};
use crate::suite::{Batch, Case, Checks, Report};

/// Time of the processors that one test may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// How cases went, by their names.
pub type Outcomes = Vec<(String, Outcome)>;

/// The program `run_cases`, perhaps behind an emulator and its arguments.
#[derive(Clone)]
pub struct Runner {
    pub command: Vec<String>,
}

impl Runner {
    /// Runs on this very machine; `program` is the path of `run_cases`.
    pub fn native(program: &str) -> Runner {
        Runner { command: vec![program.to_string()] }
    }

    /// The same with what a compiler's sanitizers need.
    pub fn sanitized(program: &str, compiler: &Compiler) -> Runner {
        let mut command = compiler.environment();
        command.push(program.to_string());
        Runner { command }
    }

    /// Runs a batch in one process, and in one more after each crash.
    pub fn run(&self, batch: &Batch, folder: &Path) -> Outcomes {
        let (input, report) = (folder.join("batch.json"), folder.join("report.txt"));
        fs::write(&input, serde_json::to_vec(batch).unwrap()).unwrap();
        let mut outcomes = Outcomes::new();
        while outcomes.len() < batch.cases.len() {
            let first = outcomes.len();
            fs::write(&report, "").unwrap();
            let child = Command::new(&self.command[0])
                .args(&self.command[1..])
                .args([&input, &report])
                .arg(first.to_string())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let end = wait(child, &report);
            for line in fs::read_to_string(&report).unwrap().lines() {
                if let Report::Done(at, failure) = serde_json::from_str(line).unwrap() {
                    assert_eq!(at, outcomes.len());
                    let outcome = failure.map_or(Ok(()), Err).into();
                    outcomes.push((batch.cases[at].id.clone(), outcome));
                }
            }
            if outcomes.len() < batch.cases.len() {
                let case = &batch.cases[outcomes.len()];
                outcomes.push((case.id.clone(), Outcome::Failed(end)));
            }
        }
        outcomes
    }
}

/// Where cases run once they are compiled.
pub enum Place {
    Here(Runner),
    /// The same by way of C and this compiler.
    InC(Runner, Compiler),
    On(&'static Machine),
}

impl From<Runner> for Place {
    fn from(runner: Runner) -> Place {
        Place::Here(runner)
    }
}

impl Place {
    /// Compiles cases and runs them, by way of the empty folder.
    pub fn outcomes(&self, cases: &[Case], code: &Code, folder: &Path) -> Vec<(String, Outcome)> {
        let (runner, (batch, mut outcomes)) = match self {
            Place::Here(runner) => (runner, link_batch(cases, code, folder)),
            Place::InC(runner, compiler) => (runner, source::link_batch(cases, code, compiler, folder)),
            Place::On(machine) => return run_on(machine, cases, code, folder),
        };
        if !batch.cases.is_empty() {
            outcomes.extend(runner.run(&batch, folder));
            fs::remove_file(&batch.library).unwrap();
        }
        outcomes
    }
}

/// Runs cases on another machine, by way of the empty folder.
pub fn run_on(machine: &'static Machine, cases: &[Case], code: &Code, folder: &Path) -> Outcomes {
    let (mut linked, mut outcomes) = compile_batch(cases, code, folder);
    let mut runtime = None;
    linked.retain(|(case, object)| {
        if !native::calls_runtime(&fs::read(object).unwrap()) {
            return true;
        }
        match cross::runtime(machine) {
            Ok(library) => {
                runtime = Some(library);
                true
            }
            Err(outcome) => {
                outcomes.push((case.id.clone(), outcome));
                false
            }
        }
    });
    let path = folder.join("batch");
    let link = |linked: &[(Case, PathBuf)]| {
        let models: Vec<(&str, &Path)> =
            linked.iter().map(|(case, object)| (case.symbol.as_str(), object.as_path())).collect();
        remote::link(machine, &models, runtime.as_deref(), &path)
    };
    let mut program = link(&linked);
    if program.is_err() {
        // Whose fault it is shows one by one.
        linked.retain(|linked| {
            let failure = link(std::slice::from_ref(linked)).err();
            outcomes.extend(failure.clone().map(|text| (linked.0.id.clone(), Outcome::Failed(text))));
            failure.is_none()
        });
        program = link(&linked);
    }
    linked.iter().for_each(|(_, object)| fs::remove_file(object).unwrap());
    match program {
        Ok(mut program) => {
            for (number, (case, _)) in linked.iter().enumerate() {
                // Real models take minutes under an emulator.
                let is_single = case.id.contains('/') && !case.id.starts_with("light/");
                let runs = if is_single { ALL_RUNS } else { 1 };
                let outcome = case.run_remote(&mut program, number, runs).into();
                outcomes.push((case.id.clone(), outcome));
            }
        }
        Err(text) => {
            outcomes.extend(linked.iter().map(|(case, _)| (case.id.clone(), Outcome::Failed(text.clone()))));
        }
    }
    let _ = fs::remove_file(&path);
    outcomes
}

/// Compiles cases to objects in the folder; gives the outcomes of those that have none.
pub fn compile_batch(cases: &[Case], code: &Code, folder: &Path) -> (Vec<(Case, PathBuf)>, Outcomes) {
    compile_batch_with(cases, code, folder, &mut |_, _| ())
}

/// Sees a case and what it was compiled to.
type Observer<'o> = &'o mut dyn FnMut(&Case, &Compiled);

fn compile_batch_with(
    cases: &[Case],
    code: &Code,
    folder: &Path,
    observer: Observer<'_>,
) -> (Vec<(Case, PathBuf)>, Outcomes) {
    let mut outcomes = Vec::new();
    let mut compiled: Vec<(Case, PathBuf)> = Vec::new();
    for case in cases {
        let object = folder.join(format!("{}.o", case.symbol));
        match compile_to(&case.model(), &case.symbol, code, &object) {
            Ok(model) => {
                observer(case, &model);
                compiled.push((case.clone(), object));
            }
            Err(failure) => {
                let refused =
                    failure.reason().map(Outcome::Unsupported).or_else(|| source::left_out(&failure));
                let outcome = refused.unwrap_or_else(|| Outcome::Failed(failure.to_string()));
                outcomes.push((case.id.clone(), outcome));
            }
        }
    }
    (compiled, outcomes)
}

/// Compiles cases and links them into a library in the empty folder; gives the outcomes of those that do not get so far.
pub fn link_batch(cases: &[Case], code: &Code, folder: &Path) -> (Batch, Outcomes) {
    link_batch_with(cases, code, folder, &mut |_, _| ())
}

/// The same; `observer` sees every case that has an object, and what it was compiled to.
pub fn link_batch_with(
    cases: &[Case],
    code: &Code,
    folder: &Path,
    observer: Observer<'_>,
) -> (Batch, Outcomes) {
    let (mut linked, mut outcomes) = compile_batch_with(cases, code, folder, observer);
    let library = folder.join("batch.so");
    let objects: Vec<PathBuf> = linked.iter().map(|(_, object)| object.clone()).collect();
    if objects.is_empty() {
        return (Batch { library, cases: vec![], checks: Checks::Abi }, outcomes);
    }
    if native::link(&objects, &library).is_err() {
        // Whose fault it is shows one by one.
        linked.retain(|(case, object)| match native::link(std::slice::from_ref(object), &library) {
            Ok(()) => true,
            Err(error) => {
                outcomes.push((case.id.clone(), Outcome::Failed(error.to_string())));
                false
            }
        });
        let objects: Vec<PathBuf> = linked.iter().map(|(_, object)| object.clone()).collect();
        native::link(&objects, &library).unwrap();
    }
    objects.iter().for_each(|object| fs::remove_file(object).unwrap());
    let cases = linked.into_iter().map(|(case, _)| case).collect();
    let batch = Batch { library, cases, checks: Checks::Abi };
    (batch, outcomes)
}

/// Looks at a report between two looks at the time of the processors.
const LOOKS: usize = 100;

/// Waits for the end of a process, as long as it keeps reporting; returns how it ended.
fn wait(mut child: Child, report: &Path) -> String {
    let (mut reported, mut turn) = (0, 0);
    let mut watch = Watch::new(&child);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            return format!("the run ended with {status} {}", text.trim());
        }
        let length = fs::metadata(report).unwrap().len();
        if length != reported {
            reported = length;
            watch.reported();
        }
        turn += 1;
        if turn % LOOKS == 0 && watch.hangs(PATIENCE) {
            child.kill().unwrap();
            child.wait().unwrap();
            return "the run hangs".to_string();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
