//! The programs of `examples/`, built and run as their users do, and Rust wrappers compiled by `rustc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::build::Builder;
use onnxc_proto::build;
use onnxc_tests::object::{cargo, host, must, runtime, runtime_crate, source};
use onnxc_tests::onnx_env::WHEEL;
use onnxc_tests::prefix::prefix;
use onnxc_tests::sample_models;
use prost::Message;

#[path = "../../examples/chat/rust/src/sampler.rs"]
mod sampler;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(must(command).stdout).unwrap()
}

fn assert_predicted(output: &str) {
    let line = output.lines().last().unwrap_or_default();
    assert!(line.starts_with("predicted 9 (probability ") && line.ends_with("), label 9"), "{output}");
}

/// `make` for the example in a folder, whose files it makes in another one.
fn make(example: &str, build: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg("-C").arg(examples().join(example)).arg(format!("ONNXC={ONNXC}"));
    make.arg(format!("BUILD={}", build.display()));
    make.args(["CFLAGS=-O1 -pedantic -Werror", "--silent", "--no-print-directory"]);
    quickly(&mut make);
    make
}

/// The tokenizer's crates, which Cargo builds for release, serve a few texts: to optimize them takes longer than all that the programs do.
fn quickly(command: &mut Command) -> &mut Command {
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "false")
}

#[test]
fn c_program_by_make() {
    let dir = tempfile::tempdir().unwrap();
    assert_predicted(&stdout(make("c", dir.path()).arg("run")));
}

/// The program trains from nothing, and what it saves is what it restores. The sums differ a little from processor to processor.
#[test]
fn training_by_make() {
    let dir = tempfile::tempdir().unwrap();
    let output = stdout(make("train", dir.path()).arg("run"));
    let accuracy = |line: &str| -> f64 {
        let text = line.rsplit_once("accuracy ").unwrap_or_else(|| panic!("{output}")).1;
        text.trim_end_matches('%').parse().unwrap()
    };
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("accuracy")).collect();
    assert_eq!(lines.len(), 14, "{output}");
    assert!(accuracy(lines[0]) < 30.0 && accuracy(lines[12]) > 85.0, "{output}");
    assert_eq!(accuracy(lines[12]), accuracy(lines[13]), "{output}");
    assert!(output.lines().last().unwrap().ends_with("it is labelled 3"), "{output}");
}

/// The programs in Rust and in Python print what that in C prints.
#[test]
fn training_in_rust_and_in_python() {
    let (dir, train) = (tempfile::tempdir().unwrap(), examples().join("train"));
    let data = train.join("digits.bin");
    must(&mut make("train", dir.path()));
    let run = |command: &mut Command| stdout(command.arg(&data).args(["2", "7"]).current_dir(dir.path()));
    let wanted = run(&mut Command::new(dir.path().join("digits")));
    assert!(wanted.contains("saved and restored"), "{wanted}");

    let builder = Builder::new(train.join("digits.onnx")).training(true).target(host().triple.to_string());
    let files = builder.out_dir(dir.path()).generate().unwrap();
    let program = dir.path().join("program");
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.env("OUT_DIR", dir.path()).args(["--edition", "2024", "--deny", "warnings", "-O"]);
    command.arg("-L").arg(format!("native={}", dir.path().display()));
    command.arg("-l").arg(format!("static={}", files.name));
    must(command.arg(train.join("rust/src/main.rs")).arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(program)), wanted);

    let mut command = Command::new(WHEEL.interpreter().unwrap());
    let site = train.join("../../runtime-support/python");
    command.env("PYTHONPATH", site).env("ONNXC_PREFIX", prefix(ONNXC)).env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(run(command.arg(train.join("train.py"))), wanted);
}

/// The program in Go prints what that in C prints.
#[test]
fn training_in_go() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("NOT TESTED: Go is not installed");
        return;
    }
    let (dir, train) = (tempfile::tempdir().unwrap(), examples().join("train"));
    must(&mut make("train", dir.path()));
    let packages = prefix(ONNXC).join("lib/pkgconfig");
    must(
        make("train", dir.path())
            .env("PKG_CONFIG_PATH", packages)
            .arg(format!("{}/digits-go", dir.path().display())),
    );
    let data = train.join("digits.bin");
    let run = |program: &str| {
        let mut command = Command::new(dir.path().join(program));
        stdout(command.arg(&data).args(["2", "7"]).current_dir(dir.path()))
    };
    let wanted = run("digits");
    assert!(wanted.contains("saved and restored"), "{wanted}");
    assert_eq!(run("digits-go"), wanted);
}

/// What a line says behind `what`.
fn figure(output: &str, line: &str, what: &str) -> f64 {
    let found =
        output.lines().find(|own| own.starts_with(line)).unwrap_or_else(|| panic!("{line}: {output}"));
    let text = found.rsplit_once(what).unwrap_or_else(|| panic!("{found}")).1;
    text.trim().trim_end_matches('%').parse().unwrap()
}

/// The last layer learns classes that the others never saw, from ten images of each.
#[test]
fn a_model_learns_new_classes_from_a_few_samples() {
    let dir = tempfile::tempdir().unwrap();
    let output = stdout(make("finetune", dir.path()).arg("run"));
    assert!(output.starts_with("40 samples of 4 new classes, 674 images to test with"), "{output}");
    let accuracy = |steps: &str| figure(&output, &format!("after {steps} steps"), "accuracy ");
    assert!(accuracy("  0") < 40.0 && accuracy("100") > 75.0, "{output}");
}

/// The language model of examples/chat has a text by heart once its factors have learnt it.
#[test]
fn a_language_model_learns_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let cargo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chat");
    let output = stdout(make("adapt", dir.path()).arg(format!("CARGO_DIR={}", cargo.display())).arg("run"));
    let loss = |epoch: &str| figure(&output, &format!("epoch {epoch} of 10"), "loss ");
    assert!(loss(" 1") > 1.5 && loss("10") < 0.3, "{output}");
    let texts: Vec<&str> = output.lines().filter(|line| line.starts_with("Monday. Wind from|")).collect();
    assert!(
        texts.len() == 2 && !texts[0].contains("The lamp") && texts[1].contains("The lamp was lit"),
        "{output}"
    );
}

/// The classes of sentences that the model was not trained on are those that ONNX Runtime gives, see `lines.txt`.
#[test]
fn text_classifier_by_make() {
    let dir = tempfile::tempdir().unwrap();
    let mut make = make("text", dir.path());
    assert!(
        stdout(make.arg(format!("RUNTIME={}", runtime().display())).arg("run"))
            .starts_with("iris (probability ")
    );
    let lines = std::fs::read_to_string(examples().join("text/lines.txt")).unwrap();
    assert!(lines.lines().count() > 30);
    for line in lines.lines() {
        let (class, sentence) = line.split_once('\t').unwrap();
        let found = stdout(Command::new(dir.path().join("text")).arg(sentence));
        assert!(found.starts_with(&format!("{class} (")), "{sentence}: {found}, not {class}");
    }
}

/// A WAV file of one channel of 16 bits: zeros, then a recording at `eighths` eighths of its loudness.
fn moved(recording: &Path, zeros: usize, eighths: i32, to: &Path) {
    let file = std::fs::read(recording).unwrap();
    let (mut head, data) = (file[..44].to_vec(), &file[44..]);
    assert_eq!(head[36..40], *b"data");
    let mut samples = vec![0; 2 * zeros];
    for sample in data.chunks_exact(2) {
        let sample = (i32::from(i16::from_le_bytes([sample[0], sample[1]])) * eighths) >> 3;
        samples.extend((sample as i16).to_le_bytes());
    }
    head[4..8].copy_from_slice(&(36 + samples.len() as u32).to_le_bytes());
    head[40..44].copy_from_slice(&(samples.len() as u32).to_le_bytes());
    std::fs::write(to, [head, samples].concat()).unwrap();
}

/// An encoder and a decoder in one program find the tokens that a loop over ONNX Runtime finds, see `recorded.txt`.
#[test]
fn speech_in_c_and_in_rust() {
    let (dir, speech) = (tempfile::tempdir().unwrap(), examples().join("speech"));
    let mut make = make("speech", dir.path());
    let said = stdout(make.arg(format!("RUNTIME={}", runtime().display())).arg("run"));
    let wanted =
        "nine minus four equals five\nthree point one four one five nine\nseven plus three equals ten\n";
    assert_eq!(said.lines().map(str::trim_end).collect::<Vec<_>>(), wanted.lines().collect::<Vec<_>>());

    let recorded = std::fs::read_to_string(speech.join("recorded.txt")).unwrap();
    let (mut files, mut wanted) = (vec![], String::new());
    for line in recorded.lines() {
        let (recording, tokens) = line.split_once('\t').unwrap();
        let [name, zeros, eighths] = recording.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let to = dir.path().join(format!("{}.wav", files.len()));
        moved(&speech.join(name), zeros.parse().unwrap(), eighths.parse().unwrap(), &to);
        files.push(to);
        wanted += &format!("{tokens}\n");
    }
    assert!(files.len() > 20);
    let program = dir.path().join("speech");
    assert_eq!(stdout(Command::new(&program).arg("--ids").args(&files)), wanted);
    assert_eq!(stdout(Command::new(&program).args(["--ids", "--threads", "2"]).args(&files)), wanted);
    let twin = rust_speech(dir.path());
    assert_eq!(stdout(Command::new(&twin).arg("--ids").args(&files)), wanted);

    let long = dir.path().join("long.wav");
    moved(&speech.join("sum.wav"), 30_000, 8, &long);
    for (arguments, problem) in [
        (vec![long.to_str().unwrap()], "longer than the model's window"),
        (vec!["Makefile"], "Makefile: "),
        (vec!["--unknown", "x.wav"], "usage"),
        (vec![], "usage"),
    ] {
        for program in [&program, &twin] {
            let output = Command::new(program).args(&arguments).output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && message.contains(problem), "{arguments:?}: {message}");
        }
    }
}

/// The twin of the program in C.
fn rust_speech(dir: &Path) -> PathBuf {
    let speech = examples().join("speech");
    let builder = |name: &str| Builder::new(speech.join(name)).target(host().triple.to_string()).out_dir(dir);
    let encoder = builder("encoder.onnx").generate().unwrap();
    let decoder = builder("decoder.onnx").state("auto").state_capacity(16).generate().unwrap();
    let program = dir.join("program");
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.env("OUT_DIR", dir).args(["--edition", "2024", "--deny", "warnings", "-O"]);
    command.arg("-L").arg(format!("native={}", dir.display()));
    for files in [encoder, decoder] {
        command.arg("-l").arg(format!("static={}", files.name));
    }
    must(command.arg(speech.join("rust/src/main.rs")).arg("-o").arg(&program));
    program
}

/// What examples/chat is built from: its folder of what Cargo made is kept, the rest is made anew.
fn chat(dir: &Path) -> PathBuf {
    let cargo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chat");
    must(make("chat", dir).arg(format!("CARGO_DIR={}", cargo.display())));
    cargo
}

/// Arguments of the program, and the tokens that a loop over ONNX Runtime draws: `make recorded` in examples/chat.
fn recorded_chats() -> Vec<(Vec<String>, String)> {
    let text = std::fs::read_to_string(examples().join("chat/recorded.txt")).unwrap();
    let chats: Vec<_> = text
        .lines()
        .map(|line| {
            let (arguments, tokens) = line.split_once('\t').unwrap();
            (arguments.split(' ').map(String::from).collect(), tokens.replace(' ', "\n") + "\n")
        })
        .collect();
    assert_eq!(chats.len(), 4);
    chats
}

#[test]
fn chat_in_c_and_in_rust() {
    let dir = tempfile::tempdir().unwrap();
    let target = chat(dir.path());
    let program = dir.path().join("chat");
    let twin = rust_chat(&target, dir.path());
    for (arguments, tokens) in recorded_chats() {
        let ids = |program: &Path| stdout(Command::new(program).args(["--ids", "1"]).args(&arguments));
        assert_eq!(ids(&program), tokens, "C {arguments:?}");
        assert_eq!(ids(&twin), tokens, "Rust {arguments:?}");
        let threads = stdout(Command::new(&program).args(["--ids", "1", "--threads", "2"]).args(&arguments));
        assert_eq!(threads, tokens, "two threads {arguments:?}");
        let text = |program: &Path| stdout(Command::new(program).args(&arguments));
        let continued = text(&program);
        assert!(
            continued.starts_with("It is a truth universally acknowledged, that") && continued.len() > 300
        );
        assert_eq!(continued, text(&twin), "{arguments:?}");
    }
    // Characters of several tokens come back as they were.
    let prompt = "na\u{ef}ve \u{a3} \u{65e5}\u{672c} \u{1f600}";
    assert_eq!(stdout(Command::new(&program).args(["--tokens", "0", prompt])), prompt);
    for wrong in [&["--top-p", "2", "x"][..], &["--seed"], &["--unknown", "1", "x"], &["--threads", "x"]] {
        let output = Command::new(&program).args(wrong).output().unwrap();
        assert!(
            !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("usage"),
            "{wrong:?}"
        );
    }
}

/// Eight draws for each case, of the sampler in C and of that in Rust. A case is temperature, top_k, top_p, seed and logits.
fn draws(cases: &[(f64, usize, f64, u64, Vec<f32>)]) -> [Vec<Vec<i64>>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let (program, input, chat) =
        (dir.path().join("sampler"), dir.path().join("cases"), examples().join("chat"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsanitize=undefined", "-I"])
        .arg(&chat);
    must(cc.arg(source("sampler.c")).arg(chat.join("sampler.c")).arg("-lm").arg("-o").arg(&program));
    let text: String = cases
        .iter()
        .map(|(temperature, top_k, top_p, seed, logits)| {
            let list: String = logits.iter().map(|logit| format!(" {logit}")).collect();
            format!("{temperature} {top_k} {top_p} {seed} {}{list}\n", logits.len())
        })
        .collect();
    std::fs::write(&input, text).unwrap();
    let output = stdout(Command::new(&program).stdin(std::fs::File::open(&input).unwrap()));
    let numbers = |line: &str| line.split_whitespace().map(|text| text.parse().unwrap()).collect();
    let rust = cases.iter().map(|&(temperature, top_k, top_p, state, ref logits)| {
        let mut sampler = sampler::Sampler { temperature, top_k, top_p, state };
        (0..8).map(|_| sampler.next(logits).map_or(-1, |token| token as i64)).collect()
    });
    [output.lines().map(numbers).collect(), rust.collect()]
}

#[test]
fn samplers_of_both_languages_draw_the_same() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut cases = vec![];
    for seed in 0..2000 {
        let count = random.usize(1..=64);
        // Equal ones are frequent.
        let logits = (0..count).map(|_| (random.f32() * 12.0).round() / 2.0).collect();
        let temperature = [0.0, 0.3, 1.0, 2.5][random.usize(0..4)];
        cases.push((
            temperature,
            random.usize(0..70),
            [0.0, 0.3, 0.9, 1.0][random.usize(0..4)],
            seed,
            logits,
        ));
    }
    let [c, rust] = draws(&cases);
    assert_eq!(c.len(), cases.len());
    for (case, (c, rust)) in cases.iter().zip(c.iter().zip(&rust)) {
        assert_eq!(c, rust, "{case:?}");
    }
}

#[test]
fn samplers_keep_to_their_rules() {
    let (low, inf) = (f32::NEG_INFINITY, f32::INFINITY);
    let cases = vec![
        // The greatest; of equal ones that of the lowest number.
        (0.0, 0, 1.0, 1, vec![1.0, 3.0, 3.0]),
        (1.0, 1, 1.0, 2, vec![1.0, 3.0, 3.0]),
        (1.0, 0, 0.0, 3, vec![1.0, 3.0, 3.0]),
        // Of three equal ones the first two, by count and by share.
        (1.0, 2, 1.0, 4, vec![5.0, 0.0, 5.0, 5.0]),
        (1.0, 3, 0.6, 5, vec![5.0, 0.0, 5.0, 5.0]),
        // What has no weight is never drawn.
        (9.0, 0, 1.0, 6, vec![low, 0.5, low, 0.25]),
        // Logits that are none.
        (1.0, 0, 1.0, 7, vec![0.0, f32::NAN]),
        (0.0, 0, 1.0, 8, vec![f32::NAN, 0.0]),
        (1.0, 0, 1.0, 9, vec![0.0, inf]),
        (1.0, 0, 1.0, 10, vec![low, low]),
    ];
    let allowed: [&[i64]; 10] = [&[1], &[1], &[1], &[0, 2], &[0, 2], &[1, 3], &[-1], &[-1], &[-1], &[-1]];
    for drawn in draws(&cases) {
        assert_eq!(drawn.len(), cases.len());
        for (case, (drawn, allowed)) in cases.iter().zip(drawn.iter().zip(allowed)) {
            let mut found = drawn.clone();
            found.sort();
            found.dedup();
            assert_eq!(found, allowed, "{case:?}");
        }
    }
}

#[test]
fn c_program_by_cmake() {
    if Command::new("cmake").arg("--version").output().is_err() {
        eprintln!("cmake is not installed: its example is not tried");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(examples().join("c")).arg("-B").arg(dir.path()).arg(format!("-DONNXC={ONNXC}"));
    must(&mut configure);
    must(Command::new("cmake").arg("--build").arg(dir.path()));
    assert_predicted(&stdout(&mut Command::new(dir.path().join("digits"))));
}

/// A program of `main.rs` with the wrapper of a model in `OUT_DIR`; `crates` are names and files.
fn compile_rust(builder: Builder, main: &Path, dir: &Path, crates: &[(&str, PathBuf)]) -> PathBuf {
    let files = builder.target(host().triple.to_string()).cpu("native").out_dir(dir).generate().unwrap();
    let program = dir.join("program");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.env("OUT_DIR", dir).args(["--edition", "2024", "--deny", "warnings"]);
    command.arg("-L").arg(format!("native={}", dir.display()));
    command.arg("-l").arg(format!("static={}", files.name));
    for (name, file) in crates {
        command.arg("--extern").arg(format!("{name}={}", file.display()));
        command.arg("-L").arg(format!("dependency={}", file.parent().unwrap().display()));
    }
    must(command.arg(main).arg("-o").arg(&program));
    program
}

/// The output of that program.
fn run_rust(builder: Builder, main: &Path, dir: &Path) -> String {
    let runtime = [("onnxc_runtime_support", runtime_crate())];
    stdout(&mut Command::new(compile_rust(builder, main, dir, &runtime)))
}

/// The twin of the program in C, with the library that Cargo made for that one beneath `target`.
fn rust_chat(target: &Path, dir: &Path) -> PathBuf {
    let chat = examples().join("chat");
    let mut build = cargo();
    build.args(["build", "--release", "--message-format", "json", "--target-dir"]);
    let messages = stdout(quickly(&mut build).arg(target).current_dir(chat.join("tokenizer")));
    let library =
        messages.split('"').find(|text| text.contains("/libtokenizers-") && text.ends_with(".rlib"));
    let crates = [("tokenizers", library.expect("a library").into())];
    compile_rust(
        Builder::new(chat.join("chat.onnx")).state("auto"),
        &chat.join("rust/src/main.rs"),
        dir,
        &crates,
    )
}

#[test]
fn rust_program_with_a_static_model() {
    let dir = tempfile::tempdir().unwrap();
    let main = examples().join("rust/src/main.rs");
    assert_predicted(&run_rust(Builder::new(examples().join("digits/digits.onnx")), &main, dir.path()));
}

const STATE_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/sums.rs"));

fn main() -> Result<(), sums::Error> {
    let mut model = sums::Sums::new();
    let mut state = sums::State::new(5)?;
    let first = model.run(&mut state, 2, &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0])?;
    assert_eq!(*first.y, [11.0, 22.0, 33.0]);
    let mut other = state.clone();
    let saved = state.as_bytes().to_vec();
    assert_eq!(*model.run(&mut state, 1, &[100.0, 0.0, 0.0])?.y, [111.0, 22.0, 33.0]);
    assert_eq!(*model.run(&mut other, 1, &[0.0, 0.0, 7.0])?.y, [11.0, 22.0, 40.0]);
    assert_eq!((state.past(), other.past()), (3, 3));
    state.truncate_past(1);
    assert_eq!(*model.run(&mut state, 0, &[])?.y, [1.0, 2.0, 3.0]);
    assert!(state.restore(&saved) && !state.restore(&saved[1..]));
    let full = model.run(&mut state, 4, &[0.0; 12]).err().unwrap();
    assert_eq!((full.status, full.message.as_str()), (18, "the state is full: `past` would become 6, and there is room for 5"));
    assert_eq!(*model.run(&mut state, 0, &[])?.y, [11.0, 22.0, 33.0]);
    state.reset();
    assert_eq!(state.past(), 0);
    assert!(sums::State::new(usize::MAX / 2).is_err());
    println!("good");
    Ok(())
}
"#;

#[test]
fn rust_program_with_state() {
    let dir = tempfile::tempdir().unwrap();
    let (path, main) = (dir.path().join("sums.onnx"), dir.path().join("main.rs"));
    std::fs::write(&path, sample_models::sums()).unwrap();
    std::fs::write(&main, STATE_MAIN).unwrap();
    assert_eq!(run_rust(Builder::new(&path).state("rows=more"), &main, dir.path()), "good\n");
}

const SYMBOLIC_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/pairs.rs"));

fn main() -> Result<(), pairs::Error> {
    let mut model = pairs::Pairs::new();
    for batch in [2usize, 0, 5, 1] {
        let x: Vec<f32> = (0..3 * batch).map(|i| i as f32).collect();
        let outputs = model.run(batch, &x)?;
        assert_eq!(outputs.twice_dims, [2 * batch, 3]);
        let want: Vec<f32> = x.iter().copied().chain(x.iter().map(|v| -v)).collect();
        assert_eq!(outputs.twice, want);
    }
    let mut small = [0.0; 3];
    for error in [
        model.run(2, &[1.0; 5]).err(),
        model.run(usize::MAX, &[]).err(),
        model.run(usize::MAX / 4, &[]).err(),
        model.run_into(1, &[1.0; 3], &mut small).err(),
    ] {
        println!("{}", error.unwrap());
    }
    Ok(())
}
"#;

#[test]
fn rust_program_with_a_symbolic_model() {
    let dir = tempfile::tempdir().unwrap();
    let (model, main) = (dir.path().join("pairs.onnx"), dir.path().join("main.rs"));
    std::fs::write(&model, sample_models::symbolic()).unwrap();
    std::fs::write(&main, SYMBOLIC_MAIN).unwrap();
    let output = run_rust(Builder::new(&model), &main, dir.path());
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 4, "{output}");
    assert_eq!(lines[0], "`x` has 5 elements, not those of [2, 3]");
    assert_eq!(lines[1], format!("the size `batch` of {} does not fit", usize::MAX));
    assert!(lines[2].contains("4611686018427387903") || lines[2].contains("64 bits"), "{output}");
    assert_eq!(lines[3], "`twice` has 3 elements, not those of [2, 3]");
}

const ALL_KINDS_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/kinds.rs"));

fn main() -> Result<(), kinds::Error> {
    let mut model = kinds::Kinds::new();
    for repeat in [1, 3] {
        let words = vec!["é", "", "a longer one than sixteen bytes"].repeat(repeat);
        let x = [0.0, 2.0, 0.0, 15.0, 7.0];
        let outputs = model.run(words.len(), x.len(), 3, &words, &["!"], &["one two  three"], &x, &[2, 0, 3])?;
        assert_eq!(outputs.joined[..3], ["é!", "!", "a longer one than sixteen bytes!"]);
        assert_eq!(outputs.joined_dims, [3 * repeat]);
        assert_eq!((&outputs.parts[..], outputs.parts_dims), (&["one", "two", "three"].map(String::from)[..], [1, 3]));
        assert_eq!((&outputs.places[..], outputs.places_dims), (&[1, 3, 4][..], [1, 3]));
        assert_eq!(outputs.small, [0x20, 0xf0, 0x07]);
        let pieces: Vec<(Vec<usize>, &[f32])> = outputs.pieces().collect();
        assert_eq!(pieces, [(vec![2], &x[..2]), (vec![0], &[]), (vec![3], &x[2..])]);
    }
    let few = model.run(1, 1, 1, &[], &["!"], &[""], &[0.0], &[1]).err();
    println!("{}", few.unwrap());
    let unequal = model.run(0, 1, 1, &[], &["!"], &[""], &[0.0], &[2]).err();
    println!("{}", unequal.unwrap());
    Ok(())
}
"#;

#[test]
fn rust_program_with_values_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let (model, main) = (dir.path().join("kinds.onnx"), dir.path().join("main.rs"));
    std::fs::write(&model, sample_models::all_kinds()).unwrap();
    std::fs::write(&main, ALL_KINDS_MAIN).unwrap();
    let output = run_rust(Builder::new(&model), &main, dir.path());
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2, "{output}");
    assert_eq!(lines[0], "`words` has 0 elements, not those of [1]");
    assert!(lines[1].contains("SplitToSequence"), "{output}");
}

const BARE_LIBRARY: &str = r#"
#![no_std]

include!(concat!(env!("OUT_DIR"), "/digits.rs"));

use core::cell::UnsafeCell;

/// A model in static memory.
struct Cell(UnsafeCell<digits::Digits>);

// SAFETY: the program has one thread.
unsafe impl Sync for Cell {}

static MODEL: Cell = Cell(UnsafeCell::new(digits::Digits::new()));

pub fn classify(image: &[f32; 64], probabilities: &mut [f32; 10]) -> Result<(), digits::Error> {
    // SAFETY: as above.
    unsafe { &mut *MODEL.0.get() }.run_into(image, probabilities)
}
"#;

const BARE_MAIN: &str = r#"
fn main() {
    let text = std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap();
    let list = text.split(['[', ']']).nth(1).unwrap();
    let image: Vec<f32> = list.split(',').map(|pixel| pixel.trim().parse().unwrap()).collect();
    let mut probabilities = [0.0; 10];
    bare::classify(&image.try_into().unwrap(), &mut probabilities).unwrap();
    let best = probabilities.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    println!("predicted {} (probability {:.3}), label 9", best.0, best.1);
}
"#;

/// A library without the standard library, called by a program that has it.
#[test]
fn rust_library_without_std() {
    let dir = tempfile::tempdir().unwrap();
    let files = Builder::new(examples().join("digits/digits.onnx")).no_std();
    let files = files.target(host().triple.to_string()).cpu("native").out_dir(dir.path()).generate().unwrap();
    let (library, main) = (dir.path().join("bare.rs"), dir.path().join("main.rs"));
    std::fs::write(&library, BARE_LIBRARY).unwrap();
    std::fs::write(&main, BARE_MAIN).unwrap();
    let rustc = || {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc
            .env("OUT_DIR", dir.path())
            .args(["--edition", "2024", "--deny", "warnings"])
            .current_dir(dir.path());
        rustc.arg("-L").arg(dir.path());
        rustc
    };
    must(rustc().args(["--crate-type", "rlib", "-l", &format!("static={}", files.name)]).arg(&library));
    must(rustc().args(["--extern", "bare=libbare.rlib", "-o", "program"]).arg(&main));
    let sample = examples().join("digits/sample.json");
    assert_predicted(&stdout(Command::new(dir.path().join("program")).arg(sample)));
}

#[test]
fn models_that_need_std_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (model, message) in [
        (sample_models::symbolic(), "`x`: f32[batch, 3], with sizes that are not static,"),
        (sample_models::all_kinds(), "in a wrapper without `std`"),
    ] {
        let path = dir.path().join("m.onnx");
        std::fs::write(&path, model).unwrap();
        let builder = Builder::new(&path).no_std().target(host().triple.to_string()).out_dir(dir.path());
        let failure = builder.generate().unwrap_err().to_string();
        assert!(failure.contains(message), "{failure}");
    }
}

const THREADS_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/product.rs"));

use onnxc_runtime_support::Pool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = product::Product::new();
    let matrix: Vec<f32> = (0..300 * 300).map(|at| (at * 7919 % 1009) as f32 - 500.0).collect();
    let alone = model.run(300, &matrix)?;
    let pool = std::sync::Arc::new(Pool::new(3)?);
    model.pool = Some(pool.clone());
    let together = model.run(300, &matrix)?;
    assert_eq!(alone.y, together.y);
    drop(model);
    assert_eq!(std::sync::Arc::strong_count(&pool), 1);
    println!("good");
    Ok(())
}
"#;

#[test]
fn rust_program_with_threads() {
    let value = build::f32_value;
    let nodes = vec![build::node("MatMul", &["x", "x"], &["y"])];
    let graph = build::graph(vec![value("x", &["n", "n"])], nodes, vec![value("y", &["n", "n"])]);
    let dir = tempfile::tempdir().unwrap();
    let (model, main) = (dir.path().join("product.onnx"), dir.path().join("main.rs"));
    std::fs::write(&model, build::model(17, graph).encode_to_vec()).unwrap();
    std::fs::write(&main, THREADS_MAIN).unwrap();
    assert_eq!(run_rust(Builder::new(&model).threads(), &main, dir.path()), "good\n");
}
