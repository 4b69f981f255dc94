//! Tuning: the numbers that a group's lowering reads. Tile sizes, unrolling, terms of partial sums, prefetches, blocks of
//! rows, the parts that threads share.
//!
//! This module is the one cost model that chooses them. For each kind of group there is a file with a function that takes
//! what the lowering knows of the group and the target's vectors, registers and caches, and gives a struct of numbers. A
//! lowering has no such number of its own: it applies those it is given, in loops that compute the same for all of them but
//! for the rounding of sums.
//!
//! A number is a limit where extents rarely divide evenly: tiles have at most `rows` rows, and differ by one at most. Whether
//! threads share a kernel at all follows from the work in its loops, `work.rs`.
//!
//! [`products`] is what passes ask: the width of panels, a layout of constants that all levels of a target read, and the arithmetic of
//! products.
//!
//! A group may have [`Settings`], which take the place of what is chosen: for tests, and to find out what is fastest. Each
//! number has a range that its lowering can apply ([`Allowed`]); a setting outside of it is an error of kind `Usage`. What
//! was taken is part of the kernel and of its text ([`Tuned`]). Where code is to be small, [`size`] takes the place of some
//! of what is fast.

pub mod chain;
pub mod contract;
pub mod map;
pub mod products;
pub mod reduce;
pub mod single;
pub mod size;
#[cfg(test)]
mod tests;
pub mod winograd;

use std::fmt;

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Dim;
use onnxc_machine::target::{Core, Goal};

/// Turns of a loop that a few threads share about evenly.
pub const SHARED_TURNS: i64 = 8;

/// Outer axes of a shape that threads share together: as few as have `turns` turns, or all. The first extent, if known only at run time, is
/// taken for 1, as a batch mostly is, and any other for enough.
pub fn shared_axes(shape: &[Dim], turns: i64) -> usize {
    let (mut known, mut open) = (1i64, false);
    for (at, extent) in shape.iter().enumerate() {
        match extent.as_const() {
            // Nothing divides by an extent of 0.
            Some(0) => return at.max(1),
            Some(extent) => known = known.saturating_mul(extent),
            None if open => return at + 1,
            None => open = true,
        }
        if known >= turns {
            return at + 1;
        }
    }
    shape.len()
}

/// Terms of a partial sum of floats, at most: the rounding error of a long sum grows with the number of partial sums and
/// with this, not with the number of all terms.
pub const SUM_TERMS: i64 = 256;

/// The terms that a partial sum of floats may have.
fn sum_terms(pick: &mut Picker<'_>) -> Result<i64> {
    pick.pick("sum_terms", SUM_TERMS, &Allowed::between(1, 1 << 20, "terms of a partial sum"))
}

/// Terms of the parts of a sum of `terms`, where equal ones are not far below the limit: the largest divisor.
pub fn sum_part(terms: i64, limit: i64) -> Option<i64> {
    ((limit / 4).max(1)..=limit).rev().find(|part| terms % part == 0)
}

/// What a group's numbers are chosen for, and those given for it, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    pub goal: Goal,
    values: Vec<(String, i64)>,
}

impl Settings {
    /// Reads `name=value` pairs between spaces. Errors of kind `Usage`: anything else, a name that comes twice.
    pub fn parse(text: &str) -> Result<Settings> {
        let mut settings = Settings::default();
        for word in text.split_whitespace() {
            let pair = word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let Some((name, value)) = pair else {
                return Err(usage(format!("`{word}` is not a setting such as rows=4")));
            };
            if settings.get(name).is_some() {
                return Err(usage(format!("`{name}` is set twice")));
            }
            settings.values.push((name.to_string(), value));
        }
        Ok(settings)
    }

    fn get(&self, name: &str) -> Option<i64> {
        self.values.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }
}

/// The numbers of a kernel, or of a stage of a chain, in the order in which they were chosen.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tuned {
    pub stage: Option<usize>,
    pub values: Vec<(String, i64)>,
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tuning ")?;
        if let Some(stage) = self.stage {
            write!(f, "stage {stage} ")?;
        }
        let values: Vec<String> = self.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        write!(f, "{{{}}}", values.join(", "))
    }
}

/// The values that a lowering can apply, and what limits them.
#[derive(Clone, Debug)]
pub struct Allowed {
    values: Values,
    why: String,
}

#[derive(Clone, Debug)]
enum Values {
    Between(i64, i64),
    OneOf(Vec<i64>),
}

impl Allowed {
    /// From `least` to `most`.
    pub fn between(least: i64, most: i64, why: impl Into<String>) -> Allowed {
        Allowed { values: Values::Between(least, most), why: why.into() }
    }

    pub fn one_of(values: Vec<i64>, why: impl Into<String>) -> Allowed {
        Allowed { values: Values::OneOf(values), why: why.into() }
    }

    /// The least value that is not below another.
    fn least_from(&self, value: i64) -> Option<i64> {
        match &self.values {
            Values::Between(least, most) => Some(value.max(*least)).filter(|value| value <= most),
            Values::OneOf(values) => values.iter().copied().filter(|own| *own >= value).min(),
        }
    }

    fn has(&self, value: i64) -> bool {
        match &self.values {
            Values::Between(least, most) => (*least..=*most).contains(&value),
            Values::OneOf(values) => values.contains(&value),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.values {
            Values::Between(least, most) if least == most => write!(f, "{least}")?,
            Values::Between(least, most) => write!(f, "{least} to {most}")?,
            Values::OneOf(values) => {
                let values: Vec<String> = values.iter().map(i64::to_string).collect();
                f.write_str(&values.join(", "))?;
            }
        }
        write!(f, ": {}", self.why)
    }
}

/// Takes the numbers of a group one after the other, each as set or as chosen.
pub struct Picker<'a> {
    kernel: String,
    stage: Option<usize>,
    settings: &'a Settings,
    values: Vec<(String, i64)>,
}

impl<'a> Picker<'a> {
    /// For a kernel, or a stage of one, with its group's settings.
    pub fn new(kernel: &str, stage: Option<usize>, settings: &'a Settings) -> Picker<'a> {
        Picker { kernel: kernel.to_string(), stage, settings, values: vec![] }
    }

    /// The number `name`: `chosen` where none is set. Errors of kind `Usage`: one is set that is not allowed.
    pub fn pick(&mut self, name: &'static str, chosen: i64, allowed: &Allowed) -> Result<i64> {
        let set = self.settings.get(name);
        let value = set.unwrap_or_else(|| size::chosen(self.settings.goal, name, chosen, allowed));
        if !allowed.has(value) {
            let what = format!("{}: {name}={value} cannot be applied; allowed is {allowed}", self.owner());
            return Err(if set.is_some() { usage(what) } else { Error::internal(Stage::Loops, what) });
        }
        self.values.push((name.to_string(), value));
        Ok(value)
    }

    /// As [`Picker::pick`], of a number that counts something.
    pub fn count(&mut self, name: &'static str, chosen: usize, allowed: &Allowed) -> Result<usize> {
        self.pick(name, chosen as i64, allowed).map(|value| value as usize)
    }

    /// The numbers that were taken. Errors of kind `Usage`: one is set that this lowering does not read.
    pub fn finish(self) -> Result<Tuned> {
        let is_known = |name: &str| self.values.iter().any(|(known, _)| known == name);
        if let Some((name, _)) = self.settings.values.iter().find(|(name, _)| !is_known(name)) {
            let known: Vec<&str> = self.values.iter().map(|(name, _)| name.as_str()).collect();
            let known = if known.is_empty() { "nothing".to_string() } else { known.join(", ") };
            return Err(usage(format!("{}: reads no `{name}`, but {known}", self.owner())));
        }
        Ok(Tuned { stage: self.stage, values: self.values })
    }

    fn owner(&self) -> String {
        match self.stage {
            Some(stage) => format!("kernel {}, stage {stage}", self.kernel),
            None => format!("kernel {}", self.kernel),
        }
    }
}

fn usage(message: String) -> Error {
    Error::new(Stage::Loops, Kind::Usage, message)
}

/// Bytes that caches load and store at once.
pub const CACHE_LINE: i64 = 64;

/// Bytes that stay in the second-level cache while others pass through it. A cache is never used in full: which of its
/// sets a page meets is chance. Nor does it pay to rely on more than `KEPT`: with blocks of 1 MiB in a cache of 2 MiB, resnet50
/// and minilm take 1.04 of the time, as the other data of the kernel then come from further away.
pub fn kept_in_l2(core: &Core) -> i64 {
    (core.l2_bytes as i64 / 2).min(KEPT)
}

const KEPT: i64 = 256 << 10;

/// Whether a left operand of a product is better copied row by row than read down its columns. Each step of a tile then reads a line of the
/// cache of its own, and has no use for most of it. The lines of that many steps are gone from the first-level cache when the next tile
/// wants them; a copy costs about as much as the reads of `COPY` columns of the result. On Zen 3 a product of 512 by 1024 by 512
/// takes half of the time, one of 128 by 2048 by 128 the same, and one with 32 columns 1.3 of it.
pub fn pays_to_transpose(steps: i64, columns: i64) -> bool {
    steps >= LINES && columns >= COPY
}

const LINES: i64 = 256;
const COPY: i64 = 128;

/// The positive divisors of a number up to `most`, ascending.
fn divisors(number: i64, most: i64) -> Vec<i64> {
    (1..=most.min(number)).filter(|divisor| number % divisor == 0).collect()
}
