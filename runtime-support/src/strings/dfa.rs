//! Regular expressions at run time: a walk through a table that the compiler made.
//!
//! All numbers of a program are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | states; the first is where texts begin |
//! | 4 | classes of bytes |
//! | 4 | width of the table's elements: 2 or 4 bytes |
//! | 4 | the state that no text leaves, or [`NONE`] |
//! | 256 | the class of each byte |
//! | 1 per state | 1: a text that ends here matches |
//! | width per state and class | the next state |

use crate::abi::Status;

use super::table::State;

pub(super) const MAGIC: [u8; 8] = *b"onnxcre1";
/// No state.
#[cfg(feature = "compile")]
pub(super) const NONE: u32 = u32::MAX;
pub(super) const HEADER: usize = 24;

/// A program whose parts lie within its bytes. What they say is checked as it is read.
pub(super) struct Program<'p> {
    classes: &'p [u8; 256],
    class_count: usize,
    dead: usize,
    ends: &'p [u8],
    next: Next<'p>,
}

enum Next<'p> {
    Narrow(&'p [[u8; 2]]),
    Wide(&'p [[u8; 4]]),
}

impl<'p> Program<'p> {
    pub(super) fn of(program: &'p [u8]) -> Option<Program<'p>> {
        let (header, rest) = program.split_at_checked(HEADER)?;
        let mut words =
            header.as_chunks::<4>().0.iter().skip(2).map(|word| u32::from_le_bytes(*word) as usize);
        let (states, class_count, width, dead) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (classes, rest) = rest.split_first_chunk::<256>()?;
        let (ends, table) = rest.split_at_checked(states)?;
        let elements = states.checked_mul(class_count)?;
        let next = match width {
            2 => Next::Narrow(table.as_chunks().0.get(..elements)?),
            4 => Next::Wide(table.as_chunks().0.get(..elements)?),
            _ => return None,
        };
        header.starts_with(&MAGIC).then_some(Program { classes, class_count, dead, ends, next })
    }

    /// Whether the whole text matches.
    pub(super) fn matches(&self, text: &[u8]) -> Option<bool> {
        match self.next {
            Next::Narrow(next) => {
                self.walk(text, |at| next.get(at).map(|state| usize::from(u16::from_le_bytes(*state))))
            }
            Next::Wide(next) => {
                self.walk(text, |at| next.get(at).map(|state| u32::from_le_bytes(*state) as usize))
            }
        }
    }

    /// Bytes of the longest part that the text begins with and that matches; 0 where none does. `None`: it is broken.
    pub(super) fn longest(&self, text: &[u8]) -> Option<usize> {
        let mut longest = 0;
        let mut state = 0_usize;
        for (at, &byte) in text.iter().enumerate() {
            if state == self.dead {
                break;
            }
            let class = usize::from(self.classes[usize::from(byte)]);
            let element = state.checked_mul(self.class_count)?.checked_add(class)?;
            state = match self.next {
                Next::Narrow(next) => usize::from(u16::from_le_bytes(*next.get(element)?)),
                Next::Wide(next) => u32::from_le_bytes(*next.get(element)?) as usize,
            };
            if *self.ends.get(state)? != 0 {
                longest = at + 1;
            }
        }
        Some(longest)
    }

    fn walk(&self, text: &[u8], next: impl Fn(usize) -> Option<usize>) -> Option<bool> {
        let mut state = 0_usize;
        for &byte in text {
            if state == self.dead {
                return Some(false);
            }
            let class = usize::from(self.classes[usize::from(byte)]);
            state = next(state.checked_mul(self.class_count)?.checked_add(class)?)?;
        }
        self.ends.get(state).map(|&end| end != 0)
    }
}

impl State {
    /// Whether each text matches the expression as a whole: 1 or 0. A program that is broken gives a status or wrong
    /// answers, and reads nothing but itself.
    pub fn matches(&self, numbers: &[i64], program: &[u8], out: &mut [u8]) -> Result<(), Status> {
        let program = Program::of(program).ok_or(Status::BAD_SIZE);
        self.each(numbers.iter().zip(out), |(&number, out)| {
            let program = program.as_ref().map_err(|&status| status)?;
            *out = u8::from(program.matches(self.read(number)?).ok_or(Status::BAD_SIZE)?);
            Ok(())
        })
    }
}
