//! Texts, expressions, tables and trees of classical machine learning.

use onnxc_proto::build::{int, ints, node};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{ModelProto, NodeProto, TensorProto};

use super::sketch::{Sketch, floats, importing, refs, text, texts};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "strings_that_are_empty", &[10_000, 2_000_000], empty_strings);
    family(cases, "strings_in_many_tensors", &[1000, 20_000], string_tensors);
    family(cases, "expression_of_a_tokenizer", &[0, 1, 2, 3, 4, 5], tokenizer);
    family(cases, "expression_of_full_match", &[0, 1, 2, 3, 4, 5], full_match);
    family(cases, "separators_of_a_tokenizer", &[100, 10_000], separators);
    family(cases, "string_splits_in_a_chain", &[10, 200], string_splits);
    family(cases, "stop_words", &[1000, 200_000], stop_words);
    family(cases, "ngrams", &[1000, 200_000], ngrams);
    family(cases, "labels", &[1000, 20_000, 200_000], labels);
    family(cases, "tree_that_is_a_cycle", &[2, 1000], tree_cycle);
    family(cases, "tree_that_is_a_chain", &[1000, 50_000], tree_chain);
    family(cases, "trees_many", &[1000, 50_000], trees);
    family(cases, "tree_of_many_targets", &[1 << 20, 1 << 40], |n| tree_targets(n as i64));
    family(cases, "classes_of_a_support_vector_machine", &[100, 3000, 1 << 40], support_vectors);
    family(cases, "einsum_of_a_long_equation", &[1000, 1_000_000], einsum_long);
    family(cases, "einsum_of_many_operands", &[10, 50, 500], einsum_operands);
}

const ML: &str = "ai.onnx.ml";

fn of(domain: &str, node: NodeProto) -> NodeProto {
    NodeProto { domain: Some(domain.into()), ..node }
}

fn string_tensor(name: &str, count: usize, value: &'static [u8]) -> TensorProto {
    TensorProto {
        data_type: Some(DataType::String as i32),
        dims: vec![count as i64],
        name: Some(name.into()),
        string_data: vec![value.into(); count],
        ..Default::default()
    }
}

fn empty_strings(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["1"]);
    s.initializer(string_tensor("w", n, b""));
    let y = s.op("Equal", &[&x, "w"]);
    s.giving(&y)
}

fn string_tensors(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut parts = vec![s.input_of(DataType::String, &["1"])];
    for at in 0..n {
        let name = format!("w{at}");
        s.initializer(string_tensor(&name, 1, b"a text"));
        parts.push(name);
    }
    let y = s.op_with("Concat", &refs(&parts), vec![int("axis", 0)]);
    s.giving(&y)
}

/// Expressions whose automata are large, or that a backtracking engine does not come to an end with.
fn expression(n: usize) -> String {
    match n {
        0 => "(a|a)*b".into(),
        1 => "((a{1,100}){1,100}){1,100}".into(),
        2 => "[ab]*a[ab]{500}".into(),
        3 => "(".repeat(10_000) + &")".repeat(10_000),
        4 => "a?".repeat(5000) + &"a".repeat(5000),
        _ => (0..20_000).map(|at| format!("|word{at}")).collect(),
    }
}

fn tokenizer(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["n"]);
    let tokenizer = node("Tokenizer", &[&x], &["y"])
        .with(int("mark", 0))
        .with(int("mincharnum", 1))
        .with(text("pad_value", "#"))
        .with(text("tokenexp", &expression(n)));
    s.node(of("com.microsoft", tokenizer));
    importing(s.giving("y"), "com.microsoft", 1)
}

fn full_match(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["n"]);
    let y = s.op_with("RegexFullMatch", &[&x], vec![text("pattern", &expression(n))]);
    s.giving(&y)
}

fn separators(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["n"]);
    let tokenizer = node("Tokenizer", &[&x], &["y"])
        .with(int("mark", 0))
        .with(int("mincharnum", 1))
        .with(text("pad_value", "#"))
        .with(texts("separators", (0..n).map(|at| format!("separator {at}"))));
    s.node(of("com.microsoft", tokenizer));
    importing(s.giving("y"), "com.microsoft", 1)
}

/// Each split gives one more axis, of a size that data decide.
fn string_splits(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input_of(DataType::String, &["n"]);
    for _ in 0..n {
        x = s
            .ops("StringSplit", &[&x], vec![text("delimiter", ""), int("maxsplit", i64::MAX)], 2)
            .swap_remove(0);
    }
    s.giving(&x)
}

fn stop_words(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["n"]);
    let words = texts("stopwords", (0..n).map(|at| format!("word {at}")));
    let y = s.op_with("StringNormalizer", &[&x], vec![words]);
    s.giving(&y)
}

fn ngrams(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::Int64, &["n"]);
    let pool: Vec<i64> = (0..n as i64).collect();
    let attributes = vec![
        text("mode", "TF"),
        int("min_gram_length", 1),
        int("max_gram_length", 1),
        int("max_skip_count", i64::MAX),
        ints("ngram_counts", &[0]),
        ints("ngram_indexes", &pool),
        ints("pool_int64s", &pool),
    ];
    let y = s.op_with("TfIdfVectorizer", &[&x], attributes);
    s.giving(&y)
}

fn labels(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input_of(DataType::String, &["n"]);
    let encoder = node("LabelEncoder", &[&x], &["y"])
        .with(texts("keys_strings", (0..n).map(|at| format!("key {at}"))))
        .with(ints("values_int64s", &(0..n as i64).collect::<Vec<_>>()));
    s.node(of(ML, encoder));
    importing(s.giving("y"), ML, 4)
}

/// Nodes of one tree: modes, and where each goes.
fn tree(ids: Vec<i64>, trees: Vec<i64>, modes: Vec<&str>, next: [Vec<i64>; 2], targets: i64) -> ModelProto {
    let mut s = Sketch::new();
    let (x, count) = (s.input(&["n", "4"]), ids.len());
    let [yes, no] = next;
    let leaf = modes.iter().position(|mode| *mode == "LEAF").unwrap_or(0);
    let regressor = node("TreeEnsembleRegressor", &[&x], &["y"])
        .with(int("n_targets", targets))
        .with(ints("nodes_nodeids", &ids))
        .with(ints("nodes_treeids", &trees))
        .with(ints("nodes_featureids", &vec![0; count]))
        .with(floats("nodes_values", vec![0.5; count]))
        .with(texts("nodes_modes", modes.iter().map(|mode| mode.to_string())))
        .with(ints("nodes_truenodeids", &yes))
        .with(ints("nodes_falsenodeids", &no))
        .with(ints("target_ids", &[0]))
        .with(ints("target_nodeids", &[ids[leaf]]))
        .with(ints("target_treeids", &[trees[leaf]]))
        .with(floats("target_weights", vec![1.0]));
    s.node(of(ML, regressor));
    importing(s.giving("y"), ML, 3)
}

fn tree_cycle(n: usize) -> ModelProto {
    let ids: Vec<i64> = (0..n as i64).collect();
    let next: Vec<i64> = ids.iter().map(|id| (id + 1) % n as i64).collect();
    tree(ids, vec![0; n], vec!["BRANCH_LEQ"; n], [next.clone(), next], 1)
}

/// A branch at every level; one side is a leaf.
fn tree_chain(n: usize) -> ModelProto {
    let count = 2 * n + 1;
    let mode = |at: usize| if at.is_multiple_of(2) && at + 1 < count { "BRANCH_LEQ" } else { "LEAF" };
    let modes: Vec<&str> = (0..count).map(mode).collect();
    let to =
        |by: i64| (0..count as i64).map(|at| if mode(at as usize) == "LEAF" { 0 } else { at + by }).collect();
    tree((0..count as i64).collect(), vec![0; count], modes, [to(1), to(2)], 1)
}

fn trees(n: usize) -> ModelProto {
    let (ids, trees) = (0..3 * n as i64).map(|at| (at % 3, at / 3)).unzip();
    let modes = ["BRANCH_LEQ", "LEAF", "LEAF"].repeat(n);
    tree(ids, trees, modes, [[1, 0, 0].repeat(n), [2, 0, 0].repeat(n)], 1)
}

fn tree_targets(targets: i64) -> ModelProto {
    let modes = vec!["BRANCH_LEQ", "LEAF", "LEAF"];
    tree(vec![0, 1, 2], vec![0; 3], modes, [vec![1, 0, 0], vec![2, 0, 0]], targets)
}

/// A vector for each class, or a class that claims that number.
fn support_vectors(n: usize) -> ModelProto {
    let classes = n.min(3000);
    let mut s = Sketch::new();
    let x = s.input(&["n", "1"]);
    let pairs = classes * (classes - 1) / 2;
    let per_class = if n > classes { n as i64 } else { 1 };
    let classifier = node("SVMClassifier", &[&x], &["label", "scores"])
        .with(ints("classlabels_ints", &(0..classes as i64).collect::<Vec<_>>()))
        .with(floats("coefficients", vec![1.0; classes]))
        .with(floats("support_vectors", vec![1.0; classes]))
        .with(ints("vectors_per_class", &vec![per_class; classes]))
        .with(floats("rho", vec![0.5; pairs.min(100_000)]))
        .with(text("kernel_type", "LINEAR"));
    s.node(of(ML, classifier));
    s.output("label");
    importing(s.giving("scores"), ML, 1)
}

fn einsum_long(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["2", "2"]);
    let y = s.op_with("Einsum", &[&x], vec![text("equation", &format!("ij{}->ij", "j".repeat(n)))]);
    s.giving(&y)
}

/// A product of matrices that the order of summing decides the cost of.
fn einsum_operands(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').collect();
    let inputs: Vec<String> = (0..n).map(|_| s.input(&["2", "2"])).collect();
    let letter = |at: usize| letters[at % letters.len()];
    let terms: Vec<String> = (0..n).map(|at| format!("{}{}", letter(at), letter(at + 1))).collect();
    let equation = format!("{}->{}", terms.join(","), letter(0));
    let y = s.op_with("Einsum", &refs(&inputs), vec![text("equation", &equation)]);
    s.giving(&y)
}
