//! The first directory of a TIFF, checked before the library reads it: the library allocates a list as long as an entry claims before it
//! reads the values, and prints a line to stderr for a text that is too long.

use tiff::tags::Tag;

use crate::fault::{Fault, broken};

/// An entry: the number of its tag, and where its values are.
pub(super) struct Entry {
    tag: u64,
    kind: u64,
    count: usize,
    /// Where the first value is in the stream.
    pub at: usize,
}

impl Entry {
    /// Bytes of a value.
    pub(super) fn size(&self) -> usize {
        SIZES.get(self.kind as usize).copied().unwrap_or(0)
    }
}

/// The entries of a stream's first directory.
pub(super) struct Directory<'s> {
    stream: &'s [u8],
    little: bool,
    entries: Vec<Entry>,
}

/// The type of texts, which count and measure nothing.
const TEXT: u64 = 2;

/// Bytes of a value by its type; 0 for types that are not known.
const SIZES: [usize; 19] = [0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8];

/// Tags whose values the library reads. No more than the samples of a pixel have a value each; strips and tiles, palettes and
/// tables of JPEG have more.
const READ: [Tag; 15] = [
    Tag::ImageWidth,
    Tag::ImageLength,
    Tag::BitsPerSample,
    Tag::Compression,
    Tag::PhotometricInterpretation,
    Tag::SamplesPerPixel,
    Tag::RowsPerStrip,
    Tag::PlanarConfiguration,
    Tag::Predictor,
    Tag::TileWidth,
    Tag::TileLength,
    Tag::ExtraSamples,
    Tag::SampleFormat,
    Tag::ChromaSubsampling,
    Tag::FillOrder,
];
const LISTS: [Tag; 6] = [
    Tag::StripOffsets,
    Tag::StripByteCounts,
    Tag::TileOffsets,
    Tag::TileByteCounts,
    Tag::ColorMap,
    Tag::JPEGTables,
];

/// Values that a pixel has at most.
const MAX_VALUES: usize = 1 << 16;

impl Directory<'_> {
    pub(super) fn read(stream: &[u8]) -> Result<Directory<'_>, Fault> {
        let little = stream.starts_with(b"II");
        let mut directory = Directory { stream, little, entries: vec![] };
        let number = |at: usize, size: usize| number(stream, little, at, size).ok_or_else(broken);
        // The place of the directory, and bytes: of the number of entries, of a place or a count, and what fits an entry.
        let (start, head, size) = match number(2, 2)? {
            42 => (number(4, 4)?, 2, 4),
            43 => (number(8, 8)?, 8, 8),
            _ => return Err(broken()),
        };
        let start = usize::try_from(start).map_err(|_| broken())?;
        let count = number(start, head)?;
        for entry in 0..count {
            let step = usize::try_from(entry).ok().and_then(|entry| entry.checked_mul(4 + 2 * size));
            let at = step.and_then(|step| step.checked_add(start)?.checked_add(head)).ok_or_else(broken)?;
            let (tag, kind, values) = (number(at, 2)?, number(at + 2, 2)?, number(at + 4, size)?);
            let value_bytes = SIZES.get(kind as usize).copied().unwrap_or(0);
            match value_bytes {
                // The library passes over fewer bytes than such an entry has there.
                0 if size == 8 => return Err(broken()),
                0 => continue,
                _ => {}
            }
            if !READ.iter().chain(&LISTS).any(|read| u64::from(read.to_u16()) == tag) {
                continue;
            }
            let values = usize::try_from(values).map_err(|_| broken())?;
            let bytes = values.checked_mul(value_bytes).ok_or_else(broken)?;
            let place = match bytes <= size {
                true => at + 4 + size,
                false => usize::try_from(number(at + 4 + size, size)?).map_err(|_| broken())?,
            };
            let list = LISTS.iter().any(|list| u64::from(list.to_u16()) == tag);
            let inside = place.checked_add(bytes).is_some_and(|end| end <= stream.len());
            if kind == TEXT || !inside || (!list && values > MAX_VALUES) {
                return Err(broken());
            }
            directory.entries.push(Entry { tag, kind, count: values, at: place });
        }
        Ok(directory)
    }

    /// The entry of a tag; of several the last, as the library takes it.
    pub(super) fn entry(&self, tag: Tag) -> Option<&Entry> {
        self.entries.iter().rfind(|entry| entry.tag == u64::from(tag.to_u16()))
    }

    /// Values of all lists.
    pub(super) fn listed(&self) -> usize {
        self.entries.iter().map(|entry| entry.count).sum()
    }

    /// The values of a tag with whole numbers; `usize::MAX` for one that does not fit.
    pub(super) fn values(&self, tag: Tag) -> impl Iterator<Item = usize> {
        let (stream, little) = (self.stream, self.little);
        self.entry(tag).into_iter().flat_map(move |entry| {
            let size = entry.size();
            let value = move |at| number(stream, little, entry.at + at * size, size);
            (0..entry.count).map_while(value).map(|value| usize::try_from(value).unwrap_or(usize::MAX))
        })
    }
}

fn number(stream: &[u8], little: bool, at: usize, size: usize) -> Option<u64> {
    let bytes = stream.get(at..at.checked_add(size)?)?;
    let joined = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(if little { bytes.iter().rev().fold(0, joined) } else { bytes.iter().fold(0, joined) })
}
