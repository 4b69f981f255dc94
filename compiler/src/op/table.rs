//! The operator table as a document: what `onnxc ops` prints, and the support table of the manual.

#[cfg(feature = "cli")]
mod json;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::unreleased::{self, Tolerated};
use super::{AttrKind, OpDef, rows};
#[cfg(feature = "cli")]
pub use json::json;

/// Rows by domain, then operator, each ascending by version.
fn grouped() -> BTreeMap<&'static str, BTreeMap<&'static str, Vec<&'static OpDef>>> {
    let mut domains: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
    for row in rows() {
        let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
        domains.entry(domain).or_default().entry(row.name).or_default().push(row);
    }
    domains
        .values_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(|versions| versions.sort_by_key(|row| row.since));
    domains
}

fn type_lists(row: &OpDef) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    row.types.iter().map(|(variable, types)| (*variable, types.iter().map(|dtype| dtype.name()).collect()))
}

/// A Markdown document: per domain a table of operators with their versions, the types of the newest one,
/// and what it computes.
pub fn markdown() -> String {
    let mut text =
        "# Operators\n\nWhat onnxc compiles: `onnxc ops --markdown` prints this page.\n\n".to_string();
    for (domain, operators) in grouped() {
        let versions: usize = operators.values().map(Vec::len).sum();
        let _ = writeln!(text, "## {domain}\n\n{} operators in {versions} versions.\n", operators.len());
        text.push_str(
            "| operator | versions | types of the newest version | computes |\n|---|---|---|---|\n",
        );
        for (name, rows) in operators {
            let since: Vec<String> = rows.iter().map(|row| row.since.to_string()).collect();
            let newest = rows[rows.len() - 1];
            let types: Vec<String> = type_lists(newest)
                .map(|(variable, types)| format!("{variable}: {}", types.join(" ")))
                .collect();
            let doc = newest.doc.replace('|', "\\|");
            let _ = writeln!(text, "| {name} | {} | {} | {doc} |", since.join(", "), types.join("; "));
        }
        text.push('\n');
    }
    text.push_str(
        "## ai.onnx of ONNX Runtime\n\nWhat ONNX Runtime takes under `ai.onnx` beyond the standard; onnxc warns of it, and refuses it \
         with `--strict`.\n\n| operator | versions of ai.onnx | types | computes |\n|---|---|---|---|\n",
    );
    for Tolerated { row, until } in unreleased::ROWS {
        let types: Vec<String> =
            type_lists(row).map(|(variable, types)| format!("{variable}: {}", types.join(" "))).collect();
        let until = if *until < u32::MAX - 1 { format!("to {until}") } else { "all".to_string() };
        let _ = writeln!(text, "| {} | {until} | {} | {} |", row.name, types.join("; "), row.doc);
    }
    text
}

impl AttrKind {
    /// Name in `AttributeProto.AttributeType`.
    pub fn name(self) -> &'static str {
        match self {
            AttrKind::Int => "INT",
            AttrKind::Float => "FLOAT",
            AttrKind::Str => "STRING",
            AttrKind::Tensor => "TENSOR",
            AttrKind::Graph => "GRAPH",
            AttrKind::SparseTensor => "SPARSE_TENSOR",
            AttrKind::Type => "TYPE_PROTO",
            AttrKind::Ints => "INTS",
            AttrKind::Floats => "FLOATS",
            AttrKind::Strs => "STRINGS",
            AttrKind::Tensors => "TENSORS",
            AttrKind::Graphs => "GRAPHS",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::op::lookup;

    #[test]
    fn every_row_is_complete() {
        let mut seen = HashSet::new();
        for row in rows() {
            let label = format!("{}.{}-{}", row.domain, row.name, row.since);
            assert!(seen.insert((row.domain, row.name, row.since)), "{label} occurs twice");
            assert!(row.since > 0 && !row.doc.is_empty() && !row.outputs.is_empty(), "{label} is incomplete");
            for params in [row.inputs, row.outputs] {
                for (at, param) in params.iter().enumerate() {
                    let variable = row.types.iter().find(|(variable, _)| *variable == param.ty);
                    let fixed = param.ty.starts_with("tensor(");
                    assert!(fixed || variable.is_some(), "{label}: {}", param.ty);
                    let last = at + 1 == params.len();
                    assert!(!param.arity.is_variadic() || last, "{label}: {} is not last", param.name);
                }
            }
            let variables: HashSet<_> = row.types.iter().map(|(variable, _)| variable).collect();
            assert_eq!(variables.len(), row.types.len(), "{label}: a type variable occurs twice");
            let names: HashSet<_> = row.attributes.iter().map(|attribute| attribute.name).collect();
            assert_eq!(names.len(), row.attributes.len(), "{label}: an attribute occurs twice");
        }
    }

    #[test]
    fn lookup_takes_the_newest_version_of_the_opset() {
        let since = |opset| lookup("", "Relu", opset).map(|row| row.since);
        assert_eq!(
            [since(0), since(1), since(5), since(13), since(99)],
            [None, Some(1), Some(1), Some(13), Some(14)]
        );
        assert!(lookup("ai.onnx", "Relu", 14).is_some());
        assert!(lookup("example", "Relu", 14).is_none());
    }

    #[test]
    fn documents_hold_every_row() {
        let (text, tree) = (markdown(), json());
        for row in rows() {
            let domain = if row.domain.is_empty() { "ai.onnx" } else { row.domain };
            let versions = tree[domain][row.name].as_array().expect("versions of an operator");
            let entry = versions.iter().find(|entry| entry["since"] == row.since).expect("the version");
            assert_eq!(entry["inputs"].as_array().map(Vec::len), Some(row.inputs.len()));
            let section = text.split("## ").find(|section| section.lines().next() == Some(domain));
            let mut lines = section.expect("a section of the domain").lines();
            let line = lines.find(|line| line.starts_with(&format!("| {} |", row.name)));
            let versions = line.and_then(|line| line.split('|').nth(2)).expect("a line with versions");
            assert!(versions.split(',').any(|since| since.trim() == row.since.to_string()), "{}", row.name);
        }
        let relu = text.lines().find(|line| line.starts_with("| Relu |")).unwrap();
        assert_eq!(relu, "| Relu | 1, 6, 13, 14 | T: f32 i8 i16 i32 i64 f16 f64 bf16 | max(x, 0) |");
    }
}
