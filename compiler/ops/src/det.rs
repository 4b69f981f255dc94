//! Det: the determinant of square matrices, by elimination with pivots from the whole column.

use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Op, TensorType};

pub const ROWS: &[OpDef] = &[DET, DET.since(22).types(&[("T", FLOATS)])];

const DET: OpDef = op("Det", 11, det)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .shapes(DET_SHAPES)
    .doc("Determinants of square matrices");

const DET_SHAPES: &[&str] = &["X[.., N, N]"];

/// `[.., n, n] -> [..]`. One step of a loop eliminates one column, in f64 for every type, as NumPy does: where a pivot is much less than
/// the rest of its row, f32 would lose what makes the other rows differ.
fn det(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    let (Some(rank), [.., rows, columns]) = (shape.len().checked_sub(2), shape.as_slice()) else {
        return malformed(format!("determinant of {}", b.ty(x)));
    };
    if rows != columns && rows.is_const() && columns.is_const() {
        return malformed(format!("determinant of {}, whose matrices are not square", b.ty(x)));
    }
    let lead = shape[..rank].to_vec();
    let batch = onnxc_ir::graph::dim::product(&lead);
    let x = b.cast(x, DType::F64)?;
    let x = b.reshape(x, vec![batch.clone(), rows.clone(), rows.clone()])?;
    let one = b.scalar(DType::F64, 1.0);
    let start = b.expand(one, vec![batch.clone()])?;
    let step = b.iota(vec![rows.clone()], 0)?;
    let body = elimination(b, &batch, rows)?;
    let op = Op::scan(body, rows.clone(), 2, 1, vec![false]);
    let results = b.emit(op, &[x, start, step])?;
    let y = b.cast(results[1], dtype)?;
    Ok(vec![b.reshape(y, lead)?])
}

/// States: matrices `[B, n, n]` and determinants so far `[B]`; scanned: the number of the column.
fn elimination(outer: &Builder<'_>, batch: &Dim, n: &Dim) -> Result<Graph> {
    let dtype = DType::F64;
    let (mut body, origin) = outer.body();
    let mut builder = Builder::new(&mut body, origin);
    let b = &mut builder;
    let square = vec![batch.clone(), n.clone(), n.clone()];
    let a = b.input("matrix", TensorType::new(dtype, square), None);
    let det = b.input("det", TensorType::new(dtype, vec![batch.clone()]), None);
    let step = b.input("step", TensorType::new(DType::I64, vec![]), None);

    let Pivot { best, pivot, pivot_row, swapped, column } = Pivot::of(b, a, step, dtype)?;
    let zero = b.scalar(dtype, 0.0);
    let singular = b.compare(CompareFn::Eq, pivot, zero)?;
    // The pivot's row is done with.
    // The derivative divides by it as well.
    let one = b.scalar(dtype, 1.0);
    let divisor = b.select(singular, one, pivot)?;
    let factor = b.binary(BinaryFn::Div, column, divisor)?;
    let factor = b.select(singular, zero, factor)?;
    let product = b.binary(BinaryFn::Mul, factor, pivot_row)?;
    let next = b.binary(BinaryFn::Sub, swapped, product)?;

    let pivot = b.reshape(pivot, vec![batch.clone()])?;
    let best = b.reshape(best, vec![batch.clone()])?;
    let stays = b.compare(CompareFn::Eq, best, step)?;
    let negative = b.unary(UnaryFn::Neg, pivot)?;
    let factor = b.select(stays, pivot, negative)?;
    let det = b.binary(BinaryFn::Mul, det, factor)?;
    body.outputs = vec![(String::new(), next), (String::new(), det)];
    Ok(body)
}

/// A step of elimination: of the column that has its number, the pivot and the exchange of its row.
pub struct Pivot {
    /// The pivot's row, `[B, 1, 1]`: the one with the greatest element of those not yet taken.
    pub best: ValueId,
    /// `[B, 1, 1]`
    pub pivot: ValueId,
    /// `[B, 1, w]`
    pub pivot_row: ValueId,
    /// The matrices `[B, n, w]`, and their column `[B, n, 1]`, with the step's row in the place of the pivot's.
    pub swapped: ValueId,
    pub column: ValueId,
}

impl Pivot {
    /// In matrices `a: [B, n, w]` at `step`, a scalar.
    pub fn of(b: &mut Builder<'_>, a: ValueId, step: ValueId, dtype: DType) -> Result<Pivot> {
        let [batch, n, width] = <[Dim; 3]>::try_from(b.shape(a))
            .map_err(|shape| Error::internal(Stage::Infer, format!("matrices of shape {shape:?}")))?;
        let row = b.iota(vec![n, Dim::ONE], 0)?;
        let below = b.compare(CompareFn::Ge, row, step)?;
        let column = b.reshape(step, vec![Dim::ONE])?;
        let column = b.emit1(Op::Gather { axis: 2 }, &[a, column])?;
        let size = b.unary(UnaryFn::Abs, column)?;
        let never = b.scalar(dtype, -1.0);
        let candidates = b.select(below, size, never)?;
        let best = b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[candidates])?;
        let whole = vec![batch.clone(), Dim::ONE, width];
        let wide = b.expand(best, whole.clone())?;
        let pivot_row = b.emit1(Op::GatherElements { axis: 1 }, &[a, wide])?;
        let here = b.expand(step, whole)?;
        let this_row = b.emit1(Op::GatherElements { axis: 1 }, &[a, here])?;
        let pivot = b.emit1(Op::GatherElements { axis: 1 }, &[column, best])?;
        let moved = b.compare(CompareFn::Eq, row, best)?;
        let swapped = b.select(moved, this_row, a)?;
        let single = b.expand(step, vec![batch, Dim::ONE, Dim::ONE])?;
        let head = b.emit1(Op::GatherElements { axis: 1 }, &[column, single])?;
        let column = b.select(moved, head, column)?;
        Ok(Pivot { best, pivot, pivot_row, swapped, column })
    }
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    #[test]
    fn pivots_signs_and_singular_matrices() {
        let matrices =
            [0.0, 2.0, 1.0, 3.0, 0.0, 0.0, 1.0, 1.0, 4.0, 1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 1.0, 0.0, 1.0];
        let case = Case::new("Det", 11).input::<f32>(&[2, 3, 3], &matrices);
        case.gives(0, &[2], &[-21.0, 0.0]);
        Case::new("Det", 22).input::<f64>(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).gives(0, &[], &[-2.0]);
        Case::new("Det", 22).symbolic::<f32>(&["b", "n", "n"], &[1, 2, 2], &[2.0, 0.0, 0.0, 3.0]).gives(
            0,
            &[1],
            &[6.0],
        );
        Case::new("Det", 22).input::<f32>(&[1, 0, 0], &[]).gives(0, &[1], &[1.0]);
    }

    /// A small pivot of the first column before large elements.
    #[test]
    fn large_elements_beside_a_small_pivot() {
        let matrix = [0.5, -0.75, 2.0, 2.0, -1e15, -1e15, 1.0, -1.25, 2.5];
        Case::new("Det", 11).input::<f32>(&[3, 3], &matrix).gives(0, &[], &[8.75e14]);
    }
}
