//! Drawings of the page.

use std::fmt::Write;

use super::facts::{ArenaBlock, Facts};
use super::hot;
use super::page::{bytes_text, escape, ms_text};

/// The kernels in the order of a run: what each takes from others as arcs on the left, its time against its bound on the right.
pub(super) fn flow(facts: &Facts) -> String {
    let rows = &facts.rows;
    let longest = rows.iter().filter_map(|row| row.timing.as_ref()).map(|share| share.ms).fold(0.0, f64::max);
    // A unit of height for each row, so that the drawing fits rows of any height.
    let mut flow = format!(
        "<div class=\"in\"><svg viewBox=\"0 0 100 {}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n",
        rows.len().max(1)
    );
    for (at, row) in rows.iter().enumerate() {
        row.reads.iter().for_each(|&from| arc(&mut flow, from, at));
    }
    flow.push_str("</svg>\n");
    for row in rows {
        let (name, nodes, result) = (escape(&row.name), escape(&row.nodes), escape(&row.result));
        let class = hot::class(row.timing.as_ref());
        let (bar, ms) = match &row.timing {
            Some(share) => {
                let rate = share.rate.as_ref();
                let rate = rate.map(|rate| format!("<small>{:.0}% of bound</small>", rate.of_peak * 100.0));
                (hot::bar(share, longest), ms_text(share.ms) + &rate.unwrap_or_default())
            }
            None => ("<span></span>".into(), String::new()),
        };
        let _ = writeln!(
            flow,
            "<div class=\"step {class}\" title=\"{nodes}\"><b>{name}</b><code>{result}</code>{bar}<span class=\"ms\">{ms}</span></div>"
        );
    }
    flow + "</div>\n"
}

/// From the middle of a row to that of a later one; the further, the wider it leads out.
fn arc(svg: &mut String, from: usize, to: usize) {
    let out = (8.0 + 14.0 * ((to - from) as f64).log2()).clamp(8.0, 98.0);
    let (y1, y2) = (from as f64 + 0.6, to as f64 + 0.4);
    let _ = writeln!(
        svg,
        "<path class=\"arc\" d=\"M100 {y1}C{0:.1} {y1} {0:.1} {y2} 100 {y2}\"/>",
        100.0 - out * 4.0 / 3.0
    );
}

/// Bytes that are live in each step.
fn live(blocks: &[ArenaBlock], steps: usize) -> Vec<i64> {
    let mut live = vec![0; steps];
    for block in blocks {
        live[block.from..=block.to].iter_mut().for_each(|bytes| *bytes += block.bytes);
    }
    live
}

/// The arena over the steps of a run: what each block holds from when to when, and how much is live.
pub(super) fn memory(facts: &Facts) -> Option<String> {
    let arena = facts.arena.filter(|&arena| arena > 0 && !facts.blocks.is_empty())?;
    let steps = facts.blocks.iter().map(|block| block.to + 1).max().unwrap_or(1);
    let mut plan = String::from("<div class=\"plan\"><div class=\"down\">");
    for part in (0..=4).rev() {
        let _ = write!(plan, "<span>{}</span>", bytes_text((arena * part / 4) as u64));
    }
    let _ = writeln!(
        plan,
        "</div>\n<svg viewBox=\"0 0 {steps} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory over time\">"
    );
    const HEIGHT: f64 = 1000.0;
    let y = |byte: i64| (1.0 - byte as f64 / arena as f64) * HEIGHT;
    for part in 0..=4 {
        let y = y(arena * part / 4);
        let _ = writeln!(plan, "<line class=\"grid\" x1=\"0\" x2=\"{steps}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
    }
    for (at, block) in facts.blocks.iter().enumerate() {
        let ArenaBlock { name, offset, bytes, from, to } = block;
        let top = y(offset + bytes);
        let text = format!("{name}: {} from step {from} to {to}", bytes_text(*bytes as u64));
        let _ = writeln!(
            plan,
            "<rect class=\"block b{}\" x=\"{from}\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\"><title>{}</title></rect>",
            at % 6,
            to + 1 - from,
            y(*offset) - top,
            escape(&text)
        );
    }
    let mut line = String::new();
    for (step, bytes) in live(&facts.blocks, steps).into_iter().enumerate() {
        let _ = write!(line, "{step},{0:.1} {1},{0:.1} ", y(bytes), step + 1);
    }
    let _ = writeln!(
        plan,
        "<polyline class=\"live\" points=\"{}\"/>\n</svg>\n<div class=\"along\">",
        line.trim_end()
    );
    // Numbers at equal distances, each where it is.
    let parts = [4, 5, 3, 2].into_iter().find(|&parts| steps.is_multiple_of(parts)).unwrap_or(1);
    for part in 0..=parts {
        let _ = write!(plan, "<span>{}{}</span>", if part == 0 { "step " } else { "" }, steps * part / parts);
    }
    Some(plan + "</div></div>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_bytes_are_those_of_all_blocks_of_a_step() {
        let block = |bytes, from, to| ArenaBlock { name: String::new(), offset: 0, bytes, from, to };
        assert_eq!(live(&[block(8, 0, 1), block(4, 1, 3)], 4), [8, 12, 4, 4]);
    }
}
