//! Imports go down: each crate of the compiler is a layer, and uses only those that `LAYERS` allows it. Cargo refuses what a manifest
//! does not name; this holds the manifests against the table, and the modules of the package `onnxc` as well. `ARCHITECTURE.md` has the
//! list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use onnxc_mutants::drawing::draw;
use onnxc_mutants::imports::{self, Modules, Named, circles, target};

/// A crate beneath `compiler`, and the crates that it may use.
struct Layer {
    name: &'static str,
    uses: &'static [&'static str],
}

/// From the lowest up.
const LAYERS: &[Layer] = &[
    Layer { name: "ir", uses: &[] },
    Layer { name: "machine", uses: &["ir"] },
    Layer { name: "tuning", uses: &["ir", "machine"] },
    Layer { name: "schedule", uses: &["ir", "machine", "tuning"] },
    Layer { name: "partition", uses: &["ir"] },
    Layer { name: "passes", uses: &["ir", "machine", "tuning"] },
    Layer { name: "loops", uses: &["ir", "machine", "tuning", "schedule"] },
    Layer { name: "ops", uses: &["ir"] },
    Layer { name: "contrib", uses: &["ir", "tuning", "ops"] },
    Layer { name: "import", uses: &["ir", "ops"] },
    Layer { name: "backend", uses: &["ir", "machine", "schedule", "loops"] },
    Layer { name: "object", uses: &["ir", "machine", "schedule", "loops", "backend"] },
    Layer { name: "source", uses: &["ir", "machine", "loops", "object"] },
    Layer {
        name: "onnxc",
        uses: &[
            "ir",
            "machine",
            "schedule",
            "partition",
            "passes",
            "loops",
            "ops",
            "contrib",
            "import",
            "backend",
            "object",
            "source",
        ],
    },
];

/// The modules of the package `onnxc` that the others may not use.
const CLI: &[&str] = &["cli", "native", "main"];

fn compiler() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compiler")
}

fn folder(name: &str) -> PathBuf {
    if name == "onnxc" { compiler() } else { compiler().join(name) }
}

/// The modules of each layer and the paths that they name. Reading them takes longer than all tests do.
static SOURCES: LazyLock<BTreeMap<&str, (Modules, Named)>> = LazyLock::new(|| {
    let read = |layer: &'static Layer| (layer.name, imports::paths(&folder(layer.name).join("src")));
    LAYERS.iter().map(read).collect()
});

/// The dependencies of a manifest, with those of its tests or without.
fn dependencies(name: &str, tests: bool) -> BTreeSet<String> {
    let text = fs::read_to_string(folder(name).join("Cargo.toml")).unwrap();
    let mut found = BTreeSet::new();
    let mut is_inside = false;
    for line in text.lines() {
        if line.starts_with('[') {
            is_inside = if tests { line == "[dev-dependencies]" } else { line == "[dependencies]" };
        } else if is_inside && let Some((key, _)) = line.split_once(['.', ' ', '=']) {
            found.extend(key.strip_prefix("onnxc-").map(str::to_string));
        }
    }
    found
}

fn is_layer(name: &str) -> bool {
    LAYERS.iter().any(|layer| layer.name == name)
}

/// The layers that the paths of a crate name.
fn used(paths: &Named) -> BTreeSet<String> {
    let named = paths.values().flatten().filter_map(|path| path[0].strip_prefix("onnxc_"));
    named.filter(|name| is_layer(name)).map(str::to_string).collect()
}

#[test]
fn manifests_name_the_layers_of_the_table() {
    for (at, layer) in LAYERS.iter().enumerate() {
        let wanted: BTreeSet<String> = layer.uses.iter().map(|name| name.to_string()).collect();
        let found: BTreeSet<String> =
            dependencies(layer.name, false).into_iter().filter(|name| is_layer(name)).collect();
        assert_eq!(found, wanted, "of `{}`", layer.name);
        for name in layer.uses {
            let before = LAYERS.iter().position(|other| other.name == *name);
            assert!(before.is_some_and(|before| before < at), "{} uses {name}", layer.name);
        }
    }
    let folders = fs::read_dir(compiler()).unwrap().map(|entry| entry.unwrap().path());
    let crates = folders.filter(|path| path.join("Cargo.toml").exists());
    let crates: Vec<String> =
        crates.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    for name in crates {
        assert!(is_layer(&name), "compiler/{name} is in no layer");
    }
}

/// Tests may use layers beside their own, but no crate that its own tests use needs it: it would be built twice.
#[test]
fn tests_need_no_circle() {
    let edges: BTreeMap<String, BTreeSet<String>> = LAYERS
        .iter()
        .map(|layer| {
            let own = dependencies(layer.name, false).into_iter().chain(dependencies(layer.name, true));
            (layer.name.to_string(), own.filter(|name| is_layer(name) && name != layer.name).collect())
        })
        .collect();
    for circle in circles(&edges) {
        assert!(circle.len() == 1, "tests need each other's crates: {circle:?}");
    }
}

#[test]
fn what_is_allowed_is_used() {
    for layer in LAYERS {
        let used = used(&SOURCES[layer.name].1);
        for name in layer.uses {
            assert!(used.contains(*name), "`{}` does not use `{name}`", layer.name);
        }
    }
}

#[test]
fn the_facade_does_not_use_the_command() {
    let (all, found) = &SOURCES["onnxc"];
    let is_cli = |module: &str| CLI.contains(&module.split('/').next().unwrap_or_default());
    for (module, paths) in found.iter().filter(|(module, _)| !is_cli(module)) {
        for path in paths {
            let up = target(path, module, all).filter(|to| is_cli(to));
            assert!(up.is_none(), "{module} uses {} of the command", path.join("::"));
        }
    }
}

/// Files of one crate that import each other in a circle can only be read together. A module and those inside it are one in this.
#[test]
fn modules_of_a_crate_are_in_no_circle() {
    for layer in LAYERS {
        let (all, paths) = &SOURCES[layer.name];
        let top = |module: &str| module.split('/').next().unwrap_or_default().to_string();
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, paths) in paths {
            let own = edges.entry(top(module)).or_default();
            let to = paths.iter().filter_map(|path| target(path, module, all));
            // What all modules of a crate share stands in its root.
            own.extend(to.map(|to| top(&to)).filter(|to| !to.is_empty() && *to != top(module)));
        }
        edges.remove("");
        let circles: Vec<_> = circles(&edges).into_iter().filter(|circle| circle.len() > 1).collect();
        assert!(circles.is_empty(), "modules of `{}` import each other: {circles:?}", layer.name);
    }
}

/// `UPDATE_EXPECT=1` writes it anew.
#[test]
fn the_drawing_shows_the_crates() {
    let mut edges = BTreeMap::new();
    let mut parts = BTreeMap::new();
    for layer in LAYERS {
        let (all, found) = &SOURCES[layer.name];
        edges.insert(layer.name.to_string(), used(found));
        let top = all.keys().filter(|module| !module.is_empty() && !module.contains('/'));
        parts.insert(layer.name.to_string(), top.cloned().collect());
    }
    let (drawn, file) = (draw(&edges, &parts), compiler().join("crates.svg"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&file, &drawn).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == drawn, "{} is out of date: UPDATE_EXPECT=1 writes it anew", file.display());
}
