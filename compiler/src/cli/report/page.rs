//! The page as HTML.

use std::fmt::Write;

use super::against::{self, Past};
use super::facts::Facts;
use super::{hot, picture};

const STYLE: &str = include_str!("style.css");

const SORT: &str = include_str!("sort.js");

/// The page; `past` is an earlier report that it is held against.
pub(super) fn page(facts: &Facts, past: Option<&Past>) -> String {
    let model = escape(&facts.model);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{model}: onnxc report</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{model}</h1>\n"
    );
    let timing = &facts.timing;
    let sizes: Vec<String> = timing.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let sizes =
        if sizes.is_empty() { String::new() } else { format!(", sizes {}", escape(&sizes.join(" "))) };
    let threads = if timing.threads == 1 { "1 thread".into() } else { format!("{} threads", timing.threads) };
    let _ = writeln!(
        page,
        "<p class=\"sub\">compiled by onnxc {} for {}, {}; measured on {threads}{sizes}</p>",
        env!("CARGO_PKG_VERSION"),
        escape(&facts.cpu),
        facts.options,
    );
    tiles(&mut page, facts);
    if let Some(past) = past {
        page += &against::section(past, facts);
    }
    kernels(&mut page, facts);
    memory(&mut page, facts);
    sizes_of(&mut page, facts);
    // `<` could end the element.
    let json = facts.json.replace('<', "\\u003c");
    let _ = writeln!(page, "{}{json}{}", against::OPEN, against::CLOSE);
    page + "<script>\n" + SORT + "</script>\n</body>\n</html>\n"
}

fn tiles(page: &mut String, facts: &Facts) {
    let timing = &facts.timing;
    let rate = facts.gflop / (timing.min_ms / 1e3);
    let mut tiles = vec![(
        "time of a run",
        ms_text(timing.min_ms),
        format!("median {} of {}", ms_text(timing.median_ms), timing.runs),
    )];
    if facts.gflop > 0.0 {
        let share = rate / facts.peak.gflops * 100.0;
        tiles.push(("operations", format!("{rate:.1} GFLOP/s"), format!("{share:.0}% of the peak")));
    }
    tiles.push((
        "object",
        bytes_text(timing.object_bytes),
        format!("{} of it weights", bytes_text(facts.weight_bytes)),
    ));
    tiles.push(("workspace", bytes_text(timing.workspace_bytes as u64), "of one run".to_string()));
    tiles.push(("kernels", facts.rows.len().to_string(), "groups of fused operators".to_string()));
    tiles.push((
        "first run",
        ms_text(timing.first_ms),
        format!("compiled in {}", ms_text(timing.compile_ms)),
    ));
    page.push_str("<div class=\"tiles\">\n");
    for (name, value, more) in tiles {
        let _ = writeln!(
            page,
            "<div class=\"tile\"><b>{value}</b><span>{name}</span><small>{more}</small></div>"
        );
    }
    page.push_str("</div>\n");
}

fn kernels(page: &mut String, facts: &Facts) {
    let peak = &facts.peak;
    page.push_str("<h2>Hot kernels</h2>\n");
    match hot::table(facts) {
        Some(table) => {
            let _ = writeln!(
                page,
                "<p>The slowest first; a press on a heading sorts. The bar is the time of a kernel, the mark <i class=\"key mark\"></i> \
                 in it its bound: <i class=\"key\"></i> operations at {:.1} GFLOP/s, <i class=\"key bytes\"></i> bytes at {:.1} GB/s, \
                 or {:.1} GB/s in caches, as measured in this run ({}).</p>\n<div class=\"flow\">\n{table}</div>",
                peak.gflops,
                peak.gbytes,
                peak.cached_gbytes,
                escape(&peak.how),
            );
        }
        None => page.push_str("<p>No kernel was measured.</p>\n"),
    }
    let _ = writeln!(
        page,
        "<h2>Kernels in their order</h2>\n<p>Arcs on the left lead from the kernels whose results a kernel takes.</p>\n\
         <div class=\"flow\">\n{}</div>",
        picture::flow(facts)
    );
}

fn memory(page: &mut String, facts: &Facts) {
    page.push_str("<h2>Memory plan</h2>\n");
    let Some(plan) = picture::memory(facts) else {
        page.push_str("<p>No tensor needs memory between kernels, or its size is known in a run only.</p>\n");
        return;
    };
    let (arena, bound) = (facts.arena.unwrap_or(0) as u64, facts.bound.unwrap_or(0) as u64);
    let _ = writeln!(
        page,
        "<p>Where each tensor lies in the arena of {}, over the steps of a run. The line is what is live, at most {}.</p>\n{plan}",
        bytes_text(arena),
        bytes_text(bound)
    );
}

fn sizes_of(page: &mut String, facts: &Facts) {
    let object = facts.timing.object_bytes.max(1);
    let host = facts.code_bytes.saturating_sub(facts.kernel_bytes);
    let rest = object.saturating_sub(facts.code_bytes + facts.weight_bytes);
    page.push_str(
        "<h2>Sizes</h2>\n<table>\n<tr><th>part of the object</th><th class=\"n\">size</th><th></th></tr>\n",
    );
    for (name, bytes) in [
        ("weights", facts.weight_bytes),
        ("code of kernels", facts.kernel_bytes),
        ("code around them: checks, sizes, calls", host),
        ("description, messages, symbols", rest),
    ] {
        row(page, name, bytes, object);
    }
    page.push_str(
        "</table>\n<table>\n<tr><th>largest weights, by kernel</th><th class=\"n\">size</th><th></th></tr>\n",
    );
    let mut largest: Vec<_> = facts.rows.iter().filter(|row| row.weights > 0).collect();
    largest.sort_by_key(|row| (std::cmp::Reverse(row.weights), row.at));
    for one in largest.iter().take(8) {
        let name = format!("step {}: {} {}", one.at, one.name, one.result);
        row(page, &escape(&name), one.weights as u64, object);
    }
    page.push_str("</table>\n<h2>Processors</h2>\n<p>Versions of the kernels in an object that is compiled with these flags; the \
                   first run chooses.</p>\n<table>\n<tr><th>level</th><th class=\"n\">kernels</th><th class=\"n\">code</th><th></th></tr>\n");
    let most = facts.levels.iter().map(|level| level.bytes).max().unwrap_or(1).max(1);
    for level in &facts.levels {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"bar\">{}</td></tr>",
            escape(&level.cpu),
            level.kernels,
            bytes_text(level.bytes),
            share_bar(level.bytes, most)
        );
    }
    page.push_str("</table>\n");
}

fn row(page: &mut String, name: &str, bytes: u64, all: u64) {
    let _ = writeln!(
        page,
        "<tr><td>{name}</td><td class=\"n\">{}</td><td class=\"bar\">{}</td></tr>",
        bytes_text(bytes),
        share_bar(bytes, all)
    );
}

fn share_bar(part: u64, all: u64) -> String {
    let percent = part as f64 / all as f64 * 100.0;
    format!("<span class=\"share\" style=\"width:{percent:.1}%\"></span>")
}

/// Text in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '"' => escaped += "&quot;",
            // What no XML may have.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Bytes in a unit of three digits or so.
pub(super) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

pub(super) fn ms_text(ms: f64) -> String {
    match ms {
        ms if ms < 0.1 => format!("{:.2} µs", ms * 1e3),
        ms if ms < 1000.0 => format!("{ms:.3} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_nothing_else() {
        assert_eq!(escape("<b>\"&\"</b>\u{1}"), "&lt;b&gt;&quot;&amp;&quot;&lt;/b&gt;\u{fffd}");
        assert_eq!((bytes_text(9_999), bytes_text(10_000)), ("9999 B".into(), "10.0 kB".into()));
        assert_eq!(
            (ms_text(0.05), ms_text(2.5), ms_text(1500.0)),
            ("50.00 µs".into(), "2.500 ms".into(), "1.50 s".into())
        );
    }
}
