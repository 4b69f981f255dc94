//! The memory that a codestream takes while it is decoded. The library has no limit for it, and streams of few bytes may have
//! many parts, of which each takes some.

use crate::fault::{Fault, unsupported};

const START_OF_TILE_PART: usize = 0xff90;
const START_OF_DATA: usize = 0xff93;
const CODING: usize = 0xff52;
const COMPONENT_CODING: usize = 0xff53;

/// Bytes of each sample: itself, its coefficient and a copy.
const SAMPLE: usize = 12;

/// Bytes that are known of a block of samples that is coded for itself, and of each of its layers.
const BLOCK: usize = 256;
const LAYER: usize = 32;

/// About the bytes that a codestream takes, whose `markers` begin with that of the sizes.
pub fn needed(markers: &[u8]) -> Result<usize, Fault> {
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = markers.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (Some(width), Some(height), Some(components)) = (number(6, 4), number(10, 4), number(38, 2)) else {
        // It is too short to be decoded.
        return Ok(0);
    };
    // Colours and an alpha channel.
    if components > 5 {
        return Err(unsupported());
    }
    let (mut at, mut part, mut smallest, mut layers) = (0, (0, 0), usize::MAX, 1);
    while let Some(marker) = number(at, 2) {
        if marker == START_OF_DATA {
            // Behind it is data up to the end of the part, or of all where its length is 0.
            let (start, length) = part;
            match start + length {
                next if length > 0 && next > at => at = next,
                _ => break,
            }
            continue;
        }
        let Some(length) = number(at + 2, 2).filter(|&length| length >= 2) else { break };
        match marker {
            START_OF_TILE_PART => part = (at, number(at + 6, 4).unwrap_or(0)),
            CODING => {
                layers = layers.max(number(at + 6, 2).unwrap_or(1));
                smallest = smallest.min(block(&number, at + 4, at + 9));
            }
            COMPONENT_CODING => smallest = smallest.min(block(&number, at + 5, at + 6)),
            _ => {}
        }
        at += 2 + length;
    }
    let each = SAMPLE + (BLOCK + LAYER * layers).div_ceil(smallest);
    let samples = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(components + 1));
    samples.and_then(|samples| samples.checked_mul(each)).ok_or(Fault::Memory)
}

/// Samples of the smallest blocks, by the place of the style and that of the parameters.
fn block(number: &impl Fn(usize, usize) -> Option<usize>, style: usize, parameters: usize) -> usize {
    let byte = |at: usize| number(at, 1).unwrap_or(0);
    let levels = byte(parameters) + 1;
    let (mut across, mut down) = ((byte(parameters + 1) + 2).min(10), (byte(parameters + 2) + 2).min(10));
    if byte(style) & 1 == 1 {
        // Precincts limit them; each is cut in two both ways, but for the lowest level.
        for level in 0..levels.min(33) {
            let precinct = byte(parameters + 5 + level);
            across = across.min((precinct & 15).saturating_sub(1));
            down = down.min((precinct >> 4).saturating_sub(1));
        }
    }
    1 << (across + down)
}
