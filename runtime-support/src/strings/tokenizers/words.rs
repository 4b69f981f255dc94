//! Words, as the regular expressions of tokenizers cut texts: alternatives that are tried in their order, each as onnxruntime-extensions
//! matches it.

use super::classes::{Class, class};

/// One alternative.
#[derive(Clone, Copy)]
struct Pattern {
    /// As expressions have it.
    #[cfg(feature = "compile")]
    text: &'static str,
    length: fn(&[u32]) -> usize,
}

macro_rules! patterns {
    ($($text:literal $length:expr;)*) => {
        /// All alternatives. Tables have their places here.
        const PATTERNS: &[Pattern] = &[$(Pattern {
            #[cfg(feature = "compile")]
            text: $text,
            length: $length,
        }),*];
    };
}

patterns! {
    r"'s|'t|'re|'ve|'m|'ll|'d" |letters| contraction(letters, false);
    r" ?\p{L}+| ?\p{N}+" |letters| spaced(letters, |letter| is_letter(letter) || is_number(letter), true);
    r" ?[^\s\p{L}\p{N}]+" |letters| spaced(letters, is_other, false);
    r"\s+(?!\S)|\s+" spaces;
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)" |letters| contraction(letters, true);
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])" |letters| contraction(letters, true);
    r"[^\r\n\p{L}\p{N}]?\p{L}+" prefixed;
    r"\p{N}{1,3}" |letters| run(letters, is_number).min(3);
    r" ?[^\s\p{L}\p{N}]+[\r\n]*" others_with_lines;
    // Other than the expression says, strokes behind ends of lines are left.
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*" others_with_lines;
    r"\s*[\r\n]+" lines;
    r"[\p{L}]+|[\p{N}]" |letters| run(letters, is_letter).max(run(letters, is_number).min(1));
    r"[^\s\p{L}\p{N}]+" |letters| run(letters, is_other);
    r"\p{N}" |letters| run(letters, is_number).min(1);
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" ends_small;
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" begins_large;
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        |letters| contracted(letters, ends_small(letters));
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        |letters| contracted(letters, begins_large(letters));
}

/// The expression of GPT-2.
#[cfg(feature = "compile")]
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expression of Llama 3.
#[cfg(feature = "compile")]
pub const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The places of the alternatives of an expression, or the rest of it that begins with none.
#[cfg(feature = "compile")]
pub fn alternatives(expression: &str) -> Result<Vec<u8>, &str> {
    let (mut rest, mut places) = (expression, vec![]);
    loop {
        let ends = |pattern: &Pattern| {
            let behind = rest.strip_prefix(pattern.text)?;
            (behind.is_empty() || behind.starts_with('|')).then_some(behind)
        };
        // Some are the beginning of others.
        let known = (0..).zip(PATTERNS).filter_map(|(at, pattern)| Some((at, ends(pattern)?)));
        let Some((place, behind)) = known.min_by_key(|(_, behind)| behind.len()) else { return Err(rest) };
        places.push(place);
        match behind.strip_prefix('|') {
            Some(behind) => rest = behind,
            None => return Ok(places),
        }
    }
}

/// How many letters the first word of a text has: what the first of the alternatives that matches takes, or all up to where one does.
pub(super) fn word_length(alternatives: &[u8], letters: &[u32]) -> usize {
    let length = |letters: &[u32]| {
        let patterns = alternatives.iter().filter_map(|&place| PATTERNS.get(usize::from(place)));
        patterns.map(|pattern| (pattern.length)(letters)).find(|&length| length > 0)
    };
    let matches = |at: usize| letters.get(at..).and_then(length);
    matches(0)
        .unwrap_or_else(|| (1..letters.len()).find(|&at| matches(at).is_some()).unwrap_or(letters.len()))
}

fn is_letter(letter: u32) -> bool {
    class(letter).is_letter()
}

fn is_number(letter: u32) -> bool {
    class(letter) == Class::Number
}

fn is_space(letter: u32) -> bool {
    matches!(letter, 9..=13) || class(letter) == Class::Separator
}

fn is_line(letter: u32) -> bool {
    matches!(letter, 10 | 13)
}

/// Neither space nor letter nor number.
fn is_other(letter: u32) -> bool {
    !(is_space(letter) || is_letter(letter) || is_number(letter))
}

fn is_large(letter: u32) -> bool {
    matches!(class(letter), Class::Capital | Class::Letter | Class::Mark)
}

fn is_small(letter: u32) -> bool {
    matches!(class(letter), Class::Small | Class::Letter | Class::Mark)
}

/// How many letters from the first on are so.
fn run(letters: &[u32], is: impl Fn(u32) -> bool) -> usize {
    letters.iter().take_while(|&&letter| is(letter)).count()
}

fn behind(letters: &[u32], at: usize) -> &[u32] {
    letters.get(at..).unwrap_or_default()
}

/// An apostrophe with one of the ends that English words have.
fn contraction(letters: &[u32], any_case: bool) -> usize {
    let is = |at: usize, small: char| {
        let letter = letters.get(at).and_then(|&letter| char::from_u32(letter));
        letter.is_some_and(|letter| letter == small || any_case && letter == small.to_ascii_uppercase())
    };
    let one = || ['s', 't', 'm', 'd'].into_iter().any(|letter| is(1, letter));
    let two = || {
        ["re", "ve", "ll"].into_iter().any(|pair| pair.chars().zip(1..).all(|(letter, at)| is(at, letter)))
    };
    match is(0, '\'') {
        true if one() => 2,
        true if two() => 3,
        _ => 0,
    }
}

/// A space, if there is one, and letters that are so; with `alike` only those of one kind, letters or numbers.
fn spaced(letters: &[u32], is: impl Fn(u32) -> bool, alike: bool) -> usize {
    let space = usize::from(letters.first() == Some(&0x20));
    let Some(&first) = letters.get(space).filter(|&&letter| is(letter)) else { return 0 };
    let same = |letter: u32| is(letter) && (!alike || is_letter(letter) == is_letter(first));
    space + run(behind(letters, space), same)
}

/// Spaces, without the last where a word follows several.
fn spaces(letters: &[u32]) -> usize {
    let count = run(letters, is_space);
    if count > 1 && count < letters.len() { count - 1 } else { count }
}

/// Letters, and before them what is neither a letter nor a number nor an end of a line, if it is there.
fn prefixed(letters: &[u32]) -> usize {
    let start = before_letters(letters);
    match run(behind(letters, start), is_letter) {
        0 => 0,
        count => start + count,
    }
}

/// 1 where a text begins with what may stand before letters.
fn before_letters(letters: &[u32]) -> usize {
    let may = |letter: u32| !(is_line(letter) || is_number(letter) || is_letter(letter));
    usize::from(letters.first().is_some_and(|&letter| may(letter)))
}

fn others_with_lines(letters: &[u32]) -> usize {
    match spaced(letters, is_other, false) {
        0 => 0,
        others => others + run(behind(letters, others), is_line),
    }
}

/// Spaces that end with an end of a line, or ends of lines.
fn lines(letters: &[u32]) -> usize {
    let count = run(letters, is_space);
    match count.checked_sub(1).and_then(|last| letters.get(last)) {
        Some(&last) if count > 1 && is_line(last) => count,
        _ => run(letters, is_line),
    }
}

/// Capitals and letters of neither kind, then small ones and such letters. Where the text ends before these, that is enough.
fn ends_small(letters: &[u32]) -> usize {
    let start = before_letters(letters);
    let Some(&[_, ..]) = letters.get(start..) else { return 0 };
    let large = start + run(behind(letters, start), is_large);
    let small = run(behind(letters, large), is_small);
    let last = large.checked_sub(1).and_then(|last| letters.get(last));
    // What is neither large nor small counts as both.
    let ends =
        large == letters.len() || small > 0 || large > start && last.is_some_and(|&letter| is_small(letter));
    if ends { large + small } else { 0 }
}

fn begins_large(letters: &[u32]) -> usize {
    let start = before_letters(letters);
    match run(behind(letters, start), is_large) {
        0 => 0,
        large => start + large + run(behind(letters, start + large), is_small),
    }
}

/// A word, and the end that it is contracted with.
fn contracted(letters: &[u32], word: usize) -> usize {
    if word == 0 { 0 } else { word + contraction(behind(letters, word), true) }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::*;

    fn words(expression: &str, text: &str) -> Vec<String> {
        let alternatives = alternatives(expression).unwrap();
        let letters: Vec<u32> = text.chars().map(u32::from).collect();
        let (mut rest, mut words) = (&*letters, vec![]);
        while !rest.is_empty() {
            let (word, behind) = rest.split_at(word_length(&alternatives, rest));
            words.push(word.iter().map(|&letter| char::from_u32(letter).unwrap()).collect());
            rest = behind;
        }
        words
    }

    #[test]
    fn words_of_gpt2() {
        let of = |text: &str| words(GPT2, text);
        assert_eq!(of("don't we'll 'S 'x"), ["don", "'t", " we", "'ll", " '", "S", " '", "x"]);
        assert_eq!(of("a  b\n\nc \t"), ["a", " ", " b", "\n", "\n", "c", " \t"]);
        assert_eq!(of("x12½ ,,\u{301}é"), ["x", "12½", " ,,\u{301}", "é"]);
        assert_eq!(of("\u{3000}a\u{85}"), ["\u{3000}", "a", "\u{85}"]);
    }

    #[test]
    fn words_of_llama() {
        let of = |text: &str| words(LLAMA, text);
        assert_eq!(of("Don'T ,a12345"), ["Don", "'T", " ,", "a", "123", "45"]);
        assert_eq!(of("a ,;\n\n b"), ["a", " ,;\n\n", " b"]);
        assert_eq!(of("a  \n\n b \n c"), ["a", "  \n\n", " b", " \n", " c"]);
        assert_eq!(of("\n\n  x"), ["\n\n", " ", " x"]);
    }

    #[test]
    fn words_by_large_and_small_letters() {
        let small = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
        let large = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*";
        let end = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
        let both = format!(r"{small}|{large}|\p{{N}}|\s+(?!\S)|\s+");
        assert_eq!(
            words(&both, "camelCase ABCd,EF 1漢字"),
            ["camel", "Case", " ABCd", ",EF", " ", "1", "漢字"]
        );
        let both = format!(r"{small}{end}|{large}{end}|\s+(?!\S)|\s+");
        assert_eq!(words(&both, "She'LL I'm"), ["She'LL", " I'm"]);
    }

    /// What no alternative matches is a word as well.
    #[test]
    fn what_is_between_words() {
        assert_eq!(words(r"\p{N}", "ab12cd"), ["ab", "1", "2", "cd"]);
        assert_eq!(words(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "ab12 ,;"), ["ab", "1", "2", " ", ",;"]);
    }

    #[test]
    fn expressions_of_other_alternatives() {
        assert_eq!(alternatives(r"\p{N}|\w+|\p{N}"), Err(r"\w+|\p{N}"));
        assert_eq!(alternatives(r"\p{N}+"), Err(r"\p{N}+"));
        assert_eq!(alternatives(""), Err(""));
        assert_eq!(alternatives(r"\p{N}{1,3}|\p{N}").map(|places| places.len()), Ok(2));
    }
}
