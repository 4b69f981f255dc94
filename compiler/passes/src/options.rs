//! [`Options`] of the passes, and the texts about levels and `--exact` that the command's help and the book have.

use onnxc_machine::target::Goal;

use crate::PackPolicy;

/// What the passes may know besides the graph. Nothing here names a target.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Optimization level, one of [`LEVELS`].
    pub level: u8,
    pub pack: PackPolicy,
    /// Nothing that rounds otherwise than the model says, for the sake of speed.
    pub exact: bool,
    /// Whether the object is to be small or fast.
    pub goal: Goal,
    /// In what products of floats are computed: f32 or bf16.
    pub precision: Precision,
}

/// What the operands of products of floats are rounded to; sums are f32.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Precision {
    /// Not rounded.
    #[default]
    F32,
    Bf16,
    /// As [`Precision::Bf16`] where the processor multiplies bf16, else as [`Precision::F32`].
    Auto,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Auto => "auto",
        })
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Precision, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "auto" => Ok(Precision::Auto),
            "f16" => Err("products of f16 are not supported: f32, bf16 and auto are".into()),
            _ => Err("not a precision: f32, bf16 and auto are".into()),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            level: ALL_PASSES,
            pack: PackPolicy::NARROW,
            exact: false,
            goal: Goal::Speed,
            precision: Precision::F32,
        }
    }
}

/// The level that has all passes, the default.
pub const ALL_PASSES: u8 = 2;

/// The level of a number that a user gave: 3 is what compilers usually have.
pub fn level(number: u8) -> Option<u8> {
    match number {
        0..=ALL_PASSES => Some(number),
        3 => Some(ALL_PASSES),
        _ => None,
    }
}

/// What users may give behind `-O`, and what it means.
pub const LEVELS: &[(&str, &str)] = &[
    ("0", "required passes only, and no fusion"),
    ("1", "all passes but minimal filtering, whose weights take more bytes"),
    ("2", "all passes, the default; 3 is the same"),
    ("s", "small objects: all passes, one version of each kernel, no unrolling, weights in their own size"),
];

/// [`LEVELS`] as a sentence.
pub fn levels() -> String {
    let levels: Vec<String> = LEVELS.iter().map(|(name, doc)| format!("{name} ({doc})")).collect();
    format!("Optimization level: {}", levels.join(", "))
}

/// Something that rounds otherwise than the model says, for the sake of speed.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    /// What `--exact` leaves out, as the help has it; several rows may have the same.
    pub short: &'static str,
    pub what: &'static str,
    pub bound: &'static str,
    /// What there is in its place with `--exact`.
    pub exact: &'static str,
    /// The files of passes that do it: where it is described, and those that ask [`Options::exact`].
    pub files: &'static [&'static str],
}

/// What `--exact` leaves out.
pub const EXACT: &[Rounding] = &[
    Rounding {
        short: "minimal filtering of convolutions",
        what: "minimal filtering of 3x3 convolutions",
        bound: "about twice the error of the direct sum; what is not finite spreads over a tile",
        exact: "none",
        files: &["winograd.rs"],
    },
    Rounding {
        short: "scales folded into weights",
        what: "scales and shifts folded into weights and biases",
        bound: "a few units in the last place of the weights; never out of range, and zeros keep their signs",
        exact: "none",
        files: &["bn_fold.rs"],
    },
    Rounding {
        short: "joined scales of quantized models",
        what: "joined scales of quantized models, products by reciprocals of known scales",
        bound: "the next integer, for a value beside a tie",
        exact: "none",
        files: &["quantized.rs"],
    },
    Rounding {
        short: "joined scales of quantized models",
        what: "multiply-add where the sum is rounded to an integer",
        bound: "one rounding in place of two",
        exact: "none",
        files: &["mul_add.rs"],
    },
    Rounding {
        short: "joined scales of quantized models",
        what: "a multiplication and a shift in place of floats, in C for microcontrollers",
        bound: "the next integer, for a value beside a tie",
        exact: "floats",
        files: &["requantized.rs"],
    },
    Rounding {
        short: "values of 16-bit models that stay in f32",
        what: "f16 and bf16 that are not rounded between nodes",
        bound: "nearer to the model in f32",
        exact: "every result is rounded",
        files: &["half.rs"],
    },
    Rounding {
        short: "values of 16-bit models that stay in f32",
        what: "quotients of f16 by few divisors as products with reciprocals",
        bound: "a unit of f32",
        exact: "divisions",
        files: &["half.rs"],
    },
    Rounding {
        short: "values of 16-bit models that stay in f32",
        what: "weights of few bits that the model dequantizes to f16 or bf16",
        bound: "not rounded to these, so nearer to the codes times their scales",
        exact: "rounded",
        files: &["weights.rs", "pack.rs", "products.rs"],
    },
    Rounding {
        short: "means by rows of images",
        what: "squared deviations of an image from its mean, row by row from the mean of the row",
        bound: "that of any order of the sum; no difference of large squares is taken",
        exact: "from the mean of the image",
        files: &["moments.rs"],
    },
    Rounding {
        short: "zeros for the least numbers of a softmax",
        what: "numbers of a softmax in f32 below 2^-126 of its greatest, if only products read it",
        bound: "they are 0",
        exact: "kept",
        files: &["tails.rs"],
    },
    Rounding {
        short: "zeros for the least numbers of a softmax",
        what: "quotients of such a softmax",
        bound: "products with the inverse of the sum: one more rounding, `u`",
        exact: "divided",
        files: &["tails.rs"],
    },
    Rounding {
        short: "activations as integers of three digits",
        what: "activations as integers of three digits",
        bound: "2^-23 of the largest of a block",
        exact: "f32",
        files: &["digits.rs", "pack.rs"],
    },
    Rounding {
        short: "instructions for bf16 that take subnormal numbers for zeros",
        what: "products of models of bf16 by instructions for bf16",
        bound: "none, but operands and sums below 2^-126 are zeros",
        exact: "products of f32",
        files: &["pack.rs"],
    },
];

/// What `--exact` leaves out, as sentences.
pub fn left_out_by_exact() -> String {
    let mut short: Vec<&str> = EXACT.iter().map(|row| row.short).collect();
    short.dedup();
    let (first, others) = short.split_at(short.len() / 2);
    format!("Left out: {}. Also: {}", first.join("; "), others.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Each file whose pass asks whether a model is compiled exactly is in the table that the book has, and each row has such a file.
    #[test]
    fn passes_that_ask_for_exactness_say_what_they_round() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let asks = |file: &str| {
            std::fs::read_to_string(folder.join(file)).expect("a file of passes").contains("options.exact")
        };
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string());
        let sources = files.map(Result::unwrap).filter(|name| name.ends_with(".rs") && name != "options.rs");
        let asking: BTreeSet<String> = sources.filter(|name| asks(name)).collect();
        let named: BTreeSet<&str> = EXACT.iter().flat_map(|row| row.files).copied().collect();
        let missing: Vec<&String> = asking.iter().filter(|name| !named.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "what `--exact` changes in {missing:?} is in no row of EXACT");
        for row in EXACT {
            assert!(row.files.iter().any(|file| asks(file)), "no file of `{}` asks `--exact`", row.what);
        }
    }

    #[test]
    fn levels_are_those_that_differ() {
        assert_eq!([0, 1, 2, 3, 4].map(level), [Some(0), Some(1), Some(2), Some(2), None]);
        let least = |number: u8| crate::passes().any(|pass| pass.min_level == number);
        let numbers = LEVELS.iter().filter_map(|(name, _)| name.parse().ok());
        let numbers: Vec<u8> = numbers.collect();
        assert_eq!(numbers, (0..=ALL_PASSES).collect::<Vec<u8>>());
        assert!(numbers.into_iter().all(least), "a level has the passes of the one below");
    }
}
