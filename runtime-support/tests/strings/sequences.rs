//! Random sequences of all functions, with memory that ends, and constants and programs that are broken.
//!
//! `ONNXC_STRING_CASES` says how many sequences, and `ONNXC_STRING_SEED` which is the first: the seed of a sequence is
//! its number, and a failure names it.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use fastrand::Rng;
use onnxc_runtime_support::Status;
use onnxc_runtime_support::strings::{Number, regex};

use crate::support::{Counter, Run, constants_blob};

/// What is known of a run's strings. Each text that is seen is compared with what was seen before.
#[derive(Default)]
struct Seen {
    texts: HashMap<i64, Vec<u8>>,
    numbers: HashMap<Vec<u8>, i64>,
}

impl Seen {
    fn add(&mut self, number: i64, text: Vec<u8>) {
        assert_eq!(self.texts.entry(number).or_insert_with(|| text.clone()), &text, "the text of {number}");
        assert_eq!(*self.numbers.entry(text).or_insert(number), number, "two numbers of a text");
    }
}

fn text(rng: &mut Rng) -> Vec<u8> {
    const PARTS: [&str; 14] =
        ["a", "B", ",", " ", "1", "-2.5", "e3", "é", "Σ", "ß", "\u{3000}", "\0", "True", "abcdefghijklmnopq"];
    let parts = (0..rng.usize(0..5)).flat_map(|_| match rng.usize(0..30) {
        0 => vec![rng.u8(..)],
        1 => PARTS[13].as_bytes().repeat(rng.usize(0..40)),
        part => PARTS[part % PARTS.len()].as_bytes().to_vec(),
    });
    parts.collect()
}

fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

fn pieces<'t>(text: &'t str, delimiter: &str, most: i64) -> Vec<&'t str> {
    let limit = if most < 0 { usize::MAX } else { most as usize + 1 };
    if !delimiter.is_empty() {
        return text.splitn(limit, delimiter).collect();
    }
    let (mut pieces, mut rest) = (Vec::new(), text.trim_start_matches(is_space));
    while !rest.is_empty() {
        let end = if pieces.len() + 1 == limit { None } else { rest.find(is_space) };
        let (piece, behind) = rest.split_at(end.unwrap_or(rest.len()));
        pieces.push(piece);
        rest = behind.trim_start_matches(is_space);
    }
    pieces
}

/// Programs, each with what it matches among ASCII texts.
type Program = (Vec<u8>, fn(&str) -> bool);

fn programs() -> &'static [Program] {
    static PROGRAMS: OnceLock<Vec<Program>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let letters: fn(&str) -> bool = |text| text.chars().all(|letter| letter.is_ascii_lowercase());
        let any: fn(&str) -> bool = |text| !text.contains('\n');
        let comma: fn(&str) -> bool = |text| text.contains(',') && !text.contains('\n');
        let list = [("[a-z]*", letters), (".*", any), (".*,.*", comma)];
        list.map(|(pattern, is)| (regex::compile(pattern).unwrap(), is)).into()
    })
}

fn damage(rng: &mut Rng, blob: &mut [u8]) {
    for _ in 0..rng.usize(1..6) {
        // Headers decide most.
        let end = if rng.bool() { blob.len().min(64) } else { blob.len() };
        if end > 0 {
            let at = rng.usize(0..end);
            blob[at] = if rng.bool() { rng.u8(..) } else { [0, 1, 0x7f, 0xff][rng.usize(0..4)] };
        }
    }
}

/// Results of functions on texts that are known.
struct Case<'c> {
    rng: Rng,
    run: Run<'c>,
    seen: Seen,
}

impl Case<'_> {
    /// Some numbers; most have a text.
    fn numbers(&mut self) -> Vec<i64> {
        let mut known: Vec<i64> = self.seen.texts.keys().copied().collect();
        known.sort();
        let count = if self.rng.u8(..) == 0 { 100 } else { self.rng.usize(0..6) };
        let number = |_| match self.rng.usize(0..100) {
            0 => [-1, i64::MIN, i64::MAX, 1 << 32, 1 << 20][self.rng.usize(0..5)],
            // Not 0, which a function that failed may have given.
            _ if known.is_empty() => -1,
            _ => known[self.rng.usize(0..known.len())],
        };
        (0..count).map(number).collect()
    }

    fn texts(&self, numbers: &[i64]) -> Option<Vec<&[u8]>> {
        numbers.iter().map(|number| self.seen.texts.get(number).map(Vec::as_slice)).collect()
    }

    /// What a function gave: the texts that are expected, where it did not fail.
    fn strings(&mut self, found: Result<Vec<i64>, Status>, expected: Option<Vec<Vec<u8>>>) {
        match (found, expected) {
            (Ok(numbers), Some(expected)) => {
                let texts = self.run.texts(&numbers).expect("texts of results");
                assert_eq!(texts, expected);
                numbers.into_iter().zip(texts).for_each(|(number, text)| self.seen.add(number, text));
            }
            (Ok(_), None) => panic!("a result of what has none"),
            (Err(status), expected) => self.failed(status, expected.is_some()),
        }
    }

    fn values<T: PartialEq + std::fmt::Debug>(&self, found: Result<T, Status>, expected: Option<T>) {
        match (found, expected) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected),
            (Ok(_), None) => panic!("a result of what has none"),
            (Err(status), expected) => self.failed(status, expected.is_some()),
        }
    }

    fn failed(&self, status: Status, expected: bool) {
        let memory = status == Status::OUT_OF_MEMORY
            && self.run.counter.is_some_and(|counter| counter.limit.get().is_some());
        let none = status == Status::NEEDS_ALLOCATOR && self.run.counter.is_none();
        let refused = [Status::OUT_OF_RANGE, Status::BAD_TEXT].contains(&status) && !expected;
        assert!(memory || none || refused, "{status:?}");
        assert!(!refused || self.run.fault() >= 0);
    }

    fn step(&mut self) {
        match self.rng.usize(0..12) {
            0 | 1 => {
                let count = if self.rng.u8(..) < 2 { 200 } else { self.rng.usize(0..8) };
                let texts: Vec<Vec<u8>> = (0..count).map(|_| text(&mut self.rng)).collect();
                let found = self.run.intern(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
                self.strings(found, Some(texts));
            }
            2 => {
                let a = self.numbers();
                let b: Vec<i64> = a.iter().rev().copied().collect();
                let whole = |texts: Vec<&[u8]>| {
                    texts.iter().zip(texts.iter().rev()).map(|(a, b)| [*a, *b].concat()).collect()
                };
                let expected = self.texts(&a).map(whole);
                let short = expected
                    .as_ref()
                    .is_none_or(|texts: &Vec<Vec<u8>>| texts.iter().all(|text| text.len() < 1 << 16));
                if short {
                    self.strings(self.run.concat(&a, &b), expected);
                }
            }
            3 => {
                let (numbers, how) = (self.numbers(), self.rng.i64(1..3));
                let change = |text: &&[u8]| {
                    let text = std::str::from_utf8(text).ok()?;
                    Some(if how == 1 { text.to_lowercase() } else { text.to_uppercase() }.into_bytes())
                };
                let expected = self.texts(&numbers).and_then(|texts| texts.iter().map(change).collect());
                self.strings(self.run.change_case(&numbers, how), expected);
            }
            4 => self.split(),
            5 => {
                let numbers = self.numbers();
                let (program, is) = &programs()[self.rng.usize(0..programs().len())];
                let matches = |text: &&[u8]| u8::from(std::str::from_utf8(text).is_ok_and(is));
                let expected = self.texts(&numbers).map(|texts| texts.iter().map(matches).collect());
                self.values(self.run.regex(&numbers, program), expected);
                let mut broken = program.clone();
                damage(&mut self.rng, &mut broken);
                broken.truncate(self.rng.usize(0..4 * broken.len()));
                let _ = self.run.regex(&numbers, &broken);
            }
            6 => {
                let numbers = self.numbers();
                // Texts of bools are numbers, too.
                let parse = |text: &&[u8]| {
                    let text = std::str::from_utf8(text).ok()?.trim_matches(is_space);
                    match text.to_ascii_lowercase().as_str() {
                        "true" => Some(1.0),
                        "false" => Some(0.0),
                        _ => text.parse::<f32>().ok(),
                    }
                };
                let expected = self
                    .texts(&numbers)
                    .and_then(|texts| texts.iter().map(parse).collect::<Option<Vec<_>>>());
                let bytes =
                    expected.map(|values| values.iter().flat_map(|value| value.to_ne_bytes()).collect());
                self.values(self.run.parse(&numbers, 1), bytes);
                let _ = self.run.parse(&numbers, self.rng.i64(0..18));
            }
            7 => {
                let dtype = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16][self.rng.usize(0..13)];
                let bytes = self.rng.usize(0..6) * Number::of(dtype).unwrap().bytes();
                let elements: Vec<u8> =
                    (0..bytes).map(|_| if self.rng.bool() { 0 } else { self.rng.u8(..) }).collect();
                match self.run.format(&elements, dtype) {
                    Ok(numbers) => {
                        let texts = self.run.texts(&numbers).unwrap();
                        assert!(self.run.parse(&numbers, dtype).is_ok(), "{texts:?}");
                        numbers.into_iter().zip(texts).for_each(|(number, text)| self.seen.add(number, text));
                    }
                    Err(status) => self.failed(status, true),
                }
            }
            8 => {
                let numbers = self.numbers();
                let ranks = |texts: Vec<&[u8]>| {
                    let set: Vec<&[u8]> =
                        texts.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
                    texts.iter().map(|text| set.binary_search(text).unwrap() as i64).collect()
                };
                self.values(self.run.order(&numbers), self.texts(&numbers).map(ranks));
            }
            9 => {
                let (keys, numbers) = (self.numbers(), self.numbers());
                let keys = if self.rng.bool() { keys } else { keys.repeat(4) };
                let places = numbers
                    .iter()
                    .map(|number| keys.iter().rposition(|key| key == number).map_or(-1, |at| at as i64));
                self.values(self.run.find(&keys, &numbers), Some(places.collect()));
            }
            10 => {
                let numbers = self.numbers();
                let expected =
                    self.texts(&numbers).map(|texts| texts.iter().map(|text| text.to_vec()).collect());
                self.values(self.run.texts(&numbers), expected);
            }
            _ => {
                if let Some(counter) = self.run.counter {
                    let limit = self.rng.bool().then(|| counter.taken.get() + self.rng.u64(0..4));
                    counter.limit.set(limit);
                }
            }
        }
    }

    fn split(&mut self) {
        let (numbers, most) = (self.numbers(), self.rng.i64(-1..4));
        let delimiter = self.numbers().first().copied().unwrap_or(-1);
        let texts = self.texts(&numbers).zip(self.texts(&[delimiter]));
        // Pieces of texts that are not UTF-8 are only read, not compared.
        let strings = texts.as_ref().and_then(|(texts, delimiter)| {
            let texts: Option<Vec<&str>> = texts.iter().map(|text| std::str::from_utf8(text).ok()).collect();
            texts.zip(std::str::from_utf8(delimiter[0]).ok())
        });
        if texts.is_some() && strings.is_none() {
            if let Ok(counts) = self.run.split_counts(&numbers, delimiter, most) {
                let width = counts.iter().max().map_or(0, |&most| most as usize);
                let _ = self.run.split(&numbers, delimiter, most, width);
            }
            return;
        }
        let rows: Option<Vec<Vec<Vec<u8>>>> = strings.map(|(texts, delimiter)| {
            let row = |text: &&str| {
                pieces(text, delimiter, most).iter().map(|piece| piece.as_bytes().to_vec()).collect()
            };
            texts.iter().map(row).collect()
        });
        if numbers.is_empty() {
            return;
        }
        let counts = rows.as_ref().map(|rows| rows.iter().map(|row| row.len() as i64).collect());
        self.values(self.run.split_counts(&numbers, delimiter, most), counts);
        // Enough where some number has no text.
        let widest = rows.as_ref().map_or(1 << 12, |rows| rows.iter().map(Vec::len).max().unwrap_or(0));
        let width = widest + self.rng.usize(0..2);
        let padded = rows.map(|rows| {
            rows.into_iter()
                .flat_map(|mut row| {
                    row.resize(width, Vec::new());
                    row
                })
                .collect()
        });
        self.strings(self.run.split(&numbers, delimiter, most, width), padded);
    }
}

fn sequence(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let counter = Counter::default();
    let mut constants: Vec<Vec<u8>> = (0..rng.usize(0..12)).map(|_| text(&mut rng)).collect();
    constants.sort();
    constants.dedup();
    let mut blob = constants_blob(&constants.iter().map(Vec::as_slice).collect::<Vec<_>>());
    if rng.u8(..) < 40 {
        return broken(rng, blob);
    }
    if rng.u8(..) < 60 {
        counter.limit.set(Some(rng.u64(0..8)));
    }
    let memory = (rng.u8(..) > 10).then_some(&counter);
    if constants.is_empty() && rng.bool() {
        blob = Vec::new();
    }
    let run = Run::with_blob(memory, Some(blob).filter(|blob| !blob.is_empty())).unwrap();
    let mut case = Case { rng, run, seen: Seen::default() };
    for (number, text) in constants.into_iter().enumerate() {
        case.seen.add(number as i64, text);
    }
    for _ in 0..case.rng.usize(1..12) {
        case.step();
    }
}

/// Constants that are broken: any result, but no reads outside of them.
fn broken(mut rng: Rng, mut blob: Vec<u8>) {
    damage(&mut rng, &mut blob);
    blob[..8].copy_from_slice(b"onnxcst1");
    let bytes = rng.usize(16..=blob.len());
    blob[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
    blob.truncate(bytes);
    let counter = Counter::default();
    let Ok(run) = Run::with_blob(Some(&counter), Some(blob)) else { return };
    let texts: Vec<Vec<u8>> = (0..8).map(|_| text(&mut rng)).collect();
    let mut numbers: Vec<i64> = (0..12).collect();
    numbers.extend(run.intern(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap());
    numbers.retain(|&number| run.text_bytes(&[number]).is_ok());
    let _ = run.texts(&numbers);
    let _ = run.concat(&numbers, &numbers);
    let _ = run.change_case(&numbers, 2);
    let _ = run.order(&numbers);
    let _ = run.find(&numbers, &numbers);
    for &delimiter in &numbers {
        if let Ok(counts) = run.split_counts(&numbers, delimiter, -1) {
            let width = counts.iter().max().map_or(0, |&most| most as usize);
            let _ = run.split(&numbers, delimiter, -1, width);
        }
    }
}

#[test]
fn sequences() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, cases) = (number("ONNXC_STRING_SEED", 0), number("ONNXC_STRING_CASES", 3000));
    for seed in first..first + cases {
        if std::panic::catch_unwind(|| sequence(seed)).is_err() {
            panic!("sequence {seed}");
        }
    }
}
