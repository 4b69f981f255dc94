//! The time of compiling grows about linearly with the model. The table:
//! `cargo run --release -p onnxc-tests --bin scaling`.

use std::path::Path;

use onnxc_tests::measure::HANG;
use onnxc_tests::scaling::{FAMILIES, compile, exponent};

/// Quadratic growth from the first size to the second shows even where a linear part is as large.
const MOST: f64 = 1.5;

/// Small sizes, so that a test build does with them.
const SIZES: &[(&str, [usize; 2])] = &[
    ("chain", [1000, 4000]),
    ("residual net", [600, 2400]),
    ("initializers", [500, 2000]),
    ("Sum inputs", [250, 1000]),
    ("Concat inputs", [250, 1000]),
    ("chain of NonZero", [100, 400]),
    ("chain of Unique", [50, 200]),
    ("calls of a function", [500, 2000]),
    ("outputs of symbolic size", [500, 2000]),
    ("inputs of symbolic size", [500, 2000]),
];

/// The exponent of a family's growth: the least of a few, as others take from caches and clock rates.
fn growth(family: &str, sizes: [usize; 2], folder: &Path) -> f64 {
    let driver = Path::new(env!("CARGO_BIN_EXE_onnxc_driver"));
    let family = FAMILIES.iter().find(|known| known.name == family).expect("the family exists");
    let models = sizes.map(|size| folder.join(format!("{size}.onnx")));
    sizes.iter().zip(&models).for_each(|(&size, model)| family.write(size, model).unwrap());
    let mut costs = sizes.map(|size| (size, f64::INFINITY));
    for _ in 0..4 {
        for (model, cost) in models.iter().zip(&mut costs) {
            cost.1 = cost.1.min(compile(driver, model, HANG).unwrap().expect("it compiles").seconds);
        }
        if exponent(costs[0], costs[1]) < MOST {
            break;
        }
    }
    let grown = exponent(costs[0], costs[1]);
    println!("{}: {costs:.3?}, exponent {grown:.2}", family.name);
    grown
}

#[test]
fn compile_time_grows_about_linearly() {
    let folder = tempfile::tempdir().unwrap();
    let grown = SIZES.iter().map(|&(name, sizes)| (name, growth(name, sizes, folder.path())));
    let steep: Vec<_> = grown.filter(|(_, grown)| *grown >= MOST).collect();
    assert!(steep.is_empty(), "size^e: {steep:.2?}");
}
