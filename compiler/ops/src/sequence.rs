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

pub const ROWS: &[OpDef] = &[
    op("SequenceEmpty", 11, empty)
        .outputs(&[req("output", "S").of(SEQUENCE)])
        .attributes(&[optional("dtype", Int)])
        .types(&[("S", ALL)])
        .doc("A sequence without elements"),
    op("SequenceConstruct", 11, construct)
        .inputs(&[var("inputs", "T")])
        .outputs(&[OUTPUT])
        .types(&[("T", ALL), ("S", ALL)])
        .doc("A sequence of the inputs"),
    op("SequenceInsert", 11, insert)
        .inputs(&[INPUT, req("tensor", "T"), opt("position", "I")])
        .outputs(&[OUTPUT])
        .types(&[("T", ALL), ("S", ALL), ("I", INDICES)])
        .shapes(POSITION)
        .doc("A sequence with one more element"),
    op("SequenceErase", 11, erase)
        .inputs(&[INPUT, opt("position", "I")])
        .outputs(&[OUTPUT])
        .types(&[("S", ALL), ("I", INDICES)])
        .shapes(POSITION)
        .doc("A sequence without one of its elements"),
    op("SequenceAt", 11, at)
        .inputs(&[INPUT, req("position", "I")])
        .outputs(&[req("tensor", "T")])
        .types(&[("S", ALL), ("T", ALL), ("I", INDICES)])
        .shapes(POSITION)
        .doc("An element of a sequence"),
    op("SequenceLength", 11, length)
        .inputs(&[INPUT])
        .outputs(&[req("length", "I")])
        .types(&[("S", ALL), ("I", I64S)])
        .doc("Number of elements of a sequence"),
    SPLIT_TO_SEQUENCE,
    SPLIT_TO_SEQUENCE.since(24).types(&[("T", ALL_BF16), ("I", INDICES), ("S", ALL_BF16)]),
    op("ConcatFromSequence", 11, concat)
        .inputs(&[INPUT])
        .outputs(&[req("concat_result", "T")])
        .attributes(&[int("new_axis", 0), required("axis", Int)])
        .types(&[("S", ALL), ("T", ALL)])
        .doc("The elements of a sequence joined along an axis"),
    op("SequenceMap", 17, map)
        .inputs(&[INPUT, mixed("additional_inputs", "V").of(SEQUENCES)])
        .outputs(&[mixed("out_sequence", "S").of(SEQUENCE)])
        .attributes(&[required("body", Graph)])
        .types(&[("S", ALL), ("V", ALL)])
        .doc("The results of a body for each element of sequences"),
];

const SPLIT_TO_SEQUENCE: OpDef = op("SplitToSequence", 11, split)
    .inputs(SPLIT)
    .outputs(&[OUTPUT])
    .attributes(SPLIT_ATTRIBUTES)
    .types(&[("T", ALL), ("I", INDICES), ("S", ALL)])
    .shapes(SIZES)
    .doc("The parts of a tensor along an axis");

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
