//! PNG.

use png::{ColorType, DecodeOptions, Decoder, Limits, Transformations};

use crate::fault::{Fault, broken};
use crate::image::{Channels, Image, LIMIT, check};
use crate::watch::{Watch, Watched};

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let mut options = DecodeOptions::default();
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Watched::new(stream, watch), options);
    decoder.set_limits(Limits { bytes: LIMIT });
    // Palettes become colours, fewer bits 8, and of 16 bits the upper ones are taken.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(fault)?;
    let (height, width) = (header.height as usize, header.width as usize);
    let bits = header.color_type.samples() * header.bit_depth as usize;
    let pixels = height.checked_mul(width).ok_or(Fault::Memory)?;
    // Pixels as they become, and rows as they are: two of each, and one that is on its way.
    let row = width.checked_mul(bits).ok_or(Fault::Memory)?.div_ceil(8) + 1;
    let rows = row.checked_mul(3).and_then(|rows| rows.checked_add(width.checked_mul(8)?));
    let bytes = pixels.checked_mul(4).and_then(|pixels| pixels.checked_add(rows?));
    check(bytes.ok_or(Fault::Memory)?)?;
    // A byte of the stream becomes 1032 at most: a short stream takes no memory.
    if pixels.saturating_mul(bits) / (8 * 1032) > stream.len() {
        return Err(broken());
    }
    let mut reader = decoder.read_info().map_err(fault)?;
    // The library indexes a part of a colour, and colours beyond what 8 bits choose.
    let palette = reader.info().palette.as_deref();
    if palette.is_some_and(|palette| !palette.len().is_multiple_of(3) || palette.len() > 3 * 256) {
        return Err(broken());
    }
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
