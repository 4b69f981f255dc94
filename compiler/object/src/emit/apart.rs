//! Weights that lie apart from the object: the digest of what their layout depends on, and the file that has them.
//!
//! Code sees nothing of the values of these weights (`onnxc_ir::graph::apart`), and so it, and where each weight lies, follow from the text
//! of the graph without them and from the settings of the compilation. The digest of both is in the object and in the file: a
//! file of another training fits if its model gives the same text.

use std::fmt::Write as _;
use std::io::{Seek, Write};
use std::sync::Arc;

use onnxc_runtime_support::sha256::Sha256;
use onnxc_runtime_support::weights::{HEADER_BYTES, Writer};
use target_lexicon::Endianness;

use crate::emit::weights::{self, ConstantsPart, io_error};
use crate::host::lower::layout::{Plan, WeightSource};
use onnxc_ir::error::Result;
use onnxc_ir::graph::print::structure;
use onnxc_ir::graph::{Constant, Def, Graph, ValueId};

/// What the layout of weights depends on.
pub(super) struct Layout {
    /// The lines of the text, and what messages call them.
    lines: Vec<(String, String)>,
    pub digest: [u8; 32],
}

impl Layout {
    /// Of the programs of an object, and the settings that they were compiled with.
    pub(super) fn new(settings: &str, programs: &[(&Graph, &Plan)]) -> Result<Layout> {
        let mut lines: Vec<(String, String)> =
            settings.lines().map(|line| (line.to_string(), "the options".to_string())).collect();
        for (graph, plan) in programs {
            lines.extend(structure(graph));
            for weight in plan.apart.iter().flat_map(|apart| &apart.weights) {
                let WeightSource::Value(value) = weight.source else { continue };
                let own = weights::body(graph, &weight.path)?;
                let text = format!("weights at {}: {} bytes, {}", weight.offset, weight.bytes, own.ty(value));
                lines.push((text, format!("`{}`", names(own, value).join("`, `"))));
            }
        }
        let mut sha = Sha256::default();
        lines.iter().for_each(|(text, _)| {
            sha.update(text.as_bytes());
            sha.update(b"\n");
        });
        Ok(Layout { lines, digest: sha.finish() })
    }

    /// The note, then the lines, each with a tab and what messages call it.
    fn listing(&self, note: &str) -> String {
        let mut text = format!("{note}\n");
        for (line, label) in &self.lines {
            let _ = writeln!(text, "{line}\t{label}");
        }
        text
    }
}

/// The name of a constant, or those of the weights that it is computed from.
fn names(graph: &Graph, value: ValueId) -> Vec<String> {
    let (mut open, mut seen, mut names) = (vec![value], vec![value], vec![]);
    while let Some(value) = open.pop() {
        let own = &graph.values[value];
        if !own.name.is_empty() {
            names.push(own.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect());
            continue;
        }
        if let Def::Const(Constant::Deferred { inputs, .. }) = &own.def {
            for &input in inputs.iter().filter(|&&input| graph.is_apart(input)) {
                if !seen.contains(&input) {
                    seen.push(input);
                    open.push(input);
                }
            }
        }
    }
    names
}

/// The first line behind the notes by which two listings differ, as a message has it: what the one and the other have, by name. `None`
/// where they are equal.
pub fn difference(own: &str, other: &str) -> Option<String> {
    let own: Vec<&str> = own.lines().skip(1).collect();
    let other: Vec<&str> = other.lines().skip(1).collect();
    let text = |lines: &[&str], at: usize| lines.get(at).map(|line| parts(line).0.to_string());
    let at = (0..own.len().max(other.len())).find(|&at| text(&own, at) != text(&other, at))?;
    let rest = |lines: &[&str]| shown(&lines[at.min(lines.len())..]);
    Some(format!("this one has {}, the other {}", rest(&own), rest(&other)))
}

/// A line of a listing and its label.
fn parts(line: &str) -> (&str, &str) {
    line.split_once('\t').unwrap_or((line, ""))
}

/// The first line with its label. One without is what the next line with one reads.
fn shown(lines: &[&str]) -> String {
    const MOST: usize = 200;
    let Some(first) = lines.first() else { return "nothing".to_string() };
    let line = parts(first).0.trim();
    let label = lines.iter().map(|line| parts(line).1).find(|label| !label.is_empty());
    let label = label.map_or(String::new(), |label| format!("{label}: "));
    let cut: String = line.chars().take(MOST).collect();
    let rest = if cut.len() < line.len() { "..." } else { "" };
    format!("{label}{cut}{rest}")
}

/// A file of weights before it is written.
pub struct WeightsFile {
    /// Name of the model, and the digest of its layout.
    pub name: String,
    pub layout: [u8; 32],
    /// What the layout depends on: see [`difference`].
    pub listing: String,
    /// Bytes that runs need.
    pub bytes: u64,
    order: Endianness,
    parts: Vec<ConstantsPart>,
}

impl WeightsFile {
    pub(super) fn new(
        (name, note): (&str, &str),
        layout: &Layout,
        programs: Vec<(Arc<Graph>, Plan)>,
        order: Endianness,
    ) -> WeightsFile {
        let apart = |(graph, plan): (Arc<Graph>, Plan)| Some((graph, plan.apart?));
        let mut bytes = 0;
        let parts = programs.into_iter().filter_map(apart).map(|(graph, apart)| {
            bytes = apart.bytes;
            ConstantsPart { graph, weights: apart.weights }
        });
        let parts = parts.collect();
        WeightsFile {
            name: name.to_string(),
            layout: layout.digest,
            listing: layout.listing(note),
            bytes,
            order,
            parts,
        }
    }

    /// Writes the file. Constants are evaluated one at a time.
    pub fn write<W: Write + Seek>(&self, out: W) -> Result<()> {
        let out = std::io::BufWriter::with_capacity(1 << 16, out);
        let mut writer = Writer::new(out, self.order == Endianness::Little).map_err(io_error)?;
        let mut at = HEADER_BYTES as u64;
        weights::each_in_order(&self.parts, self.order, &mut |offset, data| {
            writer.constants(&vec![0; (offset - at) as usize]).map_err(io_error)?;
            at = offset + data.len() as u64;
            writer.constants(data).map_err(io_error)
        })?;
        writer.finish(&self.name, &self.layout, &self.listing).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_both_have() {
        let one = "a note\nsettings\tthe options\nv0 = apart f32[2]\t`w`\n";
        assert_eq!(difference(one, one), None);
        // Names alone make no difference.
        assert_eq!(difference(one, &one.replace("`w`", "`u`")), None);
        assert_eq!(difference(one, &one.replace("a note", "another")), None);
        let other = one.replace("f32[2]", "f32[3]").replace("`w`", "`u`");
        let wanted = "this one has `w`: v0 = apart f32[2], the other `u`: v0 = apart f32[3]";
        assert_eq!(difference(one, &other).unwrap(), wanted);
        let longer = format!("{one}v1 = neg v0\t\n");
        assert_eq!(difference(one, &longer).unwrap(), "this one has nothing, the other v1 = neg v0");
    }
}
