//! Streams of every format against the pixels that Pillow decodes, broken streams, and the functions that models call.
//! `tests/python/images.py` wrote the streams.

mod bombs;
mod calls;
mod heap;
mod hostile;

use crate::decode;
use crate::image::{Format, Image};

/// A stream of `testdata`, and the line about it there.
struct Sample {
    name: String,
    stream: Vec<u8>,
    sizes: [usize; 2],
    /// Hashes of the pixels as RGB and as gray.
    hashes: [u64; 2],
}

fn testdata(name: &str) -> Vec<u8> {
    let path = format!("{}/src/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn samples() -> Vec<Sample> {
    let lines = String::from_utf8(testdata("pixels.txt")).unwrap();
    let samples = lines.lines().map(|line| {
        let [name, height, width, rgb, gray] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        Sample {
            name: name.to_string(),
            stream: testdata(name),
            sizes: [height, width].map(|size| size.parse().unwrap()),
            hashes: [rgb, gray].map(|hash| u64::from_str_radix(hash, 16).unwrap()),
        }
    });
    samples.collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf29ce484222325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3))
}

fn pixels(image: &Image, format: Format) -> Vec<u8> {
    let mut out = vec![0; image.height * image.width * format.channels()];
    image.write(format, &mut out);
    out
}

#[test]
fn pixels_are_those_of_pillow() {
    let samples = samples();
    assert!(samples.len() > 60);
    for sample in samples {
        let image = decode(&sample.stream).unwrap_or_else(|fault| panic!("{}: {fault:?}", sample.name));
        assert_eq!([image.height, image.width], sample.sizes, "{}", sample.name);
        let hashes = [Format::Rgb, Format::Grayscale].map(|format| fnv(&pixels(&image, format)));
        assert_eq!(hashes, sample.hashes, "{}", sample.name);
    }
}

#[test]
fn bgr_is_rgb_the_other_way_round() {
    for name in ["420.jpg", "gray.png", "cmyk.tiff", "rgba.webp", "gray_alpha.png"] {
        let image = decode(&testdata(name)).unwrap();
        let mut turned = pixels(&image, Format::Rgb);
        turned.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| pixel.reverse());
        assert_eq!(pixels(&image, Format::Bgr), turned, "{name}");
    }
}

/// Pillow has 16 bits clipped to 255 where an image is gray; here they are the upper 8 bits, as it has them of colours.
#[test]
fn samples_of_16_bits_are_their_upper_halves() {
    let stream = b"P5 2 1 65535 \x00\xff\x81\x02";
    assert_eq!(pixels(&decode(stream).unwrap(), Format::Grayscale), [1, 129]);
    let tiff = |kind: [u8; 4], entries: &[(u8, u8, u8)], data: &[u8]| {
        let mut stream = [&kind[..], &8u32.to_le_bytes(), &[entries.len() as u8, 0]].concat();
        for &(tag, high, value) in entries {
            stream.extend([tag, high, 3, 0, 1, 0, 0, 0, value, 0, 0, 0]);
        }
        stream.extend([0; 4]);
        stream.extend(data);
        stream
    };
    // Width, height, bits, compression, photometric, offset, rows per strip, bytes.
    let entries =
        [(0, 1, 2), (1, 1, 1), (2, 1, 16), (3, 1, 1), (6, 1, 1), (0x11, 1, 110), (0x16, 1, 1), (0x17, 1, 4)];
    let stream = tiff(*b"II\x2a\0", &entries, &[0x34, 0x12, 0xff, 0xfe]);
    assert_eq!(stream.len(), 114);
    assert_eq!(pixels(&decode(&stream).unwrap(), Format::Grayscale), [0x12, 0xfe]);
}
