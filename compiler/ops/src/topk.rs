//! TopK: the first elements of a sort.

use super::row::*;

pub const ROWS: &[OpDef] = &[
    TOP_K,
    TOP_K
        .since(10)
        .inputs(&[req("X", "T"), req("K", "tensor(int64)")])
        .attributes(&[int("axis", -1)])
        .shapes(TOP_K_SHAPES_10),
    TOP_K_11,
    TOP_K_11.since(24).types(&[("T", NUMERIC), ("I", I64S)]),
];

const TOP_K: OpDef = op("TopK", 1, top_k)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Values", "T"), req("Indices", "I")])
    .attributes(&[int("axis", -1), required("k", Int)])
    .types(&[("T", FLOATS_F16), ("I", I64S)])
    .shapes(TOP_K_SHAPES_1)
    .doc("The k largest elements along an axis, and their indices");

const TOP_K_11: OpDef = op("TopK", 11, top_k)
    .inputs(&[req("X", "T"), req("K", "tensor(int64)")])
    .outputs(&[req("Values", "T"), req("Indices", "I")])
    .attributes(&[int("axis", -1), int("largest", 1), int("sorted", 1)])
    .types(&[("T", NUMERIC_NO_BF16), ("I", I64S)])
    .shapes(TOP_K_SHAPES_10)
    .doc("The k largest or smallest elements along an axis, and their indices");

const TOP_K_SHAPES_1: &[&str] = &["X[..axis, _, ..]"];

const TOP_K_SHAPES_10: &[&str] = &["X[..axis, _, ..]", "count(K) = 1"];

/// Always sorted; `sorted` is ignored. Of equal elements the one with the lower index comes first; the document
/// does not order NaN, which is above all numbers here, as in the reference.
fn top_k(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    let take = match cx.has("k") {
        true => Dim::from(cx.int("k")?),
        false => {
            let extent = cx.b.ty(x).shape[axis].clone();
            cx.with_count(1, Some(1))?;
            match cx.sizes_within(1, &|_| Some(extent.clone()))?.as_slice() {
                [take] => take.clone(),
                many => return malformed(format!("K has {} elements, not 1", many.len())),
            }
        }
    };
    let largest = !cx.has("largest") || cx.int("largest")? != 0;
    let (values, indices) = cx.b.sort(x, axis, largest, take)?;
    Ok(vec![values, indices])
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    const NAN: f32 = f32::NAN;

    #[test]
    fn k_is_an_attribute_at_first() {
        let case = Case::new("TopK", 1)
            .input::<f32>(&[2, 3], &[1.0, 3.0, 2.0, 6.0, 4.0, 5.0])
            .int("k", 2)
            .outputs(2);
        case.gives(0, &[2, 2], &[3.0, 2.0, 6.0, 5.0]);
        case.gives(1, &[2, 2], &[1.0, 2.0, 0.0, 2.0]);
    }

    #[test]
    fn the_run_tells_how_many_of_constants() {
        let case = Case::new("TopK", 11).constant::<f32>(&[4], &[1.0, 4.0, 2.0, 3.0]);
        let case = case.input::<i64>(&[1], &[2]).outputs(2);
        case.gives(0, &[2], &[4.0, 3.0]);
        case.gives(1, &[2], &[1.0, 3.0]);
    }

    #[test]
    fn ties_keep_their_order_and_nan_is_the_largest() {
        let values = [2.0, NAN, 1.0, 2.0, f32::INFINITY, -0.0, 0.0, NAN];
        let case = |largest| {
            Case::new("TopK", 24)
                .input::<f32>(&[8], &values)
                .constant::<i64>(&[1], &[8])
                .int("largest", largest)
                .outputs(2)
        };
        case(1).gives(1, &[8], &[1.0, 7.0, 4.0, 0.0, 3.0, 2.0, 5.0, 6.0]);
        case(0).gives(1, &[8], &[5.0, 6.0, 2.0, 0.0, 3.0, 4.0, 1.0, 7.0]);
    }

    #[test]
    fn along_any_axis_of_any_numbers() {
        let case = Case::new("TopK", 11)
            .symbolic::<u64>(&["n", "m"], &[3, 2], &[1, u64::MAX, u64::MAX - 1, 3, 2, 4])
            .constant::<i64>(&[1], &[2])
            .int("axis", 0)
            .outputs(2);
        case.gives(1, &[2, 2], &[1.0, 0.0, 2.0, 2.0]);
    }

    #[test]
    fn more_than_there_are() {
        let case = Case::new("TopK", 10).ramp(&[3], 0).constant::<i64>(&[1], &[4]);
        let error = case.lower().unwrap_err();
        assert_eq!(error.message, "the first 4 elements along axis 0 of f32[3]");
    }
}
