//! The report: what was caught and by which tests, and every survivor by name.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::rewrite::Mutant;
use crate::suite::Verdict;

/// Survivors that someone has looked at: why each changes no result, by key.
pub(crate) struct Judged(BTreeMap<String, String>);

impl Judged {
    /// Reads `# reason` lines, each above the keys that it is about.
    pub(crate) fn parse(text: &str) -> Judged {
        let mut judged = BTreeMap::new();
        let mut reason = "";
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.strip_prefix('#') {
                Some(text) => reason = text.trim(),
                None => drop(judged.insert(line.to_string(), reason.to_string())),
            }
        }
        Judged(judged)
    }

    fn reason(&self, mutant: &Mutant) -> Option<&str> {
        self.0.get(&mutant.key()).map(String::as_str)
    }
}

#[derive(Default)]
struct Row {
    sampled: usize,
    caught: BTreeMap<String, usize>,
    timed_out: usize,
    judged: usize,
    missed: usize,
    unreached: usize,
}

impl Row {
    fn caught(&self) -> usize {
        self.caught.values().sum::<usize>() + self.timed_out
    }
}

/// Share in percent, rounded down, so that 95 is 95.
fn percent(part: usize, whole: usize) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1}%", (part * 1000 / whole) as f64 / 10.0),
    }
}

/// The report as Markdown. `folder` names a mutant's row.
pub(crate) fn markdown(
    command: &str,
    suites: &[String],
    outcomes: &[(&Mutant, Verdict)],
    judged: &Judged,
    folder: &dyn Fn(&Mutant) -> String,
) -> String {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut sum = Row::default();
    for (mutant, verdict) in outcomes {
        let row = rows.entry(folder(mutant)).or_default();
        for row in [row, &mut sum] {
            row.sampled += 1;
            match verdict {
                Verdict::Caught { timed_out: true, .. } => row.timed_out += 1,
                Verdict::Caught { suite, .. } => *row.caught.entry(suite.clone()).or_default() += 1,
                Verdict::Survived { .. } if judged.reason(mutant).is_some() => row.judged += 1,
                Verdict::Survived { reached: true } => row.missed += 1,
                Verdict::Survived { reached: false } => row.unreached += 1,
            }
        }
    }
    let mut out = format!("# Would the tests notice?\n\n`{command}`\n\n");
    let real = sum.sampled - sum.judged;
    out.push_str(&format!(
        "Of {} mutants {} are caught ({}); of the {real} that change results, {}.\n\n",
        sum.sampled,
        sum.caught(),
        percent(sum.caught(), sum.sampled),
        percent(sum.caught(), real),
    ));
    out.push_str(
        "A mutant is caught by the first suite that fails, or hangs, with it. Survivors that change no result were judged by hand; \
         the others are missing tests.\n\n",
    );
    let _ = writeln!(
        out,
        "| folder | sampled | caught | {} | hang | change no result | missing test | not reached |",
        suites.join(" | ")
    );
    let _ = writeln!(out, "|---|{}", "---:|".repeat(suites.len() + 6));
    for (name, row) in rows.iter().map(|(name, row)| (name.as_str(), row)).chain([("all", &sum)]) {
        let by: Vec<String> = suites
            .iter()
            .map(|suite| row.caught.get(suite).copied().unwrap_or_default().to_string())
            .collect();
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            row.sampled,
            percent(row.caught(), row.sampled),
            by.join(" | "),
            row.timed_out,
            row.judged,
            row.missed,
            row.unreached
        );
    }
    let mut missing = Vec::new();
    let mut equal: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (mutant, verdict) in outcomes {
        let Verdict::Survived { reached } = verdict else { continue };
        let text = describe(mutant);
        match judged.reason(mutant) {
            Some(reason) => equal.entry(reason).or_default().push(text),
            None if *reached => missing.push(text),
            None => missing.push(format!("{text}, not reached")),
        }
    }
    missing.sort();
    section(&mut out, "Survivors that want a test", &missing);
    for (reason, mut texts) in equal {
        texts.sort();
        section(&mut out, &format!("Change no result: {reason}"), &texts);
    }
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(out, "\n## {title}\n\n{}", lines.join("\n"));
    }
}

fn describe(mutant: &Mutant) -> String {
    let Mutant { path, line, function, rule, before, after, .. } = mutant;
    format!("- {path}:{line} in `{function}`, {rule}: `{before}` becomes `{after}`")
}
