//! JPEG, with the arithmetic of libjpeg's default decoder: its integer inverse DCT ("islow"), its linear ("fancy")
//! upsampling, which the operator's documentation asks for, and its integer conversion of colours. The pixels are the same
//! as its, bit for bit. Baseline, extended and progressive frames of 8 bits, Huffman-coded.
//!
//! Each block takes bits of the stream, so that work is by its bytes; only scans of a progressive frame can pass over blocks
//! for less. [`markers::VISITS`] bounds how often.

mod bits;
mod color;
mod frame;
mod huffman;
mod idct;
mod markers;
mod scan;
mod upsample;

use crate::fault::{Fault, broken};
use crate::image::Image;
use crate::watch::Watch;
pub(crate) use color::rgb;
use markers::Decoder;

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let mut decoder = Decoder::new(stream, watch);
    decoder.read()?;
    let frame = decoder.frame.ok_or_else(broken)?;
    let planes = frame.planes();
    let space = color::Space::of(&frame, decoder.jfif, decoder.adobe)?;
    let mut image = Image::new(frame.height, frame.width, space.channels())?;
    let mut rows: Vec<Vec<u8>> = vec![vec![0; frame.padded_width()]; planes.len()];
    for (y, out) in image.rows_mut().enumerate() {
        watch.poll()?;
        for ((component, plane), row) in frame.components.iter().zip(&planes).zip(&mut rows) {
            upsample::row(&frame, component, plane, y, row);
        }
        space.convert(&rows, out);
    }
    Ok(image)
}
