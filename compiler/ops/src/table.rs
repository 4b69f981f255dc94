//! The operator table, and its form as a document: what `onnxc ops` prints, and the support table of the manual.

#[cfg(feature = "serde")]
mod json;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::unreleased::{self, Tolerated};
use super::{AttrKind, FAMILIES, OpDef};

/// The operators that a model may use: whoever knows all families makes it.
pub struct Table {
    rows: Vec<&'static OpDef>,
    /// By domain and name, ascending by `since`.
    index: HashMap<(&'static str, &'static str), Vec<&'static OpDef>>,
    tolerated: &'static [Tolerated],
    left_out: Vec<(&'static str, &'static str)>,
}

impl Table {
    /// The table of the domains `ai.onnx` and `ai.onnx.preview.training`.
    pub fn standard() -> Table {
        Table::new(FAMILIES.iter().copied())
    }

    /// The table of these families, with what ONNX Runtime takes of `ai.onnx` beyond the standard.
    pub fn new(families: impl IntoIterator<Item = &'static [OpDef]>) -> Table {
        Table::with(families, unreleased::ROWS)
    }

    /// The table of these families, with other rows beyond them.
    pub fn with(
        families: impl IntoIterator<Item = &'static [OpDef]>,
        tolerated: &'static [Tolerated],
    ) -> Table {
        let rows: Vec<&'static OpDef> = families.into_iter().flatten().collect();
        let mut index: HashMap<_, Vec<&'static OpDef>> = HashMap::new();
        for row in &rows {
            index.entry((row.domain, row.name)).or_default().push(row);
        }
        index.values_mut().for_each(|versions| versions.sort_by_key(|row| row.since));
        Table { rows, index, tolerated, left_out: vec![] }
    }

    /// The same, whose messages name the feature of the build that adds these domains.
    pub fn without(mut self, domains: &[&'static str], feature: &'static str) -> Table {
        self.left_out.extend(domains.iter().map(|&domain| (domain, feature)));
        self
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &'static OpDef> {
        self.rows.iter().copied()
    }

    /// The definition of an operator at an opset version: the greatest `since <= opset`.
    pub fn lookup(&self, domain: &str, name: &str, opset: u32) -> Option<&'static OpDef> {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        self.index.get(&(domain, name))?.iter().rev().find(|row| row.since <= opset).copied()
    }

    /// The definition that ONNX Runtime has of an operator of `ai.onnx` at an opset version beyond the standard's; each use gives a
    /// warning.
    pub fn tolerated(&self, domain: &str, name: &str, opset: u32) -> Option<&'static OpDef> {
        let matches = |tolerated: &&Tolerated| {
            let row = &tolerated.row;
            row.name == name && row.domain == domain && (row.since..=tolerated.until).contains(&opset)
        };
        self.tolerated.iter().find(matches).map(|tolerated| &tolerated.row)
    }

    /// The one or the other.
    pub fn find(&self, domain: &str, name: &str, opset: u32) -> Option<&'static OpDef> {
        self.lookup(domain, name, opset).or_else(|| self.tolerated(domain, name, opset))
    }

    /// The feature of the build that adds the operators of a domain, where it is left out.
    pub fn feature_of(&self, domain: &str) -> Option<&'static str> {
        self.left_out.iter().find(|(left_out, _)| *left_out == domain).map(|&(_, feature)| feature)
    }
}

/// Rows by domain, then operator, each ascending by version.
fn grouped(table: &Table) -> BTreeMap<&'static str, BTreeMap<&'static str, Vec<&'static OpDef>>> {
    let mut domains: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
    for row in table.rows() {
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

impl Table {
    /// A Markdown document: per domain a table of operators with their versions, the types of the newest one,
    /// and what it computes.
    pub fn markdown(&self) -> String {
        let mut text =
            "# Operators\n\nWhat onnxc compiles: `onnxc ops --markdown` prints this page.\n\n".to_string();
        for (domain, operators) in grouped(self) {
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
        for Tolerated { row, until } in self.tolerated {
            let types: Vec<String> =
                type_lists(row).map(|(variable, types)| format!("{variable}: {}", types.join(" "))).collect();
            let until = if *until < u32::MAX - 1 { format!("to {until}") } else { "all".to_string() };
            let _ = writeln!(text, "| {} | {until} | {} | {} |", row.name, types.join("; "), row.doc);
        }
        text
    }
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
    use super::*;

    #[test]
    fn families_are_of_the_domains_of_the_standard() {
        let own = ["", "ai.onnx.preview", "ai.onnx.preview.training"];
        let other = |row: &&OpDef| !own.contains(&row.domain);
        let others: Vec<&str> = Table::standard().rows().filter(other).map(|row| row.name).collect();
        assert_eq!(others, [""; 0]);
    }

    #[test]
    fn lookup_takes_the_newest_version_of_the_opset() {
        let table = Table::standard();
        let since = |opset| table.lookup("", "Relu", opset).map(|row| row.since);
        assert_eq!(
            [since(0), since(1), since(5), since(13), since(99)],
            [None, Some(1), Some(1), Some(13), Some(14)]
        );
        assert!(table.lookup("ai.onnx", "Relu", 14).is_some());
        assert!(table.lookup("example", "Relu", 14).is_none());
    }
}
