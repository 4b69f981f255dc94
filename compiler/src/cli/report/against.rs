//! What differs from an earlier report.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;

use super::facts::Facts;
use super::page::{bytes_text, escape, ms_text};
use crate::cli::session::usage;
use onnxc_ir::error::Result;

/// An earlier report, as pages hold it and `onnxc bench --per-node --json` prints it.
#[derive(Deserialize)]
pub(super) struct Past {
    min_ms: f64,
    compile_ms: f64,
    object_bytes: u64,
    workspace_bytes: u64,
    threads: usize,
    #[serde(default)]
    nodes: Vec<Kernel>,
}

#[derive(Deserialize)]
struct Kernel {
    nodes: Vec<String>,
    operators: Vec<String>,
    result: Option<String>,
    kernel: String,
    ms: f64,
}

/// Where a page holds its figures.
pub(super) const OPEN: &str = "<script type=\"application/json\" id=\"report\">";
pub(super) const CLOSE: &str = "</script>";

impl Past {
    /// Reads a page of `onnxc report`, or what `onnxc bench --json` printed.
    pub(super) fn read(path: &Path) -> Result<Past> {
        let wrong = |why: String| {
            usage(format!(
                "--against {}: {why}; give a page of `onnxc report` or the output of `onnxc bench --per-node --json`",
                path.display()
            ))
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let json = match text.split_once(OPEN) {
            Some((_, rest)) => rest.split(CLOSE).next().unwrap_or_default(),
            None if text.trim_start().starts_with('{') => &text,
            None => return Err(wrong("it holds no report".into())),
        };
        serde_json::from_str(json).map_err(|error| wrong(format!("its report cannot be read: {error}")))
    }
}

/// A figure with its unit.
type ToText = fn(f64) -> String;

/// A kernel before and now; one of the two may be missing.
struct Change {
    name: String,
    before: Option<f64>,
    now: Option<f64>,
}

impl Change {
    fn difference(&self) -> f64 {
        self.now.unwrap_or(0.0) - self.before.unwrap_or(0.0)
    }
}

/// Kernels of the same nodes are the same.
fn changes(past: &Past, facts: &Facts) -> Vec<Change> {
    let mut before: HashMap<String, Vec<&Kernel>> = HashMap::new();
    for kernel in past.nodes.iter().rev() {
        before.entry(kernel.nodes.join("\n")).or_default().push(kernel);
    }
    let mut changes: Vec<Change> = Vec::new();
    for row in &facts.rows {
        let Some(share) = &row.timing else { continue };
        let same = before.get_mut(&row.nodes).and_then(Vec::pop);
        let name = format!("{} {}", row.name, row.result);
        changes.push(Change { name, before: same.map(|kernel| kernel.ms), now: Some(share.ms) });
    }
    let gone = before.into_values().flatten().map(|kernel| {
        let name =
            if kernel.operators.is_empty() { kernel.kernel.clone() } else { kernel.operators.join(" + ") };
        let name = format!("{name} {}", kernel.result.as_deref().unwrap_or_default());
        Change { name, before: Some(kernel.ms), now: None }
    });
    changes.extend(gone);
    changes.sort_by(|a, b| {
        b.difference().abs().total_cmp(&a.difference().abs()).then_with(|| a.name.cmp(&b.name))
    });
    changes
}

pub(super) fn section(past: &Past, facts: &Facts) -> String {
    let timing = &facts.timing;
    let mut text = String::from("<h2>Against the earlier report</h2>\n");
    if past.threads != timing.threads {
        let _ = writeln!(
            text,
            "<p class=\"worse\">The earlier one was measured on {} threads, this one on {}.</p>",
            past.threads, timing.threads
        );
    }
    text.push_str("<table>\n<tr><th></th><th class=\"n\">before</th><th class=\"n\">now</th><th class=\"n\">change</th></tr>\n");
    let figures: [(&str, f64, f64, ToText); 4] = [
        ("time of a run", past.min_ms, timing.min_ms, ms_text),
        ("compile time", past.compile_ms, timing.compile_ms, ms_text),
        ("object", past.object_bytes as f64, timing.object_bytes as f64, |bytes| bytes_text(bytes as u64)),
        ("workspace", past.workspace_bytes as f64, timing.workspace_bytes as f64, |bytes| {
            bytes_text(bytes as u64)
        }),
    ];
    for (name, before, now, text_of) in figures {
        line(&mut text, name, (Some(before), Some(now)), text_of);
    }
    text.push_str("</table>\n");
    if past.nodes.is_empty() {
        text.push_str("<p>The earlier report has no times of kernels.</p>\n");
        return text;
    }
    text.push_str(
        "<p>Kernels of the same nodes, the greatest change first. What is fused otherwise than before is once without a time \
         before and once without one now.</p>\n<div class=\"flow\"><table>\n<tr><th>kernel</th><th class=\"n\">before</th>\
         <th class=\"n\">now</th><th class=\"n\">change</th></tr>\n",
    );
    for change in changes(past, facts) {
        line(&mut text, &change.name, (change.before, change.now), ms_text);
    }
    text + "</table></div>\n"
}

fn line(text: &mut String, name: &str, (before, now): (Option<f64>, Option<f64>), text_of: ToText) {
    let cell = |value: Option<f64>| value.map(text_of).unwrap_or_default();
    let (class, change) = match (before, now) {
        (Some(before), Some(now)) if before > 0.0 => {
            let percent = (now / before - 1.0) * 100.0;
            let class = if percent <= -2.0 {
                " better"
            } else if percent >= 2.0 {
                " worse"
            } else {
                ""
            };
            (class, format!("{percent:+.0}%"))
        }
        (Some(_), None) => ("", "gone".to_string()),
        (None, Some(_)) => ("", "new".to_string()),
        _ => ("", String::new()),
    };
    let _ = writeln!(
        text,
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n{class}\">{change}</td></tr>",
        escape(name),
        cell(before),
        cell(now)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_in_pages_and_in_json() {
        let json = r#"{"compile_ms": 1, "min_ms": 2, "threads": 1, "object_bytes": 3, "workspace_bytes": 4, "runs": 9}"#;
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("old");
        for text in [json.to_string(), format!("<html>{OPEN}{json}{CLOSE}<b>{{</b>")] {
            std::fs::write(&place, text).unwrap();
            let past = Past::read(&place).unwrap();
            assert_eq!((past.min_ms, past.object_bytes, past.nodes.len()), (2.0, 3, 0));
        }
        for (text, wanted) in [
            ("<html></html>", "it holds no report"),
            ("{\"min_ms\": 1}", "missing field `compile_ms`"),
            ("{\"min_ms\": ", "its report cannot be read"),
        ] {
            std::fs::write(&place, text).unwrap();
            let error = Past::read(&place).err().unwrap().to_string();
            assert!(error.contains(wanted) && error.contains("onnxc report"), "{error}");
        }
        let error = Past::read(&folder.path().join("none")).err().unwrap().to_string();
        assert!(error.contains("--against") && error.contains("No such file"), "{error}");
    }
}
