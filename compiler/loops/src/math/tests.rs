//! Every function against the standard library (or the reference evaluator), in ULP of the result.

use crate as loops;
use crate::{Access, Buffer, Expr, Index, Kernel, Stmt, math};
use onnxc_ir::graph::{DType, Dim, MapFn, Op, Tensor};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_ops::node_case::Case;

/// Runs `function` over `inputs` through its expansion.
fn expanded(function: MapFn, inputs: &[Tensor]) -> Tensor {
    expanded_as(inputs, |load| match function {
        MapFn::Unary(op) => Expr::unary(op, load(0)),
        MapFn::Binary(op) => Expr::binary(op, load(0), load(1)),
        _ => unreachable!("elementary functions only"),
    })
}

/// Runs an expression of an element of each input through its expansion.
fn expanded_as(inputs: &[Tensor], function: impl FnOnce(&dyn Fn(usize) -> Expr) -> Expr) -> Tensor {
    let (dtype, count) = (inputs[0].dtype, inputs[0].len());
    let mut kernel = Kernel::new("math");
    let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.data.to_vec()).collect();
    buffers.push(vec![0; inputs[0].data.len()]);
    let bufs: Vec<_> = (0..buffers.len())
        .map(|at| {
            let access = if at < inputs.len() { Access::Read } else { Access::Write };
            kernel.buffers.push(Buffer { name: format!("x{at}"), dtype, len: Dim::from(count), access })
        })
        .collect();
    let var = kernel.loop_var("i");
    let load = |at: usize| Expr::Load { buf: bufs[at], index: Index::var(var) };
    let value = function(&load);
    let body = vec![Stmt::Store { buf: *bufs.last().unwrap(), index: Index::var(var), value }];
    let (lo, hi) = (Index::zero(), Index::int(count as i64));
    kernel.body = vec![Stmt::For { var, lo, hi, step: 1, kind: crate::LoopKind::Serial, body }];
    math::expand(&mut kernel);
    assert_eq!(crate::interp::run(&kernel, &mut buffers, &|_| None).unwrap(), 0);
    Tensor::new(dtype, vec![count], buffers.pop().unwrap().into())
}

/// Distance in units in the last place of the precise result; exact agreement of NaN, infinity and far underflow.
fn ulps(dtype: DType, got: f64, wanted: f64) -> f64 {
    let rounded = if dtype == DType::F32 { f64::from(wanted as f32) } else { wanted };
    if got == rounded || (got.is_nan() && rounded.is_nan()) {
        return 0.0;
    }
    if !got.is_finite() || !rounded.is_finite() {
        return f64::INFINITY;
    }
    let (digits, smallest) = if dtype == DType::F32 { (23, -149) } else { (52, -1074) };
    let exponent = (wanted.abs().log2().floor() as i32 - digits).max(smallest);
    // Scaled first where it is small: a power of two below the normal range does not survive `powi`.
    let scale = if exponent < 0 { 60 } else { 0 };
    (got - wanted).abs() * 2f64.powi(scale) / 2f64.powi(exponent + scale)
}

fn samples(low: f64, high: f64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..=600).map(|i| low + (high - low) * f64::from(i) / 600.0).collect();
    values.extend((1..200).map(|i| high * 0.5f64.powi(i / 5) * (1.0 + f64::from(i % 5) / 5.0)));
    values.extend((1..200).map(|i| low * 0.5f64.powi(i / 5) * (1.0 + f64::from(i % 5) / 5.0)));
    values.retain(|value| (low..=high).contains(value));
    values
}

fn worst(op: UnaryFn, dtype: DType, values: &[f64]) -> (f64, f64) {
    let x = interp::cast(&Tensor::from_slice(&[values.len()], values), dtype, true);
    let got = expanded(MapFn::Unary(op), std::slice::from_ref(&x)).to_f64s().unwrap();
    let exact = Tensor::from_slice(&[values.len()], &x.to_f64s().unwrap());
    let wanted = interp::eval(&Op::Map(MapFn::Unary(op)), &[&exact]).unwrap()[0].to_f64s().unwrap();
    let points = x.to_f64s().unwrap();
    let mut worst = (0.0, 0.0);
    for at in 0..points.len() {
        let error = ulps(dtype, got[at], wanted[at]);
        if error > worst.0 {
            worst = (error, points[at]);
        }
    }
    worst
}

#[test]
fn f32_functions_are_accurate_to_a_few_ulp() {
    use UnaryFn::*;
    for (op, low, high, bound) in [
        (Exp, -110.0, 95.0, 2.0),
        (Decay, -87.0, 10.0, 2.0),
        (Log, 0.0, 1e30, 2.0),
        (Tanh, -12.0, 12.0, 4.0),
        (Erf, -6.0, 6.0, 2.0),
        (Sigmoid, -80.0, 80.0, 4.0),
        (Sin, -1e4, 1e4, 1.0),
        (Cos, -1e4, 1e4, 1.0),
        (Tan, -100.0, 100.0, 1.0),
        (Asin, -1.0, 1.0, 1.0),
        (Acos, -1.0, 1.0, 1.0),
        (Atan, -1e3, 1e3, 1.0),
        (Sinh, -85.0, 85.0, 1.0),
        (Cosh, -85.0, 85.0, 1.0),
        (Asinh, -1e6, 1e6, 1.0),
        (Acosh, 1.0, 1e6, 1.0),
        (Atanh, -0.999, 0.999, 1.0),
        (Log1p, -0.999, 1e6, 1.0),
        (Expm1, -20.0, 80.0, 1.0),
    ] {
        let (error, at) = worst(op, DType::F32, &samples(low, high));
        assert!(error <= bound, "{op} of {at}: {error} ULP");
    }
}

/// f32 of every binade from `low` to `high`, which have one sign, at a stride that is not a power of two.
fn sweep(low: f32, high: f32) -> Vec<f64> {
    (low.to_bits()..high.to_bits()).step_by(299_993).map(|bits| f64::from(f32::from_bits(bits))).collect()
}

/// Within an ULP everywhere, also where a difference cancels, a binade begins or another interval of the approximation does.
#[test]
fn functions_of_f32_beside_zero_are_accurate_to_an_ulp() {
    use UnaryFn::*;
    for (op, low, high) in [
        (Expm1, 1e-45, 88.8),
        (Expm1, -1e-45, -104.0),
        (Expm1, 0.3, 0.6),
        (Expm1, -0.3, -0.6),
        (Log1p, 1e-45, f32::MAX),
        (Log1p, -1e-45, -1.0),
        (Log1p, 0.4, 0.6),
    ] {
        let mut points = sweep(low, high);
        points.extend([low, high].map(f64::from));
        points.extend((0..500).map(|i| f64::from(f32::from_bits(high.to_bits() - i))));
        let (error, at) = worst(op, DType::F32, &points);
        assert!(error <= 1.0, "{op} of {at}: {error} ULP");
    }
}

#[test]
fn one_plus_erf_is_accurate() {
    let mut points = samples(-12.0, 12.0);
    points.extend([0.0, -0.0, 1e-40, -1e-40, -1e30, 1e30, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let x = Tensor::from_slice(&[points.len()], &points.iter().map(|&x| x as f32).collect::<Vec<_>>());
    let points = x.to_f64s().unwrap();
    let wide = Tensor::from_slice(&[points.len()], &points);
    let erf = interp::eval(&Op::Map(MapFn::Unary(UnaryFn::Erf)), &[&wide]).unwrap()[0].to_f64s().unwrap();
    let one = || Expr::constant(DType::F32, 1.0);
    for turned in [false, true] {
        let got = expanded_as(std::slice::from_ref(&x), |load| {
            let erf = Expr::unary(UnaryFn::Erf, load(0));
            let (a, b) = if turned { (erf, one()) } else { (one(), erf) };
            Expr::binary(BinaryFn::Add, a, b)
        });
        for ((&x, got), erf) in points.iter().zip(got.to_f64s().unwrap()).zip(&erf) {
            let wanted = 1.0 + erf;
            // Below zero the relative error grows, but stays far below that of adding 1 to a rounded -1.
            let bound = if x < 0.0 { 4.0 + 60.0 * x * x } else { 1.5 };
            if x < -4.5 {
                assert!((0.0..1e-9).contains(&got), "{x}: {got} for {wanted}");
            } else {
                let error = ulps(DType::F32, got, wanted);
                assert!(error <= bound, "{x}: {got} for {wanted}, {error} ULP");
            }
        }
    }
}

#[test]
fn f64_functions_are_accurate() {
    use UnaryFn::*;
    for (op, low, high, bound) in [
        (Exp, -740.0, 709.0, 2.0),
        (Decay, -740.0, 709.0, 2.0),
        (Log, 0.0, 1e300, 3.0),
        (Tanh, -25.0, 25.0, 8.0),
        (Erf, -7.0, 7.0, 3.0),
        (Sigmoid, -700.0, 700.0, 4.0),
        (Sin, -1e3, 1e3, 64.0),
        (Cos, -1e3, 1e3, 64.0),
        (Asin, -1.0, 1.0, 4.0),
        (Acos, -1.0, 1.0, 8.0),
        (Atan, -1e3, 1e3, 3.0),
        (Sinh, -700.0, 700.0, 8.0),
        (Cosh, -700.0, 700.0, 8.0),
        (Asinh, -1e12, 1e12, 8.0),
        (Acosh, 1.0, 1e12, 8.0),
        (Atanh, 0.0, 0.999, 8.0),
        (Log1p, -0.999, 1e12, 8.0),
        (Expm1, -30.0, 700.0, 8.0),
    ] {
        let (error, at) = worst(op, DType::F64, &samples(low, high));
        assert!(error <= bound, "{op} of {at}: {error} ULP");
    }
}

#[test]
fn special_values() {
    use UnaryFn::*;
    let mut specials = vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, -1.0, 1e-40, -1e-40];
    specials.extend([-1.5, -3e38, 3e38, 88.72, 88.73, -20.0, -104.0, 1e-45, -1e-45]);
    for dtype in [DType::F32, DType::F64] {
        for op in [Exp, Decay, Log, Tanh, Erf, Sigmoid, Atan, Sinh, Cosh, Asinh, Log1p, Expm1] {
            let (error, at) = worst(op, dtype, &specials);
            assert!(error <= 2.0, "{op} of {at} in {dtype}: {error} ULP");
        }
    }
}

/// "If the argument is ±0, ±0 is returned": Annex F of the C standard, after IEEE 754.
#[test]
fn odd_functions_keep_the_sign_of_zero() {
    use UnaryFn::*;
    for dtype in [DType::F32, DType::F64] {
        let zeros = interp::cast(&Tensor::from_slice(&[2], &[-0.0, 0.0]), dtype, true);
        for op in [Sin, Tan, Asin, Atan, Sinh, Tanh, Asinh, Atanh, Erf, Log1p, Expm1] {
            let found = expanded(MapFn::Unary(op), std::slice::from_ref(&zeros)).to_f64s().unwrap();
            assert_eq!(
                found.iter().map(|zero| 1.0 / zero).collect::<Vec<_>>(),
                [f64::NEG_INFINITY, f64::INFINITY],
                "{op} in {dtype}"
            );
        }
    }
}

#[test]
fn pow_follows_ieee() {
    let cases: &[(f64, f64)] = &[
        (2.0, 10.0),
        (-2.0, 3.0),
        (-2.0, 4.0),
        (-8.0, 1.0 / 3.0),
        (0.0, 2.0),
        (0.0, -1.0),
        (-0.0, 3.0),
        (f64::INFINITY, 0.5),
        (f64::NEG_INFINITY, 3.0),
        (f64::NEG_INFINITY, 2.0),
        (1.0, f64::NAN),
        (-1.0, f64::NAN),
        (1.0, f64::NEG_INFINITY),
        (-1.0, f64::INFINITY),
        (-1.0, f64::NEG_INFINITY),
        (-0.5, f64::INFINITY),
        (f64::NAN, 0.0),
        (f64::NAN, 1.0),
        (0.0, f64::NAN),
        (-0.0, f64::NAN),
        (f64::INFINITY, f64::NAN),
        (f64::NAN, f64::INFINITY),
        (5e-324, 0.5),
        (5e-324, -3.0),
        (f64::MAX, 2.0),
        (9.0, 0.5),
        (9.0, 3.0),
        (-7.0, 21.0),
        (3.0, -2.0),
        (0.0, 127.0),
        (1.01, 1000.0),
        (1.5, -7.25),
        (10.0, 40.0),
    ];
    for dtype in [DType::F32, DType::F64] {
        let column = |pick: fn(&(f64, f64)) -> f64| {
            let values: Vec<f64> = cases.iter().map(pick).collect();
            interp::cast(&Tensor::from_slice(&[values.len()], &values), dtype, true)
        };
        let (a, b) = (column(|case| case.0), column(|case| case.1));
        let got = expanded(MapFn::Binary(BinaryFn::Pow), &[a.clone(), b.clone()]).to_f64s().unwrap();
        let (a, b) = (a.to_f64s().unwrap(), b.to_f64s().unwrap());
        for at in 0..cases.len() {
            let wanted = a[at].powf(b[at]);
            let error = ulps(dtype, got[at], wanted);
            assert!(error <= 1.0, "{} ^ {} = {}, not {wanted} ({error} ULP)", a[at], b[at], got[at]);
        }
    }
}

/// With the exponent known, fewer cases are computed, with the same bits.
#[test]
fn known_exponents_have_the_same_powers() {
    let mut bases =
        vec![0.0, 1e-45, 1e-39, 0.3, 0.5, 0.999_999_9, 1.0, 1.5, 2.0, 7.0, 1e10, 3e38, f64::INFINITY];
    bases.extend(bases.clone().iter().map(|x| -x));
    bases.push(f64::NAN);
    let exponents = [1.7, -1.7, 3.0, -3.0, 4.0, -4.0, 1e-40, 0.5, 1e9, 16_777_217.0, 1e20, -1e20, 0.0, -0.0];
    let rest = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for dtype in [DType::F32, DType::F64] {
        for &exponent in exponents.iter().chain(&rest) {
            let column =
                |values: &[f64]| interp::cast(&Tensor::from_slice(&[values.len()], values), dtype, true);
            let a = column(&bases);
            let wanted =
                expanded(MapFn::Binary(BinaryFn::Pow), &[a.clone(), column(&vec![exponent; bases.len()])]);
            let got = expanded_as(&[a], |load| {
                Expr::binary(BinaryFn::Pow, load(0), Expr::constant(dtype, exponent))
            });
            let (wanted, got) = (wanted.to_f64s().unwrap(), got.to_f64s().unwrap());
            for at in 0..bases.len() {
                let same =
                    got[at].to_bits() == wanted[at].to_bits() || got[at].is_nan() && wanted[at].is_nan();
                assert!(same, "{} ^ {exponent} = {}, not {}, in {dtype}", bases[at], got[at], wanted[at]);
            }
        }
    }
}

/// What the type has, exactly: whole powers of small numbers, and of their powers the roots.
#[test]
fn powers_that_are_numbers_are_exact() {
    for (dtype, digits) in [(DType::F64, 53), (DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)] {
        exact_powers(dtype, digits);
    }
}

fn exact_powers(dtype: DType, digits: u32) {
    let (mut bases, mut exponents, mut wanted) = (vec![], vec![], vec![]);
    let mut case = |base: f64, exponent: f64, power: f64| {
        bases.push(base);
        exponents.push(exponent);
        wanted.push(power);
    };
    for base in 2..200u64 {
        let has = |power: Option<u64>| power.is_some_and(|power| power < 1 << digits);
        for exponent in (2..).take_while(|&exponent| has(base.checked_pow(exponent))) {
            let power = base.pow(exponent) as f64;
            case(base as f64, f64::from(exponent), power);
            case(
                power,
                if exponent == 2 { 0.5 } else { 1.0 },
                if exponent == 2 { base as f64 } else { power },
            );
            if exponent.is_multiple_of(4) {
                case(power, 0.75, (base.pow(exponent / 4 * 3)) as f64);
            }
        }
        if has(Some(base * base * base)) {
            case((base * base) as f64, 1.5, (base * base * base) as f64);
        }
    }
    let column = |values: &[f64]| interp::cast(&Tensor::from_slice(&[values.len()], values), dtype, true);
    let got =
        expanded(MapFn::Binary(BinaryFn::Pow), &[column(&bases), column(&exponents)]).to_f64s().unwrap();
    for at in 0..got.len() {
        assert_eq!(got[at], wanted[at], "{} ^ {} in {dtype}", bases[at], exponents[at]);
    }
}

/// Of all magnitudes, near 1 too, where large exponents count each bit of the base.
#[test]
fn pow_is_accurate_to_an_ulp() {
    pow_is_accurate_to(DType::F64, 1.0);
    pow_is_accurate_to(DType::F32, 0.95);
}

fn pow_is_accurate_to(dtype: DType, bound: f64) {
    let is_wide = dtype == DType::F64;
    let (digits, exponent_of_most) = if is_wide { (52, 1080.0) } else { (23, 155.0) };
    let mut random = fastrand::Rng::with_seed(7);
    let (mut bases, mut exponents) = (vec![], vec![]);
    while bases.len() < if is_wide { 20_000 } else { 10_000 } {
        let sign = if random.bool() { 1.0 } else { -1.0 };
        let base = match bases.len() % 4 {
            0 if is_wide => f64::from_bits(random.u64(1..0x7ff0_0000_0000_0000)),
            0 => f64::from(f32::from_bits(random.u32(1..0x7f80_0000))),
            1 => 1.0 + sign * 2f64.powi(-random.i32(1..digits)) * random.f64(),
            2 if is_wide => f64::from_bits(random.u64(1..1 << 52)),
            2 => f64::from(f32::from_bits(random.u32(1..1 << 23))),
            _ => random.f64() * 4.0,
        };
        let base = if is_wide { base } else { f64::from(base as f32) };
        if base <= 0.0 {
            continue;
        }
        // About as large as the result may be.
        let most = exponent_of_most / base.log2().abs();
        let exponent = match random.u32(..3) {
            0 => sign * random.f64() * most,
            1 => (sign * random.f64() * most).round(),
            _ => random.f64() * 6.0 - 3.0,
        };
        bases.push(base);
        exponents.push(if is_wide { exponent } else { f64::from(exponent as f32) });
    }
    let column = |values: &[f64]| interp::cast(&Tensor::from_slice(&[values.len()], values), dtype, true);
    let got =
        expanded(MapFn::Binary(BinaryFn::Pow), &[column(&bases), column(&exponents)]).to_f64s().unwrap();
    let mut worst = 0.0f64;
    for at in 0..got.len() {
        let wanted = bases[at].powf(exponents[at]);
        let error = ulps(dtype, got[at], wanted);
        assert!(error <= bound, "{:e} ^ {:e} = {:e}, not {wanted:e}", bases[at], exponents[at], got[at]);
        worst = worst.max(error);
    }
    println!("{worst} ULP in {dtype}");
}

#[test]
fn atan2_covers_every_quadrant() {
    let (mut ys, mut xs) = (vec![], vec![]);
    for y in [-2.0, -0.0, 0.0, 3.0, f64::INFINITY] {
        for x in [-1.0, -0.0, 0.0, 2.5, f64::NEG_INFINITY] {
            ys.push(y);
            xs.push(x);
        }
    }
    let tensors = [Tensor::from_slice(&[ys.len()], &ys), Tensor::from_slice(&[xs.len()], &xs)];
    let got = expanded(MapFn::Binary(BinaryFn::Atan2), &tensors).to_f64s().unwrap();
    for at in 0..ys.len() {
        let error = ulps(DType::F64, got[at], ys[at].atan2(xs[at]));
        assert!(error <= 4.0, "atan2({}, {}) = {}", ys[at], xs[at], got[at]);
    }
}

/// Where f32 is beyond 1 - 2^-25 or is to be 1, and nowhere above it.
#[test]
fn tanh_reaches_one() {
    let points: Vec<f32> = (0..4000).map(|i| 7.0 + i as f32 / 1000.0).collect();
    let mut points = [points, vec![20.0, 1e5, f32::MAX, f32::INFINITY]].concat();
    points.extend(points.clone().iter().map(|x| -x));
    let x = Tensor::from_slice(&[points.len()], &points);
    let got = expanded(MapFn::Unary(UnaryFn::Tanh), &[x]).to_f64s().unwrap();
    for (&x, got) in points.iter().zip(got) {
        assert!(got.abs() <= 1.0 && got.signum() == f64::from(x.signum()), "tanh({x}) = {got}");
        assert!(got.abs() == 1.0 || x.abs() < 9.45, "tanh({x}) = {got}");
    }
}

#[test]
fn one_plus_tanh_is_accurate() {
    let mut points = samples(-44.0, 44.0);
    points.extend([0.0, -0.0, 1e-40, -1e30, 1e30, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let x = Tensor::from_slice(&[points.len()], &points.iter().map(|&x| x as f32).collect::<Vec<_>>());
    for turned in [false, true] {
        let got = expanded_as(std::slice::from_ref(&x), |load| {
            let (one, tanh) = (Expr::constant(DType::F32, 1.0), Expr::unary(UnaryFn::Tanh, load(0)));
            if turned {
                Expr::binary(BinaryFn::Add, tanh, one)
            } else {
                Expr::binary(BinaryFn::Add, one, tanh)
            }
        });
        for (x, got) in x.to_f64s().unwrap().into_iter().zip(got.to_f64s().unwrap()) {
            let wanted = 2.0 / (1.0 + (-2.0 * x).exp());
            // Where the result would be subnormal, it is 0.
            let tiny = x < -43.0 && (0.0..1e-37).contains(&got);
            assert!(tiny || ulps(DType::F32, got, wanted) <= 4.0, "{x}: {got} for {wanted}");
        }
    }
}

/// What kernels give for the result of an operator on `points`.
fn through_kernels(case: &Case, points: &Tensor) -> Vec<f64> {
    let (graph, _) = case.lower().unwrap();
    let program = onnxc_schedule::schedule(&graph, onnxc_schedule::Options::default()).unwrap();
    let core =
        onnxc_machine::target::Target::new("x86_64-unknown-linux-gnu".parse().unwrap(), None).unwrap().core;
    let kernels = program.groups.values().map(|group| {
        let mut kernel = loops::lower::lower(&graph, group, "kernel", &core).unwrap();
        math::expand(&mut kernel);
        kernel
    });
    let kernels = kernels.collect::<Vec<Kernel>>().into();
    let inputs = std::slice::from_ref(points);
    let results = loops::program::run(&graph, &program, &kernels, inputs, &loops::interp::run).unwrap();
    results[0].to_f64s().unwrap()
}

/// Operands far below the least are multiplied by two zeros: the whole powers of both types have halves that do not belong to a normal
/// number.
#[test]
fn exponentials_of_masked_scores_do_not_underflow() {
    let n = (super::f32::EXP_LEAST * std::f32::consts::LOG2_E).round_ties_even();
    assert_eq!([n / 2.0, n - n / 2.0], [-127.0; 2]);
    let n = (super::f64::EXP_LEAST * std::f64::consts::LOG2_E).round_ties_even();
    assert_eq!([n / 2.0, n - n / 2.0], [-1023.0; 2]);
}

/// Every activation at extreme points of both types, held against itself in f64: limits are reached, nothing cancels
/// or overflows on the way, and NaN comes where the formula says so.
#[test]
fn activations_at_extreme_points() {
    let mut points: Vec<f64> =
        vec![0.0, 1e-45, 1e-38, 1e-30, 1e-8, 1e-4, 0.03, 0.5, 1.0, 2.5, 5.0, 7.9, 9.1, 12.0];
    points.extend([17.0, 40.0, 86.0, 89.0, 104.0, 700.0, 1e4, 1e5, 1e10, 1e19, 1e30, 3e38, f64::INFINITY]);
    points.extend(points.clone().iter().map(|x| -x));
    points.push(f64::NAN);
    let narrow: Vec<f32> = points.iter().map(|&x| x as f32).collect();
    let wide: Vec<f64> = narrow.iter().map(|&x| f64::from(x)).collect();
    let count = [points.len()];
    type Attributes = fn(Case) -> Case;
    let plain: Attributes = |case| case;
    let cases: &[(&str, u32, Attributes)] = &[
        ("Elu", 6, plain),
        ("Celu", 12, |case| case.float("alpha", 2.0)),
        ("Selu", 6, plain),
        ("Softplus", 1, plain),
        ("Softsign", 1, plain),
        ("Mish", 18, plain),
        ("Gelu", 20, plain),
        ("Gelu", 20, |case| case.str("approximate", "tanh")),
        ("Swish", 24, |case| case.float("alpha", 1.702)),
        ("HardSwish", 14, plain),
        ("HardSigmoid", 6, plain),
        ("Sigmoid", 13, plain),
        ("Tanh", 13, plain),
        ("Erf", 13, plain),
        ("Exp", 13, plain),
        ("Log", 13, plain),
        ("Atan", 7, plain),
        ("Sinh", 9, plain),
        ("Cosh", 9, plain),
        ("Asinh", 9, plain),
        ("Acosh", 9, plain),
        ("Atanh", 9, plain),
        ("Reciprocal", 13, plain),
        ("Sqrt", 13, plain),
        ("ThresholdedRelu", 10, plain),
        ("LeakyRelu", 16, plain),
    ];
    let mut wrong = vec![];
    for &(name, opset, attributes) in cases {
        let case = || attributes(Case::new(name, opset));
        let in_f64 = case().input(&count, &wide);
        let (graph, _) = in_f64.lower().unwrap();
        let wanted = interp::run(&graph, &[Tensor::from_slice(&count, &wide)]).unwrap()[0].to_f64s().unwrap();
        let got = through_kernels(&case().input(&count, &narrow), &Tensor::from_slice(&count, &narrow));
        let got64 = through_kernels(&in_f64, &Tensor::from_slice(&count, &wide));
        for at in 0..points.len() {
            let rounded = f64::from(wanted[at] as f32);
            let near = |got: f64, wanted: f64, relative: f64, least: f64| {
                got == wanted
                    || got.is_nan() && wanted.is_nan()
                    || (got - wanted).abs() <= relative * wanted.abs() + least
            };
            if !near(got[at], rounded, 3e-4, 1e-8) {
                wrong.push(format!("{name}({}) = {}, not {rounded}, in f32", wide[at], got[at]));
            }
            if !near(got64[at], wanted[at], 1e-9, 1e-12) {
                wrong.push(format!("{name}({}) = {}, not {}, in f64", wide[at], got64[at], wanted[at]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
