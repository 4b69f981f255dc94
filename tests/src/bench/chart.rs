//! The ratios as an SVG bar chart: a log scale, bars from the line at 1, one bar per number of threads.

use super::engine::Engine;
use super::running::{Report, Row};
use super::table::{means, ratio, thread_counts};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 92.0;
const BAR: f64 = 13.0;
const GAP: f64 = 11.0;

/// Fills of the bars by number of threads, for light and for dark surroundings.
const COLOURS: [(&str, &str); 4] =
    [("#2563eb", "#60a5fa"), ("#ea580c", "#fb923c"), ("#0d9488", "#2dd4bf"), ("#9333ea", "#c084fc")];

/// A text as content of an XML element or attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&apos;",
            letter if letter < ' ' => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The bars of one model, in the order of the numbers of threads.
struct Group {
    label: String,
    strong: bool,
    ratios: Vec<Option<f64>>,
}

fn groups(report: &Report, threads: &[usize]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut labels: Vec<String> = Vec::new();
    for row in &report.rows {
        let label = row.label();
        if labels.contains(&label) {
            continue;
        }
        let of = |&threads: &usize| {
            let row = report.rows.iter().find(|row| row.threads == threads && row.label() == label);
            row.and_then(Row::ratio)
        };
        groups.push(Group { label: label.clone(), strong: false, ratios: threads.iter().map(of).collect() });
        labels.push(label);
    }
    let ratios = means(report).into_iter().map(|(_, mean)| mean).collect();
    groups.push(Group { label: "geometric mean".to_string(), strong: true, ratios });
    groups
}

/// The scale: powers of 2 from the first to the last tick, all ratios within.
struct Scale {
    first: i32,
    last: i32,
}

impl Scale {
    fn of(groups: &[Group]) -> Scale {
        let logarithms: Vec<f64> =
            groups.iter().flat_map(|group| &group.ratios).flatten().map(|ratio| ratio.log2()).collect();
        let low = logarithms.iter().copied().fold(-1.0, f64::min);
        let high = logarithms.iter().copied().fold(1.0, f64::max);
        // The number at a bar's end needs room as well.
        Scale { first: (low - 0.2).floor() as i32, last: (high + 0.2).ceil() as i32 }
    }

    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio.log2() - f64::from(self.first)) / f64::from(self.last - self.first);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }
}

/// The chart, a complete SVG document.
pub fn svg(report: &Report) -> String {
    let threads = thread_counts(report);
    let groups = groups(report, &threads);
    let scale = Scale::of(&groups);
    let pitch = BAR * threads.len() as f64 + GAP;
    let bottom = TOP + pitch * groups.len() as f64 + 4.0;
    let height = bottom + 44.0;
    let mut body = legend(report, &threads);
    for power in scale.first..=scale.last {
        let x = scale.x(2f64.powi(power));
        let class = if power == 0 { "one" } else { "grid" };
        let label = if power < 0 { format!("1/{}", 1u64 << -power) } else { (1u64 << power).to_string() };
        body += &format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\n",
            TOP - 6.0
        );
        body += &text("tick", "middle", x, bottom + 16.0, &format!("{label}×"));
    }
    let one = scale.x(1.0);
    body += &text("tick", "end", one - 14.0, bottom + 34.0, "← peer is faster");
    body += &text("tick", "start", one + 14.0, bottom + 34.0, "onnxc is faster →");
    for (at, group) in groups.iter().enumerate() {
        body += &bars(group, &scale, TOP + pitch * at as f64);
    }
    let (light, dark) = colours(threads.len());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"Speed of onnxc against its peers\">\n<style>\n\
         text {{ font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328; }}\n\
         .title {{ font-size: 16px; font-weight: 600; }} .strong {{ font-weight: 600; }}\n\
         .tick, .note {{ fill: #59636e; font-size: 11px; }} .value {{ font-size: 11px; }}\n\
         .page {{ fill: #ffffff; }} .grid {{ stroke: #d1d9e0; }} .one {{ stroke: #1f2328; stroke-width: 1.5; }}\n{light}\
         @media (prefers-color-scheme: dark) {{\n\
         text {{ fill: #f0f6fc; }} .tick, .note {{ fill: #9198a1; }} .page {{ fill: #0d1117; }}\n\
         .grid {{ stroke: #30363d; }} .one {{ stroke: #f0f6fc; }}\n{dark}}}\n</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

/// Style rules of the bars, for light and for dark surroundings.
fn colours(count: usize) -> (String, String) {
    let rule = |at: usize, colour: &str| format!(".bar{at} {{ fill: {colour}; }}\n");
    let pair = |at: usize| COLOURS[at % COLOURS.len()];
    ((0..count).map(|at| rule(at, pair(at).0)).collect(), (0..count).map(|at| rule(at, pair(at).1)).collect())
}

fn legend(report: &Report, threads: &[usize]) -> String {
    let peers: Vec<&str> = Engine::PEERS
        .iter()
        .filter(|peer| report.versions.iter().any(|(name, _)| name == peer.title()))
        .map(|peer| peer.title())
        .collect();
    let against = match peers.as_slice() {
        [] => "no peer".to_string(),
        [peer] => peer.to_string(),
        peers => format!("the better of {}", peers.join(" and ")),
    };
    let mut body = text("title", "start", 16.0, 28.0, &format!("onnxc against {against}"));
    let note = format!("peer's time / onnxc's time, log scale; {}", report.machine.cpu);
    body += &text("note", "start", 16.0, 47.0, &note);
    let mut x = 16.0;
    for (at, count) in threads.iter().enumerate() {
        body +=
            &format!("<rect class=\"bar{at}\" x=\"{x}\" y=\"58\" width=\"12\" height=\"12\" rx=\"2\"/>\n");
        let name = if *count == 1 { "1 thread".to_string() } else { format!("{count} threads") };
        body += &text("note", "start", x + 17.0, 68.0, &name);
        x += 95.0;
    }
    body
}

fn bars(group: &Group, scale: &Scale, top: f64) -> String {
    let one = scale.x(1.0);
    let middle = top + BAR * group.ratios.len() as f64 / 2.0 + 4.0;
    let class = if group.strong { "strong" } else { "label" };
    let mut body = text(class, "end", LEFT - 10.0, middle, &group.label);
    for (at, value) in group.ratios.iter().enumerate() {
        let y = top + BAR * at as f64;
        let Some(ratio_) = value.filter(|value| value.is_finite() && *value > 0.0) else {
            body += &text("value", "start", one + 5.0, y + 10.0, &ratio(None));
            continue;
        };
        let x = scale.x(ratio_);
        let (left, width) = (x.min(one), (x - one).abs().max(1.0));
        body += &format!(
            "<rect class=\"bar{at}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"1.5\"/>\n",
            y + 1.0,
            BAR - 2.0,
        );
        let (anchor, x) = if ratio_ < 1.0 { ("end", left - 5.0) } else { ("start", left + width + 5.0) };
        body += &text("value", anchor, x, y + 10.0, &ratio(Some(ratio_)));
    }
    body
}

fn text(class: &str, anchor: &str, x: f64, y: f64, text: &str) -> String {
    format!(
        "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>\n",
        escape(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::running::tests::row;

    fn report(rows: Vec<Row>) -> Report {
        let machine = Machine { cpu: "AMD <EPYC> & co".into(), cores: 2, system: "linux".into() };
        let versions = ["onnxc", "ONNX Runtime", "OpenVINO"].map(|name| (name.to_string(), "1".to_string()));
        let versions = versions.to_vec();
        Report { machine, versions, rounds: 1, seconds: 1.0, flags: vec![], rows, failures: vec![] }
    }

    #[test]
    fn texts_are_escaped() {
        assert_eq!(escape("a<b> & \"c\" 'd'\n"), "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos; ");
        let chart = svg(&report(vec![row("<m>", 1, [Some(1.0), Some(2.0), None])]));
        assert!(
            chart.contains(">&lt;m&gt;</text>") && chart.contains("AMD &lt;EPYC&gt; &amp; co"),
            "{chart}"
        );
        assert!(!chart.contains("<m>"));
    }

    #[test]
    fn bars_start_at_one_and_lie_within_the_page() {
        let rows = vec![
            row("fast", 1, [Some(1.0), Some(9.0), None]),
            row("fast", 2, [Some(1.0), None, None]),
            row("slow", 1, [Some(8.0), Some(1.0), None]),
            row("slow", 2, [Some(1.0), Some(1.0), None]),
        ];
        let chart = svg(&report(rows));
        let attribute = |line: &str, name: &str| -> f64 {
            let rest = line.split_once(&format!(" {name}=\"")).unwrap().1;
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let one = chart.lines().find(|line| line.starts_with("<line class=\"one\"")).unwrap();
        let one = attribute(one, "x1");
        let bars: Vec<&str> = chart
            .lines()
            .filter(|line| line.starts_with("<rect class=\"bar") && !line.contains(" y=\"58\""))
            .collect();
        // Three rows with a ratio, and two means.
        assert_eq!(bars.len(), 5, "{chart}");
        for bar in bars {
            let (left, width) = (attribute(bar, "x"), attribute(bar, "width"));
            assert!((left - one).abs() < 0.11 || (left + width - one).abs() < 0.11, "{bar}");
            assert!(left > LEFT && left + width < WIDTH - RIGHT, "{bar}");
        }
        assert!(
            chart.contains(">9.00</text>") && chart.contains(">0.12</text>") && chart.contains(">–</text>")
        );
        assert_eq!(chart.matches("<text").count(), chart.matches("</text>").count());
    }

    #[test]
    fn a_chart_without_any_ratio_is_one_still() {
        let chart = svg(&report(vec![row("m", 1, [Some(1.0), None, None])]));
        assert!(chart.ends_with("</svg>\n") && !chart.contains("NaN") && !chart.contains("inf"), "{chart}");
    }
}
