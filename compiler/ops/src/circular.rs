//! Sine, cosine and tangent. The functions of the back ends are accurate to about 2^30; beyond, the argument, as an f64, is
//! reduced by the bits of 2/pi that its exponent asks for (M. H. Payne and R. N. Hanek, 1983), in integers. That is many
//! steps: they run only where some element needs them.

use std::sync::Arc;

use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::op::Shapes;
use onnxc_ir::graph::{Graph, MapFn, Op, Tensor};

/// The magnitude up to which the plain function is accurate.
const NEAR: f64 = (1u64 << 30) as f64;

/// The row of an operator.
pub fn row(cx: &mut NodeCx<'_, '_>, function: UnaryFn) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    Ok(vec![circular(cx.b, x, function)?])
}

/// Sine, cosine or tangent of `x`.
pub fn circular(b: &mut Builder<'_>, x: ValueId, function: UnaryFn) -> Result<ValueId> {
    // All of f16 is near.
    if b.dtype(x) == DType::F16 || b.graph.is_constant(x) {
        return b.unary(function, x);
    }
    let far = any_far(b, x)?;
    let bodies = Arc::new([of_any(b, x, function)?, of_near(b, x, function)?]);
    let y = b.emit1(Op::If { bodies, shapes: Shapes::new() }, &[far, x])?;
    b.graph.functions.insert(y, (function, x));
    Ok(y)
}

/// Whether an element is not below [`NEAR`], as a scalar.
fn any_far(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let near = is_near(b, x)?;
    // Numbers, as their greatest is found in vectors.
    let dtype = if b.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    let (zero, one) = (b.scalar(dtype, 0.0), b.scalar(dtype, 1.0));
    let far = b.select(near, zero, one)?;
    let axes: Vec<usize> = (0..b.rank(x)).collect();
    let most = b.reduce(ReduceFn::Max, far, &axes)?;
    let most = b.reshape(most, vec![])?;
    b.compare(CompareFn::Gt, most, zero)
}

fn is_near(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let (size, limit) = (b.unary(UnaryFn::Abs, x)?, b.scalar(b.dtype(x), NEAR));
    b.compare(CompareFn::Lt, size, limit)
}

fn of_near(outer: &Builder<'_>, x: ValueId, function: UnaryFn) -> Result<Graph> {
    let (mut body, origin) = outer.body();
    let mut b = Builder::new(&mut body, origin);
    let x = b.input("x", outer.ty(x).clone(), None);
    let y = b.unary(function, x)?;
    body.outputs = vec![(String::new(), y)];
    Ok(body)
}

fn of_any(outer: &Builder<'_>, x: ValueId, function: UnaryFn) -> Result<Graph> {
    let (mut body, origin) = outer.body();
    let mut b = Builder::new(&mut body, origin);
    let x = b.input("x", outer.ty(x).clone(), None);
    let near = is_near(&mut b, x)?;
    let wide = b.cast(x, DType::F64)?;
    let far = of_far(&mut b, wide, function)?;
    let far = b.cast(far, b.dtype(x))?;
    let zero = b.scalar(b.dtype(x), 0.0);
    let inside = b.select(near, x, zero)?;
    let plain = b.unary(function, inside)?;
    let y = b.select(near, plain, far)?;
    body.outputs = vec![(String::new(), y)];
    Ok(body)
}

/// Finite magnitudes from [`NEAR`] on; NaN for what is not finite.
fn of_far(b: &mut Builder<'_>, x: ValueId, function: UnaryFn) -> Result<ValueId> {
    let (quadrant, rest) = reduced(b, x)?;
    let (sine, cosine) = (b.unary(UnaryFn::Sin, rest)?, b.unary(UnaryFn::Cos, rest)?);
    let zero = b.scalar(DType::F64, 0.0);
    let negative = b.compare(CompareFn::Lt, x, zero)?;
    let value = match function {
        UnaryFn::Cos => in_quadrant(b, quadrant, 1, sine, cosine)?,
        _ => {
            let value = in_quadrant(b, quadrant, 0, sine, cosine)?;
            let value = match function {
                UnaryFn::Tan => {
                    let cosine = in_quadrant(b, quadrant, 1, sine, cosine)?;
                    b.binary(BinaryFn::Div, value, cosine)?
                }
                _ => value,
            };
            let negated = b.unary(UnaryFn::Neg, value)?;
            b.select(negative, negated, value)?
        }
    };
    let (size, infinity) = (b.unary(UnaryFn::Abs, x)?, b.scalar(DType::F64, f64::INFINITY));
    let finite = b.compare(CompareFn::Lt, size, infinity)?;
    let nan = b.scalar(DType::F64, f64::NAN);
    b.select(finite, value, nan)
}

/// The sine of what lies `more` quarter turns further than `quadrant` says.
fn in_quadrant(
    b: &mut Builder<'_>,
    quadrant: ValueId,
    more: u64,
    sine: ValueId,
    cosine: ValueId,
) -> Result<ValueId> {
    let turns = b.binary_scalar(BinaryFn::Add, quadrant, more as f64)?;
    let bit = |b: &mut Builder<'_>, mask: f64| {
        let bit = b.binary_scalar(BinaryFn::BitAnd, turns, mask)?;
        let zero = b.scalar(DType::U64, 0.0);
        b.compare(CompareFn::Eq, bit, zero)
    };
    let even = bit(b, 1.0)?;
    let first = bit(b, 2.0)?;
    let value = b.select(even, sine, cosine)?;
    let negated = b.unary(UnaryFn::Neg, value)?;
    b.select(first, value, negated)
}

fn shift(b: &mut Builder<'_>, function: BinaryFn, x: ValueId, count: u32) -> Result<ValueId> {
    b.binary_scalar(function, x, f64::from(count))
}

/// The magnitude of `x` less a multiple of pi/2, within pi/4, and that multiple, u64, whose lowest two bits count.
///
/// With `|x| = m 2^e`, a bit of 2/pi of weight `2^-j` counts for `m 2^(e - j)` quarters of a turn: whole turns where
/// `j < e - 1`. Of the 192 bits from there on the product with `m` is exact, modulo 4.
fn reduced(b: &mut Builder<'_>, x: ValueId) -> Result<(ValueId, ValueId)> {
    let bits = b.emit1(Op::Map(MapFn::Bitcast { to: DType::U64 }), &[x])?;
    let field = shift(b, BinaryFn::Shr, bits, 52)?;
    let field = b.binary_scalar(BinaryFn::BitAnd, field, 2047.0)?;
    let mask = b.constant(Tensor::scalar((1u64 << 52) - 1));
    let mantissa = b.binary(BinaryFn::BitAnd, bits, mask)?;
    let hidden = b.constant(Tensor::scalar(1u64 << 52));
    let mantissa = b.binary(BinaryFn::BitOr, mantissa, hidden)?;
    let [high, middle, low] = window(b, field)?;
    // [P0, P1] is the product in units of 2^-62 and 2^-126.
    let first = b.binary(BinaryFn::Mul, mantissa, high)?;
    let second = b.binary(BinaryFn::Mul, mantissa, middle)?;
    let (carried, third) = (high_product(b, mantissa, middle)?, high_product(b, mantissa, low)?);
    let p1 = b.binary(BinaryFn::Add, second, third)?;
    let carry = b.compare(CompareFn::Lt, p1, second)?;
    let carry = b.cast(carry, DType::U64)?;
    let p0 = b.binary(BinaryFn::Add, first, carried)?;
    let p0 = b.binary(BinaryFn::Add, p0, carry)?;
    // The nearest multiple: a fraction of a half or more counts as negative, and for one more.
    let whole = shift(b, BinaryFn::Shr, p0, 62)?;
    let half = shift(b, BinaryFn::Shr, p0, 61)?;
    let half = b.binary_scalar(BinaryFn::BitAnd, half, 1.0)?;
    let quadrant = b.binary(BinaryFn::Add, whole, half)?;
    let (left, more) = (shift(b, BinaryFn::Shl, p0, 2)?, shift(b, BinaryFn::Shr, p1, 62)?);
    let left = b.binary(BinaryFn::BitOr, left, more)?;
    let right = shift(b, BinaryFn::Shl, p1, 2)?;
    let left = b.emit1(Op::Map(MapFn::Bitcast { to: DType::I64 }), &[left])?;
    let (left, right) = (b.cast(left, DType::F64)?, b.cast(right, DType::F64)?);
    let (left, right) = (
        b.binary_scalar(BinaryFn::Mul, left, 2f64.powi(-64))?,
        b.binary_scalar(BinaryFn::Mul, right, 2f64.powi(-128))?,
    );
    let fraction = b.binary(BinaryFn::Add, left, right)?;
    Ok((quadrant, b.binary_scalar(BinaryFn::Mul, fraction, std::f64::consts::FRAC_PI_2)?))
}

/// The 192 bits of 2/pi that count for magnitudes of an exponent field, u64 each.
fn window(b: &mut Builder<'_>, field: ValueId) -> Result<[ValueId; 3]> {
    // Bit number 0 is the lowest of the first word, which has no other. The window starts at bit e - 1, e = field - 1075;
    // the table has 64 bits before bit 1.
    let words: Vec<u64> = std::iter::once(0).chain(TWO_OVER_PI).collect();
    let table = b.constant(Tensor::from_slice(&[words.len()], &words));
    let start = b.cast(field, DType::I64)?;
    let start = b.binary_scalar(BinaryFn::Sub, start, 1075.0 + 1.0 + 1.0 - 64.0)?;
    // Fields of other magnitudes than finite ones from 2^30 on would index beyond the table.
    let start = b.binary_scalar(BinaryFn::Max, start, 0.0)?;
    let start = b.binary_scalar(BinaryFn::Min, start, f64::from(2046 - 1075 - 2 + 64))?;
    let word = b.binary_scalar(BinaryFn::Div, start, 64.0)?;
    let offset = b.binary_scalar(BinaryFn::BitAnd, start, 63.0)?;
    let offset = b.cast(offset, DType::U64)?;
    let mut found = Vec::with_capacity(4);
    for at in 0..4 {
        let place = b.binary_scalar(BinaryFn::Add, word, f64::from(at))?;
        found.push(b.emit1(Op::Gather { axis: 0 }, &[table, place])?);
    }
    let most = b.scalar(DType::U64, 63.0);
    let back = b.binary(BinaryFn::Sub, most, offset)?;
    let mut joined = |at: usize| -> Result<ValueId> {
        let left = b.binary(BinaryFn::Shl, found[at], offset)?;
        // By 64 - offset, which may be the whole word.
        let right = shift(b, BinaryFn::Shr, found[at + 1], 1)?;
        let right = b.binary(BinaryFn::Shr, right, back)?;
        b.binary(BinaryFn::BitOr, left, right)
    };
    Ok([joined(0)?, joined(1)?, joined(2)?])
}

/// The upper 64 bits of a product of u64.
fn high_product(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
    let half = |b: &mut Builder<'_>, x: ValueId| b.binary_scalar(BinaryFn::BitAnd, x, f64::from(u32::MAX));
    let (x0, y0) = (half(b, x)?, half(b, y)?);
    let (x1, y1) = (shift(b, BinaryFn::Shr, x, 32)?, shift(b, BinaryFn::Shr, y, 32)?);
    let low = b.binary(BinaryFn::Mul, x0, y0)?;
    let low = shift(b, BinaryFn::Shr, low, 32)?;
    let (one, other) = (b.binary(BinaryFn::Mul, x1, y0)?, b.binary(BinaryFn::Mul, x0, y1)?);
    let (one_low, other_low) = (half(b, one)?, half(b, other)?);
    let middle = b.binary(BinaryFn::Add, low, one_low)?;
    let middle = b.binary(BinaryFn::Add, middle, other_low)?;
    let mut high = b.binary(BinaryFn::Mul, x1, y1)?;
    for part in [one, other, middle] {
        let part = shift(b, BinaryFn::Shr, part, 32)?;
        high = b.binary(BinaryFn::Add, high, part)?;
    }
    Ok(high)
}

/// The bits of 2/pi after the point, the first one of weight 1/2.
const TWO_OVER_PI: [u64; 20] = [
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
    0xfe1d_eb1c_b129_a73e,
    0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41,
    0x3991_d639_8353_39f4,
    0x9c84_5f8b_bdf9_283b,
    0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f,
    0x6d36_7ecf_27cb_09b7,
    0x4f46_3f66_9e5f_ea2d,
    0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea,
    0x6bfb_5fb1_1f8d_5d08,
    0x5603_3046_fc7b_6bab,
    0xf0cf_bc20_9af4_361d,
];

#[cfg(test)]
mod tests {
    use super::high_product;
    use crate::node_case::Case;
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{Graph, Origin, Tensor};
    use onnxc_ir::interp;

    #[test]
    fn products_of_128_bits() {
        let factors = [
            0u64,
            1,
            u64::MAX,
            1 << 32,
            (1 << 32) - 1,
            1 << 63,
            0x9e37_79b9_7f4a_7c15,
            0xffff_ffff_0000_0001,
        ];
        let pairs: Vec<[u64; 2]> = factors.iter().flat_map(|&x| factors.map(|y| [x, y])).collect();
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("t", "t", 0));
        let mut b = Builder::new(&mut graph, origin);
        let [x, y] = [0, 1].map(|of| {
            let values: Vec<u64> = pairs.iter().map(|pair| pair[of]).collect();
            b.constant(Tensor::from_slice(&[values.len()], &values))
        });
        let high = high_product(&mut b, x, y).unwrap();
        graph.outputs = vec![("high".to_string(), high)];
        let found: Vec<u64> = interp::run(&graph, &[]).unwrap()[0].values();
        let wanted: Vec<u64> =
            pairs.iter().map(|[x, y]| ((u128::from(*x) * u128::from(*y)) >> 64) as u64).collect();
        assert_eq!(found, wanted);
    }

    /// Near and far magnitudes beside each other.
    #[test]
    fn far_magnitudes_of_f64() {
        let x = [
            f64::MAX,
            -f64::MAX,
            2f64.powi(30),
            -2f64.powi(30) - 1.0,
            1e10,
            -1e22,
            2f64.powi(1023),
            3.7e300,
            1.0,
            -0.5,
            0.0,
            1e5,
        ];
        for (name, function) in [("Sin", f64::sin as fn(f64) -> f64), ("Cos", f64::cos), ("Tan", f64::tan)] {
            for x in [&x[..], &x[8..]] {
                let found = Case::new(name, 22).symbolic(&["n"], &[x.len()], x).run().unwrap();
                for (x, found) in x.iter().zip(found[0].to_f64s().unwrap()) {
                    let exact = function(*x);
                    assert!(
                        (found - exact).abs() <= 1e-15 * exact.abs(),
                        "{name} of {x:e}: {found:e}, not {exact:e}"
                    );
                }
            }
            let x = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
            let found = Case::new(name, 22).input(&[3], &x).run().unwrap();
            assert!(found[0].to_f64s().unwrap().iter().all(|value| value.is_nan()), "{name}");
        }
    }

    #[test]
    fn far_magnitudes_of_f32() {
        let x = [3e38f32, -2e9, 1.5, 1e30];
        for (name, function) in [("Sin", f64::sin as fn(f64) -> f64), ("Cos", f64::cos), ("Tan", f64::tan)] {
            let exact = x.map(|x| function(f64::from(x)));
            Case::new(name, 22).symbolic(&["n"], &[4], &x).gives(0, &[4], &exact);
            let half = x.map(half::bf16::from_f32);
            let found = Case::new(name, 22).input(&[4], &half).run().unwrap();
            for (x, found) in half.iter().zip(found[0].to_f64s().unwrap()) {
                let exact = function(x.to_f64());
                assert!((found - exact).abs() <= exact.abs() / 256.0, "{name} of {x}: {found}, not {exact}");
            }
        }
    }

    /// Of all f64 this one lies nearest to a multiple of pi/2 (J.-M. Muller, Elementary Functions, 2006).
    #[test]
    fn the_hardest_argument() {
        let x = 6_381_956_970_095_103.0 * 2f64.powi(797);
        let found = Case::new("Cos", 22).input(&[1], &[x]).run().unwrap()[0].to_f64s().unwrap()[0];
        let exact = -4.687_165_924_254_628e-19;
        assert!((found - exact).abs() <= 4e-16 * exact.abs(), "{found:e}");
    }
}
