//! The patch that puts mended defects back, `conformance/replanted.patch`: it fits the compiler, and its table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn conformance(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(file)
}

#[test]
fn the_patch_applies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !root.join(".git").exists() {
        println!("left out: no repository");
        return;
    }
    let git = |more: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&root).args(["apply", "--check"]).args(more).arg(conformance("replanted.patch"));
        git.output()
    };
    match (git(&[]), git(&["--reverse"])) {
        (Ok(applies), Ok(is_applied)) => {
            let message = String::from_utf8_lossy(&applies.stderr);
            assert!(
                applies.status.success() || is_applied.status.success(),
                "{message}conformance/replanted.md describes how to mend the patch"
            );
        }
        (Err(error), _) | (_, Err(error)) => println!("left out: no git ({error})"),
    }
}

#[test]
fn the_patch_has_the_defects_of_the_table() {
    let patch = fs::read_to_string(conformance("replanted.patch")).unwrap();
    let page = fs::read_to_string(conformance("replanted.md")).unwrap();
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, _)| name)
        .filter(|name| !name.contains("::") && !name.contains(' '))
        .collect();
    let asked: BTreeSet<&str> = patch
        .lines()
        .filter(|line| line.starts_with('+'))
        .flat_map(|line| line.split("replanted(\"").skip(1))
        .filter_map(|rest| Some(rest.split_once('"')?.0))
        .collect();
    let named: BTreeSet<&str> =
        patch.lines().filter_map(|line| line.strip_prefix("+    \"")?.strip_suffix("\",")).collect();
    assert!(!listed.is_empty());
    assert_eq!(asked, listed);
    assert_eq!(named, listed);
}
