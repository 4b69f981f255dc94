//! What debuggers and profilers see of a model: line tables and their listing, and traces of runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};
use onnxc_proto::build::{self, node};
use onnxc_tests::object::{include_dir, must, runtime, source};
use onnxc_tests::scaling::FAMILIES;
use prost::Message;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx")
}

/// Ifs, each in a branch of the one before.
fn nested(folder: &Path) -> PathBuf {
    let path = folder.join("nested.onnx");
    FAMILIES.iter().find(|family| family.name == "nested Ifs").unwrap().write(3, &path).unwrap();
    path
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(must(command).stdout).unwrap()
}

/// A row of a line table, and the entry of a function.
#[derive(Debug)]
struct Table {
    file: String,
    folder: String,
    /// Address and line; `None` behind the last.
    rows: Vec<(u64, Option<u64>)>,
    /// Name, line, first address and bytes.
    functions: Vec<(String, u64, u64, u64)>,
}

impl Table {
    fn line(&self, address: u64) -> Option<u64> {
        self.rows.iter().rev().find(|row| row.0 <= address).and_then(|row| row.1)
    }
}

type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// The line table of a linked file, as gimli reads it.
fn table(bytes: &[u8]) -> Table {
    let file = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let load = |id: SectionId| -> Result<Slice<'_>, gimli::Error> {
        let data = file.section_by_name(id.name()).map_or(&[][..], |section| section.data().unwrap());
        Ok(EndianSlice::new(data, endian))
    };
    let dwarf = gimli::Dwarf::load(load).unwrap();
    let mut units = dwarf.units();
    let unit = dwarf.unit(units.next().unwrap().unwrap()).unwrap();
    assert!(units.next().unwrap().is_none());
    let text = |value: gimli::AttributeValue<Slice<'_>>| {
        dwarf.attr_string(&unit, value).unwrap().to_string().unwrap().to_string()
    };
    let mut functions = vec![];
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs().unwrap() {
        if entry.tag() == gimli::DW_TAG_subprogram {
            let get = |name| entry.attr_value(name).unwrap();
            let gimli::AttributeValue::Addr(low) = get(gimli::DW_AT_low_pc) else { panic!("no address") };
            let number = |name| get(name).udata_value().unwrap();
            functions.push((
                text(get(gimli::DW_AT_name)),
                number(gimli::DW_AT_decl_line),
                low,
                number(gimli::DW_AT_high_pc),
            ));
        }
    }
    let program = unit.line_program.clone().unwrap();
    let entry = program.header().file(1).unwrap().path_name();
    let (file, folder) = (text(entry), unit.comp_dir.unwrap().to_string().unwrap().to_string());
    let mut rows = vec![];
    let mut run = program.rows();
    while let Some((_, row)) = run.next_row().unwrap() {
        let line = row.line().map_or(0, |line| line.get());
        rows.push((row.address(), (!row.end_sequence()).then_some(line)));
    }
    Table { file, folder, rows, functions }
}

/// Every address of every function leads to a line that names its step or kernel; symbols and entries of functions agree. The object
/// without line tables has the same code.
#[test]
fn code_leads_to_lines_of_the_listing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (target, cpu) in [
        ("x86_64-unknown-linux-gnu", Some("x86-64-v3")),
        ("x86_64-unknown-linux-gnu", None),
        ("aarch64-unknown-linux-gnu", None),
    ] {
        let compile = |output: &str, flags: &[&str]| {
            let mut onnxc = Command::new(ONNXC);
            onnxc
                .current_dir(&folder)
                .arg(digits())
                .args(["--target", target, "--name", "net", "-o", output]);
            must(onnxc.args(cpu.iter().flat_map(|cpu| ["--mcpu", cpu])).args(flags));
            std::fs::read(at(output)).unwrap()
        };
        compile("net.so", &["--listing"]);
        let library = std::fs::read(at("net.so")).unwrap();
        let listing = std::fs::read_to_string(at("net.lst")).unwrap();
        let lines: Vec<&str> = listing.lines().collect();
        let line = |number: u64| lines[number as usize - 1];
        let table = table(&library);
        assert_eq!(
            (table.file.as_str(), Path::new(&table.folder)),
            ("net.lst", folder.path().canonicalize().unwrap().as_path())
        );
        assert!(table.rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", table.rows);
        let file = ElfFile64::<object::Endianness>::parse(&*library).unwrap();
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for symbol in
            file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0)
        {
            let name = symbol.name().unwrap();
            let own = table.functions.iter().find(|function| function.2 == symbol.address());
            let first = line(table.line(symbol.address()).unwrap());
            if let Some((shown, declared, _, bytes)) = own {
                assert_eq!((*bytes, first), (symbol.size(), line(*declared)), "{name}");
                if let Some(kernel) = name.strip_prefix("net.").filter(|name| name.contains(".kernel")) {
                    *kinds.entry("kernel").or_default() += 1;
                    assert!(
                        shown.starts_with("net_step_") && shown.contains(" (") && shown.contains("\")"),
                        "{shown}"
                    );
                    let kernel = kernel.split('.').take(3).collect::<Vec<_>>().join(".");
                    assert!(first.starts_with(&format!("kernel {kernel}, step")), "{name}: {first}");
                    // All of a kernel is on its line.
                    assert_eq!(line(table.line(symbol.address() + symbol.size() - 1).unwrap()), first);
                } else {
                    *kinds.entry("function").or_default() += 1;
                    assert_eq!(first, format!("function {shown}"), "{name}");
                }
            } else {
                assert!(first.starts_with("net, compiled by onnxc"), "{name}: {first}");
            }
        }
        assert!(kinds["kernel"] >= 3 && kinds["function"] >= 4, "{kinds:?}");
        // The function of the steps has code of each step, and nothing of others.
        let steps = table.functions.iter().find(|function| function.0 == "net.main.steps0").unwrap();
        let mut seen: Vec<&str> =
            (steps.2..steps.2 + steps.3).map(|address| line(table.line(address).unwrap())).collect();
        seen.sort_unstable();
        seen.dedup();
        let all: Vec<&str> = lines.iter().filter(|line| line.starts_with("    step ")).copied().collect();
        assert!(all.len() >= 3 && all.iter().all(|line| seen.contains(line)), "{seen:?} {all:?}");
        assert_eq!(seen.len(), all.len() + 1, "{seen:?}");
        assert!(all.iter().any(|line| line.contains("(Conv)")), "{all:?}");
        let (with, without) = (compile("with.o", &["--listing=net.lst"]), compile("without.o", &[]));
        assert_eq!(without, compile("without.o", &[]));
        let sections = |bytes: &[u8]| -> Vec<(String, Vec<u8>)> {
            let file = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
            let loaded =
                |name: &str| name.starts_with(".text") || name.contains("rodata") || name == ".eh_frame";
            let named = file
                .sections()
                .map(|section| (section.name().unwrap().to_string(), section.data().unwrap().to_vec()));
            named.filter(|(name, _)| loaded(name)).collect()
        };
        assert_eq!(sections(&with), sections(&without));
        println!("{target}: {} bytes without line tables, {} with", without.len(), with.len());
    }
    // Line tables are for ELF, and for code.
    for (output, flags, text) in [
        ("net.obj", &["--target", "x86_64-pc-windows-msvc"][..], "line tables are for ELF objects"),
        ("net.c", &[], "--listing is for objects and libraries"),
    ] {
        let mut onnxc = Command::new(ONNXC);
        onnxc.current_dir(&folder).arg(digits()).args(["--listing", "-o", output]).args(flags);
        let refused = onnxc.output().unwrap();
        let found = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && found.contains(text), "{:?} {found}", refused.status);
    }
}

/// Whether a program is there; otherwise says that a test is left out.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("NOT TESTED: {program} is not installed");
    }
    found
}

/// A model that ends with two copies of its input.
fn copies(folder: &Path) -> PathBuf {
    let path = folder.join("copies.onnx");
    let value = |name: &str| build::f32_value(name, &["2", "3"]);
    let nodes = vec![
        node("Tanh", &["x"], &["y"]),
        node("Identity", &["x"], &["first"]),
        node("Identity", &["x"], &["second"]),
    ];
    let graph = build::graph(vec![value("x")], nodes, ["y", "first", "second"].map(value).to_vec());
    std::fs::write(&path, build::model(17, graph).encode_to_vec()).unwrap();
    path
}

/// A program that runs the models, with line tables.
fn program(folder: &Path, flags: &[&str]) -> PathBuf {
    for (name, model) in [("digits", digits()), ("nested", nested(folder)), ("copies", copies(folder))] {
        let mut onnxc = Command::new(ONNXC);
        onnxc.current_dir(folder).arg(model).args(["--name", name, "-o", &format!("{name}.o")]);
        must(onnxc.args(flags));
    }
    let program = folder.join("trace");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-I"]).arg(include_dir());
    cc.arg(source("trace.c")).args(["digits.o", "nested.o", "copies.o"].map(|name| folder.join(name)));
    cc.arg(runtime());
    must(cc.args(["-ldl", "-lm", "-o"]).arg(&program));
    program
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn tools_show_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &["--mcpu", "x86-64-v3", "--listing"]);
    let listing = std::fs::read_to_string(folder.path().join("digits.lst")).unwrap();
    let (at, kernel) = listing
        .lines()
        .enumerate()
        .find(|(_, line)| line.starts_with("kernel ") && line.contains("(Conv)"))
        .unwrap();
    let symbol = format!("digits.{}", kernel["kernel ".len()..].split(',').next().unwrap());
    if has("addr2line") {
        let bytes = std::fs::read(&program).unwrap();
        let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
        let address = file.symbols().find(|own| own.name() == Ok(&symbol)).unwrap().address();
        let text = stdout(
            Command::new("addr2line").args(["-f", "-e"]).arg(&program).arg(format!("{:#x}", address + 3)),
        );
        assert!(text.contains("digits_step_") && text.contains("(Conv \""), "{text}");
        assert!(text.contains(&format!("digits.lst:{}", at + 1)), "{text}");
    }
    if has("gdb") {
        let mut gdb = Command::new("gdb");
        gdb.args(["-batch", "-nx", "-ex", "set confirm off", "-ex", &format!("break *&'{symbol}'")]);
        gdb.args(["-ex", "run digits short", "-ex", "backtrace", "-ex", "list"])
            .arg(&program)
            .current_dir(&folder);
        let text = stdout(&mut gdb);
        let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        assert!(frames.len() >= 5, "{text}");
        assert!(frames[0].contains("digits_step_") && frames[0].contains("(Conv \""), "{text}");
        assert!(frames[0].contains(&format!("digits.lst:{}", at + 1)), "{text}");
        // The frame above is at the line of the step.
        let number: usize = frames[1].rsplit(':').next().unwrap().trim().parse().unwrap();
        assert!(listing.lines().nth(number - 1).unwrap().starts_with("    step "), "{text}");
        assert!(frames.iter().any(|frame| frame.contains(" main (")), "{text}");
        assert!(text.contains(kernel), "{text}");
    }
}

/// Events that `trace` prints: kind, number, kernel and nodes.
fn events(program: &Path, model: &str, mode: &str) -> Vec<(i32, i64, String, String)> {
    let text = stdout(Command::new(program).args([model, mode]));
    let event = |line: &str| {
        let (head, nodes) = line.split_once('|').unwrap();
        let words: Vec<&str> = head.splitn(3, ' ').collect();
        (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].to_string(), nodes.to_string())
    };
    text.lines().map(event).collect()
}

const RUN_BEGIN: i32 = 0;
const RUN_END: i32 = 1;
const STEP: i32 = 2;
const ENTER: i32 = 3;
const LEAVE: i32 = 4;

#[test]
fn a_trace_is_informed_of_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &[]);
    let found = events(&program, "digits", "print");
    let steps = &found[1..found.len() - 1];
    let text = String::new();
    assert_eq!(found[0], (RUN_BEGIN, 0, "digits".into(), text.clone()));
    assert_eq!(found[found.len() - 1], (RUN_END, 0, "digits".into(), text));
    let host =
        stdout(Command::new(ONNXC).arg(digits()).args(["--emit", "host", "--name", "digits", "-o", "-"]));
    let is_step = |line: &&str| line.trim_start().trim_start_matches("unpolled_").starts_with("step ");
    let listed = host.lines().filter(is_step).count();
    assert!(listed >= 3 && steps.len() == listed, "{found:?}");
    for (at, step) in steps.iter().enumerate() {
        assert_eq!((step.0, step.1), (STEP, at as i64), "{found:?}");
        assert!(!step.2.is_empty() && step.3.contains('('), "{found:?}");
    }
    assert!(steps.iter().any(|step| step.3.contains("(Conv)")), "{found:?}");
    // Bodies: each is entered and left, in order.
    let found = events(&program, "nested", "print");
    let mut open = vec![];
    for (kind, number, ..) in &found {
        match *kind {
            ENTER => open.push(*number),
            LEAVE => assert_eq!(open.pop(), Some(*number), "{found:?}"),
            STEP => assert!(!open.contains(number)),
            _ => assert!(open.is_empty(), "{found:?}"),
        }
    }
    assert_eq!(found.iter().filter(|event| event.0 == ENTER).count(), 3, "{found:?}");
    for model in ["digits", "nested"] {
        assert_eq!(events(&program, model, "short"), []);
        // A run that is cancelled before it begins has no events; one that is cancelled by its second step ends before the third.
        let kinds: Vec<i32> = events(&program, model, "cancel").iter().map(|event| event.0).collect();
        let numbers: Vec<i64> = events(&program, model, "cancel").iter().map(|event| event.1).collect();
        assert_eq!(
            (kinds[0], *kinds.last().unwrap(), *numbers.last().unwrap()),
            (RUN_BEGIN, RUN_END, 12),
            "{kinds:?}"
        );
        assert_eq!(kinds.iter().filter(|kind| [STEP, ENTER].contains(kind)).count(), 2, "{kinds:?}");
    }
    // Copies at the end are steps, between which no run ends: states would be old and new ones.
    let found = events(&program, "copies", "late");
    let kernels: Vec<&str> =
        found.iter().filter(|event| event.0 == STEP).map(|event| event.2.as_str()).collect();
    assert_eq!(kernels[kernels.len() - 2..], ["copy", "copy"], "{found:?}");
    let json = folder.path().join("trace.json");
    for (model, flags) in [("digits", 3), ("nested", 3)] {
        must(Command::new(&program).args([model, "file"]).arg(&json));
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let slices: Vec<&serde_json::Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
        let span = |event: &serde_json::Value| {
            let number = |key: &str| (event[key].as_f64().unwrap() * 1e3).round() as i64;
            (number("ts"), number("ts") + number("dur"))
        };
        let runs: Vec<(i64, i64)> =
            slices.iter().filter(|event| event["cat"] == "run").map(|event| span(event)).collect();
        assert_eq!(runs.len(), flags);
        let inside = |event: &serde_json::Value| {
            let own = span(event);
            runs.iter().any(|run| run.0 <= own.0 && own.1 <= run.1)
        };
        let steps: Vec<_> = slices.iter().filter(|event| event["cat"] == "step").collect();
        assert!(steps.len() >= 9 && steps.iter().all(|step| inside(step)), "{steps:?}");
        assert!(
            steps.iter().all(|step| step["args"]["nodes"].is_string() && step["name"].is_string()),
            "{steps:?}"
        );
    }
}

/// The names are a part of an object that can be left out, and with them the calls.
#[test]
fn objects_without_names_inform_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &["--no-trace"]);
    for model in ["digits", "nested"] {
        assert_eq!(events(&program, model, "print"), []);
    }
    let size = |flags: &[&str]| {
        let object = folder.path().join("size.o");
        must(Command::new(ONNXC).arg(digits()).args(["--mcpu", "x86-64-v3", "-o"]).arg(&object).args(flags));
        std::fs::metadata(object).unwrap().len()
    };
    let (with, without) = (size(&[]), size(&["--no-trace"]));
    println!("digits: {without} bytes without names, {with} with");
    assert!(without < with && with - without < 4096, "{with} {without}");
}
