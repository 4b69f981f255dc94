//! Random numbers: RandomUniform, RandomNormal, their Like forms, Bernoulli, Multinomial, and Dropout in training.
//!
//! All come from a counter-based generator, Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as
//! 1, 2, 3", 2011): four words of 32 bits that are a function of a key and of a counter. The key is the seed and the counter the
//! element's index and the node's stream, so that an element does not depend on how a tensor is cut into parts.
//!
//! A node with the attribute `seed` draws the same in every run and wherever it stands, and so does another one with the same
//! seed. All others share the seed of the run, and each has a stream of its own. In the body of a loop each iteration has a key of
//! its own, which the generator makes of the key around the loop and of the iteration's number.
//!
//! Dropout with a seed takes NumPy's generator outside of loops, see `random/mersenne.rs`: the official tests fix which elements it drops.

use super::Stream;
use super::convert::dtype_of;
use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, Tensor as Data};

mod mersenne;

const DROPOUT_SHAPES: &[&str] = &["count(ratio) = 1", "count(training_mode) = 1"];

pub const ROWS: &[OpDef] = &[
    RANDOM_UNIFORM,
    RANDOM_UNIFORM.since(22).types(&[("T", FLOATS)]),
    RANDOM_NORMAL,
    RANDOM_NORMAL.since(22).types(&[("T", FLOATS)]),
    RANDOM_UNIFORM_LIKE,
    RANDOM_UNIFORM_LIKE.since(22).types(&[("T1", ALL_BF16), ("T2", FLOATS)]),
    RANDOM_NORMAL_LIKE,
    RANDOM_NORMAL_LIKE.since(22).types(&[("T1", ALL_BF16), ("T2", FLOATS)]),
    BERNOULLI,
    BERNOULLI.since(22).types(&[("T1", FLOATS), ("T2", NUMERIC_BOOL)]),
    MULTINOMIAL,
    MULTINOMIAL.since(22).types(&[("T1", FLOATS), ("T2", INDICES)]),
    DROPOUT,
    DROPOUT.since(6).attributes(&[int("is_test", 0), float("ratio", 0.5)]),
    DROPOUT.since(7).attributes(&[float("ratio", 0.5)]).doc("The input"),
    DROPOUT_10,
    DROPOUT_12,
    DROPOUT_12.since(13).types(&[("T", FLOATS), ("T1", FLOATS_F16), ("T2", BOOL)]),
    DROPOUT_12.since(22).types(&[("T", FLOATS_F8), ("T1", FLOATS_F8), ("T2", BOOL)]),
];

const RANDOM_UNIFORM: OpDef = op("RandomUniform", 1, uniform)
    .outputs(&[req("output", "T")])
    .attributes(&[
        int("dtype", 1),
        float("high", 1.0),
        float("low", 0.0),
        optional("seed", Float),
        required("shape", Ints),
    ])
    .types(&[("T", FLOATS_F16)])
    .doc("Numbers between low and high, all as likely");

const RANDOM_NORMAL: OpDef = op("RandomNormal", 1, normal)
    .outputs(&[req("output", "T")])
    .attributes(&[
        int("dtype", 1),
        float("mean", 0.0),
        float("scale", 1.0),
        optional("seed", Float),
        required("shape", Ints),
    ])
    .types(&[("T", FLOATS_F16)])
    .doc("Normally distributed numbers");

const RANDOM_UNIFORM_LIKE: OpDef = op("RandomUniformLike", 1, uniform)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[optional("dtype", Int), float("high", 1.0), float("low", 0.0), optional("seed", Float)])
    .types(&[("T1", ALL), ("T2", FLOATS_F16)])
    .doc("Numbers between low and high, all as likely");

const RANDOM_NORMAL_LIKE: OpDef = op("RandomNormalLike", 1, normal)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[optional("dtype", Int), float("mean", 0.0), float("scale", 1.0), optional("seed", Float)])
    .types(&[("T1", ALL), ("T2", FLOATS_F16)])
    .doc("Normally distributed numbers");

const BERNOULLI: OpDef = op("Bernoulli", 15, bernoulli)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[optional("dtype", Int), optional("seed", Float)])
    .types(&[("T1", FLOATS_F16), ("T2", NUMERIC_BOOL)])
    .doc("1 as likely as the input says, else 0");

const MULTINOMIAL: OpDef = op("Multinomial", 7, multinomial)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[int("dtype", 6), int("sample_size", 1), optional("seed", Float)])
    .types(&[("T1", FLOATS_F16), ("T2", INDICES)])
    .shapes(&["input[_, _]"])
    .doc("Classes as likely as exp(input)");

const DROPOUT: OpDef = op("Dropout", 1, dropout)
    .inputs(&[req("data", "T")])
    .outputs(&[req("output", "T"), opt("mask", "T")])
    .attributes(&[CONSUMED, int("is_test", 0), float("ratio", 0.5)])
    .types(&[("T", FLOATS_F16)])
    .doc("The input; in training, 0 in place of a random part");

const DROPOUT_10: OpDef = op("Dropout", 10, dropout)
    .inputs(&[req("data", "T")])
    .outputs(&[req("output", "T"), opt("mask", "T1")])
    .attributes(&[float("ratio", 0.5)])
    .types(&[("T", FLOATS_F16), ("T1", BOOL)])
    .doc("The input");

const DROPOUT_12: OpDef = op("Dropout", 12, dropout)
    .inputs(&[req("data", "T"), opt("ratio", "T1"), opt("training_mode", "T2")])
    .outputs(&[req("output", "T"), opt("mask", "T2")])
    .attributes(&[optional("seed", Int)])
    .types(&[("T", FLOATS_F16), ("T1", FLOATS_F16), ("T2", BOOL)])
    .shapes(DROPOUT_SHAPES)
    .doc("The input; in training, 0 in place of a random part");

/// Multipliers and key increments of Philox4x32, and its rounds.
const MULTIPLIERS: [i64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const INCREMENTS: [i64; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

const WORD: i64 = 0xffff_ffff;

/// `x & mask`, of words of 32 bits in i64s.
fn masked(b: &mut Builder<'_>, x: ValueId, mask: i64) -> Result<ValueId> {
    let mask = b.constant(Data::scalar(mask));
    b.binary(BinaryFn::BitAnd, x, mask)
}

/// The bits from the `count`-th on of a word of 32 bits in an i64; a shift that brings in the sign is masked.
fn shifted(b: &mut Builder<'_>, x: ValueId, count: i64) -> Result<ValueId> {
    let count = b.constant(Data::scalar(count));
    b.binary(BinaryFn::Shr, x, count)
}

/// The lower 32 bits.
fn low(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    masked(b, x, WORD)
}

/// The upper 32 bits.
fn high(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let x = shifted(b, x, 32)?;
    low(b, x)
}

/// The upper half of the counter for the keys of iterations, which no node has.
const ITERATIONS: [i64; 2] = [0, 2];

/// Where a node's numbers come from.
pub struct Generator {
    key: [ValueId; 2],
    /// The upper half of the counter.
    stream: [i64; 2],
}

impl Generator {
    fn new(cx: &mut NodeCx<'_, '_>) -> Result<Generator> {
        let stream = cx.bodies.stream(cx.b);
        Generator::of_stream(cx, stream)
    }

    fn of_stream(cx: &mut NodeCx<'_, '_>, Stream { number, iterations }: Stream) -> Result<Generator> {
        let given = match cx.has("seed") && cx.attributes.contains_key("seed") {
            false => None,
            true if cx.default("seed").kind() == Int => Some(cx.int("seed")?),
            true => Some(i64::from(cx.float("seed")?.to_bits())),
        };
        let (seed, stream) = match given {
            Some(seed) => (cx.b.constant(Data::scalar(seed)), [0, 1]),
            None => {
                let seed = Dim::sym(cx.b.seed());
                (cx.b.dim_scalar(&seed)?, [i64::from(number), 0])
            }
        };
        let mut key = [low(cx.b, seed)?, high(cx.b, seed)?];
        for iteration in iterations {
            let iteration = cx.b.dim_scalar(&Dim::sym(iteration))?;
            let of_loop = Generator { key, stream: ITERATIONS };
            let [first, second, ..] = of_loop.words_at(cx, iteration)?;
            key = [first, second];
        }
        Ok(Generator { key, stream })
    }

    /// That of a run, or of the seed given by an input, an i64 scalar.
    pub fn of_input(cx: &mut NodeCx<'_, '_>, seed: Option<ValueId>) -> Result<Generator> {
        match seed {
            Some(seed) => Ok(Generator { key: [low(cx.b, seed)?, high(cx.b, seed)?], stream: [0, 1] }),
            None => Generator::new(cx),
        }
    }

    /// Numbers below 1 of `dtype`, f32 or f64, in a shape.
    pub fn below_one(&self, cx: &mut NodeCx<'_, '_>, shape: Vec<Dim>, dtype: DType) -> Result<ValueId> {
        let [first, second, ..] = self.words(cx, product(&shape))?;
        let y = fraction(cx, [first, second], dtype, precision(dtype), false)?;
        cx.b.reshape(y, shape)
    }

    /// Four words for each of `count` elements, i64 vectors.
    fn words(&self, cx: &mut NodeCx<'_, '_>, count: Dim) -> Result<[ValueId; 4]> {
        let index = cx.b.iota(vec![count], 0)?;
        self.words_at(cx, index)
    }

    /// Four words for each index.
    fn words_at(&self, cx: &mut NodeCx<'_, '_>, index: ValueId) -> Result<[ValueId; 4]> {
        let [third, fourth] = self.stream.map(|word| cx.b.constant(Data::scalar(word)));
        let mut counter = [low(cx.b, index)?, high(cx.b, index)?, third, fourth];
        let mut key = self.key;
        for round in 0..ROUNDS {
            let mut products = [(index, index); 2];
            for (half, product) in products.iter_mut().enumerate() {
                let factor = cx.b.constant(Data::scalar(MULTIPLIERS[half]));
                let wide = cx.b.binary(BinaryFn::Mul, counter[2 * half], factor)?;
                *product = (high(cx.b, wide)?, low(cx.b, wide)?);
            }
            let [(high_0, low_0), (high_1, low_1)] = products;
            let first = cx.b.binary(BinaryFn::BitXor, high_1, counter[1])?;
            let third = cx.b.binary(BinaryFn::BitXor, high_0, counter[3])?;
            counter = [
                cx.b.binary(BinaryFn::BitXor, first, key[0])?,
                low_1,
                cx.b.binary(BinaryFn::BitXor, third, key[1])?,
                low_0,
            ];
            if round + 1 < ROUNDS {
                for (part, increment) in key.iter_mut().zip(INCREMENTS) {
                    let increment = cx.b.constant(Data::scalar(increment));
                    *part = cx.b.binary(BinaryFn::Add, *part, increment)?;
                    *part = low(cx.b, *part)?;
                }
            }
        }
        Ok(counter)
    }
}

/// Numbers of `bits` random bits below 1 (`above_zero`: above 0 and up to 1), in `dtype`; two words are enough.
fn fraction(
    cx: &mut NodeCx<'_, '_>,
    words: [ValueId; 2],
    dtype: DType,
    bits: i64,
    above_zero: bool,
) -> Result<ValueId> {
    let number = if bits <= 32 {
        shifted(cx.b, words[0], 32 - bits)?
    } else {
        let first = cx.b.constant(Data::scalar(1i64 << (bits - 32)));
        let first = cx.b.binary(BinaryFn::Mul, words[0], first)?;
        let second = shifted(cx.b, words[1], 64 - bits)?;
        cx.b.binary(BinaryFn::Add, first, second)?
    };
    let number = match above_zero {
        true => {
            let one = cx.b.constant(Data::scalar(1i64));
            cx.b.binary(BinaryFn::Add, number, one)?
        }
        false => number,
    };
    let number = cx.b.cast(number, dtype)?;
    cx.b.binary_scalar(BinaryFn::Mul, number, 2f64.powi(-bits as i32))
}

/// Bits that a number of a type below 1 has at most; with more, rounding would give 1.
fn precision(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// Type that random numbers of a type are computed in.
fn work(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// Shape and type that a node without operands, or a Like form, asks for.
fn wanted(cx: &NodeCx<'_, '_>) -> Result<(Vec<Dim>, DType)> {
    if cx.has("shape") {
        let shape = cx.ints("shape")?.unwrap_or_default();
        if let Some(size) = shape.iter().find(|&&size| size < 0) {
            return malformed(format!("shape has the size {size}"));
        }
        return Ok((shape.into_iter().map(Dim::from).collect(), dtype_of(cx.int("dtype")?)?));
    }
    let x = cx.input(0)?;
    let dtype = match cx.optional_int("dtype")? {
        Some(number) => dtype_of(number)?,
        None => cx.b.dtype(x),
    };
    Ok((cx.b.shape(x), dtype))
}

/// Fails for a type that has no fractions.
fn check_float(dtype: DType) -> Result<()> {
    match precision(dtype) {
        24 if dtype != DType::F32 => malformed(format!("random numbers of type {dtype}")),
        _ => Ok(()),
    }
}

fn uniform(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (shape, dtype) = wanted(cx)?;
    check_float(dtype)?;
    let (low, high) = (f64::from(cx.float("low")?), f64::from(cx.float("high")?));
    let generator = Generator::new(cx)?;
    let [first, second, ..] = generator.words(cx, product(&shape))?;
    let y = fraction(cx, [first, second], work(dtype), precision(dtype), false)?;
    let y = cx.b.binary_scalar(BinaryFn::Mul, y, high - low)?;
    let y = cx.b.binary_scalar(BinaryFn::Add, y, low)?;
    let y = cx.b.cast(y, dtype)?;
    Ok(vec![cx.b.reshape(y, shape)?])
}

/// `mean + scale * sqrt(-2 ln u) cos(2 pi v)` (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958).
fn normal(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (shape, dtype) = wanted(cx)?;
    check_float(dtype)?;
    let (mean, scale) = (f64::from(cx.float("mean")?), f64::from(cx.float("scale")?));
    let generator = Generator::new(cx)?;
    let words = generator.words(cx, product(&shape))?;
    let (ty, bits) = (work(dtype), precision(work(dtype)));
    let u = fraction(cx, [words[0], words[1]], ty, bits, true)?;
    let v = fraction(cx, [words[2], words[3]], ty, bits, false)?;
    let log = cx.b.unary(UnaryFn::Log, u)?;
    let square = cx.b.binary_scalar(BinaryFn::Mul, log, -2.0)?;
    let radius = cx.b.unary(UnaryFn::Sqrt, square)?;
    let angle = cx.b.binary_scalar(BinaryFn::Mul, v, std::f64::consts::TAU)?;
    let cosine = cx.b.unary(UnaryFn::Cos, angle)?;
    let y = cx.b.binary(BinaryFn::Mul, radius, cosine)?;
    let y = cx.b.binary_scalar(BinaryFn::Mul, y, scale)?;
    let y = cx.b.binary_scalar(BinaryFn::Add, y, mean)?;
    let y = cx.b.cast(y, dtype)?;
    Ok(vec![cx.b.reshape(y, shape)?])
}

fn bernoulli(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let (shape, dtype) = wanted(cx)?;
    let ty = work(cx.b.dtype(x));
    let u = Generator::new(cx)?.below_one(cx, shape, ty)?;
    let x = cx.b.cast(x, ty)?;
    let hit = cx.b.compare(CompareFn::Lt, u, x)?;
    Ok(vec![cx.b.cast(hit, dtype)?])
}

fn multinomial(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let rows = cx.b.shape(x)[0].clone();
    let samples = match usize::try_from(cx.int("sample_size")?) {
        Ok(samples) if samples > 0 => Dim::from(samples),
        _ => return malformed(format!("sample_size is {}; it is 1 or more", cx.int("sample_size")?)),
    };
    let dtype = dtype_of(cx.int("dtype")?)?;
    let u = Generator::new(cx)?.below_one(cx, vec![rows, samples], DType::F64)?;
    let class = drawn(cx.b, x, u)?;
    Ok(vec![cx.b.cast(class, dtype)?])
}

/// Classes as likely as `exp(x)`, i64 `[rows, samples]`, of `x: [rows, classes]` and numbers below 1, f64 `[rows, samples]`: the
/// number of classes whose cumulated weights are not above `u` times their sum. Classes at which the sum is complete are not
/// counted, so that those behind the last one of any weight are never drawn.
pub fn drawn(b: &mut Builder<'_>, x: ValueId, u: ValueId) -> Result<ValueId> {
    let x = b.cast(x, DType::F64)?;
    let most = b.reduce(ReduceFn::Max, x, &[1])?;
    let weights = b.binary(BinaryFn::Sub, x, most)?;
    let weights = b.unary(UnaryFn::Exp, weights)?;
    let cumulate = Op::Cumulate { op: ReduceFn::Sum, axis: 1, exclusive: false, reverse: false };
    let sums = b.emit1(cumulate, &[weights])?;
    let total = b.reduce(ReduceFn::Max, sums, &[1])?;
    let incomplete = b.compare(CompareFn::Lt, sums, total)?;
    let mark = b.binary(BinaryFn::Mul, u, total)?;
    let (mark, sums) = (b.unsqueeze(mark, &[2])?, b.unsqueeze(sums, &[1])?);
    let incomplete = b.unsqueeze(incomplete, &[1])?;
    let passed = b.compare(CompareFn::Le, sums, mark)?;
    let passed = b.binary(BinaryFn::And, passed, incomplete)?;
    let passed = b.cast(passed, DType::I64)?;
    let class = b.reduce(ReduceFn::Sum, passed, &[2])?;
    b.squeeze(class, &[2])
}

/// When a node drops.
enum Training {
    Never,
    Always,
    /// Where a bool scalar is true.
    If(ValueId),
}

fn training(cx: &mut NodeCx<'_, '_>) -> Result<Training> {
    if cx.has("is_test") {
        let drops = cx.int("is_test")? == 0 && cx.float("ratio")? != 0.0;
        return Ok(if drops { Training::Always } else { Training::Never });
    }
    // Versions 7 and 10 are for inference alone.
    let mode = if cx.has("ratio") { None } else { cx.optional(2) };
    let Some(mode) = mode else { return Ok(Training::Never) };
    let keeps_all =
        cx.optional(1).and_then(|ratio| cx.b.known(ratio)).is_some_and(|ratio| *ratio == [Dim::ZERO]);
    Ok(match cx.b.known(mode).as_deref() {
        _ if keeps_all => Training::Never,
        Some([mode]) if *mode == Dim::ZERO => Training::Never,
        Some(_) => Training::Always,
        None => Training::If(to_scalar(cx, mode)?),
    })
}

/// Numbers below 1; with the attribute `seed` those that NumPy draws. Its seeds have 32 bits: of others the lower bits count.
fn below_one_for_dropout(cx: &mut NodeCx<'_, '_>, shape: Vec<Dim>) -> Result<ValueId> {
    let stream = cx.bodies.stream(cx.b);
    let seed = if cx.has("seed") { cx.optional_int("seed")? } else { None };
    match seed {
        // Iterations drop other elements each.
        Some(seed) if stream.iterations.is_empty() => {
            let u = mersenne::below_one(cx.b, seed as u32, product(&shape))?;
            cx.b.reshape(u, shape)
        }
        _ => Generator::of_stream(cx, stream)?.below_one(cx, shape, DType::F32),
    }
}

/// Elements stay with a chance of `1 - ratio`, and are divided by it; the others are 0.
fn dropout(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("data")?;
    let (dtype, shape) = (cx.b.dtype(x), cx.b.shape(x));
    // The mask is a bool from version 10 on.
    let mask = if cx.def.since >= 10 { DType::Bool } else { dtype };
    let training = training(cx)?;
    if let Training::Never = training {
        let one = cx.b.scalar(mask, 1.0);
        return Ok(if cx.wants(1) { vec![x, cx.b.expand(one, shape)?] } else { vec![x] });
    }
    let ratio = match (cx.has("ratio"), cx.optional(1)) {
        (false, Some(ratio)) => {
            let ratio = to_scalar(cx, ratio)?;
            cx.b.cast(ratio, DType::F32)?
        }
        (false, None) => cx.b.scalar(DType::F32, 0.5),
        (true, _) => {
            let ratio = f64::from(cx.float("ratio")?);
            cx.b.scalar(DType::F32, ratio)
        }
    };
    let u = below_one_for_dropout(cx, shape)?;
    let limit = cx.b.cast(ratio, cx.b.dtype(u))?;
    let mut kept = cx.b.compare(CompareFn::Ge, u, limit)?;
    let ty = work(dtype);
    let one = cx.b.scalar(ty, 1.0);
    let ratio = cx.b.cast(ratio, ty)?;
    let chance = cx.b.binary(BinaryFn::Sub, one, ratio)?;
    let wide = cx.b.cast(x, ty)?;
    let scaled = cx.b.binary(BinaryFn::Div, wide, chance)?;
    let zero = cx.b.scalar(ty, 0.0);
    let y = cx.b.select(kept, scaled, zero)?;
    let mut y = cx.b.cast(y, dtype)?;
    if let Training::If(mode) = training {
        y = cx.b.select(mode, y, x)?;
        let idle = cx.b.unary(UnaryFn::Not, mode)?;
        kept = cx.b.binary(BinaryFn::Or, kept, idle)?;
    }
    Ok(vec![y, cx.b.cast(kept, mask)?])
}

#[cfg(test)]
mod tests;
