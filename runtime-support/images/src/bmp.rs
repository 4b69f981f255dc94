//! BMP: the bitmaps of Windows and OS/2, with palettes, masks and run lengths.

use crate::fault::{Fault, broken, unsupported};
use crate::image::{Channels, Image, check};
use crate::watch::Watch;

/// The contents of the headers.
struct Header<'s> {
    width: usize,
    height: usize,
    /// Whether the first row is the lowest one.
    rises: bool,
    bits: usize,
    compression: u32,
    palette: Vec<[u8; 3]>,
    /// Where red, green and blue are in a pixel.
    masks: [u32; 3],
    data: &'s [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(broken)?;
    Ok(u32::from(u16::from_le_bytes(*bytes)))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Fault> {
    let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(broken)?;
    Ok(u32::from_le_bytes(*bytes))
}

/// The values of `compression` that are read.
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const MASKS: u32 = 3;

impl Header<'_> {
    fn read(stream: &[u8]) -> Result<Header<'_>, Fault> {
        let start = u32_at(stream, 10)? as usize;
        let size = u32_at(stream, 14)? as usize;
        let core = size == 12;
        if !core && !(40..=124).contains(&size) {
            return Err(unsupported());
        }
        let (width, height, bits) = match core {
            true => (u16_at(stream, 18)? as i32, u16_at(stream, 20)? as i32, u16_at(stream, 24)?),
            false => (u32_at(stream, 18)? as i32, u32_at(stream, 22)? as i32, u16_at(stream, 28)?),
        };
        let compression = if core { 0 } else { u32_at(stream, 30)? };
        let bits = bits as usize;
        let known = match compression {
            0 => matches!(bits, 1 | 4 | 8 | 16 | 24 | 32),
            RLE8 => bits == 8,
            RLE4 => bits == 4,
            MASKS => matches!(bits, 16 | 32),
            _ => false,
        };
        if !known {
            return Err(unsupported());
        }
        if width <= 0 || height == 0 || height == i32::MIN {
            return Err(broken());
        }
        let mut masks = match bits {
            16 => [0x7c00, 0x3e0, 0x1f],
            _ => [0xff_0000, 0xff00, 0xff],
        };
        let mut behind = 14 + size;
        if compression == MASKS {
            // Behind the oldest header, inside all others.
            for (at, mask) in masks.iter_mut().enumerate() {
                *mask = u32_at(stream, 54 + 4 * at)?;
            }
            behind = behind.max(66);
        }
        let mut palette = vec![];
        if bits <= 8 {
            let named = if core { 0 } else { u32_at(stream, 46)? as usize };
            let colors = if named == 0 { 1 << bits } else { named.min(1 << bits) };
            let entry = if core { 3 } else { 4 };
            // A short palette ends where the pixels begin.
            let entries = stream.get(behind..start.min(stream.len())).ok_or_else(broken)?;
            palette
                .extend(entries.chunks_exact(entry).take(colors).map(|color| [color[2], color[1], color[0]]));
        }
        Ok(Header {
            width: width as usize,
            height: height.unsigned_abs() as usize,
            rises: height > 0,
            bits,
            compression,
            palette,
            masks,
            data: stream.get(start..).ok_or_else(broken)?,
        })
    }
}

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let header = Header::read(stream)?;
    let Header { width, height, bits, compression, data, .. } = header;
    let pixels = width.checked_mul(height).ok_or(Fault::Memory)?;
    let packed = matches!(compression, RLE8 | RLE4);
    check(pixels.checked_mul(if packed { 4 } else { 3 }).ok_or(Fault::Memory)?)?;
    // Two bytes are 255 pixels at most, unless they pass over some: a short stream takes no memory.
    if packed && pixels / 256 > data.len() {
        return Err(broken());
    }
    // Rows are filled up to 4 bytes; the last one need not be.
    let stride = (width * bits).div_ceil(32) * 4;
    if !packed && data.len() < stride * (height - 1) + (width * bits).div_ceil(8) {
        return Err(broken());
    }
    let indices = if packed { Some(runs(&header, watch)?) } else { None };
    let mut image = Image::new(height, width, Channels::Rgb)?;
    for (y, out) in image.rows_mut().enumerate() {
        watch.poll()?;
        let y = if header.rises { height - 1 - y } else { y };
        let out = out.as_chunks_mut::<3>().0;
        let color = |index: u8| header.palette.get(usize::from(index)).copied().unwrap_or_default();
        if let Some(indices) = &indices {
            out.iter_mut().zip(&indices[y * width..]).for_each(|(out, &index)| *out = color(index));
            continue;
        }
        let row = &data[y * stride..];
        for (x, out) in out.iter_mut().enumerate() {
            *out = match bits {
                1..=8 => {
                    let per = 8 / bits;
                    let shift = 8 - bits * (x % per + 1);
                    color(row[x / per] >> shift & (0xff >> (8 - bits)))
                }
                24 => [row[3 * x + 2], row[3 * x + 1], row[3 * x]],
                16 => header
                    .masks
                    .map(|mask| field(u32::from(u16::from_le_bytes([row[2 * x], row[2 * x + 1]])), mask)),
                _ => {
                    let pixel =
                        u32::from_le_bytes([row[4 * x], row[4 * x + 1], row[4 * x + 2], row[4 * x + 3]]);
                    header.masks.map(|mask| field(pixel, mask))
                }
            };
        }
    }
    Ok(image)
}

/// The bits of a mask as a sample of 8 bits.
fn field(pixel: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let (shift, most) = (mask.trailing_zeros(), mask >> mask.trailing_zeros());
    (u64::from((pixel & mask) >> shift) * 255 / u64::from(most)) as u8
}

/// The indices of run-length coded pixels; those that no run covers are 0.
fn runs(header: &Header<'_>, watch: &Watch<'_>) -> Result<Vec<u8>, Fault> {
    let Header { width, height, .. } = *header;
    let nibbles = header.compression == RLE4;
    let mut indices = crate::image::zeroed(width * height, 0u8)?;
    let (mut x, mut y, mut data) = (0, 0, header.data);
    // What runs over the end of a row is cut.
    let mut set = |x: usize, y: usize, index: u8| {
        if x < width && y < height {
            indices[y * width + x] = index;
        }
    };
    while y < height {
        let [first, second, rest @ ..] = data else { return Err(broken()) };
        data = rest;
        let of = |at: usize, byte: u8| match (nibbles, at % 2) {
            (false, _) => byte,
            (true, 0) => byte >> 4,
            (true, _) => byte & 15,
        };
        match (*first, *second) {
            (0, 0) => {
                watch.poll()?;
                (x, y) = (0, y + 1);
            }
            (0, 1) => break,
            (0, 2) => {
                let [right, up, rest @ ..] = data else { return Err(broken()) };
                (x, y, data) = (x + usize::from(*right), y + usize::from(*up), rest);
            }
            (0, count) => {
                let count = usize::from(count);
                let bytes = if nibbles { count.div_ceil(2) } else { count };
                let literal = data.get(..bytes).ok_or_else(broken)?;
                for at in 0..count {
                    set(x + at, y, of(at, literal[if nibbles { at / 2 } else { at }]));
                }
                x += count;
                // Literals are filled up to 2 bytes.
                data = data.get(bytes.next_multiple_of(2)..).unwrap_or_default();
            }
            (count, byte) => {
                (0..usize::from(count)).for_each(|at| set(x + at, y, of(at, byte)));
                x += usize::from(count);
            }
        }
    }
    Ok(indices)
}
