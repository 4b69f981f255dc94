//! Decoded pixels, and the formats that models ask for. Conversions are those of Pillow, which the operator's reference
//! implementation calls.

use crate::fault::Fault;

/// Bytes that an image may take while it is decoded: samples, coefficients, and all that a decoder knows about parts of an image.
pub const LIMIT: usize = 1 << 30;

/// Fails where an image would take more memory than is allowed, or than there is: libraries that allocate for themselves
/// would end the process.
pub fn check(bytes: usize) -> Result<(), Fault> {
    if bytes > LIMIT { Err(Fault::Memory) } else { available(bytes) }
}

/// Fails where there is not so much memory.
pub fn available(bytes: usize) -> Result<(), Fault> {
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| Fault::Memory)
}

/// `count` elements equal to `value`, where there is memory for them.
pub fn zeroed<T: Clone>(count: usize, value: T) -> Result<Vec<T>, Fault> {
    let mut elements = vec![];
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > LIMIT) {
        return Err(Fault::Memory);
    }
    elements.try_reserve_exact(count).map_err(|_| Fault::Memory)?;
    elements.resize(count, value);
    Ok(elements)
}

/// What the samples of a pixel are. Those behind the colours, such as alpha, are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channels {
    Gray,
    GrayAlpha,
    Rgb,
    Rgba,
    Cmyk,
}

impl Channels {
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::GrayAlpha => 2,
            Channels::Rgb => 3,
            Channels::Rgba | Channels::Cmyk => 4,
        }
    }
}

/// Rows of pixels from the top, each with a byte per channel.
#[derive(Clone, PartialEq, Debug)]
pub struct Image {
    pub height: usize,
    pub width: usize,
    pub channels: Channels,
    pub samples: Vec<u8>,
}

/// What a model asks for: `pixel_format` of the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Rgb,
    Bgr,
    Grayscale,
}

impl Format {
    /// By its number in calls.
    pub fn of(number: i64) -> Option<Format> {
        match number {
            0 => Some(Format::Rgb),
            1 => Some(Format::Bgr),
            2 => Some(Format::Grayscale),
            _ => None,
        }
    }

    pub fn channels(self) -> usize {
        if self == Format::Grayscale { 1 } else { 3 }
    }
}

impl Image {
    /// A black image.
    pub fn new(height: usize, width: usize, channels: Channels) -> Result<Image, Fault> {
        let samples = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(channels.count()));
        let samples = zeroed(samples.ok_or(Fault::Memory)?, 0)?;
        Ok(Image { height, width, channels, samples })
    }

    pub fn rows_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut [u8]> + ExactSizeIterator {
        self.samples.chunks_mut((self.width * self.channels.count()).max(1))
    }

    /// Writes the pixels in a format; `out` has exactly the bytes that takes.
    pub fn write(&self, format: Format, out: &mut [u8]) {
        match self.channels {
            Channels::Gray => self.each(format, out, |&[gray]| [gray; 3]),
            Channels::GrayAlpha => self.each(format, out, |&[gray, _]| [gray; 3]),
            Channels::Rgb => self.each(format, out, |&rgb| rgb),
            Channels::Rgba => self.each(format, out, |&[r, g, b, _]| [r, g, b]),
            Channels::Cmyk => self.each(format, out, |&[c, m, y, k]| [c, m, y].map(|ink| uninked(ink, k))),
        }
    }

    fn each<const N: usize>(&self, format: Format, out: &mut [u8], rgb: impl Fn(&[u8; N]) -> [u8; 3]) {
        let pixels = self.samples.as_chunks::<N>().0;
        match format {
            Format::Rgb => {
                out.as_chunks_mut().0.iter_mut().zip(pixels).for_each(|(out, pixel)| *out = rgb(pixel))
            }
            Format::Bgr => out.as_chunks_mut().0.iter_mut().zip(pixels).for_each(|(out, pixel)| {
                let [r, g, b] = rgb(pixel);
                *out = [b, g, r];
            }),
            Format::Grayscale => out.iter_mut().zip(pixels).for_each(|(out, pixel)| *out = luma(rgb(pixel))),
        }
    }
}

/// Luma of ITU-R BT.601, with weights of 16 bits. Of a gray pixel it is the pixel.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// What an ink and black leave of white.
fn uninked(ink: u8, black: u8) -> u8 {
    let white = 255 - black;
    let covered = u32::from(ink) * u32::from(white) + 128;
    white.saturating_sub((((covered >> 8) + covered) >> 8) as u8)
}
