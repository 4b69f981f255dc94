//! Texts of dims as bindings read them: `onnxc.h`, which C++ and Go use, and the Python package. All functions of dims are drawn.

use std::fs;
use std::process::Command;

use onnxc_ir::graph::{Dim, Sym};
use onnxc_tests::object::{must, run_c, source};
use onnxc_tests::onnx_env::WHEEL;
use onnxc_tests::prefix::root;

/// One begins as another does, one has an operator in it.
const NAMES: [&str; 3] = ["seq", "seq2", "past + new"];

const VALUES: [[i64; 3]; 4] = [[7, 100, 3], [1, 5, 0], [512, 1, 1], [0, 0, 0]];

fn draw(next: &mut impl FnMut(u64) -> u64, depth: u32) -> Dim {
    let kind = next(if depth == 0 { 3 } else { 10 });
    if kind < 2 {
        return Dim::sym(Sym::from_u32(next(3) as u32));
    }
    if kind == 2 {
        return Dim::from(next(40) as i64 - 4);
    }
    let (a, b) = (draw(next, depth - 1), draw(next, depth - 1));
    match kind {
        3 => a + b,
        4 => a - b,
        5 => a * b,
        // Divisors are sizes.
        6 => a.floor_div(&b.max_dim(&Dim::ONE)).unwrap_or(a),
        7 => a.modulo(&b.max_dim(&Dim::ONE)).unwrap_or(a),
        8 => a.min_dim(&b).broadcast(&b) + a.min_dim(&b),
        _ => a.max_dim(&b),
    }
}

/// Texts, and of each the sizes for all values of the symbols.
fn dims() -> Vec<(String, Vec<i64>)> {
    let mut state = 1u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut found = vec![];
    while found.len() < 400 {
        let dim = draw(&mut next, 3);
        let size = |values: &[i64; 3]| dim.eval(&|sym| Some(values[sym.as_u32() as usize]));
        if let Some(sizes) = VALUES.iter().map(size).collect() {
            found.push((dim.text(&|sym| NAMES[sym.as_u32() as usize].to_string()), sizes));
        }
    }
    for function in ["floordiv", "mod", "min", "max", "broadcast"] {
        assert!(
            found.iter().any(|(text, _)| text.contains(&format!("{function}("))),
            "no {function} is drawn"
        );
    }
    found
}

/// What a reader printed, a line for each value of the symbols and dim.
fn check(printed: &str) {
    let dims = dims();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), VALUES.len() * dims.len());
    for (row, values) in VALUES.iter().enumerate() {
        for (at, (text, sizes)) in dims.iter().enumerate() {
            let line = lines[row * dims.len() + at];
            assert_eq!(line, sizes[row].to_string(), "`{text}` where {NAMES:?} are {values:?}");
        }
    }
}

#[test]
fn texts_as_the_header_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let list = |items: Vec<String>| format!("{{{}}}", items.join(", "));
    let names = list(NAMES.map(|name| format!("{name:?}")).to_vec());
    let texts = list(dims().iter().map(|(text, _)| format!("{text:?}")).collect());
    let values = list(VALUES.iter().map(|row| list(row.map(|value| value.to_string()).to_vec())).collect());
    let header =
        format!("#define DIMS_NAMES {names}\n#define DIMS_TEXTS {texts}\n#define DIMS_VALUES {values}\n");
    fs::write(dir.path().join("dims.h"), header).unwrap();
    check(&run_c(dir.path(), &source("dims.c"), &[], &[]));
}

#[test]
fn texts_as_python_reads_them() {
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    let texts = list(dims().iter().map(|(text, _)| format!("{text:?}")).collect());
    let program = format!(
        "from onnxc import _dims\nfor row in {VALUES:?}:\n    for text in {texts}:\n        \
         print(_dims.evaluate(text, dict(zip({NAMES:?}, row))))\n"
    );
    let mut python = Command::new(WHEEL.interpreter().unwrap());
    python.args(["-c", &program]).env("PYTHONPATH", root().join("runtime-support/python"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    check(&String::from_utf8(must(&mut python).stdout).unwrap());
}
