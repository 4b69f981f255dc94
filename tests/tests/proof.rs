//! The proof table `conformance/proof.md`: it lists every operator version and type, its official tests pass, and so do
//! the drawn cases that it names. `UPDATE_EXPECT=1` draws cases for what no official test
//! covers, and writes it anew.

use std::collections::BTreeMap;
use std::path::Path;

use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::differential::{Plan, Summary, run_numbers};
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Place, Runner};
use onnxc_tests::proof::{Table, drawn_cases};

/// Seed of the table's cases.
const SEED: u64 = 1;

/// Cases drawn for a new table, at most, for each pair that no official test proves.
const ROUNDS: usize = 12;

/// Cases of the table that are run each time: one in this number, from the first on.
const STEP: usize = 24;

fn here() -> Place {
    Runner::native(env!("CARGO_BIN_EXE_run_cases")).into()
}

fn plan() -> Plan {
    Plan { seed: SEED, first: 0, count: 0, operator: None, python: None, keep: None }
}

#[test]
fn proof_table() {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let path = lists.join("proof.md");
    let code: Code = Target::host().unwrap().into();
    let mut table = Table::of_suites(&lists).unwrap();
    table.take_own(&lists.join("proof_tests.txt")).unwrap();
    let update = std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1");
    if update {
        // Cases that are named stay; a part of them is run below, as always. Without the page all are drawn anew.
        if let Ok(old) = std::fs::read_to_string(&path) {
            table.take_drawn(&old).unwrap();
        }
        let results = table.draw_missing(&plan(), ROUNDS, &code, &here()).unwrap();
        println!("{}", Summary::new(&results));
        std::fs::write(&path, table.markdown()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let named = drawn_cases(&text);
    // Parts of the run that made the table, which draw the same cases.
    let mut wrong = Vec::new();
    let mut found: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for &(seed, number) in named.iter().step_by(STEP) {
        assert_eq!(seed, SEED, "a case of another seed");
        found.insert(number, Vec::new());
    }
    let numbers: Vec<u64> = found.keys().copied().collect();
    for results in run_numbers(&plan(), &numbers, &code, &here()).unwrap() {
        match results {
            (drawn, Some(Outcome::Passed)) => drop(found.insert(drawn.number, drawn.pairs)),
            (drawn, outcome) => wrong.push(format!("{} {}: {outcome:?}", drawn.number, drawn.subject)),
        }
    }
    assert!(wrong.is_empty(), "cases of the table fail:\n{}", wrong.join("\n"));
    // Suites and schemas give the table's other columns; the drawn cases are those it names.
    table.take_drawn(&text).unwrap();
    for (number, pairs) in &found {
        for pair in table.pairs_of(&format!("{SEED}/{number}")) {
            assert!(pairs.contains(&pair), "case {number} does not prove {pair}, but {pairs:?}");
        }
    }
    assert!(text == table.markdown(), "the table is not up to date: run with UPDATE_EXPECT=1");
}
