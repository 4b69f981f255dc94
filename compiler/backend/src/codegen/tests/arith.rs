//! Arithmetic, comparisons and selects of every dtype against the reference evaluator, as scalars and
//! vectors.

use super::cast::{assert_same, numeric, samples};
use super::*;
use onnxc_ir::graph::{MapFn, Op, Tensor};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

const TRANSCENDENTAL: &[UnaryFn] = &[
    UnaryFn::Exp,
    UnaryFn::Decay,
    UnaryFn::Log,
    UnaryFn::Log1p,
    UnaryFn::Expm1,
    UnaryFn::Sin,
    UnaryFn::Cos,
    UnaryFn::Tan,
    UnaryFn::Asin,
    UnaryFn::Acos,
    UnaryFn::Atan,
    UnaryFn::Sinh,
    UnaryFn::Cosh,
    UnaryFn::Tanh,
    UnaryFn::Asinh,
    UnaryFn::Acosh,
    UnaryFn::Atanh,
    UnaryFn::Erf,
    UnaryFn::Sigmoid,
];

/// `out[i] = f(inputs[i]...)`, `width` at a time; 0 for a scalar loop.
fn zip(inputs: &[DType], out: DType, n: i64, width: i64, f: impl FnOnce(Vec<Expr>) -> Expr) -> Kernel {
    let mut kernel = Kernel::new("zip");
    let bufs: Vec<Buf> =
        inputs.iter().map(|&dtype| buffer(&mut kernel, "x", dtype, n, Access::Read)).collect();
    let out = buffer(&mut kernel, "out", out, n, Access::Write);
    let (i, v) = (kernel.loop_var("i"), kernel.loop_var("v"));
    let at = if width == 0 { Index::var(i) } else { scaled(i, width).add(&Index::var(v)) };
    let value = f(bufs.iter().map(|&buf| load(buf, at.clone())).collect());
    let body = vec![Stmt::Store { buf: out, index: at, value }];
    kernel.body = vec![if width == 0 {
        for_(i, 0i64, n, LoopKind::Serial, body)
    } else {
        assert_eq!(n % width, 0);
        let lanes = for_(v, 0i64, width, LoopKind::Vector, body);
        for_(i, 0i64, n / width, LoopKind::Serial, vec![lanes])
    }];
    kernel
}

/// Runs the kernel and the evaluator on the same elements.
fn check(map: MapFn, inputs: &[&Tensor], f: impl Fn(Vec<Expr>) -> Expr) {
    check_in(&[0, 4, 16], map, inputs, f);
}

/// As [`check`], in loops of these widths.
fn check_in(widths: &[i64], map: MapFn, inputs: &[&Tensor], f: impl Fn(Vec<Expr>) -> Expr) {
    let want = interp::eval(&Op::Map(map), inputs).unwrap_or_else(|e| panic!("{map:?}: {e}"));
    let want = &want[0];
    let dtypes: Vec<DType> = inputs.iter().map(|x| x.dtype).collect();
    for &width in widths {
        let kernel = zip(&dtypes, want.dtype, want.len() as i64, width, &f);
        compile_elsewhere(&kernel);
        for target in [target(), baseline()] {
            let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|x| tensor_bytes(x)).collect();
            buffers.push(vec![0xaa; want.data.len()]);
            build_at(&kernel, None, &target).run_ok(&mut buffers, &[]);
            assert_same(want.dtype, &buffers[inputs.len()], &want.data, &|at| {
                let elements: Vec<&[u8]> =
                    inputs.iter().map(|x| &x.data[at * x.dtype.size()..(at + 1) * x.dtype.size()]).collect();
                let cpu = &target.cpu;
                format!("{map:?} of {dtypes:?} on {cpu}, width {width}, element {at} = {elements:x?}")
            });
        }
    }
}

/// Pairs of samples: each of the first few hundred against several others.
fn pairs(dtype: DType) -> (Tensor, Tensor) {
    let x = samples(dtype);
    let (n, size) = (x.len(), dtype.size());
    let mut data = [vec![], vec![]];
    for shift in [0, 1, 2, 5, 11, 37, 101] {
        for at in 0..n.min(512) {
            let (a, b) = (at * n.div_ceil(512) % n, (at * 7 + shift * 13) % n);
            data[0].extend_from_slice(&x.data[a * size..(a + 1) * size]);
            data[1].extend_from_slice(&x.data[b * size..(b + 1) * size]);
        }
    }
    let [a, b] = data.map(|data| Tensor::new(dtype, vec![data.len() / size], data.into()));
    (a, b)
}

#[test]
fn unary_functions() {
    for dtype in numeric() {
        let x = samples(dtype);
        for &op in UnaryFn::ALL {
            if TRANSCENDENTAL.contains(&op) || interp::eval(&Op::Map(MapFn::Unary(op)), &[&x]).is_err() {
                continue;
            }
            let skipped = !dtype.is_float() && matches!(op, UnaryFn::Recip | UnaryFn::Sqrt);
            if !skipped {
                check(MapFn::Unary(op), &[&x], |mut v| Expr::unary(op, v.remove(0)));
            }
        }
    }
}

/// Complex numbers are in scalar loops only.
#[test]
fn complex_numbers_are_taken_apart_and_put_together() {
    for (complex, part) in [(DType::C64, DType::F32), (DType::C128, DType::F64)] {
        let values: Vec<f64> = (0..32).map(|at| f64::from(at) * 0.75 - 5.0).collect();
        let parts = interp::cast(&Tensor::from_slice(&[32], &values), part, true);
        let x = Tensor::new(complex, vec![16], parts.data.clone());
        let swapped = interp::eval(&Op::Map(MapFn::Unary(UnaryFn::Swap)), &[&x]).unwrap().remove(0);
        assert_eq!(swapped.data[..part.size()], x.data[part.size()..2 * part.size()]);
        let scalar = |map, inputs: &[&Tensor], f: &dyn Fn(Vec<Expr>) -> Expr| check_in(&[0], map, inputs, f);
        let cast = |to| MapFn::Cast { to, saturate: true };
        scalar(MapFn::Unary(UnaryFn::Swap), &[&x], &|mut v| Expr::unary(UnaryFn::Swap, v.remove(0)));
        scalar(cast(part), &[&x], &|mut v| Expr::cast(part, v.remove(0)));
        scalar(cast(complex), &[&parts], &|mut v| Expr::cast(complex, v.remove(0)));
        let (real, imaginary) = (interp::cast(&parts, complex, true), interp::cast(&swapped, part, true));
        let imaginary = interp::cast(&imaginary, complex, true);
        let imaginary = interp::eval(&Op::Map(MapFn::Unary(UnaryFn::Swap)), &[&imaginary]).unwrap().remove(0);
        let real = Tensor::new(complex, vec![16], real.data.slice(..16 * complex.size()));
        scalar(MapFn::Binary(BinaryFn::BitOr), &[&real, &imaginary], &|mut v| {
            let (a, b) = (v.remove(0), v.remove(0));
            Expr::binary(BinaryFn::BitOr, a, b)
        });
    }
}

#[test]
fn binary_functions() {
    for dtype in numeric() {
        let (a, b) = pairs(dtype);
        for &op in BinaryFn::ALL {
            let expanded = dtype.is_float() && matches!(op, BinaryFn::Pow | BinaryFn::Atan2);
            // Of words only.
            let words = op.is_dot() && dtype != DType::I32;
            // Of bytes with short sums only.
            let words = words || op == BinaryFn::DotShort;
            if expanded || words || interp::eval(&Op::Map(MapFn::Binary(op)), &[&a, &b]).is_err() {
                continue;
            }
            // Zeros of either sign are equal for these.
            if dtype.is_float() && matches!(op, BinaryFn::Max | BinaryFn::Min) {
                continue;
            }
            check(MapFn::Binary(op), &[&a, &b], |mut v| {
                let b = v.remove(1);
                Expr::binary(op, v.remove(0), b)
            });
        }
    }
}

#[test]
fn comparisons_and_selects() {
    for dtype in numeric() {
        let (a, b) = pairs(dtype);
        for &op in CompareFn::ALL {
            check(MapFn::Compare(op), &[&a, &b], |mut v| {
                let b = v.remove(1);
                Expr::compare(op, v.remove(0), b)
            });
        }
        let bits: Vec<u8> = (0..a.len()).map(|at| (at * 5 / 3 % 2) as u8).collect();
        let condition = Tensor::new(DType::Bool, vec![bits.len()], bits.into());
        check(MapFn::Select, &[&condition, &a, &b], |mut v| {
            let (b, a) = (v.remove(2), v.remove(1));
            // An operation on one side, so that more than bits move; of infinities, f8e5m2 would saturate.
            let a = if dtype == DType::F8E5M2 { a } else { Expr::binary(BinaryFn::Max, a.clone(), a) };
            Expr::select(v.remove(0), a, b)
        });
    }
}

/// Operands that are loaded for a comparison alone may become its operand in memory, which SSE wants aligned.
#[test]
fn vectors_are_compared_at_any_address() {
    for (dtype, width) in [(DType::F32, 4), (DType::F64, 2)] {
        let x = samples(dtype);
        let values = x.to_f64s().unwrap();
        let count = (values.len() as i64 - 2) / width * width;
        for (&op, result) in CompareFn::ALL.iter().flat_map(|op| [(op, DType::Bool), (op, dtype)]) {
            let mut kernel = Kernel::new("compare");
            let buf = buffer(&mut kernel, "x", dtype, count + 2, Access::Read);
            let out = buffer(&mut kernel, "out", result, count, Access::Write);
            let (i, v) = (kernel.loop_var("i"), kernel.loop_var("v"));
            let at = scaled(i, width).add(&Index::var(v));
            let operand = |offset: i64| load(buf, at.add(&Index::int(offset)));
            let holds = Expr::compare(op, operand(1), operand(2));
            // Lanes of bool are bytes; as floats, all is in vectors.
            let value = match result {
                DType::Bool => holds,
                _ => Expr::select(holds, Expr::constant(dtype, 1.0), Expr::constant(dtype, 0.0)),
            };
            let body = vec![Stmt::Store { buf: out, index: at, value }];
            let lanes = for_(v, 0i64, width, LoopKind::Vector, body);
            kernel.body = vec![for_(i, 0i64, count / width, LoopKind::Serial, vec![lanes])];
            let mut buffers = vec![tensor_bytes(&x), vec![0; count as usize * result.size()]];
            build_at(&kernel, None, &baseline()).run_ok(&mut buffers, &[]);
            let holds = |a: f64, b: f64| match op {
                CompareFn::Eq => a == b,
                CompareFn::Ne => a != b,
                CompareFn::Lt => a < b,
                CompareFn::Le => a <= b,
                CompareFn::Gt => a > b,
                CompareFn::Ge => a >= b,
            };
            let bytes = |held: bool| match result {
                DType::Bool => vec![u8::from(held)],
                DType::F32 => f32::from(u8::from(held)).to_le_bytes().to_vec(),
                _ => f64::from(u8::from(held)).to_le_bytes().to_vec(),
            };
            let pairs = values.iter().skip(1).zip(&values[2..]).take(count as usize);
            let wanted: Vec<u8> = pairs.flat_map(|(&a, &b)| bytes(holds(a, b))).collect();
            assert_eq!(buffers[1], wanted, "{op:?} of {dtype} as {result}");
        }
    }
}

/// Extremes of floats: NaN if either is NaN, also with a constant on either side.
#[test]
fn extremes_propagate_nan() {
    let specials = [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
    let pairs: Vec<(f32, f32)> = specials.iter().flat_map(|&a| specials.map(|b| (a, b))).collect();
    let data = [
        f32_bytes(&pairs.iter().map(|p| p.0).collect::<Vec<_>>()),
        f32_bytes(&pairs.iter().map(|p| p.1).collect::<Vec<_>>()),
    ];
    let n = pairs.len() as i64;
    for op in [BinaryFn::Max, BinaryFn::Min] {
        let scalar = |a: f32, b: f32| match op {
            _ if a.is_nan() || b.is_nan() => f32::NAN,
            BinaryFn::Max => a.max(b),
            _ => a.min(b),
        };
        for width in [0, 2, 4, 8] {
            for side in 0..4 {
                let constant = || Expr::constant(DType::F32, 0.5);
                let kernel = zip(&[DType::F32, DType::F32], DType::F32, n, width, |mut v| {
                    let b = v.remove(1);
                    let a = v.remove(0);
                    match side {
                        0 => Expr::binary(op, a, b),
                        1 => Expr::binary(op, constant(), b),
                        2 => Expr::binary(op, a, constant()),
                        // Of results, not of what was just loaded.
                        _ => Expr::binary(op, Expr::unary(UnaryFn::Neg, a), Expr::unary(UnaryFn::Neg, b)),
                    }
                });
                let mut buffers = vec![data[0].clone(), data[1].clone(), vec![0xaa; 4 * pairs.len()]];
                build(&kernel).run_ok(&mut buffers, &[]);
                for (got, &(a, b)) in f32s(&buffers[2]).iter().zip(&pairs) {
                    let want = match side {
                        0 => scalar(a, b),
                        1 => scalar(0.5, b),
                        2 => scalar(a, 0.5),
                        _ => scalar(-a, -b),
                    };
                    assert!(*got == want || got.is_nan() && want.is_nan(), "{op} {a} {b} side {side}: {got}");
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn clamping_is_one_instruction_a_bound() {
    let kernel = zip(&[DType::F32], DType::F32, 64, 4, |mut v| {
        let low = Expr::binary(BinaryFn::Max, v.remove(0), Expr::constant(DType::F32, 0.0));
        Expr::binary(BinaryFn::Min, low, Expr::constant(DType::F32, 6.0))
    });
    let text = assembly(&kernel);
    assert_eq!(text.matches("maxps").count(), 1, "{text}");
    assert_eq!(text.matches("minps").count(), 1, "{text}");
    assert!(!text.contains("cmp") || !text.contains("cmpunordps"), "{text}");
}

/// A count that differs between lanes, one that does not, and constants.
#[test]
fn shifts_by_constants() {
    for dtype in
        [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64]
    {
        let x = samples(dtype);
        for count in [0u64, 1, 3, 7, 8, 15, 31, 32, 63, 200] {
            let bits = count & (u64::MAX >> (64 - dtype.bits()));
            let counts = bits.to_le_bytes()[..dtype.size()].repeat(x.len());
            let counts = Tensor::new(dtype, vec![x.len()], counts.into());
            for op in [BinaryFn::Shl, BinaryFn::Shr] {
                check(MapFn::Binary(op), &[&x, &counts], |mut v| {
                    Expr::binary(op, v.remove(0), Expr::Const { dtype, bits })
                });
            }
        }
    }
}

#[test]
fn transcendental_functions_are_expanded_before() {
    let kernel = zip(&[DType::F32], DType::F32, 4, 0, |mut v| Expr::unary(UnaryFn::Exp, v.remove(0)));
    let target = target();
    let error = super::super::compile(
        &kernel,
        &*crate::codegen::isa::isa(&target, crate::codegen::isa::Opt::None).unwrap(),
        &target,
    );
    assert!(error.unwrap_err().message.contains("`exp`"));
}
