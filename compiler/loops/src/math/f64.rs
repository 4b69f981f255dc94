//! Functions of f64. Coefficients are those of the Cephes library, unless a function says otherwise.

use super::*;
use onnxc_ir::scalar::DECAY_LEAST;

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, LOG2_E, PI};

impl Math<'_> {
    pub(super) fn unary64(&mut self, op: UnaryFn, x: Expr) -> Expr {
        let x = self.bind(x);
        match op {
            UnaryFn::Exp => self.exp64(x),
            UnaryFn::Decay => {
                let power = self.exp64(Expr::binary(BinaryFn::Min, x.clone(), c64(0.0)));
                select(lt(x, c64(f64::from(DECAY_LEAST))), c64(0.0), power)
            }
            UnaryFn::Log => self.log64(x),
            UnaryFn::Log1p => self.log1p64(x),
            UnaryFn::Expm1 => self.expm1_64(x),
            UnaryFn::Sin => self.sin_or_cos64(x, 0),
            UnaryFn::Cos => self.sin_or_cos64(x, 1),
            UnaryFn::Tan => {
                let (sin, cos) = (self.sin_or_cos64(x.clone(), 0), self.sin_or_cos64(x, 1));
                div(sin, cos)
            }
            UnaryFn::Atan => self.atan64(x),
            UnaryFn::Asin => {
                let other = self.bind(leg(&x));
                self.atan2_64(x, other)
            }
            UnaryFn::Acos => {
                let other = self.bind(leg(&x));
                self.atan2_64(other, x)
            }
            UnaryFn::Sinh => {
                // (e + e / (e + 1)) / 2 with e = expm1 |x|, halved first so that large results do not overflow early.
                let a = self.bind(abs(x.clone()));
                let e = self.expm1_64(a.clone());
                let e = self.bind(e);
                let small = mul(add(e.clone(), div(e.clone(), add(e, c64(1.0)))), c64(0.5));
                let half = self.exp64(mul(a.clone(), c64(0.5)));
                let half = self.bind(half);
                let large = mul(mul(half.clone(), c64(0.5)), half);
                let value = select(gt(a, c64(30.0)), large, small);
                self.with_sign(value, &x)
            }
            UnaryFn::Cosh => {
                let half = self.exp64(mul(abs(x), c64(0.5)));
                let half = self.bind(half);
                let e = self.bind(mul(half.clone(), half.clone()));
                // For large x the second term vanishes, and e alone would overflow before its half.
                let large = mul(mul(half.clone(), c64(0.5)), half);
                select(gt(e.clone(), c64(1e20)), large, mul(add(e.clone(), div(c64(1.0), e)), c64(0.5)))
            }
            UnaryFn::Tanh => {
                let a = self.bind(abs(x.clone()));
                let a = select(gt(a.clone(), c64(22.0)), c64(22.0), a);
                let t = self.expm1_64(mul(a, c64(2.0)));
                let t = self.bind(t);
                let value = div(t.clone(), add(t, c64(2.0)));
                self.with_sign(value, &x)
            }
            UnaryFn::Asinh => {
                let a = self.bind(abs(x.clone()));
                let square = self.bind(mul(a.clone(), a.clone()));
                let inner = add(a.clone(), div(square.clone(), add(c64(1.0), sqrt(add(square, c64(1.0))))));
                let inner = self.bind(inner);
                let small = self.log1p64(inner);
                let log = self.log64(a.clone());
                let value = select(gt(a, c64(1e10)), add(log, c64(LN_2)), small);
                self.with_sign(value, &x)
            }
            UnaryFn::Acosh => {
                let t = self.bind(sub(x.clone(), c64(1.0)));
                // Two roots, so that both are NaN below 1, for any square of x.
                let root = mul(sqrt(t.clone()), sqrt(add(t.clone(), c64(2.0))));
                let inner = self.bind(add(t, root));
                let small = self.log1p64(inner);
                let log = self.log64(x.clone());
                select(gt(x, c64(1e10)), add(log, c64(LN_2)), small)
            }
            UnaryFn::Atanh => {
                let a = self.bind(abs(x.clone()));
                let inner = self.bind(div(mul(a.clone(), c64(2.0)), sub(c64(1.0), a)));
                let log = self.log1p64(inner);
                self.with_sign(mul(log, c64(0.5)), &x)
            }
            UnaryFn::Sigmoid => {
                let e = self.exp64(neg(x));
                div(c64(1.0), add(c64(1.0), e))
            }
            UnaryFn::Erf => self.erf64(x),
            // The arithmetic functions never come here.
            other => Expr::unary(other, x),
        }
    }

    /// The magnitude with the sign of `of`; zeros and NaNs of `of` come through as they are.
    fn with_sign(&mut self, magnitude: Expr, of: &Expr) -> Expr {
        let magnitude = self.bind(magnitude);
        let signed = select(lt(of.clone(), c64(0.0)), neg(magnitude.clone()), magnitude);
        select(gt(abs(of.clone()), c64(0.0)), signed, of.clone())
    }

    pub(super) fn exp64(&mut self, x: Expr) -> Expr {
        let x = self.bind(x);
        let x = self.bind(select(lt(x.clone(), c64(-746.0)), c64(EXP_LEAST), x));
        let x = self.bind(select(gt(x.clone(), c64(710.0)), c64(710.0), x));
        let n = self.bind(round(mul(x.clone(), c64(LOG2_E))));
        let r = fma(neg(n.clone()), c64(6.931_457_519_531_25e-1), x);
        let r = self.bind(fma(neg(n.clone()), c64(1.428_606_820_309_417_2e-6), r));
        let square = self.bind(mul(r.clone(), r.clone()));
        let p = poly(&square, [1.261_771_930_748_105_9e-4, 3.029_944_077_074_419_6e-2, 1.0].map(c64));
        let p = self.bind(mul(p, r));
        let q = poly(
            &square,
            [3.001_985_051_386_644_6e-6, 2.524_483_403_496_841e-3, 2.272_655_482_081_550_3e-1, 2.0].map(c64),
        );
        let value = fma(div(p.clone(), sub(q, p)), c64(2.0), c64(1.0));
        self.times_power_of_two(value, n)
    }

    /// `2^n x` for a whole `n` within `[-2046, 2046]`, 0 for the least. The power is applied in two halves, so results run smoothly
    /// into infinity and the subnormals.
    pub(super) fn times_power_of_two(&mut self, x: Expr, n: Expr) -> Expr {
        // A small number; more processors convert vectors of f64 to i32 than to i64.
        let n = Expr::Cast { to: DType::I32, saturate: false, x: Box::new(n) };
        let n = self.bind(Expr::cast(DType::I64, n));
        let half = self.bind(Expr::binary(BinaryFn::Shr, n.clone(), i64c(1)));
        mul(mul(x, power_of_two64(half.clone())), power_of_two64(sub(n, half)))
    }

    pub(super) fn log64(&mut self, x: Expr) -> Expr {
        let x = self.bind(x);
        let tiny = self.bind(lt(x.clone(), c64(f64::MIN_POSITIVE)));
        let scaled = select(tiny.clone(), mul(x.clone(), c64(4_503_599_627_370_496.0)), x.clone());
        let pattern = self.bind(bits(DType::I64, scaled));
        let offset = sub(pattern.clone(), i64c(0x3fe6_a09e_667f_3bcd));
        let e = self.bind(Expr::binary(BinaryFn::Shr, offset, i64c(52)));
        let m = bits(DType::F64, sub(pattern, Expr::binary(BinaryFn::Shl, e.clone(), i64c(52))));
        let f = self.bind(sub(m, c64(1.0)));
        let e = self.bind(sub(Expr::cast(DType::F64, e), select(tiny, c64(52.0), c64(0.0))));
        let z = self.bind(mul(f.clone(), f.clone()));
        let p = poly(
            &f,
            [
                1.018_756_638_045_809_3e-4,
                4.974_949_949_767_47e-1,
                4.705_791_198_788_817,
                1.449_892_253_416_109_3e1,
                1.793_686_785_078_198_2e1,
                7.708_387_337_558_854,
            ]
            .map(c64),
        );
        let q = poly(
            &f,
            [
                1.0,
                1.128_735_871_891_674_5e1,
                4.522_791_458_375_322e1,
                8.298_752_669_127_766e1,
                7.115_447_506_185_639e1,
                2.312_516_201_267_653_4e1,
            ]
            .map(c64),
        );
        let y = mul(f.clone(), mul(z.clone(), div(p, q)));
        let y = fma(e.clone(), c64(-2.121_944_400_546_905_8e-4), y);
        let y = fma(z, c64(-0.5), y);
        let value = fma(e, c64(0.693_359_375), add(f, y));
        let value = select(eq(x.clone(), c64(0.0)), c64(f64::NEG_INFINITY), value);
        let value = select(lt(x.clone(), c64(0.0)), c64(f64::NAN), value);
        select(lt(x.clone(), c64(f64::INFINITY)), value, x)
    }

    /// `log(1 + x)`, with the rounding error of `1 + x` made good (W. Kahan).
    fn log1p64(&mut self, x: Expr) -> Expr {
        let u = self.bind(add(x.clone(), c64(1.0)));
        let log = self.log64(u.clone());
        let log = self.bind(log);
        let value = mul(log.clone(), div(x.clone(), sub(u.clone(), c64(1.0))));
        let value = select(eq(u.clone(), c64(1.0)), x, value);
        select(gt(abs(u.clone()), c64(1e300)), log.clone(), select(eq(u, c64(0.0)), log, value))
    }

    /// `exp(x) - 1`, with the cancellation near 0 made good (W. Kahan).
    fn expm1_64(&mut self, x: Expr) -> Expr {
        let x = self.bind(x);
        let u = self.exp64(x.clone());
        let u = self.bind(u);
        let less = self.bind(sub(u.clone(), c64(1.0)));
        let log = self.log64(u.clone());
        let value = div(mul(less.clone(), x.clone()), log);
        let value = select(gt(abs(x.clone()), c64(1.0)), less, value);
        select(eq(u, c64(1.0)), x, value)
    }

    /// sin (`quarter` 0) or cos (1): the argument less a multiple of pi/2 in three parts, exact enough for
    /// |x| < 2^30, then the polynomial of the quadrant.
    fn sin_or_cos64(&mut self, x: Expr, quarter: i64) -> Expr {
        const ROUND: f64 = 6_755_399_441_055_744.0;
        // Adding a number whose last bit is worth 1 rounds, and leaves the quadrant in the lowest bits.
        let shifted = self.bind(fma(x.clone(), c64(2.0 / PI), c64(ROUND)));
        let n = self.bind(sub(shifted.clone(), c64(ROUND)));
        let r = fma(neg(n.clone()), c64(2.0 * 7.853_981_256_484_985e-1), x);
        let r = fma(neg(n.clone()), c64(2.0 * 3.774_894_707_930_798e-8), r);
        let r = self.bind(fma(neg(n.clone()), c64(2.0 * 2.695_151_429_079_059_5e-15), r));
        let z = self.bind(mul(r.clone(), r.clone()));
        let sine = poly(
            &z,
            [
                1.589_623_015_765_465_7e-10,
                -2.505_074_776_285_780_7e-8,
                2.755_731_362_138_572_5e-6,
                -1.984_126_982_958_954e-4,
                8.333_333_333_322_118e-3,
                -1.666_666_666_666_663e-1,
            ]
            .map(c64),
        );
        // A tiny argument is its own sine: the sum would make 0 of -0.
        let sine = select(gt(z.clone(), c64(0.0)), fma(mul(sine, z.clone()), r.clone(), r.clone()), r);
        let cosine = poly(
            &z,
            [
                -1.135_853_652_138_768_2e-11,
                2.087_570_084_197_473e-9,
                -2.755_731_417_929_674e-7,
                2.480_158_728_885_170_4e-5,
                -1.388_888_888_887_305_6e-3,
                4.166_666_666_666_659e-2,
            ]
            .map(c64),
        );
        let cosine = fma(mul(cosine, z.clone()), z.clone(), fma(z, c64(-0.5), c64(1.0)));
        let quadrant = self.bind(add(bits(DType::I64, shifted), i64c(quarter)));
        let flag = |bit: i64| eq(Expr::binary(BinaryFn::BitAnd, quadrant.clone(), i64c(bit)), i64c(0));
        let value = self.bind(select(flag(1), sine, cosine));
        select(flag(2), value.clone(), neg(value))
    }

    fn atan64(&mut self, x: Expr) -> Expr {
        let x = self.bind(x);
        let a = self.bind(abs(x.clone()));
        let far = self.bind(gt(a.clone(), c64(2.414_213_562_373_095)));
        let middle = self.bind(gt(a.clone(), c64(0.66)));
        let near_one = div(sub(a.clone(), c64(1.0)), add(a.clone(), c64(1.0)));
        let t = select(middle.clone(), near_one, a.clone());
        let t = self.bind(select(far.clone(), div(c64(-1.0), a), t));
        let base = select(middle, c64(FRAC_PI_4), c64(0.0));
        let base = select(far, c64(FRAC_PI_2), base);
        let z = self.bind(mul(t.clone(), t.clone()));
        let p = poly(
            &z,
            [
                -8.750_608_600_031_904e-1,
                -1.615_753_718_733_365e1,
                -7.500_855_792_314_705e1,
                -1.228_866_684_490_136_2e2,
                -6.485_021_904_942_025e1,
            ]
            .map(c64),
        );
        let q = poly(
            &z,
            [
                1.0,
                2.485_846_490_142_306_3e1,
                1.650_270_098_316_988_5e2,
                4.328_810_604_912_903e2,
                4.853_903_996_359_137e2,
                1.945_506_571_482_614e2,
            ]
            .map(c64),
        );
        let value = add(base, fma(mul(z, div(p, q)), t.clone(), t));
        self.with_sign(value, &x)
    }

    pub(super) fn atan2_64(&mut self, y: Expr, x: Expr) -> Expr {
        let angle = self.atan64(div(abs(y.clone()), abs(x.clone())));
        // 0/0 and inf/inf are the angles of the axes and of the diagonals.
        let both = |value: f64| {
            Expr::binary(BinaryFn::And, eq(abs(y.clone()), c64(value)), eq(abs(x.clone()), c64(value)))
        };
        let angle = select(both(0.0), c64(0.0), angle);
        let angle = self.bind(select(both(f64::INFINITY), c64(FRAC_PI_4), angle));
        let left = lt(bits(DType::I64, x), i64c(0));
        let angle = self.bind(select(left, sub(c64(PI), angle.clone()), angle));
        let below = lt(bits(DType::I64, y.clone()), i64c(0));
        let value = select(below, neg(angle.clone()), angle);
        select(eq(y.clone(), y.clone()), value, y)
    }

    /// Four rational approximations (coefficients: FreeBSD msun `s_erf.c`): two near 0, two inside
    /// `1 - exp(-x^2 - 0.5625 + ..) / x`, where the square is split so that its rounding does not show.
    fn erf64(&mut self, x: Expr) -> Expr {
        let a = self.bind(abs(x.clone()));
        let z = self.bind(mul(a.clone(), a.clone()));
        let near = div(poly(&z, PP.map(c64)), poly(&z, QQ.map(c64)));
        let near = fma(a.clone(), near, a.clone());
        let s = self.bind(sub(a.clone(), c64(1.0)));
        let middle = add(c64(ERX), div(poly(&s, PA.map(c64)), poly(&s, QA.map(c64))));
        let inverse = self.bind(div(c64(1.0), z.clone()));
        let inner = div(poly(&inverse, RA.map(c64)), poly(&inverse, SA.map(c64)));
        let outer = div(poly(&inverse, RB.map(c64)), poly(&inverse, SB.map(c64)));
        let r = select(lt(a.clone(), c64(1.0 / 0.35)), inner, outer);
        let mask = i64c(0xffff_ffff_0000_0000_u64 as i64);
        let high =
            self.bind(bits(DType::F64, Expr::binary(BinaryFn::BitAnd, bits(DType::I64, a.clone()), mask)));
        let first = self.exp64(fma(neg(high.clone()), high.clone(), c64(-0.5625)));
        let rest = mul(sub(high.clone(), a.clone()), add(high, a.clone()));
        let second = self.exp64(add(rest, r));
        let far = sub(c64(1.0), div(mul(first, second), a.clone()));
        let value = select(lt(a.clone(), c64(6.0)), far, c64(1.0));
        let value = select(lt(a.clone(), c64(1.25)), middle, value);
        let value = select(lt(a, c64(0.84375)), near, value);
        self.with_sign(value, &x)
    }
}

/// `sqrt(1 - x^2)` without cancellation near 1.
fn leg(x: &Expr) -> Expr {
    sqrt(mul(sub(c64(1.0), x.clone()), add(c64(1.0), x.clone())))
}

/// `2^n` for `-1022 <= n <= 1023`, and 0 for -1023.
fn power_of_two64(n: Expr) -> Expr {
    bits(DType::F64, Expr::binary(BinaryFn::Shl, add(n, i64c(1023)), i64c(52)))
}

/// Taken for operands whose exponential rounds to 0: `n` is -2046, both halves of the power of two are 0, and nothing underflows, which
/// is slow on some processors.
pub(super) const EXP_LEAST: f64 = -1418.0;

/// erf(1) to f32 precision, about which the second interval is expanded.
const ERX: f64 = 8.450_629_115_104_675e-1;
const PP: [f64; 5] = [
    -2.3763016656650163e-05,
    -0.005770270296489442,
    -0.02848174957559851,
    -0.3250421072470015,
    0.12837916709551256,
];
const QQ: [f64; 6] = [
    -3.960228278775368e-06,
    0.00013249473800432164,
    0.005081306281875766,
    0.0650222499887673,
    0.39791722395915535,
    1.0,
];
const PA: [f64; 7] = [
    -0.002166375594868791,
    0.035478304325618236,
    -0.11089469428239668,
    0.31834661990116175,
    -0.3722078760357013,
    0.41485611868374833,
    -0.0023621185607526594,
];
const QA: [f64; 7] = [
    0.011984499846799107,
    0.01363708391202905,
    0.12617121980876164,
    0.07182865441419627,
    0.540397917702171,
    0.10642088040084423,
    1.0,
];
const RA: [f64; 8] = [
    -9.814329344169145,
    -81.2874355063066,
    -184.60509290671104,
    -162.39666946257347,
    -62.375332450326006,
    -10.558626225323291,
    -0.6938585727071818,
    -0.009864944034847148,
];
const SA: [f64; 9] = [
    -0.0604244152148581,
    6.570249770319282,
    108.63500554177944,
    429.00814002756783,
    645.3872717332679,
    434.56587747522923,
    137.65775414351904,
    19.651271667439257,
    1.0,
];
const RB: [f64; 7] = [
    -483.5191916086514,
    -1025.0951316110772,
    -637.5664433683896,
    -160.63638485582192,
    -17.757954917754752,
    -0.799283237680523,
    -0.0098649429247001,
];
const SB: [f64; 8] = [
    -22.44095244658582,
    474.52854120695537,
    2553.0504064331644,
    3199.8582195085955,
    1536.729586084437,
    325.7925129965739,
    30.33806074348246,
    1.0,
];
