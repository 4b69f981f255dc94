//! Strings of this domain that need no function of their own.

use super::{I64, STRING, extension};
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
    extension("StringJoin", join)
        .inputs(&[req("input", STRING), req("sep", STRING), req("axis", I64)])
        .outputs(&[req("out", STRING)])
        .shapes(&["sep[1]"])
        .doc("Texts along an axis joined, with a text between them"),
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

/// The axis goes; a text alone and a vector give one text, `[1]`.
fn join(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (mut x, separator) = (cx.input("input")?, cx.input("sep")?);
    let separator = cx.b.reshape(separator, vec![Dim::ONE])?;
    let (rank, axis) = (cx.b.rank(x), cx.const_input("axis")?);
    if rank == 0 {
        return Ok(vec![cx.b.reshape(x, vec![Dim::ONE])?]);
    }
    let axis = match axis[..] {
        [axis] if (0..rank as i64).contains(&axis) => axis as usize,
        _ => return malformed(format!("axis is {axis:?}, must be one number from 0 to {}", rank - 1)),
    };
    let mut shape = cx.b.shape(x);
    let each = shape.remove(axis);
    if axis + 1 < rank {
        let mut last: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
        last.push(axis);
        x = cx.b.transpose(x, &last)?;
    }
    if shape.is_empty() {
        shape.push(Dim::ONE);
    }
    let ty = TensorType::new(DType::Str, shape);
    Ok(vec![cx.b.call(&call::JOIN, &[x, separator], vec![ty.elements(), each], ty)?])
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

    #[test]
    fn texts_along_an_axis() {
        let of = |shape: &[usize], texts: &[&str], axis: &[i64]| {
            let dims: Vec<String> = (0..shape.len()).map(|axis| format!("d{axis}")).collect();
            let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
            let case = crate::tests::case("ai.onnx.contrib", "StringJoin", 1).texts(&dims, shape, texts);
            case.texts(&["one"], &[1], &[", "]).constant(&[axis.len()], axis)
        };
        of(&[3], &["a", "", "é"], &[0]).gives_texts(0, &[1], &["a, , é"]);
        of(&[1], &["a"], &[0]).gives_texts(0, &[1], &["a"]);
        of(&[0], &[], &[0]).gives_texts(0, &[1], &[""]);
        of(&[], &["a"], &[0]).gives_texts(0, &[1], &["a"]);
        let six = ["a", "b", "c", "d", "e", "f"];
        of(&[2, 3], &six, &[1]).gives_texts(0, &[2], &["a, b, c", "d, e, f"]);
        of(&[2, 3], &six, &[0]).gives_texts(0, &[3], &["a, d", "b, e", "c, f"]);
        of(&[1, 3, 2], &six, &[1]).gives_texts(0, &[1, 2], &["a, c, e", "b, d, f"]);
        of(&[2, 0], &[], &[1]).gives_texts(0, &[2], &["", ""]);
        of(&[0, 2], &[], &[1]).gives_texts(0, &[0], &[]);
        for (shape, axis) in [(&[2, 3][..], &[2][..]), (&[2, 3], &[-1]), (&[2, 3], &[0, 1])] {
            let error = of(shape, &six, axis).run().unwrap_err().to_string();
            assert!(error.contains("must be one number from 0 to 1"), "{error}");
        }
    }
}
