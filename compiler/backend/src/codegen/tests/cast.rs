//! Conversions between all element types, as scalars and vectors, against the reference evaluator.

use super::*;
use onnxc_ir::graph::Tensor;
use onnxc_ir::interp;

pub(super) fn numeric() -> Vec<DType> {
    DType::all().filter(|d| !matches!(d, DType::C64 | DType::C128 | DType::Str)).collect()
}

/// `out[i] = f(x[i])` for `n` elements, `width` at a time; 0 for a scalar loop.
pub(super) fn map(from: DType, to: DType, n: i64, width: i64, f: impl Fn(Expr) -> Expr) -> Kernel {
    let mut kernel = Kernel::new("map");
    let x = buffer(&mut kernel, "x", from, n, Access::Read);
    let out = buffer(&mut kernel, "out", to, n, Access::Write);
    let (i, v) = (kernel.loop_var("i"), kernel.loop_var("v"));
    if width == 0 {
        let body = Stmt::Store { buf: out, index: Index::var(i), value: f(load(x, Index::var(i))) };
        kernel.body = vec![for_(i, 0i64, n, LoopKind::Serial, vec![body])];
        return kernel;
    }
    assert_eq!(n % width, 0);
    let at = scaled(i, width).add(&Index::var(v));
    let body = Stmt::Store { buf: out, index: at.clone(), value: f(load(x, at)) };
    let lanes = for_(v, 0i64, width, LoopKind::Vector, vec![body]);
    kernel.body = vec![for_(i, 0i64, n / width, LoopKind::Serial, vec![lanes])];
    kernel
}

fn f64_samples() -> Vec<f64> {
    let mut values = vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
    for exponent in -160..140 {
        for mantissa in [1.0, 1.25, 1.0625, 1.03125, 1.0 + 1.0 / 4096.0, 1.5, 1.75, 1.9375, 1.999] {
            values.push(mantissa * 2f64.powi(exponent));
            values.push(-mantissa * 2f64.powi(exponent));
        }
    }
    // Neighbours of ties of f16, and of the ends of the integer types.
    for base in [1.0 + 1.0 / 2048.0, 65504.0, 65520.0, 448.0, 464.0, 57344.0, 61440.0, 240.0, 6.0, 7.0] {
        values.extend([base, base * (1.0 + 1e-12), base * (1.0 - 1e-12), -base]);
    }
    for bits in [7, 8, 15, 16, 31, 32, 63, 64] {
        let base = 2f64.powi(bits);
        values.extend([base, base - 1.0, base + 1.0, -base, -base - 1.0, -base + 1.0, base - 0.5]);
    }
    values.extend((0..64).map(|i| f64::from(i) * 0.5 - 16.0));
    values
}

/// Elements of a dtype that try every case; a multiple of 16 of them.
pub(super) fn samples(dtype: DType) -> Tensor {
    let mut data: Vec<u8> = match dtype {
        DType::F64 => bytes_of(&f64_samples(), f64::to_le_bytes),
        DType::F32 => bytes_of(&f64_samples(), |x| (x as f32).to_le_bytes()),
        DType::F16 | DType::BF16 => (0..=u16::MAX).step_by(7).flat_map(u16::to_le_bytes).collect(),
        DType::Bool => vec![0, 1],
        DType::I2 => vec![0, 1, 0xfe, 0xff],
        DType::U2 | DType::U4 | DType::F4E2M1 | DType::F6E2M3 | DType::F6E3M2 => {
            (0..1 << dtype.bits()).collect()
        }
        DType::I4 => (0..16u8).map(|code| ((code << 4) as i8 >> 4) as u8).collect(),
        _ if dtype.size() == 1 => (0..=255).collect(),
        _ => {
            let mut values = vec![];
            for bit in 0..64 {
                let base = 1u64 << bit;
                values.extend([
                    base,
                    base - 1,
                    base + 1,
                    base.wrapping_neg(),
                    (base | base >> 1).rotate_left(7),
                    // Above a tie of f32 by less than f64 has room for.
                    base | base >> 24 | 1,
                    (base | base >> 24 | 1).wrapping_neg(),
                ]);
            }
            values.iter().flat_map(|v| v.to_le_bytes()[..dtype.size()].to_vec()).collect()
        }
    };
    let size = dtype.size();
    while !(data.len() / size).is_multiple_of(16) {
        data.extend_from_within(..size);
    }
    Tensor::new(dtype, vec![data.len() / size], data.into())
}

/// Panics at the first element that differs; all NaNs are equal.
pub(super) fn assert_same(dtype: DType, got: &[u8], want: &[u8], what: &dyn Fn(usize) -> String) {
    let size = dtype.size();
    let wide = |data: &[u8]| {
        let tensor = Tensor::new(dtype, vec![1], bytes::Bytes::copy_from_slice(data));
        let wide = interp::cast(&tensor, DType::F64, true);
        f64::from_le_bytes(wide.data[..8].try_into().unwrap())
    };
    assert_eq!(got.len(), want.len());
    for (at, (got, want)) in got.chunks_exact(size).zip(want.chunks_exact(size)).enumerate() {
        let both_nan = || dtype.is_float() && wide(got).is_nan() && wide(want).is_nan();
        assert!(got == want || both_nan(), "{}: got {got:x?}, want {want:x?}", what(at));
    }
}

/// The nearest f16 by distance, ties to the even code: `half` drops the low bits of an f64.
fn nearest_f16(x: f64) -> half::f16 {
    let near = half::f16::from_f64(x);
    if near.is_infinite() && x.abs() < 65520.0 {
        return half::f16::from_f64(65504.0f64.copysign(x));
    }
    if !near.is_finite() || x == 0.0 {
        return near;
    }
    let codes =
        [near.to_bits().wrapping_sub(1), near.to_bits(), near.to_bits() + 1].map(half::f16::from_bits);
    let finite = codes.into_iter().filter(|code| code.is_finite() && code.is_sign_negative() == (x < 0.0));
    finite
        .min_by(|a, b| {
            let distance = |code: &half::f16| (code.to_f64() - x).abs();
            distance(a).total_cmp(&distance(b)).then((a.to_bits() & 1).cmp(&(b.to_bits() & 1)))
        })
        .unwrap_or(near)
}

fn expected(x: &Tensor, to: DType, saturate: bool) -> Vec<u8> {
    if (x.dtype, to) == (DType::F64, DType::F16) {
        let values = x.data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()));
        return values.flat_map(|x| nearest_f16(x).to_le_bytes()).collect();
    }
    tensor_bytes(&interp::cast(x, to, saturate))
}

fn check(from: DType, to: DType, saturate: bool, width: i64, x: &Tensor) {
    let n = x.len() as i64;
    let kernel = map(from, to, n, width, |x| Expr::Cast { to, saturate, x: Box::new(x) });
    compile_elsewhere(&kernel);
    let want = expected(x, to, saturate);
    let size = from.size();
    for target in [target(), baseline()] {
        let mut buffers = vec![tensor_bytes(x), vec![0xaa; n as usize * to.size()]];
        build_at(&kernel, None, &target).run_ok(&mut buffers, &[]);
        assert_same(to, &buffers[1], &want, &|at| {
            let element = &x.data[at * size..(at + 1) * size];
            let cpu = &target.cpu;
            format!(
                "{from} to {to} on {cpu}, saturate {saturate}, width {width}, element {at} = {element:x?}"
            )
        });
    }
}

#[test]
fn scalar_casts_are_those_of_the_evaluator() {
    for from in numeric() {
        let x = samples(from);
        for to in numeric() {
            check(from, to, true, 0, &x);
            if to.is_float() {
                check(from, to, false, 0, &x);
            }
        }
    }
}

#[test]
fn vector_casts_are_those_of_the_evaluator() {
    for from in numeric() {
        let x = samples(from);
        for to in numeric() {
            for width in [4, 16] {
                check(from, to, true, width, &x);
            }
            if to.is_float() {
                check(from, to, false, 2, &x);
            }
        }
    }
}

/// The lanes of 128 bits, in vectors and alone, on processors from the least one on.
fn run_everywhere(from: DType, to: DType, x: &[u8]) -> Vec<(String, Vec<u8>)> {
    let n = (x.len() / from.size()) as i64;
    let mut found = vec![];
    for width in [0, 4] {
        let kernel = map(from, to, n, width, |x| Expr::Cast { to, saturate: true, x: Box::new(x) });
        for target in [target(), baseline()] {
            let mut buffers = vec![x.to_vec(), vec![0xaa; n as usize * to.size()]];
            build_at(&kernel, None, &target).run_ok(&mut buffers, &[]);
            found.push((format!("{} in {width} lanes", target.cpu), buffers.remove(1)));
        }
    }
    found
}

/// Every number and every NaN, whose bits are those that instructions of processors give: made quiet, and no others.
#[test]
fn every_half_is_widened_exactly() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let codes = bytes_of(&halves, u16::to_le_bytes);
    let quiet = |value: f32| if value.is_nan() { value.to_bits() | 0x0040_0000 } else { value.to_bits() };
    for (dtype, value) in [
        (DType::F16, (|bits| half::f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        (DType::BF16, |bits| f32::from_bits(u32::from(bits) << 16)),
    ] {
        for (what, found) in run_everywhere(dtype, DType::F32, &codes) {
            for (&code, found) in halves.iter().zip(f32s(&found)) {
                let wanted = value(code);
                // What moves only its bits keeps those of a NaN.
                let same = match dtype {
                    DType::F16 => found.to_bits() == quiet(wanted),
                    _ => quiet(found) == quiet(wanted),
                };
                assert!(same, "{dtype} {code:#x}: {found} ({:#x}), {what}", found.to_bits());
            }
        }
    }
}

/// Around every number of 16 bits and every tie between two: to the nearest, ties to even.
#[test]
fn every_boundary_is_narrowed_to_the_nearest() {
    for dtype in [DType::F16, DType::BF16] {
        let value = |code: u16| match dtype {
            DType::F16 => half::f16::from_bits(code).to_f32(),
            _ => half::bf16::from_bits(code).to_f32(),
        };
        let mut values = vec![];
        for code in 0..=u16::MAX {
            let (own, next) = (value(code), value(code.wrapping_add(1)));
            let tie = ((f64::from(own) + f64::from(next)) / 2.0) as f32;
            for center in [own, tie] {
                values.extend(
                    [-1, 0, 1].map(|step| f32::from_bits(center.to_bits().wrapping_add_signed(step))),
                );
            }
        }
        values.resize(values.len().next_multiple_of(4), 0.0);
        let wanted = |value: f32| match dtype {
            DType::F16 => half::f16::from_f32(value).to_bits(),
            _ => half::bf16::from_f32(value).to_bits(),
        };
        for (what, found) in run_everywhere(DType::F32, dtype, &f32_bytes(&values)) {
            for (&value, found) in values.iter().zip(found.chunks_exact(2)) {
                let found = u16::from_le_bytes([found[0], found[1]]);
                assert!(found == wanted(value), "{value} to {dtype}: {found:#x}, {what}");
            }
        }
    }
}

#[test]
fn unsaturated_casts_to_integers_convert_what_is_in_range() {
    let values: Vec<f32> = (-64..64).map(|i| i as f32 * 0.9).collect();
    let x = Tensor::new(DType::F32, vec![values.len()], f32_bytes(&values).into());
    for to in [DType::I8, DType::I16, DType::I32, DType::I64] {
        for width in [0, 4, 8] {
            check(DType::F32, to, false, width, &x);
        }
    }
}

#[test]
fn moves_keep_every_bit() {
    for dtype in numeric() {
        let x = samples(dtype);
        for width in [0, 2, 16] {
            let mut buffers = vec![tensor_bytes(&x), vec![0xaa; x.data.len()]];
            build(&map(dtype, dtype, x.len() as i64, width, |x| x)).run_ok(&mut buffers, &[]);
            assert_eq!(buffers[0], buffers[1], "{dtype} width {width}");
        }
    }
}

#[test]
fn bitcasts_keep_every_bit() {
    for from in numeric() {
        for to in numeric().into_iter().filter(|to| to.size() == from.size()) {
            // Types of 4 bits and fewer, and bool, have codes that others do not.
            // NaNs become quiet, which another float type may see as another number.
            let floats = from.is_float() && to.is_float();
            if from.bits() != to.bits()
                || from == DType::Bool
                || to == DType::Bool
                || floats
                || (from.bits() < 8 && from != to)
            {
                continue;
            }
            let x = samples(from);
            for width in [0, 2, 4, 16] {
                let mut buffers = vec![tensor_bytes(&x), vec![0xaa; x.data.len()]];
                let kernel = map(from, to, x.len() as i64, width, |x| Expr::Bitcast { to, x: Box::new(x) });
                build(&kernel).run_ok(&mut buffers, &[]);
                if from.is_float() || to.is_float() {
                    let as_to = if from.is_float() { from } else { to };
                    assert_same(as_to, &buffers[1], &buffers[0], &|at| {
                        format!("{from} as {to}, {width}: {at}")
                    });
                } else if from.bits() >= 8 {
                    assert_eq!(buffers[0], buffers[1], "{from} as {to}, {width}");
                }
            }
        }
    }
}
