//! JPEG 2000: files and bare codestreams.

mod memory;

use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext, Image as Decoder};

use crate::fault::{Fault, broken, unsupported};
use crate::image::{Channels, Image, check};

/// The two markers that every codestream begins with.
const CODESTREAM: [u8; 4] = [0xff, 0x4f, 0xff, 0x51];

/// More codestreams than a file has.
const MAX_STARTS: usize = 8;

pub fn decode(stream: &[u8]) -> Result<Image, Fault> {
    // Wherever the library finds the codestream. There is one, and by chance a few bytes may look like another.
    let starts = stream.windows(4).enumerate().filter(|(_, window)| **window == CODESTREAM);
    for (number, (at, _)) in starts.enumerate() {
        if number == MAX_STARTS {
            return Err(unsupported());
        }
        check(memory::needed(&stream[at + 2..])?)?;
    }
    let settings = DecodeSettings { strict: true, ..DecodeSettings::default() };
    let decoder = Decoder::new(stream, &settings).map_err(|_| broken())?;
    let (height, width) = (decoder.height() as usize, decoder.width() as usize);
    if height == 0 || width == 0 {
        return Err(broken());
    }
    let colors = usize::from(decoder.color_space().num_channels());
    let channels = match (decoder.color_space(), colors) {
        // Without a file around it, four components are colours and alpha.
        (ColorSpace::CMYK, _) if stream.starts_with(&CODESTREAM) => Channels::Rgba,
        (ColorSpace::CMYK, _) => Channels::Cmyk,
        (_, 1 | 2) => Channels::Gray,
        (_, 3) => Channels::Rgb,
        _ => return Err(unsupported()),
    };
    let mut context = DecoderContext::default();
    let decoded = decoder.decode(&mut context).map_err(|_| broken())?;
    let components = decoded.components();
    let mut image = Image::new(height, width, channels)?;
    let count = channels.count();
    if components.len() < count
        || components.iter().any(|component| component.samples().len() != height * width)
    {
        return Err(broken());
    }
    for (channel, component) in components.iter().take(count).enumerate() {
        let (depth, most) = (component.bit_depth(), ((1u64 << component.bit_depth().min(32)) - 1) as f32);
        for (out, &sample) in image.samples.iter_mut().skip(channel).step_by(count).zip(component.samples()) {
            let value = sample.round_ties_even().clamp(0.0, most) as u32;
            // The upper 8 bits of more, or fewer as the upper ones of 8.
            *out = match depth {
                8 => value as u8,
                9.. => (value >> (depth - 8)) as u8,
                _ => (value << (8 - depth)) as u8,
            };
        }
    }
    Ok(image)
}
