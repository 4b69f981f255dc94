//! What the components stand for.

use super::frame::Frame;
use crate::fault::{Fault, unsupported};
use crate::image::Channels;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Space {
    Gray,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
}

impl Space {
    /// As libjpeg guesses it, by markers and by the components' numbers.
    pub(super) fn of(frame: &Frame, jfif: bool, adobe: Option<u8>) -> Result<Space, Fault> {
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        Ok(match (ids.as_slice(), adobe) {
            ([_], _) => Space::Gray,
            ([..], _) if ids.len() == 3 && jfif => Space::YCbCr,
            ([_, _, _], Some(0)) => Space::Rgb,
            ([_, _, _], Some(_)) => Space::YCbCr,
            ([b'R', b'G', b'B'], None) => Space::Rgb,
            ([_, _, _], None) => Space::YCbCr,
            ([_, _, _, _], None | Some(0)) => Space::Cmyk,
            ([_, _, _, _], Some(_)) => Space::Ycck,
            _ => return Err(unsupported()),
        })
    }

    pub(super) fn channels(self) -> Channels {
        match self {
            Space::Gray => Channels::Gray,
            Space::Rgb | Space::YCbCr => Channels::Rgb,
            Space::Cmyk | Space::Ycck => Channels::Cmyk,
        }
    }

    /// A row of each component to a row of pixels.
    pub(super) fn convert(self, rows: &[Vec<u8>], out: &mut [u8]) {
        match (self, rows) {
            (Space::Gray, [gray]) => out.copy_from_slice(&gray[..out.len()]),
            (Space::Rgb, [r, g, b]) => {
                for (out, ((&r, &g), &b)) in out.as_chunks_mut::<3>().0.iter_mut().zip(r.iter().zip(g).zip(b))
                {
                    *out = [r, g, b];
                }
            }
            (Space::YCbCr, [y, cb, cr]) => {
                for (out, ((&y, &cb), &cr)) in
                    out.as_chunks_mut::<3>().0.iter_mut().zip(y.iter().zip(cb).zip(cr))
                {
                    *out = rgb(y, cb, cr);
                }
            }
            // Of four components, ink is stored as its complement.
            (Space::Cmyk, [c, m, y, k]) => {
                let inks = c.iter().zip(m).zip(y.iter().zip(k));
                for (out, ((&c, &m), (&y, &k))) in out.as_chunks_mut::<4>().0.iter_mut().zip(inks) {
                    *out = [!c, !m, !y, !k];
                }
            }
            (Space::Ycck, [y, cb, cr, k]) => {
                let inks = y.iter().zip(cb).zip(cr.iter().zip(k));
                for (out, ((&y, &cb), (&cr, &k))) in out.as_chunks_mut::<4>().0.iter_mut().zip(inks) {
                    let [r, g, b] = rgb(y, cb, cr);
                    *out = [r, g, b, !k];
                }
            }
            _ => {}
        }
    }
}

/// Numbers with 16 bits behind the point.
const fn fix(x: f64) -> i32 {
    (x * 65536.0 + 0.5) as i32
}

const HALF: i32 = 1 << 15;

/// As ITU-R BT.601 with the full range, in libjpeg's integers.
#[inline]
pub(crate) fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((fix(1.402) * cr + HALF) >> 16);
    let g = y + ((-fix(0.34414) * cb + HALF - fix(0.71414) * cr) >> 16);
    let b = y + ((fix(1.772) * cb + HALF) >> 16);
    [r, g, b].map(|value| value.clamp(0, 255) as u8)
}
