//! Drawings of the page, as SVG.

use std::fmt::Write;

use super::facts::{Block, Facts, Row};
use super::page::{bytes_text, escape, ms_text};
use crate::cli::bench::Bound;

/// Pixels.
const ROW: usize = 26;
const ARCS: usize = 110;
const NAME: usize = 330;
const SHAPE: usize = 190;
const BAR: usize = 300;
const RATE: usize = 210;

/// The groups in their order, what each takes from others as arcs on the left, and its time against its bound on the right.
pub fn groups(facts: &Facts) -> String {
    let rows = &facts.rows;
    let (width, height) = (ARCS + NAME + SHAPE + BAR + RATE, ROW * rows.len() + 30);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n"
    );
    let longest = rows.iter().filter_map(|row| row.timing.as_ref()).map(|share| share.ms).fold(0.0, f64::max);
    let (shape, bar) = (ARCS + NAME, ARCS + NAME + SHAPE);
    for (x, text) in [(ARCS + 8, "group"), (shape, "result"), (bar, "time, and what the bound would take")] {
        let _ = writeln!(svg, "<text class=\"head\" x=\"{x}\" y=\"14\">{text}</text>");
    }
    for (at, row) in rows.iter().enumerate() {
        let y = 24 + at * ROW;
        arcs(&mut svg, row, at);
        let class = match row.timing.as_ref().and_then(|share| share.rate.as_ref()).map(|rate| rate.bound) {
            Some(Bound::Operations) => "operations",
            Some(Bound::Bytes) => "bytes",
            None => "other",
        };
        let (name, nodes, result) =
            (escape(&cut(&row.name, 44)), escape(&row.nodes), escape(&cut(&row.result, 26)));
        let _ = writeln!(
            svg,
            "<g><title>{nodes}</title><rect class=\"box {class}\" x=\"{ARCS}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text></g><text class=\"dim\" x=\"{shape}\" y=\"{}\">{result}</text>",
            NAME - 12,
            ROW - 5,
            ARCS + 8,
            y + 15,
            y + 15
        );
        if let Some(share) = &row.timing {
            time(&mut svg, share, (bar, y), longest);
        }
    }
    svg + "</svg>\n"
}

/// A group's time as a bar, a mark where its bound is, and its rate.
fn time(svg: &mut String, share: &crate::cli::bench::Share, (x, y): (usize, usize), longest: f64) {
    let length = |ms: f64| (ms / longest.max(1e-12) * (BAR - 20) as f64).clamp(1.0, (BAR - 20) as f64);
    let (text, mark) = match &share.rate {
        Some(rate) => (format!(", {} ({:.0}%)", rate.text(), rate.of_peak * 100.0), Some(rate)),
        None => (String::new(), None),
    };
    let class = match mark.map(|rate| rate.bound) {
        Some(Bound::Operations) => "operations",
        Some(Bound::Bytes) => "bytes",
        None => "other",
    };
    let _ = writeln!(
        svg,
        "<rect class=\"bar {class}\" x=\"{x}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
        y + 3,
        length(share.ms),
        ROW - 11
    );
    if let Some(rate) = mark {
        let at = x as f64 + length(rate.least_ms);
        let _ = writeln!(
            svg,
            "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y}\" y2=\"{}\"/>",
            y + ROW - 5
        );
    }
    let (ms, y) = (ms_text(share.ms), y + 15);
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{ms}{text}</text>", x + BAR - 8);
}

/// What a row takes from rows before it.
fn arcs(svg: &mut String, row: &Row, at: usize) {
    for &from in &row.reads {
        let (x, y1, y2) = (ARCS as f64, (24 + from * ROW + ROW - 9) as f64, (24 + at * ROW + 4) as f64);
        let distance = (at - from) as f64;
        let out = (6.0 + 14.0 * distance.log2()).clamp(6.0, (ARCS - 4) as f64);
        let _ = writeln!(
            svg,
            "<path class=\"arc\" d=\"M{x} {y1}C{0:.1} {y1} {0:.1} {y2} {x} {y2}\"/>",
            x - out * 4.0 / 3.0
        );
    }
}

/// Pixels of the memory plan.
const PLAN: (usize, usize) = (1040, 320);
const MARGIN: usize = 90;

/// The arena over the steps of a run: what each block holds, from when to when.
pub fn memory(facts: &Facts) -> Option<String> {
    let arena = facts.arena.filter(|&arena| arena > 0 && !facts.blocks.is_empty())?;
    let steps = facts.blocks.iter().map(|block| block.to + 1).max().unwrap_or(1);
    // The last label is centred on the right edge of the plan.
    let (width, height) = (PLAN.0 + MARGIN + 40, PLAN.1 + 40);
    let x = |step: usize| MARGIN as f64 + step as f64 / steps as f64 * PLAN.0 as f64;
    let y = |byte: i64| 10.0 + (1.0 - byte as f64 / arena as f64) * PLAN.1 as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n"
    );
    for part in 0..=4 {
        let byte = arena * part / 4;
        let (y, text) = (y(byte), bytes_text(byte as u64));
        let right = MARGIN + PLAN.0;
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{MARGIN}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"axis\" x=\"{}\" y=\"{:.1}\">{text}</text>",
            MARGIN - 8,
            y + 4.0
        );
    }
    for (at, block) in facts.blocks.iter().enumerate() {
        let Block { name, offset, bytes, from, to } = block;
        let (left, top) = (x(*from), y(offset + bytes));
        let (wide, tall) = (x(to + 1) - left, y(*offset) - top);
        let text = format!("{name}: {} from step {from} to {to}", bytes_text(*bytes as u64));
        let _ = writeln!(
            svg,
            "<rect class=\"block b{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\"><title>{}</title></rect>",
            at % 6,
            escape(&text)
        );
    }
    let bottom = PLAN.1 + 28;
    for part in 0..=4 {
        let step = steps * part / 4;
        let _ = writeln!(svg, "<text class=\"step\" x=\"{:.1}\" y=\"{bottom}\">step {step}</text>", x(step));
    }
    Some(svg + "</svg>\n")
}

/// A text of at most `most` characters.
fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_string(),
    }
}
