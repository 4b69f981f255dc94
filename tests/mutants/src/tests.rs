use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::find::find;
use crate::project::Project;
use crate::report::{Judged, markdown};
use crate::rewrite::{Mutant, rewrite};
use crate::sample;
use crate::suite::{self, Form, Suite, Verdict};

/// `operator: before -> after` of every mutant of a function's body.
fn mutants_of(body: &str) -> Vec<String> {
    let text = format!("fn f(a: &str) -> &str {{\n{body}\n}}");
    let found = find("f.rs", &text).unwrap().mutants;
    found.iter().map(|mutant| format!("{}: {} -> {}", mutant.rule, mutant.before, mutant.after)).collect()
}

#[test]
fn comparisons_and_arithmetic() {
    assert_eq!(mutants_of("x < y"), ["operator: x < y -> (x) <= (y)", "operator: x < y -> (x) >= (y)"]);
    assert_eq!(mutants_of("x == y"), ["operator: x == y -> (x) != (y)"]);
    assert_eq!(mutants_of("x - y"), ["operator: x - y -> (x) + (y)"]);
    assert_eq!(mutants_of("!x"), ["operator: !x -> x"]);
    assert_eq!(mutants_of("x += y;"), ["deleted statement: x += y; -> ", "operator: x += y -> x -= y"]);
}

#[test]
fn logic() {
    assert_eq!(
        mutants_of("x && y"),
        ["operator: x && y -> (x) || (y)", "dropped operand: x && y -> x", "dropped operand: x && y -> y"]
    );
    assert_eq!(
        mutants_of("if x.is_empty() { y } else { z }"),
        ["negated condition: x.is_empty() -> !(x.is_empty())"]
    );
    // An operand of a chain that binds names cannot be replaced together with it.
    assert_eq!(
        mutants_of("if let Some(x) = y && z { a } else { b }"),
        ["negated condition: z -> !(z)", "decided condition: z -> true"]
    );
}

#[test]
fn constants_where_they_are_values() {
    assert_eq!(mutants_of("7usize"), ["constant: 7usize -> 8usize", "constant: 7usize -> 6usize"]);
    assert_eq!(mutants_of("0"), ["constant: 0 -> 1"]);
    assert_eq!(mutants_of("true"), ["constant: true -> false"]);
    assert_eq!(mutants_of("0.5f32"), ["constant: 0.5f32 -> 1.0f32", "constant: 0.5f32 -> 0.0f32"]);
    assert!(mutants_of("const A: [u8; 3] = [1; 3]; let 1 = x; let y: [u8; 4];").is_empty());
}

#[test]
fn statements_arms_and_bounds() {
    assert_eq!(mutants_of("push(x);"), ["deleted statement: push(x); -> "]);
    assert_eq!(mutants_of("loop { continue; }"), ["deleted statement: continue; -> "]);
    assert_eq!(mutants_of("match x { A => y, _ => z }"), ["deleted arm: A -> "]);
    assert_eq!(
        mutants_of("match x { A if y => z, B => w }"),
        ["negated condition: y -> !(y)", "decided condition: y -> true", "decided condition: y -> false"]
    );
    assert_eq!(mutants_of("x..y"), ["bound: y -> (y) - 1", "bound: x -> (x) + 1"]);
}

#[test]
fn methods_and_arguments() {
    assert_eq!(mutants_of("x.min(y)"), ["method: x.min(y) -> x.max(y)"]);
    assert_eq!(mutants_of("x.rev()"), ["method: x.rev() -> x"]);
    assert_eq!(mutants_of("f(x, y)"), ["swapped arguments: f(x, y) -> f(y, x)"]);
    assert_eq!(mutants_of("x.filter(|y| y.ready())"), ["negated condition: y.ready() -> !(y.ready())"]);
    assert_eq!(mutants_of("Some(x)"), ["no value: Some(x) -> None"]);
}

#[test]
fn results_of_functions() {
    let results = |output: &str| -> Vec<String> {
        let found = find("f.rs", &format!("fn f() {output} {{ g() }}")).unwrap().mutants;
        found.into_iter().map(|mutant| mutant.after).collect()
    };
    assert_eq!(results("-> bool"), ["return true;", "return false;"]);
    assert_eq!(results("-> Result<Vec<u8>>"), ["return Ok(Vec::new());"]);
    assert_eq!(results(""), ["return;"]);
    assert!(results("-> Graph").is_empty());
}

#[test]
fn text_and_tests_are_left_alone() {
    assert!(mutants_of("format!(\"{}\", x + 1)").is_empty());
    assert!(mutants_of("x.ok_or_else(|| y + 1)").is_empty());
    assert!(mutants_of("Err(x + 1)").is_empty());
    let found =
        find("f.rs", "#[cfg(test)] mod tests { fn f() { g(); } } #[cfg(all(test, unix))] mod more;").unwrap();
    assert!(found.mutants.is_empty());
    assert_eq!(found.test_modules, ["more"]);
}

#[test]
fn nested_mutants_are_each_of_the_original() {
    let text = "fn f() -> X { a + b * 2 }";
    let found = find("f.rs", text).unwrap().mutants;
    let numbered: Vec<(usize, &Mutant)> = found.iter().enumerate().collect();
    let (text, places) = rewrite(text, &numbered[..2]);
    let inner = "(if crate::mutants::on(1) { (b) + (2) } else { b * 2 })";
    assert_eq!(
        text,
        format!("fn f() -> X {{ (if crate::mutants::on(0) {{ (a) - (b * 2) }} else {{ a + {inner} }}) }}")
    );
    let place = places.iter().find(|place| place.number == 1).unwrap();
    assert_eq!(&text[place.range.clone()], inner);
}

#[test]
fn samples_are_of_a_line_each_and_stay_the_same() {
    let found = find("f.rs", "fn f() {\n a < b;\n c < d;\n}").unwrap().mutants;
    let drawn = sample::draw(found.clone(), 9, 3);
    let lines: BTreeSet<usize> = drawn.iter().map(|mutant| mutant.line).collect();
    assert_eq!((drawn.len(), lines), (3, BTreeSet::from([1, 2, 3])));
    assert_eq!(drawn, sample::draw(found, 9, 3));
}

/// A package with a function that its test covers, one that no test calls and one whose test checks nothing. Mutants of the
/// first are caught, also one that hangs; the others survive. A mutant that does not compile is left out.
#[test]
fn a_planted_mutant_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("workspace");
    fs::create_dir_all(root.join("small/src")).unwrap();
    fs::write(root.join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"small\"]\n").unwrap();
    fs::write(
        root.join("small/Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\ndoctest = false\n",
    )
    .unwrap();
    let library = "pub mod code;\n#[cfg(test)]\nmod tests {\n    use crate::code::*;\n\
        #[test]\n    fn all_bits() { assert_eq!(bits(3), 3) }\n    #[test]\n    fn idle() { unchecked(1); }\n}\n";
    fs::write(root.join("small/src/lib.rs"), library).unwrap();
    let code = "pub fn bits(mut n: u32) -> u32 {\n    let mut bits = 0;\n    while n > 0 {\n        bits |= n;\n        n -= 1;\n    }\n    bits\n}\n\
        pub fn unchecked(x: u32) -> u32 {\n    x + 1\n}\n\
        pub fn unreached(x: &str) -> String {\n    String::new() + x\n}\n";
    fs::write(root.join("small/src/code.rs"), code).unwrap();
    assert!(Command::new("git").args(["init", "-q"]).current_dir(&root).status().unwrap().success());

    let work = root.join("target/mutants");
    let project =
        Project { packages: vec![("small".into(), "small".into())], work: work.clone(), root: root.clone() };
    let mutants = sample::mutants(&root, "small/src", "code").unwrap();
    project.copy_sources().unwrap();
    let numbers = project.write_compiling(&mutants, usize::MAX).unwrap();
    let strings = mutants.iter().position(|mutant| mutant.before == "String::new() + x").unwrap();
    assert!(!numbers.contains(&strings), "strings have no difference");

    let programs = project.build(&["test", "--no-run", "--package", "small"]).unwrap();
    let program = programs.iter().find(|program| program.is_test).unwrap().path.clone();
    let form = Form::Listed { prefix: String::new(), together: 1 };
    let suites = [Suite {
        name: "unit".into(),
        program,
        form,
        folder: root,
        variables: Vec::new(),
        patience: Duration::from_secs(2),
    }];
    let tests = suite::measure(&suites[0], mutants.len(), &work, &mut |_| {}).unwrap();
    assert_eq!(tests.len(), 2);
    let verdict = |function: &str, before: &str, after: &str| {
        let wanted = (function, before, after);
        let of = |mutant: &Mutant| {
            (mutant.function.as_str(), mutant.before.as_str(), mutant.after.as_str()) == wanted
        };
        let at = mutants.iter().position(of);
        let at = at.unwrap_or_else(|| panic!("there is no mutant {after} of {function}: {mutants:?}"));
        assert!(numbers.contains(&at), "{after}");
        suite::try_mutant(&suites, &tests, at, Duration::from_secs(9), 1).unwrap()
    };
    let caught = |timed_out| Verdict::Caught { suite: "unit".into(), timed_out };
    assert_eq!(verdict("bits", "bits |= n", "bits &= n"), caught(false));
    assert_eq!(verdict("bits", "n > 0", "(n) >= (0)"), caught(false));
    assert_eq!(verdict("bits", "n -= 1;", ""), caught(true), "a loop without end");
    assert_eq!(verdict("unchecked", "x + 1", "(x) - (1)"), Verdict::Survived { reached: true });
    assert_eq!(verdict("unchecked", "", "return 0;"), Verdict::Survived { reached: true });
}

#[test]
fn reports_name_survivors() {
    let found = find("crate/src/code.rs", "fn f() {\n a < b;\n c - d;\n e + f;\n}").unwrap().mutants;
    let of = |after: &str| found.iter().find(|mutant| mutant.after == after).unwrap();
    let outcomes = [
        (of("(a) <= (b)"), Verdict::Caught { suite: "unit".into(), timed_out: false }),
        (of("(c) + (d)"), Verdict::Survived { reached: true }),
        (of("(e) - (f)"), Verdict::Survived { reached: false }),
    ];
    let judged = Judged::parse("# speed only\ncrate/src/code.rs f: `c - d` -> `(c) + (d)`\n");
    let text = markdown("mutants", &["unit".into()], &outcomes, &judged, &|_| "code".into());
    assert!(
        text.contains("Of 3 mutants 1 are caught (33.3%); of the 2 that change results, 50.0%."),
        "{text}"
    );
    assert!(text.contains("| code | 3 | 33.3% | 1 | 0 | 1 | 0 | 1 |"), "{text}");
    assert!(text.contains("Survivors that want a test\n\n- crate/src/code.rs:4 in `f`"), "{text}");
    assert!(text.contains("Change no result: speed only\n\n- crate/src/code.rs:3 in `f`"), "{text}");
}
