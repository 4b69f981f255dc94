//! What becomes of files: outputs that replace nothing else, pairs of object and header that belong together.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use onnxc_proto::build;
use prost::Message;

use crate::{folder, names, onnxc};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc");

#[test]
fn the_extension_says_what_to_write() {
    let folder = folder();
    let starts = |file: &str| fs::read(folder.path().join(file)).unwrap();
    for (file, start) in [
        ("a.o", &b"\x7fELF"[..]),
        ("b.obj", b"\x7fELF"),
        ("c.so", b"\x7fELF"),
        ("e.a", b"!<arch>"),
        ("f.h", b"/*"),
    ] {
        let run = onnxc(folder.path(), &["digits.onnx", "-o", file]);
        assert_eq!(run.code, 0, "{file}: {}", run.err);
        assert!(starts(file).starts_with(start), "{file}");
    }
    // The kind of an ELF file: 1 is relocatable, 3 shared.
    assert_eq!((starts("a.o")[16], starts("c.so")[16]), (1, 3));
    assert!(!folder.path().join("f.o").exists());
    assert_eq!(onnxc(folder.path(), &["digits.onnx", "--emit", "obj", "-o", "odd.bin"]).code, 0);
    assert_eq!(onnxc(folder.path(), &["digits.onnx", "--emit", "so", "-o", "c.so"]).code, 0);
    assert_eq!(onnxc(folder.path(), &["digits.onnx", "--emit", "asm", "-o", "text.s"]).code, 0);

    let before = names(folder.path());
    for (arguments, parts) in [
        (
            &["-o", "x.foo"][..],
            &["x.foo: the extension does not say", ".o (obj), .obj (obj), .a (lib), .so (so)"][..],
        ),
        (&["-o", "x"], &["x: the extension does not say"]),
        (&["-o", "x.so", "--emit", "obj"], &["the extension says --emit=so, the flag --emit=obj"]),
        (&["-o", "x.o", "--emit", "asm"], &["the extension says --emit=obj, the flag --emit=asm"]),
        (&["-o", "x.h", "--emit", "obj"], &["the extension says --emit=header, the flag --emit=obj"]),
        (&["-o", "-"], &["standard output"]),
    ] {
        let run = onnxc(folder.path(), &[&["digits.onnx"], arguments].concat());
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.err);
        assert!(parts.iter().all(|part| run.err.contains(part)), "{arguments:?}: {}", run.err);
    }
    assert_eq!(names(folder.path()), before);
}

#[test]
#[cfg(unix)]
fn outputs_replace_no_input_and_nothing_but_files() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let model = fs::read(at("digits.onnx")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe.o")).status().unwrap().success());
    symlink("/dev/null", at("null.o")).unwrap();
    symlink("digits.onnx", at("link.o")).unwrap();
    fs::copy(at("digits.onnx"), at("m.h")).unwrap();
    fs::copy(at("digits.onnx"), at("m.o")).unwrap();
    for (arguments, part) in [
        (&["digits.onnx", "-o", "pipe.o"][..], "pipe.o: a device, a pipe or a socket"),
        (&["digits.onnx", "-o", "null.o"], "null.o: a device"),
        (&["digits.onnx", "--emit", "asm", "-o", "/dev/null"], "/dev/null: a device"),
        (&["digits.onnx", "--emit", "asm", "-o", "digits.onnx"], "would replace the input digits.onnx"),
        (&["digits.onnx", "--emit", "obj", "-o", "./digits.onnx"], "would replace the input digits.onnx"),
        (&["digits.onnx", "-o", "link.o"], "would replace the input digits.onnx"),
        (&["m.o"], "m.o: the output would replace the input m.o"),
        (&["m.h", "-o", "m.o"], "m.h: the output would replace the input m.h"),
    ] {
        let run = onnxc(folder.path(), arguments);
        assert!(run.code == 2 && run.err.contains(part), "{arguments:?}: {} {}", run.code, run.err);
    }
    for file in ["digits.onnx", "m.h", "m.o"] {
        assert_eq!(fs::read(at(file)).unwrap(), model, "{file}");
    }
    assert!(fs::metadata(at("pipe.o")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(at("null.o")).unwrap().is_symlink());
}

/// `y = x + w`, with `w` in a file of its own.
#[test]
fn external_data_is_an_input_too() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |key: &str, value: &str| onnxc_proto::StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    let w = onnxc_proto::TensorProto {
        external_data: vec![entry("location", "w.h")],
        data_location: Some(1),
        float_data: vec![],
        ..build::f32_tensor("w", &[4], vec![])
    };
    let value = |name| build::f32_value(name, &["4"]);
    let mut graph =
        build::graph(vec![value("x")], vec![build::node("Add", &["x", "w"], &["y"])], vec![value("y")]);
    graph.initializer.push(w);
    fs::write(folder.path().join("m.onnx"), build::model(17, graph).encode_to_vec()).unwrap();
    fs::write(folder.path().join("w.h"), [7; 16]).unwrap();
    let run = onnxc(folder.path(), &["m.onnx", "-o", "w.o"]);
    assert!(run.code == 2 && run.err.contains("w.h: the output would replace the input"), "{}", run.err);
    assert_eq!(fs::read(folder.path().join("w.h")).unwrap(), [7; 16]);
    assert_eq!(names(folder.path()), ["m.onnx", "w.h"]);
}

#[test]
#[cfg(unix)]
fn pipes_are_no_models() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("m.onnx");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["check", "inspect", "compile", "run"] {
        let mut child = Command::new(ONNXC)
            .args([command.as_ref(), pipe.as_os_str()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who waits for the pipe gets the end of a file, and says something else.
        while child.try_wait().unwrap().is_none() {
            drop(fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe));
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains("not a regular file"), "{command}: {text}");
    }
}

/// The header cannot take its place: the object stays the old one.
#[test]
fn object_and_header_are_replaced_together() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("x.o"), "old object").unwrap();
    fs::create_dir(at("x.h")).unwrap();
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "x.o"]);
    assert!(run.code == 1 && run.err.contains("x.h"), "{}", run.err);
    assert_eq!(fs::read(at("x.o")).unwrap(), b"old object");
    assert_eq!(names(folder.path()), ["digits.onnx", "x.h", "x.o"]);
}

/// The disk is full, or a limit of the user's reached: the old pair stays, and nothing else.
#[test]
#[cfg(unix)]
fn full_disks_leave_the_old_pair() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("x.o"), "old object").unwrap();
    fs::write(at("x.h"), "old header").unwrap();
    // The header still fits. Whether the signal is ignored or not, writing fails as on a full disk.
    for signal in ["", "trap '' XFSZ; "] {
        let script = format!("{signal}ulimit -f 8; exec {ONNXC} digits.onnx -o x.o");
        let output = Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && text.contains("x.o: File too large"), "{text}");
        assert_eq!(fs::read(at("x.o")).unwrap(), b"old object");
        assert_eq!(fs::read(at("x.h")).unwrap(), b"old header");
        assert_eq!(names(folder.path()), ["digits.onnx", "x.h", "x.o"]);
    }
}

#[test]
#[cfg(unix)]
fn outputs_keep_their_modes_and_follow_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    let compile = || {
        let run = onnxc(folder.path(), &["digits.onnx", "-O0", "-o", "x.o"]);
        assert_eq!(run.code, 0, "{}", run.err);
    };
    compile();
    let usual = mode("x.h");
    for (name, bits) in [("x.o", 0o640), ("x.h", 0o604)] {
        fs::write(at(name), "old").unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(bits)).unwrap();
    }
    compile();
    assert_eq!((mode("x.o"), mode("x.h")), (0o640, 0o604));

    // One link to a link to a file in another folder, one to where no file is yet.
    fs::remove_file(at("x.o")).unwrap();
    fs::remove_file(at("x.h")).unwrap();
    fs::create_dir(at("store")).unwrap();
    fs::write(at("store/real.o"), "old").unwrap();
    fs::set_permissions(at("store/real.o"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("real.o", at("store/second.o")).unwrap();
    symlink("store/second.o", at("x.o")).unwrap();
    symlink(at("store/new.h"), at("x.h")).unwrap();
    compile();
    for link in ["x.o", "x.h", "store/second.o"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
    }
    assert!(fs::read(at("store/real.o")).unwrap().starts_with(b"\x7fELF"));
    assert!(fs::read(at("store/new.h")).unwrap().starts_with(b"/*"));
    assert_eq!((mode("store/real.o"), mode("store/new.h")), (0o600, usual));
    assert_eq!(names(&at("store")), ["new.h", "real.o", "second.o"]);
    assert_eq!(names(folder.path()), ["digits.onnx", "store", "x.h", "x.o"]);

    symlink("loop.o", at("loop.o")).unwrap();
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "loop.o"]);
    assert!(run.code > 0 && run.err.contains("loop.o"), "{} {}", run.code, run.err);
}

/// Checks that `x.o` and `x.h` are of the same compilation; gives its name.
fn pair(folder: &Path) -> String {
    let object = fs::read(folder.join("x.o")).unwrap();
    let header = fs::read_to_string(folder.join("x.h")).unwrap();
    let holds = |name: &str| {
        let symbol = format!("{name}_run");
        (object.windows(symbol.len()).any(|part| part == symbol.as_bytes()), header.contains(&symbol))
    };
    match (holds("aaa"), holds("bbb")) {
        ((true, true), (false, false)) => "aaa".into(),
        ((false, false), (true, true)) => "bbb".into(),
        (a, b) => {
            panic!("object and header of different compilations: (object, header) of aaa {a:?}, of bbb {b:?}")
        }
    }
}

/// What distinguishes the files from others that replace them.
#[cfg(unix)]
fn files_in_place(folder: &Path) -> [u64; 2] {
    use std::os::unix::fs::MetadataExt;
    ["x.o", "x.h"].map(|name| fs::metadata(folder.join(name)).unwrap().ino())
}

/// Waits for the process that renames, which a killed compiler may leave: until then it keeps the staging folder locked.
#[cfg(unix)]
fn wait_for_renames(folder: &Path) {
    for name in names(folder).iter().filter(|name| name.starts_with(".onnxc-staging-")) {
        if let Ok(staging) = fs::File::open(folder.join(name)) {
            staging.lock().unwrap();
        }
    }
}

#[test]
#[cfg(unix)]
fn killed_compilers_leave_a_pair() {
    let folder = folder();
    let start = |name: &str| {
        Command::new(ONNXC)
            .args(["digits.onnx", "-O0", "--mcpu", "x86-64", "--target", "x86_64-unknown-linux-gnu"])
            .args(["-o", "x.o", "--name", name])
            .current_dir(folder.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    assert!(start("aaa").wait().unwrap().success());
    let is_staged = || names(folder.path()).iter().any(|name| name.starts_with(".onnxc-staging-"));
    // How often the folder is looked at, once there is something in it, before the compiler is killed.
    let mut looks = 0;
    let mut new = 0;
    for round in 0..80 {
        let name = if pair(folder.path()) == "aaa" { "bbb" } else { "aaa" };
        let before = files_in_place(folder.path());
        let mut child = start(name);
        if round % 2 == 0 {
            // As soon as one of the two is new.
            while child.try_wait().unwrap().is_none() && files_in_place(folder.path()) == before {}
        } else {
            let mut left = looks;
            while child.try_wait().unwrap().is_none() && (!is_staged() || left > 0) {
                left -= u32::from(left > 0 && is_staged());
            }
        }
        let _ = child.kill();
        child.wait().unwrap();
        wait_for_renames(folder.path());
        let is_new = pair(folder.path()) == name;
        new += i32::from(is_new);
        // The next kill comes nearer to the moment of the renames.
        if round % 2 == 1 {
            looks = if is_new { looks * 3 / 4 } else { looks * 5 / 4 + 1 };
        }
    }
    assert!((1..80).contains(&new), "{new} of 80 compilers were killed too late");
    assert!(start("aaa").wait().unwrap().success());
    assert_eq!(names(folder.path()), ["digits.onnx", "x.h", "x.o"]);
}

#[test]
fn compilers_of_one_output_end_with_the_pair_of_one() {
    let folder = folder();
    for _ in 0..8 {
        let mut children: Vec<_> = ["aaa", "bbb", "aaa", "bbb"]
            .iter()
            .map(|name| {
                Command::new(ONNXC)
                    .args(["digits.onnx", "-O0", "-o", "x.o", "--name", name])
                    .current_dir(folder.path())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        pair(folder.path());
    }
    assert_eq!(names(folder.path()), ["digits.onnx", "x.h", "x.o"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_closed_standard_output_is_an_error() {
    let folder = folder();
    let shell = |script: &str| {
        let script = format!("{ONNXC} {script}");
        let output = Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["digits.onnx --emit asm -o -", "inspect digits.onnx", "ops"] {
        let (code, text) = shell(&format!("{command} >&-"));
        assert_eq!((code, text.as_str()), (Some(1), "error: standard output is closed\n"), "{command}");
        let (code, text) = shell(&format!("{command} >/dev/full"));
        assert!(code == Some(1) && text.contains("No space left"), "{command}: {code:?} {text}");
        assert_eq!(shell(&format!("{command} >/dev/null")).0, Some(0), "{command}");
        assert_eq!(shell(&format!("{command} 1<>/dev/null")).0, Some(0), "{command}");
    }
    // A reader that goes away gets no message, and the program ends without success.
    let (code, text) = shell("ops --json | true; exit ${PIPESTATUS[0]}");
    assert_eq!((code, text.as_str()), (Some(1), ""));
    assert_eq!(shell("digits.onnx -o x.o >&-").0, Some(0), "what prints nothing needs none");
}

#[test]
fn memory_that_there_is_not_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let value = |name| build::f32_value(name, &["n"]);
    let node = build::node("ConstantOfShape", &["x"], &["y"]);
    // A size that only the data determines, and one that follows from the input.
    let (x, y) = (build::value("x", 7, &["1"]), build::f32_value("y", &["m"]));
    let models = [
        ("data.onnx", build::graph(vec![x], vec![node], vec![y])),
        (
            "input.onnx",
            build::graph(vec![value("x")], vec![build::node("Relu", &["x"], &["y"])], vec![value("y")]),
        ),
    ];
    for (file, graph) in models {
        fs::write(folder.path().join(file), build::model(17, graph).encode_to_vec()).unwrap();
    }
    let huge = onnxc_ir::graph::Tensor::from_slice(&[1], &[1i64 << 45]);
    onnxc::cli::files::write_npy(&folder.path().join("x.npy"), &huge).unwrap();
    let run = onnxc(folder.path(), &["run", "data.onnx", "--input", "x.npy"]);
    assert!(run.code > 0 && run.err.starts_with("error: "), "{} {}", run.code, run.err);
    for command in [&["run", "--random", "1"][..], &["bench", "--seconds", "0.01"]] {
        let run = onnxc(folder.path(), &[command, &["input.onnx", "--size", "n=35184372088832"]].concat());
        assert_eq!(run.code, 1, "{}", run.err);
        assert!(run.err.contains("no memory for input `x`"), "{}", run.err);
    }
    // An output that is much larger than the input.
    let mut expand = build::graph(
        vec![build::f32_value("x", &["1", "n"])],
        vec![build::node("Expand", &["x", "shape"], &["y"])],
        vec![build::f32_value("y", &["1099511627776", "n"])],
    );
    expand.initializer.push(build::i64_tensor("shape", &[2], vec![1 << 40, 1]));
    fs::write(folder.path().join("wide.onnx"), build::model(17, expand).encode_to_vec()).unwrap();
    let run = onnxc(folder.path(), &["run", "wide.onnx", "--random", "1", "--size", "n=8"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(
        run.err.contains("no memory for output `y` of shape [1099511627776, 8]: 35184372088832 bytes"),
        "{}",
        run.err
    );
}

#[test]
fn runs_replace_none_of_their_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let node = |output| build::node("Neg", &["x"], &[output]);
    let value = |name| build::f32_value(name, &["2"]);
    let graph =
        build::graph(vec![value("x")], vec![node("a/b"), node("a_b")], vec![value("a/b"), value("a_b")]);
    fs::write(at("m.onnx"), build::model(17, graph).encode_to_vec()).unwrap();
    let input = onnxc_ir::graph::Tensor::from_slice(&[2], &[1f32, 2.0]);
    onnxc::cli::files::write_npy(&at("a_b.npy"), &input).unwrap();
    let before = fs::read(at("a_b.npy")).unwrap();
    for arguments in [["--input", "a_b.npy"], ["--input", "x=a_b.npy"]] {
        let run = onnxc(folder.path(), &[&["run", "m.onnx", "--output", "."], &arguments[..]].concat());
        assert!(run.code == 2 && run.err.contains("would replace the input a_b.npy"), "{}", run.err);
    }
    assert_eq!(fs::read(at("a_b.npy")).unwrap(), before);
    let run = onnxc(folder.path(), &["run", "m.onnx", "--random", "1", "--output", "new"]);
    assert!(run.code == 2 && run.err.contains("two outputs would be written to new/a_b.npy"), "{}", run.err);
    assert!(names(&at("new")).is_empty());
}

#[test]
fn symbols_keep_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let value = |name| build::f32_value(name, &["tokens0", "s1", "s0"]);
    let graph = build::graph(vec![value("x")], vec![build::node("Relu", &["x"], &["y"])], vec![value("y")]);
    fs::write(folder.path().join("m.onnx"), build::model(17, graph).encode_to_vec()).unwrap();
    let run = onnxc(folder.path(), &["inspect", "m.onnx"]);
    assert!(run.out.contains("input x: f32[tokens0, s1, s0]\n"), "{}", run.out);
    assert!(run.out.contains("FLOPs: tokens0*s1*s0\n"), "{}", run.out);
}
