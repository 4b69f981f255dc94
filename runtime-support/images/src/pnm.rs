//! Portable bitmaps, graymaps and pixmaps, as text and as bytes: P1 to P6 of Netpbm.

use crate::fault::{Fault, broken};
use crate::image::{Channels, Image, check};
use crate::watch::Watch;

pub(crate) fn decode(stream: &[u8], watch: &Watch<'_>) -> Result<Image, Fault> {
    let [b'P', kind, rest @ ..] = stream else { return Err(broken()) };
    let mut text = Text { rest };
    let (width, height) = (text.number()?, text.number()?);
    let bitmap = matches!(kind, b'1' | b'4');
    let most = if bitmap { 1 } else { text.number()? };
    if width == 0 || height == 0 || !(1..=65535).contains(&most) {
        return Err(broken());
    }
    let channels = if matches!(kind, b'3' | b'6') { Channels::Rgb } else { Channels::Gray };
    let samples = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(channels.count()));
    let samples = samples.ok_or(Fault::Memory)?;
    // A text has at least a byte for each sample, so that a short stream takes no memory.
    let bytes = match kind {
        b'4' => width.div_ceil(8) * height,
        b'5' | b'6' if most > 255 => samples.checked_mul(2).ok_or(Fault::Memory)?,
        _ => samples,
    };
    check(bytes)?;
    if matches!(kind, b'4'..) {
        // One white space ends the header.
        text.rest = text.rest.get(1..).ok_or_else(broken)?;
    }
    let data = text.rest;
    if data.len() < bytes {
        return Err(broken());
    }
    let mut image = Image::new(height, width, channels)?;
    // Of what one row takes; a text is read as it comes.
    let mut rows = data.chunks(bytes / height);
    for out in image.rows_mut() {
        watch.poll()?;
        let row = rows.next().ok_or_else(broken)?;
        match kind {
            b'1' => out.iter_mut().try_for_each(|out| text.bit().map(|bit| *out = bit))?,
            b'2' | b'3' => {
                for out in out {
                    *out = scaled(text.number()?, most)?;
                }
            }
            b'4' => {
                for (x, out) in out.iter_mut().enumerate() {
                    *out = if row[x / 8] >> (7 - x % 8) & 1 == 1 { 0 } else { 255 };
                }
            }
            _ if most == 255 => out.copy_from_slice(row),
            _ if most < 256 => {
                for (out, &value) in out.iter_mut().zip(row) {
                    *out = scaled(usize::from(value).min(most), most)?;
                }
            }
            _ => {
                for (out, &value) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                    *out = scaled(usize::from(u16::from_be_bytes(value)).min(most), most)?;
                }
            }
        }
    }
    Ok(image)
}

/// A sample in the range 0 to `most`, the brightest.
fn scaled(value: usize, most: usize) -> Result<u8, Fault> {
    if value > most {
        return Err(broken());
    }
    Ok((value as f64 / most as f64 * 255.0).round_ties_even() as u8)
}

/// Numbers between white space and comments.
struct Text<'s> {
    rest: &'s [u8],
}

impl Text<'_> {
    fn pass(&mut self) {
        loop {
            match self.rest {
                [b'#', ..] => {
                    let end = self.rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                    self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
                }
                [b' ' | b'\t'..=b'\r', rest @ ..] => self.rest = rest,
                _ => return,
            }
        }
    }

    fn number(&mut self) -> Result<usize, Fault> {
        self.pass();
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=9).contains(&digits) {
            return Err(broken());
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Ok(number.iter().fold(0, |number, digit| 10 * number + usize::from(digit - b'0')))
    }

    /// A pixel of a bitmap; white space may be left out.
    fn bit(&mut self) -> Result<u8, Fault> {
        self.pass();
        let [bit @ b'0'..=b'1', rest @ ..] = self.rest else { return Err(broken()) };
        self.rest = rest;
        Ok(if *bit == b'1' { 0 } else { 255 })
    }
}
