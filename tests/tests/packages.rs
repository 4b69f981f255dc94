//! What users install: the Python package, the packages for CMake, pkg-config and Go, the header for C++. All come from one
//! folder that `make place` fills.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use onnxc_tests::object::{must, source};
use onnxc_tests::onnx_env::WHEEL;
use onnxc_tests::prefix::{self, root};
use onnxc_tests::sample_models;
use onnxc_tests::{drawn, expected, suite};
use prost::Message;
use tempfile::TempDir;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn prefix() -> &'static Path {
    prefix::prefix(ONNXC)
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(must(command).stdout).unwrap()
}

fn assert_predicted(output: &str) {
    let line = output.lines().last().unwrap_or_default();
    assert!(line.starts_with("predicted 9 (probability ") && line.ends_with("), label 9"), "{output}");
}

/// Whether a tool is there; says so where it is not.
fn has(tool: &str, version: &str) -> bool {
    let found = Command::new(tool).arg(version).output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("NOT TESTED: {tool} is not installed");
    }
    found
}

fn pkg_config(command: &mut Command) -> &mut Command {
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
}

/// A copy of an example, away from the repository.
fn copied(example: &str, files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (folder, file) in files.iter().map(|file| (example, *file)).chain([
        ("digits", "digits.onnx"),
        ("digits", "sample.h"),
        ("digits", "sample.json"),
    ]) {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        let path = Path::new(folder).join(file);
        std::fs::copy(root().join("examples").join(&path), dir.path().join(&path)).unwrap();
    }
    dir
}

#[test]
fn cmake_finds_the_package() {
    if !has("cmake", "--version") {
        return;
    }
    let dir = copied("cpp", &["CMakeLists.txt", "main.cpp"]);
    let build = dir.path().join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(dir.path().join("cpp")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
    must(configure.arg("-DCMAKE_CXX_FLAGS=-Wall -Wextra -pedantic -Wshadow -Wconversion -Werror"));
    let build_again = || stdout(Command::new("cmake").arg("--build").arg(&build));
    build_again();
    assert_predicted(&stdout(&mut Command::new(build.join("digits"))));
    assert!(!build_again().contains("Compiling"), "nothing has changed");
    // A model that is newer is compiled again.
    let model = dir.path().join("digits/digits.onnx");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    std::fs::File::options().append(true).open(&model).unwrap().set_modified(later).unwrap();
    assert!(build_again().contains("Compiling"), "the model has changed");
    let refused = |lists: &str, message: &str| {
        let dir = tempfile::tempdir().unwrap();
        let head = "cmake_minimum_required(VERSION 3.13)\nproject(test C)\n";
        std::fs::write(dir.path().join("CMakeLists.txt"), format!("{head}{lists}")).unwrap();
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(dir.path()).arg("-B").arg(dir.path().join("build"));
        let output = configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!output.status.success() && text.contains(message), "{text}");
    };
    refused("find_package(onnxc 99 REQUIRED)", "compatible with requested version \"99\"");
    let find = "find_package(onnxc REQUIRED)\nonnxc_add_model(m ";
    refused(&format!("{find}none.onnx)"), "there is no file");
    refused(&format!("{find}none.onnx FLAGS 3)"), "unknown arguments: FLAGS;3");
}

/// What CMake calls a machine (system, processor, further variables), and the target; an error has the words behind `!`.
const CMAKE_MACHINES: [(&str, &str, &str, &str); 44] = [
    ("Linux", "x86_64", "", "x86_64-unknown-linux-gnu"),
    ("Linux", "aarch64", "", "aarch64-unknown-linux-gnu"),
    ("Linux", "arm64", "", "aarch64-unknown-linux-gnu"),
    ("Linux", "riscv64", "", "riscv64-unknown-linux-gnu"),
    ("Linux", "s390x", "", "s390x-unknown-linux-gnu"),
    ("Linux", "i686", "", "i686-unknown-linux-gnu"),
    ("Linux", "x86_64", "set(CMAKE_SIZEOF_VOID_P 4)", "i686-unknown-linux-gnu"),
    ("Linux", "armv7l", "", "armv7-unknown-linux-gnueabihf"),
    ("Linux", "ppc64le", "", "!CMAKE_SYSTEM_NAME Linux and the processor `ppc64le`"),
    ("Linux", "aarch64_be", "", "!the processor `aarch64_be`"),
    ("Linux", "", "", "!the processor ``"),
    ("Android", "aarch64", "", "aarch64-linux-android"),
    ("Android", "", "set(CMAKE_ANDROID_ARCH_ABI arm64-v8a)", "aarch64-linux-android"),
    ("Android", "x86_64", "", "x86_64-linux-android"),
    ("Android", "i686", "", "i686-linux-android"),
    ("Android", "armv7-a", "", "armv7-linux-androideabi"),
    ("Android", "mips", "", "!CMAKE_SYSTEM_NAME Android and the processor `mips`"),
    ("FreeBSD", "amd64", "", "x86_64-unknown-freebsd"),
    ("FreeBSD", "arm64", "", "aarch64-unknown-freebsd"),
    ("FreeBSD", "riscv64", "", "riscv64-unknown-freebsd"),
    ("FreeBSD", "armv7", "", "!CMAKE_SYSTEM_NAME FreeBSD and the processor `armv7`"),
    ("OpenBSD", "amd64", "", "x86_64-unknown-openbsd"),
    ("NetBSD", "x86_64", "", "x86_64-unknown-netbsd"),
    ("Darwin", "arm64", "", "aarch64-apple-darwin"),
    ("Darwin", "x86_64", "", "x86_64-apple-darwin"),
    ("Darwin", "arm64", "set(CMAKE_OSX_ARCHITECTURES x86_64)", "x86_64-apple-darwin"),
    ("Darwin", "arm64", "set(CMAKE_OSX_ARCHITECTURES arm64 x86_64)", "!build once for each"),
    ("Darwin", "ppc", "", "!CMAKE_SYSTEM_NAME Darwin and the processor `ppc`"),
    ("iOS", "", "", "aarch64-apple-ios"),
    ("iOS", "arm64", "set(CMAKE_OSX_SYSROOT iphonesimulator)", "aarch64-apple-ios-sim"),
    ("iOS", "x86_64", "set(CMAKE_OSX_SYSROOT iphonesimulator)", "x86_64-apple-ios"),
    ("tvOS", "arm64", "", "aarch64-apple-tvos"),
    ("Windows", "AMD64", "", "x86_64-pc-windows-msvc"),
    ("Windows", "x86_64", "set(MINGW 1)", "x86_64-pc-windows-gnu"),
    ("Windows", "AMD64", "set(MSVC_C_ARCHITECTURE_ID ARM64)", "aarch64-pc-windows-msvc"),
    ("Windows", "AMD64", "set(MSVC_CXX_ARCHITECTURE_ID X86)", "i686-pc-windows-msvc"),
    ("Generic", "aarch64", "", "aarch64-unknown-none-elf"),
    ("Generic", "riscv64", "", "riscv64-unknown-none-elf"),
    ("Generic", "riscv32", "", "riscv32imac-unknown-none-elf"),
    ("Generic", "cortex-m4", "", "thumbv7em-none-eabi"),
    ("Generic", "arm", "", "!thumbv7em-none-eabi for a Cortex-M4"),
    ("Emscripten", "x86", "", "wasm32-unknown-emscripten"),
    ("QNX", "aarch64", "", "!CMAKE_SYSTEM_NAME QNX"),
    ("Fuchsia", "x86_64", "", "!CMAKE_SYSTEM_NAME Fuchsia"),
];

/// Every machine that CMake names has its target, which the compiler takes, or an error; none has an object for this machine instead.
#[test]
fn cmake_finds_the_target() {
    if !has("cmake", "--version") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("target.cmake");
    let file = root().join("runtime-support/cmake/onnxcTarget.cmake");
    let target = |lines: &str| {
        let text = format!(
            "cmake_minimum_required(VERSION 3.13)\n{lines}\ninclude(\"{}\")\nonnxc_target(triple)\nmessage(\"<${{triple}}>\")\n",
            file.display()
        );
        std::fs::write(&script, text).unwrap();
        let output = Command::new("cmake").arg("-P").arg(&script).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        (output.status.success(), text)
    };
    let mut triples = BTreeSet::new();
    for (system, processor, others, wanted) in CMAKE_MACHINES {
        let own =
            format!("set(CMAKE_SYSTEM_NAME {system})\nset(CMAKE_SYSTEM_PROCESSOR \"{processor}\")\n{others}");
        let (found, text) =
            target(&format!("set(CMAKE_HOST_SYSTEM_NAME Other)\nset(CMAKE_CROSSCOMPILING TRUE)\n{own}"));
        match wanted.strip_prefix('!') {
            Some(words) => assert!(!found && text.contains(words), "{system} {processor} {others}: {text}"),
            None => {
                assert_eq!((found, text), (true, format!("<{wanted}>")), "{system} {processor} {others}");
                triples.insert(wanted);
            }
        }
    }
    // On this machine itself there is no target, but for programs of another width or processor.
    let host = |processor: &str, others: &str| {
        target(&format!(
            "set(CMAKE_HOST_SYSTEM_NAME Linux)\nset(CMAKE_HOST_SYSTEM_PROCESSOR x86_64)\nset(CMAKE_SYSTEM_NAME Linux)\n\
             set(CMAKE_SYSTEM_PROCESSOR {processor})\n{others}"
        ))
    };
    assert_eq!(host("x86_64", ""), (true, "<>".into()));
    assert_eq!(host("x86_64", "set(CMAKE_SIZEOF_VOID_P 8)"), (true, "<>".into()));
    assert_eq!(host("x86_64", "set(CMAKE_SIZEOF_VOID_P 4)"), (true, "<i686-unknown-linux-gnu>".into()));
    // The compiler takes each: objects, or C for machines of 32 bits.
    for triple in &triples {
        let is_source =
            ["thumb", "arm", "i686", "riscv32", "wasm32"].iter().any(|start| triple.starts_with(start));
        let output = dir.path().join(if is_source { "net.c" } else { "net.o" });
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(root().join("examples/digits/digits.onnx")).args(["-O0", "--target", triple, "-o"]);
        must(onnxc.arg(&output));
    }
}

/// A project for another machine gets its object or its C, or the error, when it is configured and built.
#[test]
fn cmake_builds_for_other_machines() {
    if !has("cmake", "--version") {
        return;
    }
    let project = |languages: &str, options: &str, system: &str, processor: &str| {
        let dir = tempfile::tempdir().unwrap();
        let model = root().join("examples/digits/digits.onnx");
        let lists = format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(test {languages})\nfind_package(onnxc REQUIRED)\n\
             onnxc_add_model(net {} {options})\n",
            model.display()
        );
        std::fs::write(dir.path().join("CMakeLists.txt"), lists).unwrap();
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(dir.path()).arg("-B").arg(dir.path().join("build"));
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
        configure
            .arg(format!("-DCMAKE_SYSTEM_NAME={system}"))
            .arg(format!("-DCMAKE_SYSTEM_PROCESSOR={processor}"));
        configure.args([
            "-DCMAKE_C_COMPILER=cc",
            "-DCMAKE_CXX_COMPILER=c++",
            "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        ]);
        let output = configure
            .args(["-DCMAKE_HAVE_LIBC_PTHREAD=1", "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=NEVER"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        (dir, output.status.success(), text)
    };
    for (system, processor, first) in [
        ("Generic", "aarch64", [0x7f, b'E', 183]),
        ("FreeBSD", "amd64", [0x7f, b'E', 62]),
        ("Linux", "riscv64", [0x7f, b'E', 243]),
    ] {
        let (dir, found, text) = project("C", "", system, processor);
        assert!(found, "{system} {processor}: {text}");
        must(Command::new("cmake").arg("--build").arg(dir.path().join("build")));
        let object = std::fs::read(dir.path().join("build/onnxc/net/net.o")).unwrap();
        assert_eq!([object[0], object[1], object[18]], first, "{system} {processor}");
    }
    // What has no machine code here is C, which this compiler takes as well.
    let (dir, found, text) = project("C", "", "Generic", "cortex-m4");
    assert!(found, "{text}");
    must(Command::new("cmake").arg("--build").arg(dir.path().join("build")));
    assert!(dir.path().join("build/onnxc/net/net.c").exists() && dir.path().join("build/libnet.a").exists());
    for (languages, system, processor, words) in [
        ("C", "Generic", "arm", "there is no target for CMAKE_SYSTEM_NAME Generic and the processor `arm`"),
        ("C", "FreeBSD", "mips", "CMAKE_SYSTEM_NAME FreeBSD and the processor `mips`"),
        ("CXX", "Generic", "cortex-m4", "a model for thumbv7em-none-eabi is C"),
    ] {
        let (_, found, text) = project(languages, "", system, processor);
        assert!(!found && text.contains(words), "{system} {processor}: {text}");
    }
    let (dir, found, text) = project("C", "OPTIONS --target thumbv6m-none-eabi", "Generic", "arm");
    assert!(found, "{text}");
    assert!(!dir.path().join("build/onnxc/net/net.o").exists());
}

#[test]
fn pkg_config_finds_the_package() {
    if !has("pkg-config", "--version") {
        return;
    }
    let words = |arguments: &[&str]| -> Vec<String> {
        stdout(pkg_config(Command::new("pkg-config").args(arguments)))
            .split_whitespace()
            .map(String::from)
            .collect()
    };
    assert_eq!(words(&["--modversion", "onnxc"]), [env!("CARGO_PKG_VERSION")]);
    let compiler = words(&["--variable=onnxc", "onnxc"]).remove(0);
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("text.o");
    must(Command::new(compiler).arg(root().join("examples/text/text.onnx")).arg("-o").arg(&object));
    // Strings need the runtime, which either library has.
    for package in ["onnxc", "onnxc-images"] {
        let program = dir.path().join(package);
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"]).arg(dir.path());
        cc.args(words(&["--cflags", package])).arg(root().join("examples/text/main.c")).arg(&object);
        must(cc.args(words(&["--libs", package])).arg("-o").arg(&program));
        let found = stdout(Command::new(&program).arg("the flower has blue petals"));
        assert!(found.contains("(probability "), "{found}");
    }
}

#[test]
fn go_program() {
    if !(has("go", "version") && has("pkg-config", "--version")) {
        return;
    }
    let dir = copied("go", &["Makefile", "main.go", "go.mod"]);
    let mut make = Command::new("make");
    make.arg("-C").arg(dir.path().join("go")).args(["--silent", "--no-print-directory", "run"]);
    assert_predicted(&stdout(pkg_config(&mut make).env("GOFLAGS", "-mod=mod").env("GOPROXY", "off")));
}

const GO_TEST: &str = include_str!("../go/wrapper.go");

/// Values of all kinds through the package for Go.
#[test]
fn go_values_of_all_kinds() {
    if !(has("go", "version") && has("pkg-config", "--version")) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    compile_samples(dir.path());
    let module = prefix().join("share/onnxc/go");
    let text = format!(
        "module wrapper\n\ngo 1.19\n\nrequire onnxc v0.0.0\n\nreplace onnxc => {}\n",
        module.display()
    );
    std::fs::write(dir.path().join("go.mod"), text).unwrap();
    std::fs::write(dir.path().join("main.go"), GO_TEST).unwrap();
    let mut go = Command::new("go");
    go.args(["run", "."]).current_dir(dir.path()).env("GOPROXY", "off");
    assert_eq!(stdout(pkg_config(&mut go)), "good\n");
}

/// Objects and headers of `pairs`, `kinds`, `sums` and `any_rank`.
fn compile_samples(dir: &Path) {
    for (name, model, options) in [
        ("pairs", sample_models::symbolic(), &[][..]),
        ("kinds", sample_models::all_kinds(), &[]),
        ("sums", sample_models::sums(), &["--state", "rows=more"]),
        ("any_rank", sample_models::any_rank().encode_to_vec(), &[]),
    ] {
        let path = dir.join(format!("{name}.onnx"));
        std::fs::write(&path, model).unwrap();
        must(Command::new(ONNXC).arg(&path).args(options).arg("-o").arg(path.with_extension("o")));
    }
}

#[test]
fn cpp_values_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    compile_samples(dir.path());
    let program = dir.path().join("wrapper");
    let mut cxx = Command::new("c++");
    cxx.args(["-std=c++17", "-g", "-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wconversion", "-Werror"]);
    cxx.arg("-fsanitize=address,undefined").arg("-I").arg(prefix().join("include")).arg("-I").arg(dir.path());
    cxx.arg(source("wrapper.cpp"))
        .args(["pairs", "kinds", "sums", "any_rank"].map(|name| dir.path().join(format!("{name}.o"))));
    cxx.arg(prefix().join("lib/libonnxc_runtime_support.a")).args(["-lpthread", "-ldl", "-lm", "-o"]);
    must(cxx.arg(&program));
    assert_eq!(stdout(&mut Command::new(&program)), "good\n");
}

/// Folder of the installed wheel.
fn site() -> &'static Path {
    static SITE: OnceLock<TempDir> = OnceLock::new();
    SITE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        // The build leaves files beside its sources.
        let source = dir.path().join("source");
        must(Command::new("cp").arg("-R").arg(root().join("runtime-support/python")).arg(&source));
        let pip = || {
            let mut pip = Command::new(WHEEL.interpreter().unwrap());
            pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]).env("ONNXC_PREFIX", prefix());
            pip.env("ONNXC_REPOSITORY", "https://git.example/onnxc.git");
            pip
        };
        let wheels = dir.path().join("wheels");
        let mut build = pip();
        build.args(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]).arg(&wheels);
        must(build.arg(&source));
        let built: Vec<PathBuf> =
            std::fs::read_dir(&wheels).unwrap().map(|entry| entry.unwrap().path()).collect();
        let name = built[0].file_name().unwrap().to_string_lossy().into_owned();
        assert!(built.len() == 1 && name.starts_with("onnxc-0.1.0-py3-none-"), "{name}");
        let site = tempfile::tempdir().unwrap();
        must(pip().args(["install", "--no-deps", "--target"]).arg(site.path()).arg(&built[0]));
        site
    })
    .path()
}

/// Python with the wheel, away from the sources.
fn python() -> Command {
    let mut python = Command::new(WHEEL.interpreter().unwrap());
    python.env("PYTHONPATH", site()).env_remove("ONNXC_PREFIX").current_dir(std::env::temp_dir());
    python.env("ONNXC_CACHE", site().join("cache"));
    python
}

fn script(name: &str) -> PathBuf {
    root().join("runtime-support/python/tests").join(name)
}

#[test]
fn python_package() {
    let version = stdout(python().args(["-m", "onnxc", "--version"]));
    assert_eq!(version.trim(), format!("onnxc {}", env!("CARGO_PKG_VERSION")));
    let prefix = stdout(python().args(["-m", "onnxc", "prefix"]));
    assert!(Path::new(prefix.trim()).join("include/onnxc.h").exists(), "{prefix}");
    must(python().args(["-W", "ignore"]).arg(script("test_models.py")));
    must(python().args(["-W", "ignore"]).arg(script("test_sessions.py")));
    must(python().args(["-W", "ignore"]).arg(script("test_custom.py")));
}

/// The wheel on a machine without a C compiler: it compiles, loads and runs, by the paths of no other tool.
#[cfg(target_os = "linux")]
#[test]
fn python_package_needs_no_c_compiler() {
    let digits = root().join("examples/digits/digits.onnx");
    let program = format!(
        "import numpy, onnxc, shutil\n\
         assert shutil.which('cc') is None and shutil.which('ld') is None\n\
         session = onnxc.InferenceSession({:?}, cache=False)\n\
         found = session.run(None, {{'image': numpy.zeros((1, 1, 8, 8), numpy.float32)}})[0]\n\
         assert abs(found.sum() - 1) < 1e-5, found\n\
         print('good')",
        digits.display()
    );
    let empty = tempfile::tempdir().unwrap();
    let printed = stdout(python().args(["-c", &program]).env("PATH", empty.path()).env_remove("CC"));
    assert_eq!(printed, "good\n");
}

/// What the index and installers show: licence, its text, types, links where the repository is known.
#[test]
fn python_metadata() {
    let folder = std::fs::read_dir(site()).unwrap().map(|entry| entry.unwrap().path());
    let info =
        folder.into_iter().find(|path| path.extension().is_some_and(|end| end == "dist-info")).unwrap();
    let text = std::fs::read_to_string(info.join("METADATA")).unwrap();
    for line in ["License-Expression: Apache-2.0", "License-File: LICENSE", "Classifier: Typing :: Typed"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let source = "Project-URL: Source, https://git.example/onnxc";
    assert!(text.lines().any(|line| line == source), "{text}");
    let license = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    assert_eq!(license(info.join("licenses/LICENSE")), license(root().join("LICENSE")));
    assert!(site().join("onnxc/py.typed").exists());
}

/// A test that the runner fails for any results of a backend: it takes the length of an element of a sequence, here a scalar's.
const RUNNERS_OWN: &str = "node/test_loop16_seq_none";

/// Values of every type pass through the wrapper many times with a share as small as this.
const SHARE: usize = 8;

/// The ONNX package's own runner passes what the harness passes: of the tests, which the harness ran, one of [`SHARE`], spread over
/// all operators; with `ONNXC_BACKEND_TESTS=all` every one.
#[test]
fn onnx_backend_tests() {
    let all = std::env::var("ONNXC_BACKEND_TESTS").is_ok_and(|value| value == "all");
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let parts = threads * if all { 1 } else { SHARE };
    let outcomes: BTreeMap<String, String> = std::thread::scope(|scope| {
        let run = |part: usize| {
            let mut command = python();
            command.arg(script("run_backend_tests.py"));
            command.args(["--parts", &parts.to_string(), "--part", &part.to_string()]);
            stdout(&mut command)
        };
        let threads: Vec<_> = (0..threads).map(|part| scope.spawn(move || run(part))).collect();
        let texts: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        lines.filter_map(outcome).collect()
    });
    let list = root().join("tests/conformance/expected_failures.txt");
    let mut wanted: BTreeSet<String> = expected::names(&list).unwrap();
    // That runner compares what is drawn with what NumPy drew.
    let names = suite::cases().unwrap().into_iter().map(|case| case.id);
    wanted.extend(names.filter(|name| drawn::is_drawn(name)));
    assert!(wanted.insert(RUNNERS_OWN.to_string()));
    wanted.retain(|name| outcomes.contains_key(name));
    let others: BTreeMap<&String, &String> =
        outcomes.iter().filter(|(_, outcome)| !outcome.starts_with("PASS")).collect();
    let found: BTreeSet<String> = others.keys().map(|name| name.to_string()).collect();
    let differing: Vec<&String> = found.symmetric_difference(&wanted).collect();
    assert!(
        differing.is_empty(),
        "not as the harness: {:#?}",
        differing.iter().map(|name| (name, others.get(name))).collect::<Vec<_>>()
    );
    let count = suite::cases().unwrap().len();
    assert!(outcomes.len() >= count / (parts / threads), "{} tests of {count} ran", outcomes.len());
    assert!(!all || outcomes.len() == count, "{} tests of {count} ran", outcomes.len());
    if let Some(line) = outcomes.get(RUNNERS_OWN) {
        assert!(line.contains("Unable to compare expected type"), "{others:?}");
    }
    println!("{} of {} pass", outcomes.len() - others.len(), outcomes.len());
}

/// Name as the harness has it, and the line.
fn outcome(line: &str) -> Option<(String, String)> {
    let (word, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once('/')?;
    let kind = match kind {
        "Node" => "node",
        "Simple" => "simple",
        "PyTorchConverted" => "pytorch-converted",
        "PyTorchOperator" => "pytorch-operator",
        "Real" => "light",
        _ => return None,
    };
    let name = rest.split(':').next()?;
    ["PASS", "FAIL", "SKIP"].contains(&word).then(|| (format!("{kind}/{name}"), line.to_string()))
}
