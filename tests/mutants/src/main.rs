//! Mutation testing of the compiler: small wrong changes are made to its sources, and the tests must notice each.
//!
//! Building and testing once per change would take days. Here all changes are compiled into one copy of the compiler, each
//! behind a test of a number that the environment gives ("mutant schemata": Untch, Offutt and Harrold, ISSTA 1993); and a
//! mutant is run only against tests that reach its place. What is left of a sample is a list of survivors: each is a
//! missing test, or changes no result.

mod find;
mod project;
mod report;
mod rewrite;
mod sample;
mod state;
mod suite;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;

use project::{Program, Project};
use report::Judged;
use rewrite::Mutant;
use state::State;
use suite::{Form, Suite, Verdict};

/// Folders that mutants are drawn from; `infer` is a file as well.
const FOLDERS: &[&str] = &["pass", "schedule", "loops", "leaf", "codegen", "infer", "import"];

/// Mutants drawn for each that is wanted, as some do not compile.
const SPARE: usize = 2;

/// Test programs to build: arguments of `cargo test`.
const PROGRAMS: &[&str] = &[
    "--package",
    "onnxc",
    "--package",
    "onnxc-tests",
    "--lib",
    "--test",
    "cli",
    "--test",
    "filetests",
    "--test",
    "c_abi",
];

/// The suites, quickest first: name, program, whether it is a test program, how its tests' names begin, and how many are run
/// as one, for programs that are quicker so.
const SUITES: &[(&str, &str, bool, &str, usize)] = &[
    ("unit", "onnxc", true, "", 1),
    ("files", "filetests", true, "", 1),
    ("official", "official", false, "host/", 16),
    ("symbolic", "official", false, "symbolic/", 16),
    ("narrow", "official", false, "narrow/", 16),
    ("cli", "cli", true, "", 1),
    ("c_abi", "c_abi", true, "", 1),
];

#[derive(Parser)]
#[command(about = "Mutation testing of the compiler")]
struct Arguments {
    /// Number of mutants
    #[arg(long, default_value_t = 400)]
    sample: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw from these folders of compiler/src only
    #[arg(long)]
    folder: Vec<String>,
    /// Most seconds of each suite's tests for one mutant
    #[arg(long, default_value_t = 60)]
    budget: u64,
    /// Only suites of these names
    #[arg(long)]
    suite: Vec<String>,
    /// One more test: a program of the tests and its arguments, such as "differential --cases 100"
    #[arg(long)]
    also: Vec<String>,
    /// Count the mutants, by folder and operator, and stop
    #[arg(long)]
    list: bool,
    /// Stop when the mutated copy is built; the next run goes on
    #[arg(long)]
    build: bool,
    /// File for the report; without it the report is printed
    #[arg(long)]
    report: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let target = root.join("target");
    let project = Project {
        package: "onnxc".to_string(),
        folder: "compiler".to_string(),
        work: target.join("mutants"),
        root: root.clone(),
    };
    let folders: Vec<&str> = match arguments.folder.as_slice() {
        [] => FOLDERS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let mut mutants = Vec::new();
    for folder in &folders {
        mutants.extend(sample::mutants(&root, "compiler/src", folder)?);
    }
    if arguments.list {
        return Ok(count(&mutants));
    }
    let mutants = sample::draw(mutants, SPARE * arguments.sample, arguments.seed);
    project.copy_sources()?;
    project.take_dependencies(&target)?;
    let numbers = project.write_compiling(&mutants, arguments.sample)?;
    let programs = project.build(PROGRAMS)?;
    if arguments.build {
        return Ok(());
    }
    let suites = suites(&arguments, &project, &programs, &target)?;

    let mut state = State::open(&project.work, &mutants, &programs)?;
    let tests = state.tests(&suites, mutants.len(), &project.work)?;
    let start = Instant::now();
    let mut outcomes: Vec<(&Mutant, Verdict)> = Vec::new();
    for (at, &number) in numbers.iter().enumerate() {
        let mutant = &mutants[number];
        let mut rng = fastrand::Rng::with_seed(arguments.seed);
        let verdict = state.verdict(number, &mut || {
            suite::try_mutant(&suites, &tests, number, Duration::from_secs(arguments.budget), &mut rng)
        })?;
        if let Verdict::Survived { .. } = verdict {
            eprintln!(
                "[{}/{} {:.0?}] survives: {}:{} {}",
                at + 1,
                numbers.len(),
                start.elapsed(),
                mutant.path,
                mutant.line,
                mutant.key()
            );
        }
        outcomes.push((mutant, verdict));
    }
    let judged = fs::read_to_string(root.join("tests/conformance/mutants_judged.txt")).unwrap_or_default();
    let command = format!(
        "cargo run --release -p onnxc-mutants -- --sample {} --seed {}",
        arguments.sample, arguments.seed
    );
    let names: Vec<String> = suites.iter().map(|suite| suite.name.clone()).collect();
    let text =
        report::markdown(&command, &names, &outcomes, &Judged::parse(&judged), &|mutant| folder_of(mutant));
    match arguments.report {
        Some(path) => fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The folder or file right beneath the sources that holds a mutant.
fn folder_of(mutant: &Mutant) -> String {
    let inner = mutant.path.split("/src/").nth(1).unwrap_or(&mutant.path);
    inner.split(['/', '.']).next().unwrap_or(inner).to_string()
}

fn suites(
    arguments: &Arguments,
    project: &Project,
    programs: &[Program],
    target: &Path,
) -> Result<Vec<Suite>, Box<dyn Error>> {
    // Python packages and the official tests are those of the workspace itself.
    let variables = vec![("CARGO_TARGET_DIR".to_string(), target.to_string_lossy().into_owned())];
    let suite = |name: &str, program: &str, is_test: bool, folder: &str, form: Form| {
        let found = programs.iter().find(|built| built.target == program && built.is_test == is_test);
        let program = found.ok_or_else(|| format!("the build made no program `{program}`"))?.path.clone();
        let folder = project.copy().join(folder);
        Ok::<Suite, Box<dyn Error>>(Suite {
            name: name.to_string(),
            program,
            form,
            folder,
            variables: variables.clone(),
            patience: Duration::from_secs(15),
        })
    };
    let mut suites = Vec::new();
    for &(name, program, is_test, prefix, together) in SUITES {
        if arguments.suite.is_empty() || arguments.suite.iter().any(|wanted| wanted == name) {
            let folder = if program == "onnxc" || program == "cli" { "compiler" } else { "tests" };
            suites.push(suite(
                name,
                program,
                is_test,
                folder,
                Form::Listed { prefix: prefix.to_string(), together },
            )?);
        }
    }
    for command in &arguments.also {
        let mut words = command.split_whitespace().map(str::to_string);
        let program = words.next().ok_or("--also names a program")?;
        suites.push(suite(command, &program, false, "tests", Form::Whole(words.collect()))?);
    }
    Ok(suites)
}

fn count(mutants: &[Mutant]) {
    let mut counts: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for mutant in mutants {
        *counts.entry((folder_of(mutant), mutant.rule)).or_default() += 1;
    }
    for ((folder, rule), count) in &counts {
        println!("{folder:10} {rule:22} {count}");
    }
    println!("{} mutants, before those that do not compile are left out", mutants.len());
}
