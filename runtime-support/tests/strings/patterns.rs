//! Regular expressions: what RE2 means by them.

use onnxc_runtime_support::Status;
use onnxc_runtime_support::strings::regex::compile;
use proptest::prelude::*;

use crate::support::{Counter, Run};

/// Whether each text matches.
fn matches(pattern: &str, texts: &[&[u8]]) -> Vec<bool> {
    let program = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    let counter = Counter::default();
    let run = Run::new(&counter, &[]);
    let found = run.regex(&run.intern(texts).unwrap(), &program).unwrap();
    found.iter().map(|&is| is == 1).collect()
}

#[test]
fn patterns_match_whole_texts() {
    // Each with texts that match and texts that do not.
    let cases: [(&str, &[&str], &[&str]); 64] = [
        ("a+(?i)?b{2}(?s)?", &["", "aa", "bb", "aBB"], &["b", "A"]),
        ("a*(?i)(?s)*\\Q\\E?b|.", &["b", "aaB", "\n"], &["Ab"]),
        ("", &[""], &["a"]),
        ("a", &["a"], &["", "b", "aa"]),
        ("a|ab|abc", &["a", "ab", "abc"], &["", "abcd"]),
        ("(a|ab)(c|bcd)?", &["a", "ab", "ac", "abc", "abcd", "abbcd"], &["abcdd", "c"]),
        ("|a", &["", "a"], &["b"]),
        ("()", &[""], &["a"]),
        (".", &["a", "é", "日", "\u{10ffff}", "\r"], &["", "\n", "ab"]),
        ("(?s).", &["\n"], &[""]),
        (".*", &["", "abc"], &["a\nb", "a\n"]),
        ("(?s).*", &["a\nb\0"], &[]),
        (r"\d+", &["0", "12"], &["", "١", "a"]),
        (r"\D", &["a", "١"], &["5"]),
        (r"\w+", &["aZ_9"], &["é", "-"]),
        (r"\W", &["é", "-", "\n"], &["a"]),
        (r"\s+", &[" \t\n\r\x0c"], &["\x0b", "\u{a0}", "\u{85}"]),
        (r"\S", &["a", "\x0b", "\u{a0}"], &[" "]),
        (r"[\d\s]+", &["1 2"], &["a"]),
        (r"[^\d]", &["a", "é"], &["1"]),
        (r"[\D]", &["a", "é"], &["1"]),
        (r"[\W\d]+", &["é1"], &["a"]),
        (r"(?i)straße", &["STRAßE", "straẞe"], &["STRASSE"]),
        ("(?i)k", &["k", "K", "\u{212a}"], &["q"]),
        (r"(?i)\w", &["k", "\u{212a}", "ſ"], &["é"]),
        (r"(?i)\W", &["é"], &["k", "\u{212a}"]),
        ("a(?i)b|c", &["ab", "aB", "c", "C"], &["Ab", "AB"]),
        ("(a(?i)b)c", &["abc", "aBc"], &["aBC", "Abc"]),
        ("(?i:a)b", &["ab", "Ab"], &["aB"]),
        ("(?i)a(?-i)b", &["Ab", "ab"], &["aB"]),
        ("(?Ui)a+", &["aA"], &[""]),
        ("(?U)a+(?-U)b*?(?U:c)", &["aabbc"], &["ab"]),
        ("(?)a", &["a"], &[""]),
        ("(?P<name>a)(?<other>b)", &["ab"], &["a"]),
        ("^a$", &["a"], &["a\n", "\na"]),
        ("(?m)a$\n^b", &["a\nb"], &["ab"]),
        ("a$\n^b", &[], &["a\nb", "ab"]),
        (r"\Aa\z", &["a"], &["a\n"]),
        (r"a\b-\bb", &["a-b"], &["a-", "ab"]),
        (r"é\bb", &["éb"], &[]),
        (r"é\B-", &["é-"], &[]),
        (r"a\B-", &[], &["a-"]),
        (r"\*\.\[\<\#\_\-\ ", &["*.[<#_- "], &[""]),
        ("a{2}", &["aa"], &["a", "aaa"]),
        ("a{2,}?", &["aa", "aaaa"], &["a"]),
        ("a{1,2}", &["a", "aa"], &["", "aaa"]),
        ("a{0}", &[""], &["a"]),
        ("a{,2}", &["a{,2}"], &["a", ""]),
        ("{", &["{"], &[""]),
        ("a{01}b{x}{}", &["a{01}b{x}{}"], &["ab"]),
        (r"\Qa.b*\E+", &["a.b*", "a.b**"], &["aab"]),
        (r"\Qa\Eb\Q(", &["ab("], &["ab"]),
        ("[]a]+", &["]a"], &["["]),
        ("[^]a]", &["b"], &["]", "a"]),
        ("[a-]+[-a]+[a-c-e]+", &["a--abec-"], &["d"]),
        ("[a&&b~~c-]+", &["a&b~c-"], &["e"]),
        ("[[a]", &["[", "a"], &["]"]),
        ("[[:alpha:][:^space:]-]+[[:word:]]", &["a-é9"], &[" a", "aé"]),
        (r"[\x41-\x{43}\101\n\]\\]+", &["ABC\n]\\"], &["D"]),
        (r"\x41\x{e9}\0\07\12", &["Aé\0\x07\n"], &["Aé"]),
        (r"\a\f\t\n\r\v", &["\x07\x0c\t\n\r\x0b"], &[""]),
        (r"\pL\p{Lu}\P{L}\p{^Lu}\p{Greek}[^\p{Nd}]", &["éÉ1aσx"], &["éé1aσx", "éÉ1aσ5"]),
        (r"\p{C}", &["\0", "\u{ad}", "\u{e000}"], &["\u{378}", "a"]),
        (r"\PC", &["\u{378}", "a"], &["\0"]),
    ];
    for (pattern, good, bad) in cases {
        let texts: Vec<&[u8]> = good.iter().chain(bad).map(|text| text.as_bytes()).collect();
        let expected: Vec<bool> = (0..texts.len()).map(|at| at < good.len()).collect();
        assert_eq!(matches(pattern, &texts), expected, "{pattern}: {good:?} and not {bad:?}");
    }
}

#[test]
fn bytes_that_are_no_letters() {
    assert_eq!(matches(".", &[b"\xff", b"\xc3", b"\xc3\xa9"]), [false, false, true]);
    assert_eq!(matches("[^a]", &[b"\xff", b"\xed\xa0\x80"]), [false, false]);
    assert_eq!(matches(r"a\Cb", &[b"a\xffb", b"a\nb", b"ab", "aéb".as_bytes()]), [true, true, false, false]);
}

#[test]
fn other_syntax_is_refused() {
    let cases = [
        ("(", "( without )"),
        (")", ") without ("),
        ("a)", ") without ("),
        ("(?:a", "( without )"),
        ("*", "nothing stands before *"),
        ("a|*", "nothing stands before *"),
        ("(+a)", "nothing stands before +"),
        ("a**", "* follows another repetition"),
        ("a*+", "follows another"),
        ("a???", "follows another"),
        ("a{2}{3}", "{3} follows another"),
        ("{2}", "nothing stands before {2}"),
        ("a{1001}", "1000 at most"),
        ("a{3,2}", "the repetition {3,2}"),
        ("a{99999999999999}", "1000 at most"),
        ("[a", "[ without ]"),
        ("[]", "[ without ]"),
        ("[^]", "[ without ]"),
        ("[b-a]", "b-a"),
        (r"[a-\d]", r"\d"),
        ("[[:foo:]]", "[:foo:]"),
        ("(?=a)", "RE2 does not have"),
        ("(?<!a)", "RE2 does not have"),
        ("(?#a)", "RE2 does not have"),
        ("(?x)a", "RE2 does not have"),
        ("(?i", "RE2 does not have"),
        ("(?i-)", "RE2 does not have"),
        ("(?P=a)", "RE2 does not have"),
        ("(?P<n>a)(?P<n>b)", "two groups named n"),
        ("(?P<a", "without >"),
        ("(?P<a-b>c)", "name of a group"),
        (r"\", "at the end"),
        (r"\1", "refer to groups"),
        (r"\8", r"\8"),
        (r"\Z", r"\Z"),
        (r"\G", r"\G"),
        (r"\y", r"\y"),
        (r"\é", r"\é"),
        (r"\E", r"\E"),
        (r"[\b]", r"\b"),
        (r"\x", "hexadecimal"),
        (r"\x4", "hexadecimal"),
        (r"\xzz", "hexadecimal"),
        (r"\x{110000}", "not a letter"),
        (r"\x{}", ""),
        (r"\x{d800}", "not a letter"),
        (r"\p", "at the end"),
        (r"\p{Greek", "without }"),
        (r"\p{Nope}", ""),
        (r"\p{sc=Greek}", "sc=Greek"),
        ("((((((a{99}){99}){99}){99}){99}){99})", "1024 KiB"),
        (r"(?:\pL{40}|\pN{30}x){9}", "1024 KiB"),
        ("(?:a|b)*a(?:a|b){30}", "1024 KiB"),
    ];
    for (pattern, part) in cases {
        match compile(pattern) {
            Ok(_) => panic!("{pattern} is accepted"),
            Err(message) => assert!(message.contains(part), "{pattern}: {message}"),
        }
    }
    let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(compile(&deep).is_err());
}

#[test]
fn programs_are_small() {
    for (pattern, bytes) in
        [("", 300), ("abc", 400), (".*", 510), (r"\w+@\w+\.(?:com|org)", 500), (r"\pL+", 60_000)]
    {
        let size = compile(pattern).unwrap().len();
        assert!(size < bytes, "{pattern}: {size}");
    }
    // The same table for any order in which the states were found, and every time.
    assert_eq!(compile("(?:a|b)*c").unwrap(), compile("[ab]*c|c").unwrap());
}

#[test]
fn broken_programs_are_refused() {
    let counter = Counter::default();
    let run = Run::new(&counter, &[b"abc"]);
    let good = compile("abc").unwrap();
    for size in 0..good.len() {
        assert_eq!(run.regex(&[0], &good[..size]), Err(Status::BAD_SIZE), "{size} of {}", good.len());
    }
    assert_eq!(run.regex(&[], &[]), Ok(vec![]));
    for at in 0..good.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(matches!(run.regex(&[0], &bad), Ok(_) | Err(Status::BAD_SIZE)));
        }
    }
}

/// An expression, for a matcher that looks for all ends of a match.
#[derive(Clone, Debug)]
enum Node {
    Letter(char),
    Any,
    Class(bool, Vec<char>),
    Both(Box<Node>, Box<Node>),
    Either(Box<Node>, Box<Node>),
    Repeat(Box<Node>, usize, usize, &'static str),
}

impl Node {
    fn text(&self) -> String {
        match self {
            Node::Letter(letter) => letter.to_string(),
            Node::Any => ".".to_owned(),
            Node::Class(negated, letters) => {
                format!("[{}{}]", if *negated { "^" } else { "" }, letters.iter().collect::<String>())
            }
            Node::Both(a, b) => format!("{}{}", a.text(), b.text()),
            Node::Either(a, b) => format!("({}|{})", a.text(), b.text()),
            Node::Repeat(inner, .., operator) => format!("(?:{}){operator}", inner.text()),
        }
    }

    fn ends(&self, text: &[char], starts: Vec<usize>) -> Vec<usize> {
        let one = |is: &dyn Fn(char) -> bool| {
            let matching = starts.iter().filter(|&&at| text.get(at).is_some_and(|&letter| is(letter)));
            matching.map(|at| at + 1).collect()
        };
        let mut ends: Vec<usize> = match self {
            Node::Letter(letter) => one(&|other| other == *letter),
            Node::Any => one(&|other| other != '\n'),
            Node::Class(negated, letters) => one(&|other| letters.contains(&other) != *negated),
            Node::Both(a, b) => b.ends(text, a.ends(text, starts)),
            Node::Either(a, b) => [a.ends(text, starts.clone()), b.ends(text, starts)].concat(),
            Node::Repeat(inner, least, most, _) => {
                let mut ends = if *least == 0 { starts.clone() } else { Vec::new() };
                let mut now = starts;
                for count in 1..=*most {
                    now = inner.ends(text, now);
                    if count >= *least {
                        ends.extend(&now);
                    }
                }
                ends
            }
        };
        ends.sort();
        ends.dedup();
        ends
    }
}

fn node() -> impl Strategy<Value = Node> {
    let letters = || prop::sample::select(vec!['a', 'b', 'é', '日']);
    let leaf = prop_oneof![
        letters().prop_map(Node::Letter),
        Just(Node::Any),
        (any::<bool>(), prop::collection::vec(letters(), 1..3))
            .prop_map(|(not, letters)| Node::Class(not, letters)),
    ];
    leaf.prop_recursive(5, 24, 2, |inner| {
        let operators =
            [("*", 0, 9), ("+", 1, 9), ("?", 0, 1), ("{2}", 2, 2), ("{2,}", 2, 9), ("{0,3}?", 0, 3)];
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Node::Both(a.into(), b.into())),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Node::Either(a.into(), b.into())),
            (inner, prop::sample::select(operators.to_vec())).prop_map(|(inner, (operator, least, most))| {
                Node::Repeat(inner.into(), least, most, operator)
            }),
        ]
    })
}

proptest! {
    #[test]
    fn programs_match_as_a_naive_matcher(node in node(), texts in prop::collection::vec("[abé日\n]{0,7}", 1..8)) {
        let bytes: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let expected: Vec<bool> = texts
            .iter()
            .map(|text| {
                let letters: Vec<char> = text.chars().collect();
                node.ends(&letters, vec![0]).contains(&letters.len())
            })
            .collect();
        prop_assert_eq!(matches(&node.text(), &bytes), expected, "{}", node.text());
    }

    #[test]
    fn any_text_is_a_pattern_or_refused(pattern in r"([-a-c(){}\[\]*+?.,:^$|\\&~QEpPxdwsbCi<>0-3é]|\\[QEpPxdwsbCAz01]|\(\?|\[\[:|\[\^){0,16}") {
        if let Ok(program) = compile(&pattern) {
            let counter = Counter::default();
            let run = Run::new(&counter, &[b"", b"abc", b"\xff\n"]);
            prop_assert!(run.regex(&[0, 1, 2], &program).is_ok());
        }
    }
}
