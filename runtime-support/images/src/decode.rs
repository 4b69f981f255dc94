//! A stream of any format to pixels.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fault::{Fault, unsupported};
use crate::image::Image;
use crate::watch::Watch;
use crate::{bmp, jpeg, jpeg2000, png, pnm, tiff, webp};

/// Decodes a stream; its first bytes determine the format. Where a library panics the stream counts as broken.
pub fn decode(stream: &[u8]) -> Result<Image, Fault> {
    decode_watched(stream, &Watch::new(None))
}

/// [`decode`], which ends with [`Fault::Cancelled`] once the flag is set.
pub fn decode_watched(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let decode = decoder(stream)?;
    watch.poll()?;
    // Nothing is used after a panic that it could have left half done.
    let image = catch_unwind(AssertUnwindSafe(|| decode(stream, watch))).unwrap_or(Err(Fault::Undecodable));
    // To a library a read that fails is the end of the stream.
    image.map_err(|fault| if watch.is_cancelled() { Fault::Cancelled } else { fault })
}

pub(crate) type Decoder = fn(&[u8], &Watch<'_>) -> Result<Image, Fault>;

/// The decoder for a stream's format.
pub(crate) fn decoder(stream: &[u8]) -> Result<Decoder, Fault> {
    Ok(match stream {
        [0xff, 0xd8, 0xff, ..] => jpeg::decode,
        [0x89, b'P', b'N', b'G', ..] => png::decode,
        [b'B', b'M', ..] => bmp::decode,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp::decode,
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => tiff::decode,
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => jpeg2000::decode,
        [b'P', b'1'..=b'6', ..] => pnm::decode,
        _ => return Err(unsupported()),
    })
}
