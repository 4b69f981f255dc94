//! `pow` of f32, accurate to 0.9 ULP, and to 0.4 before the last rounding, so that a power which the type has is that number.
//!
//! The steps are those of `pow.rs` with f32 for f64: first parts have 12 bits of mantissa (steps and coefficients of the logarithm:
//! FreeBSD msun `e_powf.c`, the series cut off where f32 does not show it).

use super::*;

/// `2 / (3 ln 2)`, whole, and in two parts.
const CP: f32 = 9.617_967e-1;
const CP_HIGH: f32 = 9.619_140_6e-1;
const CP_LOW: f32 = -1.173_685_74e-4;
/// `log2 1.5` in two parts.
const LOG2_HIGH: f32 = 5.849_609_4e-1;
const LOG2_LOW: f32 = 1.563_220_8e-6;
/// `ln 2` whole, and in two parts, the first of 11 bits.
const LN2: f32 = std::f32::consts::LN_2;
const LN2_HIGH: f32 = 0.693_115_23;
const LN2_LOW: f32 = 3.194_618_5e-5;
/// The first 20 bits of an f32: 12 of its mantissa.
const HIGH: u32 = 0xffff_f000;

impl Math<'_> {
    /// `2^(b log2 a)` for a positive finite `a`.
    pub(super) fn positive_power32(&mut self, a: Expr, b: Expr) -> Expr {
        let (log_high, log_low) = self.log2_parts32(a);
        // Beyond these the result is 0, 1 or infinity; infinite factors would give NaN.
        let (b, b_high, b_low) = match b {
            Expr::Const { bits, .. } => {
                let b = f32::from_bits(bits as u32).clamp(-1e10, 1e10);
                let high = f32::from_bits(b.to_bits() & HIGH);
                (c32(b), c32(high), c32(b - high))
            }
            b => {
                let b = self.bind(clamp(b, -1e10, 1e10));
                let high = self.high32(b.clone());
                (b.clone(), high.clone(), sub(b, high))
            }
        };
        let low = mul(b_low, log_high.clone());
        let low = self.bind(add(low, mul(b, log_low)));
        let high = self.bind(mul(b_high, log_high));
        self.exp2_32(high, low)
    }

    /// The part of a number that [`HIGH`] leaves.
    fn high32(&mut self, x: Expr) -> Expr {
        self.bind(bits(DType::F32, Expr::binary(BinaryFn::BitAnd, bits(DType::I32, x), i32c(HIGH as i32))))
    }

    /// `log2 x` of a positive finite number as a sum, the first part of 12 bits.
    fn log2_parts32(&mut self, x: Expr) -> (Expr, Expr) {
        let tiny = self.bind(lt(x.clone(), c32(f32::MIN_POSITIVE)));
        let scaled = select(tiny.clone(), mul(x.clone(), c32(16_777_216.0)), x);
        let pattern = self.bind(bits(DType::I32, scaled));
        // x = 2^n m with m from sqrt(3) / 2 to sqrt(3), which is near to 1 or to 1.5.
        let offset = i32c((3f32.sqrt() / 2.0).to_bits() as i32);
        let n = self.bind(Expr::binary(BinaryFn::Shr, sub(pattern.clone(), offset), i32c(23)));
        let m = sub(pattern, Expr::binary(BinaryFn::Shl, n.clone(), i32c(23)));
        let m = self.bind(bits(DType::F32, m));
        let n = self.bind(sub(Expr::cast(DType::F32, n), select(tiny, c32(24.0), c32(0.0))));
        let middle = self.bind(gt(m.clone(), c32(1.5f32.sqrt())));
        let center = self.bind(select(middle.clone(), c32(1.5), c32(1.0)));

        // s = (m - center) / (m + center) in two parts; log m = log center + 2 atanh s.
        let difference = self.bind(sub(m.clone(), center.clone()));
        let total = self.bind(add(m.clone(), center.clone()));
        let inverse = self.bind(div(c32(1.0), total.clone()));
        let s = self.bind(mul(difference.clone(), inverse.clone()));
        let s_high = self.high32(s.clone());
        let total_high = self.high32(total);
        let total_low = sub(m, sub(total_high.clone(), center));
        let rest = sub(difference, mul(s_high.clone(), total_high));
        let rest = sub(rest, mul(s_high.clone(), total_low));
        let s_low = self.bind(mul(inverse, rest));

        // 3 + s^2 + r: the series of atanh s / s, times 3.
        let square = self.bind(mul(s.clone(), s.clone()));
        let series = poly(&square, [3.333_333_4e-1, 4.285_714_3e-1, 0.6].map(c32));
        let r = mul(mul(square.clone(), square), series);
        let r = self.bind(add(r, mul(s_low.clone(), add(s_high.clone(), s.clone()))));
        let square = self.bind(mul(s_high.clone(), s_high.clone()));
        let sum_high = self.high32(add(add(c32(3.0), square.clone()), r.clone()));
        let sum_low = self.bind(sub(r, sub(sub(sum_high.clone(), c32(3.0)), square)));
        let u = self.bind(mul(s_high, sum_high.clone()));
        let v = self.bind(add(mul(s_low, sum_high), mul(sum_low, s)));
        let product_high = self.high32(add(u.clone(), v.clone()));
        let product_low = sub(v, sub(product_high.clone(), u));

        let z_high = self.bind(mul(c32(CP_HIGH), product_high.clone()));
        let z_low = add(mul(c32(CP_LOW), product_high), mul(product_low, c32(CP)));
        let z_low = self.bind(add(z_low, select(middle.clone(), c32(LOG2_LOW), c32(0.0))));
        let center_high = self.bind(select(middle, c32(LOG2_HIGH), c32(0.0)));
        let sum = add(add(z_high.clone(), z_low.clone()), center_high.clone());
        let high = self.high32(add(sum, n.clone()));
        let low = sub(z_low, sub(sub(sub(high.clone(), n), center_high), z_high));
        (high, self.bind(low))
    }

    /// `2^(high + low)`, `low` being the smaller by far.
    fn exp2_32(&mut self, high: Expr, low: Expr) -> Expr {
        // Beyond these the result is 0 or infinity; both halves of the least power of two are 0.
        let high = self.bind(clamp(high, -253.0, 200.0));
        let low = self.bind(select(lt(abs(low.clone()), c32(1.0)), low, c32(0.0)));
        let n = self.bind(round(add(high.clone(), low.clone())));
        let high = self.bind(sub(high, n.clone()));
        let z = self.bind(add(high.clone(), low.clone()));
        let rest = sub(low, sub(z.clone(), high));
        // 2^z = 1 + z ln 2 + z^2 q; the product of first parts is exact, and what 1 takes of it is added to the rest.
        let q = poly(&z, [1.535_337e-4, 1.339_89e-3, 9.618_438e-3, 5.550_332_4e-2, 2.402_264_8e-1].map(c32));
        let first = self.high32(z.clone());
        let second = sub(z.clone(), first.clone());
        let large = self.bind(mul(first.clone(), c32(LN2_HIGH)));
        let small = fma(second, c32(LN2), mul(first, c32(LN2_LOW)));
        let small = add(fma(rest, c32(LN2), mul(q, mul(z.clone(), z))), small);
        let sum = self.bind(add(c32(1.0), large.clone()));
        let lost = sub(large, sub(sum.clone(), c32(1.0)));
        let value = add(sum, add(lost, small));
        let n = self.bind(small_int(n));
        let half = self.bind(Expr::binary(BinaryFn::Shr, n.clone(), i32c(1)));
        let (one, other) = (power_of_two32(half.clone()), power_of_two32(sub(n, half)));
        mul(mul(value, one), other)
    }
}
