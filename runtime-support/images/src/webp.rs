//! WebP; of an animation the first frame.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use crate::fault::{Fault, broken};
use crate::image::{Channels, Image, LIMIT, check};

pub fn decode(stream: &[u8]) -> Result<Image, Fault> {
    let mut decoder = WebPDecoder::new(Cursor::new(stream)).map_err(fault)?;
    decoder.set_memory_limit(LIMIT);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    // Pixels of 4 bytes, and samples of 8 bits of them once more.
    check(height.checked_mul(width).and_then(|pixels| pixels.checked_mul(12)).ok_or(Fault::Memory)?)?;
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
