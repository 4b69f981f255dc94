//! Fourier transforms: DFT, STFT and MelWeightMatrix.
//!
//! A short transform is one product with a matrix of sines and cosines. A long one of composite length splits into
//! digits (Cooley and Tukey): for `n = n1 * m`, transforms of length `n1` over the leading digit, a rotation of each
//! result by its twiddle factor, and transforms of length `m` over the rest. The frequency comes out with its digits
//! reversed, and one transposition at the end orders them. A transform along a symbolic axis multiplies by a matrix
//! that is made at run time.

use std::f64::consts::TAU;

use super::dynamic::{about_axis, dims_vector, valid_or_negative};
use super::row::*;
use super::sample::{arithmetic, constant_dim, dim_as};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, Stage};
use onnxc_ir::graph::{Op, RhsLayout, Tensor};
use onnxc_ir::rules::Rule;

pub const ROWS: &[OpDef] = &[
    DFT,
    DFT.since(20)
        .inputs(&[req("input", "T1"), opt("dft_length", "T2"), opt("axis", "tensor(int64)")])
        .attributes(&[int("inverse", 0), int("onesided", 0)])
        .shapes(DFT_SHAPES_20),
    op("STFT", 17, stft)
        .inputs(&[
            req("signal", "T1"),
            req("frame_step", "T2"),
            opt("window", "T1"),
            opt("frame_length", "T2"),
        ])
        .outputs(&[req("output", "T1")])
        .attributes(&[int("onesided", 1)])
        .types(&[("T1", FLOATS), ("T2", INDICES)])
        .shapes(STFT_SHAPES)
        .doc("Fourier transforms of sliding windows"),
    op("MelWeightMatrix", 17, mel_weight_matrix)
        .inputs(&[
            req("num_mel_bins", "T1"),
            req("dft_length", "T1"),
            req("sample_rate", "T1"),
            req("lower_edge_hertz", "T2"),
            req("upper_edge_hertz", "T2"),
        ])
        .outputs(&[req("output", "T3")])
        .attributes(&[int("output_datatype", 1)])
        .types(&[("T1", INDICES), ("T2", FLOATS), ("T3", NUMERIC)])
        .shapes(MEL_WEIGHT_MATRIX_SHAPES)
        .doc("Weights of frequency bins in overlapping bands of the mel scale"),
];

const DFT: OpDef = op("DFT", 17, dft)
    .inputs(&[req("input", "T1"), opt("dft_length", "T2")])
    .outputs(&[req("output", "T1")])
    .attributes(&[int("axis", 1), int("inverse", 0), int("onesided", 0)])
    .types(&[("T1", FLOATS), ("T2", INDICES)])
    .shapes(DFT_SHAPES_17)
    .doc("Discrete Fourier transform along an axis");

const DFT_SHAPES_17: &[&str] = &["input[.., 2|1]", "count(dft_length) = 1"];

const DFT_SHAPES_20: &[&str] = &["input[.., 2|1]", "count(dft_length) = 1", "count(axis) = 1"];

const STFT_SHAPES: &[&str] =
    &["signal[_, _, 2|1] | [_, _]", "count(frame_step) = 1", "window[_]", "count(frame_length) = 1"];

const MEL_WEIGHT_MATRIX_SHAPES: &[&str] = &[
    "count(num_mel_bins) = 1",
    "count(dft_length) = 1",
    "count(sample_rate) = 1",
    "count(lower_edge_hertz) = 1",
    "count(upper_edge_hertz) = 1",
];

/// Length up to which a transform is a single product.
const DIRECT: usize = 64;
/// Digits of longer ones, where their factors allow.
const DIGIT: f64 = 16.0;

/// What a transform gives.
#[derive(Clone)]
struct Transform {
    inverse: bool,
    /// Frequencies (or points) wanted, from the first.
    keep: Dim,
    /// Only the real part.
    real: bool,
}

fn dft(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let (inverse, onesided) = (cx.int("inverse")? != 0, cx.int("onesided")? != 0);
    let x = with_parts(cx.b, x, onesided.then_some(if inverse { 2 } else { 1 }))?;
    let rank = cx.b.rank(x);
    if let Some(axis) = cx.optional(2)
        && !cx.has("axis")
        && cx.b.known(axis).is_none()
    {
        return dft_along(cx, x, axis);
    }
    let axis = match (cx.has("axis"), cx.optional(2)) {
        (true, _) => Dim::from(cx.int("axis")?),
        (false, Some(_)) => known_scalar(cx, 2)?,
        (false, None) => Dim::from(-2i64),
    };
    let Some(axis) = axis.as_const() else { return unsupported(format!("an axis that is the dim {axis}")) };
    let axis = normalize_axis(axis, rank)?;
    if axis + 1 == rank {
        return malformed(format!("axis {axis} of {} holds the parts of complex numbers", cx.b.ty(x)));
    }
    // The axis goes next to the parts.
    let mut perm: Vec<usize> = (0..rank).filter(|&at| at != axis).collect();
    perm.insert(rank - 2, axis);
    let x = cx.b.transpose(x, &perm)?;
    let y = dft_of_last(cx, x)?;
    let mut back: Vec<usize> = (0..rank - 2).collect();
    back.insert(axis, rank - 2);
    back.push(rank - 1);
    Ok(vec![cx.b.transpose(y, &back)?])
}

/// The transform along an axis that data decide, `x` being `[before, n, after]` about it.
fn dft_along(cx: &mut NodeCx<'_, '_>, x: ValueId, axis: ValueId) -> Result<Vec<ValueId>> {
    let shape = cx.b.shape(x);
    let Some((parts, signal)) = shape.split_last() else { return malformed("a transform of a scalar") };
    let (rank, parts) = (shape.len(), parts.as_const().unwrap_or(complex_parts(cx.b, x)?));
    let axis = to_scalar(cx, axis)?;
    let axis = cx.b.cast(axis, DType::I64)?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let negative = cx.b.compare(CompareFn::Lt, axis, zero)?;
    let wrapped = cx.b.binary_scalar(BinaryFn::Add, axis, rank as f64)?;
    let axis = cx.b.select(negative, wrapped, axis)?;
    // An axis that is the last one lies outside of what is about the signal's axes, and fails there.
    let mut each = Vec::with_capacity(2);
    let mut about: Option<Vec<Dim>> = None;
    for part in 0..parts {
        let part = cx.b.slice_axis(x, rank - 1, Dim::from(part), Dim::ONE)?;
        let part = cx.b.squeeze(part, &[rank - 1])?;
        let part = match &about {
            None => about_axis(cx, part, axis)?,
            Some(dims) => cx.b.reshape(part, dims.clone())?,
        };
        about = Some(cx.b.shape(part));
        let last = cx.b.transpose(part, &[0, 2, 1])?;
        each.push(cx.b.unsqueeze(last, &[3])?);
    }
    let x = cx.b.concat(&each, 3)?;
    let y = dft_of_last(cx, x)?;
    let y = cx.b.transpose(y, &[0, 2, 1, 3])?;
    let (extent, results) = (cx.b.shape(y)[1].clone(), cx.b.shape(y)[3].clone());
    let (place, sizes) = (cx.b.iota(vec![Dim::from(rank - 1)], 0)?, dims_vector(cx, signal)?);
    let extent = dim(cx, &extent)?;
    let here = cx.b.compare(CompareFn::Eq, place, axis)?;
    let dims = cx.b.select(here, extent, sizes)?;
    let mut dims = cx.b.sizes(dims, &|_| None)?;
    dims.push(results);
    Ok(vec![cx.b.reshape(y, dims)?])
}

/// The node's transform of `[.., n, parts]` along the axis before the parts.
fn dft_of_last(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let rank = cx.b.rank(x);
    let (inverse, onesided) = (cx.int("inverse")? != 0, cx.int("onesided")? != 0);
    let extent = cx.b.ty(x).shape[rank - 2].clone();
    let length = match cx.optional("dft_length") {
        Some(_) => size_scalar(cx, 1)?,
        None if inverse && onesided => (extent - Dim::ONE) * Dim::from(2usize),
        None => extent,
    };
    if length.as_const().is_some_and(|length| length < 1) {
        return malformed(format!("a transform of length {length}"));
    }
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let parts = complex_parts(b, x)?;
    if onesided && (inverse != (parts == 2)) {
        let kind = if inverse { "an inverse transform needs complex" } else { "a transform needs real" };
        return malformed(format!("onesided: {kind} numbers, not {}", b.ty(x)));
    }
    let x = b.cast(x, arithmetic(dtype))?;
    let half = length.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO) + Dim::ONE;
    let y = match (inverse, onesided) {
        (true, true) => {
            let x = resized(b, x, rank - 2, &half)?;
            real_inverse(b, x, &length)?
        }
        (inverse, onesided) => {
            let x = resized(b, x, rank - 2, &length)?;
            let keep = if onesided { half } else { length.clone() };
            transform(b, x, &length, &Transform { inverse, keep, real: false })?
        }
    };
    b.cast(y, dtype)
}

/// The spectrum of real numbers along the last axis, `[.., n] -> [.., n / 2 + 1, 2]`; or the real points of such a spectrum.
pub fn of_reals(b: &mut Builder<'_>, x: ValueId, inverse: bool) -> Result<ValueId> {
    let (rank, dtype) = (b.rank(x), b.dtype(x));
    let x = b.cast(x, arithmetic(dtype))?;
    let two = Dim::from(2usize);
    let y = if inverse {
        let length = (b.ty(x).shape[rank - 2].clone() - Dim::ONE) * two;
        let y = real_inverse(b, x, &length)?;
        b.squeeze(y, &[rank - 1])?
    } else {
        let length = b.ty(x).shape[rank - 1].clone();
        let keep = length.floor_div(&two).unwrap_or(Dim::ZERO) + Dim::ONE;
        let x = b.unsqueeze(x, &[rank])?;
        transform(b, x, &length, &Transform { inverse, keep, real: false })?
    };
    b.cast(y, dtype)
}

/// Numbers of a known number of parts: one or two, the size of the last axis; `wanted` where it is a symbol and the transform takes only
/// that; otherwise two, and the second is zero where the run has one.
fn with_parts(b: &mut Builder<'_>, x: ValueId, wanted: Option<usize>) -> Result<ValueId> {
    let mut shape = b.shape(x);
    let Some(last) = shape.last_mut().filter(|last| !last.is_const()) else { return Ok(x) };
    match wanted {
        Some(parts) => {
            let requirement = Requirement::equal(last.clone(), Dim::from(parts));
            b.assume(requirement.says("the last dimension, of the parts of complex numbers,", parts));
            *last = Dim::from(parts);
            b.reshape(x, shape)
        }
        None => {
            let two = Dim::from(2usize);
            let requirement = Requirement::at_most(last.clone(), two.clone());
            b.assume(requirement.says("the last dimension, of the parts of complex numbers,", 2));
            resized(b, x, shape.len() - 1, &two)
        }
    }
}

/// 1 for real numbers, 2 for complex ones: the extent of the last axis.
fn complex_parts(b: &Builder<'_>, x: ValueId) -> Result<i64> {
    match (b.rank(x), b.ty(x).shape.last().and_then(Dim::as_const)) {
        (2.., Some(parts @ 1..=2)) => Ok(parts),
        _ => malformed(format!("{} has no last axis of one or two parts", b.ty(x))),
    }
}

/// The first `size` elements along an axis, zeros where there are none.
fn resized(b: &mut Builder<'_>, x: ValueId, axis: usize, size: &Dim) -> Result<ValueId> {
    let extent = b.ty(x).shape[axis].clone();
    let (mut lo, mut hi) = (vec![Dim::ZERO; b.rank(x)], vec![Dim::ZERO; b.rank(x)]);
    (lo[axis], hi[axis]) = (Dim::ZERO, (size.clone() - extent).max_dim(&Dim::ZERO));
    let zero = b.scalar(b.dtype(x), 0.0);
    let x = b.pad(x, zero, lo, hi)?;
    b.slice_axis(x, axis, Dim::ZERO, size.clone())
}

/// Longest transform of a length known at compile time, and elements of the largest matrix: tables up to that size are
/// computed by the compiler.
const MAX_LENGTH: usize = 1 << 21;
const MAX_TABLE: usize = 1 << 23;

/// `[.., n, parts]` transformed along its axis of `n`: `[.., keep, 2]`, or `[.., keep, 1]`.
fn transform(b: &mut Builder<'_>, x: ValueId, n: &Dim, to: &Transform) -> Result<ValueId> {
    match n.as_const().map(usize::try_from) {
        Some(Ok(n)) => match digits(n) {
            _ if n > MAX_LENGTH => {
                let message = format!("a transform of length {n}: the most is {MAX_LENGTH}");
                Err(Error::new(Stage::Infer, Kind::Budget, message))
            }
            digits if digits.len() < 2 => direct(b, x, &Dim::from(n), to),
            digits => by_digits(b, x, n, &digits, to),
        },
        _ => direct(b, x, n, to),
    }
}

/// The factors that a transform of length `n` is split into; one where it is not.
fn digits(n: usize) -> Vec<usize> {
    if n <= DIRECT {
        return vec![n];
    }
    let mut primes = Vec::new();
    let (mut rest, mut factor) = (n, 2);
    while factor * factor <= rest {
        while rest % factor == 0 {
            primes.push(factor);
            rest /= factor;
        }
        factor += 1;
    }
    if rest > 1 {
        primes.push(rest);
    }
    let count = ((n as f64).log(DIGIT).ceil() as usize).clamp(1, primes.len());
    let mut digits = vec![1usize; count];
    for prime in primes.into_iter().rev() {
        if let Some(least) = digits.iter_mut().min() {
            *least *= prime;
        }
    }
    digits.retain(|&digit| digit > 1);
    digits
}

/// `sin` and `cos` of `turns / n` of a full turn; exact at the quarters.
fn rotation(turns: usize, n: usize) -> (f64, f64) {
    match (turns % n) * 4 {
        0 => (0.0, 1.0),
        quarter if quarter == n => (1.0, 0.0),
        quarter if quarter == 2 * n => (0.0, -1.0),
        quarter if quarter == 3 * n => (-1.0, 0.0),
        _ => (TAU * (turns % n) as f64 / n as f64).sin_cos(),
    }
}

/// How the parts of a number (of two, or the real one) enter the parts of a product with `cos + i sin`.
fn product_parts(
    parts: usize,
    results: usize,
    (sin, cos): (f64, f64),
) -> impl Iterator<Item = ((usize, usize), f64)> {
    [((0, 0), cos), ((0, 1), sin), ((1, 0), -sin), ((1, 1), cos)]
        .into_iter()
        .filter(move |((from, to), _)| *from < parts && *to < results)
}

/// One product with the matrix of the transform.
fn direct(b: &mut Builder<'_>, x: ValueId, n: &Dim, to: &Transform) -> Result<ValueId> {
    let rank = b.rank(x);
    let parts = complex_parts(b, x)? as usize;
    let results: usize = if to.real { 1 } else { 2 };
    let matrix = match (n.as_const(), to.keep.as_const()) {
        (Some(n), Some(keep)) => constant_matrix(b, x, n as usize, keep as usize, parts, to)?,
        _ => symbolic_matrix(b, x, n, parts, to)?,
    };
    let op = Op::Contract { batch: 0, m: rank - 2, k: 2, rhs: RhsLayout::Plain };
    let y = b.emit1(op, &[x, matrix])?;
    let mut shape = b.shape(y);
    shape.pop();
    shape.extend([to.keep.clone(), Dim::from(results)]);
    b.reshape(y, shape)
}

/// `[n, parts, keep * results]` of the element type of `x`; an inverse divides by `n`.
fn constant_matrix(
    b: &mut Builder<'_>,
    x: ValueId,
    n: usize,
    keep: usize,
    parts: usize,
    to: &Transform,
) -> Result<ValueId> {
    let results: usize = if to.real { 1 } else { 2 };
    let count = n.checked_mul(keep).and_then(|count| count.checked_mul(parts * results));
    let Some(count) = count.filter(|&count| count <= MAX_TABLE) else {
        return unsupported(format!("a transform whose length {n} has a large prime factor"));
    };
    let mut values = vec![0.0; count];
    let scale = if to.inverse { 1.0 / n as f64 } else { 1.0 };
    for point in 0..n {
        for frequency in 0..keep {
            let (sin, cos) = rotation(point * (frequency % n), n);
            let turn = if to.inverse { (sin, cos) } else { (-sin, cos) };
            for ((from, into), value) in product_parts(parts, results, turn) {
                values[((point * parts + from) * keep + frequency) * results + into] = value * scale;
            }
        }
    }
    constant(b, &[n, parts, keep * results], &values, b.dtype(x))
}

fn constant(b: &mut Builder<'_>, shape: &[usize], values: &[f64], dtype: DType) -> Result<ValueId> {
    let wide = b.constant(Tensor::from_slice(shape, values));
    b.cast(wide, dtype)
}

/// As [`constant_matrix`], of sizes known only at run time.
fn symbolic_matrix(
    b: &mut Builder<'_>,
    x: ValueId,
    n: &Dim,
    parts: usize,
    to: &Transform,
) -> Result<ValueId> {
    // In f64, as constants are: an angle of f32 leaves what should cancel.
    let dtype = DType::F64;
    let (point, frequency) = (b.iota(vec![n.clone(), Dim::ONE], 0)?, b.iota(vec![to.keep.clone()], 0)?);
    let turns = b.binary(BinaryFn::Mul, point, frequency)?;
    let size = constant_dim(b, n)?;
    let turns = b.binary(BinaryFn::Mod, turns, size)?;
    let turns = b.cast(turns, dtype)?;
    let length = dim_as(b, n, dtype)?;
    let part = b.binary(BinaryFn::Div, turns, length)?;
    let angle = b.binary_scalar(BinaryFn::Mul, part, if to.inverse { TAU } else { -TAU })?;
    let (mut cos, mut sin) = (b.unary(UnaryFn::Cos, angle)?, b.unary(UnaryFn::Sin, angle)?);
    if to.inverse {
        cos = b.binary(BinaryFn::Div, cos, length)?;
        sin = b.binary(BinaryFn::Div, sin, length)?;
    }
    let negative = b.unary(UnaryFn::Neg, sin)?;
    let results: usize = if to.real { 1 } else { 2 };
    // [n, parts, keep, results]
    let mut rows = Vec::with_capacity(parts);
    for row in [[cos, sin], [negative, cos]].into_iter().take(parts) {
        let mut columns = Vec::with_capacity(results);
        for value in row.into_iter().take(results) {
            columns.push(b.unsqueeze(value, &[1, 3])?);
        }
        rows.push(b.concat(&columns, 3)?);
    }
    let matrix = b.concat(&rows, 1)?;
    let matrix = b.cast(matrix, b.dtype(x))?;
    b.reshape(matrix, vec![n.clone(), Dim::from(parts), to.keep.clone() * Dim::from(results)])
}

/// `x: [lead.., n, parts]`. Between steps it is `[lead.., frequencies so far.., points left.., parts]`, each digit
/// an axis.
fn by_digits(b: &mut Builder<'_>, x: ValueId, n: usize, digits: &[usize], to: &Transform) -> Result<ValueId> {
    let lead = b.rank(x) - 2;
    let count = digits.len();
    let Some(keep) = to.keep.as_const().and_then(|keep| usize::try_from(keep).ok()) else {
        return direct(b, x, &Dim::from(n), to);
    };
    let mut shape = b.shape(x);
    shape.splice(lead..=lead, digits.iter().map(|&digit| Dim::from(digit)));
    let mut y = b.reshape(x, shape)?;
    let mut left = n;
    let mut last_keep = 0;
    for (step, &digit) in digits.iter().enumerate() {
        let last = step + 1 == count;
        let parts = complex_parts(b, y)?;
        // Of the last digit only those that the wanted frequencies have.
        let wanted = if last { keep.div_ceil(n / digit).min(digit) } else { digit };
        last_keep = wanted;
        let whole = Transform { inverse: to.inverse, keep: Dim::from(wanted), real: last && to.real };
        let matrix = constant_matrix(b, y, digit, wanted, parts as usize, &whole)?;
        // The leading point digit goes next to the parts.
        let rank = b.rank(y);
        let mut perm: Vec<usize> = (0..rank).filter(|&at| at != lead + step).collect();
        perm.insert(rank - 2, lead + step);
        let moved = b.transpose(y, &perm)?;
        let op = Op::Contract { batch: 0, m: rank - 2, k: 2, rhs: RhsLayout::Plain };
        let product = b.emit1(op, &[moved, matrix])?;
        let mut shape = b.shape(product);
        shape.pop();
        shape.extend([Dim::from(wanted), Dim::from(if whole.real { 1usize } else { 2 })]);
        y = b.reshape(product, shape)?;
        if !last {
            left /= digit;
            y = twiddled(b, y, [left, digit], &digits[step + 1..], to.inverse)?;
            // [lead.., frequencies.., points.., own, parts]: the frequency goes after those before it.
            let mut perm: Vec<usize> = (0..rank).collect();
            let own = perm.remove(rank - 2);
            perm.insert(lead + step, own);
            y = b.transpose(y, &perm)?;
        }
    }
    // The first digit of a frequency is its lowest.
    let mut perm: Vec<usize> = (0..lead).collect();
    perm.extend((lead..lead + count).rev());
    perm.push(lead + count);
    let y = b.transpose(y, &perm)?;
    let mut shape = b.shape(y);
    let parts = shape.pop().unwrap_or(Dim::ONE);
    shape.truncate(lead);
    shape.extend([Dim::from(n / digits[count - 1] * last_keep), parts]);
    let y = b.reshape(y, shape)?;
    b.slice_axis(y, lead, Dim::ZERO, Dim::from(keep))
}

/// `y: [.., points.., digit, 2]`, whose points are `left` in number, each turned by `point * frequency` parts of
/// `left * digit`.
fn twiddled(
    b: &mut Builder<'_>,
    y: ValueId,
    [left, digit]: [usize; 2],
    points: &[usize],
    inverse: bool,
) -> Result<ValueId> {
    let (mut same, mut other) = (Vec::with_capacity(left * digit), Vec::with_capacity(2 * left * digit));
    for point in 0..left {
        for frequency in 0..digit {
            let (sin, cos) = rotation(point * frequency, left * digit);
            let sin = if inverse { sin } else { -sin };
            same.push(cos);
            other.extend([-sin, sin]);
        }
    }
    let dtype = b.dtype(y);
    let mut shape = points.to_vec();
    shape.extend([digit, 1]);
    let same = constant(b, &shape, &same, dtype)?;
    *shape.last_mut().expect("the parts are an axis") = 2;
    let other = constant(b, &shape, &other, dtype)?;
    let sizes = b.shape(y);
    let rank = sizes.len();
    let (mut starts, mut steps) = (vec![Dim::ZERO; rank], vec![1; rank]);
    (starts[rank - 1], steps[rank - 1]) = (Dim::ONE, -1);
    let swapped = b.emit1(Op::Slice { starts, steps, sizes }, &[y])?;
    let (a, c) = (b.binary(BinaryFn::Mul, y, same)?, b.binary(BinaryFn::Mul, swapped, other)?);
    b.binary(BinaryFn::Add, a, c)
}

/// The real points whose spectrum begins with `x: [.., n / 2 + 1, 2]`: the rest of the spectrum is the conjugate of
/// what is given, backwards. Imaginary parts where a real signal has none are ignored.
fn real_inverse(b: &mut Builder<'_>, x: ValueId, n: &Dim) -> Result<ValueId> {
    let axis = b.rank(x) - 2;
    let given = b.ty(x).shape[axis].clone();
    let rest = n.clone() - given;
    let mut sizes = b.shape(x);
    sizes[axis] = rest.clone();
    let (mut starts, mut steps) = (vec![Dim::ZERO; axis + 2], vec![1; axis + 2]);
    (starts[axis], steps[axis]) = (rest, -1);
    let mirrored = b.emit1(Op::Slice { starts, steps, sizes }, &[x])?;
    let signs = constant(b, &[2], &[1.0, -1.0], b.dtype(x))?;
    let mirrored = b.binary(BinaryFn::Mul, mirrored, signs)?;
    let spectrum = b.concat(&[x, mirrored], axis)?;
    transform(b, spectrum, n, &Transform { inverse: true, keep: n.clone(), real: true })
}

fn stft(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (mut signal, window) = (cx.input("signal")?, cx.optional("window"));
    if cx.b.rank(signal) == 2 {
        let text = format!("signal {} has 2 axes and must have 3", cx.b.ty(signal));
        cx.tolerated
            .push((Rule::Rank, format!("{text}: it is taken as real numbers, with a last axis of 1")));
        signal = cx.b.unsqueeze(signal, &[2])?;
    }
    let onesided = cx.int("onesided")? != 0;
    let length = match (cx.optional("frame_length"), window) {
        (Some(_), _) => size_scalar(cx, 3)?,
        (None, Some(window)) if cx.b.rank(window) == 1 => cx.b.shape(window)[0].clone(),
        (None, Some(window)) => return malformed(format!("window {}", cx.b.ty(window))),
        (None, None) if cx.b.rank(signal) == 3 => cx.b.shape(signal)[1].clone(),
        (None, None) => return malformed(format!("signal {}", cx.b.ty(signal))),
    };
    let signal = with_parts(cx.b, signal, onesided.then_some(1))?;
    let parts = complex_parts(cx.b, signal)?;
    if cx.b.rank(signal) != 3 || (onesided && parts == 2) {
        return malformed(format!("signal {}, onesided {onesided}", cx.b.ty(signal)));
    }
    let dtype = cx.b.dtype(signal);
    let x = cx.b.cast(signal, arithmetic(dtype))?;
    let mut frames = frames(cx, x, &length)?;
    let b = &mut *cx.b;
    if let Some(window) = window {
        let window = b.cast(window, arithmetic(dtype))?;
        let window = b.reshape(window, vec![length.clone(), Dim::ONE])?;
        frames = b.binary(BinaryFn::Mul, frames, window)?;
    }
    let half = length.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO) + Dim::ONE;
    let keep = if onesided { half } else { length.clone() };
    let y = transform(b, frames, &length, &Transform { inverse: false, keep, real: false })?;
    Ok(vec![b.cast(y, dtype)?])
}

/// `signal: [B, t, parts]` in frames of `length` points: `[B, frames, length, parts]`. They are a view where the distance
/// of two is known.
fn frames(cx: &mut NodeCx<'_, '_>, signal: ValueId, length: &Dim) -> Result<ValueId> {
    let known = |dim: Option<&Dim>| dim.and_then(Dim::as_const);
    let step = cx.input("frame_step")?;
    let step_known = known(cx.b.known(step).as_deref().and_then(<[Dim]>::first));
    if let (Some(step), Some(extent)) = (step_known, length.as_const()) {
        let (Ok(stride @ 1..), Ok(kernel @ 1..)) = (usize::try_from(step), usize::try_from(extent)) else {
            return malformed(format!("frames of {extent} points every {step}"));
        };
        let op = Op::Window { first: 1, kernel: vec![kernel], strides: vec![stride], dilations: vec![1] };
        return cx.b.emit1(op, &[signal]);
    }
    let step = to_scalar(cx, step)?;
    let step = cx.b.cast(step, DType::I64)?;
    let room = cx.b.shape(signal)[1].clone() - length.clone();
    let room = dim(cx, &room)?;
    let (zero, one) = (cx.b.scalar(DType::I64, 0.0), cx.b.scalar(DType::I64, 1.0));
    let count = cx.b.binary(BinaryFn::Div, room, step)?;
    let count = cx.b.binary(BinaryFn::Add, count, one)?;
    // As a size, -1 fails the run.
    let (fits, moves) = (cx.b.compare(CompareFn::Ge, room, zero)?, cx.b.compare(CompareFn::Gt, step, zero)?);
    let valid = cx.b.binary(BinaryFn::And, fits, moves)?;
    let count = valid_or_negative(cx, valid, count)?;
    let says = Says::Text("a frame is longer than the signal, or frame_step is not positive".into());
    let count = cx.b.saying(says, |b| b.sizes(count, &|_| None))?.remove(0);
    let frame = cx.b.iota(vec![count, Dim::ONE], 0)?;
    let start = cx.b.binary(BinaryFn::Mul, frame, step)?;
    let point = cx.b.iota(vec![length.clone()], 0)?;
    let place = cx.b.binary(BinaryFn::Add, start, point)?;
    cx.b.emit1(Op::Gather { axis: 1 }, &[signal, place])
}

/// `[dft_length / 2 + 1, num_mel_bins]`: a triangle over frequencies per band, from the peak of the band before it to
/// that of the one after.
fn mel_weight_matrix(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (bins, length) = (size_scalar(cx, 0)?, size_scalar(cx, 1)?);
    let number = cx.int("output_datatype")?;
    let dtype = i32::try_from(number).ok().and_then(DType::from_onnx).filter(|dtype| NUMERIC.contains(dtype));
    let Some(dtype) = dtype else { return malformed(format!("output_datatype {number}")) };
    let (rate, lowest, highest) =
        (cx.input("sample_rate")?, cx.input("lower_edge_hertz")?, cx.input("upper_edge_hertz")?);
    let b = &mut *cx.b;
    let scalar = |b: &mut Builder<'_>, value: ValueId| -> Result<ValueId> {
        let value = b.reshape(value, vec![])?;
        b.cast(value, DType::F64)
    };
    let (rate, lowest, highest) = (scalar(b, rate)?, scalar(b, lowest)?, scalar(b, highest)?);
    let (low, high) = (mel(b, lowest)?, mel(b, highest)?);
    let span = b.binary(BinaryFn::Sub, high, low)?;
    let count = dim_as(b, &(bins.clone() + Dim::from(2usize)), DType::F64)?;
    let step = b.binary(BinaryFn::Div, span, count)?;
    // Edges of the bands in numbers of frequencies.
    let index = b.iota(vec![bins.clone() + Dim::from(2usize)], 0)?;
    let index = b.cast(index, DType::F64)?;
    let offset = b.binary(BinaryFn::Mul, index, step)?;
    let mels = b.binary(BinaryFn::Add, offset, low)?;
    let scaled = b.binary_scalar(BinaryFn::Mul, mels, std::f64::consts::LN_10 / 2595.0)?;
    let scaled = b.unary(UnaryFn::Expm1, scaled)?;
    let hertz = b.binary_scalar(BinaryFn::Mul, scaled, 700.0)?;
    let points = dim_as(b, &(length.clone() + Dim::ONE), DType::F64)?;
    let scaled = b.binary(BinaryFn::Mul, hertz, points)?;
    let edges = b.binary(BinaryFn::Div, scaled, rate)?;
    let edges = b.unary(UnaryFn::Floor, edges)?;
    let edge = |b: &mut Builder<'_>, from: usize| b.slice_axis(edges, 0, Dim::from(from), bins.clone());
    let (from, peak, to) = (edge(b, 0)?, edge(b, 1)?, edge(b, 2)?);
    let frequencies = length.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO) + Dim::ONE;
    let frequency = b.iota(vec![frequencies, Dim::ONE], 0)?;
    let frequency = b.cast(frequency, DType::F64)?;
    let y = triangle(b, frequency, [from, peak, to])?;
    Ok(vec![b.cast(y, dtype)?])
}

/// `2595 * log10(1 + f / 700)`
fn mel(b: &mut Builder<'_>, hertz: ValueId) -> Result<ValueId> {
    let part = b.binary_scalar(BinaryFn::Div, hertz, 700.0)?;
    let log = b.unary(UnaryFn::Log1p, part)?;
    b.binary_scalar(BinaryFn::Mul, log, 2595.0 / std::f64::consts::LN_10)
}

/// 1 at the peak, falling to 0 at both ends; where a side has no width, the peak stands alone.
fn triangle(b: &mut Builder<'_>, x: ValueId, [from, peak, to]: [ValueId; 3]) -> Result<ValueId> {
    let (zero, one) = (b.scalar(DType::F64, 0.0), b.scalar(DType::F64, 1.0));
    let (run, rise) = (b.binary(BinaryFn::Sub, x, from)?, b.binary(BinaryFn::Sub, peak, from)?);
    let rising = b.binary(BinaryFn::Div, run, rise)?;
    let (rest, fall) = (b.binary(BinaryFn::Sub, to, x)?, b.binary(BinaryFn::Sub, to, peak)?);
    let falling = b.binary(BinaryFn::Div, rest, fall)?;
    let both = |b: &mut Builder<'_>, low: ValueId, function: CompareFn, high: ValueId| -> Result<ValueId> {
        let low = b.compare(CompareFn::Ge, x, low)?;
        let high = b.compare(function, x, high)?;
        b.binary(BinaryFn::And, low, high)
    };
    let up = both(b, from, CompareFn::Le, peak)?;
    let left = b.select(up, rising, zero)?;
    let (steep, at_peak) = (b.compare(CompareFn::Eq, rise, zero)?, b.compare(CompareFn::Eq, x, peak)?);
    let alone = b.select(at_peak, one, zero)?;
    let left = b.select(steep, alone, left)?;
    let down = both(b, peak, CompareFn::Lt, to)?;
    b.select(down, falling, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_case::{Case, elements, ramp};

    #[test]
    fn short_transforms_of_every_kind() {
        let complex = Case::new("DFT", 20).ramp(&[1, 6, 2], 1);
        complex.gives(
            0,
            &[1, 6, 2],
            &[
                0.0, -0.5, 1.366025, -0.366025, -3.549038, 4.549038, 0.5, 0.5, -0.950962, 1.950962,
                -0.366025, 1.366025,
            ],
        );
        let inverse = Case::new("DFT", 17).ramp(&[1, 4, 2], 1).int("inverse", 1);
        inverse.gives(0, &[1, 4, 2], &[-0.0625, 0.3125, 0.0, 0.625, 0.3125, 0.3125, -0.75, 0.0]);
        let real = Case::new("DFT", 17).ramp(&[1, 5, 1], 1).int("onesided", 1);
        real.gives(0, &[1, 3, 2], &[1.25, 0.0, 0.599797, -0.825549, -2.474797, 0.80411]);
        let back = || Case::new("DFT", 20).ramp(&[1, 3, 2], 1).int("onesided", 1).int("inverse", 1);
        back().gives(0, &[1, 4, 1], &[0.25, 0.0, 0.0, -0.75]);
        let odd = back().constant::<i64>(&[], &[5]);
        odd.gives(0, &[1, 5, 1], &[0.4, -0.107388, 0.119041, -0.23363, -0.678022]);
    }

    /// As exporters of PyTorch write it: each row is a signal of real numbers.
    #[test]
    fn a_signal_of_two_axes_is_one_of_real_numbers() {
        for onesided in [0, 1] {
            let of = |shape: &[usize]| {
                let case = Case::new("STFT", 17).ramp(shape, 1).constant(&[], &[5i64]).missing();
                case.constant(&[], &[8i64]).int("onesided", onesided)
            };
            let two = of(&[2, 20]).run().unwrap();
            assert_eq!(two, of(&[2, 20, 1]).run().unwrap());
            assert_eq!(two[0].shape, [2, 3, if onesided == 1 { 5 } else { 8 }, 2]);
        }
        let symbolic =
            Case::new("STFT", 17).symbolic(&["", "n"], &[1, 20], &ramp(20, 1)).constant(&[], &[5i64]);
        assert_eq!(symbolic.constant::<f32>(&[8], &[1.0; 8]).run().unwrap()[0].shape, [1, 3, 5, 2]);
        // One of one axis is none, and a transform of two axes has its parts in the last one.
        assert!(Case::new("STFT", 17).ramp(&[20], 1).constant(&[], &[5i64]).run().is_err());
        assert!(Case::new("DFT", 17).ramp(&[1, 20], 1).run().is_err());
    }

    #[test]
    fn onesided_transforms_take_one_kind_of_numbers() {
        let case = |parts: usize, inverse: i64| {
            let case =
                Case::new("DFT", 17).ramp(&[1, 4, parts], 1).int("onesided", 1).int("inverse", inverse);
            case.run().unwrap_err().message
        };
        assert!(case(1, 1).contains("an inverse transform needs complex numbers"), "{}", case(1, 1));
        assert!(case(2, 0).contains("a transform needs real numbers"), "{}", case(2, 0));
    }

    #[test]
    fn lengths_split_into_like_digits() {
        assert_eq!(digits(60), [60]);
        assert_eq!(digits(512), [8, 8, 8]);
        assert_eq!(digits(1000).iter().product::<usize>(), 1000);
        assert_eq!(digits(127), [127]);
        assert!(digits(1024).iter().all(|&digit| digit <= 16));
    }

    /// The sum of the definition, in f64.
    fn slow(x: &[f32], n: usize, keep: usize) -> Vec<f64> {
        let mut y = vec![0.0; 2 * keep];
        for frequency in 0..keep {
            for (point, part) in x.chunks(2).enumerate() {
                let angle = -TAU * ((frequency * point) % n) as f64 / n as f64;
                let (a, b) = (f64::from(part[0]), f64::from(part[1]));
                y[2 * frequency] += a * angle.cos() - b * angle.sin();
                y[2 * frequency + 1] += a * angle.sin() + b * angle.cos();
            }
        }
        y
    }

    #[test]
    fn long_transforms_and_symbolic_ones_are_the_sum_of_the_definition() {
        for n in [66, 100, 128, 210] {
            let x = ramp(2 * n, n);
            Case::new("DFT", 20).input(&[1, n, 2], &x).gives(0, &[1, n, 2], &slow(&x, n, n));
            let symbolic = Case::new("DFT", 20).symbolic(&["", "n"], &[1, n, 2], &x);
            symbolic.gives(0, &[1, n, 2], &slow(&x, n, n));
            let parts: Vec<f32> = x.chunks(2).flat_map(|part| [part[0], 0.0]).collect();
            let reals: Vec<f32> = x.chunks(2).map(|part| part[0]).collect();
            let keep = n / 2 + 1;
            let spectrum = slow(&parts, n, keep);
            Case::new("DFT", 20).input(&[1, n, 1], &reals).int("onesided", 1).gives(
                0,
                &[1, keep, 2],
                &spectrum,
            );
            let given: Vec<f32> = spectrum.iter().map(|&value| value as f32).collect();
            let back = Case::new("DFT", 20).input(&[1, keep, 2], &given).int("onesided", 1).int("inverse", 1);
            let wide: Vec<f64> = reals.iter().map(|&value| f64::from(value)).collect();
            back.gives(0, &[1, n, 1], &wide);
            let back = Case::new("DFT", 20).symbolic(&["", "k"], &[1, keep, 2], &given);
            back.int("onesided", 1).int("inverse", 1).gives(0, &[1, n, 1], &wide);
        }
    }

    #[test]
    fn frames_are_windowed_and_transformed() {
        let case = Case::new("STFT", 17)
            .symbolic(&["b", "t"], &[1, 8, 1], &ramp(8, 1))
            .constant::<i64>(&[], &[2])
            .ramp(&[4], 2);
        case.gives(
            0,
            &[1, 3, 3, 2],
            &[
                -0.8125, 0.0, -0.375, 0.9375, 1.0625, 0.0, 1.625, 0.0, -0.9375, -0.5625, 0.5, 0.0, -0.75,
                0.0, 1.25, 0.0, -0.75, 0.0,
            ],
        );
    }

    #[test]
    fn bands_of_the_mel_scale() {
        let case = Case::new("MelWeightMatrix", 17)
            .constant::<i64>(&[], &[3])
            .constant::<i64>(&[], &[8])
            .input::<i64>(&[], &[8192])
            .constant::<f32>(&[], &[0.0])
            .input::<f32>(&[], &[4096.0]);
        let y = case.run().unwrap();
        assert_eq!(y[0].shape, [5, 3]);
        let wanted = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(elements(&y[0]), wanted);
    }
}
