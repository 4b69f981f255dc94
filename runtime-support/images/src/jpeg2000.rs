//! JPEG 2000: files and bare codestreams. The library decodes in one go: the flag of a run is polled before and after it.

mod boxes;
pub(crate) mod cost;

use hayro_jpeg2000::{ColorSpace, DecodeSettings, DecoderContext, Image as Decoder};

use crate::fault::{Fault, broken, unsupported};
use crate::image::{Channels, Image, check};
use crate::watch::Watch;
use boxes::Boxes;

/// The two markers that every codestream begins with.
const CODESTREAM: [u8; 4] = [0xff, 0x4f, 0xff, 0x51];

/// More codestreams than a file has. The library decodes one of them.
const MAX_CODESTREAMS: usize = 8;

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    if stream.starts_with(&CODESTREAM) {
        check(cost::check(&stream[2..], 0)?)?;
    } else {
        let channels = channels_of_palette(stream);
        let codestreams = || Boxes::of(stream).filter(|(kind, _)| *kind == b"jp2c");
        if codestreams().count() > MAX_CODESTREAMS {
            return Err(unsupported());
        }
        for (_, codestream) in codestreams() {
            check(cost::check(codestream.get(2..).ok_or_else(broken)?, channels)?)?;
        }
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
    watch.poll()?;
    let decoded = decoder.decode(&mut context).map_err(|_| broken())?;
    watch.poll()?;
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

/// Channels that a palette makes of one component: the columns of the palette, or what the box about components lists.
fn channels_of_palette(stream: &[u8]) -> u64 {
    let inner =
        Boxes::of(stream).filter(|(kind, _)| *kind == b"jp2h").flat_map(|(_, inner)| Boxes::of(inner));
    let channels = inner.map(|(kind, content)| match kind {
        b"pclr" => content.get(2).map_or(0, |&columns| u64::from(columns)),
        b"cmap" => content.len() as u64 / 4,
        _ => 0,
    });
    channels.max().unwrap_or(0)
}
