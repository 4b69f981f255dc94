use super::*;
use onnxc_ir::graph::Tensor;
use onnxc_ir::interp;

/// Values of a type at the ends of its range, at the ends of narrower ones, and between whole numbers.
fn telling(dtype: DType) -> Tensor {
    if dtype.is_float() {
        let values = [0.0, 0.5, -1.0 / 3.0, 257.0, 65504.0, 16777217.0, -4294967297.0, 1e-30, 3e300];
        return interp::cast(&Tensor::from_slice(&[values.len()], &values), dtype, false);
    }
    let mut values: Vec<i64> = vec![i64::MIN, i64::MAX];
    for bits in 0..63 {
        values.extend([1 << bits, (1 << bits) - 1, -(1 << bits)]);
    }
    interp::cast(&Tensor::from_slice(&[values.len()], &values), dtype, false)
}

/// A pair of casts is left out only where no value changes on the way.
#[test]
fn lossless_casts_keep_every_value() {
    let numeric = |dtype: &DType| dtype.is_float() || dtype.is_int() || *dtype == DType::Bool;
    let mut lossless = 0;
    for from in DType::all().filter(numeric) {
        for to in DType::all().filter(numeric).filter(|&to| is_lossless(from, to)) {
            let values = telling(from);
            let back = interp::cast(&interp::cast(&values, to, false), from, false);
            assert!(back == values, "{from:?} through {to:?}: {values:?} became {back:?}");
            lossless += 1;
        }
    }
    assert!(lossless > 60, "only {lossless} pairs of types are said to keep values");
}

/// The types that models widen to and back are known to be safe.
#[test]
fn common_widenings_are_lossless() {
    use DType::*;
    for (from, to) in
        [(Bool, I64), (Bool, F32), (I32, I64), (U8, I16), (U32, I64), (F16, F32), (BF16, F32), (F32, F64)]
    {
        assert!(is_lossless(from, to), "{from:?} in {to:?}");
    }
}

/// A quotient becomes a product only where both round alike: powers of two whose reciprocal is a normal number.
#[test]
fn reciprocals_that_are_exact() {
    use DType::*;
    let largest = [(F16, 14), (BF16, 126), (F32, 126), (F64, 1022)];
    for dtype in DType::all() {
        let Some((_, largest)) = largest.into_iter().find(|(of, _)| *of == dtype) else {
            assert!(!has_exact_reciprocal(dtype, 2.0), "{dtype:?}");
            continue;
        };
        for exponent in [-largest, -1, 0, 1, largest] {
            assert!(has_exact_reciprocal(dtype, 2f64.powi(exponent)), "{dtype:?}: 2^{exponent}");
        }
        for divisor in [3.0, 0.0, f64::INFINITY, 2f64.powi(largest + 1), 2f64.powi(-largest - 1)] {
            assert!(!has_exact_reciprocal(dtype, divisor), "{dtype:?}: {divisor}");
        }
    }
}
