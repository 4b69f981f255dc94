//! Lists of expected failures: names under `# reason` lines, held exactly. What onnxc does not support yet is listed
//! under the compiler's own words. One kind of reason is written by hand: one that begins with `rounding:` excuses results
//! that miss the suite's tolerance. A crash, a hang or a panic fails the run whether listed or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::suite::Miss;

/// How a test went.
#[derive(Clone, Debug)]
pub enum Outcome {
    Passed,
    /// Needs what is not supported yet; the reason.
    Unsupported(String),
    /// A result beyond the tolerance by no more than rounding explains; how far.
    Differs(String),
    /// A defect.
    Failed(String),
    /// Not run; why it cannot be, where it would.
    LeftOut(String),
}

impl From<Result<(), Miss>> for Outcome {
    fn from(result: Result<(), Miss>) -> Outcome {
        match result {
            Ok(()) => Outcome::Passed,
            Err(miss) if miss.rounding => Outcome::Differs(miss.text),
            Err(miss) => Outcome::Failed(miss.text),
        }
    }
}

/// How reasons begin that excuse a result beyond the tolerance.
const ROUNDING: &str = "rounding:";

/// Reason by name.
type List = BTreeMap<String, String>;

fn parse(text: &str) -> List {
    let mut list = List::new();
    let mut reason = "no reason given";
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix('#') {
            Some(text) => reason = text.trim(),
            None => drop(list.insert(line.to_string(), reason.to_string())),
        }
    }
    list
}

fn print(list: &List) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in list {
        by_reason.entry(reason).or_default().push(name);
    }
    let group = |(reason, names): (&&str, &Vec<&str>)| format!("# {reason}\n{}\n", names.join("\n"));
    by_reason.iter().map(group).collect::<Vec<_>>().join("\n")
}

/// The names on the list at `path`.
pub fn names(path: &Path) -> std::io::Result<BTreeSet<String>> {
    Ok(parse(&fs::read_to_string(path)?).into_keys().collect())
}

/// Holds outcomes against the list at `path`; fails with every difference. With `UPDATE_EXPECT=1` the list is written
/// anew first.
pub fn check(path: &Path, outcomes: &BTreeMap<String, Outcome>) -> Result<(), String> {
    let unsupported = |(name, outcome): (&String, &Outcome)| match outcome {
        Outcome::Unsupported(reason) => Some((name.clone(), reason.clone())),
        _ => None,
    };
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
        let mut list: List = outcomes.iter().filter_map(unsupported).collect();
        if let Ok(old) = fs::read_to_string(path) {
            list.extend(parse(&old).into_iter().filter(|(_, reason)| reason.starts_with(ROUNDING)));
        }
        fs::write(path, print(&list)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let problems = differences(&parse(&text), outcomes);
    if problems.is_empty() {
        return Ok(());
    }
    let count = problems.len();
    Err(format!("{count} results differ from {}:\n{}", path.display(), problems.join("\n")))
}

fn differences(list: &List, outcomes: &BTreeMap<String, Outcome>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, outcome) in outcomes {
        match (outcome, list.get(name)) {
            (Outcome::Passed, None) | (Outcome::Unsupported(_), Some(_)) | (Outcome::LeftOut(_), _) => {}
            (Outcome::Differs(_), Some(reason)) if reason.starts_with(ROUNDING) => {}
            (Outcome::Passed, Some(_)) => problems.push(format!("{name}: passes, and is listed as failing")),
            (Outcome::Unsupported(reason), None) => {
                problems.push(format!("{name}: not supported yet: {reason}"))
            }
            (Outcome::Differs(what) | Outcome::Failed(what), _) => problems.push(format!("{name}: {what}")),
        }
    }
    let unknown = list.keys().filter(|name| !outcomes.contains_key(*name));
    problems.extend(unknown.map(|name| format!("{name}: is listed, but is not a test")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip() {
        let text = "# reason a\nx/1\nx/3\n\n# reason b\nx/2\n";
        let list = parse(text);
        assert_eq!(list["x/3"], "reason a");
        assert_eq!(print(&list), text);
    }

    #[test]
    fn every_difference_is_told() {
        let list = parse("# r\na\nb\nc\ngone\n");
        let outcome = |outcome| move |name: &str| (name.to_string(), outcome);
        let outcomes = BTreeMap::from([
            outcome(Outcome::Unsupported("r".into()))("a"),
            outcome(Outcome::Passed)("b"),
            outcome(Outcome::Failed("wrong".into()))("c"),
            outcome(Outcome::Unsupported("r".into()))("d"),
            outcome(Outcome::Passed)("e"),
        ]);
        let problems = differences(&list, &outcomes);
        let names: Vec<&str> = problems.iter().map(|text| text.split(':').next().unwrap()).collect();
        assert_eq!(names, ["b", "c", "d", "gone"]);
    }
}
