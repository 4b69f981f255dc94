//! The kernels by their times: where the time of a run goes, and how far each is from its bound.

use std::fmt::Write;

use super::facts::{Facts, KernelRow};
use super::page::{escape, ms_text};
use crate::cli::bench::{Bound, Share};

/// A table of all timed kernels, the slowest first. Its columns sort.
pub(super) fn table(facts: &Facts) -> Option<String> {
    let mut rows: Vec<(&KernelRow, &Share)> =
        facts.rows.iter().filter_map(|row| Some((row, row.timing.as_ref()?))).collect();
    rows.sort_by(|(_, a), (_, b)| b.ms.total_cmp(&a.ms));
    let longest = rows.first().map(|(_, share)| share.ms)?;
    let mut table = String::from(
        "<table>\n<thead><tr>\
         <th><button>kernel</button></th><th class=\"wide\"><button>result</button></th>\
         <th class=\"n\" aria-sort=\"descending\"><button>time</button></th><th class=\"n\"><button>share</button></th>\
         <th class=\"n wide\"><button>above bound</button></th><th class=\"n\"><button>of bound</button></th>\
         <th class=\"wide\">time and bound</th></tr></thead>\n<tbody>\n",
    );
    for (row, share) in rows {
        kernel(&mut table, row, share, longest);
    }
    Some(table + "</tbody>\n</table>\n")
}

fn kernel(table: &mut String, row: &KernelRow, share: &Share, longest: f64) {
    let refusal = match &share.refusal {
        Some(reason) => format!("<small>not a leaf kernel: {}</small>", escape(reason)),
        None => String::new(),
    };
    let (above, of_bound) = match &share.rate {
        Some(rate) => {
            let above = (share.ms - rate.least_ms).max(0.0);
            (
                format!("<td class=\"n wide\" data-key=\"{above}\">{}</td>", ms_text(above)),
                format!(
                    "<td class=\"n\" data-key=\"{}\">{:.0}%<small>{}</small></td>",
                    rate.of_peak,
                    rate.of_peak * 100.0,
                    rate.text()
                ),
            )
        }
        None => (
            "<td class=\"n wide\" data-key=\"-1\"></td>".into(),
            "<td class=\"n\" data-key=\"-1\"></td>".into(),
        ),
    };
    let _ = writeln!(
        table,
        "<tr><td data-key=\"{}\" title=\"{}\">{}<small>step {}{}</small>{refusal}</td><td class=\"wide\"><code>{}</code></td>\
         <td class=\"n\" data-key=\"{}\">{}</td><td class=\"n\" data-key=\"{}\">{:.1}%</td>{above}{of_bound}\
         <td class=\"bar wide\">{}</td></tr>",
        row.at,
        escape(&row.nodes),
        escape(&row.name),
        row.at,
        first_node(row),
        escape(&row.result),
        share.ms,
        ms_text(share.ms),
        share.share,
        share.share * 100.0,
        bar(share, longest)
    );
}

/// The first of the nodes with a name.
fn first_node(row: &KernelRow) -> String {
    row.nodes
        .lines()
        .find(|name| !name.is_empty())
        .map(|name| format!("<span class=\"wide\">, {}</span>", escape(name)))
        .unwrap_or_default()
}

pub(super) fn class(share: Option<&Share>) -> &'static str {
    match share.and_then(|share| share.rate.as_ref()).map(|rate| rate.bound) {
        Some(Bound::Operations) => "operations",
        Some(Bound::Bytes) => "bytes",
        None => "other",
    }
}

/// A bar of the time, `longest` wide at most, and a mark where the bound is.
pub(super) fn bar(share: &Share, longest: f64) -> String {
    let percent = |ms: f64| (ms / longest.max(1e-12) * 100.0).clamp(0.0, 100.0);
    let mark = match &share.rate {
        Some(rate) => {
            format!("<span class=\"mark\" style=\"left:{:.1}%\"></span>", percent(rate.least_ms).min(99.5))
        }
        None => String::new(),
    };
    format!(
        "<span class=\"timed\"><span class=\"share {}\" style=\"width:{:.1}%\"></span>{mark}</span>",
        class(Some(share)),
        percent(share.ms)
    )
}
