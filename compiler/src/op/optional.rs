//! OptionalHasElement and OptionalGetElement of what is no optional: a tensor, or nothing at all. Values of optional
//! types are refused where they come from.

use super::row::*;
use crate::graph::Tensor;

/// A type variable and what it ranges over.
type Types = &'static [(&'static str, &'static [DType])];

const HAS: &[Param] = &[req("output", "B")];
const REQUIRED: &[Param] = &[req("input", "O")];
const OPTIONAL: &[Param] = &[opt("input", "O")];
const ELEMENT: &[Param] = &[req("output", "V")];

const fn has_row(since: u32, inputs: &'static [Param], types: Types) -> OpDef {
    row("OptionalHasElement", since, inputs, HAS, &[], types, ANY, has_element, "Whether there is an element")
}

const fn get_row(since: u32, types: Types) -> OpDef {
    let doc = "The element of an optional, or the value itself";
    row("OptionalGetElement", since, REQUIRED, ELEMENT, &[], types, ANY, element, doc)
}

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    // Optionals only, at first.
    has_row(15, REQUIRED, &[("O", &[]), ("B", BOOL)]),
    has_row(18, OPTIONAL, &[("O", ALL), ("B", BOOL)]),
    has_row(28, OPTIONAL, &[("O", ALL_28), ("B", BOOL)]),
    get_row(15, &[("O", &[]), ("V", ALL)]),
    get_row(18, &[("O", ALL), ("V", ALL)]),
    get_row(28, &[("O", ALL_28), ("V", ALL_28)]),
];

fn has_element(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let given = cx.optional(0).is_some();
    Ok(vec![cx.b.constant(Tensor::scalar(given))])
}

fn element(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    Ok(vec![cx.input(0)?])
}

#[cfg(test)]
mod tests {
    use crate::graph::DType;
    use crate::op::node_case::Case;

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
