//! `pow`, accurate to 0.7 ULP of f64, so that a power which the type has is that number.
//!
//! The product `b log2 |a|` may be 1000 and its fraction decides every bit of the result: both factors are sums of two f64, the
//! first with 21 bits of mantissa, so that products of first parts are exact whether or not the target fuses. Steps and coefficients are
//! those of FreeBSD msun `e_pow.c`.

use super::*;

/// `2 / (3 ln 2)`, whole, and in two parts.
const CP: f64 = 9.617_966_939_259_756e-1;
const CP_HIGH: f64 = 9.617_967_009_544_373e-1;
const CP_LOW: f64 = -7.028_461_650_952_758e-9;
/// `log2 1.5` in two parts.
const LOG2_HIGH: f64 = 5.849_624_872_207_642e-1;
const LOG2_LOW: f64 = 1.350_039_202_129_749e-8;
/// `ln 2`, whole, and in two parts.
const LN2: f64 = std::f64::consts::LN_2;
const LN2_HIGH: f64 = 6.931_471_824_645_996e-1;
const LN2_LOW: f64 = -1.904_654_299_957_768e-9;

impl Math<'_> {
    /// `a^b` of f32 or f64, with the special cases of IEEE 754 `pow`.
    pub(super) fn pow(&mut self, a: Expr, b: Expr, dtype: DType) -> Expr {
        let number = |value| Expr::constant(dtype, value);
        let base = self.bind(abs(a.clone()));
        let power = match dtype {
            DType::F64 => self.positive_power(base.clone(), b.clone()),
            _ => self.positive_power32(base.clone(), b.clone()),
        };
        // Powers of 0 and of infinity are these.
        let other = || select(eq(base.clone(), number(0.0)), number(f64::INFINITY), number(0.0));
        let known = constant(&b).filter(|b| b.is_finite() && *b != 0.0);
        let edge = match known {
            Some(b) if b < 0.0 => other(),
            Some(_) => base.clone(),
            None => select(lt(b.clone(), number(0.0)), other(), base.clone()),
        };
        let at_edge =
            Expr::binary(BinaryFn::Or, eq(base.clone(), number(0.0)), eq(base, number(f64::INFINITY)));
        let at_edge = self.bind(at_edge);
        let magnitude = self.bind(select(at_edge.clone(), edge, power));
        let negative = match dtype {
            DType::F64 => lt(bits(DType::I64, a.clone()), i64c(0)),
            _ => lt(bits(DType::I32, a.clone()), i32c(0)),
        };
        let negative = self.bind(negative);
        // Of a known exponent only the base decides; every large one is even.
        if let Some(b) = known {
            let value = if b % 2.0 != 0.0 && b % 1.0 == 0.0 {
                select(negative, neg(magnitude.clone()), magnitude)
            } else if b % 1.0 == 0.0 {
                magnitude
            } else {
                let invalid = Expr::binary(BinaryFn::And, negative, Expr::unary(UnaryFn::Not, at_edge));
                select(invalid, number(f64::NAN), magnitude)
            };
            return select(eq(a.clone(), a.clone()), value, a);
        }
        let (whole, odd) = self.is_whole_or_odd(&b, dtype);
        let flip = Expr::binary(BinaryFn::And, negative.clone(), odd);
        let value = select(flip, neg(magnitude.clone()), magnitude);
        let invalid = Expr::binary(BinaryFn::And, negative, Expr::unary(UnaryFn::Not, whole));
        let invalid = Expr::binary(BinaryFn::And, invalid, Expr::unary(UnaryFn::Not, at_edge));
        let value = select(invalid, number(f64::NAN), value);
        let numbers = Expr::binary(BinaryFn::And, eq(a.clone(), a.clone()), eq(b.clone(), b.clone()));
        let value = select(numbers, value, add(a.clone(), b.clone()));
        // 1 to any power, and anything to the power 0, is 1, NaN included.
        let one = Expr::binary(BinaryFn::Or, eq(b, number(0.0)), eq(a, number(1.0)));
        select(one, number(1.0), value)
    }

    /// Whether an exponent is a whole number, and whether it is an odd one.
    fn is_whole_or_odd(&mut self, b: &Expr, dtype: DType) -> (Expr, Expr) {
        let whole = self.bind(eq(round(b.clone()), b.clone()));
        let half = self.bind(mul(b.clone(), Expr::constant(dtype, 0.5)));
        // Every number so large that its half is whole is even; there the rounded half equals the half.
        let odd = Expr::compare(CompareFn::Ne, round(half.clone()), half);
        (whole.clone(), Expr::binary(BinaryFn::And, whole, odd))
    }

    /// `2^(b log2 a)` for a positive finite `a`.
    fn positive_power(&mut self, a: Expr, b: Expr) -> Expr {
        let (log_high, log_low) = self.log2_parts(a);
        // Beyond these the result is 0, 1 or infinity; infinite factors would give NaN.
        let b = self.bind(select(gt(b.clone(), c64(1e25)), c64(1e25), b));
        let b = self.bind(select(lt(b.clone(), c64(-1e25)), c64(-1e25), b));
        let b_high = self.high(b.clone());
        let low = mul(sub(b.clone(), b_high.clone()), log_high.clone());
        let low = self.bind(add(low, mul(b, log_low)));
        let high = self.bind(mul(b_high, log_high));
        self.exp2(high, low)
    }

    /// The first 32 bits of a number: 21 of its mantissa.
    fn high(&mut self, x: Expr) -> Expr {
        let mask = i64c(0xffff_ffff_0000_0000_u64 as i64);
        self.bind(bits(DType::F64, Expr::binary(BinaryFn::BitAnd, bits(DType::I64, x), mask)))
    }

    /// `log2 x` of a positive finite number as a sum, the first part of 21 bits.
    fn log2_parts(&mut self, x: Expr) -> (Expr, Expr) {
        let tiny = self.bind(lt(x.clone(), c64(f64::MIN_POSITIVE)));
        let scaled = select(tiny.clone(), mul(x.clone(), c64(2f64.powi(53))), x);
        let pattern = self.bind(bits(DType::I64, scaled));
        // x = 2^n m with m from sqrt(3) / 2 to sqrt(3), which is near to 1 or to 1.5.
        let offset = i64c((3f64.sqrt() / 2.0).to_bits() as i64);
        let n = self.bind(Expr::binary(BinaryFn::Shr, sub(pattern.clone(), offset), i64c(52)));
        let m = sub(pattern, Expr::binary(BinaryFn::Shl, n.clone(), i64c(52)));
        let m = self.bind(bits(DType::F64, m));
        let n = self.bind(sub(Expr::cast(DType::F64, n), select(tiny, c64(53.0), c64(0.0))));
        let middle = self.bind(gt(m.clone(), c64(1.5f64.sqrt())));
        let center = self.bind(select(middle.clone(), c64(1.5), c64(1.0)));

        // s = (m - center) / (m + center) in two parts; log m = log center + 2 atanh s.
        let difference = self.bind(sub(m.clone(), center.clone()));
        let total = self.bind(add(m.clone(), center.clone()));
        let inverse = self.bind(div(c64(1.0), total.clone()));
        let s = self.bind(mul(difference.clone(), inverse.clone()));
        let s_high = self.high(s.clone());
        let total_high = self.high(total);
        let total_low = sub(m, sub(total_high.clone(), center));
        let rest = sub(difference, mul(s_high.clone(), total_high));
        let rest = sub(rest, mul(s_high.clone(), total_low));
        let s_low = self.bind(mul(inverse, rest));

        // 3 + s^2 + r: the series of atanh s / s, times 3.
        let square = self.bind(mul(s.clone(), s.clone()));
        let series = poly(
            &square,
            [
                2.069_750_178_003_384_2e-1,
                2.306_607_457_755_617_5e-1,
                2.727_281_238_085_34e-1,
                3.333_333_298_183_774_3e-1,
                4.285_714_285_785_502e-1,
                5.999_999_999_999_946e-1,
            ]
            .map(c64),
        );
        let r = mul(mul(square.clone(), square), series);
        let r = self.bind(add(r, mul(s_low.clone(), add(s_high.clone(), s.clone()))));
        let square = self.bind(mul(s_high.clone(), s_high.clone()));
        let sum_high = self.high(add(add(c64(3.0), square.clone()), r.clone()));
        let sum_low = self.bind(sub(r, sub(sub(sum_high.clone(), c64(3.0)), square)));
        let u = self.bind(mul(s_high, sum_high.clone()));
        let v = self.bind(add(mul(s_low, sum_high), mul(sum_low, s)));
        let product_high = self.high(add(u.clone(), v.clone()));
        let product_low = sub(v, sub(product_high.clone(), u));

        let z_high = self.bind(mul(c64(CP_HIGH), product_high.clone()));
        let z_low = add(mul(c64(CP_LOW), product_high), mul(product_low, c64(CP)));
        let z_low = self.bind(add(z_low, select(middle.clone(), c64(LOG2_LOW), c64(0.0))));
        let center_high = self.bind(select(middle, c64(LOG2_HIGH), c64(0.0)));
        let sum = add(add(z_high.clone(), z_low.clone()), center_high.clone());
        let high = self.high(add(sum, n.clone()));
        let low = sub(z_low, sub(sub(sub(high.clone(), n), center_high), z_high));
        (high, self.bind(low))
    }

    /// `2^(high + low)`, `low` being the smaller by far.
    fn exp2(&mut self, high: Expr, low: Expr) -> Expr {
        // Beyond these the result is 0 or infinity.
        let high = self.bind(select(gt(high.clone(), c64(1100.0)), c64(1100.0), high));
        let high = self.bind(select(lt(high.clone(), c64(-1100.0)), c64(-1100.0), high));
        let low = self.bind(select(lt(abs(low.clone()), c64(1.0)), low, c64(0.0)));
        let n = self.bind(round(add(high.clone(), low.clone())));
        let high = self.bind(sub(high, n.clone()));
        let t = self.high(add(low.clone(), high.clone()));
        let u = self.bind(mul(t.clone(), c64(LN2_HIGH)));
        let v = mul(sub(low, sub(t.clone(), high)), c64(LN2));
        let v = self.bind(add(v, mul(t, c64(LN2_LOW))));
        let z = self.bind(add(u.clone(), v.clone()));
        let w = self.bind(sub(v, sub(z.clone(), u)));
        let square = self.bind(mul(z.clone(), z.clone()));
        let series = poly(
            &square,
            [
                4.138_136_797_057_238_5e-8,
                -1.653_390_220_546_525_2e-6,
                6.613_756_321_437_934e-5,
                -2.777_777_777_701_559_3e-3,
                1.666_666_666_666_660_2e-1,
            ]
            .map(c64),
        );
        let even = self.bind(sub(z.clone(), mul(square, series)));
        let quotient = div(mul(z.clone(), even.clone()), sub(even, c64(2.0)));
        let r = sub(quotient, add(w.clone(), mul(z.clone(), w)));
        let value = sub(c64(1.0), sub(r, z));
        self.times_power_of_two(value, n)
    }
}

/// The number that an exponent is.
fn constant(x: &Expr) -> Option<f64> {
    match *x {
        Expr::Const { dtype: DType::F64, bits } => Some(f64::from_bits(bits)),
        Expr::Const { dtype: DType::F32, bits } => Some(f64::from(f32::from_bits(bits as u32))),
        _ => None,
    }
}
