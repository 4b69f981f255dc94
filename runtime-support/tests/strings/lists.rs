//! What Python and numpy make of texts and numbers, and RE2 of patterns: `python.txt` and `patterns.txt` are lists that
//! `python.py` and `patterns.py` wrote, and `ONNXC_STRING_LIST` is the path of another.

use std::collections::HashMap;

use onnxc_runtime_support::Status;
use onnxc_runtime_support::strings::regex;

use crate::support::{Counter, Run};

fn bytes(word: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&word[at..at + 2], 16).unwrap();
    if word == "-" { Vec::new() } else { (0..word.len()).step_by(2).map(byte).collect() }
}

fn check(list: &str) -> HashMap<&str, usize> {
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    let number = |word: &str| run.intern(&[&bytes(word)]).unwrap();
    let mut counts = HashMap::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        *counts.entry(words[0]).or_default() += 1;
        match *words.as_slice() {
            ["format", dtype, element, text] => {
                let (dtype, element) = (dtype.parse().unwrap(), bytes(element));
                let found = run.format(&element, dtype).unwrap();
                assert_eq!(
                    run.texts(&found).unwrap(),
                    [bytes(text)],
                    "{line}; got {:?}",
                    run.strings(&found)
                );
                // And back; any bits of a NaN are as good as others.
                if bytes(text) != b"nan" {
                    assert_eq!(run.parse(&found, dtype), Ok(element), "{line}");
                }
            }
            ["parse", dtype, text, element] => {
                let found = run.parse(&number(text), dtype.parse().unwrap());
                let expected = if element == "bad" { Err(Status::BAD_TEXT) } else { Ok(bytes(element)) };
                let is_nan = |element: &Vec<u8>| {
                    element
                        .as_chunks::<8>()
                        .0
                        .first()
                        .is_some_and(|bytes| f64::from_ne_bytes(*bytes).is_nan())
                };
                if !(dtype == "11" && expected.as_ref().is_ok_and(is_nan) && found.as_ref().is_ok_and(is_nan))
                {
                    assert_eq!(found, expected, "{line}");
                }
            }
            ["case", how, text, changed] => {
                let found = run.change_case(&number(text), how.parse().unwrap()).unwrap();
                assert_eq!(run.texts(&found).unwrap(), [bytes(changed)], "{line}");
            }
            ["split", text, delimiter, most, pieces] => {
                let pieces: Vec<Vec<u8>> =
                    if pieces == "none" { Vec::new() } else { pieces.split(',').map(bytes).collect() };
                let (text, delimiter, most) = (number(text), number(delimiter)[0], most.parse().unwrap());
                let found = run.split(&text, delimiter, most, pieces.len()).unwrap();
                assert_eq!(run.texts(&found).unwrap(), pieces, "{line}");
                assert_eq!(run.split_counts(&text, delimiter, most), Ok(vec![pieces.len() as i64]));
            }
            ["match", pattern, _, "bad"] => {
                let pattern = String::from_utf8(bytes(pattern)).unwrap();
                assert!(regex::compile(&pattern).is_err(), "{pattern} is accepted");
            }
            ["match", pattern, text, matches] => {
                let pattern = String::from_utf8(bytes(pattern)).unwrap();
                let program = regex::compile(&pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
                let found = run.regex(&number(text), &program).unwrap();
                assert_eq!(
                    found,
                    [matches.parse::<u8>().unwrap()],
                    "{pattern} {:?}",
                    run.strings(&number(text))
                );
            }
            _ => panic!("{line}"),
        }
    }
    counts
}

#[test]
fn results_are_those_of_others() {
    assert_eq!(check(include_str!("python.txt")).len(), 5);
    assert!(check(include_str!("patterns.txt"))["match"] > 100);
    if let Ok(path) = std::env::var("ONNXC_STRING_LIST") {
        println!("{:?}", check(&std::fs::read_to_string(path).unwrap()));
    }
}
