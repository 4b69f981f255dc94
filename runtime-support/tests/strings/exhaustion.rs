//! Memory that ends, at every allocation in turn.

use onnxc_runtime_support::Status;
use onnxc_runtime_support::strings::regex;

use crate::support::{Counter, Run};

/// All functions, with texts that need several blocks.
fn everything(run: &Run) -> Result<(), Status> {
    let texts: Vec<String> = (0..200).map(|number| format!("Text, number {number}")).collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
    let numbers = run.intern(&texts)?;
    let double = run.concat(&numbers, &numbers)?;
    let upper = run.change_case(&double, 2)?;
    let unicode = run.intern(&["ΑΣ".repeat(5000).as_bytes(), b"\xff"])?;
    run.change_case(&unicode[..1], 1)?;
    let comma = run.intern(&[b",", b""])?;
    let widths = run.split_counts(&upper, comma[0], -1)?;
    run.split(&upper, comma[0], -1, *widths.iter().max().unwrap() as usize)?;
    run.split(&upper, comma[1], 1, 2)?;
    run.regex(&upper, &regex::compile("T.*").unwrap())?;
    run.replace(&upper, &regex::search("([0-9]+)|T", 1).unwrap().program, b"<\\1>", true)?;
    let elements: Vec<u8> = (0..300).flat_map(|value| (f64::from(value) / 7.0).to_ne_bytes()).collect();
    let formatted = run.format(&elements, 11)?;
    assert_eq!(run.parse(&formatted, 11), Ok(elements));
    run.order(&upper)?;
    let keys: Vec<i64> = upper.iter().rev().copied().collect();
    run.find(&keys, &numbers)?;
    run.texts(&upper)?;
    Ok(())
}

#[test]
fn every_allocation_may_fail() {
    let counter = Counter::default();
    everything(&Run::new(&counter, &[b"Text, number 7", b""])).unwrap();
    let count = counter.taken.get();
    assert!(count > 10, "{count} allocations");
    for limit in 0..count {
        let counter = Counter::failing_at(limit);
        let run = Run::new(&counter, &[b"Text, number 7", b""]);
        assert_eq!(everything(&run), Err(Status::OUT_OF_MEMORY), "allocation {limit} of {count}");
        // What is there can still be used, and with memory all goes on.
        assert_eq!(run.strings(&[0]), ["Text, number 7"]);
        counter.limit.set(None);
        assert_eq!(everything(&run), Ok(()));
    }
}

/// Each call fails once at each of its allocations, and succeeds when it is made again.
#[test]
fn a_failure_changes_no_texts() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    for number in 0..1000 {
        let text = format!("text {number}");
        counter.limit.set(Some(counter.taken.get()));
        let first = run.intern(&[text.as_bytes()]);
        let again = first.and_then(|number| run.concat(&number, &number));
        counter.limit.set(None);
        let numbers = run.intern(&[text.as_bytes()]).unwrap();
        let double = run.concat(&numbers, &numbers).unwrap();
        assert_eq!(run.strings(&double), [format!("{text}{text}")]);
        assert!(again.is_err() || again == Ok(double));
    }
    let all: Vec<i64> = (0..2000).collect();
    let mut texts = run.strings(&all);
    assert_eq!(run.text_bytes(&[2000]), Err(Status::OUT_OF_RANGE));
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 2000);
}
