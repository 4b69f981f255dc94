//! What is said of a model: warnings of what it breaks and is compiled all the same, and notes of what is left aside. Each kind
//! is listed a bounded number of times and counted from there on: a file of a few megabytes may give cause for millions.

use std::collections::{BTreeMap, HashSet};

use onnxc_ir::error::Error;
use onnxc_ir::rules::Rule;

/// Warnings, and problems, of one kind that are listed.
pub const LISTED: usize = 100;

/// Warnings that are remembered, so that one that is found twice counts once also where it is not listed.
const REMEMBERED: usize = 1 << 16;

/// What a model breaks, and is compiled all the same: an error with `strict`.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Warning {
    /// Also the problem's, which JSON shows.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub rule: Rule,
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub problem: Error,
    /// How many more of this kind there are that are not listed; stated by the last one that is.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub more: u64,
}

#[cfg(feature = "serde")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One text per kind: the first warning of the kind, and how many others there are.
pub fn summary(warnings: &[Warning]) -> Vec<String> {
    let mut kinds: BTreeMap<Rule, (&Warning, u64)> = BTreeMap::new();
    for warning in warnings {
        let (_, others) =
            kinds.entry(warning.rule).and_modify(|(_, others)| *others += 1).or_insert((warning, 0));
        *others += warning.more;
    }
    let text = |(first, others): &(&Warning, u64)| match others {
        0 => first.problem.to_string(),
        1 => format!("{} (and 1 other like it, which `onnxc check` lists)", first.problem),
        _ => format!("{} (and {others} others like it, which `onnxc check` lists)", first.problem),
    };
    kinds.values().map(text).collect()
}

/// Problems of one kind, as far as they are shown.
pub struct ProblemGroup {
    /// Positions in the list; at most [`LISTED`].
    pub shown: Vec<usize>,
    /// How many more there are.
    pub more: usize,
    /// What they have in common.
    pub reason: String,
}

/// Problems by their kind, in the order of the first of each.
pub fn groups(problems: &[Error]) -> Vec<ProblemGroup> {
    let mut groups: Vec<ProblemGroup> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (at, problem) in problems.iter().enumerate() {
        let reason = problem.reason();
        let group = *known.entry(reason.clone()).or_insert_with(|| {
            groups.push(ProblemGroup { shown: Vec::new(), more: 0, reason });
            groups.len() - 1
        });
        match groups[group].shown.len() < LISTED {
            true => groups[group].shown.push(at),
            false => groups[group].more += 1,
        }
    }
    groups
}

/// One line a problem, and one for those of a kind that are too many.
pub fn lines(problems: &[Error]) -> Vec<String> {
    let groups = groups(problems);
    let mut shown: Vec<usize> = groups.iter().flat_map(|group| group.shown.iter().copied()).collect();
    shown.sort_unstable();
    let more = groups.iter().filter(|group| group.more > 0);
    let more = more.map(|group| format!("and {} more of this kind: {}", group.more, group.reason));
    shown.into_iter().map(|at| problems[at].to_string()).chain(more).collect()
}

/// Warnings and notes as they are found.
#[derive(Default)]
pub(super) struct Log {
    /// The device configuration that is followed.
    pub followed: Option<String>,
    warnings: Vec<Warning>,
    /// Of each kind, how many are listed and how many are not.
    counts: BTreeMap<Rule, (usize, u64)>,
    remembered: HashSet<u64>,
    /// The first text of each kind, and how many others there are.
    notes: Vec<(Rule, String, u64)>,
}

/// A moment that [`Log::undo`] goes back to.
pub(super) struct Mark {
    listed: usize,
    counts: BTreeMap<Rule, (usize, u64)>,
}

impl Log {
    /// A warning that `make` gives, which is found once only; it is not made where there is no room to list it.
    pub(crate) fn found(&mut self, rule: Rule, make: impl FnOnce() -> Error) {
        let (listed, more) = self.counts.entry(rule).or_default();
        if *listed == LISTED {
            *more += 1;
            return;
        }
        *listed += 1;
        let problem = make().of_kind(rule.id());
        self.warnings.push(Warning { rule, problem, more: 0 });
    }

    /// A warning that may have been found before.
    pub(crate) fn add(&mut self, rule: Rule, problem: Error) {
        let problem = problem.of_kind(rule.id());
        let node = problem.node.as_ref().map(|node| (&node.name, node.index));
        let [digest, _] = onnxc_ir::digest::digest(&(rule, node, &problem.message));
        let is_full = self.counts.get(&rule).is_some_and(|(listed, _)| *listed == LISTED);
        let is_same = |other: &Warning| other.rule == rule && same_problem(&other.problem, &problem);
        if !is_full && self.warnings.iter().any(is_same) {
            return;
        }
        let is_new = self.remembered.len() == REMEMBERED || self.remembered.insert(digest);
        if is_full && !is_new {
            return;
        }
        self.found(rule, || problem);
    }

    pub(crate) fn note(&mut self, rule: Rule, make: impl FnOnce() -> String) {
        match self.notes.iter_mut().find(|(other, ..)| *other == rule) {
            Some((_, _, others)) => *others += 1,
            None => self.notes.push((rule, make(), 0)),
        }
    }

    /// A note of what an option does, which is said each time: options are few.
    pub(crate) fn note_of_option(&mut self, rule: Rule, text: String) {
        self.notes.push((rule, text, 0));
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { listed: self.warnings.len(), counts: self.counts.clone() }
    }

    /// Takes back the warnings since a moment.
    pub(crate) fn undo(&mut self, mark: Mark) {
        self.warnings.truncate(mark.listed);
        self.counts = mark.counts;
    }

    /// The warnings, and one text for each kind of note.
    pub(crate) fn finish(mut self) -> (Vec<Warning>, Vec<String>) {
        for (rule, (_, more)) in self.counts {
            if let Some(last) = self.warnings.iter_mut().rfind(|warning| warning.rule == rule) {
                last.more = more;
            }
        }
        let text = |(_, first, others)| match others {
            0 => first,
            1 => format!("{first} (and 1 other like it)"),
            _ => format!("{first} (and {others} others like it)"),
        };
        (self.warnings, self.notes.into_iter().map(text).collect())
    }
}

/// Whether two errors say the same of one node. A body may be looked at both with and without the types
/// and the call path of its nodes.
pub(super) fn same_problem(a: &Error, b: &Error) -> bool {
    let same_node = match (&a.node, &b.node) {
        (Some(a), Some(b)) => {
            (a.index, &a.op_type, &a.domain) == (b.index, &b.op_type, &b.domain)
                && (a.name.ends_with(&b.name) || b.name.ends_with(&a.name))
        }
        (None, None) => true,
        _ => false,
    };
    same_node && (a.kind, &a.message) == (b.kind, &b.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::error::Stage;

    fn warning(rule: Rule, text: &str, more: u64) -> Warning {
        Warning { rule, problem: Error::malformed(Stage::Import, text), more }
    }

    #[test]
    fn each_kind_is_told_once() {
        let warnings = [
            warning(Rule::NodeOrder, "a", 0),
            warning(Rule::DeclaredShape, "b", 0),
            warning(Rule::NodeOrder, "c", 0),
            warning(Rule::ElementType, "d", 0),
            warning(Rule::ElementType, "e", 0),
            warning(Rule::ElementType, "f", 7),
        ];
        let wanted = [
            "b",
            "a (and 1 other like it, which `onnxc check` lists)",
            "d (and 9 others like it, which `onnxc check` lists)",
        ];
        assert_eq!(summary(&warnings), wanted);
    }

    #[test]
    fn kinds_are_listed_to_a_bound_and_counted_from_there_on() {
        let mut log = Log::default();
        for at in 0..2_000_000u64 {
            log.found(Rule::ValueInfoTwice, || Error::malformed(Stage::Import, at.to_string()));
            log.note(Rule::QuantizationIgnored, || at.to_string());
        }
        let mark = log.mark();
        log.found(Rule::NegativeDim, || Error::malformed(Stage::Import, "undone"));
        log.found(Rule::ValueInfoTwice, || Error::malformed(Stage::Import, "undone"));
        log.undo(mark);
        let problem = || Error::malformed(Stage::Import, "again");
        log.add(Rule::ValueInfoTwice, problem());
        log.add(Rule::ValueInfoTwice, problem());
        let (warnings, notes) = log.finish();
        assert_eq!(warnings.len(), LISTED);
        assert_eq!(warnings[LISTED - 1].more, 2_000_001 - LISTED as u64);
        assert_eq!(notes, ["0 (and 1999999 others like it)"]);
    }

    #[test]
    fn problems_of_one_kind_are_shown_to_a_bound() {
        let problem = |at: usize| Error::malformed(Stage::Import, format!("value `v{at}` is defined twice"));
        let mut problems: Vec<Error> = (0..LISTED + 50).map(problem).collect();
        problems.push(Error::malformed(Stage::Import, "another one"));
        let lines = lines(&problems);
        assert_eq!(lines.len(), LISTED + 2);
        assert_eq!(lines[LISTED..], ["another one", "and 50 more of this kind: value `_` is defined twice"]);
    }
}
