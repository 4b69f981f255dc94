//! Parts of pages that the compiler's tables say, so that help, book and code are the same. `UPDATE_EXPECT=1` writes them.

use std::fs;
use std::path::{Path, PathBuf};

use onnxc_passes::options::{EXACT, LEVELS, left_out_by_exact};
use onnxc_passes::phases;

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Holds a page against what `made` makes of it.
fn hold(name: &str, made: impl Fn(&str) -> String) {
    let text = fs::read_to_string(page(name)).expect("a page");
    let wanted = made(&text);
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
        fs::write(page(name), wanted).expect("a page that can be written");
        return;
    }
    for (found, wanted) in text.lines().zip(wanted.lines()) {
        assert_eq!(found, wanted, "{name} is not up to date: UPDATE_EXPECT=1 writes it anew");
    }
    assert!(text == wanted, "{name} is not up to date: UPDATE_EXPECT=1 writes it anew");
}

/// A page with other rows in the table below a heading: of those that it has, the ones that stay.
fn with_table(text: &str, heading: &str, table: &str, stays: impl Fn(&str) -> bool) -> String {
    let (before, rest) = text.split_once(&format!("\n{heading}\n")).expect("the heading");
    let start = rest.find("\n|").expect("a table") + 1;
    let end = rest[start..].find("\n\n").map_or(rest.len(), |at| start + at + 1);
    let kept: String =
        rest[start..end].lines().filter(|line| stays(line)).map(|line| format!("{line}\n")).collect();
    format!("{before}\n{heading}\n{}{table}{kept}{}", &rest[..start], &rest[end..])
}

/// A page with another line in place of the one that begins so.
fn with_line(text: &str, begin: &str, line: &str) -> String {
    assert_eq!(
        text.lines().filter(|line| line.starts_with(begin)).count(),
        1,
        "lines that begin with {begin}"
    );
    text.lines().map(|old| format!("{}\n", if old.starts_with(begin) { line } else { old })).collect()
}

#[test]
fn levels_and_exact_on_the_page_of_the_command_line() {
    let levels: Vec<String> = LEVELS.iter().map(|(name, doc)| format!("`{name}`: {doc}")).collect();
    let levels = format!("| `-O LEVEL` | {} |", levels.join("; "));
    let left_out = left_out_by_exact();
    let exact = format!(
        "| `--exact` | no algorithm that trades accuracy for speed, see [Floats](floats.md#operations-that-round-differently). {left_out} |"
    );
    hold("book/src/cli.md", |text| {
        with_line(&with_line(text, "| `-O LEVEL` |", &levels), "| `--exact` |", &exact)
    });
}

#[test]
fn what_exact_changes_on_the_page_of_floats() {
    let mut table = String::from("| what | bound | with `--exact` |\n|---|---|---|\n");
    for row in EXACT {
        table += &format!("| {} (`passes/{}`) | {} | {} |\n", row.what, row.files[0], row.bound, row.exact);
    }
    // What it does not change is written by hand.
    let stays = |line: &str| line.ends_with("| as without |");
    hold("book/src/floats.md", |text| {
        with_table(text, "## Operations that round differently", &table, stays)
    });
}

#[test]
fn phases_in_the_architecture() {
    let table = phases::markdown();
    hold("compiler/ARCHITECTURE.md", |text| with_table(text, "## Phases", &table, |_| false));
}
