//! Compile time grows about linearly with the model. The table:
//! `cargo run --release -p onnxc-tests --bin scaling`.

use std::path::Path;
use std::time::Duration;

use onnxc_tests::scaling::{FAMILIES, compile, exponent};

/// Quadratic growth from the first size to the second shows even where a linear part is as large.
const MOST: f64 = 1.5;

#[test]
fn compile_time_grows_about_linearly() {
    let driver = Path::new(env!("CARGO_BIN_EXE_onnxc_driver"));
    let folder = tempfile::tempdir().unwrap();
    for (name, sizes) in [
        ("chain", [1000, 4000]),
        ("residual net", [600, 2400]),
        ("initializers", [500, 2000]),
        ("Sum inputs", [250, 1000]),
        ("Concat inputs", [250, 1000]),
    ] {
        let family = FAMILIES.iter().find(|family| family.name == name).expect("the family exists");
        let costs = sizes.map(|size| {
            let model = folder.path().join("model.onnx");
            family.write(size, &model).unwrap();
            let cost =
                || compile(driver, &model, Duration::from_secs(120)).unwrap().expect("it compiles").seconds;
            // The least of a few: other programs run beside this one.
            (size, (0..3).map(|_| cost()).fold(f64::INFINITY, f64::min))
        });
        let grown = exponent(costs[0], costs[1]);
        println!("{name}: {costs:.3?}, exponent {grown:.2}");
        assert!(grown < MOST, "{name}: {costs:.3?} grows as size^{grown:.2}");
    }
}
