//! What the modules of a crate import, read from its source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

fn is_test(module: &str) -> bool {
    module.split('/').any(|part| part.ends_with("tests") || part == "testing" || part == "node_case")
}

/// Files by the path of their module, such as `lower/reduce`; that of the crate itself is empty.
pub type Modules = BTreeMap<String, PathBuf>;

fn modules(folder: &Path, prefix: &str, found: &mut Modules) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let module = if prefix.is_empty() { stem.clone() } else { format!("{prefix}/{stem}") };
        if path.is_dir() {
            modules(&path, &module, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = if stem == "mod" || module == "lib" { prefix.to_string() } else { module };
            found.insert(module, path);
        }
    }
}

/// The files of Rust beneath a folder, but for those of tests and those that are generated.
///
/// # Panics
///
/// Where a folder cannot be read.
pub fn modules_of(folder: &Path) -> Vec<PathBuf> {
    let mut all = BTreeMap::new();
    modules(folder, "", &mut all);
    let is_read = |module: &String| !is_test(module) && !module.split('/').any(|part| part == "generated");
    all.into_iter().filter(|(module, _)| is_read(module)).map(|(_, file)| file).collect()
}

/// Whether an item is compiled for tests alone, or for a feature that tests ask for.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().split(|c: char| !c.is_alphanumeric())
                .any(|word| word == "test"))
    })
}

/// The paths that a file names outside of its tests.
#[derive(Default)]
struct Paths {
    found: BTreeSet<Vec<String>>,
}

impl Paths {
    fn tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
            syn::UseTree::Name(name) => {
                self.found.insert(with(&name.ident));
            }
            syn::UseTree::Rename(rename) => {
                self.found.insert(with(&rename.ident));
            }
            syn::UseTree::Glob(_) => {
                self.found.insert(before.to_vec());
            }
        }
    }
}

impl Visit<'_> for Paths {
    fn visit_item(&mut self, item: &syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &vec![],
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.tree(&item.tree, &[]);
    }

    // `pub(super)` names a module and takes nothing from it.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        self.found.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// The module of this crate that a path of `from` leads to, if it is one.
pub fn target(path: &[String], from: &str, modules: &Modules) -> Option<String> {
    let own: Vec<&str> = if from.is_empty() { vec![] } else { from.split('/').collect() };
    let mut rest = path;
    let mut base = match path.first()?.as_str() {
        "crate" => vec![],
        "self" | "super" => own,
        // A module inside this one.
        first if modules.contains_key([from, first].join("/").trim_start_matches('/')) => own,
        _ => return None,
    };
    while let Some(first) = rest.first() {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => {
                base.pop();
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    let full: Vec<&str> = base.into_iter().chain(rest.iter().map(String::as_str)).collect();
    (0..=full.len()).rev().map(|length| full[..length].join("/")).find(|name| modules.contains_key(name))
}

/// The paths that each module names.
pub type Named = BTreeMap<String, BTreeSet<Vec<String>>>;

/// The modules of a crate whose root is in `folder`, and the paths that each names; tests are left out.
///
/// # Panics
///
/// Where a file cannot be read, or is not Rust.
pub fn paths(folder: &Path) -> (Modules, Named) {
    let mut all = BTreeMap::new();
    modules(folder, "", &mut all);
    all.retain(|module, _| !is_test(module));
    let read = |file: &PathBuf| {
        let mut paths = Paths::default();
        paths.visit_file(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap());
        paths.found
    };
    let found = all.iter().map(|(module, file)| (module.clone(), read(file))).collect();
    (all, found)
}

/// The strongly connected parts of a graph.
pub fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(name) = open.pop() {
            for next in edges.get(name).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|name| (name, reach(name))).collect();
    let mut parts: BTreeSet<Vec<String>> = BTreeSet::new();
    for name in edges.keys() {
        let with = |other: &&String| {
            *other == name || reached[name].contains(*other) && reached[*other].contains(name)
        };
        parts.insert(edges.keys().filter(with).cloned().collect());
    }
    parts.into_iter().collect()
}
