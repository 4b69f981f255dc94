//! Huffman codes.

use super::bits::Bits;
use crate::fault::{Fault, broken};

/// Bits of the codes that one look at a table decodes.
const LOOK: u32 = 9;

pub(super) struct Huffman {
    /// By the next `LOOK` bits: length and symbol of the code that they begin with, or length 0 if it is longer.
    short: [(u8, u8); 1 << LOOK],
    /// By length: the code behind the last one of this length, with zeros up to 16 bits, and what a code's number is added to
    /// for the place of its symbol.
    ends: [u32; 17],
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    /// By how many codes there are of each length from 1 on, and their symbols in order.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Huffman, Fault> {
        let mut table = Huffman {
            short: [(0, 0); 1 << LOOK],
            ends: [0; 17],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut place) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            let count = usize::from(count);
            table.offsets[length as usize] = place as i32 - code as i32;
            for (number, &symbol) in symbols.get(place..place + count).ok_or_else(broken)?.iter().enumerate()
            {
                if length <= LOOK {
                    let first = ((code as usize) + number) << (LOOK - length);
                    let same = table.short.get_mut(first..first + (1 << (LOOK - length)));
                    same.ok_or_else(broken)?.fill((length as u8, symbol));
                }
            }
            code += count as u32;
            place += count;
            if code > 1 << length {
                return Err(broken());
            }
            table.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Ok(table)
    }

    #[inline]
    pub(super) fn symbol(&self, bits: &mut Bits<'_>) -> Result<u8, Fault> {
        let (length, symbol) = self.short[bits.peek(LOOK) as usize];
        if length > 0 {
            bits.pass(u32::from(length))?;
            return Ok(symbol);
        }
        let next = bits.peek(16);
        let length = (LOOK + 1..=16).find(|&length| next < self.ends[length as usize]).ok_or_else(broken)?;
        bits.pass(length)?;
        let place = (next >> (16 - length)) as i32 + self.offsets[length as usize];
        self.symbols.get(place as usize).copied().ok_or_else(broken)
    }
}
