//! The code samples of the book. A page is a guide: blocks with `file=NAME` are files, blocks of `sh` commands that run one after the
//! other in one folder, and a block `text,output` is what the last of them prints. All blocks of `sh` are run. The others have a reason
//! in their words: `install` is about a machine or a model that the repository does not have, `part` a part of a program.
//!
//! Guides take a model `minilm_dyn.onnx`: a small one with its inputs and outputs, or the file that `ONNXC_BOOK_MODEL` names. Others
//! take the model of `examples/digits` and its sample.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::build::Builder;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, f32_value, node};
use onnxc_tests::object::{host, must, runtime_crate};
use onnxc_tests::onnx_env::WHEEL;
use onnxc_tests::prefix::{prefix, root};
use onnxc_tests::sample_models;
use prost::Message;

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
    for file in ["digits.onnx", "sample.json"] {
        fs::copy(root().join("examples/digits").join(file), dir.path().join(file)).unwrap();
    }
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
    command.env("GOPROXY", "off").env("PYTHONDONTWRITEBYTECODE", "1").env("ONNXC_CACHE", dir.join(".cache"));
}

/// The pages whose commands run here; `rust.md` is run by `publish.rs` as well.
const GUIDES: [&str; 12] = [
    "c.md",
    "cmake.md",
    "cpp.md",
    "custom.md",
    "go.md",
    "introduction.md",
    "profiling.md",
    "python.md",
    "ranks.md",
    "rust.md",
    "training.md",
    "untrusted.md",
];

/// Runs the commands of a guide, if all `tools` are there, and compares what they print.
fn guide(page: &str, tools: &[&str]) {
    guide_with(page, tools, |_| ());
}

/// The same in a folder that has what `more` puts there as well.
fn guide_with(page: &str, tools: &[&str], more: impl Fn(&Path)) {
    if let Some(outputs) = commands(page, tools, more) {
        assert!(outputs > 0, "{page}: no output is compared");
    }
}

/// Runs the commands of a page in a folder that has what `more` puts there as well; gives how many outputs were compared.
fn commands(page: &str, tools: &[&str], more: impl Fn(&Path)) -> Option<usize> {
    for tool in tools {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        if !found.status.success() {
            eprintln!("NOT TESTED: {tool} is not installed, {page} is left out");
            return None;
        }
    }
    assert!(GUIDES.contains(&page));
    let blocks = blocks(page);
    let dir = folder(&blocks);
    more(dir.path());
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
    assert!(blocks.iter().any(|block| block.is(&["sh"])), "{page}: no commands");
    Some(outputs)
}

#[test]
fn introduction() {
    commands("introduction.md", &[], |_| ());
}

#[test]
fn profiling() {
    commands("profiling.md", &[], |folder| {
        fs::copy(folder.join("digits.onnx"), folder.join("model.onnx")).unwrap();
    });
}

#[test]
fn ranks() {
    commands("ranks.md", &[], |folder| {
        fs::copy(folder.join("digits.onnx"), folder.join("model.onnx")).unwrap();
    });
}

/// The page's function works for a model with the operator of its name.
#[test]
fn custom() {
    guide_with("custom.md", &["cc", "c++", "pkg-config"], |folder| {
        let mut limit = build::attribute("limit", AttributeType::Float);
        limit.f = Some(0.5);
        let mut clip = node("Clip", &["x"], &["y"]).with(limit);
        clip.domain = Some("mine".into());
        let graph = build::graph(vec![f32_value("x", &[3])], vec![clip], vec![f32_value("y", &[3])]);
        let mut model = build::model(21, graph);
        model.opset_import.push(build::opset("mine", 1));
        fs::write(folder.join("model.onnx"), model.encode_to_vec()).unwrap();
        let main = "#include \"model.h\"\nint main(void) {\n    const float x[3] = { -1.0f, 0.25f, 2.0f };\n    \
                    float y[3];\n    static char memory[MODEL_WORKSPACE_BYTES + 64];\n    \
                    void *workspace = (void *)(((uintptr_t)memory + 63) / 64 * 64);\n    \
                    if (model_predict(x, y, workspace) != ONNXC_OK) {\n        return 1;\n    }\n    \
                    return y[0] == -1.0f && y[1] == 0.25f && y[2] == 0.5f ? 0 : 2;\n}\n";
        fs::write(folder.join("main.c"), main).unwrap();
    });
}

/// An array as NumPy writes it.
fn npy(kind: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The whole head is a multiple of 64 bytes.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header = format!("{header:<width$}\n", width = length - 1);
    [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn training() {
    commands("training.md", &[], |folder| {
        let train = fs::read(root().join("examples/train/digits.onnx")).unwrap();
        fs::write(folder.join("digits.onnx"), &train).unwrap();
        let mut classifier = onnxc_proto::ModelProto::decode(&*train).unwrap();
        assert!(!std::mem::take(&mut classifier.training_info).is_empty());
        fs::write(folder.join("classifier.onnx"), classifier.encode_to_vec()).unwrap();
        fs::copy(root().join("tests/artifacts/mlp/training_model.onnx"), folder.join("training_model.onnx"))
            .unwrap();
        const ROWS: usize = 64;
        let images: Vec<u8> = (0..ROWS * 64).flat_map(|at| ((at * 7919 % 17) as f32).to_le_bytes()).collect();
        let labels: Vec<u8> = (0..ROWS).flat_map(|at| (at as i64 % 10).to_le_bytes()).collect();
        fs::write(folder.join("images.npy"), npy("<f4", &format!("{ROWS}, 1, 8, 8"), &images)).unwrap();
        fs::write(folder.join("labels.npy"), npy("<i8", &format!("{ROWS},"), &labels)).unwrap();
        fs::write(folder.join("rate.npy"), npy("<f4", "", &1e-3f32.to_le_bytes())).unwrap();
        let batch = folder.join("batches/test_data_set_0");
        fs::create_dir_all(&batch).unwrap();
        let tensor = |dtype: i32, dims: &[i64], data: &[u8]| onnxc_proto::TensorProto {
            data_type: Some(dtype),
            dims: dims.to_vec(),
            raw_data: Some(data.to_vec().into()),
            ..Default::default()
        };
        let inputs = [
            tensor(1, &[64, 1, 8, 8], &images),
            tensor(7, &[64], &labels),
            tensor(1, &[], &1e-3f32.to_le_bytes()),
        ];
        for (at, input) in inputs.iter().enumerate() {
            fs::write(batch.join(format!("input_{at}.pb")), input.encode_to_vec()).unwrap();
        }
    });
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
    guide("python.md", &[]);
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
    let pages = files(&source, "md");
    assert!(pages.len() > 9);
    for page in pages.iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        assert!(summary.contains(&format!("({name})")), "{name} is not in SUMMARY.md");
        let languages = ["c", "cpp", "cmake", "go", "js", "python", "rust", "sh", "text", "toml"];
        for block in blocks(&name) {
            assert!(languages.contains(&block.words[0].as_str()), "{name}: {:?}", block.words);
            for word in &block.words[1..] {
                let known = ["ignore", "install", "output", "part"].contains(&word.as_str())
                    || word.starts_with("file=");
                assert!(known, "{name}: {:?}", block.words);
            }
            // Each is run, compared, compiled, or has a reason.
            let has = |word: &str| block.words.iter().any(|own| own == word);
            let is_run = block.is(&["sh"]) && GUIDES.contains(&name.as_str());
            assert!(
                is_run || has("install") || has("part") || has("output") || block.file().is_some(),
                "{name}: {block:?}"
            );
        }
        let text = fs::read_to_string(page).unwrap();
        for part in text.split("{{#include ").skip(1) {
            let path = part.split('}').next().unwrap();
            assert!(source.join(path).exists(), "{name} includes {path}");
        }
    }
}

/// The files with an extension in a folder, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    files
}

/// Links of a Markdown text: what stands between `](` and `)`, outside of fenced blocks.
fn links(text: &str) -> Vec<String> {
    let outside = text.split("```").step_by(2);
    let link = |part: &str| part.split(')').next().unwrap().to_string();
    outside.flat_map(|text| text.split("](").skip(1).map(link).collect::<Vec<_>>()).collect()
}

#[test]
fn links_lead_to_files() {
    let folders = ["", "book/src", "compiler", "tests", "tests/benchmarks", ".github"];
    let mut count = 0;
    for page in folders.iter().flat_map(|folder| files(&root().join(folder), "md")) {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            let path = link.split('#').next().unwrap();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            assert!(page.parent().unwrap().join(path).exists(), "{}: {link}", page.display());
            count += 1;
        }
    }
    assert!(count > 50);
}

/// The program that the README begins with.
#[test]
fn the_program_of_the_readme_runs() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let program = readme.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("main.c"), program).unwrap();
    let digits = root().join("examples/digits");
    must(Command::new(ONNXC).arg(digits.join("digits.onnx")).args(["-o", "digits.o"]).current_dir(&dir));
    let mut compiler = Command::new("cc");
    compiler.args(["main.c", "digits.o", "-o", "main", "-I"]).arg(&digits).arg("-I");
    must(compiler.arg(root().join("runtime-support/include")).current_dir(&dir));
    let printed = must(Command::new("./main").current_dir(&dir)).stdout;
    assert_eq!(String::from_utf8(printed).unwrap(), "it is a 9 with probability 0.999\n");
}

/// The page about the command line has every command and every option of the help texts, and no others.
#[test]
fn the_page_of_the_command_line_lists_what_the_help_lists() {
    let page = fs::read_to_string(root().join("book/src/cli.md")).unwrap();
    let help =
        |arguments: &[&str]| String::from_utf8(must(Command::new(ONNXC).args(arguments)).stdout).unwrap();
    let commands: Vec<String> = help(&["--help"])
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(String::from)
        .collect();
    assert!(commands.len() > 9, "{commands:?}");
    let mut options = BTreeSet::new();
    for command in &commands {
        assert!(page.contains(&format!("\n| `{command}` |")), "cli.md has no command `{command}`");
        for line in help(&[command, "--help"]).lines() {
            let words = line.split([' ', ',', '[', '=']).filter(|word| word.starts_with("--"));
            if line.trim_start().starts_with('-') {
                options.extend(words.take(1).map(String::from));
            }
        }
    }
    options.remove("--help");
    options.remove("--version");
    for option in &options {
        let listed = [format!("`{option}`"), format!("`{option} "), format!("`{option}[")];
        assert!(listed.iter().any(|text| page.contains(text)), "cli.md has no option {option}");
    }
    for text in page.split('`').skip(1).step_by(2).filter(|text| text.starts_with("--")) {
        let option = text.split([' ', '[', '=']).next().unwrap();
        assert!(options.contains(option), "cli.md names {option}, which no command has");
    }
}
