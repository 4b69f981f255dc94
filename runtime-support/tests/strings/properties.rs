//! Functions against what the standard library makes of the same texts.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use crate::support::{Counter, Run};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        "[ab\0 ]{0,3}".prop_map(String::into_bytes),
        "\\PC{0,12}".prop_map(String::into_bytes),
    ]
}

fn slices(texts: &[Vec<u8>]) -> Vec<&[u8]> {
    texts.iter().map(Vec::as_slice).collect()
}

proptest! {
    #[test]
    fn equal_texts_have_equal_numbers(
        constants in prop::collection::btree_set(bytes(), 0..40),
        texts in prop::collection::vec(bytes(), 0..80),
    ) {
        let counter = Counter::default();
        let constants: Vec<Vec<u8>> = constants.into_iter().collect();
        let run = Run::new(&counter, &slices(&constants));
        let mut numbers: HashMap<Vec<u8>, i64> = HashMap::new();
        for (at, text) in constants.iter().enumerate() {
            numbers.insert(text.clone(), at as i64);
        }
        for text in &texts {
            let next = numbers.len() as i64;
            numbers.entry(text.clone()).or_insert(next);
        }
        let expected: Vec<i64> = texts.iter().map(|text| numbers[text]).collect();
        let found = run.intern(&slices(&texts)).unwrap();
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(run.texts(&found).unwrap(), texts);
    }

    #[test]
    fn texts_follow_each_other(pairs in prop::collection::vec((bytes(), bytes()), 0..40)) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let (a, b): (Vec<_>, Vec<_>) = pairs.iter().cloned().unzip();
        let found = run.concat(&run.intern(&slices(&a)).unwrap(), &run.intern(&slices(&b)).unwrap()).unwrap();
        prop_assert_eq!(run.texts(&found).unwrap(), pairs.iter().map(|(a, b)| [a.clone(), b.clone()].concat()).collect::<Vec<_>>());
        prop_assert_eq!(&found, &run.intern(&slices(&run.texts(&found).unwrap())).unwrap());
    }

    #[test]
    fn cases_are_those_of_the_standard_library(texts in prop::collection::vec("([\\PC]|[A-Zßİŉﬃ]|[ΑαΣ.'\u{301}]){0,20}", 0..10)) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let numbers: Vec<i64> = texts.iter().map(|text| run.one(text)).collect();
        let lower: Vec<String> = texts.iter().map(|text| text.to_lowercase()).collect();
        let upper: Vec<String> = texts.iter().map(|text| text.to_uppercase()).collect();
        prop_assert_eq!(run.strings(&run.change_case(&numbers, 1).unwrap()), lower);
        prop_assert_eq!(run.strings(&run.change_case(&numbers, 2).unwrap()), upper);
    }

    #[test]
    fn pieces_are_those_of_the_standard_library(
        texts in prop::collection::vec("[ab, é\u{3000}]{0,12}", 0..10),
        delimiter in "[ab, é]{0,2}",
        most in -1_i64..5,
    ) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let numbers: Vec<i64> = texts.iter().map(|text| run.one(text)).collect();
        let pieces = |text: &String| -> Vec<String> {
            let limit = if most < 0 { usize::MAX } else { most as usize + 1 };
            if !delimiter.is_empty() {
                return text.splitn(limit, &delimiter).map(str::to_owned).collect();
            }
            let (mut pieces, mut rest) = (Vec::new(), text.trim_start());
            while !rest.is_empty() {
                let end = if pieces.len() + 1 == limit { None } else { rest.find(char::is_whitespace) };
                let (piece, behind) = rest.split_at(end.unwrap_or(rest.len()));
                pieces.push(piece.to_owned());
                rest = behind.trim_start();
            }
            pieces
        };
        let expected: Vec<Vec<String>> = texts.iter().map(pieces).collect();
        let delimiter = run.one(&delimiter);
        let counts = run.split_counts(&numbers, delimiter, most).unwrap();
        prop_assert_eq!(&counts, &expected.iter().map(|pieces| pieces.len() as i64).collect::<Vec<_>>());
        let width = counts.iter().max().map_or(1, |&most| most as usize + 1);
        let found = run.strings(&run.split(&numbers, delimiter, most, width).unwrap());
        let padded = expected.into_iter().flat_map(|mut pieces| {
            pieces.resize(width, String::new());
            pieces
        });
        prop_assert_eq!(found, padded.collect::<Vec<_>>());
    }

    #[test]
    fn ranks_are_those_of_a_sorted_set(texts in prop::collection::vec(bytes(), 0..60)) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[b"a"]);
        let set: Vec<&Vec<u8>> = texts.iter().collect::<BTreeSet<_>>().into_iter().collect();
        let expected: Vec<i64> = texts.iter().map(|text| set.binary_search(&text).unwrap() as i64).collect();
        prop_assert_eq!(run.order(&run.intern(&slices(&texts)).unwrap()).unwrap(), expected);
    }

    #[test]
    fn places_are_those_of_a_map(
        keys in prop::collection::vec(prop_oneof![-5_i64..5, any::<i64>()], 0..30),
        base in any::<i64>(),
        numbers in prop::collection::vec(prop_oneof![-5_i64..5, any::<i64>()], 0..30),
    ) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let ascending: Vec<i64> = (0..20).map_while(|step| base.checked_add(step)).collect();
        for keys in [keys, ascending] {
            let numbers: Vec<i64> = numbers.iter().chain(&keys).copied().collect();
            let map: HashMap<i64, i64> = keys.iter().copied().zip(0..).collect();
            let expected: Vec<i64> = numbers.iter().map(|number| map.get(number).copied().unwrap_or(-1)).collect();
            prop_assert_eq!(run.find(&keys, &numbers).unwrap(), expected);
        }
    }

    #[test]
    fn floats_come_back(values in prop::collection::vec(any::<f64>(), 0..20)) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let wide: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let narrow: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_ne_bytes()).collect();
        for (elements, dtype) in [(wide, 11), (narrow, 1)] {
            let texts = run.format(&elements, dtype).unwrap();
            prop_assert_eq!(run.parse(&texts, dtype).unwrap(), elements);
        }
    }

    #[test]
    fn integers_come_back(values in prop::collection::vec(any::<i64>(), 0..20)) {
        let counter = Counter::default();
        let run = Run::new(&counter, &[]);
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        for dtype in [2, 3, 4, 5, 6, 7, 12, 13] {
            let texts = run.format(&elements, dtype).unwrap();
            prop_assert_eq!(&run.parse(&texts, dtype).unwrap(), &elements);
        }
        let texts: Vec<String> = values.iter().map(i64::to_string).collect();
        prop_assert_eq!(run.strings(&run.format(&elements, 7).unwrap()), texts);
    }
}
