use std::sync::Arc;

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::build::Builder;
use crate::error::Kind;
use crate::graph::axes::Source;
use crate::graph::tensor::Element;
use crate::graph::{MapFn, RhsLayout, Sym, Symbol, Value};
use crate::interp::{run, run_with};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

fn t<T: Element>(shape: &[usize], values: &[T]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn one(op: Op, inputs: &[&Tensor]) -> Tensor {
    eval(&op, inputs).unwrap().remove(0)
}

fn dims(values: &[i64]) -> Vec<Dim> {
    values.iter().map(|&value| Dim::from(value)).collect()
}

fn iota_f32(shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|value| value as f32).collect();
    t(shape, &values)
}

fn unary<T: Element + PartialEq + std::fmt::Debug>(function: UnaryFn, x: &[T], wanted: &[T]) {
    let result = one(Op::Map(MapFn::Unary(function)), &[&t(&[x.len()], x)]);
    assert_eq!(result.values::<T>(), wanted, "{function}");
}

fn binary<T: Element + PartialEq + std::fmt::Debug>(function: BinaryFn, a: &[T], b: &[T], wanted: &[T]) {
    let result = one(Op::Map(MapFn::Binary(function)), &[&t(&[a.len()], a), &t(&[b.len()], b)]);
    assert_eq!(result.values::<T>(), wanted, "{function}");
}

#[test]
fn unary_functions_of_floats() {
    use UnaryFn::*;
    unary(Neg, &[1.0f32, -0.0], &[-1.0, 0.0]);
    unary(Abs, &[-1.5f64, 2.0], &[1.5, 2.0]);
    unary(Sign, &[-3.0f32, 0.0, 9.0], &[-1.0, 0.0, 1.0]);
    unary(Ceil, &[1.2f32, -1.2], &[2.0, -1.0]);
    unary(Floor, &[1.2f32, -1.2], &[1.0, -2.0]);
    unary(Round, &[0.5f32, 1.5, 2.5, -0.5], &[0.0, 2.0, 2.0, -0.0]);
    unary(Trunc, &[1.9f32, -1.9], &[1.0, -1.0]);
    unary(Sqrt, &[9.0f32, 2.0], &[3.0, std::f32::consts::SQRT_2]);
    unary(Recip, &[4.0f32, 0.0], &[0.25, f32::INFINITY]);
    unary(Exp, &[0.0f32, 1.0, f32::NEG_INFINITY], &[1.0, std::f32::consts::E, 0.0]);
    unary(Log, &[1.0f32, 0.0], &[0.0, f32::NEG_INFINITY]);
    unary(Log1p, &[1e-20f64], &[1e-20]);
    unary(Expm1, &[1e-20f64], &[1e-20]);
    unary(Sin, &[std::f32::consts::FRAC_PI_2], &[1.0]);
    unary(Cos, &[0.0f32], &[1.0]);
    unary(Tan, &[0.0f32], &[0.0]);
    unary(Asin, &[1.0f32], &[std::f32::consts::FRAC_PI_2]);
    unary(Acos, &[1.0f32], &[0.0]);
    unary(Atan, &[1.0f32], &[std::f32::consts::FRAC_PI_4]);
    unary(Sinh, &[1.0f32], &[1.175_201_2]);
    unary(Cosh, &[1.0f32], &[1.543_080_7]);
    unary(Tanh, &[0.5f32, 100.0], &[0.462_117_16, 1.0]);
    unary(Asinh, &[1.0f32], &[0.881_373_6]);
    unary(Acosh, &[2.0f32], &[1.316_958]);
    unary(Atanh, &[0.5f32], &[0.549_306_15]);
    unary(Erf, &[0.5f32, -0.5, f32::INFINITY], &[0.520_499_9, -0.520_499_9, 1.0]);
    unary(Sigmoid, &[0.0f32, 1.0, -1000.0, 1000.0], &[0.5, 0.731_058_6, 0.0, 1.0]);
    unary(Sqrt, &[f16::from_f32(2.0)], &[f16::from_f32(std::f32::consts::SQRT_2)]);
    unary(Exp, &[bf16::from_f32(1.0)], &[bf16::from_f32(std::f32::consts::E)]);
    assert!(
        one(Op::Map(MapFn::Unary(Sign)), &[&Tensor::scalar(f32::NAN)]).values::<f32>()[0].is_nan(),
        "the sign of NaN is NaN"
    );
}

#[test]
fn unary_functions_of_integers_and_bools() {
    unary(UnaryFn::Neg, &[5i8, i8::MIN], &[-5, i8::MIN]);
    unary(UnaryFn::Abs, &[-5i32, i32::MIN], &[5, i32::MIN]);
    unary(UnaryFn::Sign, &[-5i64, 0, 5], &[-1, 0, 1]);
    unary(UnaryFn::Sign, &[0u8, 200], &[0, 1]);
    unary(UnaryFn::BitNot, &[0u8, 0xf0], &[0xff, 0x0f]);
    unary(UnaryFn::Not, &[true, false], &[false, true]);
    let classes = |function| {
        let x = t(&[4], &[1.0f32, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        one(Op::Map(MapFn::Unary(function)), &[&x]).values::<bool>()
    };
    assert_eq!(classes(UnaryFn::IsNan), [false, true, false, false]);
    assert_eq!(classes(UnaryFn::IsPosInf), [false, false, true, false]);
    assert_eq!(classes(UnaryFn::IsNegInf), [false, false, false, true]);
    for (function, x) in [(UnaryFn::Exp, Tensor::scalar(1i32)), (UnaryFn::Not, Tensor::scalar(1.0f32))] {
        let error = eval(&Op::Map(MapFn::Unary(function)), &[&x]).unwrap_err();
        assert_eq!(error.kind, Kind::Unsupported, "{error}");
    }
}

#[test]
fn binary_functions() {
    use BinaryFn::*;
    binary(Add, &[i8::MAX, 1], &[1, 2], &[i8::MIN, 3]);
    binary(Sub, &[0u8], &[1], &[255]);
    binary(Mul, &[1i64 << 62], &[4], &[0]);
    binary(Div, &[7i32, -7, 1, i32::MIN], &[2, 2, 0, -1], &[3, -3, 0, i32::MIN]);
    binary(Div, &[i64::MIN], &[-1], &[i64::MIN]);
    binary(Div, &[1.0f32, -1.0], &[0.0, 0.0], &[f32::INFINITY, f32::NEG_INFINITY]);
    binary(Mod, &[-7i32, 7, -7, 5], &[3, -3, -3, 0], &[2, -2, -1, 0]);
    binary(Mod, &[-7.5f32, 7.5], &[2.0, -2.0], &[0.5, -0.5]);
    binary(Rem, &[-7i32, 7, 5], &[3, -3, 0], &[-1, 1, 0]);
    binary(Rem, &[-7.5f32], &[2.0], &[-1.5]);
    binary(Mod, &[7u64, u64::MAX], &[4, 10], &[3, 5]);
    binary(Pow, &[2i32, 3, -1, 2, 0], &[10, 40, -3, -1, 0], &[1024, 3i32.wrapping_pow(40), -1, 0, 1]);
    binary(Pow, &[2.0f32, 9.0, -8.0], &[0.5, 0.5, 3.0], &[std::f32::consts::SQRT_2, 3.0, -512.0]);
    binary(Max, &[1.0f32, 3.0], &[2.0, -1.0], &[2.0, 3.0]);
    binary(Min, &[1u8, 3], &[2, 0], &[1, 0]);
    binary(And, &[true, true], &[true, false], &[true, false]);
    binary(Or, &[false, true], &[false, false], &[false, true]);
    binary(Xor, &[true, true], &[true, false], &[false, true]);
    binary(BitAnd, &[0b1100u16], &[0b1010], &[0b1000]);
    binary(BitOr, &[0b1100u16], &[0b1010], &[0b1110]);
    binary(BitXor, &[0b1100u16], &[0b1010], &[0b0110]);
    binary(Shl, &[1u8, 1, 0x81], &[7, 8, 1], &[0x80, 0, 2]);
    binary(Shr, &[0x80u8, 0x80], &[7, 9], &[1, 0]);
    binary(Shr, &[-8i32, -8, -8], &[1, 32, -1], &[-4, 0, 0]);
    binary(Atan2, &[1.0f32], &[-1.0], &[3.0 * std::f32::consts::FRAC_PI_4]);
    for function in [Max, Min] {
        let (nan, x) = (Tensor::scalar(f32::NAN), Tensor::scalar(1.0f32));
        for inputs in [[&nan, &x], [&x, &nan]] {
            let result = one(Op::Map(MapFn::Binary(function)), &inputs);
            assert!(result.values::<f32>()[0].is_nan(), "{function} keeps NaN");
        }
    }
}

#[test]
fn sub_byte_integers_wrap_in_their_width() {
    let nibbles =
        |dtype, values: &[u8]| Tensor::new(dtype, vec![values.len()], Bytes::copy_from_slice(values));
    let sum = one(
        Op::Map(MapFn::Binary(BinaryFn::Add)),
        &[&nibbles(DType::I4, &[7, 0xff]), &nibbles(DType::I4, &[1, 0xff])],
    );
    assert_eq!(&sum.data[..], &[0xf8, 0xfe], "7 + 1 = -8, -1 + -1 = -2");
    let sum =
        one(Op::Map(MapFn::Binary(BinaryFn::Add)), &[&nibbles(DType::U4, &[15]), &nibbles(DType::U4, &[2])]);
    assert_eq!(&sum.data[..], &[1]);
}

#[test]
fn map_broadcasts_compares_and_selects() {
    let (a, b) = (t(&[2, 1], &[1.0f32, 2.0]), t(&[3], &[1.0f32, 2.0, f32::NAN]));
    let compare = |function| one(Op::Map(MapFn::Compare(function)), &[&a, &b]);
    assert_eq!(compare(CompareFn::Eq).shape, [2, 3]);
    assert_eq!(compare(CompareFn::Eq).values::<bool>(), [true, false, false, false, true, false]);
    assert_eq!(compare(CompareFn::Ne).values::<bool>(), [false, true, true, true, false, true]);
    assert_eq!(compare(CompareFn::Lt).values::<bool>(), [false, true, false, false, false, false]);
    assert_eq!(compare(CompareFn::Ge).values::<bool>(), [true, false, false, true, true, false]);
    let picked = one(
        Op::Map(MapFn::Select),
        &[&t(&[2, 1], &[true, false]), &t(&[2], &[1i16, 2]), &Tensor::scalar(9i16)],
    );
    assert_eq!((picked.shape.as_slice(), picked.values::<i16>()), (&[2, 2][..], vec![1, 2, 9, 9]));
    let bits = one(Op::Map(MapFn::Bitcast { to: DType::U32 }), &[&Tensor::scalar(1.0f32)]);
    assert_eq!(bits.values::<u32>(), [0x3f80_0000]);
    let error = eval(&Op::Map(MapFn::Binary(BinaryFn::Add)), &[&t(&[2], &[1i64, 2]), &b]);
    assert!(error.is_err());
}

#[test]
fn erf_is_accurate_to_the_last_place() {
    let table = [
        (1e-10, 1.1283791670955126e-10),
        (0.1, 0.1124629160182849),
        (0.5, 0.5204998778130465),
        (0.8437, 0.7671979750524579),
        (0.9, 0.7969082124228322),
        (1.2, 0.9103139782296353),
        (1.3, 0.9340079449406524),
        (2.0, 0.9953222650189527),
        (2.8, 0.9999249868053346),
        (3.0, 0.9999779095030014),
        (4.5, 0.9999999998033839),
        (5.9, 0.9999999999999999),
    ];
    for (x, wanted) in table {
        for (x, wanted) in [(x, wanted), (-x, -wanted)] {
            let error = (erf(x) - wanted).abs() / f64::abs(wanted);
            assert!(error <= f64::EPSILON, "erf({x}) = {}, not {wanted}", erf(x));
        }
    }
    assert!(erf(f64::NAN).is_nan());
}

#[test]
fn small_floats_follow_the_onnx_tables() {
    let x = t(&[9], &[0.0f32, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, 1.0, -448.0, 464.0]);
    let codes = |to, saturate| cast(&x, to, saturate).data.to_vec();
    // Computed with ml_dtypes and onnx.numpy_helper.saturate_cast.
    assert_eq!(codes(DType::F8E4M3FN, true), [0, 0x80, 0x7f, 0x7e, 0xfe, 0x7e, 0x38, 0xfe, 0x7e]);
    assert_eq!(codes(DType::F8E4M3FN, false), [0, 0x80, 0x7f, 0x7f, 0xff, 0x7f, 0x38, 0xfe, 0x7e]);
    assert_eq!(codes(DType::F8E4M3FNUZ, true), [0, 0, 0x80, 0x7f, 0xff, 0x7f, 0x40, 0xff, 0x7f]);
    assert_eq!(codes(DType::F8E4M3FNUZ, false), [0, 0, 0x80, 0x80, 0x80, 0x80, 0x40, 0x80, 0x80]);
    assert_eq!(codes(DType::F8E5M2, true), [0, 0x80, 0x7e, 0x7b, 0xfb, 0x7b, 0x3c, 0xdf, 0x5f]);
    assert_eq!(codes(DType::F8E5M2, false), [0, 0x80, 0x7e, 0x7c, 0xfc, 0x7c, 0x3c, 0xdf, 0x5f]);
    assert_eq!(codes(DType::F8E5M2FNUZ, true), [0, 0, 0x80, 0x7f, 0xff, 0x7f, 0x40, 0xe3, 0x63]);
    assert_eq!(codes(DType::F8E5M2FNUZ, false), [0, 0, 0x80, 0x80, 0x80, 0x80, 0x40, 0xe3, 0x63]);
    let x = t(&[7], &[6.9f32, 8.0, f32::NEG_INFINITY, 0.25, 0.75, -0.1, 5.0]);
    assert_eq!(&cast(&x, DType::F4E2M1, true).data[..], &[7, 7, 15, 0, 2, 8, 6]);
    let x = t(&[9], &[f32::NAN, -f32::NAN, f32::INFINITY, -1e9, 0.1, -0.1, 7.4, 29.0, 0.03]);
    assert_eq!(&cast(&x, DType::F6E2M3, false).data[..], &[32, 0, 31, 63, 1, 33, 31, 31, 0]);
    assert_eq!(&cast(&x, DType::F6E3M2, false).data[..], &[32, 0, 31, 63, 2, 34, 23, 31, 0]);
    let x = t(&[8], &[0.0f32, 1.0, 1.1, 2.0, 3.0, f32::NAN, 3.4e38, 1e-45]);
    assert_eq!(&cast(&x, DType::F8E8M0, true).data[..], &[0, 127, 128, 128, 129, 255, 254, 0]);
    assert_eq!(cast(&x, DType::F8E8M0, false).data[6], 255);
    let inf = Tensor::scalar(f32::INFINITY);
    assert_eq!(
        (cast(&inf, DType::F8E8M0, true).data[0], cast(&inf, DType::F8E8M0, false).data[0]),
        (254, 255)
    );
}

#[test]
fn every_code_of_a_small_float_survives_a_round_trip() {
    let types = [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F8E8M0];
    for dtype in types {
        let codes: Vec<u8> = (0..=255).collect();
        let x = Tensor::new(dtype, vec![256], Bytes::from(codes));
        for wide in [DType::F32, DType::F64] {
            let values = cast(&x, wide, false);
            let back = cast(&values, dtype, false);
            for (code, value) in values.to_f64s().unwrap().into_iter().enumerate() {
                if value.is_nan() {
                    assert!(float::decode(dtype, back.data[code]).is_nan(), "{dtype} {code:#x}");
                } else {
                    assert_eq!(usize::from(back.data[code]), code, "{dtype} {value}");
                }
            }
        }
    }
    let x = Tensor::new(DType::F4E2M1, vec![16], (0..16).collect());
    let values = cast(&x, DType::F32, true);
    assert_eq!(values.values::<f32>()[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    assert_eq!(cast(&values, DType::F4E2M1, true).data, x.data);
    for (dtype, some) in [
        (DType::F6E2M3, [0.0, 0.125, 0.875, 1.0, 1.875, 2.0, 3.75, 4.0, 7.5]),
        (DType::F6E3M2, [0.0, 0.0625, 0.4375, 0.5, 1.75, 2.0, 7.0, 8.0, 28.0]),
    ] {
        let x = Tensor::new(dtype, vec![64], (0..64).collect());
        let values = cast(&x, DType::F32, true);
        assert_eq!([0, 1, 7, 8, 15, 16, 23, 24, 31].map(|at: usize| values.values::<f32>()[at]), some);
        assert_eq!(cast(&values, dtype, true).data, x.data);
    }
}

#[test]
fn casts_between_kinds() {
    let x = t(&[5], &[3.9f32, -3.9, 0.0, 300.0, f32::NAN]);
    assert_eq!(cast(&x, DType::I32, true).values::<i32>(), [3, -3, 0, 300, 0]);
    assert_eq!(cast(&x, DType::U8, true).values::<u8>(), [3, 253, 0, 44, 0]);
    assert_eq!(cast(&x, DType::Bool, true).values::<bool>(), [true, true, false, true, true]);
    assert_eq!(cast(&t(&[2], &[200i16, -1]), DType::I8, true).values::<i8>(), [-56, -1]);
    assert_eq!(cast(&t(&[2], &[9i32, -9]), DType::I4, true).data[..], [0xf9, 7]);
    assert_eq!(cast(&t(&[2], &[u64::MAX, 1]), DType::F32, true).values::<f32>(), [1.8446744e19, 1.0]);
    assert_eq!(cast(&t(&[1], &[1e300f64]), DType::F32, true).values::<f32>(), [f32::INFINITY]);
    assert_eq!(cast(&t(&[1], &[70000i64]), DType::F16, true).values::<f16>(), [f16::INFINITY]);
    assert_eq!(cast(&t(&[2], &[true, false]), DType::F64, true).values::<f64>(), [1.0, 0.0]);
    let complex = cast(&Tensor::scalar(1.5f32), DType::C128, true);
    assert_eq!(cast(&complex, DType::F64, true).values::<f64>(), [1.5]);
    let op = Op::Map(MapFn::Cast { to: DType::Str, saturate: true });
    assert_eq!(eval(&op, &[&x]).unwrap_err().kind, Kind::Unsupported);
}

proptest! {
    #[test]
    fn half_casts_agree_with_the_half_crate(bits in any::<u32>(), wide in any::<u64>()) {
        let (x, y) = (f32::from_bits(bits), f64::from_bits(wide));
        let same16 = |a: f16, b: f16| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let same_b16 = |a: bf16, b: bf16| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        prop_assert!(same16(cast(&Tensor::scalar(x), DType::F16, true).values::<f16>()[0], f16::from_f32(x)));
        prop_assert!(same16(cast(&Tensor::scalar(y), DType::F16, true).values::<f16>()[0], f16::from_f64(y)));
        let narrow = cast(&Tensor::scalar(x), DType::BF16, true).values::<bf16>()[0];
        prop_assert!(same_b16(narrow, bf16::from_f32(x)));
        let half = f16::from_bits(bits as u16);
        let back = cast(&cast(&Tensor::scalar(half), DType::F32, true), DType::F16, true).values::<f16>()[0];
        prop_assert!(same16(back, half));
    }

    #[test]
    fn small_float_rounding_is_to_the_nearest_even_code(value in -500.0f32..500.0) {
        for dtype in [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ,
            DType::F6E2M3, DType::F6E3M2, DType::F4E2M1] {
            let codes = 1u16 << dtype.bits();
            let chosen = float::encode(dtype, value, true);
            let distance = |code: u8| (f64::from(float::decode(dtype, code)) - f64::from(value)).abs();
            for code in (0..codes).map(|code| code as u8) {
                if float::decode(dtype, code).is_finite() && (float::decode(dtype, code) < 0.0) == (value < 0.0) {
                    prop_assert!(distance(chosen) < distance(code)
                        || (distance(chosen) == distance(code) && (chosen == code || chosen.is_multiple_of(2))));
                }
            }
        }
    }
}

#[test]
fn reductions() {
    let x = iota_f32(&[2, 3, 2]);
    let reduce = |op, x: &Tensor, axes: &[usize]| one(Op::Reduce { op, axes: axes.to_vec() }, &[x]);
    let sum = reduce(ReduceFn::Sum, &x, &[0, 2]);
    assert_eq!((sum.shape.as_slice(), sum.values::<f32>()), (&[1, 3, 1][..], vec![14.0, 22.0, 30.0]));
    assert_eq!(reduce(ReduceFn::Max, &x, &[1]).values::<f32>(), [4.0, 5.0, 10.0, 11.0]);
    assert_eq!(reduce(ReduceFn::Min, &x, &[1, 2]).values::<f32>(), [0.0, 6.0]);
    assert_eq!(reduce(ReduceFn::Prod, &t(&[3], &[2i8, 100, 3]), &[0]).values::<i8>(), [88]);
    assert_eq!(reduce(ReduceFn::And, &t(&[2], &[true, false]), &[0]).values::<bool>(), [false]);
    assert_eq!(reduce(ReduceFn::Or, &t(&[2], &[true, false]), &[0]).values::<bool>(), [true]);
    let empty = t::<i16>(&[0, 2], &[]);
    assert_eq!(reduce(ReduceFn::Max, &empty, &[0]).values::<i16>(), [i16::MIN; 2]);
    assert_eq!(reduce(ReduceFn::Min, &empty, &[0]).values::<i16>(), [i16::MAX; 2]);
    assert_eq!(reduce(ReduceFn::Max, &t::<f32>(&[0], &[]), &[0]).values::<f32>(), [f32::NEG_INFINITY]);
    assert!(reduce(ReduceFn::Max, &t(&[2], &[f32::NAN, 1.0]), &[0]).values::<f32>()[0].is_nan());
    // f64 accumulation: 1e8 + 1 - 1e8 is 1, which f32 sums lose.
    assert_eq!(reduce(ReduceFn::Sum, &t(&[3], &[1e8f32, 1.0, -1e8]), &[0]).values::<f32>(), [1.0]);
}

#[test]
fn extreme_indices() {
    let x = t(&[2, 3], &[1.0f32, 5.0, 5.0, -1.0, -1.0, 0.0]);
    let arg = |max, axis, last| one(Op::ArgReduce { max, axis, last }, &[&x]).values::<i64>();
    assert_eq!(arg(true, 1, false), [1, 2]);
    assert_eq!(arg(true, 1, true), [2, 2]);
    assert_eq!(arg(false, 1, true), [0, 1]);
    assert_eq!(arg(false, 0, false), [1, 1, 1]);
    let nan = t(&[3], &[1.0f32, f32::NAN, 9.0]);
    assert_eq!(one(Op::ArgReduce { max: true, axis: 0, last: false }, &[&nan]).values::<i64>(), [1]);
    let op = Op::ArgReduce { max: true, axis: 0, last: false };
    assert_eq!(one(op, &[&t::<f32>(&[0], &[])]).values::<i64>(), [0]);
}

#[test]
fn sorts_are_stable_and_cut() {
    let sort = |x: &Tensor, axis, descending, take: i64| {
        let results = eval(&Op::Sort { axis, descending, take: Dim::from(take) }, &[x]).unwrap();
        (results[0].clone(), results[1].values::<i64>())
    };
    let x = t(&[2, 3], &[3u64, u64::MAX, 3, 7, 1, 7]);
    let (keys, places) = sort(&x, 1, true, 2);
    assert_eq!((keys.values::<u64>(), places), (vec![u64::MAX, 3, 7, 7], vec![1, 0, 0, 2]));
    let (keys, places) = sort(&x, 0, false, 1);
    assert_eq!((keys.values::<u64>(), places), (vec![3, 1, 3], vec![0, 1, 0]));
    let odd = t(&[5], &[f32::NAN, -0.0, f32::INFINITY, 0.0, f32::NAN]);
    assert_eq!(sort(&odd, 0, false, 5).1, [1, 3, 2, 0, 4]);
    assert_eq!(sort(&odd, 0, true, 5).1, [0, 4, 2, 1, 3]);
    assert_eq!(sort(&t(&[2], &[true, false]), 0, false, 2).1, [1, 0]);
    assert!(sort(&t::<i8>(&[0], &[]), 0, false, 0).1.is_empty());
    let op = Op::Sort { axis: 0, descending: false, take: Dim::from(6i64) };
    assert_eq!(eval(&op, &[&odd]).unwrap_err().kind, Kind::Malformed);
}

#[test]
fn boxes_give_way_to_better_ones() {
    // Three that overlap by a third, one apart, one without extent.
    let x_lo = t(&[1, 5], &[0f32, 1.0, 2.0, 9.0, 9.0]);
    let x_hi = t(&[1, 5], &[2f32, 3.0, 4.0, 9.5, 9.0]);
    let (y_lo, y_hi) = (t(&[1, 5], &[0f32; 5]), t(&[1, 5], &[1f32; 5]));
    let picks = |candidates: [bool; 5], limit: f32, take: i64| {
        let (candidates, limit) = (t(&[1, 5], &candidates), t(&[], &[limit]));
        let op = Op::Suppress { take: Dim::from(take) };
        one(op, &[&y_lo, &y_hi, &x_lo, &x_hi, &candidates, &limit]).values::<i64>()
    };
    assert_eq!(picks([true; 5], 0.3, 5), [0, 2, 3, 4, -1]);
    assert_eq!(picks([true; 5], 1.0 / 3.0, 5), [0, 1, 2, 3, 4]);
    assert_eq!(picks([true; 5], 0.3, 2), [0, 2]);
    assert_eq!(picks([false, true, true, true, true], 0.3, 4), [1, 3, 4, -1]);
    assert_eq!(picks([false; 5], 0.3, 1), [-1]);
}

#[test]
fn contractions_in_both_layouts() {
    let (a, b) = (iota_f32(&[2, 1, 2, 3]), iota_f32(&[1, 2, 3, 5]));
    let plain = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
    let product = one(plain, &[&a, &b]);
    assert_eq!(product.shape, [2, 2, 2, 5]);
    let element = |i: usize, j: usize, r: usize, c: usize| -> f32 {
        (0..3).map(|p| ((i * 2 + r) * 3 + p) as f32 * ((j * 3 + p) * 5 + c) as f32).sum()
    };
    let wanted: Vec<f32> = crate::primitives::infer::indices(&[2, 2, 2, 5])
        .map(|at| element(at[0], at[1], at[2], at[3]))
        .collect();
    assert_eq!(product.values::<f32>(), wanted);
    let packed = one(Op::Pack { batch: 2, k: 1, nr: 4 }, &[&b]);
    assert_eq!(packed.shape, [1, 2, 2, 3, 4]);
    assert_eq!(packed.values::<f32>()[..4], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(packed.values::<f32>()[12..16], [4.0, 0.0, 0.0, 0.0]);
    let panels = RhsLayout::Panels { nr: 4, depth: 1, n: Dim::from(5usize) };
    assert_eq!(one(Op::Contract { batch: 2, m: 1, k: 1, rhs: panels }, &[&a, &packed]), product);
    // Products of bytes are added up in 32 bits, also those of the same type.
    let ints = one(
        Op::Contract { batch: 0, m: 0, k: 2, rhs: RhsLayout::Plain },
        &[&t(&[1, 2], &[100i8, 100]), &t(&[1, 2, 1], &[1i8, 1])],
    );
    assert_eq!((ints.shape.as_slice(), ints.values::<i32>()), (&[1][..], vec![200]));
    let none = one(
        Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain },
        &[&t::<f32>(&[2, 0], &[]), &t::<f32>(&[0, 2], &[])],
    );
    assert_eq!(none.values::<f32>(), [0.0; 4]);
}

#[test]
fn movement() {
    let x = iota_f32(&[2, 3]);
    let turned = one(Op::Transpose { perm: vec![1, 0] }, &[&x]);
    assert_eq!(
        (turned.shape.as_slice(), turned.values::<f32>()),
        (&[3, 2][..], vec![0., 3., 1., 4., 2., 5.])
    );
    let reshaped = one(Op::Reshape { shape: dims(&[3, 2]) }, &[&x]);
    assert_eq!((reshaped.shape.as_slice(), &reshaped.data), (&[3, 2][..], &x.data));
    let wide = one(Op::Expand { shape: dims(&[2, 2, 2]) }, &[&t(&[2, 1], &[true, false])]);
    assert_eq!(wide.values::<bool>(), [true, true, false, false, true, true, false, false]);
    let slice = Op::Slice { starts: dims(&[1, 2]), steps: vec![-1, -2], sizes: dims(&[2, 2]) };
    assert_eq!(one(slice, &[&x]).values::<f32>(), [5.0, 3.0, 2.0, 0.0]);
    let outside = Op::Slice { starts: dims(&[0, 2]), steps: vec![1, 1], sizes: dims(&[1, 2]) };
    assert!(eval(&outside, &[&x]).is_err());
    let pad = Op::Pad { lo: dims(&[1, 0]), hi: dims(&[0, 2]) };
    let padded = one(pad, &[&t(&[1, 2], &[1u8, 2]), &Tensor::scalar(7u8)]);
    assert_eq!((padded.shape.as_slice(), &padded.data[..]), (&[2, 4][..], &[7, 7, 7, 7, 1, 2, 7, 7][..]));
    let joined = one(Op::Concat { axis: 1 }, &[&t(&[2, 1], &[1i16, 2]), &t(&[2, 2], &[3i16, 4, 5, 6])]);
    assert_eq!(joined.values::<i16>(), [1, 3, 4, 2, 5, 6]);
    let window = Op::Window { first: 0, kernel: vec![2], strides: vec![2], dilations: vec![3] };
    let windows = one(window, &[&iota_f32(&[7])]);
    assert_eq!((windows.shape.as_slice(), windows.values::<f32>()), (&[2, 2][..], vec![0., 3., 2., 5.]));
    assert_eq!(one(Op::Iota { shape: dims(&[2, 2]), axis: 1 }, &[]).values::<i64>(), [0, 1, 0, 1]);
    assert_eq!(one(Op::DimValues { dims: dims(&[4, 9]) }, &[]).values::<i64>(), [4, 9]);
    let strange = Tensor::new(DType::C128, vec![2, 1], (0..32).collect());
    let turned = one(Op::Transpose { perm: vec![1, 0] }, &[&strange]);
    assert_eq!((turned.shape.as_slice(), &turned.data), (&[1, 2][..], &strange.data));
}

#[test]
fn transposes_agree_with_index_arithmetic() {
    let x = iota_f32(&[2, 3, 1, 4]);
    for perm in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let turned = one(Op::Transpose { perm: perm.to_vec() }, &[&x]);
        for (at, index) in crate::primitives::infer::indices(&turned.shape).enumerate() {
            let mut source = [0; 4];
            perm.iter().enumerate().for_each(|(to, &from)| source[from] = index[to]);
            let wanted = source.iter().zip(&x.shape).fold(0, |offset, (i, size)| offset * size + i);
            assert_eq!(turned.values::<f32>()[at], wanted as f32);
        }
    }
}

/// What reads nothing refuses nothing, as in compiled code.
#[test]
fn results_without_elements_read_nothing() {
    let empty = iota_f32(&[0, 3]);
    let picked = one(Op::Gather { axis: 0 }, &[&iota_f32(&[0, 0]), &t(&[1], &[7i64])]);
    assert_eq!(picked.shape, [1, 0]);
    assert!(eval(&Op::Gather { axis: 0 }, &[&empty, &t(&[1], &[7i64])]).is_err());
    let window = |kernel, stride| Op::Window {
        first: 0,
        kernel: vec![kernel],
        strides: vec![stride],
        dilations: vec![1],
    };
    assert_eq!(one(window(2, 2), &[&empty]).shape, [0, 2, 3]);
    assert_eq!(one(window(3, 2), &[&iota_f32(&[2, 3])]).shape, [0, 3, 3]);
    assert!(eval(&window(2, 1), &[&empty]).is_err(), "less than no places");
}

#[test]
fn gathers() {
    let x = iota_f32(&[3, 2]);
    let picked = one(Op::Gather { axis: 0 }, &[&x, &t(&[1, 2], &[-1i64, 0])]);
    assert_eq!((picked.shape.as_slice(), picked.values::<f32>()), (&[1, 2, 2][..], vec![4., 5., 0., 1.]));
    let column = one(Op::Gather { axis: 1 }, &[&x, &Tensor::scalar(1i32)]);
    assert_eq!((column.shape.as_slice(), column.values::<f32>()), (&[3][..], vec![1., 3., 5.]));
    let error = eval(&Op::Gather { axis: 0 }, &[&x, &t(&[1], &[3i64])]).unwrap_err();
    assert_eq!(error.message, "element [0] of the indices is 3; it must be between -3 and 2");
    let error = eval(&Op::Gather { axis: 0 }, &[&x, &t(&[1], &[i64::MIN])]).unwrap_err();
    assert!(error.message.contains("-9223372036854775808"));
    let elements = one(Op::GatherElements { axis: 0 }, &[&x, &t(&[2, 2], &[2i64, 0, -1, 1])]);
    assert_eq!(elements.values::<f32>(), [4.0, 1.0, 4.0, 3.0]);
    assert!(eval(&Op::GatherElements { axis: 0 }, &[&x, &t(&[1, 3], &[0i64, 0, 0])]).is_err());
    let tuples = one(Op::GatherNd { batch: 0 }, &[&x, &t(&[2, 2], &[2i64, 1, 0, -1])]);
    assert_eq!(tuples.values::<f32>(), [5.0, 1.0]);
    let rows = one(Op::GatherNd { batch: 0 }, &[&x, &t(&[1, 1], &[1i64])]);
    assert_eq!((rows.shape.as_slice(), rows.values::<f32>()), (&[1, 2][..], vec![2.0, 3.0]));
    let batched = one(Op::GatherNd { batch: 1 }, &[&x, &t(&[3, 1], &[0i64, 1, 0])]);
    assert_eq!((batched.shape.as_slice(), batched.values::<f32>()), (&[3][..], vec![0.0, 3.0, 4.0]));
    // As kernels do, a gather of nothing reads no index: there is none in an axis of size 0.
    let none = iota_f32(&[1, 0, 2, 0]);
    let nothing = one(Op::GatherNd { batch: 0 }, &[&none, &t(&[2, 3], &[0i64, -1, 1, 0, 5, 0])]);
    assert_eq!(nothing.shape, [2, 0]);
}

#[test]
fn scatters() {
    let x = t(&[2, 2], &[1i32, 2, 3, 4]);
    let op = |combine| Op::ScatterElements { axis: 1, combine };
    let inputs = [&x, &t(&[2, 1], &[1i64, -2]), &t(&[2, 1], &[10i32, 20])];
    assert_eq!(one(op(None), &inputs).values::<i32>(), [1, 10, 20, 4]);
    assert_eq!(one(op(Some(BinaryFn::Add)), &inputs).values::<i32>(), [1, 12, 23, 4]);
    let repeated = [&x, &t(&[1, 2], &[0i64, 0]), &t(&[1, 2], &[5i32, 7])];
    assert_eq!(one(op(Some(BinaryFn::Max)), &repeated).values::<i32>(), [7, 2, 3, 4]);
    let rows = [&x, &t(&[2, 1], &[1i64, 1]), &t(&[2, 2], &[1i32, 1, 5, 6])];
    assert_eq!(one(Op::ScatterNd { combine: None }, &rows).values::<i32>(), [1, 2, 5, 6]);
    assert_eq!(one(Op::ScatterNd { combine: Some(BinaryFn::Mul) }, &rows).values::<i32>(), [1, 2, 15, 24]);
    let wrong = [&x, &t(&[1, 1], &[1i64]), &t(&[1], &[1i32])];
    assert!(eval(&Op::ScatterNd { combine: None }, &wrong).is_err());
}

#[test]
fn running_combinations() {
    let x = t(&[3, 2], &[1i64, 10, 2, 20, 3, 30]);
    let run = |exclusive, reverse| {
        one(Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive, reverse }, &[&x]).values::<i64>()
    };
    assert_eq!(run(false, false), [1, 10, 3, 30, 6, 60]);
    assert_eq!(run(true, false), [0, 0, 1, 10, 3, 30]);
    assert_eq!(run(false, true), [6, 60, 5, 50, 3, 30]);
    assert_eq!(run(true, true), [5, 50, 3, 30, 0, 0]);
}

/// A graph with the symbol `s0` and no origins.
fn graph_with_symbol() -> (Graph, Dim) {
    let mut graph = Graph::default();
    let sym: Sym = graph.symbols.push(Symbol { name: "n".to_string() });
    (graph, Dim::sym(sym))
}

fn origin(graph: &mut Graph) -> crate::graph::OriginId {
    graph.origins.push(crate::graph::Origin::new("node".to_string(), "Test".to_string(), 3))
}

/// Body of a scan: state' = state + x + captured; y = state'.
fn scan_op(trip: Dim, reverse: Vec<bool>) -> Op {
    let mut body = Graph::default();
    let from = origin(&mut body);
    let mut b = Builder::new(&mut body, from);
    let ty = TensorType::new(DType::F32, vec![]);
    let [state, x, captured] = ["state", "x", "captured"].map(|name| b.input(name, ty.clone(), None));
    let sum = b.binary(BinaryFn::Add, state, x).unwrap();
    let next = b.binary(BinaryFn::Add, sum, captured).unwrap();
    body.outputs = vec![("next".to_string(), next), ("y".to_string(), next)];
    Op::scan(body, trip, 1, 1, reverse)
}

#[test]
fn scans_run_their_body() {
    let inputs = [&Tensor::scalar(0.5f32), &t(&[3], &[1.0f32, 2.0, 3.0]), &Tensor::scalar(10.0f32)];
    let scan = |reverse: [bool; 2]| eval(&scan_op(Dim::from(3usize), reverse.to_vec()), &inputs).unwrap();
    let forward = scan([false, false]);
    assert_eq!(forward[0].values::<f32>(), [36.5]);
    assert_eq!(forward[1].values::<f32>(), [11.5, 23.5, 36.5]);
    assert_eq!(scan([true, false])[1].values::<f32>(), [13.5, 25.5, 36.5]);
    assert_eq!(scan([false, true])[1].values::<f32>(), [36.5, 23.5, 11.5]);
    let none = [&Tensor::scalar(0.5f32), &t::<f32>(&[0], &[]), &Tensor::scalar(10.0f32)];
    let idle = eval(&scan_op(Dim::ZERO, vec![false, false]), &none).unwrap();
    assert_eq!((idle[0].values::<f32>(), idle[1].shape.as_slice()), (vec![0.5], &[0][..]));
}

#[test]
fn graphs_bind_symbols_from_input_shapes() {
    let (mut graph, n) = graph_with_symbol();
    let from = origin(&mut graph);
    let mut b = Builder::new(&mut graph, from);
    let x = b.input("x", TensorType::new(DType::F32, vec![n.clone(), Dim::from(2usize)]), None);
    let y = b.input("y", TensorType::new(DType::F32, vec![n.clone() * Dim::from(2usize)]), None);
    let flat = b.reshape(x, vec![n.clone() * Dim::from(2usize)]).unwrap();
    let sum = b.binary(BinaryFn::Add, flat, y).unwrap();
    let start = b.slice_axis(sum, 0, n.clone(), n.clone()).unwrap();
    let state = b.constant(Tensor::scalar(0.0f32));
    let scan = b.emit(scan_op(n.clone(), vec![false, false]), &[state, start, state]).unwrap();
    let count = b.dim_scalar(&n).unwrap();
    graph.outputs = vec![("s".into(), scan[1]), ("n".into(), count)];
    let (x, y) = (iota_f32(&[3, 2]), t(&[6], &[0.0f32, 0.0, 0.0, 100.0, 100.0, 100.0]));
    let mut seen = Vec::new();
    let outputs =
        run_with(&graph, &[x.clone(), y.clone()], &mut |node, results| seen.push((node, results.len())))
            .unwrap();
    assert_eq!(outputs[0].values::<f32>(), [103.0, 207.0, 312.0]);
    assert_eq!(outputs[1].values::<i64>(), [3]);
    assert_eq!(seen.iter().map(|(node, _)| *node).collect::<Vec<_>>(), graph.order);
    assert!(seen.iter().any(|&(_, results)| results == 2));
    let error = run(&graph, &[x.clone(), iota_f32(&[5])]).unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
    assert_eq!(error.message, "axis 0 of input y is 5, where f32[s0*2] makes it 6 (s0 \"n\" = 3)");
    assert!(run(&graph, std::slice::from_ref(&x)).is_err());
    assert!(run(&graph, &[t(&[3, 2], &[0i8; 6]), y]).is_err());
}

#[test]
fn sizes_below_zero_are_the_inputs_fault() {
    let (mut graph, n) = graph_with_symbol();
    let from = origin(&mut graph);
    let mut b = Builder::new(&mut graph, from);
    b.input("x", TensorType::new(DType::F32, vec![n.clone()]), None);
    let counts = b.emit1(Op::Iota { shape: vec![n - Dim::from(2usize)], axis: 0 }, &[]).unwrap();
    graph.outputs = vec![("y".into(), counts)];
    assert_eq!(run(&graph, &[iota_f32(&[5])]).unwrap()[0].values::<i64>(), [0, 1, 2]);
    let error = run(&graph, &[iota_f32(&[1])]).unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
    assert_eq!(error.message, "iota has a result with a dim -2 + s0 = -1");
}

#[test]
fn errors_name_the_node() {
    let mut graph = Graph::default();
    let from = origin(&mut graph);
    let mut b = Builder::new(&mut graph, from);
    let x = b.input("x", TensorType::new(DType::F32, dims(&[2])), None);
    let at = b.input("at", TensorType::new(DType::I64, dims(&[1])), None);
    let picked = b.emit1(Op::Gather { axis: 0 }, &[x, at]).unwrap();
    graph.outputs = vec![("y".into(), picked)];
    let error = run(&graph, &[iota_f32(&[2]), t(&[1], &[5i64])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "node 3 `node` (ai.onnx.Test) with v0: f32[2], v1: i64[1]: element [0] of indices `at` is 5; it must be between -2 and 1"
    );
}

fn defer(graph: &mut Graph, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> ValueId {
    let def = Def::Const(Constant::Deferred { op: Arc::new(op), inputs });
    graph.values.push(Value { name: String::new(), ty, def, known: None })
}

#[test]
fn deferred_constants_are_computed_without_recursion() {
    let mut graph = Graph::default();
    let from = origin(&mut graph);
    let one = Builder::new(&mut graph, from).constant(Tensor::scalar(1i64));
    let ty = TensorType::new(DType::I64, vec![]);
    let mut sum = one;
    for _ in 0..100_000 {
        sum = defer(&mut graph, Op::Map(MapFn::Binary(BinaryFn::Add)), vec![sum, one], ty.clone());
    }
    assert_eq!(constant(&graph, sum).unwrap().values::<i64>(), [100_001]);
    let twice = defer(&mut graph, Op::Map(MapFn::Binary(BinaryFn::Add)), vec![sum, sum], ty.clone());
    assert_eq!(constant(&graph, twice).unwrap().values::<i64>(), [200_002]);
    let next = graph.values.next_key();
    let cycle = defer(&mut graph, Op::Map(MapFn::Unary(UnaryFn::Neg)), vec![next], ty.clone());
    assert_eq!(constant(&graph, cycle).unwrap_err().kind, Kind::Internal);
    let input = Builder::new(&mut graph, from).input("x", ty, None);
    assert!(constant(&graph, input).is_err());
}

#[test]
fn oversized_results_are_errors() {
    let huge = Op::Expand { shape: dims(&[1 << 40, 1 << 40]) };
    assert_eq!(eval(&huge, &[&Tensor::scalar(1.0f32)]).unwrap_err().kind, Kind::Budget);
    let symbolic = Op::Iota { shape: vec![graph_with_symbol().1], axis: 0 };
    assert!(eval(&symbolic, &[]).is_err());
}

/// Elements by themselves are computed as those of tensors are, and refused where those are.
#[test]
fn single_elements_are_those_of_tensors() {
    use DType::*;
    let dtypes = [F32, F64, F16, BF16, F8E4M3FN, I64, I32, I16, I8, I4, U64, U32, U16, U8, U2, Bool];
    let unary = UnaryFn::ALL.iter().map(|&function| (MapFn::Unary(function), 1));
    let binary = BinaryFn::ALL.iter().map(|&function| (MapFn::Binary(function), 2));
    let compare = CompareFn::ALL.iter().map(|&function| (MapFn::Compare(function), 2));
    let casts = dtypes.map(|to| (MapFn::Cast { to, saturate: true }, 1));
    let bits = [(MapFn::Bitcast { to: I32 }, 1), (MapFn::Bitcast { to: F32 }, 1), (MapFn::MulAdd, 3)];
    let functions: Vec<_> = unary.chain(binary).chain(compare).chain(casts).chain(bits).collect();
    let numbers = t(&[6], &[0.0f64, 1.0, -1.0, 2.5, 5.0, f64::NAN]);
    let mut computed = 0;
    for dtype in dtypes {
        let values = cast(&numbers, dtype, true);
        let size = dtype.size();
        let element = |at: usize| Single::new(dtype, &values.data[at % 6 * size..][..size]);
        let tensor =
            |at: usize| Tensor::new(dtype, vec![], values.data.slice(at % 6 * size..(at % 6 + 1) * size));
        for &(function, count) in &functions {
            for at in 0..6 {
                let singles: Vec<Single> = (0..count).map(|n| element(at + n)).collect();
                let tensors: Vec<Tensor> = (0..count).map(|n| tensor(at + n)).collect();
                let Ok(wanted) = eval(&Op::Map(function), &tensors.iter().collect::<Vec<_>>()) else {
                    continue;
                };
                let found = map_single(function, &singles).unwrap();
                assert_eq!(
                    (found.dtype, found.data()),
                    (wanted[0].dtype, &wanted[0].data[..]),
                    "{function:?} of {dtype}"
                );
                computed += 1;
            }
        }
        let [yes, no] = [1, 0].map(|byte| Single::new(Bool, &[byte]));
        assert_eq!(map_single(MapFn::Select, &[yes, element(1), element(3)]).unwrap(), element(1));
        assert_eq!(map_single(MapFn::Select, &[no, element(1), element(3)]).unwrap(), element(3));
        assert_eq!(map_single(MapFn::Select, &[element(1), element(1), no]).is_ok(), dtype == Bool);
    }
    assert!(computed > 4000, "{computed}");
    let [a, b] = [Single::new(F32, &[0; 4]), Single::new(I32, &[0; 4])];
    assert!(map_single(MapFn::Binary(BinaryFn::Add), &[a, b]).is_err());
    assert!(
        map_single(MapFn::Binary(BinaryFn::Add), &[a]).is_err() && map_single(MapFn::MulAdd, &[]).is_err()
    );
}

/// Results have the elements of operands that are at the places that [`Op::sources`] gives.
#[test]
fn elements_are_where_their_sources_say() {
    let numbers = |shape: &[usize]| {
        let numbers: Vec<i64> = (1..=shape.iter().product::<usize>() as i64).collect();
        Tensor::from_slice(shape, &numbers)
    };
    let index = |shape: &[usize], values: &[i64]| Tensor::from_slice(shape, values);
    let window = Op::Window { first: 1, kernel: vec![2, 3], strides: vec![2, 1], dilations: vec![1, 2] };
    let slice = Op::Slice { starts: dims(&[1, 4]), steps: vec![1, -2], sizes: dims(&[2, 3]) };
    let cases: Vec<(Op, Vec<Tensor>)> = vec![
        (Op::Transpose { perm: vec![2, 0, 1] }, vec![numbers(&[2, 3, 4])]),
        (Op::Expand { shape: dims(&[2, 3, 4]) }, vec![numbers(&[3, 1])]),
        (slice, vec![numbers(&[3, 5])]),
        (Op::Pad { lo: dims(&[1, 0]), hi: dims(&[0, 2]) }, vec![numbers(&[2, 3]), Tensor::scalar(0i64)]),
        (Op::ImplicitPad { lo: dims(&[1, 0]), hi: dims(&[0, 2]) }, vec![numbers(&[2, 3])]),
        (window, vec![numbers(&[2, 6, 7, 3])]),
        (Op::Gather { axis: 1 }, vec![numbers(&[2, 3, 4]), index(&[2, 2], &[2, 0, 1, 2])]),
        (Op::Gather { axis: 0 }, vec![numbers(&[2, 3]), Tensor::scalar(1i64)]),
        (Op::GatherElements { axis: 1 }, vec![numbers(&[2, 3]), index(&[2, 2], &[2, 0, 1, 1])]),
        (Op::GatherNd { batch: 1 }, vec![numbers(&[2, 3, 4, 2]), index(&[2, 2], &[2, 3, 0, 1])]),
    ];
    let flat =
        |shape: &[usize], at: &[usize]| at.iter().zip(shape).fold(0, |flat, (at, size)| flat * size + at);
    for (op, operands) in cases {
        let result = eval(&op, &operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
        let ty = |tensor: &Tensor| {
            TensorType::new(tensor.dtype, tensor.shape.iter().map(|&n| Dim::from(n)).collect())
        };
        let types: Vec<TensorType> = operands.iter().map(ty).collect();
        let types: Vec<&TensorType> = types.iter().collect();
        let found = op.sources(0, &types, &ty(&result));
        let (from, to) = (operands[0].to_i64s().unwrap(), result.to_i64s().unwrap());
        let mut compared = 0;
        for (number, element) in to.iter().enumerate() {
            let mut rest = number;
            let mut at = vec![0; result.shape.len()];
            for axis in (0..at.len()).rev() {
                (at[axis], rest) = (rest % result.shape[axis], rest / result.shape[axis]);
            }
            // Picks are in the order of the axes that they are of.
            let mut picks = operands.get(1).filter(|_| op.takes_indices()).map(|indices| {
                let own = op.sources(1, &types, &ty(&result));
                let lead: Vec<usize> =
                    own.iter().filter_map(|source| source.same()).map(|axis| at[axis]).collect();
                let values = indices.to_i64s().unwrap();
                match lead.len() == indices.shape.len() {
                    true => vec![values[flat(&indices.shape, &lead)]],
                    false => {
                        let depth = indices.shape[lead.len()];
                        let first = flat(&indices.shape[..lead.len()], &lead) * depth;
                        values[first..first + depth].to_vec()
                    }
                }
                .into_iter()
            });
            let place: Vec<i64> = found
                .iter()
                .map(|source| match source {
                    Source::Along { offset, terms } => terms
                        .iter()
                        .fold(offset.as_const().unwrap(), |sum, &(axis, by)| sum + at[axis] as i64 * by),
                    Source::Picked => picks.as_mut().unwrap().next().unwrap(),
                    Source::All => panic!("each place is known"),
                    Source::Repeated(_) => panic!("sizes are known"),
                })
                .collect();
            let inside =
                place.iter().zip(&operands[0].shape).all(|(&at, &size)| (0..size as i64).contains(&at));
            if inside {
                let place: Vec<usize> = place.iter().map(|&at| at as usize).collect();
                assert_eq!(*element, from[flat(&operands[0].shape, &place)], "{op:?} at {at:?}");
                compared += 1;
            }
        }
        assert!(compared > 0, "{op:?}");
    }
}

/// Constants are evaluated side by side as far as their bytes stay few, and a large one by itself.
#[test]
fn few_bytes_are_evaluated_at_once() {
    let count = |sizes: &[u64]| side_by_side(sizes, |&bytes| bytes).next().unwrap().len();
    assert_eq!(count(&[TOGETHER / 2, TOGETHER / 2, 1]), 2);
    assert_eq!(count(&[TOGETHER + 1, 1, 1]), 1);
    assert_eq!(count(&[1, TOGETHER, 1]), 1);
    assert_eq!(count(&[u64::MAX, u64::MAX]), 1);
    assert_eq!(count(&[0, 0, 5]), 3);
    let runs: Vec<&[u64]> = side_by_side(&[1, TOGETHER, 1, 2], |&bytes| bytes).collect();
    assert_eq!(runs, [&[1][..], &[TOGETHER], &[1, 2]]);
    assert_eq!(side_by_side(&[0u64; 0], |&bytes| bytes).count(), 0);
}
