//! Names of a wrapper that Rust can read and that do not collide.

use std::collections::HashSet;

use onnxc_object::emit::{identifier, printable};

pub(super) const KEYWORDS: &[&str] = &[
    "as", "async", "await", "abstract", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual",
    "where", "while", "yield",
];

/// Names that the wrapper's functions use for themselves.
const OWN: &[&str] = &[
    "add",
    "array",
    "broadcast",
    "bytes",
    "check",
    "count",
    "data",
    "elements",
    "execute",
    "floor_div",
    "inputs",
    "late",
    "lines",
    "max",
    "min",
    "model_run",
    "model_workspace",
    "modulo",
    "mul",
    "outputs",
    "seed",
    "shapes",
    "size",
    "symbol",
    "symbols",
    "workspace",
    "workspace_bytes",
];

/// `mobile_net` is `MobileNet`.
pub(super) fn struct_name(name: &str) -> String {
    let mut text = String::new();
    for word in name.split('_') {
        let mut letters = word.chars();
        if let Some(first) = letters.next() {
            text.push(first.to_ascii_uppercase());
            text.push_str(letters.as_str());
        }
    }
    let own = [
        "Error", "Outputs", "Shapes", "Tensor", "Text", "Late", "Elements", "Options", "Line", "Self",
        "State", "Result", "Option", "Vec", "Services", "Pool", "Weights", "Memory",
    ];
    let more = ["Some", "None", "Ok", "Err", "Box", "String", "Default"];
    if own.contains(&text.as_str()) || more.contains(&text.as_str()) {
        text.push_str("Model");
    }
    text
}

/// Text of the model as it may stand in a line comment.
pub(super) fn line(text: &str) -> String {
    printable(text)
}

pub(super) fn distinct(name: &str, taken: &mut HashSet<String>) -> String {
    let base = identifier(name).to_ascii_lowercase();
    let mut ident = base.clone();
    let mut number = 1;
    while KEYWORDS.contains(&ident.as_str()) || OWN.contains(&ident.as_str()) || !taken.insert(ident.clone())
    {
        number += 1;
        ident = format!("{base}_{number}");
    }
    ident
}
