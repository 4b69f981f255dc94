//! One noun, one meaning: the terms of `ARCHITECTURE.md` that are types are one type each, and text is as wide as the code beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use onnxc_mutants::imports::modules_of;

/// Nouns of the glossary that had several types by their bare name. Another thing of the kind has a name that says which.
const NOUNS: &[&str] = &["Block", "Chain", "Group", "Machine", "Part", "Place", "Row", "Stage", "Step"];

/// Nouns that say too little to be in the glossary: one type may have each of them as its whole name.
const BARE: &[&str] = &["Form", "Kind", "Plan"];

/// Columns that a comment may have, as code with long strings has them.
const WIDEST: usize = 140;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The name of a type that a file declares outside of its tests.
fn declared(items: &[syn::Item], found: &mut Vec<String>) {
    for item in items {
        match item {
            syn::Item::Struct(item) => found.push(item.ident.to_string()),
            syn::Item::Enum(item) => found.push(item.ident.to_string()),
            syn::Item::Union(item) => found.push(item.ident.to_string()),
            syn::Item::Type(item) => found.push(item.ident.to_string()),
            syn::Item::Trait(item) => found.push(item.ident.to_string()),
            syn::Item::Mod(item) if item.ident != "tests" => {
                declared(item.content.as_ref().map_or(&[], |(_, items)| items), found);
            }
            _ => {}
        }
    }
}

#[test]
fn a_noun_is_one_type() {
    let mut types: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in modules_of(&root().join("compiler")) {
        let (mut names, text) = (vec![], fs::read_to_string(&file).unwrap());
        declared(&syn::parse_file(&text).unwrap().items, &mut names);
        names.into_iter().for_each(|name| types.entry(name).or_default().push(file.clone()));
    }
    for noun in NOUNS.iter().chain(BARE) {
        let found = types.get(*noun).map_or(&[][..], Vec::as_slice);
        assert!(found.len() <= 1, "`{noun}` is a type in {found:?}");
    }
}

#[test]
fn nouns_are_in_the_glossary() {
    let text = fs::read_to_string(root().join("compiler/ARCHITECTURE.md")).unwrap();
    let terms = text.split("## Terms").nth(1).and_then(|text| text.split("\n## ").next()).unwrap();
    let rows: Vec<&str> = terms.lines().filter_map(|line| line.strip_prefix("| ")).collect();
    for noun in NOUNS {
        let noun = noun.to_lowercase();
        let is_it = |row: &&&str| row.split(" |").next().unwrap().split(", ").any(|term| term == noun);
        assert_eq!(rows.iter().filter(is_it).count(), 1, "of the row of `{noun}` among the terms");
    }
}

#[test]
fn comments_are_not_too_wide() {
    let folders = ["compiler", "proto/src", "proto/generate/src", "runtime-support", "tests"];
    let files = folders.iter().flat_map(|folder| modules_of(&root().join(folder)));
    let mut wide = vec![];
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        let lines =
            text.lines().enumerate().filter(|(_, line)| is_comment(line) && line.chars().count() > WIDEST);
        wide.extend(lines.map(|(at, _)| format!("{}:{}", file.display(), at + 1)));
    }
    assert!(wide.is_empty(), "comments of more than {WIDEST} columns: {wide:#?}");
}
