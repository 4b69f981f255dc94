//! Warnings: what breaks the ONNX specification in a known way that tools leave behind, and is compiled all the same.

use std::collections::BTreeMap;

use super::{Importer, MAX_ERRORS, same_problem};
use crate::error::{Error, NodeRef, Stage};

/// What a model may break.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
#[cfg_attr(feature = "cli", serde(rename_all = "snake_case"))]
pub enum Deviation {
    /// A declared type is not the one that is inferred.
    DeclaredType,
    /// A declared shape is not the one that is inferred.
    DeclaredShape,
    /// A node stands before one whose result it takes.
    NodeOrder,
    /// An operator that ONNX Runtime has in `ai.onnx`, and the imported version of the standard has not.
    Operator,
    /// An element type that ONNX Runtime takes, and the operator's version does not.
    ElementType,
    /// An attribute has more elements than the operator takes, and ONNX Runtime takes the first of them.
    Attribute,
    /// An input has fewer axes than the operator takes, and ONNX Runtime adds the one that is missing.
    Rank,
}

/// A deviation that is compiled: an error with `strict`.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
pub struct Warning {
    pub deviation: Deviation,
    #[cfg_attr(feature = "cli", serde(flatten))]
    pub problem: Error,
}

/// One text per kind of deviation: the first warning of the kind, and how many others there are.
pub fn summary(warnings: &[Warning]) -> Vec<String> {
    let mut kinds: BTreeMap<Deviation, (&Warning, usize)> = BTreeMap::new();
    for warning in warnings {
        kinds.entry(warning.deviation).and_modify(|(_, others)| *others += 1).or_insert((warning, 0));
    }
    let text = |(first, others): &(&Warning, usize)| match others {
        0 => first.problem.to_string(),
        1 => format!("{} (and 1 other like it, which `onnxc check` lists)", first.problem),
        _ => format!("{} (and {others} others like it, which `onnxc check` lists)", first.problem),
    };
    kinds.values().map(text).collect()
}

impl Importer<'_> {
    /// Lists a deviation, once. The first [`MAX_ERRORS`] are listed.
    pub(super) fn warn(&mut self, deviation: Deviation, message: String, site: Option<NodeRef>) {
        let mut problem = Error::malformed(Stage::Import, message);
        if let Some(site) = site {
            problem = problem.at(site);
        }
        let known = |other: &Warning| other.deviation == deviation && same_problem(&other.problem, &problem);
        if self.warnings.len() < MAX_ERRORS && !self.warnings.iter().any(known) {
            self.warnings.push(Warning { deviation, problem });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once() {
        let warning =
            |deviation, text: &str| Warning { deviation, problem: Error::malformed(Stage::Import, text) };
        let warnings = [
            warning(Deviation::NodeOrder, "a"),
            warning(Deviation::DeclaredShape, "b"),
            warning(Deviation::NodeOrder, "c"),
            warning(Deviation::ElementType, "d"),
            warning(Deviation::ElementType, "e"),
            warning(Deviation::ElementType, "f"),
        ];
        let wanted = [
            "b",
            "a (and 1 other like it, which `onnxc check` lists)",
            "d (and 2 others like it, which `onnxc check` lists)",
        ];
        assert_eq!(summary(&warnings), wanted);
    }
}
