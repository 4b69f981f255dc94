//! Small objects (`-Os`), and objects for programs without an operating system.

use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_proto::{TensorProto, build, tensor_proto};
use prost::Message;

use crate::{folder, onnxc};

/// A 3x3 convolution that is worth minimal filtering, then a product; with weights of 16 bits, if `half`.
fn write_convolution(path: &Path, size: usize, half: bool) {
    let size = size.to_string();
    let dims = [32, 32, 3, 3];
    let values = (0..dims.iter().product::<i64>()).map(|at| (at % 7) as f32 * 0.1 - 0.3);
    let weights = match half {
        true => TensorProto {
            name: Some("w".into()),
            dims: dims.to_vec(),
            data_type: Some(tensor_proto::DataType::Float16 as i32),
            int32_data: values.map(|value| i32::from(half::f16::from_f32(value).to_bits())).collect(),
            ..Default::default()
        },
        false => build::f32_tensor("w", &dims, values.collect()),
    };
    let wide = build::node("Cast", &["w"], &["f"]).with(build::int("to", 1));
    let conv = build::node("Conv", &["x", "f"], &["c"]).with(build::ints("pads", &[1, 1, 1, 1]));
    let nodes =
        vec![wide, conv, build::node("Relu", &["c"], &["r"]), build::node("ReduceMean", &["r"], &["y"])];
    let mut graph = build::graph(
        vec![build::f32_value("x", &["1", "32", &size, &size])],
        nodes,
        vec![build::f32_value("y", &["1", "1", "1", "1"])],
    );
    graph.initializer.push(weights);
    fs::write(path, build::model(13, graph).encode_to_vec()).unwrap();
}

#[test]
fn small_objects_do_without_what_is_large() {
    let folder = folder();
    write_convolution(&folder.path().join("conv.onnx"), 14, false);
    let target = ["--target", "x86_64-unknown-linux-gnu"];
    let out = |arguments: &[&str]| {
        let run = onnxc(folder.path(), &[arguments, &target].concat());
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
        run.out
    };
    // The weights of minimal filtering, 36 or 16 elements for 9. Objects for many processors have them where they are a small part.
    let native = ["--mcpu", "x86-64-v3"];
    assert!(!out(&["inspect", "conv.onnx"]).contains("Winograd"));
    let fast = out(&[&["inspect", "conv.onnx"], &native[..]].concat());
    let plain = 32 * 32 * 9 * 4;
    let line = fast.lines().find(|line| line.starts_with("Winograd: ")).unwrap_or_else(|| panic!("{fast}"));
    assert!(line.contains(&format!("in place of {plain}")) && line.contains("-Os"), "{line}");
    let report: serde_json::Value =
        serde_json::from_str(&out(&[&["inspect", "conv.onnx", "--json"], &native[..]].concat())).unwrap();
    let report = &report["winograd"];
    assert_eq!((&report["convolutions"], &report["plain_bytes"]), (&1.into(), &plain.into()));
    assert!(report["weight_bytes"].as_i64().unwrap() >= plain * 16 / 9);
    // Those of 16 bits take half of that.
    write_convolution(&folder.path().join("half.onnx"), 14, true);
    let halved = out(&[&["inspect", "half.onnx"], &native[..]].concat());
    assert!(halved.contains(&format!("in place of {}", plain / 2)), "{halved}");
    // Where maps are large, runs transform the weights, and the object has them as they were.
    write_convolution(&folder.path().join("large.onnx"), 56, false);
    let large = out(&["inspect", "large.onnx"]);
    assert!(
        large.contains("has 0 bytes of transformed weights") && large.contains("of 1 convolutions; -Os"),
        "{large}"
    );
    let small = out(&["inspect", "conv.onnx", "-Os"]);
    assert!(!small.contains("Winograd") && small.contains(", for x86-64\n"), "{small}");
    for model in ["conv.onnx", "digits.onnx"] {
        let bytes = |level: &str| {
            out(&[model, level, "-o", "m.o"]);
            fs::metadata(folder.path().join("m.o")).unwrap().len()
        };
        assert!(bytes("-Os") * 10 < bytes("-O3") * 9, "{model}");
    }
    // One version, loops that are not written out.
    let loops = out(&["digits.onnx", "-Os", "--emit", "loops", "-o", "-"]);
    assert!(loops.contains("unroll=1") && !loops.contains("unroll=8"), "{loops}");
}

#[test]
fn small_code_computes_the_same() {
    let folder = folder();
    write_convolution(&folder.path().join("conv.onnx"), 14, false);
    for model in ["conv.onnx", "digits.onnx"] {
        let result = |level: &str| {
            let arguments = ["run", model, "--random", "3", level, "--exact", "--output", "out"];
            let run = onnxc(folder.path(), &arguments);
            assert_eq!(run.code, 0, "{level}: {}", run.err);
            let file = crate::names(&folder.path().join("out")).remove(0);
            let tensor =
                onnxc::cli::files::read_tensor(&folder.path().join("out").join(&file), None).unwrap();
            fs::remove_dir_all(folder.path().join("out")).unwrap();
            tensor.values::<f32>()
        };
        for (small, fast) in result("-Os").iter().zip(result("-O3")) {
            assert!((small - fast).abs() <= 1e-5 * fast.abs().max(1e-3), "{model}: {small} {fast}");
        }
    }
}

/// A model with a product, a function, and results that are copied: what asks a C library for `memcpy` elsewhere.
fn write_copies(path: &Path) {
    let nodes = vec![
        build::node("MatMul", &["x", "w"], &["p"]),
        build::node("Softmax", &["p"], &["y"]),
        build::node("Identity", &["x"], &["same"]),
    ];
    let outputs = ["y", "same"].map(|name| build::f32_value(name, &["3", "4"]));
    let mut graph = build::graph(vec![build::f32_value("x", &["3", "4"])], nodes, outputs.into());
    graph.initializer.push(build::f32_tensor("w", &[4, 4], (0..16).map(|at| at as f32).collect()));
    fs::write(path, build::model(17, graph).encode_to_vec()).unwrap();
}

/// Symbols that an object leaves for the linker.
fn undefined(object: &Path) -> String {
    let output = Command::new("nm").args(["-u".as_ref(), object.as_os_str()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bare_metal_objects_need_nothing() {
    let folder = folder();
    write_copies(&folder.path().join("copies.onnx"));
    let object = folder.path().join("m.o");
    let compile = |model: &str, triple: &str| {
        let run = onnxc(folder.path(), &[model, "--target", triple, "-o", "m.o"]);
        assert_eq!(run.code, 0, "{triple}: {}", run.err);
        fs::read(&object).unwrap()
    };
    assert!(compile("copies.onnx", "x86_64-unknown-linux-gnu").starts_with(b"\x7fELF"));
    assert!(undefined(&object).contains("memcpy"), "the model is one that copies: {}", undefined(&object));
    for (triple, start) in [
        ("x86_64-unknown-none", &b"\x7fELF"[..]),
        ("x86_64-unknown-none-elf", b"\x7fELF"),
        ("aarch64-unknown-none", b"\x7fELF"),
        ("aarch64-unknown-none-elf", b"\x7fELF"),
        // IMAGE_FILE_MACHINE_AMD64.
        ("x86_64-unknown-uefi", b"\x64\x86"),
        // IMAGE_FILE_MACHINE_ARM64.
        ("aarch64-unknown-uefi", b"\x64\xaa"),
    ] {
        for model in ["copies.onnx", "digits.onnx"] {
            let bytes = compile(model, triple);
            assert!(bytes.starts_with(start), "{triple}");
            let machine = if triple.starts_with("aarch64") { 183 } else { 62 };
            assert!(bytes[0] != 0x7f || u16::from_le_bytes([bytes[18], bytes[19]]) == machine, "{triple}");
            let readable = triple.starts_with("x86_64") == cfg!(target_arch = "x86_64");
            if readable {
                assert_eq!(undefined(&object), "", "{triple} {model}");
            }
            let symbol = b"memcpy\0";
            let imports = bytes.windows(symbol.len() + 1).any(|part| part[0] == 0 && &part[1..] == symbol);
            assert!(!imports, "{triple} {model}");
        }
    }
    let run = onnxc(folder.path(), &["digits.onnx", "--target", "aarch64_be-unknown-none"]);
    assert!(
        run.code == 2 && run.err.contains("no code generator for the architecture aarch64_be"),
        "{}",
        run.err
    );
}

/// Linked without any library into a program that has nothing but a start, and run.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn bare_metal_code_computes() {
    let folder = folder();
    write_copies(&folder.path().join("copies.onnx"));
    let run = onnxc(folder.path(), &["copies.onnx", "--target", "x86_64-unknown-none", "-o", "copies.o"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let program = r#"
        #include "copies.h"
        static float x[12], y[12], same[12];
        static unsigned char workspace[COPIES_WORKSPACE_BYTES + 64] __attribute__((aligned(64)));
        int model(void) {
            for (int i = 0; i < 12; i++) x[i] = (float)(i % 5) * 0.25f;
            if (copies_predict(x, y, same, workspace) != 0) return 1;
            for (int i = 0; i < 12; i++) if (same[i] != x[i]) return 2;
            for (int row = 0; row < 3; row++) {
                float sum = y[4 * row] + y[4 * row + 1] + y[4 * row + 2] + y[4 * row + 3];
                if (sum < 0.999f || sum > 1.001f || y[4 * row + 3] <= y[4 * row]) return 3;
            }
            return 42;
        }
        __asm__(".globl _start\n_start:\n xor %ebp, %ebp\n and $-16, %rsp\n call model\n mov %eax, %edi\n mov $60, %eax\n syscall\n");
    "#;
    fs::write(folder.path().join("main.c"), program).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/include");
    let output = Command::new("cc")
        .args(["-O1", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-fno-builtin", "-I"])
        .arg(include)
        .args(["main.c", "copies.o", "-o", "main"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(Command::new(folder.path().join("main")).status().unwrap().code(), Some(42));
}
