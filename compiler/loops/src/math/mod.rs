//! Elementary functions as loop IR: exp, log, tanh, erf, sin, pow and their kin become arithmetic that every back
//! end has. Generated code therefore needs no math library, and vectors of them come for free.
//!
//! `f32.rs` and `pow32.rs` hold the functions that are hot in networks, for f32 in its own precision; `f64.rs` everything else,
//! for f64, through which f32 takes the rarer functions. The 16-bit floats compute in f32. Tests hold each
//! function to a bound in units in the last place (ULP) over its whole range.

mod f32;
mod f64;
mod pow;
mod pow32;
#[cfg(test)]
mod tests;

use crate::{Expr, Kernel, Stmt};
use f32::{clamp, power_of_two32, small_int};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

/// Replaces every elementary function of a kernel.
pub fn expand(kernel: &mut Kernel) {
    let body = std::mem::take(&mut kernel.body);
    kernel.body = expand_body(kernel, body);
}

fn expand_body(kernel: &mut Kernel, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut out = Vec::with_capacity(body.len());
    for mut stmt in body {
        let mut math = Math { kernel, lets: vec![] };
        match &mut stmt {
            Stmt::Let { value, .. }
            | Stmt::Store { value, .. }
            | Stmt::Set { value, .. }
            | Stmt::Accumulate { value, .. } => math.expand(value),
            Stmt::If { condition, .. } | Stmt::Check { condition, .. } => math.expand(condition),
            Stmt::For { .. } | Stmt::Prefetch { .. } | Stmt::Tile(_) => {}
        }
        out.append(&mut math.lets);
        match &mut stmt {
            Stmt::For { body, .. } => *body = expand_body(kernel, std::mem::take(body)),
            Stmt::If { then, otherwise, .. } => {
                *then = expand_body(kernel, std::mem::take(then));
                *otherwise = expand_body(kernel, std::mem::take(otherwise));
            }
            _ => {}
        }
        out.push(stmt);
    }
    out
}

/// Whether back ends leave this function to the expansion.
fn is_elementary(op: UnaryFn) -> bool {
    use UnaryFn::*;
    matches!(
        op,
        Exp | Decay
            | Log
            | Log1p
            | Expm1
            | Sin
            | Cos
            | Tan
            | Asin
            | Acos
            | Atan
            | Sinh
            | Cosh
            | Tanh
            | Asinh
            | Acosh
            | Atanh
            | Erf
            | Sigmoid
    )
}

/// Whether the expansion of an expression whose operands have this type has f64 in it.
pub fn needs_f64(expr: &Expr, dtype: DType) -> bool {
    if !dtype.is_float() {
        return false;
    }
    match expr {
        Expr::Unary { op, .. } if is_elementary(*op) => dtype == DType::F64 || !f32::has(*op),
        Expr::Binary { op: BinaryFn::Pow, .. } => dtype == DType::F64,
        Expr::Binary { op: BinaryFn::Atan2, .. } => true,
        _ => false,
    }
}

/// Builds expressions; what is used twice becomes a let in front of the statement being expanded.
struct Math<'k> {
    kernel: &'k mut Kernel,
    lets: Vec<Stmt>,
}

impl Math<'_> {
    fn expand(&mut self, expr: &mut Expr) {
        if let Some((op, x)) = beside_one(expr) {
            let mut x = std::mem::replace(x, c32(0.0));
            self.expand(&mut x);
            *expr = match op {
                UnaryFn::Erf => self.one_plus_erf32(x),
                _ => self.one_plus_tanh32(x),
            };
            return;
        }
        for child in expr.operands_mut() {
            self.expand(child);
        }
        let dtype = self.kernel.dtype(expr);
        if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
            return;
        }
        let replaced = match expr {
            Expr::Unary { op, x } if is_elementary(*op) => {
                let (op, x) = (*op, std::mem::replace(x.as_mut(), Expr::constant(dtype, 0.0)));
                self.unary(op, x, dtype)
            }
            Expr::Binary { op: op @ (BinaryFn::Pow | BinaryFn::Atan2), a, b } => {
                let zero = || Expr::constant(dtype, 0.0);
                let (op, a, b) =
                    (*op, std::mem::replace(a.as_mut(), zero()), std::mem::replace(b.as_mut(), zero()));
                self.binary(op, a, b, dtype)
            }
            // x * (1 / y), as x * sigmoid(x) is: one step less, and one rounding.
            Expr::Binary { op: BinaryFn::Mul, a, b } => match (is_reciprocal(a), is_reciprocal(b)) {
                (_, true) => over(std::mem::replace(b, c32(0.0)), std::mem::replace(a, c32(0.0))),
                (true, false) => over(std::mem::replace(a, c32(0.0)), std::mem::replace(b, c32(0.0))),
                _ => return,
            },
            _ => return,
        };
        *expr = replaced;
    }

    fn unary(&mut self, op: UnaryFn, x: Expr, dtype: DType) -> Expr {
        match dtype {
            DType::F64 => self.unary64(op, x),
            DType::F32 => match self.unary32(op, &x) {
                Some(expr) => expr,
                None => {
                    let wide = self.unary64(op, Expr::cast(DType::F64, x));
                    Expr::cast(DType::F32, wide)
                }
            },
            _ => {
                let wide = self.unary(op, Expr::cast(DType::F32, x), DType::F32);
                Expr::cast(dtype, wide)
            }
        }
    }

    fn binary(&mut self, op: BinaryFn, a: Expr, b: Expr, dtype: DType) -> Expr {
        // f32 has powers of its own.
        let own = if op == BinaryFn::Pow && dtype != DType::F64 { DType::F32 } else { DType::F64 };
        let wide = |x| if dtype == own { x } else { Expr::cast(own, x) };
        let (x, y) = (self.bind(wide(a)), self.bind(wide(b)));
        let wide = match op {
            BinaryFn::Atan2 => self.atan2_64(x, y),
            _ => self.pow(x, y, own),
        };
        if dtype == own { wide } else { Expr::cast(dtype, wide) }
    }

    /// A name for an expression that is used more than once.
    fn bind(&mut self, expr: Expr) -> Expr {
        if matches!(expr, Expr::Const { .. } | Expr::Var(_)) {
            return expr;
        }
        let dtype = self.kernel.dtype(&expr);
        let var = self.kernel.let_var("m", dtype);
        self.lets.push(Stmt::Let { var, value: expr });
        Expr::Var(var)
    }
}

// Shorthands. Expressions are trees, so operands that occur twice are bound first.

fn c32(value: f32) -> Expr {
    Expr::Const { dtype: DType::F32, bits: u64::from(value.to_bits()) }
}

fn i32c(value: i32) -> Expr {
    Expr::Const { dtype: DType::I32, bits: u64::from(value as u32) }
}

fn c64(value: f64) -> Expr {
    Expr::Const { dtype: DType::F64, bits: value.to_bits() }
}

fn i64c(value: i64) -> Expr {
    Expr::Const { dtype: DType::I64, bits: value as u64 }
}

fn add(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Add, a, b)
}

fn sub(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Sub, a, b)
}

fn mul(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Mul, a, b)
}

fn div(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Div, a, b)
}

fn fma(a: Expr, b: Expr, c: Expr) -> Expr {
    Expr::fma(a, b, c)
}

fn neg(x: Expr) -> Expr {
    Expr::unary(UnaryFn::Neg, x)
}

fn abs(x: Expr) -> Expr {
    Expr::unary(UnaryFn::Abs, x)
}

fn sqrt(x: Expr) -> Expr {
    Expr::unary(UnaryFn::Sqrt, x)
}

fn round(x: Expr) -> Expr {
    Expr::unary(UnaryFn::Round, x)
}

fn bits(to: DType, x: Expr) -> Expr {
    Expr::bitcast(to, x)
}

fn lt(a: Expr, b: Expr) -> Expr {
    Expr::compare(CompareFn::Lt, a, b)
}

fn gt(a: Expr, b: Expr) -> Expr {
    Expr::compare(CompareFn::Gt, a, b)
}

fn eq(a: Expr, b: Expr) -> Expr {
    Expr::compare(CompareFn::Eq, a, b)
}

fn select(condition: Expr, then: Expr, otherwise: Expr) -> Expr {
    Expr::select(condition, then, otherwise)
}

/// The function and the `x` of `1 + erf(x)` or `1 + tanh(x)` in f32, either way round.
fn beside_one(expr: &mut Expr) -> Option<(UnaryFn, &mut Expr)> {
    let Expr::Binary { op: BinaryFn::Add, a, b } = expr else { return None };
    let function = match (a.as_mut(), b.as_mut()) {
        (one, function) | (function, one) if *one == c32(1.0) => function,
        _ => return None,
    };
    match function {
        Expr::Unary { op: op @ (UnaryFn::Erf | UnaryFn::Tanh), x } => Some((*op, x.as_mut())),
        _ => None,
    }
}

/// Whether this is `1 / y` in f32.
fn is_reciprocal(expr: &Expr) -> bool {
    matches!(expr, Expr::Binary { op: BinaryFn::Div, a, .. } if **a == c32(1.0))
}

/// `x / y` for the reciprocal of `y`.
fn over(reciprocal: Expr, x: Expr) -> Expr {
    match reciprocal {
        Expr::Binary { op: BinaryFn::Div, b: y, .. } => div(x, *y),
        other => mul(x, other),
    }
}

/// Horner's rule, highest coefficient first.
fn poly(x: &Expr, coefficients: impl IntoIterator<Item = Expr>) -> Expr {
    let mut terms = coefficients.into_iter();
    let first = terms.next().expect("a polynomial has a coefficient");
    terms.fold(first, |sum, coefficient| fma(sum, x.clone(), coefficient))
}
