//! `--training` of all commands, and `run --train`: batches from arrays and from folders, saved and restored states.

use std::fs;
use std::path::Path;

use onnxc::cli::files;
use onnxc_ir::graph::Tensor;
use onnxc_proto::TensorProto;
use prost::Message;
use tempfile::TempDir;

use crate::onnxc;

/// A folder with the model of examples/train, and arrays of its first images.
fn folder(images: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train");
    fs::copy(examples.join("digits.onnx"), folder.path().join("digits.onnx")).unwrap();
    let data = fs::read(examples.join("digits.bin")).unwrap();
    let records: Vec<&[u8]> = data.chunks(33).take(images).collect();
    let halves = |byte: u8| [byte & 15, byte >> 4].map(|pixel| f32::from(pixel) / 15.0);
    let pixels: Vec<f32> =
        records.iter().flat_map(|record| &record[1..]).flat_map(|&byte| halves(byte)).collect();
    let labels: Vec<i64> = records.iter().map(|record| i64::from(record[0])).collect();
    let write = |name: &str, tensor: &Tensor| files::write_npy(&folder.path().join(name), tensor).unwrap();
    write("images.npy", &Tensor::from_slice(&[images, 1, 8, 8], &pixels));
    write("labels.npy", &Tensor::from_slice(&[images], &labels));
    write("rate.npy", &Tensor::from_slice(&[], &[3e-3f32]));
    folder
}

const TRAIN: [&str; 9] = [
    "run",
    "digits.onnx",
    "--train",
    "--input",
    "images=images.npy",
    "--input",
    "labels=labels.npy",
    "--input",
    "rate=rate.npy",
];

fn losses(out: &str) -> Vec<f64> {
    out.lines().map(|line| line.split_once("loss ").unwrap().1.parse().unwrap()).collect()
}

#[test]
fn training_goes_on_where_it_was_saved() {
    // The last batch is smaller than the others.
    let folder = folder(200);
    let train = |more: &[&str]| onnxc(folder.path(), &[&TRAIN[..], more].concat());
    let whole = train(&["--epochs", "6", "--save", "whole"]);
    assert_eq!(whole.code, 0, "{}", whole.err);
    assert!(whole.err.contains("train_step takes `images`, `labels`, `rate`, gives `probabilities`, `loss`"));
    let found = losses(&whole.out);
    assert!(found.len() == 6 && found[5] < 0.6 * found[0], "{}", whole.out);
    let half = train(&["--epochs", "3", "--save", "half"]);
    assert_eq!(losses(&half.out), found[..3]);
    let rest = train(&["--epochs", "3", "--restore", "half", "--save", "rest"]);
    assert_eq!(losses(&rest.out), found[3..]);
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("rest") == read("whole") && read("half") != read("whole"));
    // By names, in the form of NumPy.
    train(&["--epochs", "3", "--save", "half.npz"]);
    let rest = train(&["--epochs", "3", "--restore", "half.npz", "--save", "rest"]);
    assert_eq!(losses(&rest.out), found[3..], "{}", rest.err);
    assert!(read("rest") == read("whole"));
    assert_eq!(&read("half.npz")[..4], b"PK\x03\x04");
    // Other random weights.
    assert_ne!(losses(&train(&["--seed", "5"]).out)[0], found[0]);
    let json = train(&["--epochs", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["batches"], 7);
    let printed: f64 =
        format!("{:.6}", json["epochs"][0]["means"]["loss"].as_f64().unwrap()).parse().unwrap();
    assert_eq!(printed, found[0]);
}

#[test]
fn batches_in_folders() {
    let folder = folder(64);
    for (batch, rows) in [0..32, 32..64].into_iter().enumerate() {
        let place = folder.path().join(format!("data/batch_{batch}"));
        fs::create_dir_all(&place).unwrap();
        for (at, name) in ["images", "labels", "rate"].iter().enumerate() {
            let whole = files::read_tensor(&folder.path().join(format!("{name}.npy")), None).unwrap();
            let row = whole.data.len() / whole.shape.first().unwrap_or(&1);
            let mut dims: Vec<i64> = whole.shape.iter().map(|&size| size as i64).collect();
            let mut bytes = whole.data.clone();
            if let Some(size) = dims.first_mut() {
                (*size, bytes) = (32, bytes.slice(rows.start * row..rows.end * row));
            }
            let proto = TensorProto {
                dims,
                data_type: Some(whole.dtype.to_onnx()),
                raw_data: Some(bytes),
                ..Default::default()
            };
            fs::write(place.join(format!("input_{at}.pb")), proto.encode_to_vec()).unwrap();
        }
    }
    let arrays = onnxc(folder.path(), &[&TRAIN[..], &["--epochs", "2"]].concat());
    let folders = onnxc(folder.path(), &["run", "digits.onnx", "--train", "--data", "data", "--epochs", "2"]);
    assert_eq!((folders.code, &folders.out), (0, &arrays.out), "{}", folders.err);
}

#[test]
fn wrong_calls_are_refused() {
    let folder = folder(8);
    fs::copy(crate::digits(), folder.path().join("plain.onnx")).unwrap();
    fs::write(folder.path().join("short"), [0; 100]).unwrap();
    fs::write(folder.path().join("other"), vec![7; 54848]).unwrap();
    fs::write(folder.path().join("fake.npz"), vec![7; 54848]).unwrap();
    files::write_npy(&folder.path().join("few.npy"), &Tensor::from_slice(&[3], &[0i64; 3])).unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    for (arguments, wanted) in [
        (&["run", "plain.onnx", "--train"][..], "the model has no training_info"),
        (&["plain.onnx", "--training"], "the model has no training_info"),
        (&TRAIN[..7], "input `rate` of the step is missing"),
        (&["run", "digits.onnx", "--train", "--input", "image=images.npy"], "did you mean `images`?"),
        (&["run", "digits.onnx", "--train", "--input", "images=labels.npy"], "input `images` is f32"),
        (
            &["run", "digits.onnx", "--train", "--data", "empty"],
            "empty: neither input_0.pb nor folders that have one",
        ),
        (&[&TRAIN[..], &["--restore", "short"]].concat(), "short is not a state of this model: 100 bytes"),
        (
            &[&TRAIN[..], &["--restore", "other"]].concat(),
            "other is not a state of this model: it is of another",
        ),
        (
            &[&TRAIN[..5], &["--input", "labels=few.npy", "--input", "rate=rate.npy"]].concat(),
            "`labels` has 3 rows, and `images` has 8",
        ),
        (
            &[&TRAIN[..], &["--restore", "fake.npz"]].concat(),
            "fake.npz: not a zip archive, as .npz files are",
        ),
        (&[&TRAIN[..], &["--restore", "none.npz"]].concat(), "none.npz"),
        (&["run", "digits.onnx", "--save", "x"], "--train"),
    ] {
        let run = onnxc(folder.path(), arguments);
        assert!(run.code != 0 && run.err.contains(wanted), "{arguments:?}: {}", run.err);
        assert!(!folder.path().join("x").exists());
    }
}

#[test]
fn commands_say_what_training_has() {
    let folder = folder(1);
    let run = onnxc(folder.path(), &["inspect", "digits.onnx", "--training"]);
    assert_eq!(run.code, 0, "{}", run.err);
    for line in ["train_initialize:", "train_step:", "  input labels: i64[n]", "  output loss: f32[]"] {
        assert!(run.out.lines().any(|own| own == line), "{line}\n{}", run.out);
    }
    assert!(run.out.contains("state conv.weight: f32[8, 1, 3, 3], is only read"), "{}", run.out);
    assert!(run.out.contains("  changes: conv.weight, conv.bias, "), "{}", run.out);
    let json = onnxc(folder.path(), &["inspect", "digits.onnx", "--training", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["entries"][1]["changes"].as_array().unwrap().len(), 19);
    let run = onnxc(folder.path(), &["check", "digits.onnx", "--training"]);
    assert!(
        run.code == 0 && run.out.contains("train_initialize takes nothing, gives nothing and changes"),
        "{}",
        run.out
    );
    let run = onnxc(folder.path(), &["check", "digits.onnx"]);
    assert!(run.out.contains("training_info is ignored (1 entry); --training compiles it"), "{}", run.out);
    let run = onnxc(folder.path(), &["digits.onnx", "--training", "-o", "net.o"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let header = fs::read_to_string(folder.path().join("net.h")).unwrap();
    for text in
        ["int32_t net_train_step(", "int32_t net_train_initialize(", "int32_t net_run(", "net_state_reset("]
    {
        assert_eq!(header.matches(text).count(), if text == "net_state_reset(" { 2 } else { 1 }, "{text}");
    }
    // Inference with the initial values, which are 0.
    let run = onnxc(folder.path(), &["run", "digits.onnx", "--training", "--input", "images.npy"]);
    assert!(run.code == 0 && run.out.contains("0.1"), "{}{}", run.out, run.err);
}

/// Bytes that are too few even where all that can be is computed again: the object is compiled, and a note has the bytes it needs.
#[test]
fn too_few_bytes_for_a_step_are_a_note() {
    let folder = folder(1);
    let notes = |bytes: usize| {
        let recompute = format!("--recompute={bytes}");
        let arguments = ["digits.onnx", "--training", &recompute, "--input-dim", "n=8", "-o", "m.o"];
        let run = onnxc(folder.path(), &arguments);
        assert_eq!(run.code, 0, "{}", run.err);
        run.err.lines().filter(|line| line.contains("--recompute: ")).map(String::from).collect::<Vec<_>>()
    };
    let few = notes(1000);
    assert!(
        few.len() == 1 && few[0].contains("train_step needs ") && few[0].contains(", and 1000 are"),
        "{few:?}"
    );
    assert_eq!(notes(1 << 30), Vec::<String>::new());
}
