//! Imports go down: each module of the compiler belongs to a layer, and uses only those that `LAYERS` allows it. `ARCHITECTURE.md` draws
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A layer, the modules of it, and the layers that it may use. A module goes by the longest of these names that it begins with.
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    uses: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer {
        name: "ir",
        modules: &[
            "error",
            "rules",
            "words",
            "digest",
            "scalar",
            "winograd",
            "graph",
            "infer",
            "interp",
            "schedule/view",
        ],
        uses: &[],
    },
    Layer {
        name: "machine",
        modules: &[
            "target",
            "codegen/unwind",
            "vector/ir",
            "vector/isa",
            "vector/verify",
            "vector/print",
            "vector/parse",
            "vector/interp",
        ],
        uses: &["ir"],
    },
    Layer { name: "tuning", modules: &["tuning"], uses: &["ir", "machine"] },
    Layer { name: "schedule", modules: &["schedule"], uses: &["ir", "machine", "tuning"] },
    Layer { name: "passes", modules: &["pass"], uses: &["ir", "machine", "tuning"] },
    Layer { name: "loops", modules: &["loops"], uses: &["ir", "machine", "tuning", "schedule"] },
    Layer { name: "ops", modules: &["op", "gradient"], uses: &["ir"] },
    Layer { name: "contrib", modules: &["op/microsoft", "op/ml"], uses: &["ir", "tuning", "ops"] },
    Layer { name: "import", modules: &["import"], uses: &["ir", "ops"] },
    Layer {
        name: "backend",
        modules: &["backend", "vector", "leaf", "codegen"],
        uses: &["ir", "machine", "schedule", "loops"],
    },
    Layer {
        name: "object",
        modules: &["host", "codegen/emit"],
        uses: &["ir", "machine", "schedule", "loops", "backend"],
    },
    Layer {
        name: "onnxc",
        modules: &["lib", "build", "files"],
        uses: &[
            "ir", "machine", "tuning", "schedule", "passes", "loops", "ops", "contrib", "import", "backend",
            "object",
        ],
    },
    Layer {
        name: "cli",
        modules: &["cli", "native", "main"],
        uses: &[
            "ir", "machine", "tuning", "schedule", "passes", "loops", "ops", "contrib", "import", "backend",
            "object", "onnxc",
        ],
    },
];

/// Edges that run up, each with the reason. The list only shrinks.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    // The table of all rows names those of each module, also of the domains above.
    ("op", "op/microsoft", "FAMILIES"),
    ("op", "op/ml", "FAMILIES"),
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compiler/src")
}

fn is_test(module: &str) -> bool {
    module.split('/').any(|part| part.ends_with("tests") || part == "testing" || part == "node_case")
}

/// Files by the path of their module, such as `loops/lower/reduce`.
fn modules(folder: &Path, prefix: &str, found: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let module = if prefix.is_empty() { stem.clone() } else { format!("{prefix}/{stem}") };
        if path.is_dir() {
            modules(&path, &module, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = if stem == "mod" { prefix.to_string() } else { module };
            found.insert(module, path);
        }
    }
}

fn layer(module: &str) -> &'static Layer {
    let begins = |name: &str| {
        module.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with('/')).map(|_| name.len())
    };
    let named = LAYERS.iter().flat_map(|layer| layer.modules.iter().map(move |name| (begins(name), layer)));
    let best = named.filter_map(|(length, layer)| Some((length?, layer))).max_by_key(|(length, _)| *length);
    best.unwrap_or_else(|| panic!("module `{module}` belongs to no layer")).1
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
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

/// The module that a path of `from` leads to, if it is one of the compiler.
fn target(path: &[String], from: &str, modules: &BTreeMap<String, PathBuf>) -> Option<String> {
    let own: Vec<&str> = if from == "lib" { vec![] } else { from.split('/').collect() };
    let mut rest = path;
    let mut base = match path.first()?.as_str() {
        "crate" => vec![],
        "self" | "super" => own,
        // A module inside this one.
        first if modules.contains_key(&[from, first].join("/")) => [own, vec![first]].concat(),
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
    if path[0] != "crate" && path[0] != "self" && path[0] != "super" {
        rest = &rest[1..];
    }
    let full: Vec<&str> = base.into_iter().chain(rest.iter().map(String::as_str)).collect();
    (1..=full.len()).rev().map(|length| full[..length].join("/")).find(|name| modules.contains_key(name))
}

#[test]
fn imports_go_down() {
    let mut all = BTreeMap::new();
    modules(&sources(), "", &mut all);
    assert!(all.len() > 400, "{} modules", all.len());
    let (mut up, mut edges, mut excepted) = (vec![], BTreeSet::new(), BTreeSet::new());
    for (module, file) in all.iter().filter(|(module, _)| !is_test(module)) {
        let own = layer(module);
        let mut paths = Paths::default();
        paths.visit_file(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap());
        for path in &paths.found {
            let Some(to) = target(path, module, &all).filter(|to| !is_test(to)) else { continue };
            let other = layer(&to);
            if own.name == other.name {
                continue;
            }
            edges.insert((own.name, other.name));
            if own.uses.contains(&other.name) {
                continue;
            }
            let known = EXCEPTIONS.iter().position(|(from, above, _)| {
                module == from && (to == *above || to.starts_with(&format!("{above}/")))
            });
            match known {
                Some(at) => {
                    excepted.insert(at);
                }
                None => up.push(format!(
                    "{module} ({}) uses {} of {to} ({})",
                    own.name,
                    path.join("::"),
                    other.name
                )),
            }
        }
    }
    assert!(up.is_empty(), "imports that no layer allows:\n{}", up.join("\n"));
    assert_eq!(excepted.len(), EXCEPTIONS.len(), "an exception is not needed any more");
    // A layer uses only those before it, and all that the table allows is used.
    for (at, layer) in LAYERS.iter().enumerate() {
        for name in layer.uses {
            let before = LAYERS.iter().position(|other| other.name == *name);
            assert!(before.is_some_and(|before| before < at), "{} uses {name}", layer.name);
            let is_facade = ["onnxc", "cli"].contains(&layer.name);
            assert!(is_facade || edges.contains(&(layer.name, name)), "{} does not use {name}", layer.name);
        }
    }
}
