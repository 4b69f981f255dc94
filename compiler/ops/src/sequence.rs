//! Sequences of tensors.

use super::item::{Layout, sequence};
use super::mixed;
use super::row::*;

const SEQUENCE: &[ItemKind] = &[ItemKind::Sequence];
const INPUT: Param = req("input_sequence", "S").of(SEQUENCE);
const OUTPUT: Param = req("output_sequence", "S").of(SEQUENCE);
const POSITION: &[&str] = &["count(position) = 1"];
const SPLIT: &[Param] = &[req("input", "T"), opt("split", "I")];
/// A size for all parts, or one for each.
const SIZES: &[&str] = &["split[] | [_]"];
const SPLIT_ATTRIBUTES: &[AttrDef] = &[int("keepdims", 1), int("axis", 0)];

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("SequenceEmpty", 11, &[], &[req("output", "S").of(SEQUENCE)], &[optional("dtype", Int)], &[("S", ALL)], ANY, empty,
        "A sequence without elements"),
    row("SequenceConstruct", 11, &[var("inputs", "T")], &[OUTPUT], &[], &[("T", ALL), ("S", ALL)], ANY, construct,
        "A sequence of the inputs"),
    row("SequenceInsert", 11, &[INPUT, req("tensor", "T"), opt("position", "I")], &[OUTPUT], &[],
        &[("T", ALL), ("S", ALL), ("I", INDICES)], POSITION, insert, "A sequence with one more element"),
    row("SequenceErase", 11, &[INPUT, opt("position", "I")], &[OUTPUT], &[], &[("S", ALL), ("I", INDICES)], POSITION, erase,
        "A sequence without one of its elements"),
    row("SequenceAt", 11, &[INPUT, req("position", "I")], &[req("tensor", "T")], &[],
        &[("S", ALL), ("T", ALL), ("I", INDICES)], POSITION, at, "An element of a sequence"),
    row("SequenceLength", 11, &[INPUT], &[req("length", "I")], &[], &[("S", ALL), ("I", I64S)], ANY, length,
        "Number of elements of a sequence"),
    row("SplitToSequence", 11, SPLIT, &[OUTPUT], SPLIT_ATTRIBUTES, &[("T", ALL), ("I", INDICES), ("S", ALL)], SIZES, split,
        "The parts of a tensor along an axis"),
    row("SplitToSequence", 24, SPLIT, &[OUTPUT], SPLIT_ATTRIBUTES, &[("T", ALL_BF16), ("I", INDICES), ("S", ALL_BF16)], SIZES,
        split, "The parts of a tensor along an axis"),
    row("ConcatFromSequence", 11, &[INPUT], &[req("concat_result", "T")], &[int("new_axis", 0), required("axis", Int)],
        &[("S", ALL), ("T", ALL)], ANY, concat, "The elements of a sequence joined along an axis"),
    row("SequenceMap", 17, &[INPUT, mixed("additional_inputs", "V").of(SEQUENCES)],
        &[mixed("out_sequence", "S").of(SEQUENCE)], &[required("body", Graph)], &[("S", ALL), ("V", ALL)], ANY, map,
        "The results of a body for each element of sequences"),
];

fn empty(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let dtype = cx.optional_int("dtype")?.map_or(Ok(DType::F32), super::convert::dtype_of)?;
    cx.give(vec![Item::list(dtype, vec![])])
}

fn construct(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let elements = cx.all_inputs()?;
    let dtype = cx.b.dtype(cx.input(0)?);
    let item = Item::list(dtype, elements);
    let item = if cx.inputs.len() > sequence::MAX_LISTED { item.packed(cx.b)? } else { item };
    cx.give(vec![item])
}

fn insert(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (item, tensor, position) = (cx.item(0)?, cx.input(1)?, cx.optional(2));
    let item = sequence::insert(cx.b, &item, tensor, position)?;
    cx.give(vec![item])
}

fn erase(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (item, position) = (cx.item(0)?, cx.optional(1));
    let item = sequence::erase(cx.b, &item, position)?;
    cx.give(vec![item])
}

fn at(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (item, position) = (cx.item(0)?, cx.input(1)?);
    let rank = cx.declared_rank(0);
    Ok(vec![sequence::at(cx.b, &item, position, rank)?])
}

fn length(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let item = cx.item(0)?;
    let count = sequence::count(cx.b, &item)?;
    Ok(vec![dim(cx, &count)?])
}

fn split(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, sizes) = (cx.input("input")?, cx.optional("split"));
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    let keep = cx.int("keepdims")? != 0;
    let item = sequence::split(cx.b, x, axis, keep, sizes)?;
    cx.give(vec![item])
}

fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let item = cx.item(0)?;
    let (axis, new_axis) = (cx.int("axis")?, cx.int("new_axis")? != 0);
    let rank = cx.declared_rank(0);
    Ok(vec![sequence::concat(cx.b, &item, axis, new_axis, rank)?])
}

/// A loop over the positions of the sequences, whose body takes an element of each.
fn map(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let body = cx.graph("body")?;
    let items = (0..cx.inputs.len()).map(|at| cx.item(at)).collect::<Result<Vec<_>>>()?;
    let counts: Vec<Dim> = items
        .iter()
        .filter(|item| matches!(item.layout(), Layout::List(_) | Layout::Sequence(_)))
        .map(|item| sequence::count(cx.b, item))
        .collect::<Result<_>>()?;
    for count in &counts[1..] {
        let equal = Requirement::equal(count.clone(), counts[0].clone());
        cx.b.require(equal.says("the number of elements of a sequence", "that of the first sequence"))?;
    }
    if counts[0] == Dim::ZERO {
        // The type of elements is unknown, and none is needed.
        let empty = body.element_types()?.into_iter().map(|dtype| Item::list(dtype, vec![]));
        return cx.give(empty.collect());
    }
    let sequences: Vec<bool> = items.iter().map(|item| item.kind() == ItemKind::Sequence).collect();
    let body = body.over_elements(&sequences)?;
    let results = cx.inline(&body, &items)?;
    cx.give(results)
}
