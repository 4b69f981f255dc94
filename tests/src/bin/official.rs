//! Single official tests in one of several ways, chosen as Rust's test programs choose: `--list` names them, `--exact NAME...`
//! runs these. A name is `way/kind/test`. Exit code 0 if all do as they should.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::suite::{self, Case};
use onnxc_tests::variant::Variant;

/// Ways to run a test.
const WAYS: [&str; 7] = ["host", "narrow", "cranelift", "least", "unoptimized", "symbolic", "constant"];

/// Cases that are linked into one library.
const BATCH: usize = 32;

/// Code and variant of a way, and the list of its expected failures.
fn way(name: &str) -> Result<(Code, Option<Variant>, &'static str), Box<dyn Error>> {
    let host = Target::host()?;
    let list = "expected_failures.txt";
    Ok(match name {
        "host" => (host.into(), None, list),
        "narrow" => (host.with_vector_width(128)?.into(), None, list),
        "cranelift" => (host.without_leaf_kernels().into(), None, list),
        "least" => (Target::new(host.triple, Some("x86-64"))?.into(), None, list),
        "unoptimized" => (Code { target: host, opt_level: 0 }, None, list),
        "symbolic" => (host.into(), Some(Variant::Symbolic), "expected_failures_symbolic.txt"),
        "constant" => (host.into(), Some(Variant::Constant), "expected_failures_constant.txt"),
        _ => return Err(format!("there is no way `{name}`, but {}", WAYS.join(", ")).into()),
    })
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The real architectures take seconds each.
    let cases: Vec<Case> =
        suite::cases()?.into_iter().filter(|case| !case.id.starts_with("light/")).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for way in WAYS {
            cases.iter().for_each(|case| println!("{way}/{}: test", case.id));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in arguments.iter().filter(|argument| !argument.starts_with("--")) {
        let (way, id) = name.split_once('/').ok_or("a name is `way/kind/test`")?;
        wanted.entry(way).or_default().insert(id);
    }
    for (way, ids) in wanted {
        let cases: Vec<Case> = cases.iter().filter(|case| ids.contains(case.id.as_str())).cloned().collect();
        if cases.len() != ids.len() {
            return Err(format!("some of {ids:?} are not official tests").into());
        }
        for cases in cases.chunks(BATCH) {
            let wrong = run(way, cases)?;
            if !wrong.is_empty() {
                println!("{}", wrong.join("\n"));
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs cases; gives what is wrong.
fn run(name: &str, cases: &[Case]) -> Result<Vec<String>, Box<dyn Error>> {
    let (code, variant, list) = way(name)?;
    let folder = tempfile::tempdir()?;
    let mut varied = Vec::new();
    for case in cases {
        match variant {
            Some(variant) => varied.extend(variant.apply(case, folder.path())?),
            None => varied.push(case.clone()),
        }
    }
    let (batch, mut outcomes) = link_batch(&varied, &code, folder.path());
    if !batch.cases.is_empty() {
        let runner = std::env::current_exe()?.with_file_name("run_cases");
        outcomes.extend(Runner::native(&runner.to_string_lossy()).run(&batch, folder.path()));
    }
    let list = expected::names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(list))?;
    let as_listed = |name: &str, outcome: &Outcome| match outcome {
        Outcome::Passed => !list.contains(name),
        Outcome::LeftOut(_) => false,
        // A run may end with the model's own check.
        Outcome::Unsupported(_) | Outcome::Differs(_) => list.contains(name),
        Outcome::Failed(text) => list.contains(name) && text.contains("; it must be between"),
    };
    let wrong = outcomes.iter().filter(|(name, outcome)| !as_listed(name, outcome));
    Ok(wrong.map(|(name, outcome)| format!("{name}: {outcome:?}")).collect())
}
