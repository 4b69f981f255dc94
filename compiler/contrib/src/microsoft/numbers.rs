//! Arithmetic of com.microsoft: on integers, on the two parts of complex numbers, distances, hashes, and whether all numbers
//! are finite.

use super::{BYTES, own, shifted};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use onnxc_ir::graph::{MapFn, Op};
use onnxc_ops::matmul::product;
use onnxc_ops::row::*;
use onnxc_ops::types::{FLOATS, FLOATS_F16};

pub const ROWS: &[OpDef] = &[
    own("MulInteger", mul_integer)
        .inputs(&[req("A", "T"), opt("A_zero_point", "T"), req("B", "T"), opt("B_zero_point", "T")])
        .outputs(&[req("C", "T1")])
        .types(&[("T", BYTES), ("T1", &[I32])])
        .shapes(&["broadcast(A, B)", "count(A_zero_point) = 1", "count(B_zero_point) = 1"])
        .doc("(A - A_zero_point) * (B - B_zero_point)"),
    own("MatMulInteger16", mat_mul_integer_16)
        .inputs(&[req("A", "T1"), req("B", "T2")])
        .outputs(&[req("Y", "T3")])
        .types(&[("T1", &[I16, U16]), ("T2", &[I16, U16]), ("T3", &[I32, U32])])
        .shapes(&["A[K] | [P.., M, K]", "B[K] | [Q.., K, N]", "broadcast(P, Q)"])
        .doc("matrix product of 16-bit operands in 32 bits, unsigned where both are"),
    own("ReduceSumInteger", reduce_sum_integer)
        .inputs(&[req("data", "T1")])
        .outputs(&[req("reduced", "T2")])
        .attributes(&[required("axes", Ints), required("keepdims", Int)])
        .types(&[("T1", &[I8, U8]), ("T2", &[I32, U32])])
        .doc("sum of 8-bit integers over axes in 32 bits, unsigned where they are"),
    own("CDist", distances)
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .attributes(&[string("metric", "sqeuclidean")])
        .types(&[("T", &[F32, F64])])
        .shapes(&["A[_, K]", "B[_, K]"])
        .doc("distances of all rows of A to all rows of B"),
    own("ComplexMul", |cx| complex_mul(cx, false))
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["A[.., 2]", "B[.., 2]", "broadcast(A, B)"])
        .doc("product of complex numbers, each two reals"),
    own("ComplexMulConj", |cx| complex_mul(cx, true))
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["A[.., 2]", "B[.., 2]", "broadcast(A, B)"])
        .doc("product of complex numbers and the conjugates of others"),
    own("IsAllFinite", is_all_finite)
        .inputs(&[var("input", "V")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("isinf_only", 0), int("isnan_only", 0)])
        .types(&[("V", FLOATS), ("T", BOOL)])
        .doc("whether no number is infinite, or none is NaN"),
    own("MurmurHash3", murmur_hash)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2")])
        .attributes(&[int("positive", 1), int("seed", 0)])
        .types(&[("T1", &[U32, I32, U64, I64, F32, F64, DType::Str]), ("T2", &[U32, I32])])
        .doc("32-bit MurmurHash3 of the bytes of each element"),
];

fn mul_integer(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, x_zero, y, y_zero) =
        (cx.input("A")?, cx.optional("A_zero_point"), cx.input("B")?, cx.optional("B_zero_point"));
    let (x, y) = (shifted(cx.b, x, x_zero, I32)?, shifted(cx.b, y, y_zero, I32)?);
    Ok(vec![cx.b.binary(BinaryFn::Mul, x, y)?])
}

fn mat_mul_integer_16(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("A")?, cx.input("B")?);
    let unsigned = cx.b.dtype(x) == U16 && cx.b.dtype(y) == U16;
    // Modulo 2^32 the sums are the same.
    let (x, y) = (cx.b.cast(x, I32)?, cx.b.cast(y, I32)?);
    let sum = product(cx.b, x, y)?;
    Ok(vec![if unsigned { cx.b.cast(sum, U32)? } else { sum }])
}

fn reduce_sum_integer(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("data")?;
    let axes = normalize_axes(&cx.ints("axes")?.unwrap_or_default(), cx.b.rank(x))?;
    let axes = if axes.is_empty() { (0..cx.b.rank(x)).collect() } else { axes };
    let to = if cx.b.dtype(x) == U8 { U32 } else { I32 };
    let x = cx.b.cast(x, to)?;
    let y = cx.b.reduce(ReduceFn::Sum, x, &axes)?;
    Ok(vec![if cx.int("keepdims")? != 0 { y } else { cx.b.squeeze(y, &axes)? }])
}

fn distances(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("A")?, cx.input("B")?);
    let root = match cx.str("metric")?.as_str() {
        "sqeuclidean" => false,
        "euclidean" => true,
        other => return not_one_of("metric", other, "sqeuclidean, euclidean"),
    };
    let b = &mut *cx.b;
    let (x, y) = (b.unsqueeze(x, &[1])?, b.unsqueeze(y, &[0])?);
    let difference = b.binary(BinaryFn::Sub, x, y)?;
    let squares = b.binary(BinaryFn::Mul, difference, difference)?;
    let sum = b.reduce(ReduceFn::Sum, squares, &[2])?;
    let sum = b.squeeze(sum, &[2])?;
    Ok(vec![if root { b.unary(UnaryFn::Sqrt, sum)? } else { sum }])
}

/// The real and the imaginary parts, without their axis.
fn parts(b: &mut Builder<'_>, x: ValueId) -> Result<[ValueId; 2]> {
    let axis = b.rank(x) - 1;
    let mut found = [x; 2];
    for (at, part) in found.iter_mut().enumerate() {
        let own = b.slice_axis(x, axis, Dim::from(at), Dim::ONE)?;
        *part = b.squeeze(own, &[axis])?;
    }
    Ok(found)
}

fn complex_mul(cx: &mut NodeCx<'_, '_>, conjugate: bool) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input(0)?, cx.input(1)?);
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let (x, y) = (b.widened(x)?, b.widened(y)?);
    let ([a, c], [d, e]) = (parts(b, x)?, parts(b, y)?);
    let e = if conjugate { b.unary(UnaryFn::Neg, e)? } else { e };
    let mut products = [a; 4];
    for (product, (left, right)) in products.iter_mut().zip([(a, d), (c, e), (a, e), (c, d)]) {
        *product = b.binary(BinaryFn::Mul, left, right)?;
    }
    let real = b.binary(BinaryFn::Sub, products[0], products[1])?;
    let imaginary = b.binary(BinaryFn::Add, products[2], products[3])?;
    let last = b.rank(real);
    let (real, imaginary) = (b.unsqueeze(real, &[last])?, b.unsqueeze(imaginary, &[last])?);
    let y = b.concat(&[real, imaginary], last)?;
    Ok(vec![b.cast(y, dtype)?])
}

fn is_all_finite(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (infinite, nan) = (cx.int("isinf_only")? != 0, cx.int("isnan_only")? != 0);
    if infinite && nan {
        return malformed("both isinf_only and isnan_only");
    }
    let mut functions = Vec::new();
    if !infinite {
        functions.push(UnaryFn::IsNan);
    }
    if !nan {
        functions.extend([UnaryFn::IsPosInf, UnaryFn::IsNegInf]);
    }
    let all = cx.all_inputs()?;
    let b = &mut *cx.b;
    let mut any = b.scalar(DType::Bool, 0.0);
    for x in all {
        let axes: Vec<usize> = (0..b.rank(x)).collect();
        for &function in &functions {
            let found = b.unary(function, x)?;
            let found = b.reduce(ReduceFn::Or, found, &axes)?;
            let found = b.squeeze(found, &axes)?;
            any = b.binary(BinaryFn::Or, any, found)?;
        }
    }
    Ok(vec![b.unary(UnaryFn::Not, any)?])
}

/// Bits turned to the left.
fn turned(b: &mut Builder<'_>, x: ValueId, count: u32) -> Result<ValueId> {
    let (left, right) = (b.scalar(U32, f64::from(count)), b.scalar(U32, f64::from(32 - count)));
    let high = b.binary(BinaryFn::Shl, x, left)?;
    let low = b.binary(BinaryFn::Shr, x, right)?;
    b.binary(BinaryFn::BitOr, high, low)
}

/// `x ^ (x >> count)`
fn folded(b: &mut Builder<'_>, x: ValueId, count: u32) -> Result<ValueId> {
    let count = b.scalar(U32, f64::from(count));
    let high = b.binary(BinaryFn::Shr, x, count)?;
    b.binary(BinaryFn::BitXor, x, high)
}

fn murmur_hash(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, seed, positive) = (cx.input("X")?, cx.int("seed")?, cx.int("positive")? != 0);
    let Ok(seed) = u32::try_from(seed) else {
        return malformed(format!("seed is {seed}; it must be from 0 to {}", u32::MAX));
    };
    let b = &mut *cx.b;
    if b.dtype(x) == DType::Str {
        return unsupported(format!("hashes of texts, {}: numbers are supported", b.ty(x)));
    }
    let wide = matches!(b.dtype(x), U64 | I64 | F64);
    let to = if wide { U64 } else { U32 };
    let bits = if b.dtype(x) == to { x } else { b.emit1(Op::Map(MapFn::Bitcast { to }), &[x])? };
    let words = if wide {
        let half = b.scalar(U64, 32.0);
        let high = b.binary(BinaryFn::Shr, bits, half)?;
        let low = b.binary_scalar(BinaryFn::BitAnd, bits, f64::from(u32::MAX))?;
        vec![b.cast(low, U32)?, b.cast(high, U32)?]
    } else {
        vec![bits]
    };
    let length = 4 * words.len();
    let mut hash = b.scalar(U32, f64::from(seed));
    for word in words {
        let k = b.binary_scalar(BinaryFn::Mul, word, f64::from(0xcc9e_2d51u32))?;
        let k = turned(b, k, 15)?;
        let k = b.binary_scalar(BinaryFn::Mul, k, f64::from(0x1b87_3593u32))?;
        hash = b.binary(BinaryFn::BitXor, hash, k)?;
        hash = turned(b, hash, 13)?;
        hash = b.binary_scalar(BinaryFn::Mul, hash, 5.0)?;
        hash = b.binary_scalar(BinaryFn::Add, hash, f64::from(0xe654_6b64u32))?;
    }
    hash = b.binary_scalar(BinaryFn::BitXor, hash, length as f64)?;
    hash = folded(b, hash, 16)?;
    hash = b.binary_scalar(BinaryFn::Mul, hash, f64::from(0x85eb_ca6bu32))?;
    hash = folded(b, hash, 13)?;
    hash = b.binary_scalar(BinaryFn::Mul, hash, f64::from(0xc2b2_ae35u32))?;
    hash = folded(b, hash, 16)?;
    Ok(vec![if positive { hash } else { b.emit1(Op::Map(MapFn::Bitcast { to: I32 }), &[hash])? }])
}
