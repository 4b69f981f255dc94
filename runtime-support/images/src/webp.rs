//! WebP; of an animation the first frame.

use image_webp::{DecodingError, WebPDecoder};

use crate::fault::{Fault, broken};
use crate::image::{Channels, Image, LIMIT, available, check};
use crate::watch::{Watch, Watched};

/// Bytes for a pixel: as it is given, as it is decoded, an alpha channel with what it takes for itself, and transforms; of an
/// animation also the canvas, and a frame.
const PIXEL: usize = 14;
const PIXEL_OF_FRAME: usize = 22;

/// Bytes of Huffman codes that a byte of a lossless image can stand for, and the most of all: 65536 groups of five codes, each with
/// a table of 1024 words. An ordinary image has few; that there is memory for the worst is all that is asked.
const CODE: usize = 350;
const CODES: usize = 65536 * 5 * 4400;

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let mut decoder = WebPDecoder::new(Watched::new(stream, watch)).map_err(fault)?;
    decoder.set_memory_limit(LIMIT);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    let pixels = height.checked_mul(width).ok_or(Fault::Memory)?;
    let needed = pixels.checked_mul(if decoder.is_animated() { PIXEL_OF_FRAME } else { PIXEL });
    let needed = needed.ok_or(Fault::Memory)?;
    check(needed)?;
    available(needed + (CODE * stream.len()).min(CODES))?;
    let channels = if decoder.has_alpha() { Channels::Rgba } else { Channels::Rgb };
    let mut image = Image::new(height, width, channels)?;
    if decoder.output_buffer_size() != Some(image.samples.len()) {
        return Err(broken());
    }
    match decoder.is_animated() {
        true => decoder.read_frame(&mut image.samples).map(drop),
        false => decoder.read_image(&mut image.samples),
    }
    .map_err(fault)?;
    Ok(image)
}

fn fault(error: DecodingError) -> Fault {
    match error {
        DecodingError::MemoryLimitExceeded => Fault::Memory,
        _ => broken(),
    }
}
