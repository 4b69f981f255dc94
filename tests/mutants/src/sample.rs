//! Which mutants are tried: drawn by seed, line by line, so that a folder counts as much as it has code and a line with ten
//! mutants no more than one with two.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

use crate::find::find;
use crate::rewrite::Mutant;

/// Files whose code changes no result of a compiled model, by how their names end, and why.
const NO_RESULTS: &[(&str, &str)] = &[
    ("/print.rs", "text of the IRs"),
    ("/message.rs", "text of messages"),
    ("/verify.rs", "checks of the compiler's own work, which find nothing in a right one"),
    ("schedule/src/check.rs", "as above"),
    ("schedule/src/check/chain.rs", "as above"),
];

/// The mutants of a folder of the crate, or of the file of that name.
pub(crate) fn mutants(root: &Path, source: &str, folder: &str) -> Result<Vec<Mutant>, Box<dyn Error>> {
    let mut files = Vec::new();
    let file = format!("{source}/{folder}.rs");
    if root.join(&file).exists() {
        files.push(file);
    }
    collect(root, &format!("{source}/{folder}"), &mut files)?;
    files.sort();
    let mut mutants = Vec::new();
    let mut tests: Vec<String> = Vec::new();
    for path in &files {
        let found =
            find(path, &fs::read_to_string(root.join(path))?).map_err(|error| format!("{path}: {error}"))?;
        let folder = path.trim_end_matches("/lib.rs").trim_end_matches("/mod.rs").trim_end_matches(".rs");
        tests.extend(found.test_modules.iter().map(|module| format!("{folder}/{module}")));
        mutants.extend(found.mutants);
    }
    let of_tests = |path: &str| {
        tests.iter().any(|module| {
            path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    mutants.retain(|mutant| {
        !of_tests(&mutant.path) && !NO_RESULTS.iter().any(|(end, _)| mutant.path.ends_with(end))
    });
    Ok(mutants)
}

fn collect(root: &Path, folder: &str, files: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    if !root.join(folder).is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else if path.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The mutants that a text names, a line each; of equal ones in one function the first.
pub(crate) fn named(mutants: Vec<Mutant>, text: &str) -> Vec<Mutant> {
    let mut wanted: BTreeSet<&str> = text.lines().map(str::trim).collect();
    mutants.into_iter().filter(|mutant| wanted.remove(mutant.key().as_str())).collect()
}

/// At most `count` of the mutants in random order, one for each line: of an operator drawn first, as a call with many
/// arguments has more swaps of them than anything else.
pub(crate) fn draw(mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let mut lines: BTreeMap<(String, usize), BTreeMap<&str, Vec<Mutant>>> = BTreeMap::new();
    for mutant in mutants {
        let line = lines.entry((mutant.path.clone(), mutant.line)).or_default();
        line.entry(mutant.rule).or_default().push(mutant);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut lines: Vec<BTreeMap<&str, Vec<Mutant>>> = lines.into_values().collect();
    rng.shuffle(&mut lines);
    let mut drawn = Vec::new();
    for line in lines.into_iter().take(count) {
        let mut rules: Vec<Vec<Mutant>> = line.into_values().collect();
        let mut rule = rules.swap_remove(rng.usize(..rules.len()));
        drawn.push(rule.swap_remove(rng.usize(..rule.len())));
    }
    drawn
}
