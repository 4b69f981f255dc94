//! Names as messages have them.

use onnxc_proto::NodeProto;

/// The node's name, or its operator and position where it has none.
pub(super) fn own_name(node: &NodeProto, index: usize) -> String {
    match node.name() {
        "" => format!("{}_{index}", node.op_type()),
        name => name.to_string(),
    }
}

/// How many names are left without the empty ones at the end.
pub(super) fn named(names: &[String]) -> usize {
    names.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)
}

/// Inputs that a message names, and characters of the type of each.
const MAX_NAMED: usize = 16;
const MAX_TEXT: usize = 200;

/// The first few of `count` texts, and each not too long: what is in a message was written by the model.
pub(super) fn shortened(count: usize, texts: impl Iterator<Item = String>) -> Vec<String> {
    first_few(MAX_NAMED, count, texts)
}

/// [`shortened`] to this number of texts.
pub(super) fn first_few(most: usize, count: usize, texts: impl Iterator<Item = String>) -> Vec<String> {
    let short = |text: String| match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    };
    let mut inputs: Vec<String> = texts.take(most).map(short).collect();
    if count > most {
        inputs.push(format!("and {} more", count - most));
    }
    inputs
}
