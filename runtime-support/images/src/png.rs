//! PNG.

use std::io::Cursor;

use png::{ColorType, DecodeOptions, Decoder, Limits, Transformations};

use crate::fault::{Fault, broken};
use crate::image::{Channels, Image, LIMIT, check};

pub fn decode(stream: &[u8]) -> Result<Image, Fault> {
    let mut options = DecodeOptions::default();
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(stream), options);
    decoder.set_limits(Limits { bytes: LIMIT });
    // Palettes become colours, fewer bits 8, and of 16 bits the upper ones are taken.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(fault)?;
    let (height, width) = (header.height as usize, header.width as usize);
    let pixels = height.checked_mul(width).ok_or(Fault::Memory)?;
    check(pixels.checked_mul(4).ok_or(Fault::Memory)?)?;
    // A byte of the stream becomes 1032 at most, of 8 pixels or fewer each: a short stream takes no memory.
    if pixels / (8 * 1032) > stream.len() {
        return Err(broken());
    }
    let mut reader = decoder.read_info().map_err(fault)?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => Channels::Gray,
        ColorType::GrayscaleAlpha => Channels::GrayAlpha,
        ColorType::Rgb => Channels::Rgb,
        ColorType::Rgba => Channels::Rgba,
        ColorType::Indexed => return Err(broken()),
    };
    let mut image = Image::new(height, width, channels)?;
    if reader.output_buffer_size() != Some(image.samples.len()) {
        return Err(broken());
    }
    reader.next_frame(&mut image.samples).map_err(fault)?;
    Ok(image)
}

fn fault(error: png::DecodingError) -> Fault {
    match error {
        png::DecodingError::LimitsExceeded => Fault::Memory,
        _ => broken(),
    }
}
