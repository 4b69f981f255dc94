//! One value per target: triple, instruction set, vector width, register tile and cache sizes. Adding a
//! target touches this folder; no other code matches on an architecture.

mod aarch64;
mod x86_64;

use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{Architecture, Triple};

use crate::error::{Error, Kind, Result, Stage};

/// Everything that lowering and code generation may know about a machine.
#[derive(Clone, Debug)]
pub struct Target {
    pub triple: Triple,
    /// Name given with `--mcpu`, the default of the architecture when none was.
    pub cpu: String,
    /// Cranelift settings to enable, beyond the triple's baseline.
    pub features: Vec<&'static str>,
    /// Bytes of the vectors that code is lowered for: at first those of Cranelift.
    pub vector_bytes: usize,
    /// Bytes of the vectors of leaf kernels, where the target has them.
    pub leaf_bytes: Option<usize>,
    /// Registers of those vectors.
    pub vector_registers: usize,
    /// Vector registers that leaf kernels reach.
    pub leaf_registers: usize,
    /// Whether `a * b + c` is one instruction.
    pub has_fma: bool,
    /// Whether fused multiply-adds are encoded to overwrite a factor, not the accumulator.
    pub fma_overwrites_factor: bool,
    /// Whether the float maximum and minimum instructions give NaN when either operand is NaN.
    pub has_nan_minmax: bool,
    /// Whether the float to i32 vector conversion that truncates is cheaper than the one that saturates.
    pub has_truncating_convert: bool,
    /// Bytes of the first and second level data caches of one core.
    pub l1_bytes: usize,
    pub l2_bytes: usize,
}

/// How hard Cranelift optimizes a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opt {
    /// Instructions stay in the order they are given: best for hand-ordered vector loops.
    None,
    Speed,
}

impl Target {
    /// A target by triple and processor name.
    ///
    /// Without a name, x86-64 means `x86-64-v3` (AVX2 and FMA: every server and desktop processor since about
    /// 2015), other architectures `generic`. `native` asks the machine the compiler runs on.
    ///
    /// Errors of kind `Usage`: an architecture without back end, a processor that it does not know, `native`
    /// for another architecture than the host's.
    pub fn new(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
        match triple.architecture {
            Architecture::X86_64 => x86_64::target(triple, mcpu),
            Architecture::Aarch64(_) => aarch64::target(triple, mcpu),
            other => Err(usage(format!("no code generator for architecture `{other}`"))),
        }
    }

    /// The target of the machine that the compiler runs on.
    pub fn host() -> Result<Target> {
        Target::new(Triple::host(), Some("native"))
    }

    /// Lanes of a vector of elements of `size` bytes.
    pub fn lanes(&self, size: usize) -> usize {
        self.vector_bytes / size
    }

    /// The same machine with vectors of at most `bits` bits. Errors of kind `Usage`: a width that it does not have.
    pub fn with_vector_width(self, bits: usize) -> Result<Target> {
        let narrow = 8 * self.vector_bytes;
        if bits == narrow {
            return Ok(Target { leaf_bytes: None, ..self });
        }
        let widths = [narrow, 256, 512].into_iter();
        let widths =
            widths.filter(|&bits| bits == narrow || self.leaf_bytes.is_some_and(|max| bits <= 8 * max));
        let widths: Vec<usize> = widths.collect();
        if widths.contains(&bits) {
            return Ok(Target { leaf_bytes: Some(bits / 8), ..self });
        }
        let widths: Vec<String> = widths.iter().map(|bits| bits.to_string()).collect();
        let (cpu, widths) = (&self.cpu, widths.join(" and "));
        Err(usage(format!("`{cpu}` has vectors of {widths} bits, not of {bits}")))
    }

    /// The same machine as leaf kernels see it.
    pub fn leaf(&self) -> Option<Target> {
        let vector_bytes = self.leaf_bytes?;
        Some(Target { vector_bytes, vector_registers: self.leaf_registers, ..self.clone() })
    }

    /// Cranelift's description of the target. Code is position independent and calls nothing.
    pub fn isa(&self, opt: Opt) -> Result<OwnedTargetIsa> {
        let mut flags = settings::builder();
        let level = match opt {
            Opt::None => "none",
            Opt::Speed => "speed",
        };
        let verifier = if cfg!(debug_assertions) { "true" } else { "false" };
        for (name, value) in [
            ("opt_level", level),
            ("is_pic", "true"),
            ("unwind_info", "false"),
            ("enable_probestack", "false"),
            ("enable_verifier", verifier),
        ] {
            flags.set(name, value).map_err(|e| internal(format!("setting `{name}`: {e}")))?;
        }
        let mut builder =
            isa::lookup(self.triple.clone()).map_err(|e| usage(format!("target `{}`: {e}", self.triple)))?;
        for feature in &self.features {
            builder.enable(feature).map_err(|e| internal(format!("feature `{feature}`: {e}")))?;
        }
        builder
            .finish(settings::Flags::new(flags))
            .map_err(|e| internal(format!("target `{}`: {e}", self.triple)))
    }
}

/// Whether `native` can describe this architecture: features are detected on the host.
fn is_host(triple: &Triple) -> bool {
    let host = Triple::host().architecture;
    triple.architecture == host
        || matches!((triple.architecture, host), (Architecture::Aarch64(_), Architecture::Aarch64(_)))
}

fn unknown_cpu(cpu: &str, triple: &Triple, known: &[&str]) -> Error {
    usage(format!("unknown processor `{cpu}` for `{triple}`; known are native, {}", known.join(", ")))
}

fn usage(message: String) -> Error {
    Error::new(Stage::Codegen, Kind::Usage, message)
}

fn internal(message: String) -> Error {
    Error::internal(Stage::Codegen, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    fn triple(text: &str) -> Triple {
        Triple::from_str(text).unwrap()
    }

    #[test]
    fn every_named_processor_makes_an_isa() {
        for (text, names) in [
            ("x86_64-unknown-linux-gnu", x86_64::names()),
            ("x86_64-pc-windows-msvc", x86_64::names()),
            ("aarch64-unknown-linux-gnu", vec!["generic"]),
            ("aarch64-apple-darwin", vec!["generic"]),
        ] {
            for name in names {
                let target = Target::new(triple(text), Some(name)).unwrap();
                for opt in [Opt::None, Opt::Speed] {
                    let isa = target.isa(opt).unwrap();
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
    fn default_has_avx2_and_fma() {
        let target = Target::new(triple("x86_64-unknown-linux-gnu"), None).unwrap();
        assert_eq!(target.cpu, "x86-64-v3");
        assert!(target.has_fma);
        for feature in ["has_avx", "has_avx2", "has_fma", "has_bmi2"] {
            assert!(target.features.contains(&feature), "{feature}");
        }
        assert_eq!(target.lanes(4), 4);
    }

    #[test]
    fn vectors_are_as_wide_as_asked_for() {
        let target = |cpu| Target::new(triple("x86_64-unknown-linux-gnu"), Some(cpu)).unwrap();
        assert_eq!(target("x86-64-v3").leaf().unwrap().lanes(4), 8);
        assert!(target("x86-64-v3").with_vector_width(128).unwrap().leaf().is_none());
        assert_eq!(target("x86-64-v3").with_vector_width(256).unwrap().leaf_bytes, Some(32));
        assert!(target("x86-64-v2").leaf().is_none());
        for cpu in ["x86-64-v4", "skylake-avx512", "icelake-server", "sapphirerapids", "znver4", "znver5"] {
            let leaf = target(cpu).leaf().unwrap();
            assert_eq!((leaf.lanes(4), leaf.vector_registers), (16, 32), "{cpu}");
            let leaf = target(cpu).with_vector_width(256).unwrap().leaf().unwrap();
            assert_eq!((leaf.lanes(4), leaf.vector_registers), (8, 32), "{cpu}");
            assert!(target(cpu).with_vector_width(512).is_ok() && target(cpu).with_vector_width(64).is_err());
            assert_eq!(target(cpu).vector_registers, 16, "Cranelift's have a VEX prefix");
        }
        let error = target("x86-64-v2").with_vector_width(256).unwrap_err();
        assert_eq!(error.message, "`x86-64-v2` has vectors of 128 bits, not of 256");
        let windows = Target::new(triple("x86_64-pc-windows-msvc"), Some("x86-64-v3")).unwrap();
        assert!(windows.leaf().is_none());
    }

    #[test]
    fn unknown_names_are_usage_errors() {
        let error = Target::new(triple("x86_64-unknown-linux-gnu"), Some("z80")).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.contains("z80") && error.message.contains("haswell"), "{error}");
        assert_eq!(Target::new(triple("mips64-unknown-linux-gnu"), None).unwrap_err().kind, Kind::Usage);
    }
}
