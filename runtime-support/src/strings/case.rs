//! Upper and lower case: the full mappings of Unicode, which no language changes.

use crate::abi::Status;

use super::ignorable::IGNORABLE;
use super::table::State;

/// What [`State::change_case`] makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    Lower,
    Upper,
}

impl Case {
    /// As compiled models write it.
    pub fn of(how: i64) -> Option<Case> {
        match how {
            1 => Some(Case::Lower),
            2 => Some(Case::Upper),
            _ => None,
        }
    }
}

/// The capital sigma. It is the one letter whose mapping depends on its neighbours: at the end of a word it becomes
/// another small letter than elsewhere.
const SIGMA: char = '\u{3a3}';

/// `Cased` of Unicode: letters that have upper, lower or title case.
fn cased(letter: char) -> bool {
    let title = matches!(u32::from(letter),
        0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc);
    title || letter.is_lowercase() || letter.is_uppercase()
}

/// `Case_Ignorable` of Unicode: what does not end a word, such as accents and apostrophes.
fn ignorable(letter: char) -> bool {
    let code = u32::from(letter);
    let behind = IGNORABLE.partition_point(|range| range >> 8 <= code);
    match behind.checked_sub(1).and_then(|at| IGNORABLE.get(at)) {
        Some(range) => code - (range >> 8) <= (range & 0xff),
        None => false,
    }
}

/// Whether the sigma between these is the last letter of a word.
fn final_sigma(before: &str, after: &str) -> bool {
    let ends = |letter: Option<char>| letter.is_some_and(cased);
    ends(before.chars().rev().find(|&letter| !ignorable(letter)))
        && !ends(after.chars().find(|&letter| !ignorable(letter)))
}

impl State {
    /// Every text in upper or lower case. Texts must be UTF-8.
    pub fn change_case(&self, numbers: &[i64], out: &mut [i64], case: Case) -> Result<(), Status> {
        self.each(numbers.iter().zip(out), |(&number, out)| {
            let text = self.read(number)?;
            *out = if text.is_ascii() {
                self.change_ascii(number, text, case)?
            } else {
                self.change_unicode(std::str::from_utf8(text).map_err(|_| Status::BAD_TEXT)?, case)?
            };
            Ok(())
        })
    }

    fn change_ascii(&self, number: i64, text: &[u8], case: Case) -> Result<i64, Status> {
        let changes = match case {
            Case::Lower => text.iter().any(u8::is_ascii_uppercase),
            Case::Upper => text.iter().any(u8::is_ascii_lowercase),
        };
        if !changes {
            return Ok(number);
        }
        let mut draft = self.draft();
        draft.push(text)?;
        match case {
            Case::Lower => draft.written().make_ascii_lowercase(),
            Case::Upper => draft.written().make_ascii_uppercase(),
        }
        self.finish(draft)
    }

    fn change_unicode(&self, text: &str, case: Case) -> Result<i64, Status> {
        let mut draft = self.draft();
        let mut rest = text.chars();
        while let Some(letter) = rest.next() {
            match case {
                Case::Lower if letter == SIGMA => {
                    let after = rest.as_str();
                    let before = text.len() - after.len() - SIGMA.len_utf8();
                    let last = final_sigma(text.get(..before).unwrap_or(""), after);
                    draft.push_char(if last { '\u{3c2}' } else { '\u{3c3}' })?;
                }
                Case::Lower => letter.to_lowercase().try_for_each(|letter| draft.push_char(letter))?,
                Case::Upper => letter.to_uppercase().try_for_each(|letter| draft.push_char(letter))?,
            }
        }
        self.finish(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters() -> impl Iterator<Item = char> {
        (0..=u32::from(char::MAX)).filter_map(char::from_u32)
    }

    /// The standard library keeps these properties to itself, but they show in what follows a sigma.
    #[test]
    fn properties_are_those_of_the_standard_library() {
        for letter in letters() {
            let is_final = |before: &str| format!("{before}{letter}Σ").to_lowercase().ends_with('ς');
            let skipped = is_final("A") && !is_final("1");
            assert_eq!(ignorable(letter), skipped, "{letter:?}; a new version of Unicode?");
            if !skipped {
                assert_eq!(cased(letter), is_final("1"), "{letter:?}; a new version of Unicode?");
            }
        }
    }

    #[test]
    fn sigmas_look_at_their_neighbours() {
        for (before, after, last) in [
            ("", "", false),
            ("A", "", true),
            ("A", "B", false),
            ("A.", ".", true),
            ("A.", ".B", false),
            ("1", "", false),
        ] {
            assert_eq!(final_sigma(before, after), last, "{before:?} {after:?}");
        }
    }
}
