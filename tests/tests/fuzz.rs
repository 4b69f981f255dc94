//! A short run of mutated models. The long one: `cargo run --release -p onnxc-tests --bin fuzz -- --cases 200000`.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::error::Kind;
use onnxc_proto::Budget;

#[test]
fn mutated_models_compile_or_are_refused() {
    let arguments = ["--cases", "3000", "--patience", "30"];
    let run = Command::new(env!("CARGO_BIN_EXE_fuzz")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
}

/// Reads a text and prints it, and reads that.
fn turns<T: ToString>(text: &str, parse: impl Fn(&str) -> onnxc_ir::error::Result<T>) -> bool {
    let Ok(read) = parse(text) else { return false };
    let printed = read.to_string();
    let again = parse(&printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
    assert_eq!(again.to_string(), printed);
    true
}

/// What coverage-guided fuzzers keep, through the same functions as there; see `tests/fuzz`.
#[test]
fn the_corpora_of_the_fuzzers_are_handled() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let files = |target: &str| {
        let folder = std::fs::read_dir(corpora.join(target)).unwrap();
        let files: Vec<Vec<u8>> = folder.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
        let bytes: usize = files.iter().map(Vec::len).sum();
        assert!(!files.is_empty() && bytes <= 16 << 10, "{target}: {} files of {bytes} bytes", files.len());
        files
    };
    for target in ["jpeg", "bmp", "pnm", "png", "webp", "tiff", "jpeg2000"] {
        files(target).iter().for_each(|stream| drop(onnxc_runtime_images::decode(stream)));
    }
    for message in files("proto") {
        if let Ok(model) = onnxc_proto::decode(message.into(), &Budget::default()) {
            let again = onnxc_proto::decode(onnxc_proto::encode(&model).into(), &Budget::default());
            assert_eq!(format!("{:?}", again.unwrap()), format!("{model:?}"));
        }
    }
    let imported = files("import").into_iter().map(|file| {
        let model = onnxc_proto::decode(Bytes::from(file), &Budget::default()).unwrap();
        let graph = import(&model, &ImportOptions::default(), &NoExternalData, onnxc::operators());
        let errors = graph.as_ref().err().into_iter().flatten();
        errors.for_each(|error| assert!(error.kind != Kind::Internal, "{error}"));
        graph.is_ok()
    });
    assert!(imported.filter(|&imported| imported).count() >= 4);
    let mut read = [0; 4];
    for text in files("texts") {
        let text = String::from_utf8(text).unwrap();
        read[0] += i32::from(turns(&text, onnxc_ir::graph::parse::parse));
        read[1] += i32::from(turns(&text, onnxc_loops::parse::parse));
        read[2] += i32::from(turns(&text, onnxc_machine::vector::parse::parse));
        read[3] += i32::from(turns(&text, onnxc_object::host::parse::parse));
    }
    assert!(read.iter().all(|&read| read > 0), "graphs, loops, vector code and host programs: {read:?}");
}
