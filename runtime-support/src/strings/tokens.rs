//! Texts cut into tokens by a regular expression: what matches it, or what lies between its matches.

use crate::abi::Status;

use super::dfa::Program;
use super::table::State;

/// What a token is.
#[derive(Clone, Copy)]
pub struct Tokens<'p> {
    /// The program of an expression; the longest match counts at each place, from the left.
    pub program: &'p [u8],
    /// Characters that a token has at least; one without any is none.
    pub shortest: usize,
    /// Whether tokens lie between matches.
    pub between: bool,
}

/// The tokens of a text; `None` in place of one where the program is broken.
struct Found<'t, 'p> {
    program: Program<'p>,
    text: &'t [u8],
    /// Where a token between matches began.
    start: usize,
    at: usize,
    tokens: Tokens<'p>,
}

/// Bytes of the character that a text begins with.
fn width(text: &[u8]) -> usize {
    let behind = text.iter().skip(1).take_while(|&&byte| byte & 0xc0 == 0x80);
    1 + behind.count()
}

impl<'t> Found<'t, '_> {
    fn part(&self, start: usize, end: usize) -> Option<&'t [u8]> {
        let part = self.text.get(start..end)?;
        let characters = part.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        (characters >= self.tokens.shortest.max(1)).then_some(part)
    }
}

impl<'t> Iterator for Found<'t, '_> {
    type Item = Option<&'t [u8]>;

    fn next(&mut self) -> Option<Option<&'t [u8]>> {
        while let rest @ [_, ..] = self.text.get(self.at..).unwrap_or_default() {
            let Some(length) = self.program.longest(rest) else {
                self.at = self.text.len();
                self.start = self.at;
                return Some(None);
            };
            let (from, to) = (self.at, self.at + length);
            self.at = if length == 0 { from + width(rest) } else { to };
            let part = match (length, self.tokens.between) {
                (0, _) => None,
                (_, false) => self.part(from, to),
                (_, true) => {
                    let start = std::mem::replace(&mut self.start, to);
                    self.part(start, from)
                }
            };
            if part.is_some() {
                return Some(part);
            }
        }
        let start = std::mem::replace(&mut self.start, self.text.len());
        let last = if self.tokens.between { self.part(start, self.text.len()) } else { None };
        last.map(Some)
    }
}

impl State {
    fn tokens_of<'t, 'p>(&'t self, number: i64, tokens: &Tokens<'p>) -> Result<Found<'t, 'p>, Status> {
        let program = Program::of(tokens.program).ok_or(Status::BAD_SIZE)?;
        Ok(Found { program, text: self.read(number)?, start: 0, at: 0, tokens: *tokens })
    }

    /// How many tokens each text has.
    pub fn token_counts(
        &self,
        numbers: &[i64],
        tokens: &Tokens<'_>,
        counts: &mut [i64],
    ) -> Result<(), Status> {
        self.each(numbers.iter().zip(counts), |(&number, count)| {
            *count = 0;
            for token in self.tokens_of(number, tokens)? {
                token.ok_or(Status::BAD_SIZE)?;
                *count += 1;
            }
            Ok(())
        })
    }

    /// The tokens of each text: a row of `width`, filled up with the number `padding`.
    pub fn tokens(
        &self,
        numbers: &[i64],
        tokens: &Tokens<'_>,
        padding: i64,
        out: &mut [i64],
        width: usize,
    ) -> Result<(), Status> {
        if width == 0 {
            return self.each(numbers, |&number| match self.tokens_of(number, tokens)?.next() {
                None => Ok(()),
                Some(_) => Err(Status::BAD_SIZE),
            });
        }
        self.each(numbers.iter().zip(out.chunks_mut(width)), |(&number, row)| {
            let mut found = self.tokens_of(number, tokens)?;
            for out in row {
                *out = match found.next() {
                    // SAFETY: a token is a part of a text of this table, and its texts neither move nor change before it is closed.
                    Some(token) => unsafe { self.refer(token.ok_or(Status::BAD_SIZE)?)? },
                    None => padding,
                };
            }
            if found.next().is_some() { Err(Status::BAD_SIZE) } else { Ok(()) }
        })
    }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::{Table, regex};
    use super::*;

    fn tokens(pattern: &str, text: &str, shortest: usize, between: bool) -> Vec<String> {
        let table = Table::new(&[]);
        let program = regex::compile(pattern).unwrap();
        let tokens = Tokens { program: &program, shortest, between };
        let (text, mut count) = (table.intern(text.as_bytes()), [0]);
        table.state().token_counts(&[text], &tokens, &mut count).unwrap();
        let mut row = vec![0; count[0] as usize + 1];
        let width = row.len();
        table.state().tokens(&[text], &tokens, text, &mut row, width).unwrap();
        assert_eq!(row.pop(), Some(text), "the padding");
        if let narrow @ 1.. = row.len().saturating_sub(1) {
            let status = table.state().tokens(&[text], &tokens, text, &mut vec![0; narrow], narrow);
            assert_eq!(status, Err(Status::BAD_SIZE));
        }
        let text = |&number: &i64| String::from_utf8(table.text(number).unwrap().to_vec()).unwrap();
        row.iter().map(text).collect()
    }

    #[test]
    fn what_matches() {
        assert_eq!(tokens("[a-z]+", "ab, c1de", 1, false), ["ab", "c", "de"]);
        assert_eq!(tokens("[a-z]+", "ab, c1de", 2, false), ["ab", "de"]);
        assert_eq!(tokens("(?s).", "aé\n", 1, false), ["a", "é", "\n"]);
        // The longest match, wherever it stands in the expression.
        assert_eq!(tokens("a|ab|abcd", "abcabcd", 1, false), ["ab", "abcd"]);
        assert_eq!(tokens("x*", "axxb", 1, false), ["xx"]);
        assert_eq!(tokens("é", "éaé", 1, false), ["é", "é"]);
        assert_eq!(tokens("a", "", 1, false), [""; 0]);
    }

    #[test]
    fn what_lies_between() {
        assert_eq!(tokens(" |,", "a b,,c ", 1, true), ["a", "b", "c"]);
        assert_eq!(tokens(" +", "  one   two", 1, true), ["one", "two"]);
        assert_eq!(tokens(" ", "é éé", 2, true), ["éé"]);
        assert_eq!(tokens(" ", "one", 1, true), ["one"]);
        assert_eq!(tokens(" ", "  ", 1, true), [""; 0]);
    }

    #[test]
    fn broken_programs_and_numbers_of_no_text() {
        let table = Table::new(&[b"a"]);
        let program = regex::compile("a").unwrap();
        let of = |program: &[u8], number: i64| {
            let tokens = Tokens { program, shortest: 1, between: false };
            table.state().token_counts(&[number], &tokens, &mut [0])
        };
        assert_eq!(of(&program, 0), Ok(()));
        assert_eq!(of(&program, 9), Err(Status::OUT_OF_RANGE));
        for length in 0..program.len() {
            assert_eq!(of(&program[..length], 0), Err(Status::BAD_SIZE), "{length} bytes");
        }
    }
}
