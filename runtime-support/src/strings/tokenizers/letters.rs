//! Texts as code points, as onnxruntime-extensions (0.15) reads and writes them: the first byte says how many there are, four where it
//! begins no character, and of the others nothing is checked. Those behind the end of a text, which it does not define, are zeros here.

use crate::abi::Status;

use super::super::chunks::Draft;
use super::super::memory::List;

/// Appends the code points of a text.
pub(super) fn decode(text: &[u8], to: &mut List<'_, u32>) -> Result<(), Status> {
    let mut rest = text;
    while let [first, ..] = rest {
        let (size, bits) = match first {
            0..0x80 => (1, first & 0x7f),
            0xc0..0xe0 => (2, first & 0x1f),
            0xe0..0xf0 => (3, first & 0xf),
            _ => (4, first & 7),
        };
        let behind = (1..size).map(|at| rest.get(at).map_or(0, |byte| byte & 0x3f));
        to.push(behind.fold(u32::from(bits), |bits, byte| bits << 6 | u32::from(byte)))?;
        rest = rest.get(size..).unwrap_or_default();
    }
    Ok(())
}

/// The bytes of a code point, the first of these, and how many. It writes no zeros.
pub(super) fn encode(letter: u32) -> ([u8; 4], usize) {
    let low = |shift: u32| (0x80 | (letter >> shift & 0x3f)) as u8;
    match letter {
        0 => ([0; 4], 0),
        1..0x80 => ([letter as u8, 0, 0, 0], 1),
        0x80..0x800 => ([(0xc0 | letter >> 6) as u8, low(0), 0, 0], 2),
        0x800..0x1_0000 => ([(0xe0 | letter >> 12) as u8, low(6), low(0), 0], 3),
        _ => ([(0xf0 | letter >> 18) as u8, low(12), low(6), low(0)], 4),
    }
}

/// Calls `body` with each byte of a code point, until that fails.
pub(super) fn each_byte(letter: u32, body: impl FnMut(u8) -> bool) -> bool {
    let (bytes, size) = encode(letter);
    bytes.into_iter().take(size).all(body)
}

pub(super) fn write(letters: &[u32], to: &mut Draft<'_>) -> Result<(), Status> {
    letters.iter().try_for_each(|&letter| {
        let (bytes, size) = encode(letter);
        to.push(bytes.get(..size).unwrap_or_default())
    })
}

// The classes of letters that the basic tokenizer has.

pub(super) fn is_cjk(letter: u32) -> bool {
    matches!(letter, 0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f | 0x2b740..=0x2b81f
        | 0x2b820..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

pub(super) fn is_space(letter: u32) -> bool {
    matches!(letter, 9..=10 | 13 | 32 | 160 | 0x2000..=0x200a | 0x202f | 0x205f | 0x3000)
}

pub(super) fn is_punctuation(letter: u32) -> bool {
    matches!(letter, 33..=47 | 58..=64 | 91..=96 | 123..=126 | 161 | 167 | 171 | 182..=183 | 187 | 191 | 894 | 903
        | 0x2010..=0x2027 | 0x2030..=0x2043 | 0x2045..=0x2051 | 0x2053..=0x205e | 0x3001..=0x3003 | 0x3008..=0x3011
        | 0x3014..=0x301f | 0x3030 | 0x303d)
}

pub(super) fn is_control(letter: u32) -> bool {
    matches!(letter, 0..=8 | 11..=12 | 14..=31 | 128..=159 | 173 | 888..=889 | 896..=899 | 907 | 909 | 930
        | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206e | 11930 | 12020..=12030 | 40957..=40958 | 64110..=64111
        | 64218..=64254 | 173_790 | 177_973..=177_982 | 178_206..=178_207 | 183_970..=183_982 | 195_102)
}

pub(super) fn is_accent(letter: u32) -> bool {
    matches!(letter, 0x300..=0x36f)
}

pub(super) fn lower(letter: u32) -> u32 {
    match letter {
        0x41..=0x5a | 0xc0..=0xd6 | 0xd8..=0xde | 0x1f08..=0x1f68 | 0x410..=0x42f => letter + 32,
        0x399..=0x39d | 0x39f..=0x3a0 => letter + 32,
        _ => letter,
    }
}

pub(super) fn without_accent(letter: u32) -> u32 {
    const PLAIN: &[u8; 64] = b"AAAAAA\0CEEEEIIII\0NOOOOO\0\0UUUUY\0\0aaaaaa\0ceeeeiiii\0nooooo\0\0uuuuy\0y";
    let plain = letter.checked_sub(0xc0).and_then(|at| PLAIN.get(at as usize));
    plain.filter(|&&plain| plain != 0).map_or(letter, |&plain| u32::from(plain))
}
