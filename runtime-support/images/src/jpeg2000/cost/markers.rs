//! The marker segments of a codestream that say what it costs. Where a segment is not what the library takes it for, the stream
//! counts as broken: no part of it is passed over here and read there.

use crate::fault::{Fault, broken, unsupported};

const CODING: u64 = 0xff52;
const COMPONENT_CODING: u64 = 0xff53;
const LENGTHS: u64 = 0xff55;
const PACKET_LENGTHS: u64 = 0xff58;
const QUANTIZATION: u64 = 0xff5c;
const COMPONENT_QUANTIZATION: u64 = 0xff5d;
const REGION: u64 = 0xff5e;
const ORDER: u64 = 0xff5f;
const PACKED_HEADERS: u64 = 0xff60;
const PACKED_TILE_HEADERS: u64 = 0xff61;
const REGISTRATION: u64 = 0xff63;
const COMMENT: u64 = 0xff64;
const START_OF_TILE_PART: u64 = 0xff90;
const START_OF_DATA: u64 = 0xff93;
const END: u64 = 0xffd9;

/// More ways of coding than a file has: one for each component, and for some tiles.
const MAX_STYLES: usize = 16;

/// A number of `size` bytes.
pub(crate) fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// How a component is cut into parts (A.6.1). Sizes are powers of two, across and down.
#[derive(PartialEq)]
pub(super) struct Style {
    pub levels: u32,
    pub block: [u32; 2],
    /// By resolution.
    pub precincts: Vec<[u32; 2]>,
}

/// What all segments say together: the worst of each.
#[derive(Default)]
pub(super) struct Markers {
    pub styles: Vec<Style>,
    pub layers: u64,
    pub planes: u64,
    /// Bytes of the lists that a tile keeps of each component.
    pub component_bytes: u64,
    pub changes: u64,
    pub tile_parts: u64,
    /// Whether a block may have a segment for each coding pass.
    pub passes_end: bool,
    guards: u64,
    shift: u64,
}

impl Markers {
    /// Of a codestream that begins with the marker of the sizes.
    pub(super) fn read(stream: &[u8], components: usize) -> Result<Markers, Fault> {
        let mut read = Markers::default();
        let number = |at: usize, size: usize| number(stream, at, size).ok_or_else(broken);
        let mut at = 2 + number(2, 2)? as usize;
        // Where the tile-part begins that `at` is in, and its length.
        let mut part = None;
        loop {
            let marker = match number(at, 2) {
                Ok(marker) => marker,
                // Of one that is cut, what is there counts.
                Err(_) => return read.complete(),
            };
            match marker {
                END => return read.complete(),
                0xff30..=0xff3f => {
                    at += 2;
                    continue;
                }
                START_OF_DATA => {
                    let (start, length) = part.take().ok_or_else(broken)?;
                    // The last one may go up to the end.
                    if length == 0 {
                        return read.complete();
                    }
                    let end = start + length;
                    if end < at + 2 {
                        return Err(broken());
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            let length = number(at + 2, 2)? as usize;
            let segment = stream.get(at + 4..(at + 2).saturating_add(length)).ok_or_else(broken)?;
            match marker {
                START_OF_TILE_PART if part.is_none() && length == 10 => {
                    part = Some((at, number(at + 6, 4)? as usize));
                    read.tile_parts += 1;
                }
                _ => read.segment(marker, segment, part.is_some(), components)?,
            }
            at += 2 + length;
        }
    }

    fn complete(mut self) -> Result<Markers, Fault> {
        // Formula E-2.
        self.planes = (self.guards + self.planes + self.shift).clamp(1, 32);
        Ok(self)
    }

    fn segment(
        &mut self,
        marker: u64,
        segment: &[u8],
        in_tile: bool,
        components: usize,
    ) -> Result<(), Fault> {
        let byte = |at: usize| number(segment, at, 1).ok_or_else(broken);
        match marker {
            CODING => {
                self.layers = self.layers.max(number(segment, 2, 2).ok_or_else(broken)?);
                self.style(segment.first(), segment.get(5..))
            }
            COMPONENT_CODING => self.style(segment.get(1), segment.get(2..)),
            QUANTIZATION => self.quantization(segment),
            COMPONENT_QUANTIZATION => self.quantization(segment.get(1..).ok_or_else(broken)?),
            REGION if segment.len() == 3 => {
                self.shift = self.shift.max(byte(2)?);
                Ok(())
            }
            ORDER => {
                self.changes += segment.len() as u64 / 7;
                if components < 257 { Ok(()) } else { Err(unsupported()) }
            }
            COMMENT => Ok(()),
            LENGTHS | PACKED_HEADERS | REGISTRATION if !in_tile => Ok(()),
            PACKET_LENGTHS | PACKED_TILE_HEADERS if in_tile => Ok(()),
            _ => Err(broken()),
        }
    }

    /// The parameters of coding (table A.15), which end the segment.
    fn style(&mut self, flags: Option<&u8>, parameters: Option<&[u8]>) -> Result<(), Fault> {
        let (Some(flags), Some([levels, across, down, style, _, precincts @ ..])) = (flags, parameters)
        else {
            return Err(broken());
        };
        let listed = flags & 1 == 1;
        let resolutions = usize::from(*levels) + 1;
        if *levels > 32 || *across > 8 || *down > 8 || precincts.len() != if listed { resolutions } else { 0 }
        {
            return Err(broken());
        }
        let precinct = |at: usize| match listed {
            true => [u32::from(precincts[at] & 15), u32::from(precincts[at] >> 4)],
            false => [15, 15],
        };
        let style_of_parts = Style {
            levels: u32::from(*levels),
            block: [u32::from(*across) + 2, u32::from(*down) + 2],
            precincts: (0..resolutions).map(precinct).collect(),
        };
        // Bits for passes without arithmetic coding, and for those that end a segment.
        self.passes_end |= style & 5 != 0;
        if !self.styles.contains(&style_of_parts) {
            self.styles.push(style_of_parts);
        }
        if self.styles.len() > MAX_STYLES { Err(unsupported()) } else { Ok(()) }
    }

    /// The exponents of step sizes (table A.28), which end the segment.
    fn quantization(&mut self, segment: &[u8]) -> Result<(), Fault> {
        let [style, steps @ ..] = segment else { return Err(broken()) };
        let exponent = |byte: &u8| u64::from(byte >> 3);
        let most = match style & 31 {
            0 => steps.iter().map(exponent).max(),
            1 if steps.len() == 2 => steps.first().map(exponent).map(|exponent| exponent + 1),
            2 if steps.len().is_multiple_of(2) => steps.iter().step_by(2).map(exponent).max(),
            _ => return Err(broken()),
        };
        self.planes = self.planes.max(most.unwrap_or(0));
        self.guards = self.guards.max(u64::from(style >> 5));
        self.component_bytes = self.component_bytes.max(8 * steps.len() as u64 + 66);
        Ok(())
    }
}
