//! What is rounded, shifted by a zero point, clamped to the range of bytes and turned into one is often taken for a number
//! again at once: quantized and dequantized. In between it is a whole number within that range, as a float too, so that
//! the conversions fall away; so does the zero point, if the bounds of the range are moved by it. Integers have no -0, which
//! numbers below zero round to: +0 is added to these. What NaN becomes as a byte is open; here it stays NaN.

use crate::Expr;
use onnxc_ir::graph::{DType, MapFn};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// One element of a map from its arguments, without conversions to bytes and back. What is within the range of bytes needs
/// no care for what is not.
pub(super) fn apply(function: MapFn, arguments: &[Expr]) -> Option<Expr> {
    match (function, arguments) {
        (MapFn::Cast { to: DType::F32, .. }, [Expr::Cast { to, x, .. }]) => {
            let clamped = Clamped::of(x).filter(|clamped| clamped.is_within(*to))?;
            match clamped.x {
                Expr::Binary { op: BinaryFn::Add, .. } => Some((**x).clone()),
                rounded => Some(clamped.of_other(without_minus_zero(rounded.clone()), 0.0)),
            }
        }
        (MapFn::Cast { to, saturate: true }, [x]) => {
            let x = Clamped::of(x)?.is_within(to).then(|| Box::new(x.clone()))?;
            Some(Expr::Cast { to, saturate: false, x })
        }
        (MapFn::Binary(BinaryFn::Sub), [x, zero]) => {
            let (clamped, zero) = (Clamped::of(x)?, whole(zero)?);
            let Expr::Binary { op: BinaryFn::Add, a, b } = clamped.x else { return None };
            if whole(b)? != zero {
                return None;
            }
            Some(clamped.of_other(without_minus_zero((**a).clone()), zero))
        }
        _ => None,
    }
}

/// `min(max(x, least), most)`, of a whole number.
struct Clamped<'e> {
    x: &'e Expr,
    least: f64,
    most: f64,
}

impl Clamped<'_> {
    fn of(expr: &Expr) -> Option<Clamped<'_>> {
        let Expr::Binary { op: BinaryFn::Min, a: above, b: most } = expr else { return None };
        let Expr::Binary { op: BinaryFn::Max, a: x, b: least } = &**above else { return None };
        let (least, most) = (whole(least)?, whole(most)?);
        (is_whole(x) && least <= most).then_some(Clamped { x, least, most })
    }

    /// Another number within the bounds less `zero`.
    fn of_other(&self, x: Expr, zero: f64) -> Expr {
        let bound = |at: f64| Expr::constant(DType::F32, at - zero);
        let above = Expr::binary(BinaryFn::Max, x, bound(self.least));
        Expr::binary(BinaryFn::Min, above, bound(self.most))
    }

    /// Whether this is a number of a type of bytes.
    fn is_within(&self, dtype: DType) -> bool {
        match dtype {
            DType::U8 => 0.0 <= self.least && self.most <= 255.0,
            DType::I8 => -128.0 <= self.least && self.most <= 127.0,
            _ => false,
        }
    }
}

fn without_minus_zero(x: Expr) -> Expr {
    Expr::binary(BinaryFn::Add, x, Expr::constant(DType::F32, 0.0))
}

/// Whether a float is rounded, and perhaps shifted by a small whole number: a large one is clamped, whether or not it
/// is rounded once more.
fn is_whole(expr: &Expr) -> bool {
    match expr {
        Expr::Unary { op: UnaryFn::Round, .. } => true,
        Expr::Binary { op: BinaryFn::Add, a, b } => {
            matches!(**a, Expr::Unary { op: UnaryFn::Round, .. }) && whole(b).is_some()
        }
        _ => false,
    }
}

/// The number of a constant that is a whole one, and not larger than bytes and their zero points are.
fn whole(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Const { dtype: DType::F32, bits } => {
            let number = f64::from(f32::from_bits(*bits as u32));
            (number.fract() == 0.0 && number.abs() <= 512.0).then_some(number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::Tensor;
    use onnxc_ir::interp;

    fn number(value: f32) -> Expr {
        Expr::constant(DType::F32, value.into())
    }

    fn value(expr: &Expr) -> f32 {
        match expr {
            Expr::Const { bits, .. } => f32::from_bits(*bits as u32),
            Expr::Unary { op, x } => {
                let result =
                    interp::eval(&onnxc_ir::graph::Op::Map(MapFn::Unary(*op)), &[&Tensor::scalar(value(x))]);
                result.unwrap()[0].to_f64s().unwrap()[0] as f32
            }
            Expr::Binary { op, a, b } => {
                let function = onnxc_ir::graph::Op::Map(MapFn::Binary(*op));
                let result = interp::eval(&function, &[&Tensor::scalar(value(a)), &Tensor::scalar(value(b))]);
                result.unwrap()[0].to_f64s().unwrap()[0] as f32
            }
            Expr::Cast { to, x, .. } => {
                let narrow = interp::cast(&Tensor::scalar(value(x)), *to, true);
                narrow.to_f64s().map_or_else(|| narrow.to_i64s().unwrap()[0] as f32, |v| v[0] as f32)
            }
            other => panic!("{other}"),
        }
    }

    /// `(dequantized as bytes, without them)`
    fn both(x: f32, zero: f32, to: DType, bounds: [f32; 2]) -> (f32, Option<Expr>) {
        let rounded = Expr::unary(UnaryFn::Round, number(x));
        let shifted = Expr::binary(BinaryFn::Add, rounded, number(zero));
        let above = Expr::binary(BinaryFn::Max, shifted, number(bounds[0]));
        let clamped = Expr::binary(BinaryFn::Min, above, number(bounds[1]));
        let back = [Expr::cast(to, clamped)];
        let cast = MapFn::Cast { to: DType::F32, saturate: true };
        let wanted = value(&back[0]) - zero;
        let short = apply(cast, &back).and_then(|x| apply(MapFn::Binary(BinaryFn::Sub), &[x, number(zero)]));
        (wanted, short)
    }

    #[test]
    fn conversions_to_bytes_and_back_fall_away() {
        for x in [0.0, -0.0, -0.25, 0.5, 1.5, -2.5, 99.9, -140.0, 1000.0, -1e9, 1e20, -3e38, f32::INFINITY] {
            for zero in [0.0, 1.0, 133.0, 255.0, -128.0, 127.0] {
                for (to, bounds) in [(DType::U8, [0.0, 255.0]), (DType::I8, [-128.0, 127.0])] {
                    let (wanted, short) = both(x, zero, to, bounds);
                    assert_eq!(value(&short.unwrap()).to_bits(), wanted.to_bits(), "{x} {zero} {to}");
                }
            }
        }
    }

    #[test]
    fn other_bounds_stay() {
        assert!(both(1.0, 3.0, DType::U8, [-1.0, 255.0]).1.is_none());
        assert!(both(1.0, 3.0, DType::I8, [0.0, 255.0]).1.is_none());
        assert!(both(1.0, 3.5, DType::U8, [0.0, 255.0]).1.is_none());
        assert!(both(1.0, 3.0, DType::U8, [0.5, 255.0]).1.is_none());
    }
}
