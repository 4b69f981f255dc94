//! What the table of the pipeline, [`PHASES`], is made of.

use crate::facts::Facts;
use crate::{PHASES, Pass};

/// A part of the pipeline, for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    /// One line, for the documentation.
    pub doc: &'static str,
    /// What a graph may have when the phase begins.
    pub requires: Facts,
    /// What it may have when the phase is done.
    pub leaves: Facts,
    pub passes: &'static [PassDef],
}

/// A row of the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PassDef {
    pub name: &'static str,
    pub run: Pass,
    /// The lowest optimization level that runs it; 0 for what code generation requires.
    pub min_level: u8,
    /// One line, for `--help` and the documentation.
    pub doc: &'static str,
    /// Passes that must have run before, wherever they are.
    pub after: &'static [After],
}

/// A pass that must run before another one.
#[derive(Clone, Copy, Debug)]
pub struct After {
    pub pass: &'static str,
    /// Why.
    pub why: &'static str,
}

pub(crate) const fn row(name: &'static str, run: Pass, min_level: u8, doc: &'static str) -> PassDef {
    PassDef { name, run, min_level, doc, after: &[] }
}

pub(crate) const fn after(pass: &'static str, why: &'static str) -> After {
    After { pass, why }
}

impl PassDef {
    pub(crate) const fn after(self, after: &'static [After]) -> PassDef {
        PassDef { after, ..self }
    }
}

/// The rows of all phases, in order.
pub fn passes() -> impl Iterator<Item = &'static PassDef> {
    PHASES.iter().flat_map(|phase| phase.passes)
}

/// The pass of a name.
pub fn by_name(name: &str) -> Option<&'static PassDef> {
    passes().find(|pass| pass.name == name)
}

/// The table of phases in `ARCHITECTURE.md`.
pub fn markdown() -> String {
    let mut text = String::from("| phase | for | passes | a graph may then have |\n|---|---|---|---|\n");
    for phase in PHASES {
        let passes: Vec<String> = phase.passes.iter().map(|pass| format!("`{}`", pass.name)).collect();
        text += &format!("| {} | {} | {} | {} |\n", phase.name, phase.doc, passes.join(" "), phase.leaves);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the order of some rows breaks, in words.
    fn broken(rows: &[PassDef]) -> Vec<String> {
        let mut found = vec![];
        for (at, row) in rows.iter().enumerate() {
            for After { pass, why } in row.after {
                let comes_late = rows[at..].iter().any(|other| other.name == *pass);
                // A pass that runs twice needs the other one before each run of its own.
                if comes_late || rows[..at].iter().all(|other| other.name != *pass) {
                    found.push(format!("{} is not behind {pass}: {why}", row.name));
                }
            }
        }
        found
    }

    #[test]
    fn passes_are_behind_those_they_name() {
        let rows: Vec<PassDef> = passes().copied().collect();
        assert_eq!(broken(&rows), [""; 0]);
        for (at, row) in rows.iter().enumerate() {
            for After { pass, why } in row.after {
                assert!(by_name(pass).is_some() && !why.is_empty(), "{} after {pass}", row.name);
                // Moved to just before the last of that name, the row is reported.
                let mut moved = rows.clone();
                let row = moved.remove(at);
                let last = moved.iter().rposition(|other| other.name == *pass).unwrap();
                moved.insert(last, row);
                let wanted = format!("{} is not behind {pass}: {why}", row.name);
                assert!(broken(&moved).contains(&wanted), "{wanted}");
            }
        }
    }

    #[test]
    fn phases_follow_each_other() {
        for pair in PHASES.windows(2) {
            assert_eq!(pair[0].leaves, pair[1].requires, "{} and {}", pair[0].name, pair[1].name);
        }
        // A fact that some phase leaves and a later one does not: that one has a pass of the level from which on it is so.
        for pair in PHASES.windows(2) {
            for fact in pair[0].leaves.iter().filter(|fact| !pair[1].leaves.has(*fact)) {
                let levels: Vec<u8> = pair[1].passes.iter().map(|pass| pass.min_level).collect();
                assert!(levels.contains(&fact.ends_at()), "{} of {}", fact.name(), pair[1].name);
            }
        }
    }
}
