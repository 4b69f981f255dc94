//! A scan: the coefficients, or parts of them, of one or several components.

use super::bits::Bits;
use super::frame::Frame;
use super::huffman::Huffman;
use super::markers::{Decoder, ZIGZAG};
use crate::fault::{Fault, broken};

pub(super) struct Scan {
    /// Number of each component in the frame, and of its tables for the first and the other coefficients.
    pub components: Vec<(usize, usize, usize)>,
    /// The coefficients, in the order of the stream, and of a progressive frame the bits: those above `high` are known, 0
    /// where none is, and those down to `low` come now.
    first: usize,
    last: usize,
    high: u32,
    low: u32,
}

impl Scan {
    /// By the content of a start-of-scan segment.
    pub(super) fn new(segment: &[u8], frame: &Frame) -> Result<Scan, Fault> {
        let [count, rest @ ..] = segment else { return Err(broken()) };
        let (specs, rest) = rest.split_at_checked(2 * usize::from(*count)).ok_or_else(broken)?;
        let &[first, last, bits] = rest else { return Err(broken()) };
        let mut components: Vec<(usize, usize, usize)> = vec![];
        for &[id, tables] in specs.as_chunks::<2>().0 {
            let place =
                frame.components.iter().position(|component| component.id == id).ok_or_else(broken)?;
            if components.iter().any(|(other, ..)| *other == place) {
                return Err(broken());
            }
            components.push((place, usize::from(tables >> 4 & 3), usize::from(tables & 3)));
        }
        let (first, last) = (usize::from(first), usize::from(last));
        let (high, low) = (u32::from(bits >> 4), u32::from(bits & 15));
        let scan = match frame.progressive {
            true => Scan { components, first, last, high, low },
            false => Scan { components, first: 0, last: 63, high: 0, low: 0 },
        };
        let blocks = scan.components.iter().map(|&(at, ..)| frame.components[at].h * frame.components[at].v);
        let interleaves = scan.components.len() > 1;
        let valid = !scan.components.is_empty()
            && (!interleaves || blocks.sum::<usize>() <= 10)
            && scan.last <= 63
            && scan.low <= 13
            && (scan.high == 0 || scan.high == scan.low + 1)
            && (!frame.progressive
                || if scan.first == 0 { scan.last == 0 } else { !interleaves && scan.first <= scan.last });
        if valid { Ok(scan) } else { Err(broken()) }
    }

    /// Steps across and down: one component alone has the blocks that the image has, several have whole groups.
    fn steps(&self, frame: &Frame) -> (usize, usize) {
        match self.components.as_slice() {
            &[(only, ..)] => {
                let component = &frame.components[only];
                (component.width.div_ceil(8), component.height.div_ceil(8))
            }
            _ => (frame.mcus_across, frame.mcus_down),
        }
    }

    /// How many blocks it comes by.
    pub(super) fn visits(&self, frame: &Frame) -> usize {
        let (across, down) = self.steps(frame);
        let blocks = |&(at, ..): &(usize, usize, usize)| frame.components[at].h * frame.components[at].v;
        across
            * down
            * if self.components.len() == 1 { 1 } else { self.components.iter().map(blocks).sum::<usize>() }
    }
}

/// What a segment between two restarts has decoded.
#[derive(Default)]
struct State {
    /// By component: the first coefficient of the last block.
    predictions: [i32; 4],
    /// Blocks that follow in which no new coefficient comes.
    ended: u32,
}

/// Decodes the scan whose bits begin at `at`; gives where it ends.
pub(super) fn decode(
    decoder: &Decoder<'_>,
    scan: &Scan,
    frame: &mut Frame,
    stream: &[u8],
    at: usize,
) -> Result<usize, Fault> {
    let mut bits = Bits::new(stream, at);
    let mut state = State::default();
    let mut tables = vec![];
    for &(_, dc, ac) in &scan.components {
        tables.push((decoder.dc[dc].as_ref(), decoder.ac[ac].as_ref()));
    }
    let (across, down) = scan.steps(frame);
    let (mut left, mut restarts) = (decoder.restart_interval, 0u8);
    for y in 0..down {
        decoder.watch.poll()?;
        for x in 0..across {
            if decoder.restart_interval > 0 {
                if left == 0 {
                    bits.restart(restarts)?;
                    restarts = restarts.wrapping_add(1);
                    (state, left) = (State::default(), decoder.restart_interval);
                }
                left -= 1;
            }
            for (&(number, ..), &tables) in scan.components.iter().zip(&tables) {
                let (h, v) = match scan.components.len() {
                    1 => (1, 1),
                    _ => (frame.components[number].h, frame.components[number].v),
                };
                for (dy, dx) in (0..v).flat_map(|dy| (0..h).map(move |dx| (dy, dx))) {
                    let place = (x * h + dx, y * v + dy);
                    block(&mut bits, &mut state, scan, frame, number, tables, place)?;
                }
            }
        }
    }
    Ok(bits.end())
}

type Tables<'t> = (Option<&'t Huffman>, Option<&'t Huffman>);

fn block(
    bits: &mut Bits<'_>,
    state: &mut State,
    scan: &Scan,
    frame: &mut Frame,
    number: usize,
    (dc, ac): Tables<'_>,
    (x, y): (usize, usize),
) -> Result<(), Fault> {
    let component = &mut frame.components[number];
    let prediction = &mut state.predictions[number];
    if !frame.progressive {
        let mut block = [0; 64];
        let (dc, ac) = (dc.ok_or_else(broken)?, ac.ok_or_else(broken)?);
        first_coefficient(bits, dc, prediction, &mut block, 0)?;
        sequential(bits, ac, &mut block)?;
        let quantization = component.latched.ok_or_else(broken)?;
        component.set(x, y, &block, &quantization);
        return Ok(());
    }
    let at = y * component.blocks_across + x;
    let (block, filled) = (&mut component.coefficients[at], &mut component.filled[at]);
    match (scan.first, scan.high) {
        (0, 0) => first_coefficient(bits, dc.ok_or_else(broken)?, prediction, block, scan.low),
        (0, _) => {
            block[0] |= (bits.take(1)? << scan.low) as i16;
            Ok(())
        }
        (_, 0) => new_coefficients(bits, ac.ok_or_else(broken)?, state, (block, filled), scan),
        _ => refine(bits, ac.ok_or_else(broken)?, state, (block, filled), scan),
    }
}

fn first_coefficient(
    bits: &mut Bits<'_>,
    table: &Huffman,
    prediction: &mut i32,
    block: &mut [i16; 64],
    low: u32,
) -> Result<(), Fault> {
    let size = u32::from(table.symbol(bits)?);
    if size > 15 {
        return Err(broken());
    }
    *prediction = prediction.wrapping_add(bits.signed(size)?);
    block[0] = (*prediction << low) as i16;
    Ok(())
}

fn sequential(bits: &mut Bits<'_>, table: &Huffman, block: &mut [i16; 64]) -> Result<(), Fault> {
    coefficients(bits, table, (block, &mut 0), [1, 63], 0, |_, _| Ok(()))
}

/// The coefficients of a block, and which of them may not be 0, see [`super::frame::Component::filled`].
type Block<'b> = (&'b mut [i16; 64], &'b mut u64);

/// The highest bits of coefficients.
fn new_coefficients(
    bits: &mut Bits<'_>,
    table: &Huffman,
    state: &mut State,
    block: Block<'_>,
    scan: &Scan,
) -> Result<(), Fault> {
    if state.ended > 0 {
        state.ended -= 1;
        return Ok(());
    }
    coefficients(bits, table, block, [scan.first, scan.last], scan.low, |bits, zeros| {
        state.ended = (1 << zeros) - 1 + bits.take(zeros)?;
        Ok(())
    })
}

/// Coefficients from the first to the last place, each behind a run of zeros and without its `low` lowest bits. `end` is called with the
/// number that comes with the end of a block.
fn coefficients(
    bits: &mut Bits<'_>,
    table: &Huffman,
    (block, filled): Block<'_>,
    [first, last]: [usize; 2],
    low: u32,
    end: impl FnOnce(&mut Bits<'_>, u32) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut at = first;
    while at <= last {
        let symbol = table.symbol(bits)?;
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        match (zeros, size) {
            (15, 0) => at += 16,
            (_, 0) => return end(bits, zeros),
            _ => {
                at += zeros as usize;
                let place = *ZIGZAG.get(at).ok_or_else(broken)?;
                block[usize::from(place)] = (bits.signed(size)? << low) as i16;
                *filled |= 1 << at;
                at += 1;
            }
        }
    }
    Ok(())
}

/// One more bit of coefficients that are not 0 yet, and between them coefficients of one bit.
fn refine(
    bits: &mut Bits<'_>,
    table: &Huffman,
    state: &mut State,
    (block, filled): Block<'_>,
    scan: &Scan,
) -> Result<(), Fault> {
    let one = 1i16 << scan.low;
    let mut at = scan.first;
    while at <= scan.last && state.ended == 0 {
        let symbol = table.symbol(bits)?;
        let (mut zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        let value = match (zeros, size) {
            (15, 0) => 0,
            (_, 0) => {
                state.ended = (1 << zeros) + bits.take(zeros)?;
                break;
            }
            (_, 1) => {
                if bits.take(1)? == 1 {
                    one
                } else {
                    -one
                }
            }
            _ => return Err(broken()),
        };
        // To the place of the new one, behind `zeros` places that stay 0.
        loop {
            let place = usize::from(*ZIGZAG.get(at).ok_or_else(broken)?);
            at += 1;
            match &mut block[place] {
                0 if zeros == 0 => {
                    block[place] = value;
                    *filled |= 1 << (at - 1);
                    break;
                }
                0 => zeros -= 1,
                coefficient => refined(bits, coefficient, one)?,
            }
            if at > scan.last {
                break;
            }
        }
    }
    if state.ended > 0 {
        // From `at` to `last`, which is 63 at most; `at` may be one behind it.
        let mut left =
            *filled & (u64::MAX >> (63 - scan.last)) & u64::MAX.checked_shl(at as u32).unwrap_or(0);
        while left != 0 {
            match &mut block[usize::from(ZIGZAG[left.trailing_zeros() as usize])] {
                0 => {}
                coefficient => refined(bits, coefficient, one)?,
            }
            left &= left - 1;
        }
        state.ended -= 1;
    }
    Ok(())
}

fn refined(bits: &mut Bits<'_>, coefficient: &mut i16, one: i16) -> Result<(), Fault> {
    if bits.take(1)? == 1 && *coefficient & one == 0 {
        *coefficient = coefficient.wrapping_add(if *coefficient > 0 { one } else { -one });
    }
    Ok(())
}
