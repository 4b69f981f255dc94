//! Kernels of every element type that leaf kernels hold, alone and mixed.

use super::kernels::{Close, check, graph, input, targets};
use iced_x86::{Mnemonic, Register};
use onnxc_ir::graph::{DType, Dim, MapFn, Op, RhsLayout, Tensor};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

const TYPES: [DType; 11] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::I64,
    DType::Bool,
];

/// Values at the edges of every type and between them, as elements of one type. None is an f64 that rounds to another f16
/// by way of f32: the evaluator rounds such a value twice, kernels once.
fn edges(dtype: DType, count: usize) -> Tensor {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        -2.5,
        126.7,
        -128.2,
        255.9,
        300.0,
        -40000.0,
        65519.0,
        65520.0,
        70000.0,
        2147483520.0,
        2147483648.0,
        -2147483648.0,
        -2147483649.0,
        4294967295.0,
        4294967808.0,
        -3e10,
        9.1e18,
        9223372036854775808.0,
        -9223372036854775808.0,
        9223372036854777856.0,
        18446744073709549568.0,
        18446744073709551616.0,
        18446744073709555712.0,
        1e30,
        -1e30,
        1e-7,
        3e-8,
        -1e-40,
        5e-324,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1.00048828125,
        1.0009765625,
        1.00390625,
        1.01171875,
    ];
    let longs = [
        0,
        1,
        -1,
        127,
        128,
        -128,
        255,
        256,
        32767,
        -32769,
        65535,
        16777217,
        -16777219,
        i64::from(i32::MAX),
        i64::from(i32::MIN),
        1 << 40,
        (1 << 53) + 1,
        // Above a tie of f32 by less than f64 has room for.
        (1 << 53) + (1 << 29) + 1,
        -((1 << 53) + (1 << 29) + 1),
        -((1 << 59) + (1 << 35) + 1),
        0x40_0000_4000_0001,
        0x7fff_ffbf_ffff_ffff,
        i64::MAX,
        i64::MIN,
        -((1 << 60) + 1),
    ];
    let values = if dtype.is_float() {
        Tensor::from_slice(&[count], &(0..count).map(|n| floats[n % floats.len()]).collect::<Vec<f64>>())
    } else {
        Tensor::from_slice(&[count], &(0..count).map(|n| longs[n % longs.len()]).collect::<Vec<i64>>())
    };
    interp::cast(&values, dtype, true)
}

/// Casts between all types; `values` gives a number of values of the type that is cast.
fn casts(saturate: bool, values: impl Fn(DType, usize) -> Tensor) {
    for from in TYPES {
        for to in TYPES.into_iter().filter(|&to| to != from) {
            for count in [1, 49] {
                let cast = graph(|b| {
                    let x = input(b, from, &[count]);
                    b.emit1(Op::Map(MapFn::Cast { to, saturate }), &[x])
                });
                for target in targets() {
                    check(&cast, &values(from, count), &target, Close::Exactly);
                }
            }
        }
    }
}

#[test]
fn casts_between_all_types() {
    casts(true, edges);
}

/// Where all values fit nothing saturates.
#[test]
fn casts_of_what_fits() {
    casts(false, |from, count| {
        let small: Vec<i64> = (0..count as i64).map(|n| n * 29 % 128).collect();
        interp::cast(&Tensor::from_slice(&[count], &small), from, true)
    });
}

/// A number that is known not to be too large may be too small.
#[test]
fn casts_of_what_is_bounded_on_one_side() {
    let integers = TYPES.into_iter().filter(|to| to.is_int());
    for (to, (function, bound)) in
        integers.flat_map(|to| [(BinaryFn::Min, 100.0), (BinaryFn::Max, -100.0)].map(|limit| (to, limit)))
    {
        for count in [1, 49] {
            let cast = graph(|b| {
                let x = input(b, DType::F32, &[count]);
                let bound = b.scalar(DType::F32, bound);
                let x = b.binary(function, x, bound)?;
                b.cast(x, to)
            });
            for target in targets() {
                check(&cast, &edges(DType::F32, count), &target, Close::Exactly);
            }
        }
    }
}

/// Of bytes in memory a condition is one, whether it is computed or known.
#[test]
fn known_conditions_are_stored() {
    for count in [1, 49] {
        for known in [true, false] {
            let padded = graph(|b| {
                let x = input(b, DType::Bool, &[count]);
                let fill = b.constant(Tensor::scalar(known));
                b.pad(x, fill, vec![Dim::from(3usize)], vec![Dim::from(40usize)])
            });
            for target in targets() {
                check(&padded, &edges(DType::Bool, count), &target, Close::Exactly);
            }
        }
    }
}

#[test]
fn functions_of_floats() {
    use UnaryFn::*;
    for (dtype, counts) in [
        (DType::F64, vec![1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 39]),
        (DType::F16, vec![1, 3, 8, 21, 39]),
        (DType::BF16, vec![5, 39]),
    ] {
        for count in counts {
            let functions = graph(|b| {
                let x = input(b, dtype, &[count]);
                let limit = b.scalar(dtype, 0.25);
                let mut sum = x;
                let all =
                    [Exp, Log, Tanh, Erf, Sigmoid, Sqrt, Floor, Ceil, Round, Trunc, Neg, Abs, Recip, Sign];
                for (n, function) in all.into_iter().enumerate() {
                    let part = b.unary(function, x)?;
                    let function = CompareFn::ALL[n % CompareFn::ALL.len()];
                    let first = b.compare(function, x, limit)?;
                    let second = b.compare(CompareFn::Lt, part, sum)?;
                    let joined = [BinaryFn::And, BinaryFn::Or, BinaryFn::Xor][n % 3];
                    let both = b.binary(joined, first, second)?;
                    let join =
                        [BinaryFn::Max, BinaryFn::Min, BinaryFn::Add, BinaryFn::Mul, BinaryFn::Div][n % 5];
                    let joined = b.binary(join, part, sum)?;
                    sum = b.select(both, part, joined)?;
                }
                Ok(sum)
            });
            for target in targets() {
                check(&functions, &edges(dtype, count), &target, Close::Exactly);
            }
        }
    }
}

/// Functions of f32 computed in f64 have the lanes of f64.
#[test]
fn functions_of_f32_in_f64() {
    use UnaryFn::*;
    for count in [1, 4, 7, 8, 19] {
        for function in [Sin, Cos, Tan, Atan, Asin, Acos, Sinh, Cosh, Asinh, Acosh, Atanh] {
            let single = graph(|b| {
                let x = input(b, DType::F32, &[count]);
                b.unary(function, x)
            });
            let values: Vec<f32> =
                (0..count).map(|n| [0.3, -0.7, 0.0, 1.0, -4.0, 20.0, f32::NAN][n % 7]).collect();
            let x = Tensor::from_slice(&[count], &values);
            for target in targets() {
                let kernels = check(&single, &x, &target, Close::Within(1e-6));
                let wide = kernels.iter().flatten().any(|inst| {
                    matches!(inst.mnemonic(), Mnemonic::Vcvtps2pd) && inst.op0_register() >= Register::YMM0
                });
                let lanes = target.leaf().unwrap().lanes(8);
                assert!(kernels.is_empty() || wide == (count >= lanes), "{function} of {count}");
            }
        }
    }
}

#[test]
fn arithmetic_of_integers() {
    for dtype in [DType::I8, DType::U8, DType::I16, DType::U16, DType::I64] {
        for count in [1, 3, 4, 9, 22, 37] {
            let functions = graph(|b| {
                let x = input(b, dtype, &[count]);
                let three = b.scalar(dtype, 3.0);
                let mut y = b.binary(BinaryFn::Mul, x, three)?;
                let all = [BinaryFn::Add, BinaryFn::Sub, BinaryFn::Max, BinaryFn::Min, BinaryFn::Mul];
                for (n, &function) in CompareFn::ALL.iter().enumerate() {
                    let condition = b.compare(function, x, three)?;
                    let part = b.binary(all[n % 5], y, x)?;
                    y = b.select(condition, part, y)?;
                    let bits = [BinaryFn::BitAnd, BinaryFn::BitOr, BinaryFn::BitXor][n % 3];
                    let other = b.binary(bits, y, three)?;
                    y = b.binary(BinaryFn::Sub, other, y)?;
                }
                let y = b.unary(UnaryFn::Sign, y)?;
                let z = b.binary(BinaryFn::Shr, x, three)?;
                let w = b.binary(BinaryFn::Shl, x, three)?;
                let w = b.unary(UnaryFn::BitNot, w)?;
                let z = b.binary(BinaryFn::Add, z, w)?;
                b.binary(BinaryFn::Add, y, z)
            });
            for target in targets() {
                check(&functions, &edges(dtype, count), &target, Close::Exactly);
            }
        }
    }
}

/// All 64 bits of products.
#[test]
fn products_of_longs() {
    let products = graph(|b| {
        let x = input(b, DType::I64, &[44]);
        let other = b.i64s(&[0x1234_5678_9abc_def1]);
        let y = b.binary(BinaryFn::Mul, x, other)?;
        let square = b.binary(BinaryFn::Mul, x, x)?;
        b.binary(BinaryFn::BitXor, y, square)
    });
    for target in targets() {
        check(&products, &edges(DType::I64, 44), &target, Close::Exactly);
    }
}

/// Comparisons stored as bools, bools that select between values of any width, and quantized values.
#[test]
fn masks_and_quantized_values() {
    for (dtype, count) in TYPES.into_iter().flat_map(|dtype| [1, 6, 16, 43].map(|count| (dtype, count))) {
        let zero = |b: &mut onnxc_ir::build::Builder<'_>| b.scalar(dtype, 0.0);
        if dtype != DType::Bool {
            let compared = graph(|b| {
                let x = input(b, dtype, &[count]);
                let zero = zero(b);
                b.compare(CompareFn::Gt, x, zero)
            });
            for target in targets() {
                check(&compared, &edges(dtype, count), &target, Close::Exactly);
            }
        }
        let selected = graph(|b| {
            let x = input(b, DType::Bool, &[count]);
            let other = b.constant(edges(dtype, count));
            let zero = zero(b);
            let x = b.unary(UnaryFn::Not, x)?;
            b.select(x, other, zero)
        });
        let quantized = graph(|b| {
            let x = input(b, DType::F32, &[count]);
            let x = b.binary_scalar(BinaryFn::Div, x, 0.1)?;
            let x = b.unary(UnaryFn::Round, x)?;
            let x = b.binary_scalar(BinaryFn::Max, x, 0.0)?;
            let x = b.binary_scalar(BinaryFn::Min, x, 127.0)?;
            b.cast(x, dtype)
        });
        for target in targets() {
            check(&selected, &edges(DType::Bool, count), &target, Close::Exactly);
            check(&quantized, &edges(DType::F32, count), &target, Close::Exactly);
        }
    }
}

#[test]
fn sums_of_every_type() {
    for dtype in [DType::F64, DType::F16, DType::BF16, DType::I64, DType::I8] {
        for (rows, columns, axis) in [(3, 1, 1), (2, 70, 1), (5, 37, 0), (40, 9, 0)] {
            let sum = graph(|b| {
                let x = input(b, dtype, &[rows, columns]);
                b.reduce(ReduceFn::Sum, x, &[axis])
            });
            let values: Vec<i64> = (0..rows * columns).map(|n| (n as i64 * 37 + 11) % 19 - 9).collect();
            let x = interp::cast(&Tensor::from_slice(&[rows, columns], &values), dtype, true);
            for target in targets() {
                check(&sum, &x, &target, Close::Within(1e-2));
            }
        }
    }
}

/// Sums are in f32, and the factors of them in vectors.
#[test]
fn matrix_products_of_halves_and_doubles() {
    let fill = |dtype, sizes: &[usize]| {
        let count: usize = sizes.iter().product();
        let values: Vec<f64> = (0..count).map(|n| ((n * 7919 + 13) % 17) as f64 / 8.0 - 1.0).collect();
        interp::cast(&Tensor::from_slice(sizes, &values), dtype, true)
    };
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        for (m, k, n) in [(28, 33, 48), (1, 20, 130), (5, 9, 3), (17, 8, 24)] {
            let product = graph(|b| {
                let x = input(b, dtype, &[m, k]);
                let weights = b.constant(fill(dtype, &[k, n]));
                b.emit1(Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain }, &[x, weights])
            });
            for target in targets() {
                let kernels = check(&product, &fill(dtype, &[m, k]), &target, Close::Within(1e-3));
                let is_short = target.leaf_bytes() == Some(16);
                let fused = |inst: &&iced_x86::Instruction| {
                    let name =
                        if dtype == DType::F64 { Mnemonic::Vfmadd231pd } else { Mnemonic::Vfmadd231ps };
                    inst.mnemonic() == name && (is_short || inst.op0_register() >= Register::YMM0)
                };
                let all = kernels.is_empty() || n < 24 || kernels.iter().flatten().any(|inst| fused(&inst));
                assert!(all, "{dtype} {m} {k} {n}");
            }
        }
    }
}

/// Sums of products of bytes, all as large as they get, in more terms than one sum of floats holds.
#[test]
fn products_of_bytes_are_exact_at_the_extremes() {
    let (rows, terms, columns) = (3usize, 600usize, 20usize);
    for target in targets() {
        for weight in [127i8, -128] {
            let graph = graph(|b| {
                let x = input(b, DType::U8, &[rows, terms]);
                // A column in seven has other weights.
                let weights: Vec<i8> =
                    (0..terms * columns).map(|at| if at % columns % 7 == 0 { 1 } else { weight }).collect();
                let weights = b.constant(Tensor::from_slice(&[terms, columns], &weights));
                let (x, weights) = (b.cast(x, DType::I32)?, b.cast(weights, DType::I32)?);
                b.emit1(Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain }, &[x, weights])
            });
            let x = Tensor::from_slice(&[rows, terms], &vec![255u8; rows * terms]);
            let expected = interp::run(&graph, std::slice::from_ref(&x)).unwrap().remove(0);
            assert_eq!(expected.values::<i32>()[1], 255 * terms as i32 * i32::from(weight));
            check(&graph, &x, &target, Close::Exactly);
        }
    }
}
