//! Computed tensors against expected ones.

use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;

/// How far a tensor is from what was expected. Distances are those of finite elements.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Difference {
    /// Elements outside the tolerance.
    pub mismatches: usize,
    pub elements: usize,
    /// Elements that are not equal; both zeros are, and all NaNs.
    pub unequal: usize,
    /// Integers that are off by one: a step of quantisation, where that is what they are.
    pub one_step: usize,
    /// Largest distance of two elements.
    pub max_abs: f64,
    /// Largest distance of two elements by the magnitude of the (non-zero) expected one.
    pub max_rel: f64,
    /// Largest distance of two elements in units in the last place; `None` for types without a defined order of
    /// their bits.
    pub max_ulp: Option<u64>,
    /// Euclidean norm of the difference by that of the expected elements; `None` where the latter is 0.
    pub norm_rel: Option<f64>,
    /// Cosine of the angle between computed and expected elements; `None` where one of them has the norm 0.
    pub cosine: Option<f64>,
    /// Largest magnitude of an expected element.
    pub max_expected: f64,
    /// Whether one of two elements is finite, or both are infinities or NaNs that are not the same.
    pub non_finite: bool,
    /// Whether the type is one that numbers are rounded to. Others, such as those of indices, have no noise.
    pub is_rounded: bool,
    /// The first element outside the tolerance: index, computed and expected value.
    pub first: Option<(Vec<usize>, f64, f64)>,
}

/// What a difference means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All elements are equal.
    Exact,
    /// All elements are within the tolerance.
    Close,
    /// Some are not, and no further off than rounding in the model's own types explains.
    Noise,
    Wrong,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Exact => "exact",
            Verdict::Close => "within tolerance",
            Verdict::Noise => "noise",
            Verdict::Wrong => "WRONG",
        })
    }
}

/// How many roundings noise may amount to. Errors of independent roundings add up as a random walk does: this is what some
/// 60 of them, one after the other, give.
const NOISE_ROUNDINGS: f64 = 8.0;

/// The most that noise may be, however coarse a type is.
const NOISE_LIMIT: f64 = 1.0 / 16.0;

impl Difference {
    pub fn matches(&self) -> bool {
        self.mismatches == 0
    }

    /// `rounding` is the relative error of one rounding in the coarsest type that the model computes in; none allows no
    /// noise. Noise is no more than [`NOISE_ROUNDINGS`] of these: each distance by the largest magnitude expected, and all of them by
    /// the norm of what is expected.
    pub fn verdict(&self, rounding: Option<f64>) -> Verdict {
        let limit = rounding.map_or(0.0, |rounding| (NOISE_ROUNDINGS * rounding).min(NOISE_LIMIT));
        let small = self.max_abs <= limit * self.max_expected && self.norm_rel.is_some_and(|by| by <= limit);
        match self {
            _ if self.unequal == 0 => Verdict::Exact,
            _ if self.mismatches == 0 => Verdict::Close,
            _ if small && self.is_rounded && !self.non_finite => Verdict::Noise,
            _ => Verdict::Wrong,
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "max abs {:.3e}, rel {:.3e}", self.max_abs, self.max_rel)?;
        if let Some(ulp) = self.max_ulp {
            write!(f, ", {ulp} ULP")?;
        }
        if let Some(norm) = self.norm_rel {
            write!(f, ", norm-relative {norm:.3e}")?;
        }
        if let Some(cosine) = self.cosine {
            write!(f, ", cosine {cosine:.7}")?;
        }
        if self.one_step > 0 {
            write!(f, "; {} of {} elements differ by one step", self.one_step, self.elements)?;
        }
        if let Some((index, got, wanted)) = &self.first {
            let (wrong, all) = (self.mismatches, self.elements);
            write!(
                f,
                "; {wrong} of {all} elements outside the tolerance, first {got} for {wanted} at {index:?}"
            )?;
        }
        Ok(())
    }
}

/// The relative error of one rounding to a type; for a quantised integer, half a step by the largest magnitude of a signed one.
/// `None` for types that numbers are not quantised to.
pub fn rounding(dtype: DType) -> Option<f64> {
    use DType::*;
    // Bits of the significand, the leading one included.
    let bits = match dtype {
        F64 | C128 => 53,
        F32 | C64 => 24,
        F16 => 11,
        BF16 => 8,
        F8E4M3FN | F8E4M3FNUZ | F6E2M3 => 4,
        F8E5M2 | F8E5M2FNUZ | F6E3M2 => 3,
        F4E2M1 => 2,
        F8E8M0 => 1,
        I16 | U16 | I8 | U8 | I4 | U4 | I2 | U2 => dtype.bits() as i32,
        I32 | U32 | I64 | U64 | Bool | Str => return None,
    };
    Some(0.5f64.powi(bits))
}

/// Relative tolerance of results of a type: 1e-3, or four units in the last place where that is more.
///
/// Expected values of f16 models come from runtimes that compute in f32 between operators (ONNX Runtime on a CPU).
/// Rounding every operator's result to f16, as the types of the model say, moves logits between 8 and 16 by a unit of
/// 2^-7 or less, and a softmax of them by as much, relatively: up to four units of its own.
pub fn default_rtol(dtype: DType) -> f64 {
    let epsilon = match dtype {
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::BF16 => half::bf16::EPSILON.to_f64(),
        _ => 0.0,
    };
    (4.0 * epsilon).max(1e-3)
}

/// Compares as NumPy's `assert_allclose` does: floats within `atol + rtol * |expected|`, NaN equal to NaN, infinities
/// equal to themselves only; every other type exactly. Type and shape must be the same; an error says how they differ.
pub fn compare(got: &Tensor, wanted: &Tensor, rtol: f64, atol: f64) -> Result<Difference, String> {
    if (got.dtype, &got.shape) != (wanted.dtype, &wanted.shape) {
        let text = |tensor: &Tensor| format!("{}{:?}", tensor.dtype, tensor.shape);
        return Err(format!("{} where {} is expected", text(got), text(wanted)));
    }
    let mut result = Difference {
        elements: got.len(),
        is_rounded: rounding(wanted.dtype).is_some(),
        ..Difference::default()
    };
    if wanted.dtype == DType::Str {
        // Equal or not: there is no distance.
        for (at, (a, b)) in got.texts().iter().zip(wanted.texts()).enumerate() {
            let unequal = f64::from(*a != b);
            result.add(unequal, 0.0, *a == b, &|_, _| false, &|| index_of(at, &wanted.shape));
        }
        return Ok(result);
    }
    let mut sums = Sums::default();
    match float_component(wanted.dtype) {
        Some(component) => {
            let per_element = wanted.dtype.size() / component.size();
            let close = |a: f64, b: f64| (a - b).abs() <= atol + rtol * b.abs();
            each_float(got, wanted, component, &mut |at, a, b| {
                sums.add(a, b);
                result.add(a, b, a == b || a.is_nan() && b.is_nan(), &close, &|| {
                    index_of(at / per_element, &wanted.shape)
                });
            });
        }
        None => each_integer(got, wanted, &mut |at, a, b| {
            result.one_step += usize::from(a.abs_diff(b) == 1);
            let (wide_a, wide_b) = (a as f64, b as f64);
            sums.add(wide_a, wide_b);
            result.add(wide_a, wide_b, a == b, &|_, _| false, &|| index_of(at, &wanted.shape));
        }),
    }
    (result.norm_rel, result.cosine) = (sums.norm_rel(), sums.cosine());
    result.max_ulp = max_ulp(got, wanted);
    Ok(result)
}

impl Difference {
    /// Takes a computed and an expected element in. `close` decides about finite ones that are not `equal`.
    fn add(
        &mut self,
        a: f64,
        b: f64,
        equal: bool,
        close: &dyn Fn(f64, f64) -> bool,
        index: &dyn Fn() -> Vec<usize>,
    ) {
        let finite = a.is_finite() && b.is_finite();
        if finite {
            let distance = (a - b).abs();
            self.max_abs = self.max_abs.max(distance);
            self.max_expected = self.max_expected.max(b.abs());
            if b != 0.0 {
                self.max_rel = self.max_rel.max(distance / b.abs());
            }
        }
        if equal {
            return;
        }
        self.unequal += 1;
        self.non_finite |= !finite;
        if !(finite && close(a, b)) {
            self.mismatches += 1;
            self.first.get_or_insert_with(|| (index(), a, b));
        }
    }
}

/// Sums of squares and products of pairs of finite elements, scaled by the largest magnitude so far so that they
/// do not overflow.
#[derive(Default)]
struct Sums {
    scale: f64,
    got: f64,
    expected: f64,
    both: f64,
    distance: f64,
}

impl Sums {
    fn add(&mut self, a: f64, b: f64) {
        if !(a.is_finite() && b.is_finite()) {
            return;
        }
        let largest = a.abs().max(b.abs());
        if largest > self.scale {
            let shrink = (self.scale / largest).powi(2);
            for sum in [&mut self.got, &mut self.expected, &mut self.both, &mut self.distance] {
                *sum *= shrink;
            }
            self.scale = largest;
        }
        if self.scale > 0.0 {
            let (a, b) = (a / self.scale, b / self.scale);
            self.got += a * a;
            self.expected += b * b;
            self.both += a * b;
            self.distance += (a - b) * (a - b);
        }
    }

    fn norm_rel(&self) -> Option<f64> {
        (self.expected > 0.0).then(|| (self.distance / self.expected).sqrt())
    }

    fn cosine(&self) -> Option<f64> {
        let norms = self.got.sqrt() * self.expected.sqrt();
        (norms > 0.0).then(|| (self.both / norms).clamp(-1.0, 1.0))
    }
}

/// The float type that elements of a type consist of: of a complex one its two parts.
fn float_component(dtype: DType) -> Option<DType> {
    match dtype {
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        dtype => dtype.is_float().then_some(dtype),
    }
}

/// Visits the floats of two tensors side by side, with their positions; real and imaginary parts of complex elements after each other. Only
/// a small part is converted at once, for any size of the tensors.
fn each_float(got: &Tensor, wanted: &Tensor, component: DType, visit: &mut dyn FnMut(usize, f64, f64)) {
    const CHUNK: usize = 4096;
    let count = wanted.data.len() / component.size();
    for start in (0..count).step_by(CHUNK) {
        let length = CHUNK.min(count - start);
        let wide = |tensor: &Tensor| {
            let data = tensor.data.slice(start * component.size()..(start + length) * component.size());
            let part = Tensor::new(component, vec![length], data);
            interp::cast(&part, DType::F64, true).values::<f64>()
        };
        for (at, (a, b)) in wide(got).into_iter().zip(wide(wanted)).enumerate() {
            visit(start + at, a, b);
        }
    }
}

/// Visits the integers of two tensors side by side, with their positions.
fn each_integer(got: &Tensor, wanted: &Tensor, visit: &mut dyn FnMut(usize, i128, i128)) {
    let size = wanted.dtype.size();
    let unused = 128 - 8 * size as u32;
    let value = |bytes: &[u8]| {
        let mut wide = [0; 16];
        wide[..size].copy_from_slice(bytes);
        let unsigned = u128::from_le_bytes(wide);
        match wanted.dtype.is_signed_int() {
            true => (unsigned << unused) as i128 >> unused,
            false => unsigned as i128,
        }
    };
    let pairs = got.data.chunks_exact(size).zip(wanted.data.chunks_exact(size));
    for (at, (a, b)) in pairs.enumerate() {
        visit(at, value(a), value(b));
    }
}

fn index_of(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (slot, &size) in index.iter_mut().zip(shape).rev() {
        (*slot, at) = (at % size, at / size);
    }
    index
}

fn max_ulp(got: &Tensor, wanted: &Tensor) -> Option<u64> {
    // (bits of the type, bits of the mantissa)
    let (bits, mantissa) = match wanted.dtype {
        DType::F32 => (32u32, 23u32),
        DType::F64 => (64, 52),
        DType::F16 => (16, 10),
        DType::BF16 => (16, 7),
        _ => return None,
    };
    let size = bits as usize / 8;
    // Position on the line of all finite values; both zeros are 0.
    let position = |bytes: &[u8]| -> Option<i128> {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        let magnitude = raw & (u64::MAX >> (65 - bits));
        let exponent_mask = (1u64 << (bits - 1 - mantissa)) - 1;
        let finite = magnitude >> mantissa != exponent_mask;
        let negative = raw >> (bits - 1) != 0;
        finite.then_some(if negative { -i128::from(magnitude) } else { i128::from(magnitude) })
    };
    let pairs = got.data.chunks_exact(size).zip(wanted.data.chunks_exact(size));
    let distance = |(a, b)| Some((position(a)? - position(b)?).unsigned_abs() as u64);
    Some(pairs.filter_map(distance).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Tensor {
        Tensor::from_slice(&[values.len()], values)
    }

    #[test]
    fn tolerances_are_those_of_numpy() {
        let wanted = f32s(&[100.0, 0.0, f32::NAN, f32::INFINITY]);
        let close = compare(&f32s(&[100.05, 5e-5, f32::NAN, f32::INFINITY]), &wanted, 1e-3, 1e-4).unwrap();
        assert!(close.matches(), "{close}");
        for (at, value) in [(0, 100.2), (1, 2e-4), (2, 1.0), (3, f32::NEG_INFINITY), (3, 3e38), (0, f32::NAN)]
        {
            let mut values = vec![100.0, 0.0, f32::NAN, f32::INFINITY];
            values[at] = value;
            let far = compare(&f32s(&values), &wanted, 1e-3, 1e-4).unwrap();
            assert_eq!(far.mismatches, 1, "{at} {value}");
            assert_eq!(far.first.unwrap().0, [at]);
        }
    }

    #[test]
    fn half_precision_has_four_units() {
        assert_eq!(default_rtol(DType::F32), 1e-3);
        assert_eq!(default_rtol(DType::I64), 1e-3);
        assert_eq!(default_rtol(DType::F16), 0.00390625);
        assert_eq!(default_rtol(DType::BF16), 0.03125);
    }

    #[test]
    fn integers_are_exact() {
        let wanted = Tensor::from_slice(&[2, 2], &[1i64, 2, -3, 1 << 40]);
        let got = Tensor::from_slice(&[2, 2], &[1i64, 2, -4, 1 << 40]);
        let difference = compare(&got, &wanted, 1.0, 10.0).unwrap();
        assert_eq!((difference.mismatches, difference.max_abs), (1, 1.0));
        assert_eq!(difference.first, Some((vec![1, 0], -4.0, -3.0)));
    }

    #[test]
    fn ulps_cross_zero_and_skip_what_is_not_finite() {
        let tiny = f32::from_bits(1);
        let difference = compare(&f32s(&[tiny, 1.0, f32::NAN]), &f32s(&[-tiny, 1.0, 0.0]), 0.0, 1.0).unwrap();
        assert_eq!(difference.max_ulp, Some(2));
        assert_eq!(difference.mismatches, 1);
        let half = |value| Tensor::scalar(half::f16::from_f32(value));
        assert_eq!(compare(&half(1.0), &half(1.0 + 1.0 / 1024.0), 0.0, 1.0).unwrap().max_ulp, Some(1));
    }

    #[test]
    fn verdicts_tell_noise_from_error() {
        let half = Some(2f64.powi(-11));
        let wanted: Vec<f32> = (0..100).map(|at| at as f32 - 50.0).collect();
        let with = |at: usize, by: f32| {
            let mut values = wanted.clone();
            values[at] += by;
            compare(&f32s(&values), &f32s(&wanted), 1e-3, 1e-4).unwrap()
        };
        assert_eq!(with(0, 0.0).verdict(None), Verdict::Exact);
        assert_eq!(with(0, 0.01).verdict(None), Verdict::Close);
        // Far outside the tolerance of an element near zero; nothing by the largest element.
        assert_eq!(with(51, 0.05).verdict(half), Verdict::Noise);
        assert_eq!(with(51, 0.05).verdict(Some(2f64.powi(-24))), Verdict::Wrong);
        assert_eq!(with(51, 0.05).verdict(None), Verdict::Wrong);
        assert_eq!(with(51, 2.0).verdict(half), Verdict::Wrong, "one element that is off by much");
        assert_eq!(with(51, f32::NAN).verdict(half), Verdict::Wrong);
        assert_eq!(with(51, f32::INFINITY).verdict(half), Verdict::Wrong);
        // Every element is off by a little: each is small, all together are not.
        let all: Vec<f32> = wanted.iter().map(|value| value + 0.19).collect();
        let difference = compare(&f32s(&all), &f32s(&wanted), 1e-3, 1e-4).unwrap();
        assert_eq!(difference.verdict(half), Verdict::Wrong, "{difference}");
        let nothing = compare(&f32s(&[1e-3]), &f32s(&[0.0]), 1e-3, 1e-4).unwrap();
        assert_eq!((nothing.verdict(half), nothing.norm_rel, nothing.cosine), (Verdict::Wrong, None, None));
    }

    #[test]
    fn norm_and_cosine_are_those_of_vectors() {
        let difference = compare(&f32s(&[3.0, 4.5]), &f32s(&[3.0, 4.0]), 0.0, 0.0).unwrap();
        assert!((difference.norm_rel.unwrap() - 0.1).abs() < 1e-12, "{difference}");
        let cosine = (9.0 + 18.0) / (5.0 * (9.0f64 + 20.25).sqrt());
        assert!((difference.cosine.unwrap() - cosine).abs() < 1e-12, "{difference}");
        let large = |values: &[f64]| Tensor::from_slice(&[values.len()], values);
        let difference = compare(&large(&[1e-3, 1e300]), &large(&[1e-3, 2e300]), 0.0, 0.0).unwrap();
        assert!((difference.norm_rel.unwrap() - 0.5).abs() < 1e-12, "{difference}");
        let opposite = compare(&f32s(&[-1.0]), &f32s(&[1.0]), 0.0, 0.0).unwrap();
        assert_eq!(opposite.cosine, Some(-1.0));
    }

    #[test]
    fn steps_of_quantised_elements_are_counted() {
        let wanted: Vec<u8> = (0..=255).collect();
        let off = |count: usize, by: u8| {
            let mut values = wanted.clone();
            values[..count].iter_mut().for_each(|value| *value += by);
            compare(&Tensor::from_slice(&[256], &values), &Tensor::from_slice(&[256], &wanted), 0.0, 0.0)
                .unwrap()
        };
        let steps = off(3, 1);
        assert!(steps.to_string().contains("; 3 of 256 elements differ by one step"), "{steps}");
        assert_eq!(steps.verdict(rounding(DType::U8)), Verdict::Noise);
        assert_eq!(steps.verdict(None), Verdict::Wrong);
        assert_eq!(off(3, 40).verdict(rounding(DType::U8)), Verdict::Wrong);
        assert_eq!(off(3, 40).one_step, 0);
        let indices = |last| Tensor::from_slice(&[2], &[5000i64, last]);
        let index = compare(&indices(4999), &indices(5000), 0.0, 0.0).unwrap();
        assert_eq!(index.verdict(rounding(DType::U8)), Verdict::Wrong);
    }

    #[test]
    fn types_and_shapes_must_agree() {
        let error = compare(&f32s(&[1.0]), &Tensor::scalar(1.0f32), 0.0, 0.0).unwrap_err();
        assert_eq!(error, "f32[1] where f32[] is expected");
        assert!(compare(&Tensor::scalar(1i32), &Tensor::scalar(1i64), 0.0, 0.0).is_err());
    }
}
