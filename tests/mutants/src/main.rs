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

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;

use project::{Program, Project};
use report::Judged;
use rewrite::Mutant;
use state::State;
use suite::{Form, Suite, Test, Verdict};

/// Crates beneath `compiler` that are mutated.
const CRATES: &[&str] = &[
    "ir", "machine", "tuning", "schedule", "passes", "loops", "ops", "contrib", "import", "backend", "object",
];

/// Folders beneath `compiler` that mutants are drawn from; `primitives` is a file as well.
const FOLDERS: &[&str] = &[
    "ir/src/graph",
    "ir/src/primitives",
    "machine/src/vector",
    "tuning/src",
    "schedule/src",
    "passes/src",
    "loops/src",
    "ops/src",
    "contrib/src",
    "import/src",
    "backend/src",
    "object/src",
];

/// Mutants drawn for each that is wanted, as some do not compile.
const SPARE: usize = 2;

/// Tests of one program, as the table below has them.
struct Row {
    name: &'static str,
    package: &'static str,
    tests: Tests,
    /// Where in the workspace it runs.
    folder: &'static str,
    /// How the tests' names begin.
    prefix: &'static str,
    /// Tests that are run as one, in programs that are quicker so.
    together: usize,
}

enum Tests {
    /// The tests of the library.
    Library,
    /// The tests in a file of this name.
    File(&'static str),
    /// The program that runs official tests.
    Official,
}

impl Row {
    /// Arguments of Cargo that build it.
    fn build(&self) -> Vec<&'static str> {
        let (command, targets): (&[&str], &[&str]) = match self.tests {
            Tests::Library => (&["test", "--no-run"], &["--lib"]),
            Tests::File(name) => (&["test", "--no-run"], &["--test", name]),
            Tests::Official => (&["build"], &["--bin", "official", "--bin", "run_cases"]),
        };
        [command, &["--package", self.package], targets].concat()
    }

    /// What the build calls the program, and whether it is a test.
    fn built(&self) -> (String, bool) {
        match self.tests {
            Tests::Library => (self.package.replace('-', "_"), true),
            Tests::File(name) => (name.to_string(), true),
            Tests::Official => ("official".to_string(), false),
        }
    }
}

/// The tests in a file of a crate of the compiler.
const fn file(name: &'static str, package: &'static str, folder: &'static str) -> Row {
    Row { name, package, tests: Tests::File(name), folder, prefix: "", together: 1 }
}

/// Tests of whole programs, by their module or by how their names begin.
const fn module(name: &'static str, prefix: &'static str) -> Row {
    Row { name, package: "onnxc-tests", tests: Tests::File("suite"), folder: "tests", prefix, together: 1 }
}

/// The tests of a library.
const fn unit(name: &'static str, package: &'static str, folder: &'static str) -> Row {
    Row { name, package, tests: Tests::Library, folder, prefix: "", together: 1 }
}

/// Official tests that are run one way.
const fn official(name: &'static str, prefix: &'static str) -> Row {
    Row { name, package: "onnxc-tests", tests: Tests::Official, folder: "tests", prefix, together: 16 }
}

/// The suites, quickest first.
const SUITES: &[Row] = &[
    unit("ir", "onnxc-ir", "compiler/ir"),
    unit("machine", "onnxc-machine", "compiler/machine"),
    unit("tuning", "onnxc-tuning", "compiler/tuning"),
    unit("schedule", "onnxc-schedule", "compiler/schedule"),
    unit("passes", "onnxc-passes", "compiler/passes"),
    unit("loops", "onnxc-loops", "compiler/loops"),
    unit("ops", "onnxc-ops", "compiler/ops"),
    unit("contrib", "onnxc-contrib", "compiler/contrib"),
    unit("import", "onnxc-import", "compiler/import"),
    unit("backend", "onnxc-backend", "compiler/backend"),
    unit("object", "onnxc-object", "compiler/object"),
    unit("onnxc", "onnxc", "compiler"),
    file("control", "onnxc-loops", "compiler/loops"),
    file("programs", "onnxc-loops", "compiler/loops"),
    module("filetests", "filetests::"),
    official("official", "host/"),
    official("symbolic", "symbolic/"),
    official("narrow", "narrow/"),
    official("least", "least/"),
    file("cli", "onnxc", "compiler"),
    module("c_abi", "c_abi::"),
    module("abi", "abi::"),
    module("state", "state::"),
    module("values", "values::"),
    module("training", "training::"),
    module("host", "host::"),
    module("runtime", "runtime::"),
    module("agreements", "agreements::"),
    module("generation", "generation::"),
    // Short differential runs, each a suite of its own: what draws models takes longer than other tests.
    module("microsoft", "differential::drawn_models_of_microsoft"),
    module("differential", "differential::drawn_models_agree"),
];

#[derive(Parser)]
#[command(about = "Mutation testing of the compiler")]
struct Arguments {
    /// Number of mutants
    #[arg(long, default_value_t = 400)]
    sample: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of a sample the mutants that this file names, a line each, as `mutants_judged.txt` has them
    #[arg(long)]
    only: Option<PathBuf>,
    /// Draw from these folders of `compiler` only, such as `ops/src`
    #[arg(long)]
    folder: Vec<String>,
    /// Most seconds of each suite's tests for one mutant
    #[arg(long, default_value_t = 60)]
    budget: u64,
    /// Mutants that are tried at once
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Only suites of these names
    #[arg(long)]
    suite: Vec<String>,
    /// One more test: a program of the tests and its arguments, such as "differential --cases 100"
    #[arg(long)]
    also: Vec<String>,
    /// Count the mutants, by folder and operator, and stop
    #[arg(long)]
    list: bool,
    /// File for the report; without it the report is printed
    #[arg(long)]
    report: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let target = root.join("target");
    let project = Project {
        packages: CRATES.iter().map(|name| (format!("onnxc-{name}"), format!("compiler/{name}"))).collect(),
        work: target.join("mutants"),
        root: root.clone(),
    };
    let folders: Vec<&str> = match arguments.folder.as_slice() {
        [] => FOLDERS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let mut mutants = Vec::new();
    for folder in &folders {
        mutants.extend(sample::mutants(&root, "compiler", folder)?);
    }
    if arguments.list {
        count(&mutants);
        return Ok(());
    }
    let mutants = match &arguments.only {
        Some(path) => sample::named(mutants, &fs::read_to_string(path)?),
        None => sample::draw(mutants, SPARE * arguments.sample, arguments.seed),
    };
    project.copy_sources()?;
    project.take_dependencies(&target)?;
    let numbers = project.write_compiling(&mutants, arguments.sample)?;
    let suites = suites(&arguments, &project, &target)?;

    let mut state = State::open(&project.work, &mutants, &suites)?;
    let tests = state.tests(&suites, mutants.len(), &project.work)?;
    let verdicts = try_all(&numbers, &mutants, &suites, &tests, state, &arguments)?;
    let outcomes: Vec<(&Mutant, Verdict)> =
        verdicts.into_iter().map(|(number, verdict)| (&mutants[number], verdict)).collect();
    let judged = fs::read_to_string(root.join("tests/conformance/mutants_judged.txt")).unwrap_or_default();
    let given: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("cargo run --release -p onnxc-mutants -- {}", given.join(" "));
    let names: Vec<String> = suites.iter().map(|suite| suite.name.clone()).collect();
    let text =
        report::markdown(&command, &names, &outcomes, &Judged::parse(&judged), &|mutant| folder_of(mutant));
    match arguments.report {
        Some(path) => fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The verdict on each of the numbered mutants.
fn try_all(
    numbers: &BTreeSet<usize>,
    mutants: &[Mutant],
    suites: &[Suite],
    tests: &[Test],
    state: State,
    arguments: &Arguments,
) -> std::io::Result<BTreeMap<usize, Verdict>> {
    let budget = Duration::from_secs(arguments.budget);
    let (state, start) = (Mutex::new(state), Instant::now());
    let lock = || state.lock().expect("workers do not panic");
    let next = Mutex::new(numbers.iter());
    let take = || next.lock().expect("workers do not panic").next().copied();
    let work = || -> std::io::Result<Vec<(usize, Verdict)>> {
        let mut verdicts = Vec::new();
        while let Some(number) = take() {
            let known = lock().verdict(number);
            let verdict = match known {
                Some(verdict) => verdict,
                None => suite::try_mutant(suites, tests, number, budget, arguments.seed)?,
            };
            lock().set_verdict(number, &verdict)?;
            if let Verdict::Survived { .. } = verdict {
                let mutant = &mutants[number];
                eprintln!("[{:.0?}] survives: line {} of {}", start.elapsed(), mutant.line, mutant.key());
            }
            verdicts.push((number, verdict));
        }
        Ok(verdicts)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.jobs).map(|_| scope.spawn(work)).collect();
        let mut verdicts = BTreeMap::new();
        for worker in workers {
            verdicts.extend(worker.join().expect("workers do not panic")?);
        }
        Ok(verdicts)
    })
}

/// The crate that holds a mutant.
fn folder_of(mutant: &Mutant) -> String {
    let package = mutant.path.split("/src/").next().unwrap_or(&mutant.path);
    package.rsplit('/').next().unwrap_or(package).to_string()
}

/// Builds the suites that are asked for.
fn suites(arguments: &Arguments, project: &Project, target: &Path) -> Result<Vec<Suite>, Box<dyn Error>> {
    let wanted =
        |row: &&Row| arguments.suite.is_empty() || arguments.suite.iter().any(|name| name == row.name);
    let rows: Vec<&Row> = SUITES.iter().filter(wanted).collect();
    let mut programs: Vec<Program> = Vec::new();
    for row in &rows {
        programs.extend(project.build(&row.build())?);
    }
    if !arguments.also.is_empty() {
        programs.extend(project.build(&["build", "--package", "onnxc-tests", "--bins"])?);
    }
    // Python packages and the official tests are those of the workspace itself.
    let variables = vec![("CARGO_TARGET_DIR".to_string(), target.to_string_lossy().into_owned())];
    let suite = |name: &str, program: &str, is_test: bool, folder: &str, form: Form| {
        let found = programs.iter().find(|built| built.target == program && built.is_test == is_test);
        let program = found.ok_or_else(|| format!("the build made no program `{program}`"))?.path.clone();
        let (name, folder) = (name.to_string(), project.copy().join(folder));
        let patience = Duration::from_secs(15);
        Ok::<Suite, Box<dyn Error>>(Suite {
            name,
            program,
            form,
            folder,
            variables: variables.clone(),
            patience,
        })
    };
    let mut suites = Vec::new();
    for row in rows {
        let form = Form::Listed { prefix: row.prefix.to_string(), together: row.together };
        let (program, is_test) = row.built();
        suites.push(suite(row.name, &program, is_test, row.folder, form)?);
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
