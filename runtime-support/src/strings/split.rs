//! Texts cut at delimiters or at white space.

use crate::abi::Status;

use super::table::State;

/// Bytes of the white-space character that `text` starts with, or 0. These are the characters that Python strips: those
/// of Unicode's `White_Space` and four separators of ASCII.
pub(super) fn whitespace(text: &[u8]) -> usize {
    match text {
        [b'\t'..=b'\r' | 0x1c..=0x1f | b' ', ..] => 1,
        // U+0085 and U+00A0
        [0xc2, 0x85 | 0xa0, ..] => 2,
        // U+1680
        [0xe1, 0x9a, 0x80, ..] => 3,
        // U+2000 to U+200A, U+2028, U+2029, U+202F
        [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..] => 3,
        // U+205F
        [0xe2, 0x81, 0x9f, ..] => 3,
        // U+3000
        [0xe3, 0x80, 0x80, ..] => 3,
        _ => 0,
    }
}

/// `text` from its first character on that is not white space.
fn trim_start(mut text: &[u8]) -> &[u8] {
    while let width @ 1.. = whitespace(text) {
        text = text.get(width..).unwrap_or_default();
    }
    text
}

/// `text` without white space on either side.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let mut text = trim_start(text);
    while let Some(rest) = (1..=3).find_map(|width| {
        let (rest, end) = text.split_at_checked(text.len().checked_sub(width)?)?;
        (whitespace(end) == width).then_some(rest)
    }) {
        text = rest;
    }
    text
}

/// The pieces of a text.
struct Pieces<'t> {
    /// What is not cut yet; none behind the last piece.
    rest: Option<&'t [u8]>,
    /// Empty: any white space, several characters like one, and none on either side.
    delimiter: &'t [u8],
    /// Cuts that may still be made.
    cuts: usize,
}

impl<'t> Pieces<'t> {
    /// `most` is how many cuts may be made, where it is not negative.
    fn of(text: &'t [u8], delimiter: &'t [u8], most: i64) -> Pieces<'t> {
        Pieces { rest: Some(text), delimiter, cuts: usize::try_from(most).unwrap_or(usize::MAX) }
    }
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        let text = self.rest.take()?;
        let (text, cut, width) = if self.delimiter.is_empty() {
            let text = trim_start(text);
            if text.is_empty() {
                return None;
            }
            let mut ends = (0..text.len()).map(|at| (at, whitespace(text.get(at..).unwrap_or_default())));
            let (cut, width) = ends.find(|&(_, width)| width > 0).unzip();
            (text, cut, width.unwrap_or(0))
        } else {
            let cut = text.windows(self.delimiter.len()).position(|window| window == self.delimiter);
            (text, cut, self.delimiter.len())
        };
        match cut.and_then(|cut| text.split_at_checked(cut)) {
            Some((piece, rest)) if self.cuts > 0 => {
                self.cuts -= 1;
                self.rest = rest.get(width..);
                Some(piece)
            }
            _ => Some(text),
        }
    }
}

impl State {
    /// How many pieces each text has; see [`State::split`].
    pub fn split_counts(
        &self,
        numbers: &[i64],
        delimiter: i64,
        counts: &mut [i64],
        maxsplit: i64,
    ) -> Result<(), Status> {
        self.each(numbers.iter().zip(counts), |(&number, count)| {
            *count = Pieces::of(self.read(number)?, self.read(delimiter)?, maxsplit).count() as i64;
            Ok(())
        })
    }

    /// The pieces of each text: a row of `width`, with the empty text behind the last. The delimiter of no text at all
    /// is white space. At most `maxsplit` cuts are made in a text, unless it is negative.
    pub fn split(
        &self,
        numbers: &[i64],
        delimiter: i64,
        out: &mut [i64],
        maxsplit: i64,
        width: usize,
    ) -> Result<(), Status> {
        if width == 0 {
            // Rows have no elements, but texts may have pieces.
            return self.each(numbers, |&number| {
                match Pieces::of(self.read(number)?, self.read(delimiter)?, maxsplit).next() {
                    None => Ok(()),
                    Some(_) => Err(Status::BAD_SIZE),
                }
            });
        }
        self.each(numbers.iter().zip(out.chunks_mut(width)), |(&number, row)| {
            let mut pieces = Pieces::of(self.read(number)?, self.read(delimiter)?, maxsplit);
            for out in row {
                // SAFETY: a piece is a part of a text of this table, and its texts neither move nor change before it is closed.
                *out = unsafe { self.refer(pieces.next().unwrap_or_default())? };
            }
            if pieces.next().is_some() { Err(Status::BAD_SIZE) } else { Ok(()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_that_of_python() {
        for letter in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = letter.to_string();
            let is = letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter);
            assert_eq!(whitespace(text.as_bytes()), if is { text.len() } else { 0 }, "{letter:?}");
        }
    }

    #[test]
    fn trims_both_sides() {
        let cases = [
            ("", ""),
            (" ", ""),
            (" a ", "a"),
            ("\u{3000}\u{a0}a\u{2003}b\u{85}\x1f", "a\u{2003}b"),
            ("\n\n\n", ""),
        ];
        for (text, trimmed) in cases {
            assert_eq!(trim(text.as_bytes()), trimmed.as_bytes());
        }
        assert_eq!(trim(b"\xa0\x80\x80"), b"\xa0\x80\x80");
    }

    #[test]
    fn pieces_are_those_of_python() {
        let cases: [(&str, &str, i64, &[&str]); 16] = [
            ("", "", -1, &[]),
            ("  ", "", -1, &[]),
            (" a  b c ", "", -1, &["a", "b", "c"]),
            (" a  b c ", "", 1, &["a", "b c "]),
            (" a  b c ", "", 0, &["a  b c "]),
            ("a ", "", 1, &["a"]),
            ("a\u{2003}b", "", -1, &["a", "b"]),
            ("", ",", -1, &[""]),
            (",", ",", -1, &["", ""]),
            ("a,,b", ",", -1, &["a", "", "b"]),
            ("a,b,c", ",", 1, &["a", "b,c"]),
            ("a,b,c", ",", 0, &["a,b,c"]),
            ("a,b,c", ",", 9, &["a", "b", "c"]),
            ("aaaa", "aa", -1, &["", "", ""]),
            ("aaa", "aa", -1, &["", "a"]),
            ("aé é", "é", -1, &["a", " ", ""]),
        ];
        for (text, delimiter, most, pieces) in cases {
            let found: Vec<_> = Pieces::of(text.as_bytes(), delimiter.as_bytes(), most).collect();
            assert_eq!(
                found,
                pieces.iter().map(|piece| piece.as_bytes()).collect::<Vec<_>>(),
                "{text:?} at {delimiter:?}"
            );
        }
    }
}
