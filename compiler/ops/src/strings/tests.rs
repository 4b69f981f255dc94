//! Expected values are those of `onnx.reference`, or of Python's `str` where it has none.

use crate::node_case::Case;
use onnxc_ir::graph::DType;

fn error(case: &Case) -> String {
    case.run().unwrap_err().message
}

#[test]
fn texts_are_joined_and_broadcast() {
    let case = |x: &[&str], y: &[&str]| {
        Case::new("StringConcat", 20).texts(&["n", ""], &[2, x.len() / 2], x).texts(&[], &[y.len()], y)
    };
    case(&["a", "b", "", "d"], &["x", "ü"]).gives_texts(0, &[2, 2], &["ax", "bü", "x", "dü"]);
    case(&["a", "b", "", "d"], &["!"]).gives_texts(0, &[2, 2], &["a!", "b!", "!", "d!"]);
    case(&[], &["!"]).gives_texts(0, &[2, 0], &[]);
    // The same text twice, once made and once given, has one number.
    let same = Case::new("StringConcat", 20).texts(&[], &[2], &["a", "ab"]).texts(&[], &[2], &["bc", "c"]);
    same.gives_texts(0, &[2], &["abc", "abc"]);
}

#[test]
fn texts_are_split_at_delimiters_or_white_space() {
    let case = || Case::new("StringSplit", 20).outputs(2);
    let words = case().texts(&["n"], &[3], &["hello  world ", "", "one"]);
    words.gives_texts(0, &[3, 2], &["hello", "world", "", "", "one", ""]);
    words.gives(1, &[3], &[2., 0., 1.]);
    let commas = || case().texts(&[], &[2], &["a,,b", "c,d"]).str("delimiter", ",");
    commas().gives_texts(0, &[2, 3], &["a", "", "b", "c", "d", ""]);
    commas().int("maxsplit", 1).gives_texts(0, &[2, 2], &["a", ",b", "c", "d"]);
    commas().int("maxsplit", 0).gives(1, &[2], &[1., 1.]);
    case().texts(&["n"], &[0], &[]).gives_texts(0, &[0, 0], &[]);
    case().texts(&[], &[], &["a b"]).gives_texts(0, &[2], &["a", "b"]);
}

#[test]
fn texts_are_normalized() {
    let days = &["Monday", "TUESDAY", "ß", "monday"];
    let case = |dims: &[&str]| Case::new("StringNormalizer", 10).texts(dims, &[4], days);
    case(&["n"]).gives_texts(0, &[4], days);
    case(&["n"]).str("case_change_action", "UPPER").gives_texts(
        0,
        &[4],
        &["MONDAY", "TUESDAY", "SS", "MONDAY"],
    );
    case(&[]).str("case_change_action", "LOWER").gives_texts(0, &[4], &["monday", "tuesday", "ß", "monday"]);
    let stops = |dims: &[&str], exact: i64| {
        case(dims).strs("stopwords", &["monday", "tuesday"]).int("is_case_sensitive", exact)
    };
    for dims in [&["n"][..], &[]] {
        stops(dims, 1).gives_texts(0, &[3], &["Monday", "TUESDAY", "ß"]);
        stops(dims, 0).gives_texts(0, &[1], &["ß"]);
        let none = case(dims).strs("stopwords", &["MONDAY", "tuesday", "ß"]);
        none.gives_texts(0, &[1], &[""]);
    }
    let row =
        Case::new("StringNormalizer", 10).texts(&["", "n"], &[1, 2], &["a", "b"]).strs("stopwords", &["b"]);
    row.gives_texts(0, &[1, 1], &["a"]);
    assert!(error(&case(&[]).str("case_change_action", "SMALL")).contains("LOWER, UPPER, NONE"));
}

#[test]
fn patterns_match_whole_texts() {
    let case = |pattern: &str| {
        Case::new("RegexFullMatch", 20)
            .texts(&["n"], &[4], &["www.a.com", "a.com", "", "www.ä.com"])
            .str("pattern", pattern)
    };
    case(r"www\.\w+\.com").gives(0, &[4], &[1., 0., 0., 0.]);
    case(r"(www\.)?[a-zä]+\.com").gives(0, &[4], &[1., 1., 0., 1.]);
    case("").gives(0, &[4], &[0., 0., 1., 0.]);
    assert!(error(&case("(")).contains("pattern `(`"), "{}", error(&case("(")));
}

#[test]
fn strings_are_compared_chosen_and_moved() {
    let two =
        |op, x: &[&str], y: &[&str]| Case::new(op, 19).texts(&["n"], &[x.len()], x).texts(&[], &[y.len()], y);
    two("Equal", &["a", "b", ""], &["a", "c", ""]).gives(0, &[3], &[1., 0., 1.]);
    two("Equal", &["a", "b", "a"], &["a"]).gives(0, &[3], &[1., 0., 1.]);
    let chosen = Case::new("Where", 16).input(&[2], &[true, false]).texts(&[], &[2], &["a", "b"]).texts(
        &[],
        &[1],
        &["z"],
    );
    chosen.gives_texts(0, &[2], &["a", "z"]);
    let gathered = Case::new("Gather", 13).texts(&["n"], &[3], &["a", "b", "c"]).input(&[2], &[2i64, -3]);
    gathered.gives_texts(0, &[2], &["c", "a"]);
    let joined = Case::new("Concat", 13).int("axis", 0).texts(&["n"], &[1], &["a"]).operand(
        onnxc_ir::graph::Tensor::from_texts(&[2], &["b", "a"]),
        true,
        &[],
    );
    joined.gives_texts(0, &[3], &["a", "b", "a"]);
    let turned = Case::new("Transpose", 13).texts(&["n", "m"], &[1, 3], &["a", "b", "c"]);
    turned.gives_texts(0, &[3, 1], &["a", "b", "c"]);
    let padded = Case::new("Pad", 13).texts(&[], &[1], &["a"]).constant(&[2], &[1i64, 1]);
    padded.gives_texts(0, &[3], &["", "a", ""]);
    assert!(error(&Case::new("TopK", 11).texts(&[], &[1], &["a"]).constant(&[1], &[1i64])).contains("str"));
}

#[test]
fn numbers_become_texts_and_back() {
    let text = |case: Case, wanted: &[&str]| case.int("to", 8).gives_texts(0, &[wanted.len()], wanted);
    text(Case::new("Cast", 13).input(&[4], &[1f32, 0.1, 1e-5, f32::NAN]), &["1.0", "0.1", "1e-05", "nan"]);
    text(
        Case::new("Cast", 13).symbolic(&["n"], &[3], &[-5i64, 0, i64::MAX]),
        &["-5", "0", "9223372036854775807"],
    );
    text(Case::new("Cast", 9).input(&[2], &[true, false]), &["True", "False"]);
    text(Case::new("Cast", 13).texts(&[], &[1], &["a"]), &["a"]);
    let number =
        |texts: &[&str], to: i64| Case::new("Cast", 13).texts(&["n"], &[texts.len()], texts).int("to", to);
    number(&["3.5", " 1e-3", "-INF", "nan"], 1).gives(0, &[4], &[3.5, 1e-3, f64::NEG_INFINITY, f64::NAN]);
    number(&["42", "-7"], 7).gives(0, &[2], &[42., -7.]);
    // What bools are as texts are the numbers that they are.
    for to in [1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 16] {
        number(&["True", "false"], to).gives(0, &[2], &[1., 0.]);
    }
    for to in [17, 20, 21, 22, 23] {
        let case = Case::new("Cast", 23).texts(&["n"], &[2], &["True", "False"]).int("to", to);
        case.gives(0, &[2], &[1., 0.]);
    }
    assert!(error(&number(&["4x"], 1)).contains("text"), "{}", error(&number(&["4x"], 1)));
    let like = Case::new("CastLike", 15).texts(&[], &[1], &["2"]).input(&[1], &[1i32]);
    like.gives(0, &[1], &[2.]);
    assert_eq!(like.run().unwrap()[0].dtype, DType::I32);
}

#[test]
fn distinct_strings_in_order_or_as_they_come() {
    let case = |sorted| {
        Case::new("Unique", 11).texts(&["n"], &[4], &["b", "a", "ä", "b"]).int("sorted", sorted).outputs(4)
    };
    case(1).gives_texts(0, &[3], &["a", "b", "ä"]);
    case(1).gives(2, &[4], &[1., 0., 2., 1.]);
    case(0).gives_texts(0, &[3], &["b", "a", "ä"]);
}

#[test]
fn n_grams_of_strings() {
    let case = Case::new("TfIdfVectorizer", 9)
        .texts(&["n", "m"], &[2, 3], &["a", "b", "b", "x", "a", "b"])
        .str("mode", "TF")
        .int("min_gram_length", 1)
        .int("max_gram_length", 2)
        .int("max_skip_count", 0)
        .ints("ngram_counts", &[0, 2])
        .ints("ngram_indexes", &[0, 1, 2])
        .strs("pool_strings", &["b", "c", "a", "b"]);
    case.gives(0, &[2, 3], &[2., 0., 1., 1., 0., 1.]);
}
