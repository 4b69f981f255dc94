//! Regular expressions in texts, in RE2's syntax.

use super::{I64, STRING, Tokens, extension, tables};
use onnxc_ir::graph::{Tensor as Data, TensorType, call};
use onnxc_ops::row::*;
use onnxc_runtime_support::strings::regex;
use onnxc_runtime_support::strings::tokenizers::{delimiters_tables, result};

pub const ROWS: &[OpDef] = &[
    extension("StringRegexReplace", replace)
        .inputs(&[req("text", STRING), req("pattern", STRING), req("rewrite", STRING)])
        .outputs(&[req("output", STRING)])
        .attributes(&[int("global_replace", 1)])
        .shapes(&["pattern[] | [1]", "rewrite[] | [1]"])
        .doc("Texts in which what matches a regular expression is replaced"),
    extension("StringRegexSplitWithOffsets", split)
        .inputs(&[
            req("input", STRING),
            req("delim_regex_pattern", STRING),
            req("keep_delim_regex_pattern", STRING),
        ])
        .outputs(&[
            req("words", STRING),
            req("begin_offsets", I64),
            req("end_offsets", I64),
            req("row_offsets", I64),
        ])
        .shapes(&["input[_]", "delim_regex_pattern[] | [1]", "keep_delim_regex_pattern[] | [_]"])
        .doc("The parts of texts between what matches a regular expression, and where they are"),
];

/// The texts of an input, which must be constant.
fn constants(cx: &NodeCx<'_, '_>, at: usize) -> Result<Vec<String>> {
    let name = cx.def.inputs[at].name;
    let Some(data) = cx.b.graph.constant_data(cx.input(at)?) else {
        return unsupported(format!("input {at} ({name}) that is not constant: expressions are compiled"));
    };
    let text = |text: &[u8]| match std::str::from_utf8(text) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => malformed(format!("input {at} ({name}) is not UTF-8")),
    };
    data.texts().iter().map(|bytes| text(bytes)).collect()
}

fn constant(cx: &NodeCx<'_, '_>, at: usize) -> Result<String> {
    let name = cx.def.inputs[at].name;
    match <[String; 1]>::try_from(constants(cx, at)?) {
        Ok([text]) => Ok(text),
        Err(texts) => malformed(format!("input {at} ({name}) has {} texts, not 1", texts.len())),
    }
}

/// A search for an expression, and the greatest of its groups that is asked for.
fn search(name: &str, pattern: &str, groups: usize) -> Result<regex::Search> {
    if pattern.is_empty() {
        return malformed(format!("{name} is empty"));
    }
    match regex::search(pattern, groups) {
        Ok(search) if search.groups < groups => malformed(format!(
            "{name} `{pattern}` has {} groups, and group {groups} is asked for",
            search.groups
        )),
        Ok(search) => Ok(search),
        Err(message) => malformed(format!("{name} `{pattern}`: {message}")),
    }
}

/// The greatest group that a rewrite has.
fn greatest_group(rewrite: &str) -> Result<usize> {
    let (mut greatest, mut rest) = (0, rewrite.chars());
    while let Some(letter) = rest.next() {
        if letter != '\\' {
            continue;
        }
        match rest.next() {
            Some('\\') => {}
            Some(digit @ '0'..='9') => greatest = greatest.max(digit as usize - '0' as usize),
            other => {
                let shown = other.map_or(String::new(), String::from);
                return malformed(format!("rewrite `{rewrite}`: \\{shown} is neither \\0 to \\9 nor \\\\"));
            }
        }
    }
    Ok(greatest)
}

fn bytes(cx: &mut NodeCx<'_, '_>, bytes: &[u8]) -> (ValueId, Dim) {
    (cx.b.constant(Data::from_slice(&[bytes.len()], bytes)), Dim::from(bytes.len()))
}

fn replace(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let text = cx.input("text")?;
    let (pattern, rewrite) = (constant(cx, 1)?, constant(cx, 2)?);
    let search = search("pattern", &pattern, greatest_group(&rewrite)?)?;
    let ((program, size), (rewrite, rewrite_size)) =
        (bytes(cx, &search.program), bytes(cx, rewrite.as_bytes()));
    let all = i64::from(cx.int("global_replace")? != 0);
    let ty = TensorType::new(DType::Str, cx.b.shape(text));
    let numbers = vec![ty.elements(), size, rewrite_size, Dim::from(all)];
    Ok(vec![cx.b.call(&call::REPLACE, &[text, program, rewrite], numbers, ty)?])
}

fn split(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let text = cx.input("input")?;
    let (pattern, keep) = (constant(cx, 1)?, constants(cx, 2)?);
    // The first group of the pattern is the delimiter.
    let search = search("delim_regex_pattern", &pattern, 1)?;
    if search.matches_nothing {
        return unsupported(format!("delim_regex_pattern `{pattern}`, which matches the empty text"));
    }
    let keep = match keep.as_slice() {
        [] => None,
        [keep] => Some(keep.as_str()).filter(|keep| !keep.is_empty()),
        many => return malformed(format!("keep_delim_regex_pattern has {} texts, not 0 or 1", many.len())),
    };
    let keep = match keep.map(regex::compile) {
        None => vec![],
        Some(Ok(program)) => program,
        Some(Err(message)) => {
            return malformed(format!("keep_delim_regex_pattern `{}`: {message}", keep.unwrap_or_default()));
        }
    };
    let tables = tables(cx, delimiters_tables(&search.program, &keep))?;
    let tokens = Tokens::of(cx, &call::DELIMITED, text, tables)?;
    let (total, count) = (tokens.total(cx)?, tokens.count.clone());
    let words = tokens.result(cx, result::TOKENS, vec![total.clone()], DType::Str)?;
    let starts = tokens.result(cx, result::STARTS, vec![count + Dim::ONE], DType::I64)?;
    let places = vec![total.clone(), Dim::from(2usize)];
    let places = tokens.result(cx, result::OFFSETS, places, DType::I64)?;
    let mut ends = vec![];
    for at in 0..2_usize {
        let column = cx.b.slice_axis(places, 1, Dim::from(at), Dim::ONE)?;
        ends.push(cx.b.reshape(column, vec![total.clone()])?);
    }
    Ok([words].into_iter().chain(ends).chain([starts]).collect())
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn texts(case: Case, texts: &[&str]) -> Case {
        case.operand(onnxc_ir::graph::Tensor::from_texts(&[texts.len()], texts), true, &[])
    }

    fn replaced(pattern: &str, rewrite: &str, of: &[&str]) -> Case {
        let case =
            crate::tests::case("ai.onnx.contrib", "StringRegexReplace", 1).texts(&["n"], &[of.len()], of);
        texts(texts(case, &[pattern]), &[rewrite])
    }

    fn split(pattern: &str, keep: &[&str], of: &[&str]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", "StringRegexSplitWithOffsets", 1);
        texts(texts(case.texts(&["n"], &[of.len()], of), &[pattern]), keep).outputs(4)
    }

    #[test]
    fn matches_are_replaced() {
        let (pattern, texts) = (r"def\s+(\w+)\(\)", ["def f():", "", "def g(): def h():"]);
        replaced(pattern, r"fn \1", &texts).gives_texts(0, &[3], &["fn f:", "", "fn g: fn h:"]);
        let first = replaced(pattern, r"\0!", &texts).int("global_replace", 0);
        first.gives_texts(0, &[3], &["def f()!:", "", "def g()!: def h():"]);
        replaced("a", "b", &[]).gives_texts(0, &[0], &[]);
    }

    #[test]
    fn texts_between_delimiters() {
        let of = |keep: &[&str]| split(r"(\s|[.,])", keep, &["hello there.", "", " é,a"]);
        of(&[]).gives_texts(0, &[4], &["hello", "there", "é", "a"]);
        of(&[]).gives(1, &[4], &[0., 6., 1., 4.]);
        of(&[]).gives(2, &[4], &[5., 11., 3., 5.]);
        of(&[]).gives(3, &[4], &[0., 2., 2., 4.]);
        of(&["[.,]"]).gives_texts(0, &[6], &["hello", "there", ".", "é", ",", "a"]);
        // Each search begins as at the beginning of a text.
        split("(^a)", &[""], &["aab a"]).gives_texts(0, &[1], &["b a"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fails = |case: Case, text: &str| {
            let error = case.run().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        fails(replaced("(a", "", &["a"]), "pattern `(a`: a ( without )");
        fails(replaced("", "", &["a"]), "pattern is empty");
        fails(replaced("(a)", r"\2", &["a"]), "has 1 groups, and group 2 is asked for");
        fails(replaced("a", r"\n", &["a"]), r"\n is neither \0 to \9");
        fails(replaced("a", "\\", &["a"]), "is neither");
        fails(replaced(r"(a)\1", "", &["a"]), "RE2 does not refer to groups");
        fails(split("a", &[], &["a"]), "has 0 groups, and group 1 is asked for");
        fails(split("(a*)", &[], &["a"]), "matches the empty text");
        fails(split("(a)", &["a", "b"], &["a"]), "has 2 texts, not 0 or 1");
        fails(split("(a)", &["["], &["a"]), "keep_delim_regex_pattern `[`");
        let late = crate::tests::case("ai.onnx.contrib", "StringRegexReplace", 1).texts(&["n"], &[1], &["a"]);
        fails(late.texts(&[""], &[1], &["a"]).texts(&[""], &[1], &["a"]), "(pattern) that is not constant");
    }
}
