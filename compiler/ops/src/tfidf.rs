//! TfIdfVectorizer: how often the n-grams of a pool occur in rows of tokens.
//!
//! The n-grams are constants. All places and distances at which one may begin and go on are gathered at once and
//! compared with all n-grams of one length, so that the graph does not grow with the attributes.

use super::row::*;
use super::strings::{constant, distinct, find};
use onnxc_ir::graph::{Op, Tensor};

pub const ROWS: &[OpDef] = &[op("TfIdfVectorizer", 9, vectorize)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T1")])
    .attributes(&[
        required("max_gram_length", Int),
        required("max_skip_count", Int),
        required("min_gram_length", Int),
        required("mode", Str),
        required("ngram_counts", Ints),
        required("ngram_indexes", Ints),
        optional("pool_int64s", Ints),
        optional("pool_strings", Strs),
        optional("weights", Floats),
    ])
    .types(&[("T", &[DType::Str, DType::I32, DType::I64]), ("T1", F32S)])
    .doc("Counts of n-grams, weighted")];

/// The n-grams of one length.
struct Grams {
    length: usize,
    /// `[length, count]`: column `j` is the `j`-th n-gram.
    tokens: Vec<i64>,
    /// Number of the first one among the n-grams of all lengths.
    first: usize,
    count: usize,
}

/// `X: [N, C]` gives `[N, max(ngram_indexes) + 1]`, `X: [C]` the only row of it.
fn vectorize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let (x, pool) = tokens(cx, x)?;
    let (columns, width) = columns(cx)?;
    let grams = grams(cx, &pool, columns.len())?;
    let (row, skip) = (cx.b.shape(x), cx.int("max_skip_count")?);
    let (rows, size) = match row.as_slice() {
        [size] => (Dim::ONE, size.clone()),
        [rows, size] => (rows.clone(), size.clone()),
        _ => return malformed(format!("tokens {}: neither one row nor rows", cx.b.ty(x))),
    };
    let Some(distances) = skip.checked_add(1).filter(|&count| count > 0) else {
        return malformed(format!("max_skip_count {skip}"));
    };
    let x = cx.b.reshape(x, vec![rows.clone(), size.clone()])?;
    let x = cx.b.cast(x, DType::I64)?;
    // A token that is in no n-gram stands for all places behind the row.
    let none = (0i64..).find(|token| !pool.contains(token)).unwrap_or(-1);
    let none = cx.b.constant(Tensor::scalar(none));
    let x = cx.b.pad(x, none, vec![Dim::ZERO, Dim::ZERO], vec![Dim::ZERO, Dim::ONE])?;

    let (mut counts, mut numbers) = (Vec::new(), Vec::new());
    for of_length in &grams {
        // Unigrams are the same at all distances; from the row's size on, no second token is in the row.
        let distances = if of_length.length == 1 { Dim::ONE } else { Dim::from(distances).min_dim(&size) };
        counts.push(count(cx, x, &size, distances, of_length)?);
        numbers.extend(of_length.first..of_length.first + of_length.count);
    }
    let y = if counts.is_empty() {
        zeros(cx, vec![rows, Dim::from(width)])?
    } else {
        let counts = cx.b.concat(&counts, 1)?;
        let scores = weigh(cx, counts, &numbers, columns.len())?;
        let columns: Vec<i64> = numbers.iter().map(|&number| columns[number]).collect();
        spread(cx, scores, &columns, width)?
    };
    let shape = if row.len() == 1 { vec![Dim::from(width)] } else { cx.b.shape(y) };
    Ok(vec![cx.b.reshape(y, shape)?])
}

/// Tokens as integers, and those of the pool. Strings become their places among the strings of the pool, and others -1.
fn tokens(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<(ValueId, Vec<i64>)> {
    let (ints, strings) = (cx.ints("pool_int64s")?, cx.strs("pool_strings")?);
    match (ints, strings) {
        (Some(ints), None) if cx.b.dtype(x) != DType::Str => Ok((x, ints)),
        (None, Some(strings)) if cx.b.dtype(x) == DType::Str => {
            let (keys, pool) = distinct(&strings);
            let keys = constant(cx, &keys);
            Ok((find(cx.b, x, keys)?, pool))
        }
        (Some(_), None) => malformed(format!("pool_int64s, and tokens {}", cx.b.ty(x))),
        (None, Some(_)) => malformed(format!("pool_strings, and tokens {}", cx.b.ty(x))),
        (Some(_), Some(_)) => malformed("both pool_int64s and pool_strings"),
        (None, None) => malformed("neither pool_int64s nor pool_strings"),
    }
}

/// The column of each n-gram, and the number of columns.
fn columns(cx: &NodeCx<'_, '_>) -> Result<(Vec<i64>, i64)> {
    let Some(columns) = cx.ints("ngram_indexes")?.filter(|columns| !columns.is_empty()) else {
        return malformed("ngram_indexes is empty");
    };
    if let Some(column) = columns.iter().find(|&&column| column < 0) {
        return malformed(format!("ngram_indexes holds {column}"));
    }
    match columns.iter().max().and_then(|most| most.checked_add(1)) {
        Some(width) => Ok((columns, width)),
        None => malformed(format!("ngram_indexes holds {}", i64::MAX)),
    }
}

/// The n-grams of the lengths that count, by length, without empty ones.
fn grams(cx: &NodeCx<'_, '_>, pool: &[i64], columns: usize) -> Result<Vec<Grams>> {
    let starts = cx.ints("ngram_counts")?.unwrap_or_default();
    let (least, most) = (cx.int("min_gram_length")?, cx.int("max_gram_length")?);
    if least < 1 || most < least {
        return malformed(format!("n-grams of at least {least} and at most {most} tokens"));
    }
    let ends = starts.iter().skip(1).copied().chain([pool.len() as i64]);
    let (mut grams, mut first) = (Vec::new(), 0);
    for (at, (&start, end)) in starts.iter().zip(ends).enumerate() {
        let length = at + 1;
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let Some(part) = part.and_then(|(start, end)| pool.get(start..end)) else {
            return malformed(format!("ngram_counts {starts:?} of a pool of {}", pool.len()));
        };
        if part.len() % length != 0 {
            return malformed(format!("{} tokens make no {length}-grams", part.len()));
        }
        let count = part.len() / length;
        if count > 0 && (least..=most).contains(&(length as i64)) {
            let token = |at: usize| part[at % count * length + at / count];
            let tokens = (0..part.len()).map(token).collect();
            grams.push(Grams { length, tokens, first, count });
        }
        first += count;
    }
    if first > columns {
        return malformed(format!("{first} n-grams, and ngram_indexes has {columns}"));
    }
    Ok(grams)
}

/// How often each n-gram occurs in each row, `[N, count]`: its tokens may be 1 to `distances` places apart. `x` has
/// one column more than the rows' `size`.
fn count(cx: &mut NodeCx<'_, '_>, x: ValueId, size: &Dim, distances: Dim, grams: &Grams) -> Result<ValueId> {
    let length = Dim::from(grams.length);
    // `[distances, length, size]`: where token `k` of an n-gram that begins at `c` is, `c + k * distance`.
    let distance = cx.b.iota(vec![distances, Dim::ONE, Dim::ONE], 0)?;
    let distance = cx.b.binary_scalar(BinaryFn::Add, distance, 1.0)?;
    let token = cx.b.iota(vec![Dim::ONE, length.clone(), Dim::ONE], 1)?;
    let begin = cx.b.iota(vec![Dim::ONE, Dim::ONE, size.clone()], 2)?;
    let place = cx.b.binary(BinaryFn::Mul, distance, token)?;
    let place = cx.b.binary(BinaryFn::Add, place, begin)?;
    let behind = dim(cx, size)?;
    let place = cx.b.binary(BinaryFn::Min, place, behind)?;
    let found = cx.b.emit1(Op::Gather { axis: 1 }, &[x, place])?;

    let mut shape = cx.b.shape(found);
    let rows = shape[0].clone();
    shape.push(Dim::ONE);
    let found = cx.b.reshape(found, shape)?;
    let tokens = cx.b.constant(Tensor::from_slice(&[grams.length, 1, grams.count], &grams.tokens));
    let same = cx.b.compare(CompareFn::Eq, found, tokens)?;
    let all = cx.b.reduce(ReduceFn::And, same, &[2])?;
    let ones = cx.b.cast(all, DType::I64)?;
    let counts = cx.b.reduce(ReduceFn::Sum, ones, &[1, 2, 3])?;
    cx.b.reshape(counts, vec![rows, Dim::from(grams.count)])
}

/// Counts as the mode has them weighted. A weight belongs to its n-gram, as the document says and ONNX Runtime has it;
/// the reference takes the weight at the number of the column.
fn weigh(cx: &mut NodeCx<'_, '_>, counts: ValueId, numbers: &[usize], total: usize) -> Result<ValueId> {
    let mode = cx.str("mode")?;
    let counts = match mode.as_str() {
        "TF" | "TFIDF" => counts,
        "IDF" => cx.b.binary_scalar(BinaryFn::Min, counts, 1.0)?,
        _ => return not_one_of("mode", mode, "TF, IDF, TFIDF"),
    };
    let scores = cx.b.cast(counts, DType::F32)?;
    match cx.floats("weights")? {
        Some(weights) if mode != "TF" && !weights.is_empty() => {
            if weights.len() != total {
                return malformed(format!("{} weights for {total} n-grams", weights.len()));
            }
            let weights: Vec<f32> = numbers.iter().map(|&number| weights[number]).collect();
            let weights = cx.b.constant(Tensor::from_slice(&[1, weights.len()], &weights));
            cx.b.binary(BinaryFn::Mul, scores, weights)
        }
        _ => Ok(scores),
    }
}

/// Scores of n-grams, `[N, count]`, added up in their columns, `[N, width]`.
fn spread(cx: &mut NodeCx<'_, '_>, scores: ValueId, columns: &[i64], width: i64) -> Result<ValueId> {
    if columns.iter().copied().eq(0..width) {
        return Ok(scores);
    }
    let shape = cx.b.shape(scores);
    let to = zeros(cx, vec![shape[0].clone(), Dim::from(width)])?;
    let columns = cx.b.constant(Tensor::from_slice(&[1, columns.len()], columns));
    let columns = cx.b.expand(columns, shape)?;
    cx.b.emit1(Op::ScatterElements { axis: 1, combine: Some(BinaryFn::Add) }, &[to, columns, scores])
}

fn zeros(cx: &mut NodeCx<'_, '_>, shape: Vec<Dim>) -> Result<ValueId> {
    let zero = cx.b.scalar(DType::F32, 0.0);
    cx.b.expand(zero, shape)
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    const TOKENS: [i32; 12] = [1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8];

    /// The pool of the operator's official tests: unigrams 2 3 5 4, bigrams 5-6 7-8 6-7.
    fn case(mode: &str, lengths: [i64; 2], skip: i64) -> Case {
        Case::new("TfIdfVectorizer", 9)
            .str("mode", mode)
            .int("min_gram_length", lengths[0])
            .int("max_gram_length", lengths[1])
            .int("max_skip_count", skip)
            .ints("ngram_counts", &[0, 4])
            .ints("ngram_indexes", &[0, 1, 2, 3, 4, 5, 6])
            .ints("pool_int64s", &[2, 3, 5, 4, 5, 6, 7, 8, 6, 7])
    }

    fn error(case: Case) -> String {
        case.run().unwrap_err().message
    }

    #[test]
    fn bigrams_with_and_without_skips() {
        let of = |skip| case("TF", [2, 2], skip).input(&[12], &TOKENS);
        of(0).gives(0, &[7], &[0., 0., 0., 0., 1., 1., 1.]);
        of(5).gives(0, &[7], &[0., 0., 0., 0., 1., 3., 1.]);
        of(i64::MAX - 1).gives(0, &[7], &[0., 0., 0., 0., 1., 3., 1.]);
    }

    #[test]
    fn unigrams_count_once_at_all_distances() {
        case("TF", [1, 2], 5).input(&[12], &TOKENS).gives(0, &[7], &[0., 3., 1., 0., 1., 3., 1.]);
        case("TF", [1, 1], 5).input(&[12], &TOKENS).gives(0, &[7], &[0., 3., 1., 0., 0., 0., 0.]);
        case("TF", [3, 4], 5).input(&[12], &TOKENS).gives(0, &[7], &[0.; 7]);
    }

    #[test]
    fn rows_of_symbolic_sizes() {
        let mut wanted = [0., 3., 0., 0., 0., 0., 0., 0., 0., 1., 0., 1., 0., 1.];
        let of = |skip| case("TF", [1, 2], skip).symbolic(&["n", "c"], &[2, 6], &TOKENS);
        of(0).gives(0, &[2, 7], &wanted);
        wanted[12] = 1.;
        of(i64::MAX - 1).gives(0, &[2, 7], &wanted);
        case("TF", [1, 2], 2).symbolic::<i64>(&["n", "c"], &[2, 0], &[]).gives(0, &[2, 7], &[0.; 14]);
        case("TF", [1, 2], 2).symbolic::<i64>(&["c"], &[1], &[5]).gives(
            0,
            &[7],
            &[0., 0., 1., 0., 0., 0., 0.],
        );
    }

    #[test]
    fn weights_go_with_the_n_grams() {
        let of = |mode| {
            Case::new("TfIdfVectorizer", 9)
                .str("mode", mode)
                .int("min_gram_length", 1)
                .int("max_gram_length", 2)
                .int("max_skip_count", 3)
                .ints("ngram_counts", &[0, 2])
                .ints("ngram_indexes", &[3, 0, 1, 2])
                .ints("pool_int64s", &[5, 6, 5, 6, 7, 5])
                .input::<i64>(&[8], &[5, 6, 5, 5, 7, 6, 7, 5])
        };
        // The values of ONNX Runtime.
        let weights = [10., 20., 30., 40.];
        of("TF").floats("weights", &weights).gives(0, &[4], &[2., 3., 2., 4.]);
        of("IDF").floats("weights", &weights).gives(0, &[4], &[20., 30., 40., 10.]);
        of("TFIDF").floats("weights", &weights).gives(0, &[4], &[40., 90., 80., 40.]);
        of("IDF").gives(0, &[4], &[1.; 4]);
        of("TFIDF").gives(0, &[4], &[2., 3., 2., 4.]);
        assert_eq!(error(of("TFIDF").floats("weights", &weights[1..])), "3 weights for 4 n-grams");
        assert_eq!(error(of("tf")), "mode is `tf`; it may be one of TF, IDF, TFIDF");
    }

    #[test]
    fn columns_that_are_shared_or_empty() {
        let of = |columns: &[i64]| {
            Case::new("TfIdfVectorizer", 9)
                .str("mode", "TF")
                .int("min_gram_length", 1)
                .int("max_gram_length", 1)
                .int("max_skip_count", 0)
                .ints("ngram_counts", &[0])
                .ints("ngram_indexes", columns)
                .ints("pool_int64s", &[5, 6, 1 << 40])
                .input::<i64>(&[8], &[5, 6, 5, 5, 1 << 40, 6, 1 << 40, 5])
        };
        of(&[4, 0, 4]).gives(0, &[5], &[2., 0., 0., 0., 6.]);
        assert_eq!(error(of(&[0, -1, 2])), "ngram_indexes holds -1");
        assert_eq!(error(of(&[0, 1])), "3 n-grams, and ngram_indexes has 2");
        assert_eq!(error(of(&[])), "ngram_indexes is empty");
        assert!(of(&[0, 1, i64::MAX]).run().is_err());
        assert!(of(&[0, 1, i64::MAX - 1]).lower().is_err());
    }

    #[test]
    fn attributes_that_contradict_each_other() {
        let of = |lengths, skip| case("TF", lengths, skip).input(&[12], &TOKENS);
        assert_eq!(error(of([2, 1], 0)), "n-grams of at least 2 and at most 1 tokens");
        assert_eq!(error(of([1, 2], -1)), "max_skip_count -1");
        assert!(error(of([1, 2], 0).ints("ngram_counts", &[0, 11])).contains("a pool of 10"));
        assert!(error(of([1, 2], 0).ints("ngram_counts", &[0, 3])).contains("7 tokens make no 2-grams"));
        assert!(error(of([1, 2], 0).strs("pool_strings", &["a"])).contains("both"));
        assert!(error(case("TF", [1, 2], 0).input(&[1, 3, 4], &TOKENS)).contains("neither one row"));
    }
}
