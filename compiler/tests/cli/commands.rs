//! The command line itself: names, several outputs, dependency files, standard input, completions and manual pages.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{digits, folder, names, onnxc, onnxc_with, write_open_model, write_tensor};

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn libraries_lose_lib_in_the_names_of_symbols_and_headers() {
    let folder = folder();
    for (output, header, prefix) in [
        ("libnet.a", "net.h", "net_run"),
        ("libshared.so", "shared.h", "shared_run"),
        ("lib.a", "lib.h", "lib_run"),
        // An object is not a library.
        ("libobject.o", "libobject.h", "libobject_run"),
    ] {
        let run = onnxc(folder.path(), &["digits.onnx", "-o", output]);
        assert_eq!(run.code, 0, "{output}: {}", run.err);
        assert!(read(folder.path(), header).contains(prefix), "{output}");
    }
    assert!(!folder.path().join("libnet.h").exists());
}

#[test]
fn several_kinds_are_written_at_once() {
    let folder = folder();
    let run = onnxc(
        folder.path(),
        &["digits.onnx", "--emit", "obj,lib,asm,graph", "--emit", "so", "-o", "out/../x.o"],
    );
    assert_eq!(run.code, 1, "a folder that does not exist");
    let run =
        onnxc(folder.path(), &["digits.onnx", "--emit", "obj,lib,asm,graph", "--emit", "so", "-o", "x.o"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(names(folder.path()), ["digits.onnx", "x.a", "x.graph", "x.h", "x.o", "x.s", "x.so"]);
    assert!(
        read(folder.path(), "x.s").contains("ret") && read(folder.path(), "x.graph").contains("contract")
    );
    let symbols = Command::new("nm").arg(folder.path().join("x.a")).output().unwrap();
    assert!(String::from_utf8_lossy(&symbols.stdout).contains(" T x_run"));
    // Without -o, beside each other under the model's name.
    let run = onnxc(folder.path(), &["digits.onnx", "--emit", "header,loops"]);
    assert_eq!((run.code, run.out.as_str()), (0, ""), "{}", run.err);
    assert!(
        read(folder.path(), "digits.loops").contains("kernel ") && folder.path().join("digits.h").exists()
    );
    for (arguments, part) in [
        (&["--emit", "obj,asm", "-o", "-"][..], "obj is not written to standard output"),
        (&["--emit", "loops,asm", "-o", "-"], "one kind of text"),
        (&["--emit", "obj,asm", "-o", "x.bin"], "does not say what to write"),
        (&["--emit", "lib,asm", "-o", "y.o"], "the extension says --emit=obj, the flag --emit=lib,asm"),
    ] {
        let run = onnxc(folder.path(), &[&["digits.onnx"], arguments].concat());
        assert!(run.code == 2 && run.err.contains(part), "{arguments:?}: {}", run.err);
    }
}

#[test]
fn models_come_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let through = |arguments: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_onnxc"))
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who refuses the arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(&fs::read(digits()).unwrap());
        child.wait_with_output().unwrap()
    };
    let output = through(&["-", "-MD"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(folder.path()), ["model.d", "model.h", "model.o"]);
    assert_eq!(read(folder.path(), "model.d"), "model.h model.o:\n");
    let output = through(&["inspect", "-"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("parameters: "));
    // The same bytes as from the file.
    let direct = onnxc(folder.path(), &[digits().to_str().unwrap(), "-o", "model2.o", "--name", "model"]);
    assert_eq!(direct.code, 0, "{}", direct.err);
    assert_eq!(
        fs::read(folder.path().join("model.o")).unwrap(),
        fs::read(folder.path().join("model2.o")).unwrap()
    );
}

/// Read by make itself: the output is old when the model is new, and a model that is gone stops nothing.
#[test]
fn dependency_files_are_read_by_make() {
    let folder = folder();
    for (arguments, file) in [
        (&["-o", "m.o", "-MD"][..], "m.d"),
        (&["-o", "m.o", "-MD", "-MF", "other.dep"], "other.dep"),
        (&["-o", "m.o", "--depfile=third.dep"], "third.dep"),
        (&["-MFfourth.dep", "-o", "m.o"], "fourth.dep"),
    ] {
        let run = onnxc(folder.path(), &[&["digits.onnx"], arguments].concat());
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
        assert_eq!(
            read(folder.path(), file),
            "m.h m.o: \\\n  digits.onnx\n\ndigits.onnx:\n",
            "{arguments:?}"
        );
    }
    fs::write(folder.path().join("Makefile"), "m.o:\n\ttouch m.o\n-include m.d\n").unwrap();
    let make = || {
        let output = Command::new("make").args(["-q", "m.o"]).current_dir(folder.path()).output().unwrap();
        output.status.code()
    };
    assert_eq!(make(), Some(0), "nothing to do");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(100);
    fs::File::options()
        .write(true)
        .open(folder.path().join("digits.onnx"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert_eq!(make(), Some(1), "the model is newer");
    assert_eq!(onnxc(folder.path(), &["digits.onnx", "-o", "-", "--emit", "asm", "-MD"]).code, 2);
    fs::remove_file(folder.path().join("digits.onnx")).unwrap();
    assert_eq!(make(), Some(1), "no error without the model");
}

#[test]
fn mistyped_commands_are_told_from_files() {
    let folder = folder();
    for (word, part) in [
        ("chek", "`chek` is neither a command nor a file; did you mean `check`?"),
        ("inspekt", "did you mean `inspect`?"),
        ("benchmark", "did you mean `bench`?"),
        ("frobnicate", "`onnxc --help` lists the commands"),
    ] {
        let run = onnxc(folder.path(), &[word, "digits.onnx"]);
        assert!(run.code == 2 && run.err.contains(part), "{word}: {}", run.err);
    }
    // A file of such a name is a model.
    fs::copy(digits(), folder.path().join("chek")).unwrap();
    assert_eq!(onnxc(folder.path(), &["chek", "-o", "x.o"]).code, 0);
    let run = onnxc(folder.path(), &["missing.onnx"]);
    assert!(run.code == 1 && run.err.starts_with("error: missing.onnx: "), "{}", run.err);
}

#[test]
fn other_files_are_no_models() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes, part) in [
        (
            "a.onnx",
            &b"this is\nnot a model"[..],
            "not an ONNX file: it is text that begins with `this is not a model`",
        ),
        (
            "b.onnx",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "`git lfs pull` fetches it",
        ),
        ("c.onnx", b"PK\x03\x04\x00\x00", "a ZIP archive, as PyTorch saves"),
        ("d.onnx", b"", "it is empty"),
    ] {
        fs::write(folder.path().join(name), bytes).unwrap();
        for command in ["compile", "inspect"] {
            let run = onnxc(folder.path(), &[command, name]);
            assert!(run.code == 1 && run.err.contains(part), "{command} {name}: {}", run.err);
        }
        assert!(onnxc(folder.path(), &["check", name]).out.contains(part));
    }
}

#[test]
fn shared_libraries_have_their_name_and_the_targets_extension() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let host = cfg!(all(target_os = "linux", target_env = "gnu"));
    if host {
        assert_eq!(onnxc(folder.path(), &["digits.onnx", "-o", "libdigits.so"]).code, 0);
        let dump =
            Command::new("objdump").args(["-p".as_ref(), at("libdigits.so").as_os_str()]).output().unwrap();
        let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
        let soname = dump.lines().find(|line| line.contains("SONAME")).unwrap_or_default();
        assert!(soname.ends_with(" libdigits.so"), "{dump}");
    }
    for (arguments, part) in [
        (&["-o", "x.dll", "--target", "x86_64-unknown-linux-gnu"][..], "are .so files"),
        (&["-o", "x.so", "--target", "x86_64-pc-windows-gnu"], "are .dll files"),
        (&["-o", "x.so", "--target", "aarch64-apple-darwin"], "are .dylib files"),
        (&["--emit", "so", "--target", "x86_64-unknown-none"], "has no shared libraries"),
    ] {
        let run = onnxc(folder.path(), &[&["digits.onnx"], arguments].concat());
        assert!(run.code == 2 && run.err.contains(part), "{arguments:?}: {}", run.err);
    }
}

/// Programs that write down what they are called with, in the place of linkers of other targets.
#[test]
#[cfg(unix)]
fn linkers_are_those_of_the_target() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let tool = |name: &str| {
        let script = "#!/bin/sh\necho \"$0 $@\" > called\nfor last; do :; done\n\
                      while [ \"$1\" != -o ]; do shift; done\ncp \"$last\" \"$2\"\n";
        let path = folder.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_string()
    };
    let own = tool("own-cc");
    let (usual, path) = (tool("s390x-linux-gnu-gcc"), folder.path().to_str().unwrap());
    let foreign = "s390x-unknown-linux-gnu";
    let base = ["digits.onnx", "--target", foreign, "-o", "libx.so"];
    let variable = format!("CC_{}", foreign.replace('-', "_"));
    let with_path = format!("{path}:{}", std::env::var("PATH").unwrap());
    for (arguments, variables, wanted) in [
        (&["--linker", own.as_str()][..], &[][..], &own),
        (&[], &[(variable.as_str(), own.as_str())][..], &own),
        // `CC` is the compiler of this machine.
        (&[], &[("CC", own.as_str()), ("PATH", with_path.as_str())], &usual),
    ] {
        let run = onnxc_with(folder.path(), &[&base[..], arguments].concat(), variables);
        assert_eq!(run.code, 0, "{}", run.err);
        let called = read(folder.path(), "called");
        assert!(called.starts_with(&**wanted), "{called}");
        assert!(called.contains("-shared -Wl,-soname,libx.so"), "{called}");
    }
    let before = names(folder.path());
    let run = onnxc_with(folder.path(), &base, &[("PATH", "/nonexistent")]);
    assert_eq!(run.code, 1, "{}", run.err);
    for part in [
        "cannot run the C compiler `s390x-linux-gnu-gcc`",
        "apt install gcc-s390x-linux-gnu",
        "--linker",
        &variable,
    ] {
        assert!(run.err.contains(part), "{part}: {}", run.err);
    }
    // One that fails: with what it said, and no name of a temporary file.
    fs::write(&own, "#!/bin/sh\necho \"cannot link $*\" >&2\nexit 7\n").unwrap();
    let run = onnxc_with(folder.path(), &[&base[..], &["--linker", &own]].concat(), &[]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("\ncannot link -shared -Wl,-soname,libx.so -o libx.so libx.o\n"), "{}", run.err);
    assert_eq!(names(folder.path()), before);
    if !cfg!(target_os = "macos") {
        let run = onnxc(folder.path(), &["digits.onnx", "--target", "aarch64-apple-ios", "-o", "x.dylib"]);
        assert!(run.err.contains("no C compiler is known") && run.err.contains("--linker"), "{}", run.err);
    }
}

/// Libraries that are written here need no program of the machine; a linker that is named makes them all the same.
#[test]
fn libraries_without_a_linker() {
    let folder = folder();
    let nothing = [("PATH", "/nonexistent"), ("CC", "/no/such/compiler")];
    for (target, file, start) in [
        ("x86_64-unknown-linux-gnu", "x.so", &b"\x7fELF"[..]),
        ("x86_64-unknown-linux-musl", "x.so", b"\x7fELF"),
        ("x86_64-unknown-freebsd", "x.so", b"\x7fELF"),
        ("aarch64-unknown-linux-gnu", "x.so", b"\x7fELF"),
        ("x86_64-pc-windows-gnu", "x.dll", b"MZ"),
        ("x86_64-pc-windows-msvc", "x.dll", b"MZ"),
        ("x86_64-apple-darwin", "x.dylib", b"\xcf\xfa\xed\xfe"),
        ("aarch64-apple-darwin", "x.dylib", b"\xcf\xfa\xed\xfe"),
        ("aarch64-apple-macosx12.0", "x.dylib", b"\xcf\xfa\xed\xfe"),
    ] {
        let base = ["digits.onnx", "--target", target, "-o", file];
        let run = onnxc_with(folder.path(), &base, &nothing);
        assert_eq!(run.code, 0, "{target}: {}", run.err);
        let first = fs::read(folder.path().join(file)).unwrap();
        assert!(first.starts_with(start), "{target}");
        assert_eq!(onnxc_with(folder.path(), &base, &nothing).code, 0);
        assert!(fs::read(folder.path().join(file)).unwrap() == first, "{target}: not the same bytes again");
        let run = onnxc_with(folder.path(), &[&base[..], &["--linker", "/no/such/linker"]].concat(), &[]);
        assert!(run.code == 1 && run.err.contains("/no/such/linker"), "{target}: {}", run.err);
    }
}

#[test]
fn some_of_the_outputs() {
    let folder = folder();
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "d.o", "--only-output", "probabilities"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "d.o", "--only-output", "probability"]);
    let part = "the model has no output `probability`; there are `probabilities`";
    assert!(run.code != 0 && run.err.contains(part), "{}", run.err);
}

#[test]
fn native_is_no_processor_of_another_target() {
    let folder = folder();
    let foreign =
        if cfg!(target_arch = "aarch64") { "x86_64-unknown-linux-gnu" } else { "aarch64-unknown-linux-gnu" };
    let run = onnxc(folder.path(), &["digits.onnx", "--mcpu", "native", "--target", foreign]);
    let part = format!("which does not belong to the target `{foreign}`; name one of the target's: ");
    assert!(run.code == 2 && run.err.contains(&part), "{}", run.err);
    let run = onnxc(folder.path(), &["digits.onnx", "--mcpu", "z80", "--target", foreign]);
    assert!(!run.err.contains("native"), "{}", run.err);
}

#[test]
fn completions_and_manuals_have_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let commands = ["compile", "check", "inspect", "run", "verify", "bench", "report", "ops"];
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = onnxc(folder.path(), &["completions", shell]);
        assert_eq!(run.code, 0, "{}", run.err);
        assert!(commands.iter().all(|command| run.out.contains(command)), "{shell}");
        assert!(run.out.contains("depfile"), "{shell}");
    }
    let script = onnxc(folder.path(), &["completions", "bash"]).out;
    fs::write(folder.path().join("onnxc.bash"), script).unwrap();
    let shell = "source onnxc.bash; COMP_WORDS=(onnxc insp); COMP_CWORD=1; _onnxc onnxc insp onnxc; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", shell]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "inspect", "{output:?}");
    let run = onnxc(folder.path(), &["man"]);
    assert!(run.code == 0 && run.out.contains(".TH onnxc 1"), "{}", run.out);
    assert_eq!(onnxc(folder.path(), &["man", "--output", "man1"]).code, 0);
    let pages = names(&folder.path().join("man1"));
    assert!(commands.iter().all(|command| pages.contains(&format!("onnxc-{command}.1"))), "{pages:?}");
    let page = read(folder.path(), "man1/onnxc-bench.1");
    assert!(page.contains("\\-\\-per\\-node") && page.contains(".TH onnxc-bench 1"), "{page}");
}

#[test]
fn data_sets_give_inputs_and_sizes() {
    let folder = tempfile::tempdir().unwrap();
    write_open_model(&folder.path().join("open.onnx"));
    let set = folder.path().join("sets/test_data_set_3");
    fs::create_dir_all(&set).unwrap();
    write_tensor(&set.join("input_0.pb"), &[5, 4]);
    let run = onnxc(folder.path(), &["run", "open.onnx", "--data", "sets/test_data_set_3"]);
    assert!(run.code == 0 && run.out.contains("f32[5, 4] = 0, 0"), "{}{}", run.out, run.err);
    let arguments = ["bench", "open.onnx", "--json", "--seconds", "0.01", "--data", "sets/test_data_set_3"];
    let run = onnxc(folder.path(), &arguments);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["sizes"], serde_json::json!({ "rows": 5 }), "{}", run.err);
    let run = onnxc(folder.path(), &["bench", "open.onnx", "--data", "sets"]);
    assert!(
        run.code == 2 && run.err.contains("sets: no input_0.pb; there is sets/test_data_set_3"),
        "{}",
        run.err
    );
    for extra in [["--size", "rows=3"], ["--random", "1"]] {
        let command = if extra[0] == "--size" { "bench" } else { "run" };
        let arguments = [&[command, "open.onnx", "--data", "sets/test_data_set_3"], &extra[..]].concat();
        assert_eq!(onnxc(folder.path(), &arguments).code, 2, "{extra:?}");
    }
}

#[test]
fn kernels_are_shown_by_operators_and_rates() {
    let folder = folder();
    let arguments = ["bench", "digits.onnx", "--seconds", "0.05", "--per-node"];
    let run = onnxc(folder.path(), &arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    let line = |part: &str| {
        run.out.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {}", run.out))
    };
    assert!(line("peak ").contains("GFLOP/s") && line("peak ").contains("over 256 MiB"));
    assert!(line("of peak").contains("operator") && line("of peak").contains("result"));
    assert!(line("Softmax").contains("f32[1, 10]"), "{}", run.out);
    let rates = run.out.lines().filter(|line| line.contains("GFLOP/s ") || line.contains("GB/s ")).count();
    assert!(rates > 1, "{}", run.out);
    assert!(!run.out.contains("(Softmax)"), "names of nodes are for -v");
    assert!(onnxc(folder.path(), &[&arguments[..], &["-v"]].concat()).out.contains("(Softmax)"));
    let run = onnxc(folder.path(), &[&arguments[..], &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let (peak, nodes) = (&report["peak"], report["nodes"].as_array().unwrap());
    let first = nodes.iter().find(|node| node["bound"].is_string()).unwrap();
    let (flops, bytes) = (first["gflops"].as_f64().unwrap(), first["gbytes"].as_f64().unwrap());
    let of_peak =
        (flops / peak["gflops"].as_f64().unwrap()).max(bytes / peak["cached_gbytes"].as_f64().unwrap());
    assert!((first["of_peak"].as_f64().unwrap() / of_peak - 1.0).abs() < 1e-6, "{first}");
}

#[test]
fn reports_are_one_page_that_loads_nothing() {
    let folder = folder();
    let run = onnxc(folder.path(), &["report", "digits.onnx", "--seconds", "0.05", "-o", "page.html"]);
    assert_eq!((run.code, run.out.as_str()), (0, "page.html\n"), "{}", run.err);
    let page = read(folder.path(), "page.html");
    for outside in ["http", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for part in [
        "Hot kernels",
        "Kernels in their order",
        "Memory plan",
        "prefers-color-scheme: dark",
        "Sizes",
        "Processors",
        "Softmax",
        "class=\"mark\"",
        "x86-64",
    ] {
        assert!(page.contains(part) || (part == "x86-64" && cfg!(not(target_arch = "x86_64"))), "{part}");
    }
    let count = |part: &str| page.matches(part).count();
    for element in ["svg", "table", "div", "span", "title", "button", "tr", "td", "script"] {
        let open = count(&format!("<{element} ")) + count(&format!("<{element}>"));
        assert_eq!(open, count(&format!("</{element}>")), "{element}");
    }
    // The slowest kernel comes first, in the table and in what the page holds for later ones.
    let hot = page.split("Hot kernels").nth(1).unwrap();
    let times: Vec<f64> = hot
        .split("<td class=\"n\" data-key=\"")
        .skip(1)
        .step_by(3)
        .map(|cell| cell.split('"').next().unwrap().parse().unwrap())
        .collect();
    assert!(times.len() > 1 && times.is_sorted_by(|a, b| a >= b), "{times:?}");
    for (output, part) in [("page.txt", "the report is a page"), ("digits.onnx", "the report is a page")] {
        let run = onnxc(folder.path(), &["report", "digits.onnx", "-o", output]);
        assert!(run.code == 2 && run.err.contains(part), "{output}: {}", run.err);
    }
}

/// A page holds what a later one is compared with.
#[test]
fn reports_show_what_differs_from_earlier_ones() {
    let folder = folder();
    let report = |more: &[&str]| {
        let arguments = [&["report", "digits.onnx", "--seconds", "0.05", "-o", "now.html"], more].concat();
        onnxc(folder.path(), &arguments)
    };
    assert_eq!(report(&[]).code, 0);
    assert!(!read(folder.path(), "now.html").contains("Against the earlier report"));
    std::fs::rename(folder.path().join("now.html"), folder.path().join("old.html")).unwrap();
    let run = report(&["-O0", "--against", "old.html"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let page = read(folder.path(), "now.html");
    let section = page.split("Against the earlier report").nth(1).unwrap().split("<h2>").next().unwrap();
    // Without fusion there are more kernels, and those of before are gone.
    for part in ["time of a run", "workspace", ">new<", ">gone<"] {
        assert!(section.contains(part), "{part}: {section}");
    }
    std::fs::write(folder.path().join("none.json"), "[]").unwrap();
    let run = report(&["--against", "none.json"]);
    assert!(run.code == 2 && run.err.contains("none.json: it holds no report"), "{}", run.err);
}
