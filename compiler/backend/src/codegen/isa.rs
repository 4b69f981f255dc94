//! Targets as Cranelift has them.

use cranelift_codegen::isa::{OwnedTargetIsa, lookup};
use cranelift_codegen::settings::{self, Configurable};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_machine::target::{Records, Target, code_triple};
use target_lexicon::BinaryFormat;

/// How hard Cranelift optimizes a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opt {
    /// Instructions stay in the order they are given: best for hand-ordered vector loops.
    None,
    Speed,
}

/// Cranelift's description of a target. Code is position independent and calls nothing.
pub fn isa(target: &Target, opt: Opt) -> Result<OwnedTargetIsa> {
    isa_with(target, opt, &target.features)
}

/// The same at the triple's baseline: for entry points.
pub fn entry_isa(target: &Target) -> Result<OwnedTargetIsa> {
    isa_with(target, Opt::Speed, target.baseline)
}

fn isa_with(target: &Target, opt: Opt, features: &[&str]) -> Result<OwnedTargetIsa> {
    let mut flags = settings::builder();
    let level = match opt {
        Opt::None => "none",
        Opt::Speed => "speed",
    };
    let text = |value: bool| if value { "true" } else { "false" };
    let records = text(target.unwind_records().is_some());
    // Windows wants the pages of the stack touched in their order.
    let probes = text(target.triple.binary_format == BinaryFormat::Coff);
    // Else Cranelift reaches everything by way of a table that COFF does not have. What it then makes is the same at any
    // address: pages relative to the code, and places in them.
    let pic = text(target.unwind_records() != Some(Records::Arm64));
    let verifier = text(cfg!(debug_assertions));
    for (name, value) in [
        ("opt_level", level),
        ("is_pic", pic),
        ("unwind_info", records),
        ("enable_probestack", probes),
        ("probestack_strategy", "inline"),
        ("enable_verifier", verifier),
    ] {
        flags.set(name, value).map_err(|e| internal(format!("setting `{name}`: {e}")))?;
    }
    let mut builder =
        lookup(code_triple(&target.triple)).map_err(|e| usage(format!("target `{}`: {e}", target.triple)))?;
    for feature in features {
        builder.enable(feature).map_err(|e| internal(format!("feature `{feature}`: {e}")))?;
    }
    builder
        .finish(settings::Flags::new(flags))
        .map_err(|e| internal(format!("target `{}`: {e}", target.triple)))
}

fn usage(message: String) -> Error {
    Error::new(Stage::Codegen, Kind::Usage, message)
}

fn internal(message: String) -> Error {
    Error::internal(Stage::Codegen, message)
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use onnxc_machine::target::processors;
    use target_lexicon::Triple;

    use super::*;

    fn triple(text: &str) -> Triple {
        Triple::from_str(text).unwrap()
    }

    #[test]
    fn every_named_processor_makes_an_isa() {
        for text in [
            "x86_64-unknown-linux-gnu",
            "x86_64-pc-windows-msvc",
            "aarch64-unknown-linux-gnu",
            "aarch64-apple-darwin",
            "s390x-unknown-linux-gnu",
            "riscv64gc-unknown-linux-gnu",
            "riscv64gc-unknown-none-elf",
        ] {
            for name in processors(&triple(text)) {
                let target = Target::new(triple(text), Some(name)).unwrap();
                for opt in [Opt::None, Opt::Speed] {
                    let isa = isa(&target, opt).unwrap();
                    assert!(isa.flags().is_pic());
                    let on = |flag: &str| {
                        isa.isa_flags().iter().any(|f| f.name == flag && f.as_bool() == Some(true))
                    };
                    assert!(target.features.iter().all(|feature| on(feature)), "{text} {name}");
                }
            }
        }
    }

    #[test]
    fn records_and_probes_are_those_of_the_system() {
        for text in [
            "x86_64-unknown-linux-gnu",
            "x86_64-apple-darwin",
            "x86_64-unknown-none-elf",
            "x86_64-pc-windows-msvc",
            "x86_64-pc-windows-gnu",
            "x86_64-unknown-uefi",
        ] {
            let target = Target::parse(text, None).unwrap();
            let windows = text.contains("windows") || text.contains("uefi");
            for isa in [isa(&target, Opt::None), isa(&target, Opt::Speed), entry_isa(&target)] {
                let isa = isa.unwrap();
                // Windows gives a stack its pages one by one, as they are touched.
                let flags = (isa.flags().unwind_info(), isa.flags().enable_probestack());
                assert_eq!(flags, (target.unwind_records().is_some(), windows));
            }
        }
    }

    #[test]
    fn s390x_is_big_endian() {
        let target = Target::new(triple("s390x-unknown-linux-gnu"), None).unwrap();
        assert_eq!(isa(&target, Opt::None).unwrap().endianness(), cranelift_codegen::ir::Endianness::Big);
    }
}
