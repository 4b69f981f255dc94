//! What is taken to hold of sizes though it only shows when the model runs: relations between dims, checked before
//! anything is written, or, where data decide a dim, as soon as it is known.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use crate::graph::{Claim, Dim};

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

    /// Whether it holds for all values of the symbols; `None` where that shows when the model runs.
    pub fn verdict(&self) -> Option<bool> {
        if let (Some(left), Some(right)) = (self.left.as_const(), self.right.as_const()) {
            return Some(self.relation.holds(left, right));
        }
        // What is overgrown equals nothing, not even itself; code generation refuses it.
        if self.is_overgrown() {
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

    /// Whether a side is more than a [`Dim`] may be.
    pub fn is_overgrown(&self) -> bool {
        self.left.is_overgrown() || self.right.is_overgrown()
    }
}

/// A requirement of a graph that its runs check.
#[derive(Clone, PartialEq, Debug)]
pub struct Assumption {
    pub requirement: Requirement,
    /// The ONNX node that asks for it, ``node `name` (Op)``; may be empty.
    pub node: Arc<str>,
    /// What a run says in which it does not hold.
    pub claim: Claim,
}

impl Assumption {
    /// What a run says in which it does not hold, with its values as `value` writes them.
    pub fn sentence(&self, value: &dyn Fn(&Dim) -> String) -> String {
        let claim = self.claim.sentence(value);
        match &*self.node {
            "" => claim,
            node => format!("{node}: {claim}"),
        }
    }

    /// Calls `visit` with every dim that a check of it reads, as often as it occurs.
    pub fn visit_dims<'a>(&'a self, visit: &mut dyn FnMut(&'a Dim)) {
        let Requirement { left, right, .. } = &self.requirement;
        [left, right].into_iter().chain(&*self.claim.values).for_each(visit);
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
