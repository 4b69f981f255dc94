//! Matches of regular expressions replaced, as RE2 (`RE2::GlobalReplace`, `RE2::Replace`) does it.

use crate::abi::Status;

use super::chunks::Draft;
use super::nfa::{Program, Search};
use super::table::State;

/// What matches become: text in which `\0` to `\9` are groups, `\0` the whole match, and `\\` a backslash.
#[derive(Clone, Copy)]
pub struct Replacement<'r> {
    /// The program that `regex::search` makes.
    pub program: &'r [u8],
    pub rewrite: &'r [u8],
    /// Whether every match is replaced, not the first alone.
    pub all: bool,
}

/// Bytes of the character that a text begins with, 1 where it begins with none.
fn width(text: &[u8]) -> usize {
    let size = (1..=4).find(|&size| text.get(..size).is_some_and(|text| std::str::from_utf8(text).is_ok()));
    size.unwrap_or(1)
}

fn rewrite(mut rest: &[u8], text: &[u8], search: &Search<'_, '_>, to: &mut Draft<'_>) -> Result<(), Status> {
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'\\', [digit @ b'0'..=b'9', behind @ ..]) => {
                // A group that took no part is empty.
                let (from, to_place) = search.group(usize::from(digit - b'0')).unwrap_or_default();
                to.push(text.get(from..to_place).unwrap_or_default())?;
                behind
            }
            (b'\\', [escaped, behind @ ..]) => {
                to.push(std::slice::from_ref(escaped))?;
                behind
            }
            _ => {
                to.push(std::slice::from_ref(first))?;
                behind
            }
        };
    }
    Ok(())
}

impl State {
    /// Texts with matches replaced. A program that is broken gives a status or wrong texts, and reads nothing but itself.
    pub fn replace(&self, numbers: &[i64], how: &Replacement<'_>, out: &mut [i64]) -> Result<(), Status> {
        let program = Program::of(how.program).ok_or(Status::BAD_SIZE)?;
        let mut search = Search::of(program, self.memory())?;
        self.each(numbers.iter().zip(out), |(&number, out)| {
            let text = self.read(number)?;
            let mut draft = self.draft();
            let (mut at, mut last, mut any) = (0, None, false);
            while at <= text.len() && (how.all || !any) && search.find(text, at)? {
                let (from, to) = search.group(0).ok_or(Status::BAD_SIZE)?;
                draft.push(text.get(at..from).unwrap_or_default())?;
                if from == to && last == Some(from) {
                    // Nothing is replaced where the match before ends: go on behind the next character.
                    let rest = text.get(at..).unwrap_or_default();
                    let size = width(rest);
                    draft.push(rest.get(..size).unwrap_or_default())?;
                    at += size;
                    continue;
                }
                rewrite(how.rewrite, text, &search, &mut draft)?;
                (at, last, any) = (to, Some(to), true);
            }
            if !any {
                *out = number;
                return Ok(());
            }
            draft.push(text.get(at..).unwrap_or_default())?;
            *out = self.finish(draft)?;
            Ok(())
        })
    }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::{Table, regex};
    use super::*;

    fn replaced(pattern: &str, rewrite: &str, text: &str, all: bool) -> String {
        let program = regex::search(pattern, 9).unwrap().program;
        let table = Table::new(&[]);
        let (number, mut out) = (table.intern(text.as_bytes()), [0]);
        let how = Replacement { program: &program, rewrite: rewrite.as_bytes(), all };
        table.state().replace(&[number], &how, &mut out).unwrap();
        String::from_utf8(table.text(out[0]).unwrap().to_vec()).unwrap()
    }

    fn all(pattern: &str, rewrite: &str, text: &str) -> String {
        replaced(pattern, rewrite, text, true)
    }

    #[test]
    fn matches_are_replaced() {
        assert_eq!(all("[a-z]+", "<\\0>", "ab, c1de"), "<ab>, <c>1<de>");
        assert_eq!(replaced("[a-z]+", "<\\0>", "ab, c1de", false), "<ab>, c1de");
        assert_eq!(all("x", "", "axxb"), "ab");
        assert_eq!(all("x", "y", ""), "");
        assert_eq!(all("é", "\\\\0", "aéb"), "a\\0b");
        // What Perl would try first counts, not the longest.
        assert_eq!(all("a|ab|abcd", "-", "abcabcd"), "-bc-bcd");
        assert_eq!(all("a+?", "-", "aaa"), "---");
        assert_eq!(all("(?U)a+", "-", "aaa"), "---");
    }

    #[test]
    fn groups_are_where_they_took_part() {
        assert_eq!(all(r"(\w+) (\w+)", r"\2 \1", "ab cd ef gh"), "cd ab gh ef");
        assert_eq!(all("(a)|(b)", r"[\1\2]", "abc"), "[a][b]c");
        assert_eq!(all("(?P<x>a(b)?)+", r"[\1,\2]", "abaXaab"), "[a,b]X[ab,b]");
        assert_eq!(all("(?:a)(b)", r"\1", "ab"), "b");
        assert_eq!(all(r"(.*?)(\d+)$", r"\2\1", "ab12\nc34"), "ab12\n34c");
    }

    #[test]
    fn empty_matches() {
        assert_eq!(all("", "-", "aé"), "-a-é-");
        assert_eq!(all("x*", "-", "axxb"), "-a-b-");
        assert_eq!(all("(?m)^", "> ", "a\nb"), "> a\n> b");
        assert_eq!(all("(?m)$", "<", "a\nb"), "a<\nb<");
        assert_eq!(all(r"\b", "|", "ab c"), "|ab| |c|");
        assert_eq!(all("^|b", "-", "abb"), "-a--");
        assert_eq!(all("", "-", "\u{ff}a"), "-\u{ff}-a-");
    }

    #[test]
    fn broken_programs_are_refused_or_read_within() {
        let program = regex::search(r"(a|\bb)*c", 1).unwrap().program;
        let table = Table::new(&[b"abc ac"]);
        let run = |program: &[u8]| {
            table.state().replace(&[0], &Replacement { program, rewrite: b"\\1", all: true }, &mut [0])
        };
        assert_eq!(run(&program), Ok(()));
        for length in 0..program.len() {
            assert_eq!(run(&program[..length]), Err(Status::BAD_SIZE), "{length} bytes");
        }
        for at in 8..program.len() {
            for byte in [0, 1, 77, 255] {
                let mut broken = program.clone();
                broken[at] = byte;
                // A status or other texts: it ends, and reads within.
                let _ = run(&broken);
            }
        }
        assert!(regex::search("(a){1,1000}{1,1000}", 1).is_err());
    }

    /// A text takes time by its length, not the square of it.
    #[test]
    fn long_texts_end() {
        assert_eq!(all("(a+)+$", "-", &"a".repeat(100_000)), "-");
        assert_eq!(all("(a|b)c", "-", &"ab".repeat(50_000)).len(), 100_000);
    }
}
