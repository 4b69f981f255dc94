//! Short streams that would take much memory or work: every dimension of what a decoder makes, alone and with others.

use std::io::Read;
use std::sync::atomic::{AtomicI32, Ordering};

use super::heap::peak;
use super::{samples, testdata};
use crate::fault::Fault;
use crate::image::LIMIT;
use crate::jpeg2000::cost;
use crate::watch::{Watch, Watched};
use crate::{decode, decode_watched};

/// A gray progressive JPEG of 8 `across` by 8 `down` blocks: all coefficients are 0 after two scans, and `refinements` more say so
/// again, in one code for 2^14 blocks.
fn refined(across: u16, down: u16, refinements: usize) -> Vec<u8> {
    let mut stream = vec![0xff, 0xd8, 0xff, 0xdb, 0, 67, 0];
    stream.extend([1; 64]);
    let [h, w] = [8 * down, 8 * across].map(u16::to_be_bytes);
    stream.extend([0xff, 0xc2, 0, 11, 8, h[0], h[1], w[0], w[1], 1, 1, 0x11, 0]);
    // One code of one bit each: a difference of 0, and an end of 2^14 blocks and more.
    for (kind, symbol) in [(0, 0), (0x10, 0xe0)] {
        stream.extend([0xff, 0xc4, 0, 20, kind, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, symbol]);
    }
    let blocks = usize::from(across) * usize::from(down);
    let ends = blocks.div_ceil(1 << 14);
    let mut scan = |first: u8, last, bits, bytes: usize| {
        stream.extend([0xff, 0xda, 0, 8, 1, 1, 0, first, last, bits]);
        stream.extend(vec![0; bytes]);
    };
    scan(0, 0, 0, blocks.div_ceil(8));
    scan(1, 63, 1, (15 * ends).div_ceil(8));
    (0..refinements).for_each(|_| scan(1, 63, 0x10, (15 * ends).div_ceil(8)));
    stream.extend([0xff, 0xd9]);
    stream
}

#[test]
fn scans_have_a_budget() {
    assert_eq!(decode(&refined(128, 128, 0)).unwrap(), decode(&refined(128, 128, 60)).unwrap());
    assert_eq!(decode(&refined(128, 128, 300)), Err(Fault::Work));
    assert_eq!(decode(&refined(500, 500, 300)), Err(Fault::Work));
    // Of small images each scan costs less than its head.
    assert!(decode(&refined(1, 1, 300)).is_ok());
}

/// Sizes on the reference grid, across and down, of a JPEG 2000, and how it is coded.
#[derive(Clone)]
struct Codestream {
    size: [u32; 2],
    offset: [u32; 2],
    tile: [u32; 2],
    components: Vec<[u8; 2]>,
    layers: u16,
    levels: u8,
    block: [u8; 2],
    style: u8,
    precincts: Option<Vec<u8>>,
    order: u8,
    guards: u8,
    exponent: u8,
    changes: usize,
    /// Tile-parts, each without packets.
    parts: usize,
    /// Bytes that follow in the last one.
    packets: Vec<u8>,
    /// Step sizes beside those that are needed.
    steps: usize,
}

impl Default for Codestream {
    fn default() -> Codestream {
        Codestream {
            size: [64, 64],
            offset: [0, 0],
            tile: [64, 64],
            components: vec![[1, 1]],
            layers: 1,
            levels: 0,
            block: [4, 4],
            style: 0,
            precincts: None,
            order: 0,
            guards: 2,
            exponent: 8,
            changes: 0,
            parts: 1,
            packets: vec![0],
            steps: 0,
        }
    }
}

impl Codestream {
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0xff, 0x4f];
        let mut segment = |marker: u8, content: &[u8]| {
            out.extend([0xff, marker]);
            out.extend((content.len() as u16 + 2).to_be_bytes());
            out.extend(content);
        };
        let words = [self.size, self.offset, self.tile, [0, 0]].concat();
        let mut sizes = vec![0, 0];
        sizes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        sizes.extend((self.components.len() as u16).to_be_bytes());
        self.components.iter().for_each(|&[across, down]| sizes.extend([7, across, down]));
        segment(0x51, &sizes);
        let [high, low] = self.layers.to_be_bytes();
        let mut coding = vec![u8::from(self.precincts.is_some()), self.order, high, low, 0, self.levels];
        coding.extend([self.block[0], self.block[1], self.style, 1]);
        coding.extend(self.precincts.iter().flatten());
        segment(0x52, &coding);
        let bands = 1 + 3 * usize::from(self.levels) + self.steps;
        let mut steps = vec![self.guards << 5];
        steps.extend(vec![self.exponent << 3; bands]);
        segment(0x5c, &steps);
        if self.changes > 0 {
            let change = [0, 0, 0xff, 0xff, 33, 255, self.order];
            segment(0x5f, &change.repeat(self.changes));
        }
        for part in 0..self.parts {
            let packets = if part + 1 == self.parts { &self.packets[..] } else { &[] };
            out.extend([0xff, 0x90, 0, 10]);
            out.extend((part as u16).to_be_bytes());
            out.extend((14 + packets.len() as u32).to_be_bytes());
            out.extend([0, 1, 0xff, 0x93]);
            out.extend(packets);
        }
        out.extend([0xff, 0xd9]);
        out
    }
}

#[test]
fn jpeg2000_may_not_have_many_parts() {
    let plain = Codestream::default();
    assert!(decode(&plain.bytes()).is_ok());
    let large = Codestream { size: [16384, 1024], tile: [16384, 1024], ..plain.clone() };
    let fine = Some(vec![0]);
    let bombs = [
        ("tiles", Codestream { size: [16 << 20, 1], tile: [1, 1], ..plain.clone() }, Fault::Memory),
        (
            "tiles both ways",
            Codestream { size: [65535, 65535], tile: [1, 1], ..plain.clone() },
            Fault::Memory,
        ),
        ("samples", Codestream { size: [1 << 16; 2], tile: [1 << 16; 2], ..plain.clone() }, Fault::Memory),
        ("missing tiles", Codestream { size: [60000, 1], tile: [1, 1], ..plain.clone() }, Fault::Undecodable),
        (
            "tiles of many components and resolutions",
            Codestream {
                size: [60000, 1],
                tile: [1, 1],
                components: vec![[1, 1]; 5],
                levels: 32,
                parts: 60000,
                packets: vec![],
                ..plain.clone()
            },
            Fault::Work,
        ),
        ("precincts", Codestream { precincts: fine.clone(), ..large.clone() }, Fault::Work),
        ("blocks", Codestream { block: [0, 0], layers: 32, ..large.clone() }, Fault::Work),
        (
            "layers",
            Codestream { layers: 32, precincts: Some(vec![0x11]), block: [0, 0], ..large.clone() },
            Fault::Work,
        ),
        ("changes of the order", Codestream { changes: 9000, ..plain.clone() }, Fault::Work),
        (
            "changes of the order of many packets",
            Codestream { changes: 30, precincts: fine, size: [512, 512], tile: [512, 512], ..plain.clone() },
            Fault::Work,
        ),
        (
            "bit planes",
            Codestream { guards: 7, exponent: 25, size: [4608; 2], tile: [4608; 2], ..plain.clone() },
            Fault::Work,
        ),
        (
            "step sizes",
            Codestream {
                steps: 60000,
                size: [60000, 1],
                tile: [1, 1],
                parts: 60000,
                packets: vec![],
                ..plain.clone()
            },
            Fault::Memory,
        ),
    ];
    for (name, bomb, fault) in bombs {
        let stream = bomb.bytes();
        let (result, peak) = peak(|| decode(&stream));
        assert_eq!(result, Err(fault), "{name}");
        assert!(peak < 4 * stream.len() + (1 << 20), "{name}: {peak} bytes for {}", stream.len());
    }
}

/// The columns of a palette become channels.
#[test]
fn jpeg2000_may_not_have_a_wide_palette() {
    let stream = Codestream { size: [8192; 2], tile: [8192; 2], ..Codestream::default() }.bytes();
    let boxed = |kind: &[u8; 4], content: &[u8]| {
        [&(8 + content.len() as u32).to_be_bytes()[..], kind, content].concat()
    };
    let palette = [&[0, 1, 255][..], &[7; 255], &[9; 255]].concat();
    let inner = [boxed(b"colr", &[1, 0, 0, 0, 0, 0, 17]), boxed(b"pclr", &palette)].concat();
    let file = [
        boxed(b"jP  ", b"\r\n\x87\n"),
        boxed(b"ftyp", b"jp2 \0\0\0\0jp2 "),
        boxed(b"jp2h", &inner),
        boxed(b"jp2c", &stream),
    ];
    assert_eq!(decode(&file.concat()), Err(Fault::Memory));
}

/// What is said of a codestream before it is decoded covers what decoding takes.
#[test]
fn estimates_of_jpeg2000_cover_what_is_taken() {
    let mut streams = vec![];
    for (tile, levels) in [(512, 0), (512, 5), (100, 3), (33, 2)] {
        for (precincts, block) in [(None, [4, 4]), (None, [0, 0]), (Some(0x44), [2, 2]), (Some(0x11), [0, 0])]
        {
            for (layers, order, components) in [(1, 0, 1), (32, 0, 3), (4, 2, 3), (4, 3, 4), (2, 4, 1)] {
                let across = 512u32.div_ceil(tile);
                streams.push(Codestream {
                    size: [512, 512],
                    tile: [tile, tile],
                    components: vec![[1, 1]; components],
                    levels,
                    layers,
                    order,
                    precincts: precincts.map(|size| vec![size; usize::from(levels) + 1]),
                    block,
                    parts: (across * across) as usize,
                    changes: usize::from(order == 3),
                    ..Codestream::default()
                });
            }
        }
    }
    let made = streams.iter().map(Codestream::bytes);
    let kept =
        samples().into_iter().filter(|sample| sample.name.ends_with(".j2k")).map(|sample| sample.stream);
    let mut decoded = 0;
    for stream in made.chain(kept) {
        let Ok(estimate) = cost::check(&stream[2..], 0) else { continue };
        let decoder = hayro_jpeg2000::Image::new(&stream, &hayro_jpeg2000::DecodeSettings::default());
        let Ok(decoder) = decoder else { continue };
        let mut context = hayro_jpeg2000::DecoderContext::default();
        let (result, peak) = peak(|| decoder.decode(&mut context).is_ok());
        decoded += i32::from(result);
        assert!(peak <= estimate, "{peak} bytes where {estimate} are expected");
    }
    assert!(decoded > 60, "{decoded} are decoded");
}

/// A little-endian TIFF of these entries: tag, type, count, value.
fn tiff(entries: &[(u16, u16, u32, u32)], behind: &[u8]) -> Vec<u8> {
    let mut stream = [&b"II*\0\x08\0\0\0"[..], &(entries.len() as u16).to_le_bytes()].concat();
    for &(tag, kind, count, value) in entries {
        stream.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        stream.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    stream.extend([0; 4]);
    stream.extend(behind);
    stream
}

const WIDTH: (u16, u16, u32, u32) = (256, 4, 1, 64);
const HEIGHT: (u16, u16, u32, u32) = (257, 4, 1, 64);
const BITS: (u16, u16, u32, u32) = (258, 3, 1, 8);
const DEFLATE: (u16, u16, u32, u32) = (259, 3, 1, 8);
const GRAY: (u16, u16, u32, u32) = (262, 3, 1, 1);

#[test]
fn tiff_may_not_have_many_parts() {
    let end = |entries: usize| 14 + 12 * entries as u32;
    let strips = [WIDTH, (257, 4, 1, 20000), BITS, DEFLATE, GRAY];
    let bombs = [
        // One row each, all of the same bytes, in lists that lie upon each other.
        (
            "strips",
            tiff(
                &[&strips[..], &[(273, 3, 20000, 16), (278, 4, 1, 1), (279, 3, 20000, 16)]].concat(),
                &[16; 40000],
            ),
            Fault::Work,
        ),
        (
            "bytes of strips",
            tiff(
                &[&strips[..], &[(273, 3, 4000, 200), (278, 4, 1, 5), (279, 3, 4000, end(8))]].concat(),
                &[16; 20000],
            ),
            Fault::Work,
        ),
        ("a list", tiff(&[WIDTH, HEIGHT, (258, 3, 1 << 28, 8), GRAY], &[]), Fault::Undecodable),
        ("a text", tiff(&[(256, 2, 1 << 29, 8), HEIGHT, BITS, GRAY], &[]), Fault::Undecodable),
        (
            "a tile",
            tiff(
                &[
                    WIDTH,
                    HEIGHT,
                    BITS,
                    GRAY,
                    (322, 4, 1, 1 << 30),
                    (323, 4, 1, 64),
                    (324, 4, 1, 8),
                    (325, 4, 1, 8),
                ],
                &[],
            ),
            Fault::Memory,
        ),
        (
            "samples",
            tiff(&[WIDTH, HEIGHT, BITS, GRAY, (273, 4, 1, 8), (277, 3, 1, 65535), (279, 4, 1, 8)], &[]),
            Fault::Undecodable,
        ),
        (
            "pixels",
            tiff(
                &[(256, 4, 1, 1 << 20), (257, 4, 1, 1 << 20), BITS, GRAY, (273, 4, 1, 8), (279, 4, 1, 8)],
                &[],
            ),
            Fault::Memory,
        ),
    ];
    for (name, stream, fault) in bombs {
        let (result, peak) = peak(|| decode(&stream));
        assert_eq!(result, Err(fault), "{name}");
        assert!(peak < 40 * stream.len() + (1 << 20), "{name}: {peak} bytes for {}", stream.len());
    }
}

/// A library printed a line to stderr for a text that is too long. Run by the test below, in a process of its own.
#[test]
#[ignore = "another test runs it"]
fn texts_instead_of_numbers() {
    for tag in
        [256, 257, 258, 259, 262, 273, 277, 278, 279, 284, 317, 320, 322, 323, 324, 325, 338, 339, 347, 530]
    {
        let entries = [WIDTH, HEIGHT, BITS, GRAY, (273, 4, 1, 8), (279, 4, 1, 8)];
        let other = entries.into_iter().filter(|entry| entry.0 != tag).chain([(tag, 2, 1 << 30, 8)]);
        let mut entries: Vec<_> = other.collect();
        entries.sort();
        let _ = decode(&tiff(&entries, &[]));
    }
}

#[test]
fn decoders_print_nothing() {
    let name = "tests::bombs::texts_instead_of_numbers";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn png_may_not_have_long_rows() {
    let mut stream = testdata("rgb.png");
    // 2^28 pixels in a row of 2^31 bytes: fewer bytes as pixels than as they are stored.
    stream[16..24].copy_from_slice(&[0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 1]);
    stream[24..26].copy_from_slice(&[16, 6]);
    let (result, peak) = peak(|| decode(&stream));
    assert!(result.is_err() && peak < 1 << 20, "{result:?}, {peak} bytes");
}

/// A chunk of a PNG, with its checksum.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let content = [kind.as_slice(), data].concat();
    let step = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    let byte = |sum: u32, &byte: &u8| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum));
    let sum = !content.iter().fold(u32::MAX, byte);
    [&(data.len() as u32).to_be_bytes()[..], &content, &sum.to_be_bytes()].concat()
}

/// A library panics for a part of a colour; fuzzing found it.
#[test]
fn palettes_have_whole_colours() {
    for bytes in [0, 1, 2, 3, 4, 49, 768, 769, 771, 1024] {
        let stream = [
            b"\x89PNG\r\n\x1a\n".to_vec(),
            chunk(b"IHDR", &[0, 0, 0, 1, 0, 0, 0, 1, 8, 3, 0, 0, 0]),
            chunk(b"PLTE", &vec![7; bytes]),
            // A row of one index, stored.
            chunk(b"IDAT", &[0x78, 1, 1, 2, 0, 0xfd, 0xff, 0, 0, 0, 2, 0, 1]),
            chunk(b"IEND", &[]),
        ];
        // Without what catches panics.
        let decoded = crate::png::decode(&stream.concat(), &Watch::new(None));
        let fits = matches!(bytes, 3 | 768);
        assert_eq!(decoded.is_ok(), fits, "{bytes} bytes: {decoded:?}");
    }
}

#[test]
fn decoders_look_at_the_flag_of_the_run() {
    for sample in samples() {
        let watch = Watch::new(None);
        decode_watched(&sample.stream, &watch).unwrap();
        let own = [".jpg", ".bmp", ".pbm", ".pgm", ".ppm"].iter().any(|ending| sample.name.ends_with(ending));
        let rows = if own { sample.sizes[0] as u64 } else { 1 };
        assert!(watch.polls() > rows, "{}: {} polls", sample.name, watch.polls());
        let flag = AtomicI32::new(1);
        assert_eq!(decode_watched(&sample.stream, &Watch::new(Some(&flag))), Err(Fault::Cancelled));
    }
    let flag = AtomicI32::new(0);
    let watch = Watch::new(Some(&flag));
    let mut stream = Watched::new(&[7; 10000], &watch);
    let mut piece = [0; 10000];
    assert_eq!(stream.read(&mut piece).unwrap(), 4096);
    flag.store(1, Ordering::Relaxed);
    assert!(stream.read(&mut piece).is_err());
}

/// An image of many pixels from few bytes costs no more than the memory that one may take.
#[test]
fn pixels_are_bounded_by_memory() {
    assert_eq!(decode(b"P6 30000 30000 255 "), Err(Fault::Memory));
    const { assert!(LIMIT == 1 << 30) };
}
