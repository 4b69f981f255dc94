//! Optionals. Since version 18 the operators also take what is none: a value is its own element, and nothing at all has
//! none.

use super::Attr;
use super::item::{ItemType, Layout, sequence};
use super::row::*;
use onnxc_ir::graph::Tensor;

/// A type variable and what it ranges over.
type Types = &'static [(&'static str, &'static [DType])];

const OPTIONALS: &[ItemKind] = &[ItemKind::Optional, ItemKind::OptionalSequence];
const HAS: &[Param] = &[req("output", "B")];
const OPTIONAL_ONLY: &[Param] = &[req("input", "O").of(OPTIONALS)];
const REQUIRED: &[Param] = &[req("input", "O").of(ALL_KINDS)];
const OPTIONAL: &[Param] = &[opt("input", "O").of(ALL_KINDS)];
const ELEMENT: &[Param] = &[req("output", "V").of(SEQUENCES)];

const fn make_row(since: u32, types: Types) -> OpDef {
    const INPUT: &[Param] = &[opt("input", "V").of(SEQUENCES)];
    const OUTPUT: &[Param] = &[req("output", "O").of(OPTIONALS)];
    const ATTRIBUTES: &[AttrDef] = &[optional("type", Type)];
    let doc = "An optional with an element, or without one";
    op("Optional", since, make).inputs(INPUT).outputs(OUTPUT).attributes(ATTRIBUTES).types(types).doc(doc)
}

const fn has_row(since: u32, inputs: &'static [Param], types: Types) -> OpDef {
    op("OptionalHasElement", since, has_element)
        .inputs(inputs)
        .outputs(HAS)
        .types(types)
        .doc("Whether there is an element")
}

const fn get_row(since: u32, inputs: &'static [Param], types: Types) -> OpDef {
    let doc = "The element of an optional, or the value itself";
    op("OptionalGetElement", since, element).inputs(inputs).outputs(ELEMENT).types(types).doc(doc)
}

pub const ROWS: &[OpDef] = &[
    make_row(15, &[("V", ALL), ("O", ALL)]),
    make_row(28, &[("V", ALL_28), ("O", ALL_28)]),
    has_row(15, OPTIONAL_ONLY, &[("O", ALL), ("B", BOOL)]),
    has_row(18, OPTIONAL, &[("O", ALL), ("B", BOOL)]),
    has_row(28, OPTIONAL, &[("O", ALL_28), ("B", BOOL)]),
    get_row(15, OPTIONAL_ONLY, &[("O", ALL), ("V", ALL)]),
    get_row(18, REQUIRED, &[("O", ALL), ("V", ALL)]),
    get_row(28, REQUIRED, &[("O", ALL_28), ("V", ALL_28)]),
];

fn make(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if let Some(item) = cx.optional_item(0) {
        let item = Item::some(cx.b, &item)?;
        return cx.give(vec![item]);
    }
    let Some(Attr::Type(ty)) = cx.attributes.get("type").cloned() else {
        return malformed("there is neither an input nor a type");
    };
    let absent = absent(cx, &ty)?;
    cx.give(vec![absent])
}

/// An optional without an element.
fn absent(cx: &mut NodeCx<'_, '_>, ty: &ItemType) -> Result<Item> {
    let present = cx.b.constant(Tensor::scalar(false));
    let dtype = ty.columns.last().map(|ty| ty.dtype);
    let element = match (&ty.layout, dtype) {
        (Layout::Tensor, Some(dtype)) => Item::new(Layout::Nothing(dtype), vec![]).convert(cx.b, ty)?,
        (Layout::Sequence(_), Some(dtype)) => Item::list(dtype, vec![]).convert(cx.b, ty)?,
        (layout, _) => Item::new(layout.clone(), vec![]),
    };
    let columns = [&[present], element.columns()].concat();
    Ok(Item::new(Layout::Optional(Box::new(element.layout())), columns))
}

fn has_element(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    match cx.optional_item(0) {
        Some(item) if item.element().is_some() => {
            let present = item.columns()[0];
            Ok(vec![to_scalar(cx, present)?])
        }
        item => Ok(vec![cx.b.constant(Tensor::scalar(item.is_some()))]),
    }
}

fn element(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let item = cx.item(0)?;
    let item = element_of(cx.b, &item)?;
    if let Layout::Nothing(_) = item.layout() {
        return unsupported("the element of an optional that has none and whose rank is unknown");
    }
    cx.give(vec![item])
}

/// The element of an optional, or what is none itself. A run in which it has none fails.
pub fn element_of(b: &mut onnxc_ir::build::Builder<'_>, item: &Item) -> Result<Item> {
    let Some(element) = item.element() else { return Ok(item.clone()) };
    let present = b.reshape(item.columns()[0], vec![])?;
    sequence::require_true(b, present, "the optional has no element", &[])?;
    Ok(element)
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;
    use onnxc_ir::graph::DType;

    #[test]
    fn tensors_are_there_and_what_is_missing_is_not() {
        for opset in [18, 28] {
            let of = || Case::new("OptionalHasElement", opset);
            of().gives(0, &[], &[0.]);
            of().missing().gives(0, &[], &[0.]);
            of().input::<f32>(&[0], &[]).gives(0, &[], &[1.]);
            assert_eq!(of().run().unwrap()[0].dtype, DType::Bool);
        }
    }

    #[test]
    fn a_tensor_is_its_own_element() {
        for opset in [18, 28] {
            let of = || Case::new("OptionalGetElement", opset);
            of().symbolic(&["n"], &[3], &[1i32, 2, 3]).gives(0, &[3], &[1., 2., 3.]);
            assert!(of().run().unwrap_err().message.contains("missing"));
        }
    }
}
