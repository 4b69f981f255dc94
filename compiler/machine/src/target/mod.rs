//! One value per target: triple, processor and the levels above it. What code is lowered for is a [`Core`]: vectors, registers
//! and caches, as Cranelift or leaf kernels have them. Adding a target touches this folder. Beyond it only object formats and linkers
//! know architectures.

mod aarch64;
mod core;
mod riscv64;
mod s390x;
mod source;
mod x86_64;

pub use core::Core;
pub use target_lexicon::Endianness;
use target_lexicon::{
    Aarch64Architecture, Architecture, BinaryFormat, Environment, OperatingSystem, PointerWidth,
    Riscv64Architecture, Triple,
};

use crate::vector::ir::Signs;
use crate::vector::isa::Isa;
use onnxc_ir::error::{Error, Kind, Result, Stage, without};
use onnxc_ir::words::did_you_mean;

/// What an object is made for: a processor, as Cranelift and as leaf kernels see it, and better ones.
#[derive(Clone, Debug)]
pub struct Target {
    pub triple: Triple,
    /// Name given with `--mcpu`, the default of the architecture when none was.
    pub cpu: String,
    /// Better processors that hot code is made for as well: sets of features. An object takes the last one that the
    /// processor has when it runs. None comes before one that it includes.
    pub upgrades: Vec<Target>,
    /// Cranelift settings to enable, beyond the triple's baseline.
    pub features: Vec<&'static str>,
    /// Those that every processor of the architecture has: code around the kernels is made for these.
    pub baseline: &'static [&'static str],
    /// Whether C's calling convention extends integers to whole registers, which functions may then rely on.
    pub extends_integers: bool,
    /// What Cranelift has for it.
    pub narrow: Isa,
    /// What leaf kernels have, where the target has those.
    pub wide: Option<Isa>,
    /// Whether C is written for it, not machine code: what compiles that has every operation at any width.
    pub is_source: bool,
    /// What kernels are lowered for that Cranelift compiles, or a C compiler. Leaf kernels are for [`Target::leaf`].
    pub core: Core,
}

/// The function that finds out what levels of a target a processor is good for.
pub struct LevelCode {
    pub bytes: Vec<u8>,
    /// Bytes of stack at most.
    pub stack: u32,
}

/// What code is tuned for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Goal {
    #[default]
    Speed,
    /// Few bytes: loops that are not written out, tiles of few rows, no prefetches.
    Size,
}

/// Forms of records for unwinders: those that Microsoft documents for COFF objects, and those of DWARF in ELF objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Records {
    X64,
    Arm64,
    Dwarf(Dwarf),
}

/// Machines whose rules for unwinders [`crate::unwind`] writes as DWARF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dwarf {
    X64,
    Arm64,
}

impl Target {
    /// What targets are made from: a machine of 128-bit vectors that Cranelift has nothing special for, without leaf kernels and
    /// upgrades. Each target sets what it has besides, and all of them their caches.
    fn base(triple: Triple, cpu: &str) -> Target {
        Target {
            triple,
            cpu: cpu.to_string(),
            upgrades: vec![],
            features: vec![],
            baseline: &[],
            extends_integers: false,
            narrow: Isa::CRANELIFT,
            wide: None,
            is_source: false,
            core: Core::BASE,
        }
    }

    /// A target by triple and processor name.
    ///
    /// Without a name, code for x86-64 runs on every processor of the architecture, and is made for better ones as
    /// well (see `upgrades`); other architectures mean `generic`. `native` asks the machine the compiler runs on.
    ///
    /// Errors of kind `Usage`: an architecture without back end, a processor that it does not know, `native`
    /// for another architecture than the host's.
    pub fn new(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
        let triple = with_format(triple);
        let family = family(&triple, &triple.to_string())?;
        family(triple, mcpu)
    }

    /// The target of a triple's text; see [`Target::new`].
    pub fn parse(triple: &str, mcpu: Option<&str>) -> Result<Target> {
        let parsed: Triple = triple
            .parse()
            .map_err(|error| usage(format!("target `{triple}`: {error}{}; {TARGETS}", like(triple))))?;
        let parsed = with_format(parsed);
        let family = family(&parsed, triple)?;
        family(parsed, mcpu)
    }

    /// The target of the machine that the compiler runs on.
    pub fn host() -> Result<Target> {
        Target::new(Triple::host(), Some("native"))
    }

    /// Byte order of numbers in memory.
    pub fn byte_order(&self) -> Result<Endianness> {
        let unknown = || internal(format!("the byte order of `{}` is not known", self.triple));
        self.triple.endianness().map_err(|()| unknown())
    }

    /// This target and its upgrades.
    pub fn levels(&self) -> impl Iterator<Item = &Target> {
        std::iter::once(self).chain(&self.upgrades)
    }

    /// Whether programs have no C library: those without an operating system, and of firmware.
    pub fn is_freestanding(&self) -> bool {
        use OperatingSystem::{None_, Uefi, Unknown};
        matches!(self.triple.operating_system, None_ | Uefi | Unknown)
    }

    /// The target for small code: without what is there for better processors.
    pub fn for_goal(mut self, goal: Goal) -> Target {
        if goal == Goal::Size {
            self.upgrades.clear();
        }
        self
    }

    /// The machine that panels of weights are made for; all levels read the same panels. That with the longest vectors: kernels with
    /// shorter ones take a part of a panel's columns at a time.
    pub fn panel_isa(&self) -> Option<Isa> {
        let machines = self.levels().filter_map(|level| level.wide);
        machines.reduce(|best, isa| if isa.vector_bytes > best.vector_bytes { isa } else { best })
    }

    /// That for panels which kernels take whole, as they widen what is in them: the least one.
    pub fn whole_panel_isa(&self) -> Option<Isa> {
        self.levels().find_map(|level| level.wide)
    }

    /// Whether objects are for several processors, any of them perhaps the common one, so that weights have no form that serves only
    /// some of them.
    pub fn is_for_many(&self) -> bool {
        let machine = |target: &Target| target.wide.map(Isa::without_narrow_types);
        self.upgrades.iter().any(|level| machine(level) != machine(self))
    }

    /// Which products of bytes graphs are made for: those of the lowest level that has them. The levels below it have the
    /// same ones by several instructions each.
    pub fn dot(&self) -> Option<Signs> {
        self.levels().find_map(|level| level.wide?.dot)
    }

    /// Whether graphs are made for products of pairs of 16 bits, too: those of a processor with products of bytes, unless it has
    /// tiles, which multiply bytes far faster. Transformed weights of 16 bits would be of use to some levels only.
    pub fn multiplies_pairs(&self) -> bool {
        let tiles = self.levels().any(Target::has_tiles);
        self.levels().filter_map(|level| level.wide).any(Isa::adds_pair_products)
            && !tiles
            && !self.is_for_many()
    }

    /// Whether leaf kernels of all levels join bytes, so that graphs are made for it; see [`Isa::joins_bytes`].
    pub fn joins_bytes_everywhere(&self) -> bool {
        self.levels().all(|level| level.wide.is_some_and(Isa::joins_bytes))
    }

    /// Whether graphs are made for products of pairs of bf16: those of the least level with leaf kernels, which all levels read
    /// the panels of.
    pub fn multiplies_bf16(&self) -> bool {
        self.whole_panel_isa().is_some_and(Isa::adds_bf16_products)
    }

    /// Whether every processor that is good for this level is good for the other one.
    pub fn includes(&self, other: &Target) -> bool {
        let leaf = match (self.wide, other.wide) {
            (_, None) => true,
            (Some(own), Some(other)) => own.includes(other),
            (None, Some(_)) => false,
        };
        leaf && other.features.iter().all(|feature| self.features.contains(feature))
    }

    /// Whether all that this level has more than another one, which it includes, serves narrow types, see
    /// [`Target::adds_narrow_products`], [`Target::adds_joined_bytes`] and [`Target::adds_bf16`]: kernels without these are the same.
    pub fn adds_narrow_types_only(&self, before: &Target) -> bool {
        self.wide.map(Isa::without_narrow_types) == before.wide.map(Isa::without_narrow_types)
            && self.narrow == before.narrow
            && self.features == before.features
    }

    /// Whether leaf kernels have other products of bytes, or of bf16, than on the level before.
    pub fn adds_narrow_products(&self, before: &Target) -> bool {
        let products = |target: &Target| target.wide.map(|isa| (isa.dot, isa.has_bf16_dot, isa.has_tiles));
        products(self) != products(before)
    }

    /// Whether leaf kernels join bytes, which they do not on the level before.
    pub fn adds_joined_bytes(&self, before: &Target) -> bool {
        let joins = |target: &Target| target.wide.is_some_and(Isa::joins_bytes);
        joins(self) != joins(before)
    }

    /// Whether leaf kernels round to bf16 in another way than on the level before.
    pub fn adds_bf16(&self, before: &Target) -> bool {
        let has = |target: &Target| target.wide.is_some_and(|isa| isa.has_bf16);
        has(self) != has(before)
    }

    /// Whether leaf kernels have tiles for products of bytes.
    pub fn has_tiles(&self) -> bool {
        self.wide.is_some_and(|isa| isa.has_tiles)
    }

    /// `int32_t level(void)` in the target's C calling convention: which of the levels that are `used` the processor it runs on is
    /// good for besides the baseline, from the bit of the first upgrade on. It tests no other, and refers to nothing outside itself.
    pub fn level_code(&self, used: impl Fn(usize) -> bool) -> Result<LevelCode> {
        let upgrades: Vec<(usize, &Target)> =
            self.upgrades.iter().enumerate().filter(|(at, _)| used(at + 1)).collect();
        match self.triple.architecture {
            Architecture::X86_64 => x86_64::level_code(&upgrades),
            Architecture::Aarch64(_) => aarch64::level_code(&upgrades),
            other => Err(internal(format!("no processor of architecture `{other}` is tested for upgrades"))),
        }
    }

    /// Bits of the widest vectors, of leaf kernels where there are any.
    fn widest_bits(&self) -> usize {
        8 * self.leaf_bytes().unwrap_or(self.core.vector_bytes)
    }

    /// The same machine with vectors of at most `bits` bits, without the upgrades that have wider ones. Errors of
    /// kind `Usage`: a width that no level has.
    pub fn with_vector_width(mut self, bits: usize) -> Result<Target> {
        let narrow = 8 * self.core.vector_bytes;
        if !self.narrow.has_vectors() {
            return Err(usage(format!("`{}` has no vectors, of {bits} bits or others", self.cpu)));
        }
        let tiles = self.upgrades.pop_if(|level| level.has_tiles());
        let several = !self.upgrades.is_empty();
        let mut widths: Vec<usize> = match several {
            true => self.levels().map(Target::widest_bits).collect(),
            false => vec![narrow, 256, 512],
        };
        widths.retain(|&width| several || width <= self.widest_bits());
        widths.dedup();
        if !widths.contains(&bits) {
            let widths: Vec<String> = widths.iter().map(usize::to_string).collect();
            let (cpu, widths) = (&self.cpu, widths.join(", "));
            return Err(usage(format!("`{cpu}` has vectors of {widths} bits, not of {bits}")));
        }
        if several {
            self.upgrades.retain(|level| level.widest_bits() <= bits);
        } else {
            self.wide = self.wide.map(|isa| Isa { vector_bytes: bits / 8, ..isa });
        }
        self.upgrades.extend(tiles.filter(|level| level.widest_bits() == bits));
        Ok(self)
    }

    /// The same object with code for the named levels only. It needs what the least of them has. Errors of kind `Usage`: an
    /// unknown level, none, and one that does not include the least of them.
    pub fn with_levels(self, names: &[String]) -> Result<Target> {
        let known: Vec<&str> = self.levels().map(|level| level.cpu.as_str()).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(usage(format!("there is no level `{name}`; known are {}", known.join(", "))));
        }
        let chosen = self.levels().filter(|level| names.contains(&level.cpu));
        let mut chosen = chosen.map(|level| Target { upgrades: vec![], ..level.clone() });
        let Some(least) = chosen.next() else {
            return Err(usage(format!("an object holds at least one level of {}", known.join(", "))));
        };
        let upgrades: Vec<Target> = chosen.collect();
        if let Some(other) = upgrades.iter().find(|level| !level.includes(&least)) {
            let (least, other) = (&least.cpu, &other.cpu);
            return Err(usage(format!(
                "an object that needs `{least}` runs on no processor that has `{other}` only: name a level that both include, \
                 such as `{}`",
                self.cpu
            )));
        }
        Ok(Target { upgrades, ..least })
    }

    /// Bytes of the vectors of leaf kernels.
    pub fn leaf_bytes(&self) -> Option<usize> {
        self.wide.map(|isa| isa.vector_bytes)
    }

    /// The machine as leaf kernels see it.
    pub fn leaf(&self) -> Option<Core> {
        self.wide.map(|isa| self.core.with(isa))
    }

    /// The same machine without leaf kernels and upgrades: Cranelift makes all of its code.
    pub fn without_leaf_kernels(self) -> Target {
        Target { wide: None, upgrades: vec![], ..self }
    }

    /// The same machine as C is written for it: one level, with vectors that the C compiler knows, and without instructions for products of
    /// bytes and pairs.
    pub fn for_source(self) -> Target {
        let is_gnu = self.triple.environment != Environment::Msvc;
        let wide = self.levels().find_map(|level| level.wide).map(source::plain).filter(|_| is_gnu);
        let narrow = if is_gnu { source::plain(self.narrow) } else { Isa::SCALAR };
        let isa = wide.unwrap_or(narrow);
        Target {
            upgrades: vec![],
            features: vec![],
            narrow,
            wide: wide.or(narrow.has_vectors().then_some(narrow)),
            core: Core { wide: isa.has_vectors().then_some(isa), ..self.core.with(isa) },
            is_source: true,
            ..self
        }
    }

    /// Whether C is all that can be written for it: machines without code generator, of 32 bits.
    pub fn is_source_only(&self) -> bool {
        source::is_for(&self.triple)
    }

    /// Unwind-record format; none in objects for programs without an operating system.
    pub fn unwind_records(&self) -> Option<Records> {
        match (self.triple.binary_format, self.triple.architecture) {
            (BinaryFormat::Coff, Architecture::X86_64) => Some(Records::X64),
            (BinaryFormat::Coff, _) => Some(Records::Arm64),
            (BinaryFormat::Elf, _) if self.is_freestanding() => None,
            (BinaryFormat::Elf | BinaryFormat::Macho, Architecture::X86_64) => {
                Some(Records::Dwarf(Dwarf::X64))
            }
            (BinaryFormat::Elf | BinaryFormat::Macho, Architecture::Aarch64(_)) => {
                Some(Records::Dwarf(Dwarf::Arm64))
            }
            _ => None,
        }
    }
}

/// The triple as code generators are given it: code for UEFI has the calling convention of Windows.
pub fn code_triple(triple: &Triple) -> Triple {
    match triple.operating_system {
        OperatingSystem::Uefi => Triple { operating_system: OperatingSystem::Windows, ..triple.clone() },
        _ => triple.clone(),
    }
}

/// The targets there are, for messages.
const TARGETS: &str = "there are x86-64 and little-endian 64-bit AArch64 with ELF, Mach-O or COFF objects, RV64GC and s390x with ELF \
                       objects, such as x86_64-unknown-linux-gnu, x86_64-apple-darwin, x86_64-pc-windows-msvc, aarch64-unknown-linux-gnu, \
                       aarch64-apple-darwin, aarch64-pc-windows-msvc, riscv64gc-unknown-linux-gnu and s390x-unknown-linux-gnu, and \
                       without an operating system x86_64-unknown-none, aarch64-unknown-none, riscv64gc-unknown-none-elf and \
                       x86_64-unknown-uefi; and, with --emit c, thumbv6m-none-eabi, thumbv7em-none-eabi, thumbv8m.main-none-eabi, \
                       riscv32imac-unknown-none-elf, xtensa-none-elf, wasm32-unknown-unknown, wasm32-wasip1, \
                       i686-unknown-linux-gnu and armv7-unknown-linux-gnueabihf";

/// The target that a mistyped triple is likely to stand for, as a question.
fn like(triple: &str) -> String {
    let words = TARGETS.split([' ', ',']).filter(|word| word.matches('-').count() > 1);
    did_you_mean(triple, words)
}

/// The triple with the format of its objects: without an operating system ELF where it names none, for UEFI COFF.
fn with_format(triple: Triple) -> Triple {
    match (triple.operating_system, triple.binary_format) {
        (OperatingSystem::None_, BinaryFormat::Unknown) => {
            Triple { binary_format: BinaryFormat::Elf, ..triple }
        }
        (OperatingSystem::Uefi, _) => Triple { binary_format: BinaryFormat::Coff, ..triple },
        _ => triple,
    }
}

/// Makes a target of a triple and a processor's name.
type Family = fn(Triple, Option<&str>) -> Result<Target>;

/// The family of processors of a triple, which is called `name`. Fails for triples that code or objects cannot be made for, all of them:
/// code generation takes what comes this far.
fn family(triple: &Triple, name: &str) -> Result<Family> {
    if source::is_for(triple) {
        return Ok(source::target);
    }
    let refused = |why: String| Err(usage(format!("target `{name}`: {why}; {TARGETS}")));
    let (family, formats): (Family, &[BinaryFormat]) = match triple.architecture {
        Architecture::X86_64 => {
            (x86_64::target, &[BinaryFormat::Elf, BinaryFormat::Macho, BinaryFormat::Coff])
        }
        Architecture::Aarch64(Aarch64Architecture::Aarch64) => {
            (aarch64::target, &[BinaryFormat::Elf, BinaryFormat::Macho, BinaryFormat::Coff])
        }
        Architecture::S390x => (s390x::target, &[BinaryFormat::Elf]),
        // The others lack floats or compressed instructions, or have no 64 bits.
        Architecture::Riscv64(
            Riscv64Architecture::Riscv64 | Riscv64Architecture::Riscv64gc | Riscv64Architecture::Riscv64a23,
        ) => (riscv64::target, &[BinaryFormat::Elf]),
        other => return refused(format!("there is no code generator for the architecture {other}")),
    };
    if triple.pointer_width() != Ok(PointerWidth::U64) {
        return refused("its pointers do not have 64 bits".into());
    }
    if !formats.contains(&triple.binary_format) {
        return refused(format!("its objects ({}) cannot be written", triple.binary_format));
    }
    match is_built(triple.architecture) {
        true => Ok(family),
        false => Err(left_out(triple, name)),
    }
}

/// Whether this build has a code generator for the architecture: its own one, and those of its features.
fn is_built(architecture: Architecture) -> bool {
    match architecture {
        Architecture::X86_64 => cfg!(any(test, feature = "x86", target_arch = "x86_64")),
        Architecture::Aarch64(_) => cfg!(any(test, feature = "arm64", target_arch = "aarch64")),
        Architecture::S390x => cfg!(any(test, feature = "s390x", target_arch = "s390x")),
        _ => cfg!(any(test, feature = "riscv64", target_arch = "riscv64")),
    }
}

/// Names of the processors of a triple's family.
pub fn processors(triple: &Triple) -> Vec<&'static str> {
    match triple.architecture {
        _ if source::is_for(triple) => source::names(triple),
        Architecture::X86_64 => x86_64::names(),
        Architecture::Aarch64(_) => aarch64::names(),
        Architecture::S390x => s390x::names(),
        _ => riscv64::names(),
    }
}

/// The error for a target whose back end the features of this build leave out.
fn left_out(triple: &Triple, name: &str) -> Error {
    let feature = match triple.architecture {
        Architecture::X86_64 => "x86",
        Architecture::Aarch64(_) => "arm64",
        Architecture::S390x => "s390x",
        _ => "riscv64",
    };
    let what = format!("code generator for {}", triple.architecture);
    usage(format!("target `{name}`: {}", without(&what, feature)))
}

/// Whether `native` can describe this architecture: features are detected on the host.
fn is_host(triple: &Triple) -> bool {
    let host = Triple::host().architecture;
    triple.architecture == host
        || matches!((triple.architecture, host), (Architecture::Aarch64(_), Architecture::Aarch64(_)))
}

fn unknown_cpu(cpu: &str, triple: &Triple, known: &[&str]) -> Error {
    let near = did_you_mean(cpu, known.iter().copied());
    if !near.is_empty() {
        return usage(format!("unknown processor `{cpu}` for `{triple}`{near}"));
    }
    let known = known.join(", ");
    if cpu == "native" {
        let host = Triple::host().architecture;
        return usage(format!(
            "`native` is the processor of this machine ({host}), which does not belong to the target `{triple}`; name one of the \
             target's: {known}"
        ));
    }
    let native = if is_host(triple) { "native, " } else { "" };
    usage(format!("unknown processor `{cpu}` for `{triple}`; known are {native}{known}"))
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
    use crate::vector::isa::Convention;
    use std::str::FromStr;

    fn triple(text: &str) -> Triple {
        Triple::from_str(text).unwrap()
    }

    const X86_LEVELS: [&str; 7] = [
        "x86-64",
        "x86-64-v3",
        "x86-64-v3+vnni",
        "x86-64-v4",
        "x86-64-v4+vnni",
        "x86-64-v4+vbmi",
        "x86-64-v4+amx",
    ];

    /// An object holds the levels that are named, in any order, and needs the lowest of them.
    #[test]
    fn levels_are_chosen_by_name() {
        let target = |levels: &[&str]| {
            let target = Target::new(triple("x86_64-unknown-linux-gnu"), None).unwrap();
            target.with_levels(&levels.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let names = |levels: &[&str]| {
            let target = target(levels).unwrap();
            target.levels().map(|level| level.cpu.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["x86-64-v4", "x86-64"]), ["x86-64", "x86-64-v4"]);
        assert_eq!(names(&["x86-64-v4+amx", "x86-64-v3", "x86-64-v3"]), ["x86-64-v3", "x86-64-v4+amx"]);
        assert_eq!(names(&X86_LEVELS), X86_LEVELS);
        let code = target(&["x86-64-v4+amx", "x86-64-v3"]).unwrap().level_code(|_| true).unwrap();
        assert!(!code.bytes.is_empty());
        for (wrong, why) in [
            (
                &["x86-64-v5"][..],
                "there is no level `x86-64-v5`; known are x86-64, x86-64-v3, x86-64-v3+vnni,",
            ),
            (&[], "an object holds at least one level of x86-64, x86-64-v3,"),
            (
                &["x86-64-v3+vnni", "x86-64-v4"],
                "an object that needs `x86-64-v3+vnni` runs on no processor that has `x86-64-v4` only",
            ),
        ] {
            let error = target(wrong).unwrap_err();
            assert_eq!(error.kind, Kind::Usage);
            assert!(error.message.starts_with(why), "{error}");
        }
        let named = Target::new(triple("x86_64-unknown-linux-gnu"), Some("znver4")).unwrap();
        let error = named.with_levels(&["x86-64".to_string()]).unwrap_err();
        assert_eq!(error.message, "there is no level `x86-64`; known are znver4");
    }

    #[test]
    fn a_back_end_that_is_left_out_is_named() {
        for (name, feature) in [
            ("x86_64-unknown-linux-gnu", "x86"),
            ("aarch64-apple-darwin", "arm64"),
            ("riscv64gc-unknown-linux-gnu", "riscv64"),
            ("s390x-unknown-linux-gnu", "s390x"),
        ] {
            let error = left_out(&triple(name), name);
            let command = format!("cargo install --path compiler --features {feature}`");
            assert!(error.kind == Kind::Usage && error.message.contains(&command), "{error}");
            assert!(error.message.starts_with(&format!("target `{name}`: ")), "{error}");
            assert!(Target::parse(name, None).is_ok(), "tests have every back end: {name}");
        }
    }

    #[test]
    fn default_runs_everywhere_and_is_made_for_better_processors_too() {
        for text in ["x86_64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-pc-windows-msvc"] {
            let target = Target::new(triple(text), None).unwrap();
            assert_eq!(target.cpu, "x86-64");
            assert!(target.features.is_empty() && !target.narrow.has_fma);
            assert_eq!(target.core.lanes(4), 4);
            let v3 = &target.upgrades[0];
            assert_eq!(v3.cpu, "x86-64-v3");
            assert!(v3.narrow.has_fma && v3.upgrades.is_empty());
            for feature in ["has_avx", "has_avx2", "has_fma", "has_bmi2"] {
                assert!(v3.features.contains(&feature), "{feature}");
            }
            let levels: Vec<&str> = target.levels().map(|level| level.cpu.as_str()).collect();
            let mut wanted = X86_LEVELS.to_vec();
            wanted.truncate(if text.contains("linux") { 7 } else { 6 });
            assert_eq!(levels, wanted, "only Linux is asked for tiles");
            assert!(!target.level_code(|_| true).unwrap().bytes.is_empty());
        }
        let named = Target::new(triple("x86_64-unknown-linux-gnu"), Some("x86-64-v3")).unwrap();
        assert!(named.upgrades.is_empty());
        // Linux is asked for products of bytes; without a system nothing is.
        let arm = Target::new(triple("aarch64-unknown-linux-gnu"), None).unwrap();
        let levels: Vec<&str> = arm.levels().map(|level| level.cpu.as_str()).collect();
        assert_eq!(levels, ["generic", "armv8.2-a+dotprod", "armv8.2-a+dotprod+bf16"]);
        let [dot, bf16] = &arm.upgrades[..] else { panic!("two levels above the baseline") };
        assert!(!arm.level_code(|_| true).unwrap().bytes.is_empty() && dot.adds_narrow_types_only(&arm));
        assert!(dot.adds_narrow_products(&arm) && !dot.adds_bf16(&arm) && bf16.adds_narrow_types_only(dot));
        assert!(bf16.adds_bf16(dot) && !bf16.adds_narrow_products(dot));
        assert_eq!((arm.dot(), arm.wide.unwrap().dot), (Some(Signs::SIGNED), None));
        let bare = Target::new(triple("aarch64-unknown-none"), None).unwrap();
        assert!(bare.upgrades.is_empty() && bare.dot().is_none());
        // Every Mac of this architecture has products of bytes.
        let mac = Target::new(triple("aarch64-apple-darwin"), None).unwrap();
        assert_eq!((mac.cpu.as_str(), mac.dot()), ("apple-m1", Some(Signs::SIGNED)));
        let named = Target::new(triple("aarch64-unknown-linux-gnu"), Some("neoverse-n1")).unwrap();
        assert_eq!(named.leaf().unwrap().wide.unwrap().dot, Some(Signs::SIGNED));
        assert!(named.with_vector_width(128).unwrap().leaf().is_some());
        // Armv8.3, without what Armv8.4 requires.
        let a12 = Target::new(triple("aarch64-unknown-linux-gnu"), Some("apple-a12")).unwrap();
        assert_eq!(a12.dot(), None);
    }

    #[test]
    fn vectors_are_as_wide_as_asked_for() {
        let target = |cpu| Target::new(triple("x86_64-unknown-linux-gnu"), Some(cpu)).unwrap();
        assert_eq!(target("x86-64-v3").leaf().unwrap().lanes(4), 8);
        assert_eq!(target("x86-64-v3").with_vector_width(128).unwrap().leaf_bytes(), Some(16));
        assert_eq!(target("x86-64-v3").with_vector_width(256).unwrap().leaf_bytes(), Some(32));
        assert!(target("x86-64-v2").leaf().is_none());
        for cpu in ["x86-64-v4", "skylake-avx512", "icelake-server", "sapphirerapids", "znver4", "znver5"] {
            let leaf = target(cpu).leaf().unwrap();
            assert_eq!((leaf.lanes(4), leaf.vector_registers), (16, 32), "{cpu}");
            let leaf = target(cpu).with_vector_width(256).unwrap().leaf().unwrap();
            assert_eq!((leaf.lanes(4), leaf.vector_registers), (8, 32), "{cpu}");
            let leaf = target(cpu).with_vector_width(128).unwrap().leaf().unwrap();
            assert_eq!((leaf.lanes(4), leaf.vector_registers), (4, 32), "{cpu}");
            assert!(target(cpu).with_vector_width(512).is_ok() && target(cpu).with_vector_width(64).is_err());
            assert_eq!(target(cpu).core.vector_registers, 16, "Cranelift's have a VEX prefix");
        }
        let error = target("x86-64-v2").with_vector_width(256).unwrap_err();
        assert_eq!(error.message, "`x86-64-v2` has vectors of 128 bits, not of 256");
        let several = || Target::new(triple("x86_64-unknown-linux-gnu"), None).unwrap();
        assert!(several().with_vector_width(128).unwrap().upgrades.is_empty());
        let names = |target: Target| target.levels().map(|level| level.cpu.clone()).collect::<Vec<_>>();
        assert_eq!(names(several().with_vector_width(256).unwrap()), X86_LEVELS[..3]);
        assert_eq!(names(several().with_vector_width(512).unwrap()), X86_LEVELS);
        let longest = several().panel_isa().unwrap();
        assert_eq!((longest.vector_bytes, several().whole_panel_isa()), (64, Some(Isa::AVX2)));
        let error = several().with_vector_width(192).unwrap_err();
        assert_eq!(error.message, "`x86-64` has vectors of 128, 256, 512 bits, not of 192");
    }

    /// Leaf kernels follow the calling convention of the system.
    #[test]
    fn systems_have_their_conventions() {
        for (text, convention) in [
            ("x86_64-unknown-linux-gnu", Convention::Standard),
            ("x86_64-apple-darwin", Convention::Standard),
            ("x86_64-unknown-none-elf", Convention::Standard),
            ("x86_64-pc-windows-msvc", Convention::Windows),
            ("x86_64-pc-windows-gnu", Convention::Windows),
            ("x86_64-unknown-uefi", Convention::Windows),
        ] {
            let target = Target::parse(text, None).unwrap();
            let levels: Vec<_> = target.levels().filter_map(|level| level.wide).collect();
            assert_eq!(levels.len(), if text.contains("linux") { 6 } else { 5 }, "{text}");
            assert!(levels.iter().all(|isa| isa.convention == convention), "{text}");
            let windows = convention == Convention::Windows;
            let records = match text {
                "x86_64-unknown-linux-gnu" | "x86_64-apple-darwin" => Some(Records::Dwarf(Dwarf::X64)),
                _ => windows.then_some(Records::X64),
            };
            assert_eq!(target.unwind_records(), records, "{text}");
        }
    }

    #[test]
    fn widths_are_those_of_vectors() {
        // RISC-V has vectors with V only.
        let riscv = |cpu| Target::new(triple("riscv64gc-unknown-linux-gnu"), cpu).unwrap();
        assert_eq!([4, 8, 1].map(|size| riscv(None).core.lanes(size)), [1, 1, 4]);
        assert_eq!([4, 8].map(|size| riscv(Some("rv64gcv")).core.lanes(size)), [4, 2]);
        assert!(riscv(Some("rv64gcv")).with_vector_width(128).is_ok());
        let error = riscv(None).with_vector_width(128).unwrap_err();
        assert_eq!(error.message, "`generic-rv64` has no vectors, of 128 bits or others");
    }

    #[test]
    fn tiles_are_a_level_of_their_own() {
        let target = |text, cpu| Target::new(triple(text), Some(cpu)).unwrap();
        let linux = "x86_64-unknown-linux-gnu";
        for cpu in ["sapphirerapids", "emeraldrapids", "graniterapids"] {
            let levels: Vec<bool> = target(linux, cpu).levels().map(Target::has_tiles).collect();
            assert_eq!(levels, [false, true], "{cpu}");
            assert!(!target(linux, cpu).level_code(|_| true).unwrap().bytes.is_empty());
            for (bits, upgrades) in [(128, 0), (256, 0), (512, 1)] {
                assert_eq!(target(linux, cpu).with_vector_width(bits).unwrap().upgrades.len(), upgrades);
            }
        }
        assert!(target(linux, "icelake-server").upgrades.is_empty());
        assert!(
            target("x86_64-apple-darwin", "sapphirerapids").upgrades.is_empty(),
            "no other system is asked"
        );
    }

    /// All levels of an object read the same panels, so that the least one with leaf kernels decides.
    #[test]
    fn bf16_is_multiplied_where_every_level_does() {
        let linux = |cpu| Target::new(triple("x86_64-unknown-linux-gnu"), cpu).unwrap();
        for cpu in ["sapphirerapids", "cooperlake", "znver4", "znver5"] {
            assert!(linux(Some(cpu)).multiplies_bf16(), "{cpu}");
        }
        for cpu in [None, Some("x86-64"), Some("x86-64-v4"), Some("icelake-server"), Some("znver3")] {
            assert!(!linux(cpu).multiplies_bf16(), "{cpu:?}");
        }
        assert!(!Target::new(triple("aarch64-unknown-linux-gnu"), None).unwrap().multiplies_bf16());
    }

    #[test]
    fn s390x_is_big_endian() {
        let target = Target::new(triple("s390x-unknown-linux-gnu"), None).unwrap();
        assert_eq!((target.cpu.as_str(), target.byte_order().unwrap()), ("z14", Endianness::Big));
        assert!(target.narrow.is_big_endian && target.leaf().is_none() && target.upgrades.is_empty());
        for text in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"] {
            let target = Target::new(triple(text), None).unwrap();
            assert_eq!(target.byte_order().unwrap(), Endianness::Little);
            assert!(target.levels().all(|level| !level.narrow.is_big_endian && !level.extends_integers));
        }
        // The edition of the architecture is another name of the processor.
        let features = |cpu| Target::new(triple("s390x-unknown-linux-gnu"), Some(cpu)).unwrap().features;
        assert_eq!(features("z16"), features("arch14"));
        assert!(features("z17").contains(&"has_vxrs_ext3") && !features("z15").contains(&"has_vxrs_ext3"));
    }

    /// Machines of 32 bits have C only; that for the others has one level, without what only machine code has instructions for.
    #[test]
    fn c_is_written_for_more_machines() {
        for (text, cpu, bytes) in [
            ("thumbv7em-none-eabi", "cortex-m4", 4),
            ("thumbv7m-none-eabi", "cortex-m3", 4),
            ("thumbv6m-none-eabi", "cortex-m0plus", 4),
            ("thumbv8m.main-none-eabihf", "cortex-m33", 4),
            ("riscv32imac-unknown-none-elf", "generic-rv32", 4),
            ("xtensa-none-elf", "esp32s3", 4),
            ("wasm32-unknown-unknown", "simd128", 16),
            ("wasm32-wasip1", "simd128", 16),
            ("i686-unknown-linux-gnu", "i686", 16),
            ("armv7-unknown-linux-gnueabihf", "cortex-a7", 16),
        ] {
            let target = Target::parse(text, None).unwrap();
            assert!(target.is_source_only() && target.upgrades.is_empty(), "{text}");
            let target = target.for_source();
            assert_eq!((target.cpu.as_str(), target.core.vector_bytes), (cpu, bytes), "{text}");
            assert!(target.is_source && target.core.is_leaf() == (bytes > 4), "{text}");
        }
        let plain = |text: &str| Target::parse(text, None).unwrap().for_source();
        let x86 = plain("x86_64-unknown-linux-gnu");
        assert_eq!((x86.core.vector_bytes, x86.dot(), x86.has_tiles()), (32, None, false));
        assert!(!x86.is_source_only() && x86.levels().count() == 1);
        assert_eq!(plain("x86_64-pc-windows-msvc").core.vector_bytes, 4, "its compiler has no vectors");
        let v4 = Target::parse("x86_64-unknown-linux-gnu", Some("sapphirerapids")).unwrap().for_source();
        assert_eq!((v4.core.vector_bytes, v4.dot(), v4.multiplies_bf16()), (64, None, false));
        let error = Target::parse("thumbv7em-none-eabi", Some("z80")).unwrap_err();
        assert!(error.message.contains("cortex-m7"), "{error}");
    }

    #[test]
    fn unknown_names_are_usage_errors() {
        let error = Target::new(triple("x86_64-unknown-linux-gnu"), Some("z80")).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.contains("z80") && error.message.contains("haswell"), "{error}");
    }

    #[test]
    fn other_targets_are_refused_with_those_there_are() {
        for (text, why) in [
            ("no-such-machine", "Unrecognized architecture"),
            ("mips64-unknown-linux-gnu", "no code generator for the architecture mips64"),
            ("aarch64_be-unknown-linux-gnu", "no code generator for the architecture aarch64_be"),
            ("aarch64-unknown-unknown-wasm", "its objects (wasm) cannot be written"),
            ("riscv64imac-unknown-none-elf", "no code generator for the architecture riscv64imac"),
            ("x86_64-unknown-linux-gnux32", "64 bits"),
            ("mips-unknown-linux-gnu", "no code generator for the architecture mips"),
            ("powerpc64-unknown-linux-gnu", "no code generator for the architecture powerpc64"),
            ("s390x-unknown-linux-gnu-macho", "its objects (macho) cannot be written"),
        ] {
            let error = Target::parse(text, None).unwrap_err();
            assert_eq!(error.kind, Kind::Usage, "{error}");
            assert!(error.message.contains(why) && error.message.contains(TARGETS), "{error}");
        }
    }
}
