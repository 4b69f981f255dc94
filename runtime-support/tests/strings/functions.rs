//! Each function, and the edges of what it is given.

use onnxc_runtime_support::strings::*;
use onnxc_runtime_support::{Status, StringView};

use crate::support::{Counter, Run, constants_blob};

const NULL: *const i64 = std::ptr::null();

#[test]
fn opening_costs_nothing_and_constants_have_their_places() {
    let counter = Counter::default();
    let texts: [&[u8]; 6] =
        [b"", b"a", b"b\0c", "é".as_bytes(), b"\xff", b"long enough for several words of the hash"];
    let mut run = Run::new(&counter, &texts);
    assert_eq!(run.intern(&texts), Ok((0..6).collect()));
    assert_eq!(run.texts(&[5, 0, 4]), Ok(vec![texts[5].to_vec(), vec![], vec![0xff]]));
    assert_eq!(counter.taken.get(), 0);
    assert_eq!(run.intern(&[b"new", b"a", b"", b"new", b"new\0"]), Ok(vec![6, 1, 0, 6, 7]));
    run.close();
    assert_eq!(counter.open(), (0, 0));
    // Constants remain, and texts may come again.
    assert_eq!(run.intern(&[b"new\0", b"a"]), Ok(vec![6, 1]));
}

/// The default of an input has no addresses.
#[test]
fn views_without_data_are_constants() {
    let run = Run::with_blob(None, Some(constants_blob(&[b"a", b"b"]))).unwrap();
    let intern = |size: usize| {
        let view = StringView { data: std::ptr::null(), size };
        let mut out = [-7];
        // SAFETY: there is one view, and one number.
        let status = unsafe { onnxc_strings_intern(run.state(), &raw const view, out.as_mut_ptr(), 1) };
        (status, out[0])
    };
    assert_eq!(intern(!0), (Status::OK, 0));
    assert_eq!(intern(!1), (Status::OK, 1));
    assert_eq!(intern(!2), (Status::OUT_OF_RANGE, -7));
    assert_eq!(intern(isize::MAX as usize + 1), (Status::OUT_OF_RANGE, -7));
    assert_eq!(intern(isize::MAX as usize), (Status::NULL_POINTER, -7));
    assert_eq!(intern(3), (Status::NULL_POINTER, -7));
}

#[test]
fn without_constants_numbers_begin_at_0() {
    for blob in [None, Some(constants_blob(&[]))] {
        let counter = Counter::default();
        let run = Run::with_blob(Some(&counter), blob).unwrap();
        assert_eq!(run.text_bytes(&[0]), Err(Status::OUT_OF_RANGE));
        assert_eq!(run.intern(&[b"", b"x"]), Ok(vec![0, 1]));
    }
}

#[test]
fn broken_constants_are_refused() {
    let good = constants_blob(&[b"a", b"b"]);
    let with = |at: usize, value: u8| {
        let mut blob = good.clone();
        blob[at] = value;
        blob
    };
    // Another start; too few bytes; a count and slots that do not fit; slots that are not a power of two.
    for blob in [with(0, 0), with(8, 16), with(8, 23), with(8, 24), with(18, 1), with(20, 3), with(23, 0x80)]
    {
        assert_eq!(Run::with_blob(None, Some(blob)).err(), Some(Status::BAD_SIZE));
    }
    // A text that ends before it begins has no number.
    let ends = 24 + 8 * 4;
    let run = Run::with_blob(None, Some(with(ends, 9))).unwrap();
    assert_eq!(run.texts(&[1]), Err(Status::OUT_OF_RANGE));
}

#[test]
fn without_an_allocator_only_known_texts_have_numbers() {
    let run = Run::with_blob(None, Some(constants_blob(&[b"a", b"A", b"aA", b""]))).unwrap();
    assert_eq!(run.intern(&[b"a", b"x"]), Err(Status::NEEDS_ALLOCATOR));
    assert_eq!(run.fault(), 1);
    assert_eq!(run.intern(&[b"", b"a"]), Ok(vec![3, 0]));
    assert_eq!(run.fault(), -1);
    assert_eq!(run.order(&[0, 1]), Err(Status::NEEDS_ALLOCATOR));
    assert_eq!(run.order(&[]), Ok(vec![]));
    assert_eq!(run.find(&[0, 1, 2], &[2, 3]), Ok(vec![2, -1]));
    assert_eq!(run.find(&[2, 0, 2], &[2, 3]), Ok(vec![2, -1]));
    assert_eq!(run.find(&[9, 8, 7, 6, 5, 4, 3, 2, 1], &[1]), Err(Status::NEEDS_ALLOCATOR));
    assert_eq!(run.split(&[2], 0, -1, 2), Ok(vec![3, 1]));
    assert_eq!(run.concat(&[0, 3, 0], &[3, 1, 1]), Err(Status::NEEDS_ALLOCATOR));
    assert_eq!(run.fault(), 2);
}

#[test]
fn many_strings() {
    let counter = Counter::default();
    let texts: Vec<String> = (0..100_000).map(|number| format!("string number {number}")).collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
    let run = Run::new(&counter, &texts[..1000]);
    let numbers: Vec<i64> = (0..100_000).collect();
    assert_eq!(run.intern(&texts).as_ref(), Ok(&numbers));
    assert_eq!(run.intern(&texts).as_ref(), Ok(&numbers));
    assert!(run.texts(&numbers).unwrap().iter().zip(&texts).all(|(a, b)| a == b));
    // And the same number of texts that the table copies.
    let capitals = run.change_case(&numbers, 2).unwrap();
    assert!(capitals.iter().copied().eq(100_000..200_000));
    assert_eq!(run.change_case(&capitals, 1), Ok(numbers));
}

#[test]
fn texts_longer_than_chunks() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    let mut text = vec![b'x'; 3000];
    let mut number = run.intern(&[&text]).unwrap();
    for _ in 0..11 {
        number = run.concat(&number, &number).unwrap();
        text.extend_from_within(..);
        assert_eq!(run.texts(&number), Ok(vec![text.clone()]));
    }
    let short = run.one("y");
    assert_eq!(run.strings(&run.concat(&[short], &[short]).unwrap()), ["yy"]);
    let long = "ß".repeat(100_000);
    assert_eq!(run.strings(&run.change_case(&[run.one(&long)], 2).unwrap()), ["S".repeat(200_000)]);
}

#[test]
fn a_text_that_is_known_takes_no_memory() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"a", b"b", b"ab"]);
    run.concat(&[1], &[0]).unwrap();
    let before = counter.open();
    for _ in 0..10_000 {
        assert_eq!(run.concat(&[0, 1], &[1, 0]), Ok(vec![2, 3]));
    }
    assert_eq!(counter.open(), before);
}

#[test]
fn case() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    for (text, lower, upper) in [
        ("", "", ""),
        ("abc XYZ 1", "abc xyz 1", "ABC XYZ 1"),
        ("Straße ŉ ǆ", "straße ŉ ǆ", "STRASSE ʼN Ǆ"),
        ("İI", "i̇i", "İI"),
        ("ΌΔΟΣ ΣΑΣ Σ ΑΣ' ΑΣ.Β", "όδος σας σ ας' ασ.β", "ΌΔΟΣ ΣΑΣ Σ ΑΣ' ΑΣ.Β"),
        ("日本\0É", "日本\0é", "日本\0É"),
    ] {
        let number = run.one(text);
        assert_eq!(run.strings(&run.change_case(&[number], 1).unwrap()), [lower]);
        assert_eq!(run.strings(&run.change_case(&[number], 2).unwrap()), [upper]);
    }
    let numbers = run.intern(&[b"ok", b"\xc3"]).unwrap();
    assert_eq!(run.change_case(&numbers, 1), Err(Status::BAD_TEXT));
    assert_eq!(run.fault(), 1);
    assert_eq!(run.change_case(&numbers, 3), Err(Status::BAD_SIZE));
}

#[test]
fn splitting() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"", b","]);
    let numbers: Vec<i64> = ["a,b,c", "", ",", " x  y "].map(|text| run.one(text)).into();
    assert_eq!(run.split_counts(&numbers, 1, -1), Ok(vec![3, 1, 2, 1]));
    assert_eq!(run.split_counts(&numbers, 0, -1), Ok(vec![1, 0, 1, 2]));
    let rows = run.split(&numbers, 1, 1, 2).unwrap();
    assert_eq!(run.strings(&rows), ["a", "b,c", "", "", "", "", " x  y ", ""]);
    assert_eq!(run.split(&numbers, 1, -1, 2), Err(Status::BAD_SIZE));
    assert_eq!(run.fault(), 0);
    assert_eq!(run.split(&[0, 0], 0, -1, 0), Ok(vec![]));
    assert_eq!(run.split(&[0, 2], 0, -1, 0), Err(Status::BAD_SIZE));
    assert_eq!(run.fault(), 1);
    assert_eq!(run.split(&[], 0, -1, 0), Ok(vec![]));
    assert_eq!(run.split(&[0], 99, -1, 1), Err(Status::OUT_OF_RANGE));
}

#[test]
fn ranks_and_places() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    let texts: [&[u8]; 9] = [b"b", b"", b"abcdefgh", b"abcdefg", b"b", b"abcdefghi", b"a\0", b"a", b"\xff"];
    let numbers = run.intern(&texts).unwrap();
    let blocks = counter.open();
    assert_eq!(run.order(&numbers), Ok(vec![6, 0, 4, 3, 6, 5, 2, 1, 7]));
    let keys = [5, 3, 5, 1, 2, 10, 11, -4, i64::MIN, i64::MAX, 3];
    assert_eq!(run.find(&keys, &[5, 1, 3, 0, i64::MAX, i64::MIN]), Ok(vec![2, 3, 10, -1, 9, 8]));
    assert_eq!(run.find(&[i64::MAX, 5], &[5, i64::MAX]), Ok(vec![1, 0]));
    assert_eq!(run.find(&[], &[5]), Ok(vec![-1]));
    assert_eq!(run.find(&[4], &[5, 4, i64::MIN, i64::MAX]), Ok(vec![-1, 0, -1, -1]));
    assert_eq!(run.order(&[0, 99]), Err(Status::OUT_OF_RANGE));
    assert_eq!(run.fault(), 1);
    assert_eq!(counter.open(), blocks);
}

#[test]
fn spelling_needs_the_exact_size() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"abc", b"", b"defgh"]);
    assert_eq!(run.text_bytes(&[0, 1, 2, 0]), Ok(11));
    assert_eq!(run.texts(&[]), Ok(vec![]));
    for (total, status) in [(0, false), (31, false), (32, false), (39, false), (40, true), (41, false)] {
        assert_eq!(run.spell(&[0, 2], total).is_ok(), status, "{total}");
    }
}

/// All functions with a number that has no text.
#[test]
fn numbers_beyond_the_table() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"1", b"", b"11"]);
    let program = regex::compile("x*").unwrap();
    for number in [3, -1, i64::MIN, i64::MAX] {
        let numbers = [0, 0, number];
        let beyond = Some(Status::OUT_OF_RANGE);
        assert_eq!(run.text_bytes(&numbers).err(), beyond);
        assert_eq!(run.spell(&numbers, 50).err(), beyond);
        assert_eq!(run.concat(&[0, 0, 0], &numbers).err(), beyond);
        assert_eq!(run.concat(&numbers, &[0, 0, 1]).err(), beyond);
        assert_eq!(run.fault(), 2);
        assert_eq!(run.change_case(&numbers, 1).err(), beyond);
        assert_eq!(run.split_counts(&numbers, 1, -1).err(), beyond);
        assert_eq!(run.split(&numbers, 1, -1, 1).err(), beyond);
        assert_eq!(run.split(&[0], number, -1, 1).err(), beyond);
        assert_eq!(run.regex(&numbers, &program).err(), beyond);
        let search = regex::search("x+", 0).unwrap().program;
        assert_eq!(run.replace(&numbers, &search, b"y", true).err(), beyond);
        assert_eq!(run.parse(&numbers, 1).err(), beyond);
        assert_eq!(run.order(&numbers).err(), beyond);
        assert_eq!(run.fault(), 2);
    }
}

/// Nothing, null and sizes that cannot be.
#[test]
fn no_elements_and_bad_sizes() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b""]);
    let state = run.state();
    let (no, mut none, mut bytes) = (std::ptr::null_mut::<i64>(), [0_i64; 1], [0_u8; 64]);
    let (some, out) = (none.as_mut_ptr().cast_const(), bytes.as_mut_ptr());
    let views = std::ptr::null::<StringView>();
    for (n, expected) in
        [(0, Status::OK), (1, Status::NULL_POINTER), (-1, Status::BAD_SIZE), (i64::MAX, Status::BAD_SIZE)]
    {
        // SAFETY: nothing is read where there are no elements, or where their number is invalid.
        unsafe {
            assert_eq!(onnxc_strings_intern(state, views, no, n), expected);
            assert_eq!(onnxc_strings_text_bytes(state, NULL, none.as_mut_ptr(), n), expected);
            assert_eq!(onnxc_strings_concat(state, NULL, NULL, no, n), expected);
            assert_eq!(onnxc_strings_join(state, NULL, some, no, n, 1), expected);
            assert_eq!(onnxc_strings_change_case(state, NULL, no, n, 1), expected);
            assert_eq!(onnxc_strings_split_counts(state, NULL, some, no, n, -1), expected);
            assert_eq!(onnxc_strings_split(state, NULL, some, no, n, -1, 1), expected);
            assert_eq!(onnxc_strings_parse(state, NULL, std::ptr::null_mut(), n, 7), expected);
            assert_eq!(onnxc_strings_format(state, std::ptr::null(), no, n, 7), expected);
            assert_eq!(onnxc_strings_order(state, NULL, no, n), expected);
            assert_eq!(onnxc_strings_find(state, NULL, NULL, no, n, n), expected);
            let program = regex::compile("a").unwrap();
            let size = program.len() as i64;
            assert_eq!(
                onnxc_strings_regex(state, NULL, program.as_ptr(), std::ptr::null_mut(), n, size),
                expected
            );
            if n <= 0 {
                assert_eq!(onnxc_strings_spell(state, NULL, out, n, 0), expected);
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        let null = std::ptr::null_mut();
        assert_eq!(onnxc_strings_open(null, std::ptr::null(), std::ptr::null()), Status::NULL_POINTER);
        assert_eq!(onnxc_strings_order(null, NULL, no, 0), Status::NULL_POINTER);
        assert_eq!(onnxc_strings_fault(null), -1);
        onnxc_strings_close(null);
        assert_eq!(onnxc_strings_split(state, NULL, some, no, i64::MAX, -1, 2), Status::BAD_SIZE);
        for (n, each) in [(i64::MAX, 2), (0, -1), (1, -1)] {
            assert_eq!(onnxc_strings_join(state, NULL, some, no, n, each), Status::BAD_SIZE);
        }
        assert_eq!(onnxc_strings_join(state, NULL, NULL, no, 0, 1), Status::NULL_POINTER);
        assert_eq!(onnxc_strings_split(state, NULL, NULL, no, 0, -1, 2), Status::NULL_POINTER);
        assert_eq!(onnxc_strings_parse(state, NULL, out, 0, 8), Status::BAD_DTYPE);
        assert_eq!(onnxc_strings_format(state, out, no, 0, 14), Status::BAD_DTYPE);
        let view = StringView { data: std::ptr::null(), size: 3 };
        assert_eq!(onnxc_strings_intern(state, &view, none.as_mut_ptr(), 1), Status::NULL_POINTER);
        let view = StringView { data: out, size: usize::MAX };
        assert_eq!(onnxc_strings_intern(state, &view, none.as_mut_ptr(), 1), Status::BAD_SIZE);
    }
}

#[test]
fn numbers_as_texts() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"1.0", b"True"]);
    let elements: Vec<u8> =
        [1.0_f32, -0.0, 1e-5, f32::NAN].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let numbers = run.format(&elements, 1).unwrap();
    assert_eq!(run.strings(&numbers), ["1.0", "-0.0", "1e-05", "nan"]);
    assert_eq!(numbers[0], 0);
    assert_eq!(run.strings(&run.format(&[0, 1, 2], 9).unwrap()), ["False", "True", "True"]);
    assert_eq!(run.strings(&run.format(&[0x80, 0xff, 127], 3).unwrap()), ["-128", "-1", "127"]);
    assert_eq!(run.strings(&run.format(&u64::MAX.to_ne_bytes(), 13).unwrap()), ["18446744073709551615"]);
    let texts = run.intern(&[b" 2 ", b"0x2", b"\xff"]).unwrap();
    assert_eq!(run.parse(&texts[..1], 7), Ok(2_i64.to_ne_bytes().to_vec()));
    assert_eq!(run.parse(&texts, 7), Err(Status::BAD_TEXT));
    assert_eq!(run.fault(), 1);
    assert_eq!(run.parse(&texts[2..], 1), Err(Status::BAD_TEXT));
}

#[test]
fn a_table_of_rust() {
    let table = Table::new(&[b"a", b"b"]);
    assert_eq!((table.intern(b"b"), table.intern(b"c"), table.intern(b"c")), (1, 2, 2));
    assert_eq!(table.text(2), Some(&b"c"[..]));
    assert_eq!(table.text(3), None);
    let mut out = [0; 2];
    // SAFETY: the arrays have two elements.
    let status = unsafe {
        onnxc_strings_concat(table.state_ptr(), [0, 1].as_ptr(), [1, 2].as_ptr(), out.as_mut_ptr(), 2)
    };
    assert_eq!((status, out), (Status::OK, [3, 4]));
    let text = table.text(4).unwrap();
    assert_eq!(table.intern(b"d"), 5);
    assert_eq!(text, b"bc");
    let other = std::thread::spawn(move || table.intern(b"d"));
    assert_eq!(other.join().unwrap(), 5);
    assert_eq!(Table::default().intern(b""), 0);
}
