//! NonMaxSuppression: boxes that overlap a better one of their class are left out.
//!
//! The candidates of each class, those above the score threshold, are sorted by score; the number kept is that of the largest class. In
//! this order each is compared with those that are selected already ([`Op::Suppress`]).

use super::dynamic::true_positions;
use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::Op;

pub const ROWS: &[OpDef] = &[NON_MAX_SUPPRESSION, NON_MAX_SUPPRESSION.since(11)];

const NON_MAX_SUPPRESSION: OpDef = op("NonMaxSuppression", 10, non_max_suppression)
    .inputs(INPUTS)
    .outputs(&[req("selected_indices", "tensor(int64)")])
    .attributes(&[int("center_point_box", 0)])
    .shapes(NON_MAX_SUPPRESSION_SHAPES)
    .doc("Boxes that overlap no better one of their class");

const NON_MAX_SUPPRESSION_SHAPES: &[&str] = &[
    "boxes[N, S, 4]",
    "scores[N, _, S]",
    "count(max_output_boxes_per_class) = 1",
    "count(iou_threshold) = 1",
    "count(score_threshold) = 1",
];

const INPUTS: &[Param] = &[
    req("boxes", "tensor(float)"),
    req("scores", "tensor(float)"),
    opt("max_output_boxes_per_class", "tensor(int64)"),
    opt("iou_threshold", "tensor(float)"),
    opt("score_threshold", "tensor(float)"),
];

/// `boxes: [B, S, 4]`, `scores: [B, C, S]` gives `[n, 3]`: image, class and box of each that is selected, by image,
/// then by class, then by falling score. Of equal scores the lower index comes first.
fn non_max_suppression(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (boxes, scores) = (cx.input("boxes")?, cx.input("scores")?);
    let centered = cx.int("center_point_box")? != 0;
    let (shape, boxes_ty) = (cx.b.shape(scores), cx.b.ty(boxes).clone());
    if shape.len() != 3 || boxes_ty.rank() != 3 || boxes_ty.shape[2].as_const().is_some_and(|four| four != 4)
    {
        return malformed(format!("boxes {boxes_ty} with scores {}", cx.b.ty(scores)));
    }
    let [batch, classes, count] = [&shape[0], &shape[1], &shape[2]].map(Dim::clone);
    let scalar = |cx: &mut NodeCx<'_, '_>, at: usize| -> Result<Option<ValueId>> {
        cx.optional(at).map(|value| to_scalar(cx, value)).transpose()
    };
    let (most, overlap, threshold) = (scalar(cx, 2)?, scalar(cx, 3)?, scalar(cx, 4)?);
    let Some(most) = most else {
        return Ok(vec![cx.b.constant(onnxc_ir::graph::Tensor::from_slice::<i64>(&[0, 3], &[]))]);
    };
    let overlap = match overlap {
        Some(overlap) => overlap,
        None => cx.b.scalar(DType::F32, 0.0),
    };
    // A NaN score is below every threshold.
    let candidate = match threshold {
        Some(threshold) => cx.b.compare(CompareFn::Gt, scores, threshold)?,
        None => cx.b.compare(CompareFn::Eq, scores, scores)?,
    };
    // Without a threshold nearly all are candidates, and a score may be as low as what stands for none.
    let room = match threshold {
        Some(_) => most_candidates(cx, candidate, &count)?,
        None => count.clone(),
    };
    let lowest = cx.b.scalar(DType::F32, f64::NEG_INFINITY);
    let keys = cx.b.select(candidate, scores, lowest)?;
    let (_, order) = cx.b.sort(keys, 2, true, room.clone())?;
    let alive = cx.b.emit1(Op::GatherElements { axis: 2 }, &[candidate, order])?;
    let turns = turns(cx, most, &room)?;
    let mut operands = corners(cx.b, boxes, order, &[batch, classes.clone(), count], centered)?.to_vec();
    operands.extend([alive, overlap]);
    let picks = cx.b.emit1(Op::Suppress { take: turns.clone() }, &operands)?;
    let selected = triples(cx, picks, order, &classes, &turns)?;
    Ok(vec![selected])
}

/// Candidates of the class with the most.
fn most_candidates(cx: &mut NodeCx<'_, '_>, candidate: ValueId, count: &Dim) -> Result<Dim> {
    let ones = cx.b.cast(candidate, DType::I64)?;
    let totals = cx.b.reduce(ReduceFn::Sum, ones, &[2])?;
    let most = cx.b.reduce(ReduceFn::Max, totals, &[0, 1])?;
    // Without classes the maximum is the least integer.
    let most = cx.b.binary_scalar(BinaryFn::Max, most, 0.0)?;
    let most = to_scalar(cx, most)?;
    Ok(cx.b.sizes(most, &|_| Some(count.clone()))?.remove(0))
}

/// Boxes to select of each class: `most`, and at most `room`.
fn turns(cx: &mut NodeCx<'_, '_>, most: ValueId, room: &Dim) -> Result<Dim> {
    let most = cx.b.binary_scalar(BinaryFn::Max, most, 0.0)?;
    let limit = dim(cx, room)?;
    let turns = cx.b.binary(BinaryFn::Min, most, limit)?;
    Ok(cx.b.sizes(turns, &|_| Some(room.clone()))?.remove(0))
}

/// Least and greatest coordinates along both axes of the boxes in `order` (`[B, C, M]`, `M` of the `S`).
fn corners(
    b: &mut Builder<'_>,
    boxes: ValueId,
    order: ValueId,
    [batch, classes, count]: &[Dim; 3],
    centered: bool,
) -> Result<[ValueId; 4]> {
    let mut coordinate = |at: usize| -> Result<ValueId> {
        let one = b.slice_axis(boxes, 2, Dim::from(at), Dim::ONE)?;
        let one = b.reshape(one, vec![batch.clone(), Dim::ONE, count.clone()])?;
        let wide = b.expand(one, vec![batch.clone(), classes.clone(), count.clone()])?;
        b.emit1(Op::GatherElements { axis: 2 }, &[wide, order])
    };
    let parts = [coordinate(0)?, coordinate(1)?, coordinate(2)?, coordinate(3)?];
    let mut ends = Vec::with_capacity(4);
    for axis in 0..2 {
        let (from, to) = if centered {
            let half = b.binary_scalar(BinaryFn::Mul, parts[2 + axis], 0.5)?;
            let from = b.binary(BinaryFn::Sub, parts[axis], half)?;
            (from, b.binary(BinaryFn::Add, parts[axis], half)?)
        } else {
            let from = b.binary(BinaryFn::Min, parts[axis], parts[2 + axis])?;
            (from, b.binary(BinaryFn::Max, parts[axis], parts[2 + axis])?)
        };
        ends.extend([from, to]);
    }
    Ok([ends[0], ends[1], ends[2], ends[3]])
}

/// `picks: [B, C, T]`, positions in `order` or -1, as rows of image, class and box.
fn triples(
    cx: &mut NodeCx<'_, '_>,
    picks: ValueId,
    order: ValueId,
    classes: &Dim,
    turns: &Dim,
) -> Result<ValueId> {
    let zero = cx.b.scalar(DType::I64, 0.0);
    let place = cx.b.binary(BinaryFn::Max, picks, zero)?;
    let boxes = cx.b.emit1(Op::GatherElements { axis: 2 }, &[order, place])?;
    let selected = cx.b.compare(CompareFn::Ge, picks, zero)?;
    let all = vec![cx.b.ty(picks).elements()];
    let (boxes, selected) = (cx.b.reshape(boxes, all.clone())?, cx.b.reshape(selected, all)?);
    let rows = true_positions(cx, selected)?;
    let boxes = cx.b.emit1(Op::Gather { axis: 0 }, &[boxes, rows])?;
    let turns = dim(cx, turns)?;
    let group = cx.b.binary(BinaryFn::Div, rows, turns)?;
    let classes = dim(cx, classes)?;
    let image = cx.b.binary(BinaryFn::Div, group, classes)?;
    let class = cx.b.binary(BinaryFn::Mod, group, classes)?;
    let mut columns = Vec::with_capacity(3);
    for column in [image, class, boxes] {
        columns.push(cx.b.unsqueeze(column, &[1])?);
    }
    cx.b.concat(&columns, 1)
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    const BOXES: [f32; 24] = [
        0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, -0.1, 1.0, 0.9, 0.0, 10.0, 1.0, 11.0, 0.0, 10.1, 1.0,
        11.1, 0.0, 100.0, 1.0, 101.0,
    ];
    const SCORES: [f32; 6] = [0.9, 0.75, 0.6, 0.95, 0.5, 0.3];

    fn case(most: i64, score: f32) -> Case {
        Case::new("NonMaxSuppression", 11)
            .input::<f32>(&[1, 6, 4], &BOXES)
            .input::<f32>(&[1, 1, 6], &SCORES)
            .input::<i64>(&[1], &[most])
            .constant::<f32>(&[1], &[0.5])
            .input::<f32>(&[1], &[score])
    }

    #[test]
    fn best_first_within_limits() {
        case(3, 0.0).gives(0, &[3, 3], &[0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
        case(2, 0.0).gives(0, &[2, 3], &[0.0, 0.0, 3.0, 0.0, 0.0, 0.0]);
        case(9, 0.4).gives(0, &[2, 3], &[0.0, 0.0, 3.0, 0.0, 0.0, 0.0]);
        case(9, 1.0).gives(0, &[0, 3], &[]);
        case(0, 0.0).gives(0, &[0, 3], &[]);
        case(-1, 0.0).gives(0, &[0, 3], &[]);
    }

    #[test]
    fn all_that_there_are_is_no_size() {
        let all = Case::new("NonMaxSuppression", 11)
            .input::<f32>(&[1, 6, 4], &BOXES)
            .input::<f32>(&[1, 1, 6], &SCORES)
            .constant::<i64>(&[1], &[i64::MAX])
            .constant::<f32>(&[1], &[0.5])
            .input::<f32>(&[1], &[0.4]);
        all.gives(0, &[2, 3], &[0.0, 0.0, 3.0, 0.0, 0.0, 0.0]);
        let (graph, _) = all.lower().unwrap();
        let most = onnxc_ir::graph::Bounds::new(&graph).upper(&graph.ty(graph.outputs[0].1).elements());
        assert_eq!(most.and_then(|most| most.as_const()), Some(18), "three numbers for each of six boxes");
    }

    #[test]
    fn without_limit_there_are_none() {
        let case = Case::new("NonMaxSuppression", 10)
            .input::<f32>(&[1, 6, 4], &BOXES)
            .input::<f32>(&[1, 1, 6], &SCORES);
        case.gives(0, &[0, 3], &[]);
    }

    #[test]
    fn images_classes_and_centers() {
        let twice = [BOXES, BOXES].concat();
        let scores = [SCORES, [0.1; 6], [0.3, 0.2, 0.1, 0.3, 0.3, 0.9], [f32::NAN; 6]].concat();
        let case = Case::new("NonMaxSuppression", 11)
            .symbolic::<f32>(&["b", "s"], &[2, 6, 4], &twice)
            .symbolic::<f32>(&["b", "c", "s"], &[2, 2, 6], &scores)
            .constant::<i64>(&[], &[2])
            .input::<f32>(&[], &[0.5]);
        case.gives(0, &[6, 3], &[0., 0., 3., 0., 0., 0., 0., 1., 0., 0., 1., 3., 1., 0., 5., 1., 0., 0.]);
        let centers = [0.5f32, 0.5, 1.0, 1.0, 0.5, 0.6, 1.0, 1.0, 0.5, 10.0, 1.0, -1.0];
        let case = Case::new("NonMaxSuppression", 11)
            .input::<f32>(&[1, 3, 4], &centers)
            .input::<f32>(&[1, 1, 3], &[0.5, 0.6, 0.1])
            .constant::<i64>(&[], &[5])
            .constant::<f32>(&[], &[0.5])
            .int("center_point_box", 1);
        case.gives(0, &[2, 3], &[0.0, 0.0, 1.0, 0.0, 0.0, 2.0]);
    }
}
