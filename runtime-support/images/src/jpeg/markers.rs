//! The segments of a stream.

use super::frame::Frame;
use super::huffman::Huffman;
use super::scan::{self, Scan};
use crate::fault::{Fault, broken, unsupported};
use crate::watch::Watch;

/// How often the scans of an image may come by each of its blocks, on average. Encoders make about ten scans, those that look for
/// the smallest file some twenty for each component; the format allows thousands, which take no bits of blocks that do not
/// change. Small images may have more: 4 visits for each byte of the stream are free, and a scan's head has 10 bytes.
pub(super) const VISITS: usize = 64;

/// The order in which coefficients are stored: the place, row by row, of each.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The contents of the segments so far.
pub(super) struct Decoder<'s> {
    stream: &'s [u8],
    at: usize,
    pub watch: &'s Watch<'s>,
    pub frame: Option<Frame>,
    /// Visits of blocks that are left to scans.
    visits: usize,
    quantization: [Option<[u16; 64]>; 4],
    pub dc: [Option<Huffman>; 4],
    pub ac: [Option<Huffman>; 4],
    pub restart_interval: usize,
    pub jfif: bool,
    /// The transform that a segment of Adobe names.
    pub adobe: Option<u8>,
}

impl<'s> Decoder<'s> {
    pub(super) fn new(stream: &'s [u8], watch: &'s Watch<'s>) -> Decoder<'s> {
        Decoder {
            stream,
            at: 0,
            watch,
            frame: None,
            visits: 0,
            quantization: [None; 4],
            dc: [const { None }; 4],
            ac: [const { None }; 4],
            restart_interval: 0,
            jfif: false,
            adobe: None,
        }
    }

    /// Reads the whole image.
    pub(super) fn read(&mut self) -> Result<(), Fault> {
        if !self.stream.starts_with(&[0xff, 0xd8]) {
            return Err(broken());
        }
        self.at = 2;
        while let Some(marker) = self.marker()? {
            match marker {
                0xd9 => break,
                // They have no content.
                0x01 | 0xd0..=0xd7 => continue,
                _ => {}
            }
            let segment = self.segment()?;
            match marker {
                0xc0..=0xc2 if self.frame.is_none() => {
                    let frame = Frame::new(segment, marker == 0xc2, self.stream.len())?;
                    self.visits = VISITS * frame.blocks() + 4 * self.stream.len();
                    self.frame = Some(frame);
                }
                0xc4 => self.huffman(segment)?,
                0xda => self.scan(segment)?,
                0xdb => self.quantization(segment)?,
                0xdd => {
                    let interval: [u8; 2] = segment.try_into().map_err(|_| broken())?;
                    self.restart_interval = usize::from(u16::from_be_bytes(interval));
                }
                0xe0 => self.jfif |= segment.starts_with(b"JFIF\0"),
                0xee if segment.starts_with(b"Adobe") => self.adobe = segment.get(11).copied().or(self.adobe),
                0xe1..=0xef | 0xfe => {}
                0xc0..=0xdf => return Err(unsupported()),
                _ => return Err(broken()),
            }
        }
        self.frame.as_mut().ok_or_else(broken)?.finish(self.watch)
    }

    /// The next marker. A stream may end without one where all scans of a frame that needs no more are complete.
    fn marker(&mut self) -> Result<Option<u8>, Fault> {
        // Bytes between segments are passed over, as everywhere.
        while let Some(&byte) = self.stream.get(self.at) {
            self.at += 1;
            match self.stream.get(self.at) {
                Some(&marker) if byte == 0xff && marker != 0xff && marker != 0 => {
                    self.at += 1;
                    return Ok(Some(marker));
                }
                _ => {}
            }
        }
        match &self.frame {
            Some(frame) if !frame.progressive => Ok(None),
            _ => Err(broken()),
        }
    }

    fn segment(&mut self) -> Result<&'s [u8], Fault> {
        let rest = self.stream.get(self.at..).ok_or_else(broken)?;
        let length = usize::from(u16::from_be_bytes(*rest.first_chunk().ok_or_else(broken)?));
        let segment = rest.get(2..length).ok_or_else(broken)?;
        self.at += length;
        Ok(segment)
    }

    fn quantization(&mut self, mut segment: &[u8]) -> Result<(), Fault> {
        while let [kind, rest @ ..] = segment {
            let wide = kind >> 4 == 1;
            let bytes = if wide { 128 } else { 64 };
            let (values, rest) = rest.split_at_checked(bytes).ok_or_else(broken)?;
            let mut table = [0; 64];
            for (at, &place) in ZIGZAG.iter().enumerate() {
                table[usize::from(place)] = match wide {
                    true => u16::from_be_bytes([values[2 * at], values[2 * at + 1]]),
                    false => u16::from(values[at]),
                };
            }
            *self.quantization.get_mut(usize::from(kind & 15)).ok_or_else(broken)? = Some(table);
            segment = rest;
        }
        Ok(())
    }

    fn huffman(&mut self, mut segment: &[u8]) -> Result<(), Fault> {
        while let [kind, rest @ ..] = segment {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(broken)?;
            let count = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(count).ok_or_else(broken)?;
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(kind & 15)).ok_or_else(broken)? =
                Some(Huffman::new(counts, symbols)?);
            segment = rest;
        }
        Ok(())
    }

    fn scan(&mut self, segment: &[u8]) -> Result<(), Fault> {
        let mut frame = self.frame.take().ok_or_else(broken)?;
        let scan = Scan::new(segment, &frame)?;
        for &(component, ..) in &scan.components {
            let component = &mut frame.components[component];
            if component.latched.is_none() {
                component.latched = Some(self.quantization[component.quantization].ok_or_else(broken)?);
            }
        }
        self.visits = self.visits.checked_sub(scan.visits(&frame)).ok_or(Fault::Work)?;
        self.at = scan::decode(self, &scan, &mut frame, self.stream, self.at)?;
        self.frame = Some(frame);
        Ok(())
    }
}
