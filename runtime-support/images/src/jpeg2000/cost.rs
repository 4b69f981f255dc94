//! What a codestream costs while it is decoded: memory and work. The library has no limit for either, and streams of few bytes may
//! have many tiles, components, resolutions, precincts, code blocks and layers, and each takes some. (Numbers of sections
//! and formulas are those of ITU-T T.800.)

mod markers;

use crate::fault::{Fault, broken, unsupported};
use crate::image::LIMIT;
pub(crate) use markers::number;
use markers::{Markers, Style};

/// Bytes of each sample of a component: itself, its coefficient, and two copies.
const SAMPLE: u64 = 12;

/// Bytes that are known of each tile, and of each of its components; of the parts of a tile below, with what a growing list leaves
/// behind.
const TILE: u64 = 400;
const COMPONENT: u64 = 200;
const BAND: u64 = 250;
const PRECINCT: u64 = 800;
const BLOCK: u64 = 700;
const LAYER: u64 = 72;
const SEGMENT: u64 = 120;

/// Coding passes that a code block has at most.
const PASSES: u64 = 94;

/// Tiles that have a number of their own.
const MAX_TILES: u64 = 65535;

/// Parts of tiles (bands, precincts, code blocks, layers) that all tiles may have together, beside some for each byte of the
/// stream. An image of 100 million pixels in ordinary blocks has a tenth.
const PARTS: u64 = 4 << 20;
const PARTS_PER_BYTE: u64 = 16;

/// Samples, each counted for every bit plane, beside some for each byte of the stream. The arithmetic decoder goes on behind
/// the end of its bytes, so that the cost of a block depends on its planes, not on its bytes.
const PLANES: u64 = 512 << 20;
const PLANES_PER_BYTE: u64 = 2048;

/// Changes of the order of packets. Each lists all packets anew, in every tile.
const MAX_CHANGES: u64 = 32;

/// Fails where a codestream takes more memory or work than it may. `channels` is the number
/// that a palette around it makes. Gives about the bytes that it takes.
pub(crate) fn check(markers: &[u8], channels: u64) -> Result<usize, Fault> {
    let size = Size::read(markers)?;
    let tiles = size.tiles_across().saturating_mul(size.tiles_down());
    if tiles > MAX_TILES {
        return Err(Fault::Memory);
    }
    let components = size.components.len() as u64;
    let pixels = size.width().saturating_mul(size.height());
    let samples = pixels.saturating_mul(components.max(channels) + components + 1);
    let memory = samples.saturating_mul(SAMPLE);
    let read = Markers::read(markers, size.components.len())?;
    let known = tiles.saturating_mul(TILE + components * (COMPONENT + read.component_bytes));
    let memory = memory.saturating_add(known);
    // Before tiles are counted one by one.
    if memory > LIMIT as u64 {
        return Err(Fault::Memory);
    }
    // Every tile has a part in the stream (B.3), which takes 14 bytes.
    if read.tile_parts < tiles {
        return Err(broken());
    }
    let bytes = markers.len() as u64;
    let planes = pixels.saturating_mul(components).saturating_mul(read.planes);
    if read.changes > MAX_CHANGES || planes > PLANES.saturating_add(PLANES_PER_BYTE * bytes) {
        return Err(Fault::Work);
    }
    let (mut most, mut work) = (0, 0u64);
    for tile in 0..tiles {
        let parts = size.tile(tile, &read.styles);
        let rounds = 1 + read.changes;
        most = most.max(parts.memory(&read, bytes, rounds));
        work = work.saturating_add(parts.count(read.layers).saturating_mul(rounds));
        if work > PARTS.saturating_add(PARTS_PER_BYTE * bytes) {
            return Err(Fault::Work);
        }
    }
    usize::try_from(memory.saturating_add(most)).map_err(|_| Fault::Memory)
}

/// The sizes of the image, its tiles and its components (A.5.1).
struct Size {
    /// Ends and begins of the image, then sizes and begins of tiles, each across and down, on the reference grid.
    end: [u64; 2],
    start: [u64; 2],
    tile: [u64; 2],
    first: [u64; 2],
    /// How much coarser each component is, across and down.
    components: Vec<[u64; 2]>,
}

impl Size {
    fn read(markers: &[u8]) -> Result<Size, Fault> {
        let number = |at: usize, bytes: usize| markers::number(markers, at, bytes).ok_or_else(broken);
        let pair = |at: usize| Ok([number(at, 4)?, number(at + 4, 4)?]);
        let count = number(38, 2)? as usize;
        // Colours and an alpha channel.
        if count > 5 {
            return Err(unsupported());
        }
        let components = (0..count).map(|at| Ok([number(41 + 3 * at, 1)?, number(42 + 3 * at, 1)?]));
        let size = Size {
            end: pair(6)?,
            start: pair(14)?,
            tile: pair(22)?,
            first: pair(30)?,
            components: components.collect::<Result<_, Fault>>()?,
        };
        let valid = |axis: usize| {
            size.tile[axis] > 0
                && size.first[axis] <= size.start[axis]
                && size.start[axis] < size.end[axis]
                && size.first[axis] + size.tile[axis] > size.start[axis]
        };
        let coarse = size.components.iter().flatten().any(|&factor| factor == 0);
        if number(2, 2)? != 38 + 3 * count as u64 || count == 0 || coarse || !valid(0) || !valid(1) {
            return Err(broken());
        }
        Ok(size)
    }

    fn tiles_across(&self) -> u64 {
        (self.end[0] - self.first[0]).div_ceil(self.tile[0])
    }

    fn tiles_down(&self) -> u64 {
        (self.end[1] - self.first[1]).div_ceil(self.tile[1])
    }

    fn width(&self) -> u64 {
        self.length(0)
    }

    fn height(&self) -> u64 {
        self.length(1)
    }

    /// Where all components are equally coarse, the image is.
    fn length(&self, axis: usize) -> u64 {
        let factors = || self.components.iter().map(|component| component[axis]);
        let across = self.components.windows(2).all(|pair| pair[0] == pair[1]);
        let factor = if across { factors().next().unwrap_or(1) } else { 1 };
        self.end[axis].div_ceil(factor) - self.start[axis].div_ceil(factor)
    }

    /// The parts of a tile by number, in the style that has the most.
    fn tile(&self, number: u64, styles: &[Style]) -> Parts {
        let place = [number % self.tiles_across(), number / self.tiles_across()];
        // Formulas B-7 to B-10.
        let range = |axis: usize| {
            let start = self.first[axis] + place[axis] * self.tile[axis];
            [start.max(self.start[axis]), (start + self.tile[axis]).min(self.end[axis])]
        };
        let tile = [range(0), range(1)];
        let mut sum = Parts::default();
        for component in &self.components {
            let ranges = [0, 1].map(|axis| tile[axis].map(|end| end.div_ceil(component[axis])));
            let parts = styles.iter().map(|style| Parts::of(ranges, style));
            sum = sum.add(&parts.reduce(|a, b| a.most(&b)).unwrap_or_default());
        }
        sum
    }
}

/// How many parts a tile has.
#[derive(Default)]
struct Parts {
    bands: u64,
    precincts: u64,
    blocks: u64,
}

impl Parts {
    /// Of one component, whose samples have these ranges across and down.
    fn of(ranges: [[u64; 2]; 2], style: &Style) -> Parts {
        let mut parts = Parts::default();
        for resolution in 0..=style.levels {
            let precinct = style.precincts[resolution as usize];
            // Formulas B-14 and B-16.
            let precincts = [0, 1].map(|axis| {
                let [start, end] = ranges[axis].map(|end| end.div_ceil(1 << (style.levels - resolution)));
                if start == end { 0 } else { end.div_ceil(1 << precinct[axis]) - (start >> precinct[axis]) }
            });
            let precincts = precincts[0].saturating_mul(precincts[1]);
            // Above the first resolution there are three bands, with high frequencies across, down or both.
            let bands = if resolution == 0 { &[[0, 0]][..] } else { &[[1, 0], [0, 1], [1, 1]] };
            for high in bands {
                let blocks = [0, 1].map(|axis| {
                    let level = if resolution == 0 { style.levels } else { style.levels + 1 - resolution };
                    // Formulas B-15, B-17 and B-18.
                    let less = if level == 0 { 0 } else { high[axis] << (level - 1) };
                    let [start, end] = ranges[axis].map(|end| end.saturating_sub(less).div_ceil(1 << level));
                    let side =
                        style.block[axis].min(precinct[axis].saturating_sub(u32::from(resolution > 0)));
                    if start == end { 0 } else { end.div_ceil(1 << side) - (start >> side) }
                });
                parts.bands += 1;
                parts.precincts = parts.precincts.saturating_add(precincts);
                parts.blocks = parts.blocks.saturating_add(blocks[0].saturating_mul(blocks[1]));
            }
        }
        parts
    }

    fn add(&self, other: &Parts) -> Parts {
        Parts {
            bands: self.bands + other.bands,
            precincts: self.precincts.saturating_add(other.precincts),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }

    fn most(&self, other: &Parts) -> Parts {
        Parts {
            bands: self.bands.max(other.bands),
            precincts: self.precincts.max(other.precincts),
            blocks: self.blocks.max(other.blocks),
        }
    }

    fn count(&self, layers: u64) -> u64 {
        let blocks = self.blocks.saturating_mul(1 + layers);
        self.bands.saturating_add(self.precincts.saturating_mul(1 + layers)).saturating_add(blocks)
    }

    /// Bytes of a tile in a stream of `bytes`, whose packets are listed `rounds` times.
    fn memory(&self, read: &Markers, bytes: u64, rounds: u64) -> u64 {
        let precinct = PRECINCT.saturating_mul(rounds) + LAYER * read.layers * (rounds - 1);
        // A segment takes three bits of the stream at least.
        let segments = if read.passes_end { PASSES } else { read.layers };
        let segments = self.blocks.saturating_mul(segments).min(3 * bytes).saturating_mul(SEGMENT);
        let blocks = self.blocks.saturating_mul(BLOCK + LAYER * read.layers);
        let parts = (BAND * self.bands).saturating_add(self.precincts.saturating_mul(precinct));
        parts.saturating_add(blocks).saturating_add(segments)
    }
}
