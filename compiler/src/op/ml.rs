//! Operators of `ai.onnx.ml`.

use super::row::*;

pub const ROWS: &[OpDef] = &[OpDef {
    domain: "ai.onnx.ml",
    ..row(
        "Binarizer",
        1,
        &[req("X", "T")],
        &[req("Y", "T")],
        &[float("threshold", 0.0)],
        &[("T", &[DType::F32, DType::F64, DType::I64, DType::I32])],
        ANY,
        binarize,
        "1 where x > threshold, else 0",
    )
}];

fn binarize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let dtype = cx.b.dtype(x);
    let threshold = f64::from(cx.float("threshold")?);
    let above = match dtype {
        DType::I32 => above_integer(cx, x, threshold, 31)?,
        DType::I64 => above_integer(cx, x, threshold, 63)?,
        _ => {
            let threshold = cx.b.scalar(dtype, threshold);
            cx.b.compare(CompareFn::Gt, x, threshold)?
        }
    };
    Ok(vec![cx.b.cast(above, dtype)?])
}

/// Where integers between `-2^bits` and `2^bits` are above `threshold`: where they are above its floor.
fn above_integer(cx: &mut NodeCx<'_, '_>, x: ValueId, threshold: f64, bits: i32) -> Result<ValueId> {
    let (floor, limit) = (threshold.floor(), 2f64.powi(bits));
    if floor >= -limit && floor < limit {
        let floor = cx.b.constant(crate::graph::Tensor::scalar(floor as i64));
        let floor = cx.b.cast(floor, cx.b.dtype(x))?;
        return cx.b.compare(CompareFn::Gt, x, floor);
    }
    let all = cx.b.scalar(DType::Bool, f64::from(u8::from(floor < 0.0)));
    let shape = cx.b.shape(x);
    cx.b.expand(all, shape)
}

#[cfg(test)]
mod tests {
    use crate::op::node_case::Case;

    fn binarizer() -> Case {
        Case::of("ai.onnx.ml", "Binarizer", 1)
    }

    #[test]
    fn above_the_threshold() {
        let values = [0.9f32, 1.0, 1.1, f32::NAN];
        binarizer().float("threshold", 1.0).symbolic(&["n"], &[4], &values).gives(0, &[4], &[0., 0., 1., 0.]);
        binarizer().input(&[3], &[-1.0f64, 0.0, 1e-300]).gives(0, &[3], &[0., 0., 1.]);
    }

    #[test]
    fn integers_are_compared_exactly() {
        let of = |threshold: f32| binarizer().float("threshold", threshold);
        let large = 1i64 << 60;
        of(large as f32).input(&[3], &[large - 1, large, large + 1]).gives(0, &[3], &[0., 0., 1.]);
        let values = [i32::MIN, -2, -1, 0, i32::MAX];
        of(-1.5).input(&[5], &values).gives(0, &[5], &[0., 0., 1., 1., 1.]);
        of(-1e10).input(&[5], &values).gives(0, &[5], &[1.; 5]);
        of(1e10).input(&[5], &values).gives(0, &[5], &[0.; 5]);
        of(f32::INFINITY).input(&[1], &[i64::MAX]).gives(0, &[1], &[0.]);
        of(f32::NAN).input(&[1], &[i64::MAX]).gives(0, &[1], &[0.]);
    }
}
