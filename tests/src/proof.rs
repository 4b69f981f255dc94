//! The proof table: for every operator version and type what shows that it is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{self, Error};
use std::path::Path;

use serde::Deserialize;

use crate::compile::Code;
use crate::differential::{self, Plan};
use crate::expected::{self, Outcome};
use crate::harness::Place;
use crate::{onnx_env, suite};

/// The output of `python/proof.py`.
#[derive(Deserialize)]
struct Facts {
    pairs: Vec<String>,
    /// Per suite the pairs that each test touches.
    tests: Vec<BTreeMap<String, Vec<String>>>,
}

/// A pair of operator version and type, and its proofs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// A passing test of the pinned release.
    pub official: Option<String>,
    /// A passing test of release 1.22.
    pub older: Option<String>,
    /// Seed and number of a drawn case that agrees with the reference.
    pub drawn: Option<String>,
    /// A test of ours: its file and its function.
    pub own: Option<String>,
}

impl Row {
    pub fn proven(&self) -> bool {
        [&self.official, &self.older, &self.drawn, &self.own].into_iter().any(Option::is_some)
    }
}

/// Rows by pair, as `operator-version variable=type`, sorted by operator, version, variable and type.
#[derive(Default)]
pub struct Table {
    pub rows: BTreeMap<Key, Row>,
}

/// Operator, version, `variable=type`.
pub type Key = (String, u32, String);

/// The parts of a pair.
pub fn key(pair: &str) -> io::Result<Key> {
    let parts = pair.split_once(' ').and_then(|(version, ty)| {
        let (name, since) = version.rsplit_once('-')?;
        Some((name.to_string(), since.parse().ok()?, ty.to_string()))
    });
    parts.ok_or_else(|| Error::other(format!("`{pair}` is not a pair of operator version and type")))
}

impl Table {
    /// All pairs, with what the official tests prove: those that the lists of `conformance` do not excuse.
    pub fn of_suites(lists: &Path) -> io::Result<Table> {
        let (current, older) = (suite::root()?, suite::root_1_22()?);
        let folders = [current.to_string_lossy().into_owned(), older.to_string_lossy().into_owned()];
        let text = onnx_env::run_script("proof.py", &[&folders[0], &folders[1]])?;
        let facts: Facts = serde_json::from_str(&text).map_err(Error::other)?;
        let mut table = Table::default();
        for pair in &facts.pairs {
            let key = key(pair)?;
            table.rows.insert(key, Row::default());
        }
        let names = ["expected_failures.txt", "expected_failures_1.22.txt"];
        for (at, tests) in facts.tests.iter().enumerate() {
            let failing = expected::names(&lists.join(names[at]))?;
            for (id, pairs) in tests.iter().filter(|(id, _)| !failing.contains(*id)) {
                if at == 1 && !id.starts_with("node/") {
                    continue;
                }
                for pair in pairs {
                    let Some(row) = table.rows.get_mut(&key(pair)?) else { continue };
                    let slot = if at == 0 { &mut row.official } else { &mut row.older };
                    slot.get_or_insert_with(|| id.clone());
                }
            }
        }
        Ok(table)
    }

    /// Takes over the tests that a list names: in each line an operator version without types, a file, a test there, and where
    /// that has its cases from another file that one, too. The last file has the operator's name.
    pub fn take_own(&mut self, list: &Path) -> io::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(list)?;
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let [version, file, function, cases @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
                return Err(Error::other(format!("`{line}` is not an operator version, file and test")));
            };
            let key = key(&format!("{version} ="))?;
            let name = key.0.rsplit('.').next().unwrap_or(&key.0);
            let named = std::fs::read_to_string(root.join(cases.last().unwrap_or(file)))?.contains(name);
            let source = std::fs::read_to_string(root.join(file))?;
            let lines: Vec<&str> = source.lines().map(str::trim).collect();
            let test = ["#[test]".to_string(), format!("fn {function}() {{")];
            if !named || !lines.windows(2).any(|lines| lines == test) {
                return Err(Error::other(format!("{file} has no test `{function}` of {name}")));
            }
            let row = self.rows.get_mut(&key);
            row.ok_or_else(|| Error::other(format!("{version} is not a row")))?.own =
                Some(format!("{file} {function}"));
        }
        Ok(())
    }

    /// Notes that a drawn case proves its pairs.
    fn prove(&mut self, pairs: &[String], case: &str) -> io::Result<()> {
        for pair in pairs {
            if let Some(row) = self.rows.get_mut(&key(pair)?) {
                row.drawn.get_or_insert_with(|| case.to_string());
            }
        }
        Ok(())
    }

    /// Draws a case of the plan's seed for each pair that nothing proves yet, and again for those that it leaves so, up to
    /// `rounds` times. Gives the results.
    pub fn draw_missing(
        &mut self,
        plan: &Plan,
        rounds: usize,
        code: &Code,
        place: &Place,
    ) -> io::Result<Vec<differential::Result>> {
        let (mut all, mut done) = (Vec::new(), BTreeSet::new());
        for round in 1..=rounds {
            let missing: Vec<String> =
                self.rows.iter().filter(|(_, row)| !row.proven()).map(|(key, _)| pair_text(key)).collect();
            let numbers = differential::numbers_for(plan, &missing, plan.first, round)?;
            let numbers: Vec<u64> = numbers.into_iter().filter(|&number| done.insert(number)).collect();
            let results = differential::run_numbers(plan, &numbers, code, place)?;
            self.note(&results, plan.seed)?;
            all.extend(results);
        }
        Ok(all)
    }

    /// Notes what a run of this seed proves.
    pub fn note(&mut self, results: &[differential::Result], seed: u64) -> io::Result<()> {
        for (drawn, outcome) in results {
            if matches!(outcome, Some(Outcome::Passed)) {
                self.prove(&drawn.pairs, &format!("{seed}/{}", drawn.number))?;
            }
        }
        Ok(())
    }

    /// Takes over the drawn cases that a document names.
    pub fn take_drawn(&mut self, text: &str) -> io::Result<()> {
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            if let [version, ty, _, _, drawn] = cells[..]
                && drawn_case(drawn).is_some()
            {
                let row = self.rows.get_mut(&key(&format!("{version} {ty}"))?);
                row.ok_or_else(|| Error::other(format!("{version} {ty} is not a row")))?.drawn =
                    Some(drawn.to_string());
            }
        }
        Ok(())
    }

    /// The pairs that a drawn case proves.
    pub fn pairs_of(&self, case: &str) -> Vec<String> {
        let of = self.rows.iter().filter(|(_, row)| row.drawn.as_deref() == Some(case));
        of.map(|(key, _)| pair_text(key)).collect()
    }

    /// The document.
    pub fn markdown(&self) -> String {
        let versions = |rows: &dyn Fn(&Row) -> bool| -> usize {
            let of = self.rows.iter().filter(|(_, row)| rows(row));
            of.map(|(key, _)| (&key.0, key.1)).collect::<BTreeSet<_>>().len()
        };
        let proven = self.rows.values().filter(|row| row.proven()).count();
        let mut text = String::from("# Proof by rows\n\n");
        let _ = writeln!(
            text,
            "Every version of every operator of ai.onnx, with every type of a tensor that its schema allows, and a test \
             that passes: of the pinned release, of release 1.22, and a drawn model (`seed/number` of `differential`). Of \
             operators on strings, sequences and optionals, of random numbers, and of the other domains, every version, \
             and where no official test has it one of ours, as `proof_tests.txt` names it. \
             `UPDATE_EXPECT=1 cargo test -p onnxc-tests --test suite proof::` writes this page.\n\n\
             - Operator versions: {} of {} have a proof.\n- Pairs of operator version and type: {proven} of {} have \
             one.\n",
            versions(&Row::proven),
            versions(&|_| true),
            self.rows.len(),
        );
        let without: Vec<String> =
            self.rows.iter().filter(|(_, row)| !row.proven()).map(|(key, _)| pair_text(key)).collect();
        text.push_str("## No proof\n\n");
        match without.is_empty() {
            true => text.push_str("None.\n"),
            false => text.push_str(&grouped(&without)),
        }
        text.push_str("\n## Table\n\n| operator | type | official test | test of 1.22 | drawn, or ours |\n|---|---|---|---|---|\n");
        for (key, row) in &self.rows {
            let test = |id: &Option<String>| id.as_deref().unwrap_or("").replace("node/test_", "");
            // The same test in both releases is named once.
            let older = if row.official == row.older { "=".to_string() } else { test(&row.older) };
            let older = if row.older.is_none() { String::new() } else { older };
            let drawn = row.drawn.as_deref().or(row.own.as_deref()).unwrap_or("");
            let _ = writeln!(
                text,
                "| {}-{} | {} | {} | {older} | {drawn} |",
                key.0,
                key.1,
                key.2,
                test(&row.official)
            );
        }
        text
    }
}

fn pair_text(key: &Key) -> String {
    format!("{}-{} {}", key.0, key.1, key.2)
}

/// One line per operator version.
fn grouped(pairs: &[String]) -> String {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for pair in pairs {
        let (version, ty) = pair.split_once(' ').unwrap_or((pair, ""));
        match lines.last_mut() {
            Some((last, types)) if last == version => types.push(ty),
            _ => lines.push((version.to_string(), vec![ty])),
        }
    }
    lines.iter().map(|(version, types)| format!("- {version}: {}\n", types.join(", "))).collect()
}

/// The drawn cases that a document names.
pub fn drawn_cases(text: &str) -> BTreeSet<(u64, u64)> {
    let case = |line: &str| drawn_case(line.trim_end_matches(['|', ' ']).rsplit('|').next()?.trim());
    text.lines().filter(|line| line.starts_with("| ")).filter_map(case).collect()
}

/// The seed and the number of `seed/number`.
fn drawn_case(cell: &str) -> Option<(u64, u64)> {
    let (seed, number) = cell.split_once('/')?;
    Some((seed.parse().ok()?, number.parse().ok()?))
}
