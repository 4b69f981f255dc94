//! TIFF; of several images the first one.

mod directory;

use tiff::ColorType;
use tiff::TiffError;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use crate::fault::{Fault, broken, unsupported};
use crate::image::{Channels, Image, LIMIT, check, zeroed};
use crate::jpeg::rgb;
use crate::watch::{Watch, Watched};
use directory::Directory;

/// Strips or tiles that an image may have, beside one for every 8 bytes of the stream: each takes a decompressor of its own.
const CHUNKS: usize = 4096;

/// How often the bytes of a stream may belong to a strip or a tile.
const OVERLAPS: usize = 8;

/// Bytes for each value of a list: as the library reads it, and as it keeps it.
const LISTED: usize = 64;

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let directory = Directory::read(stream)?;
    let (lists, stored) = chunks(&directory, stream.len())?;
    let indices = indices_as_gray(stream, &directory)?;
    let has_palette = indices.is_some();
    let mut limits = Limits::default();
    (limits.decoding_buffer_size, limits.intermediate_buffer_size) = (LIMIT, LIMIT);
    let stream = Watched::new(indices.as_deref().unwrap_or(stream), watch);
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
    let [across, down] = [(Tag::TileWidth, width), (Tag::TileLength, height)]
        .map(|(tag, size)| directory.values(tag).next().map_or(Some(size), |tile| padded(size, tile)));
    let pixels = across.zip(down).and_then(|(across, down)| across.checked_mul(down));
    let needed = pixels.and_then(|pixels| pixels.checked_mul(bytes)?.checked_add(lists));
    let needed = needed.filter(|&needed| needed <= LIMIT).ok_or(Fault::Memory)?;
    // A short stream takes no memory.
    let row = width.saturating_mul(samples).saturating_mul(usize::from(color.bit_depth())).div_ceil(8);
    let growth = directory.values(Tag::Compression).next().map_or(1, growth);
    if row.saturating_mul(height) > stored.saturating_mul(growth) {
        return Err(broken());
    }
    check(needed)?;
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
        if pixel.is_multiple_of(width) {
            watch.poll()?;
        }
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

/// A size in whole tiles.
fn padded(size: usize, tile: usize) -> Option<usize> {
    size.checked_next_multiple_of(tile.max(1))
}

/// Bytes that a byte of a strip becomes at most, by the way of compression.
fn growth(compression: usize) -> usize {
    match compression {
        // No bits of a row are fewer than one.
        FAX4 => 8 * 8192,
        LZW => 4096 * 8 / 12,
        DEFLATE | OLD_DEFLATE => 1032,
        PACK_BITS => 64,
        _ => 1,
    }
}

const FAX4: usize = 4;
const LZW: usize = 5;
const DEFLATE: usize = 8;
const OLD_DEFLATE: usize = 32946;
const PACK_BITS: usize = 32773;

/// The bytes that lists take, and those of all chunks; fails where there are more strips or tiles, or more bytes in them, than the stream
/// has.
fn chunks(directory: &Directory<'_>, bytes: usize) -> Result<(usize, usize), Fault> {
    let mut stored = 0usize;
    for (places, sizes) in
        [(Tag::StripOffsets, Tag::StripByteCounts), (Tag::TileOffsets, Tag::TileByteCounts)]
    {
        let ends = directory.values(places).zip(directory.values(sizes));
        // What a chunk claims behind the end is not there.
        let read = ends.map(|(place, size)| size.min(bytes.saturating_sub(place)));
        let (count, sum) = read.fold((0, 0usize), |(count, sum), size| (count + 1, sum.saturating_add(size)));
        if count > CHUNKS + bytes / 8 || sum > bytes.saturating_mul(OVERLAPS) {
            return Err(Fault::Work);
        }
        stored += sum;
    }
    Ok((directory.listed().checked_mul(LISTED).ok_or(Fault::Memory)?, stored))
}

/// A copy of a stream whose pixels are indices into a palette, which calls them gray: the library reads no others.
fn indices_as_gray(stream: &[u8], directory: &Directory<'_>) -> Result<Option<Vec<u8>>, Fault> {
    let interpretation = Tag::PhotometricInterpretation;
    let entry = directory.entry(interpretation);
    let Some(entry) = entry.filter(|_| directory.values(interpretation).next() == Some(PALETTE)) else {
        return Ok(None);
    };
    let mut copy = zeroed(stream.len(), 0)?;
    copy.copy_from_slice(stream);
    // Both fit a byte, the lowest one of the value.
    let at = entry.at + if stream.starts_with(b"II") { 0 } else { entry.size() - 1 };
    *copy.get_mut(at).ok_or_else(broken)? = GRAY;
    Ok(Some(copy))
}

/// Values of the tag that says what samples stand for.
const PALETTE: usize = 3;
const GRAY: u8 = 1;

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
