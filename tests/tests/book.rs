//! The code samples of the book. A page is a guide: blocks with `file=NAME` are files, blocks of `sh` commands that run one after the
//! other in one folder, and a block `text,output` is what the last of them prints. Blocks of `sh,install` are about machines
//! and are not run; other blocks are parts of programs.
//!
//! Guides take a model `minilm_dyn.onnx`: a small one with its inputs and outputs, or the file that `ONNXC_BOOK_MODEL` names.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::build::Builder;
use onnxc_tests::object::{host, must, runtime_crate};
use onnxc_tests::onnx_env::WHEEL;
use onnxc_tests::prefix::{prefix, root};
use onnxc_tests::sample_models;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// A fenced block: the words behind the fence, and the text.
#[derive(Clone, PartialEq, Debug)]
struct Block {
    words: Vec<String>,
    text: String,
}

impl Block {
    fn is(&self, words: &[&str]) -> bool {
        self.words == words
    }

    fn file(&self) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix("file="))
    }
}

fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join("book/src").join(page)).unwrap();
    let mut blocks = vec![];
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (open.as_mut(), line.strip_prefix("```")) {
            (None, Some(words)) => {
                open =
                    Some(Block { words: words.split(',').map(String::from).collect(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block does not end");
    blocks
}

fn model() -> Vec<u8> {
    match std::env::var_os("ONNXC_BOOK_MODEL") {
        Some(path) => fs::read(path).unwrap(),
        None => sample_models::embedding(),
    }
}

/// The folder of a guide with the model and the files of the page.
fn folder(blocks: &[Block]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("minilm_dyn.onnx"), model()).unwrap();
    for block in blocks {
        let Some(file) = block.file() else { continue };
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &block.text).unwrap();
    }
    dir
}

/// Puts the installed onnxc, and a `python3` with its package, before the path.
fn environment(command: &mut Command, dir: &Path) {
    let prefix = prefix(ONNXC);
    let bin = dir.join(".bin");
    fs::create_dir_all(&bin).unwrap();
    let python = bin.join("python3");
    let sources = root().join("runtime-support/python");
    let text = format!(
        "#!/bin/sh\nPYTHONPATH={} ONNXC_PREFIX={} exec {} \"$@\"\n",
        sources.display(),
        prefix.display(),
        WHEEL.interpreter().unwrap().display()
    );
    fs::write(&python, text).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{}/bin:{path}", bin.display(), prefix.display()));
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("CMAKE_PREFIX_PATH", prefix);
    command.env("GOPROXY", "off").env("PYTHONDONTWRITEBYTECODE", "1");
}

/// Runs the commands of a guide, if all `tools` are there.
fn guide(page: &str, tools: &[&str]) {
    for tool in tools {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        if !found.status.success() {
            eprintln!("NOT TESTED: {tool} is not installed, {page} is left out");
            return;
        }
    }
    let blocks = blocks(page);
    let dir = folder(&blocks);
    let mut outputs = 0;
    let mut printed = String::new();
    for block in &blocks {
        if block.is(&["sh"]) {
            let mut shell = Command::new("bash");
            shell.args(["-e", "-c", &block.text]).current_dir(dir.path());
            environment(&mut shell, dir.path());
            printed = String::from_utf8(must(&mut shell).stdout).unwrap();
        } else if block.is(&["text", "output"]) {
            assert!(printed.ends_with(&block.text), "{page}: printed\n{printed}\nnot\n{}", block.text);
            outputs += 1;
        }
    }
    assert!(outputs > 0, "{page}: no output is compared");
}

#[test]
fn c() {
    guide("c.md", &["cc", "pkg-config"]);
}

#[test]
fn untrusted() {
    guide("untrusted.md", &["cc", "pkg-config"]);
}

#[test]
fn cpp() {
    guide("cpp.md", &["c++", "pkg-config"]);
}

#[test]
fn cmake() {
    guide("cmake.md", &["cmake", "c++"]);
}

#[test]
fn python() {
    guide("python.md", &["cc"]);
}

#[test]
fn go() {
    guide("go.md", &["go", "pkg-config"]);
}

/// The Rust guide without Cargo: the options of its build script, and its program. `publish.rs` has it as it stands.
#[test]
fn rust() {
    let blocks = blocks("rust.md");
    let dir = folder(&blocks);
    let script = fs::read_to_string(dir.path().join("build.rs")).unwrap();
    assert!(
        script.contains("Builder::new(\"minilm_dyn.onnx\").name(\"minilm\").threads().compile()?;"),
        "{script}"
    );
    let builder = Builder::new(dir.path().join("minilm_dyn.onnx")).name("minilm").threads();
    let builder = builder.target(host().triple.to_string()).cpu("native").out_dir(dir.path());
    builder.generate().unwrap();
    let program = dir.path().join("embed");
    let runtime = runtime_crate();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.env("OUT_DIR", dir.path()).args(["--edition", "2024", "--deny", "warnings", "-l", "static=minilm"]);
    rustc
        .arg("-L")
        .arg(dir.path())
        .arg("--extern")
        .arg(format!("onnxc_runtime_support={}", runtime.display()));
    rustc.arg("-L").arg(format!("dependency={}", runtime.parent().unwrap().display()));
    must(rustc.arg(dir.path().join("src/main.rs")).arg("-o").arg(&program));
    let printed = String::from_utf8(must(&mut Command::new(&program)).stdout).unwrap();
    let output = blocks.iter().find(|block| block.is(&["text", "output"])).unwrap();
    assert_eq!(printed, output.text);
}

/// Every page is in the table of contents, every block has words that mean something here, and what is included is there.
#[test]
fn pages_are_whole() {
    let source = root().join("book/src");
    let summary = fs::read_to_string(source.join("SUMMARY.md")).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut pages: Vec<PathBuf> = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    assert!(pages.len() > 9);
    for page in pages {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        assert!(summary.contains(&format!("({name})")), "{name} is not in SUMMARY.md");
        let languages = ["c", "cpp", "cmake", "go", "python", "rust", "sh", "text", "toml"];
        for block in blocks(&name) {
            assert!(languages.contains(&block.words[0].as_str()), "{name}: {:?}", block.words);
            for word in &block.words[1..] {
                let known =
                    ["ignore", "install", "output"].contains(&word.as_str()) || word.starts_with("file=");
                assert!(known, "{name}: {:?}", block.words);
            }
        }
        check_includes(&name, &fs::read_to_string(&page).unwrap(), &readme);
    }
}

/// What a page includes is there: a file, or a section of README.md between marks. A link in that section has a definition
/// of its own in the page.
fn check_includes(name: &str, page: &str, readme: &str) {
    for part in page.split("{{#include ../../").skip(1) {
        let path = part.split('}').next().unwrap();
        let Some((file, anchor)) = path.split_once(':') else {
            assert!(root().join(path).exists(), "{name} includes {path}");
            continue;
        };
        assert_eq!(file, "README.md", "{name}");
        let section = readme.split(&format!("<!-- ANCHOR: {anchor} -->")).nth(1);
        let (section, _) = section
            .and_then(|text| text.split_once(&format!("<!-- ANCHOR_END: {anchor} -->")))
            .unwrap_or_else(|| panic!("{name}: README.md has no section {anchor}"));
        assert!(!section.contains("]("), "{name}: a link in section {anchor} leads out of the book");
        for link in
            readme.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(link, _)| link)
        {
            let is_defined = page.contains(&format!("\n[{link}]: "));
            assert!(
                !section.contains(&format!("[{link}]")) || is_defined,
                "{name}: no definition of [{link}]"
            );
        }
    }
}
