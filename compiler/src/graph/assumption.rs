//! What is taken to hold of sizes though it only shows when the model runs: relations between dims, checked before
//! anything is written, or, where data decide a dim, as soon as it is known.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::graph::{Dim, Sym};

/// How two sizes relate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Relation {
    Equal,
    AtMost,
    /// The left size is the right one, or 1.
    Broadcasts,
}

impl Relation {
    pub fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::AtMost => left <= right,
            Relation::Broadcasts => left == right || left == 1,
        }
    }

    /// How a failed check is worded: `5 is not 4`.
    pub fn negated(self) -> &'static str {
        match self {
            Relation::Equal => "is not",
            Relation::AtMost => "is more than",
            Relation::Broadcasts => "is neither 1 nor",
        }
    }
}

/// Text form: `=`, `<=` or `->`.
impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Equal => "=",
            Relation::AtMost => "<=",
            Relation::Broadcasts => "->",
        })
    }
}

/// `left relation right`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Requirement {
    pub left: Dim,
    pub relation: Relation,
    pub right: Dim,
}

impl Requirement {
    pub fn equal(left: Dim, right: Dim) -> Requirement {
        Requirement { left, relation: Relation::Equal, right }
    }

    pub fn at_most(left: Dim, right: Dim) -> Requirement {
        Requirement { left, relation: Relation::AtMost, right }
    }

    pub fn broadcasts(from: Dim, to: Dim) -> Requirement {
        Requirement { left: from, relation: Relation::Broadcasts, right: to }
    }

    /// Whether it holds whatever the symbols are; `None` where that shows when the model runs.
    pub fn verdict(&self) -> Option<bool> {
        if let (Some(left), Some(right)) = (self.left.as_const(), self.right.as_const()) {
            return Some(self.relation.holds(left, right));
        }
        // What is overgrown equals nothing, not even itself; code generation refuses it.
        if self.left.is_overgrown() || self.right.is_overgrown() {
            return None;
        }
        let proven = match self.relation {
            Relation::Equal => self.left == self.right,
            Relation::Broadcasts => self.left == self.right || self.left == Dim::ONE,
            Relation::AtMost => {
                self.left == self.right
                    || (self.right.clone() - self.left.clone()).bounds().0.is_some_and(|low| low >= 0)
            }
        };
        proven.then_some(true)
    }

    /// Calls `visit` with every symbol, as often as it occurs.
    pub fn visit_symbols(&self, visit: &mut dyn FnMut(Sym)) {
        self.left.visit_symbols(visit);
        self.right.visit_symbols(visit);
    }
}

/// A requirement of a graph that its runs check.
#[derive(Clone, PartialEq, Debug)]
pub struct Assumption {
    pub requirement: Requirement,
    /// The ONNX node that asks for it, ``node `name` (Op)``; may be empty.
    pub node: Arc<str>,
    /// What must hold, in terms of the node's operands; empty where only the dims say it.
    pub claim: Arc<str>,
}

impl Assumption {
    /// What must hold, for a message: `text` writes a dim.
    pub fn sentence(&self, text: &dyn Fn(&Dim) -> String) -> String {
        let Requirement { left, relation, right } = &self.requirement;
        let claim = match (&*self.claim, relation) {
            ("", Relation::Equal) => format!("{} must be {}", text(left), text(right)),
            ("", Relation::AtMost) => format!("{} must be at most {}", text(left), text(right)),
            ("", Relation::Broadcasts) => format!("{} must be 1 or {}", text(left), text(right)),
            (claim, _) => claim.to_string(),
        };
        match &*self.node {
            "" => format!("the sizes do not fit together: {claim}"),
            node => format!("{node}: {claim}"),
        }
    }
}

/// Assumptions in the order in which they were made, each requirement once.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    list: Vec<Assumption>,
    known: HashSet<Requirement>,
}

impl Assumptions {
    /// Adds what is not there, and does not hold in every run anyway.
    pub fn insert(&mut self, assumption: Assumption) {
        if assumption.requirement.verdict() != Some(true) && self.known.insert(assumption.requirement.clone())
        {
            self.list.push(assumption);
        }
    }

    pub fn contains(&self, requirement: &Requirement) -> bool {
        self.known.contains(requirement)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Assumption> {
        self.list.iter()
    }

    /// The requirements alone.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.list.iter().map(|assumption| &assumption.requirement)
    }
}

impl PartialEq for Assumptions {
    fn eq(&self, other: &Assumptions) -> bool {
        self.list == other.list
    }
}
