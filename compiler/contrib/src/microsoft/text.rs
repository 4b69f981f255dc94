//! Texts as ONNX Runtime's exporters of scikit-learn's vectorizers cut them.

use super::own;
use onnxc_ir::graph::{TensorType, call};
use onnxc_ops::row::*;
use onnxc_ops::strings::{automaton, constant, most};

const STRING: &[DType] = &[DType::Str];

pub const ROWS: &[OpDef] = &[own("Tokenizer", tokenize)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        required("mark", Int),
        required("mincharnum", Int),
        required("pad_value", Str),
        optional("separators", Strs),
        optional("tokenexp", Str),
    ])
    .types(&[("T", STRING)])
    .shapes(&["X[_] | [_, _]"])
    .doc("The tokens of texts: what matches an expression, or lies between matches")];

/// `Y: [X.., D]`, where `D` is the number of tokens of the text that has most of them.
fn tokenize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let separators = cx.strs("separators")?.unwrap_or_default();
    let expression = cx.attributes.contains_key("tokenexp").then(|| cx.str("tokenexp")).transpose()?;
    let (pattern, between) = match (expression, separators.as_slice()) {
        (Some(expression), []) if expression == "." => ("(?s).".to_string(), false),
        (Some(expression), []) => (expression, false),
        (None, [separator]) if separator.is_empty() => ("(?s).".to_string(), false),
        (None, [_, ..]) => {
            let parts = separators.iter().map(|separator| format!("(?:{separator})"));
            (parts.collect::<Vec<_>>().join("|"), true)
        }
        (Some(_), _) => return malformed("both tokenexp and separators"),
        (None, []) => return malformed("neither tokenexp nor separators"),
    };
    let shortest = cx.int("mincharnum")?;
    if shortest < 1 {
        return malformed(format!("mincharnum is {shortest}; it must be at least 1"));
    }
    let (automaton, bytes) = automaton(cx, "expression", &pattern)?;
    let (shape, count) = (cx.b.shape(x), cx.b.ty(x).elements());
    let numbers = vec![count, bytes, Dim::from(shortest), Dim::from(usize::from(between))];
    let counts = TensorType::new(DType::I64, shape.clone());
    let counts = cx.b.call(&call::TOKEN_COUNTS, &[x, automaton], numbers.clone(), counts)?;
    let width = most(cx, counts)?;
    let padding = constant(cx, &[cx.str("pad_value")?]);
    let row: Vec<Dim> = shape.iter().cloned().chain([width.clone()]).collect();
    let numbers = [numbers, vec![width]].concat();
    let tokens =
        cx.b.call(&call::TOKENS, &[x, automaton, padding], numbers, TensorType::new(DType::Str, row))?;
    match cx.int("mark")? {
        0 => Ok(vec![tokens]),
        _ => Ok(vec![marked(cx, tokens, counts, padding)?]),
    }
}

/// Each row of tokens behind a mark, and with another one behind its last token, before what fills it up.
fn marked(cx: &mut NodeCx<'_, '_>, tokens: ValueId, counts: ValueId, padding: ValueId) -> Result<ValueId> {
    let mut shape = cx.b.shape(tokens);
    let axis = shape.len() - 1;
    let mut column = shape.clone();
    column[axis] = Dim::ONE;
    let column = cx.b.expand(padding, column)?;
    let framed = cx.b.concat(&[column, tokens, column], axis)?;
    shape = cx.b.shape(framed);
    let at = index_along(cx, shape[axis].clone(), axis, shape.len())?;
    let (first, last) = (constant(cx, &["\u{2}"]), constant(cx, &["\u{3}"]));
    let behind = cx.b.unsqueeze(counts, &[axis])?;
    let behind = cx.b.binary_scalar(BinaryFn::Add, behind, 1.0)?;
    let ends = cx.b.compare(CompareFn::Eq, at, behind)?;
    let framed = cx.b.select(ends, last, framed)?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let begins = cx.b.compare(CompareFn::Eq, at, zero)?;
    cx.b.select(begins, first, framed)
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn case(texts: &[&str]) -> Case {
        crate::tests::case("com.microsoft", "Tokenizer", 1)
            .texts(&["n"], &[texts.len()], texts)
            .int("mincharnum", 1)
            .str("pad_value", "#")
    }

    /// Expected values are those of ONNX Runtime 1.32.
    #[test]
    fn tokens_match_or_lie_between() {
        let of = || case(&["ab, c", "é"]).int("mark", 0);
        of().str("tokenexp", "[a-z]+").gives_texts(0, &[2, 2], &["ab", "c", "#", "#"]);
        of().strs("separators", &[",", " "]).gives_texts(0, &[2, 2], &["ab", "c", "é", "#"]);
        of().strs("separators", &[""]).gives_texts(
            0,
            &[2, 5],
            &["a", "b", ",", " ", "c", "é", "#", "#", "#", "#"],
        );
        let marked = case(&["ab, c", "é"]).int("mark", 1).str("tokenexp", "[a-z]+");
        marked.gives_texts(0, &[2, 4], &["\u{2}", "ab", "c", "\u{3}", "\u{2}", "\u{3}", "#", "#"]);
        case(&[]).int("mark", 0).str("tokenexp", "a").gives_texts(0, &[0, 0], &[]);
        case(&["b"]).int("mark", 0).str("tokenexp", "a").gives_texts(0, &[1, 0], &[]);
    }

    #[test]
    fn wrong_attributes_are_named() {
        let error = |case: Case| case.run().unwrap_err().message;
        let of = || case(&["a"]).int("mark", 0);
        assert!(error(of()).contains("neither tokenexp nor separators"));
        assert!(error(of().str("tokenexp", "a").strs("separators", &["b"])).contains("both"));
        assert!(error(of().str("tokenexp", "(")).contains("expression `(`"));
    }
}
