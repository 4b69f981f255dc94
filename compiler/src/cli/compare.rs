//! Computed tensors against expected ones.

use crate::graph::{DType, Tensor};
use crate::interp;

/// How far a tensor is from what was expected.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Difference {
    /// Elements outside the tolerance.
    pub mismatches: usize,
    pub elements: usize,
    /// Largest distance of two finite elements.
    pub max_abs: f64,
    /// Largest distance of two finite elements by the magnitude of the (non-zero) expected one.
    pub max_rel: f64,
    /// Largest distance of two finite elements in units in the last place; `None` for types without a defined order
    /// of their bits.
    pub max_ulp: Option<u64>,
    /// The first element outside the tolerance: index, computed and expected value.
    pub first: Option<(Vec<usize>, f64, f64)>,
}

impl Difference {
    pub fn matches(&self) -> bool {
        self.mismatches == 0
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "max abs {:.3e}, rel {:.3e}", self.max_abs, self.max_rel)?;
        if let Some(ulp) = self.max_ulp {
            write!(f, ", {ulp} ULP")?;
        }
        if let Some((index, got, wanted)) = &self.first {
            let (wrong, all) = (self.mismatches, self.elements);
            write!(f, "; {wrong} of {all} elements differ, first {got} for {wanted} at {index:?}")?;
        }
        Ok(())
    }
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
    let mut result = Difference { elements: got.len(), ..Difference::default() };
    match parts(got).zip(parts(wanted)) {
        Some((a, b)) => compare_floats(&mut result, wanted, &a, &b, rtol, atol),
        None => compare_exactly(&mut result, got, wanted),
    }
    result.max_ulp = max_ulp(got, wanted);
    Ok(result)
}

/// Elements as f64, real and imaginary parts of complex ones after each other; `None` for what is not float.
fn parts(tensor: &Tensor) -> Option<Vec<f64>> {
    let component = match tensor.dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        dtype if dtype.is_float() => dtype,
        _ => return None,
    };
    let count = tensor.data.len() / component.size();
    let parts = Tensor::new(component, vec![count], tensor.data.clone());
    Some(interp::cast(&parts, DType::F64, true).values())
}

fn compare_floats(
    result: &mut Difference,
    wanted: &Tensor,
    got: &[f64],
    expected: &[f64],
    rtol: f64,
    atol: f64,
) {
    let per_element = (expected.len() / wanted.len().max(1)).max(1);
    for (at, (&a, &b)) in got.iter().zip(expected).enumerate() {
        let both_finite = a.is_finite() && b.is_finite();
        if both_finite {
            let distance = (a - b).abs();
            result.max_abs = result.max_abs.max(distance);
            if b != 0.0 {
                result.max_rel = result.max_rel.max(distance / b.abs());
            }
        }
        let close = if both_finite { (a - b).abs() <= atol + rtol * b.abs() } else { a == b };
        if !(close || a.is_nan() && b.is_nan()) {
            result.mismatches += 1;
            result.first.get_or_insert_with(|| (index_of(at / per_element, &wanted.shape), a, b));
        }
    }
}

fn compare_exactly(result: &mut Difference, got: &Tensor, wanted: &Tensor) {
    let size = wanted.dtype.size();
    let value = |tensor: &Tensor, at: usize| {
        let bytes = &tensor.data[at * size..(at + 1) * size];
        let mut wide = [0; 16];
        wide[..size].copy_from_slice(bytes);
        let unsigned = u128::from_le_bytes(wide);
        let unused = 128 - 8 * size as u32;
        let signed = tensor.dtype.is_signed_int();
        if signed { ((unsigned << unused) as i128 >> unused) as f64 } else { unsigned as f64 }
    };
    let pairs = got.data.chunks_exact(size).zip(wanted.data.chunks_exact(size));
    for (at, _) in pairs.enumerate().filter(|(_, (a, b))| a != b) {
        let (a, b) = (value(got, at), value(wanted, at));
        result.mismatches += 1;
        result.max_abs = result.max_abs.max((a - b).abs());
        if b != 0.0 {
            result.max_rel = result.max_rel.max((a - b).abs() / b.abs());
        }
        result.first.get_or_insert_with(|| (index_of(at, &wanted.shape), a, b));
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
    fn types_and_shapes_must_agree() {
        let error = compare(&f32s(&[1.0]), &Tensor::scalar(1.0f32), 0.0, 0.0).unwrap_err();
        assert_eq!(error, "f32[1] where f32[] is expected");
        assert!(compare(&Tensor::scalar(1i32), &Tensor::scalar(1i64), 0.0, 0.0).is_err());
    }
}
