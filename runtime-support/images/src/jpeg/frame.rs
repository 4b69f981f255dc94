//! A frame: the sizes of its components, and their coefficients or samples.

use super::idct::idct;
use crate::fault::{Fault, broken, unsupported};
use crate::image::{check, zeroed};
use crate::watch::Watch;

pub(super) struct Frame {
    pub width: usize,
    pub height: usize,
    pub progressive: bool,
    pub components: Vec<Component>,
    pub max_h: usize,
    pub max_v: usize,
    /// Groups of blocks, one for each component or more.
    pub mcus_across: usize,
    pub mcus_down: usize,
}

pub(super) struct Component {
    pub id: u8,
    /// Samples relative to those of the other components.
    pub h: usize,
    pub v: usize,
    pub quantization: usize,
    /// The table with this number when the first scan of the component began.
    pub latched: Option<[u16; 64]>,
    /// Samples that the image has; blocks may have more.
    pub width: usize,
    pub height: usize,
    pub blocks_across: usize,
    /// Of a progressive frame, all blocks.
    pub coefficients: Vec<[i16; 64]>,
    /// Of each of them, a bit for each coefficient but the first that may not be 0, in the order of the stream: a scan that
    /// refines passes over the others at once.
    pub filled: Vec<u64>,
    /// Of other frames, what the blocks become at once.
    pub samples: Vec<u8>,
}

/// The samples of a component.
pub(super) struct Plane<'f> {
    samples: &'f [u8],
    stride: usize,
    pub width: usize,
    pub height: usize,
}

impl Plane<'_> {
    pub(super) fn row(&self, y: usize) -> &[u8] {
        &self.samples[y * self.stride..][..self.width]
    }
}

impl Frame {
    /// By the content of a start-of-frame segment, in a stream of `bytes`.
    pub(super) fn new(segment: &[u8], progressive: bool, bytes: usize) -> Result<Frame, Fault> {
        let [precision, h0, h1, w0, w1, count, specs @ ..] = segment else { return Err(broken()) };
        let (height, width) = (u16::from_be_bytes([*h0, *h1]), u16::from_be_bytes([*w0, *w1]));
        if *precision != 8 || height == 0 {
            return Err(unsupported());
        }
        let specs = specs.as_chunks::<3>().0;
        if width == 0 || !matches!(count, 1 | 3 | 4) || specs.len() != usize::from(*count) {
            return Err(broken());
        }
        let (width, height) = (usize::from(width), usize::from(height));
        let factors = |spec: &[u8; 3]| (usize::from(spec[1] >> 4), usize::from(spec[1] & 15));
        if specs.iter().any(|spec| {
            !(1..=4).contains(&factors(spec).0) || !(1..=4).contains(&factors(spec).1) || spec[2] > 3
        }) {
            return Err(broken());
        }
        let max_h = specs.iter().map(|spec| factors(spec).0).max().unwrap_or(1);
        let max_v = specs.iter().map(|spec| factors(spec).1).max().unwrap_or(1);
        let (mcus_across, mcus_down) = (width.div_ceil(8 * max_h), height.div_ceil(8 * max_v));
        // Samples in whole blocks, coefficients of 2 bytes and a bit, and pixels.
        let samples = 64
            * mcus_across
            * mcus_down
            * specs.iter().map(|spec| factors(spec).0 * factors(spec).1).sum::<usize>();
        // A block takes a bit at least, so that a short stream takes no memory.
        if samples / 64 > 8 * bytes {
            return Err(broken());
        }
        check(samples * if progressive { 3 } else { 1 } + samples / 8 + 4 * width * height)?;
        let mut components = vec![];
        for spec in specs {
            let (h, v) = factors(spec);
            // Others are in no file that libjpeg reads.
            if !max_h.is_multiple_of(h) || !max_v.is_multiple_of(v) {
                return Err(unsupported());
            }
            let (blocks_across, blocks_down) = (mcus_across * h, mcus_down * v);
            let blocks = blocks_across * blocks_down;
            components.push(Component {
                id: spec[0],
                h,
                v,
                quantization: usize::from(spec[2]),
                latched: None,
                width: (width * h).div_ceil(max_h),
                height: (height * v).div_ceil(max_v),
                blocks_across,
                coefficients: zeroed(if progressive { blocks } else { 0 }, [0; 64])?,
                filled: zeroed(if progressive { blocks } else { 0 }, 0)?,
                samples: zeroed(64 * blocks, 0)?,
            });
        }
        Ok(Frame { width, height, progressive, components, max_h, max_v, mcus_across, mcus_down })
    }

    /// The width in whole blocks: what a row is upsampled to.
    pub(super) fn padded_width(&self) -> usize {
        8 * self.max_h * self.mcus_across
    }

    /// Blocks of all components.
    pub(super) fn blocks(&self) -> usize {
        self.mcus_across * self.mcus_down * self.components.iter().map(|part| part.h * part.v).sum::<usize>()
    }

    /// Computes what is left of the samples.
    pub(super) fn finish(&mut self, watch: &Watch<'_>) -> Result<(), Fault> {
        for component in &mut self.components {
            // A component without a scan has no table.
            let quantization = component.latched.ok_or_else(broken)?;
            let coefficients = std::mem::take(&mut component.coefficients);
            for (y, row) in coefficients.chunks(component.blocks_across).enumerate() {
                watch.poll()?;
                row.iter().enumerate().for_each(|(x, block)| component.set(x, y, block, &quantization));
            }
        }
        Ok(())
    }

    pub(super) fn planes(&self) -> Vec<Plane<'_>> {
        let planes = self.components.iter().map(|component| Plane {
            samples: &component.samples,
            stride: 8 * component.blocks_across,
            width: component.width,
            height: component.height,
        });
        planes.collect()
    }
}

impl Component {
    /// A block becomes samples.
    pub(super) fn set(&mut self, x: usize, y: usize, block: &[i16; 64], quantization: &[u16; 64]) {
        let stride = 8 * self.blocks_across;
        idct(block, quantization, &mut self.samples[8 * (y * stride + x)..], stride);
    }
}
