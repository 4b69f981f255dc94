//! Functions of f32 in f32 arithmetic, accurate to a few ULP.

use super::*;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has few enough bits that its product with an exponent is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// Of numbers this large the last bit is worth 1: adding it rounds. Its lower bits are the bias of exponents.
const ROUND: f32 = 12_582_912.0 + 127.0;

/// Up to here `e^x - 1` and `log(1 + x)` are `x` in f32.
const TINY: f32 = 1.490_116_1e-8;

/// Functions with an expansion in f32.
pub(super) fn has(op: UnaryFn) -> bool {
    use UnaryFn::*;
    matches!(op, Exp | Decay | Expm1 | Log | Log1p | Tanh | Erf | Sigmoid)
}

impl Math<'_> {
    /// `None` for functions that go through f64.
    pub(super) fn unary32(&mut self, op: UnaryFn, x: &Expr) -> Option<Expr> {
        let x = self.bind(x.clone());
        Some(match op {
            UnaryFn::Exp => self.exp32(x),
            UnaryFn::Decay => self.decay32(x),
            UnaryFn::Expm1 => self.expm1_32(x),
            UnaryFn::Log => self.log32(x),
            UnaryFn::Log1p => self.log1p32(x),
            UnaryFn::Tanh => self.tanh32(x),
            UnaryFn::Erf => self.erf32(x),
            UnaryFn::Sigmoid => {
                // Results that would be subnormal are 0.
                let (scale, p) = self.power32(clamp(x, -89.0, 87.0), -1.0);
                div(c32(1.0), fma(p, scale, c32(1.0)))
            }
            _ => return None,
        })
    }

    /// `2^n p`, `n = round(x / ln 2)`. The power of two is applied in two halves, so results run smoothly into infinity
    /// and the subnormals.
    fn exp32(&mut self, x: Expr) -> Expr {
        let x = self.bind(clamp(x, EXP_LEAST, 89.0));
        let n = self.bind(round(mul(x.clone(), c32(LOG2_E))));
        let p = self.fraction32(x, n.clone(), 1.0);
        let n = self.bind(small_int(n));
        let half = self.bind(Expr::binary(BinaryFn::Shr, n.clone(), i32c(1)));
        let first = power_of_two32(half.clone());
        let second = power_of_two32(sub(n, half));
        mul(mul(p, first), second)
    }

    /// As [`Self::exp32`] of an `x` of at most 0: the power of two is applied at once, and the bits of 2^-127 are those of 0.
    fn decay32(&mut self, x: Expr) -> Expr {
        let x = self.bind(clamp(x, -88.0, 0.0));
        let n = self.bind(round(mul(x.clone(), c32(LOG2_E))));
        let p = self.fraction32(x, n.clone(), 1.0);
        mul(p, power_of_two32(small_int(n)))
    }

    /// `e^x - 1` as `2^n (1 + g + g^2 q(g)) - 1`, within 0.96 ULP (all f32, fused and not); `n` is 0 up to 1/2, where the difference
    /// would cancel. Halves of the power of two and of 1 keep the greatest power finite.
    fn expm1_32(&mut self, x: Expr) -> Expr {
        /// As [`ROUND`], for half of the power of two.
        const ROUND: f32 = 12_582_912.0 + 126.0;
        // Below -20 the result is -1.
        let c = self.bind(clamp(x.clone(), -20.0, 89.0));
        let near = lt(abs(c.clone()), c32(0.5));
        let rounded = self.bind(select(near, c32(ROUND), fma(c.clone(), c32(LOG2_E), c32(ROUND))));
        let n = self.bind(sub(rounded.clone(), c32(ROUND)));
        let power = Expr::binary(BinaryFn::Shl, bits(DType::I32, rounded), i32c(23));
        let power = self.bind(bits(DType::F32, power));
        // c - n ln 2 as g and what rounding took from it.
        let first = self.bind(fma(n.clone(), c32(-LN2_HI), c));
        let second = self.bind(mul(n, c32(-LN2_LO)));
        let g = self.bind(add(first.clone(), second.clone()));
        let lost = add(sub(first, g.clone()), second);
        let q = poly(
            &g,
            [
                2.479_060_5e-5,
                1.997_624_3e-4,
                1.388_932_2e-3,
                8.333_134e-3,
                4.166_666e-2,
                1.666_666_7e-1,
                5e-1,
            ]
            .map(c32),
        );
        let p = fma(q, mul(g.clone(), g.clone()), lost);
        // The power less 1, and what rounding took from that.
        let less = self.bind(sub(power.clone(), c32(0.5)));
        let rest = sub(sub(power.clone(), less.clone()), c32(0.5));
        let half = self.bind(add(fma(power.clone(), g, fma(power, p, rest)), less));
        // A tiny number is its own result, and so is a zero of either sign.
        select(gt(abs(x.clone()), c32(TINY)), add(half.clone(), half), x)
    }

    /// `log(1 + x)` as `e ln 2 + log(1 + m)` with `1 + m = 2^-e (1 + x)` within `[3/4, 3/2)`, where `m` takes its bits from `x`, so that
    /// the rounding of `1 + x` does not show: within 0.98 ULP (all f32, fused and not). After N. Juffa.
    fn log1p32(&mut self, x: Expr) -> Expr {
        const EXPONENT: i32 = 0xff80_0000_u32 as i32;
        let sum = self.bind(add(x.clone(), c32(1.0)));
        let offset = sub(bits(DType::I32, sum.clone()), i32c(0.75f32.to_bits() as i32));
        let e = self.bind(Expr::binary(BinaryFn::BitAnd, offset, i32c(EXPONENT)));
        let scaled = bits(DType::F32, sub(bits(DType::I32, x.clone()), e.clone()));
        // 4 * 2^-e is a normal number for every e.
        let scale = bits(DType::F32, sub(i32c(4f32.to_bits() as i32), e.clone()));
        let m = self.bind(add(scaled, fma(c32(0.25), scale, c32(-1.0))));
        let r = poly(
            &m,
            [
                -4.490_842_7e-2,
                1.044_820_85e-1,
                -1.316_221_2e-1,
                1.448_207_5e-1,
                -1.664_777_1e-1,
                1.999_060_7e-1,
                -2.500_005_4e-1,
                3.333_345_4e-1,
                -5e-1,
            ]
            .map(c32),
        );
        let n = self.bind(Expr::cast(DType::F32, Expr::binary(BinaryFn::Shr, e, i32c(23))));
        let low = fma(n.clone(), c32(LN2_LO), mul(r, mul(m.clone(), m.clone())));
        let value = fma(n, c32(LN2_HI), add(m, low));
        let value = select(eq(sum.clone(), c32(0.0)), c32(f32::NEG_INFINITY), value);
        let value = select(lt(sum, c32(0.0)), c32(f32::NAN), value);
        // A tiny number is its own result, and so are a zero of either sign, infinity and NaN.
        let value = select(lt(x.clone(), c32(f32::INFINITY)), value, x.clone());
        select(gt(abs(x.clone()), c32(TINY)), value, x)
    }

    /// `(2^n, p)` with `e^(sign x) = 2^n p` for `sign x` from -87 to 89; where that overflows, the power of two is infinite.
    fn power32(&mut self, x: Expr, sign: f32) -> (Expr, Expr) {
        let x = self.bind(x);
        let (power, n) = self.whole_power32(fma(x.clone(), c32(sign * LOG2_E), c32(ROUND)));
        let p = self.fraction32(x, n, sign);
        (power, p)
    }

    /// `(2^n, n)` for the whole number `n` that adding [`ROUND`] rounded to, from -127, with a power of 0, to 128, with an infinite power.
    fn whole_power32(&mut self, rounded: Expr) -> (Expr, Expr) {
        let rounded = self.bind(rounded);
        let n = self.bind(sub(rounded.clone(), c32(ROUND)));
        let power = Expr::binary(BinaryFn::Shl, bits(DType::I32, rounded), i32c(23));
        (bits(DType::F32, power), n)
    }

    /// `e^r` for `r = sign x - n ln 2` within `[-ln2/2, ln2/2]`: a polynomial (coefficients: Cephes `expf`).
    fn fraction32(&mut self, x: Expr, n: Expr, sign: f32) -> Expr {
        // sign r, whose odd powers have the sign.
        let r = fma(n.clone(), c32(-sign * LN2_HI), x);
        let r = self.bind(fma(n, c32(-sign * LN2_LO), r));
        let odd = |value: f32| c32(sign * value);
        let coefficients = [
            odd(1.987_569_1e-4),
            c32(1.398_2e-3),
            odd(8.333_452e-3),
            c32(4.166_579_6e-2),
            odd(1.666_666_5e-1),
            c32(5e-1),
            odd(1.0),
            c32(1.0),
        ];
        poly(&r, coefficients)
    }

    /// `e ln 2 + log m` with `m` in `[sqrt(1/2), sqrt 2)` (coefficients: Cephes `logf`).
    fn log32(&mut self, x: Expr) -> Expr {
        // Subnormals are scaled into the normal range first.
        let tiny = self.bind(lt(x.clone(), c32(f32::MIN_POSITIVE)));
        let scaled = select(tiny.clone(), mul(x.clone(), c32(8_388_608.0)), x.clone());
        let pattern = self.bind(bits(DType::I32, scaled));
        let offset = sub(pattern.clone(), i32c(0x3f35_04f3));
        let e = self.bind(Expr::binary(BinaryFn::Shr, offset, i32c(23)));
        let m = bits(DType::F32, sub(pattern, Expr::binary(BinaryFn::Shl, e.clone(), i32c(23))));
        let f = self.bind(sub(m, c32(1.0)));
        let e = sub(Expr::cast(DType::F32, e), select(tiny, c32(23.0), c32(0.0)));
        let e = self.bind(e);
        let z = self.bind(mul(f.clone(), f.clone()));
        let p = poly(
            &f,
            [
                7.037_683_6e-2,
                -1.151_461_e-1,
                1.167_699_9e-1,
                -1.242_014_1e-1,
                1.424_932_3e-1,
                -1.666_805_8e-1,
                2.000_071_5e-1,
                -2.499_999_4e-1,
                3.333_333e-1,
            ]
            .map(c32),
        );
        let y = mul(mul(p, f.clone()), z.clone());
        let y = fma(e.clone(), c32(LN2_LO), y);
        let y = fma(z, c32(-0.5), y);
        let value = fma(e, c32(LN2_HI), add(f, y));
        let value = select(eq(x.clone(), c32(0.0)), c32(f32::NEG_INFINITY), value);
        let value = select(lt(x.clone(), c32(0.0)), c32(f32::NAN), value);
        // Infinity and NaN give themselves.
        select(lt(x.clone(), c32(f32::INFINITY)), value, x)
    }

    /// A rational approximation on `[-7.9, 7.9]`, beyond which the result is 1 in f32 (coefficients: Eigen).
    fn tanh32(&mut self, x: Expr) -> Expr {
        /// From here on the quotient is 1 or a bit more, fused or not.
        const LIMIT: f32 = 9.45;
        let a = self.bind(clamp(x.clone(), -LIMIT, LIMIT));
        let square = self.bind(mul(a.clone(), a.clone()));
        let p = poly(
            &square,
            [
                -2.760_768_5e-16,
                2.000_188e-13,
                -8.604_672e-11,
                5.122_297e-8,
                1.485_722_4e-5,
                6.372_619e-4,
                4.893_524_6e-3,
            ]
            .map(c32),
        );
        let q = poly(&square, [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3].map(c32));
        let value = clamp(div(mul(p, a), q), -1.0, 1.0);
        // tanh x = x to f32 precision near 0; this also keeps the sign of zero.
        select(lt(abs(x.clone()), c32(4e-4)), x, value)
    }

    /// `1 + tanh(x)`, used by the other GELU, as `2 / (1 + e^-2x)`: no cancellation where `x` is negative.
    pub(super) fn one_plus_tanh32(&mut self, x: Expr) -> Expr {
        let (scale, p) = self.power32(clamp(mul(x, c32(2.0)), -89.0, 87.0), -1.0);
        div(c32(2.0), fma(p, scale, c32(1.0)))
    }

    /// `1 + erf(x)`, used by GELU, as `erfc(-x)`: half the steps of `erf`, and no cancellation where `x` is negative.
    ///
    /// `erfc(t) = 2^r(t)` for `t >= 0`. The polynomial `r` without constant term is the best on `[0, 4.5]` for an absolute
    /// error of the result of 4e-9 and a relative one of 1e-4, and falls from there on.
    pub(super) fn one_plus_erf32(&mut self, x: Expr) -> Expr {
        /// Here `r` is -127, for which the power of two is 0.
        const LIMIT: f32 = 7.936_733;
        let x = self.bind(x);
        let t = self.bind(Expr::binary(BinaryFn::Min, abs(x.clone()), c32(LIMIT)));
        let square = self.bind(mul(t.clone(), t.clone()));
        // Even and odd powers side by side, which halves the time that the result takes.
        let odd = poly(
            &square,
            [2.044_868_6e-5, 8.961_1e-4, 6.700_653_5e-5, -1.483_227_6e-1, -1.627_907_4].map(c32),
        );
        let even = poly(
            &square,
            [-9.710_259e-7, -1.835_02e-4, -2.300_709e-3, 2.775_514_9e-2, -9.184_400_4e-1].map(c32),
        );
        let r = self.bind(mul(fma(even, t.clone(), odd), t));
        let (scale, n) = self.whole_power32(add(r.clone(), c32(ROUND)));
        let f = self.bind(sub(r, n));
        // 2^f within [-1/2, 1/2], the relative error below 2e-9.
        let p = poly(
            &f,
            [1.535_333_7e-4, 1.339_890_1e-3, 9.618_438e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0]
                .map(c32),
        );
        let size = self.bind(mul(p, scale));
        select(lt(x, c32(0.0)), size.clone(), sub(c32(2.0), size))
    }

    /// Two polynomials, one inside an exponential, joined at 0.921875 (N. Juffa's minimax `erff`).
    fn erf32(&mut self, x: Expr) -> Expr {
        let t = self.bind(abs(x.clone()));
        let s = self.bind(mul(x.clone(), x.clone()));
        let high = fma(c32(-1.728_534_7e-5), t.clone(), c32(3.831_971_3e-4));
        let low = fma(c32(-3.883_964_4e-3), t.clone(), c32(2.425_462_2e-2));
        let r = fma(high, s.clone(), low);
        let r = fma(r, t.clone(), c32(-1.067_778_8e-1));
        let r = fma(r, t.clone(), c32(-6.348_467e-1));
        let r = fma(r, t.clone(), c32(-1.128_717_5));
        let r = mul(r, t.clone());
        // Far from 0 nothing is left of the exponential: e^-20 is 2e-9.
        let (scale, p) = self.power32(Expr::binary(BinaryFn::Max, r, c32(-20.0)), 1.0);
        let outer = fma(neg(p), scale, c32(1.0));
        let inner = poly(
            &s,
            [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_3e-1, -3.761_253_3e-1, 1.283_791_7e-1]
                .map(c32),
        );
        let inner = fma(inner, t.clone(), t.clone());
        let size = select(lt(t, c32(0.921_875)), inner, outer);
        let sign = Expr::binary(BinaryFn::BitAnd, bits(DType::I32, x), i32c(i32::MIN));
        bits(DType::F32, Expr::binary(BinaryFn::BitOr, bits(DType::I32, size), sign))
    }
}

/// Below this, and above 89, an exponential does not change. Far below where results round to 0: `n` is -254, and both halves of the
/// power of two are 0. Intel's processors take some 150 cycles for a result that underflows, and none for a product with zero:
/// minilm_f16, whose attention has masked scores, takes 0.94 of the time on Emerald Rapids.
pub(super) const EXP_LEAST: f32 = -176.0;

/// `x` within bounds; NaN stays.
pub(super) fn clamp(x: Expr, low: f32, high: f32) -> Expr {
    Expr::binary(BinaryFn::Min, Expr::binary(BinaryFn::Max, x, c32(low)), c32(high))
}

/// `2^n` for `-126 <= n <= 127`, and 0 for -127.
pub(super) fn power_of_two32(n: Expr) -> Expr {
    bits(DType::F32, Expr::binary(BinaryFn::Shl, add(n, i32c(127)), i32c(23)))
}

/// A whole number within the range of i32; a NaN may become any number.
pub(super) fn small_int(x: Expr) -> Expr {
    Expr::Cast { to: DType::I32, saturate: false, x: Box::new(x) }
}
