//! Names: those that a model has, new ones beside them, and patterns of them.

use std::collections::HashSet;

use onnxc_proto::{GraphProto, ModelProto};

use crate::scope::bodies;

/// Every name of a value of a model, those of bodies included.
#[derive(Clone, Default)]
pub(super) struct Names {
    taken: HashSet<String>,
}

impl Names {
    pub(super) fn of(model: &ModelProto) -> Names {
        let mut names = Names::default();
        let mut open: Vec<&GraphProto> = model.graph.iter().collect();
        while let Some(graph) = open.pop() {
            let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
            let tensors = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
            let ends = graph.input.iter().chain(&graph.output).map(|info| info.name());
            let nodes = graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output));
            let all = tensors.chain(ends).chain(nodes.map(String::as_str));
            names.taken.extend(all.map(str::to_string));
            open.extend(graph.node.iter().flat_map(bodies));
        }
        names
    }

    /// A name that nothing has yet: `wanted`, or that with a number behind it.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_string();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{wanted}_{number}");
        }
        name
    }
}

/// Whether a pattern names one thing only.
pub(super) fn is_exact(pattern: &str) -> bool {
    !pattern.contains(['*', '?'])
}

/// Whether a name is one that a pattern means: `*` stands for any letters, also none, `?` for one.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star, and how far in the name it reaches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&letter) if letter == '?' || letter == name[n] => (p, n) = (p + 1, n + 1),
            _ => match &mut star {
                Some((at, reached)) => {
                    *reached += 1;
                    (p, n) = (*at + 1, *reached);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&letter| letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, wanted) in [
            ("w", "w", true),
            ("w", "ww", false),
            ("*", "", true),
            ("?", "", false),
            ("layer.*.weight", "layer.0.weight", true),
            ("layer.*.weight", "layer.0.bias", false),
            ("*a*b", "aabab", true),
            ("*a*b", "aaba", false),
            ("l?yer*", "l\u{e4}yer", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn new_names_are_new() {
        let mut names = Names::default();
        let given: Vec<String> = ["loss", "loss", "loss_2", "loss"].map(|name| names.fresh(name)).into();
        assert_eq!(given, ["loss", "loss_2", "loss_2_2", "loss_3"]);
    }
}
