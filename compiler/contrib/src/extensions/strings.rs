//! Strings of this domain that need no function of their own.

use super::{STRING, extension};
use onnxc_ir::graph::{TensorType, call};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    extension("StringConcat", concat)
        .inputs(&[req("left", STRING), req("right", STRING)])
        .outputs(&[req("output", STRING)])
        .shapes(&["left[D..]", "right[D..]"])
        .doc("Two texts joined"),
    extension("StringEqual", equal)
        .inputs(&[req("x", STRING), req("y", STRING)])
        .outputs(&[req("z", "tensor(bool)")])
        .shapes(&["rank(x) = rank(y)", "broadcast(x, y)"])
        .doc("Whether two texts are the same"),
];

fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (left, right) = (cx.input("left")?, cx.input("right")?);
    let ty = TensorType::new(DType::Str, cx.b.shape(left));
    Ok(vec![cx.b.call(&call::CONCAT, &[left, right], vec![ty.elements()], ty)?])
}

fn equal(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("x")?, cx.input("y")?);
    Ok(vec![cx.b.compare(CompareFn::Eq, x, y)?])
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn case(name: &'static str, left: &[&str], right: &[&str]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", name, 1).texts(&["n"], &[left.len()], left);
        case.texts(&["m"], &[right.len()], right)
    }

    #[test]
    fn pairs_of_texts() {
        case("StringConcat", &["a", "", "é"], &["b", "", "c"]).gives_texts(0, &[3], &["ab", "", "éc"]);
        case("StringConcat", &[], &[]).gives_texts(0, &[0], &[]);
        assert!(case("StringConcat", &["a"], &["b", "c"]).run().is_err());
        case("StringEqual", &["a", "", "é"], &["a", "b", "é"]).gives(0, &[3], &[1., 0., 1.]);
        case("StringEqual", &["a", "b"], &["b"]).gives(0, &[2], &[0., 1.]);
    }
}
