//! The crates as they are published, outside of this repository: packaged, unpacked, and used by the package of the book's guide
//! for Rust. It compiles all dependencies anew, which takes minutes: `cargo test -p onnxc-tests --test suite publish:: -- --ignored`.

use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_tests::object::{cargo, must};
use onnxc_tests::prefix::root;
use onnxc_tests::sample_models;

const CRATES: [&str; 17] = [
    "onnxc-proto",
    "onnxc-runtime-support",
    "onnxc-runtime-images",
    "onnxc-ir",
    "onnxc-machine",
    "onnxc-tuning",
    "onnxc-schedule",
    "onnxc-partition",
    "onnxc-passes",
    "onnxc-loops",
    "onnxc-ops",
    "onnxc-contrib",
    "onnxc-import",
    "onnxc-backend",
    "onnxc-object",
    "onnxc-source",
    "onnxc",
];

/// The files on the page of the Rust guide, and the output that it states for the program.
fn guide(dir: &Path) -> String {
    let page = fs::read_to_string(root().join("book/src/rust.md")).unwrap();
    let mut output = None;
    for block in page.split("\n```").skip(1).step_by(2) {
        let (words, text) = block.split_once('\n').unwrap();
        if let Some((_, file)) = words.split_once("file=") {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        } else if words == "text,output" {
            output = Some(format!("{text}\n"));
        }
    }
    output.unwrap()
}

#[test]
#[ignore = "it compiles all dependencies anew"]
fn crates_work_outside_of_the_repository() {
    let dir = tempfile::tempdir().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("publish");
    let mut package = cargo();
    package.args(["package", "--locked", "--allow-dirty", "--no-verify", "--target-dir"]).arg(&target);
    package.args(CRATES.iter().flat_map(|name| ["-p", name])).current_dir(root());
    must(&mut package);
    let embed = dir.path().join("embed");
    fs::create_dir(&embed).unwrap();
    let output = guide(&embed);
    fs::write(embed.join("minilm_dyn.onnx"), sample_models::embedding()).unwrap();
    // What is not on crates.io yet is taken from the packages.
    let mut patch = String::from("[patch.crates-io]\n");
    for name in CRATES {
        let file = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let archive = target.join("package").join(format!("{file}.crate"));
        must(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()));
        let unpacked = dir.path().join(&file);
        for wanted in ["LICENSE", "README.md"] {
            assert!(fs::metadata(unpacked.join(wanted)).unwrap().len() > 1000, "{file}/{wanted}");
        }
        let manifest = fs::read_to_string(unpacked.join("Cargo.toml")).unwrap();
        assert!(manifest.lines().any(|line| line.starts_with("repository = ")), "{manifest}");
        patch += &format!("{name} = {{ path = {:?} }}\n", unpacked.display().to_string());
    }
    fs::create_dir(dir.path().join(".cargo")).unwrap();
    fs::write(dir.path().join(".cargo/config.toml"), patch).unwrap();
    let mut run = cargo();
    run.args(["run", "--quiet", "--target-dir"]).arg(target.join("embed")).current_dir(&embed);
    assert_eq!(String::from_utf8(must(&mut run).stdout).unwrap(), output);
    // The command.
    let mut install = cargo();
    install.args(["install", "--debug", "--quiet", "--path", "onnxc-0.1.0", "--root", "installed"]);
    must(install.arg("--target-dir").arg(target.join("install")).current_dir(dir.path()));
    let version = must(Command::new(dir.path().join("installed/bin/onnxc")).arg("--version")).stdout;
    assert_eq!(String::from_utf8(version).unwrap().trim(), format!("onnxc {}", env!("CARGO_PKG_VERSION")));
}
