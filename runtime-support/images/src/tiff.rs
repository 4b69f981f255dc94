//! TIFF; of several images the first one.

use std::io::Cursor;

use tiff::ColorType;
use tiff::TiffError;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use crate::fault::{Fault, broken, unsupported};
use crate::image::{Channels, Image, LIMIT, check, zeroed};
use crate::jpeg::rgb;

pub fn decode(stream: &[u8]) -> Result<Image, Fault> {
    let indices = indices_as_gray(stream);
    let has_palette = indices.is_some();
    let mut limits = Limits::default();
    (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (LIMIT, LIMIT);
    let stream = Cursor::new(indices.as_deref().unwrap_or(stream));
    let mut decoder = Decoder::new(stream).map_err(fault)?.with_limits(limits);
    let (width, height) = decoder.dimensions().map_err(fault)?;
    let (width, height) = (width as usize, height as usize);
    let color = decoder.colortype().map_err(fault)?;
    if width == 0 || height == 0 {
        return Err(broken());
    }
    // The samples as they are stored, and as they become.
    let samples = usize::from(color.num_samples());
    let bytes = samples * usize::from(color.bit_depth()).div_ceil(8) + samples + 4;
    check(width.checked_mul(height).and_then(|pixels| pixels.checked_mul(bytes)).ok_or(Fault::Memory)?)?;
    // A palette's colours are all reds, all greens, all blues, of 16 bits.
    let palette = match has_palette {
        true => decoder.get_tag_u16_vec(Tag::ColorMap).map_err(fault)?,
        false => vec![],
    };
    let mut stored = DecodingResult::U8(vec![]);
    let layout = decoder.read_image_to_buffer(&mut stored).map_err(fault)?;
    let planes = layout.planes.max(1);
    let bytes = eights(&stored, color.bit_depth(), width * samples / planes, height * planes, !has_palette)?;
    let pixels = width * height;
    if bytes.len() < pixels * samples {
        return Err(broken());
    }
    let sample = |pixel: usize, channel: usize| match planes {
        1 => bytes[pixel * samples + channel],
        _ => bytes[channel * pixels + pixel],
    };
    let (channels, kept) = match color {
        ColorType::Gray(1..=8) if has_palette => (Channels::Rgb, 3),
        _ if has_palette => return Err(unsupported()),
        ColorType::Gray(_) | ColorType::GrayA(_) => (Channels::Gray, 1),
        ColorType::Multiband { num_samples: 2.., .. } => (Channels::Gray, 1),
        ColorType::RGB(_) | ColorType::RGBA(_) => (Channels::Rgb, 3),
        ColorType::CMYK(_) | ColorType::CMYKA(_) => (Channels::Cmyk, 4),
        ColorType::YCbCr(8) => (Channels::Rgb, 3),
        _ => return Err(unsupported()),
    };
    let mut image = Image::new(height, width, channels)?;
    for (pixel, out) in image.samples.chunks_mut(kept).enumerate() {
        match color {
            _ if has_palette => {
                let (index, colors) = (usize::from(sample(pixel, 0)), palette.len() / 3);
                for (channel, out) in out.iter_mut().enumerate() {
                    let at = Some(channel * colors + index).filter(|_| index < colors);
                    *out = at.and_then(|at| palette.get(at)).map_or(0, |&value| (value >> 8) as u8);
                }
            }
            ColorType::YCbCr(_) => {
                out.copy_from_slice(&rgb(sample(pixel, 0), sample(pixel, 1), sample(pixel, 2)));
            }
            _ => out.iter_mut().enumerate().for_each(|(channel, out)| *out = sample(pixel, channel)),
        }
    }
    Ok(image)
}

/// A copy of a stream whose pixels are indices into a palette, which calls them gray: the library reads no others.
fn indices_as_gray(stream: &[u8]) -> Option<Vec<u8>> {
    let little = stream.starts_with(b"II");
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = stream.get(at..at.checked_add(size)?)?;
        let joined = |number: usize, byte: &u8| number << 8 | usize::from(*byte);
        Some(if little { bytes.iter().rev().fold(0, joined) } else { bytes.iter().fold(0, joined) })
    };
    // The first directory: its place, and the bytes of the number of entries, of an entry, and before its value.
    let (directory, head, entry, before) = match number(2, 2)? {
        42 => (number(4, 4)?, 2, 12, 8),
        43 => (number(8, 8)?, 8, 20, 12),
        _ => return None,
    };
    let count = number(directory, head)?;
    let mut entries = (0..count).map_while(|at| {
        let at = at.checked_mul(entry)?.checked_add(directory)?.checked_add(head)?;
        Some((at, number(at, 2)?))
    });
    let (at, _) = entries.find(|&(_, tag)| tag == usize::from(Tag::PhotometricInterpretation.to_u16()))?;
    if number(at + before, 2)? != PALETTE {
        return None;
    }
    let mut copy = zeroed(stream.len(), 0).ok()?;
    copy.copy_from_slice(stream);
    let gray = GRAY.to_le_bytes();
    copy.get_mut(at + before..)?
        .first_chunk_mut()
        .map(|out| *out = if little { gray } else { [gray[1], gray[0]] })?;
    Some(copy)
}

/// Values of the tag that says what samples stand for.
const PALETTE: usize = 3;
const GRAY: u16 = 1;

/// Samples of 8 bits: of unsigned ones of 16 bits the upper half, of others what is within 0 to 255. Fewer bits are `across` to a
/// row, packed, and become brighter unless they are indices.
fn eights(
    stored: &DecodingResult,
    depth: u8,
    across: usize,
    rows: usize,
    brightens: bool,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![];
    let clipped = |value: f64| value.clamp(0.0, 255.0) as u8;
    match stored {
        DecodingResult::U8(samples) if depth < 8 => {
            let depth = usize::from(depth);
            if !matches!(depth, 1 | 2 | 4) {
                return Err(unsupported());
            }
            let (most, per) = ((1u8 << depth) - 1, 8 / depth);
            bytes.reserve(across * rows);
            for row in samples.chunks((across * depth).div_ceil(8).max(1)).take(rows) {
                for x in 0..across {
                    let packed = *row.get(x / per).ok_or_else(broken)?;
                    let value = packed >> (8 - depth * (x % per + 1)) & most;
                    bytes.push(if brightens { value * (255 / most) } else { value });
                }
            }
        }
        DecodingResult::U8(samples) => bytes.extend(samples),
        DecodingResult::U16(samples) => bytes.extend(samples.iter().map(|&value| (value >> 8) as u8)),
        DecodingResult::U32(samples) => bytes.extend(samples.iter().map(|&value| value.min(255) as u8)),
        DecodingResult::U64(samples) => bytes.extend(samples.iter().map(|&value| value.min(255) as u8)),
        DecodingResult::I8(samples) => bytes.extend(samples.iter().map(|&value| value.max(0) as u8)),
        DecodingResult::I16(samples) => bytes.extend(samples.iter().map(|&value| value.clamp(0, 255) as u8)),
        DecodingResult::I32(samples) => bytes.extend(samples.iter().map(|&value| value.clamp(0, 255) as u8)),
        DecodingResult::I64(samples) => bytes.extend(samples.iter().map(|&value| value.clamp(0, 255) as u8)),
        DecodingResult::F32(samples) => bytes.extend(samples.iter().map(|&value| clipped(f64::from(value)))),
        DecodingResult::F64(samples) => bytes.extend(samples.iter().map(|&value| clipped(value))),
        DecodingResult::F16(samples) => bytes.extend(samples.iter().map(|value| clipped(value.to_f64()))),
    }
    Ok(bytes)
}

fn fault(error: TiffError) -> Fault {
    match error {
        TiffError::LimitsExceeded => Fault::Memory,
        _ => broken(),
    }
}
