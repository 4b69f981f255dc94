//! Streams that are broken, cut, or claim to be large.

use super::heap::peak;
use super::{samples, testdata};
use crate::decode;
use crate::decode::decoder;
use crate::fault::Fault;
use crate::image::LIMIT;
use crate::watch::Watch;

/// The decoders of this crate do not panic; those of libraries may, see [`decode`]. None takes more memory than it may.
fn survives(name: &str, stream: &[u8]) {
    let own = [".jpg", ".bmp", ".pbm", ".pgm", ".ppm"].iter().any(|ending| name.ends_with(ending));
    let (_, peak) = peak(|| match decoder(stream) {
        Ok(decoder) if own => decoder(stream, &Watch::new(None)).is_ok(),
        _ => decode(stream).is_ok(),
    });
    assert!(peak <= LIMIT, "{name} takes {peak} bytes");
}

#[test]
fn every_part_of_a_stream_is_survived() {
    for sample in samples() {
        (0..sample.stream.len()).for_each(|length| survives(&sample.name, &sample.stream[..length]));
    }
}

#[test]
fn half_of_a_stream_gives_no_image() {
    for sample in samples() {
        let half = &sample.stream[..sample.stream.len() / 2];
        assert_eq!(decode(half), Err(Fault::Undecodable), "{}", sample.name);
    }
}

#[test]
fn changed_streams_are_survived() {
    let runs = std::env::var("ONNXC_IMAGE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let mut random = fastrand::Rng::with_seed(7);
    for sample in samples() {
        for _ in 0..runs {
            let mut stream = sample.stream.clone();
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..stream.len());
                match random.u8(..4) {
                    0 => stream[at] = random.u8(..),
                    1 => stream[at] ^= 1 << random.u8(..8),
                    // Sizes and counts are at the beginning.
                    2 => {
                        stream[at % 64 % sample.stream.len().min(64)] =
                            random.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap()
                    }
                    _ => {
                        let from = random.usize(..stream.len());
                        let count = random.usize(..16).min(stream.len() - at.max(from));
                        stream.copy_within(from..from + count, at);
                    }
                }
            }
            survives(&sample.name, &stream);
        }
    }
}

/// `stream` with bytes replaced.
fn patched(name: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut stream = testdata(name);
    stream[at..at + bytes.len()].copy_from_slice(bytes);
    stream
}

#[test]
fn sizes_that_a_stream_only_claims_take_no_memory() {
    let jpeg = testdata("444.jpg");
    let frame = jpeg.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
    assert_eq!(decode(&patched("444.jpg", frame + 5, &[0xff; 4])), Err(Fault::Undecodable));
    let large = 1_000_000u32.to_le_bytes();
    assert_eq!(decode(&patched("rgb.bmp", 18, &[large, large].concat())), Err(Fault::Memory));
    assert_eq!(decode(b"P6 30000 30000 255 "), Err(Fault::Memory));
    assert_eq!(decode(b"P6 3000 3000 255 "), Err(Fault::Undecodable));
    let size = 30000u32.to_be_bytes();
    let j2k = testdata("rgb.j2k");
    let codestream = j2k.windows(2).position(|window| window == [0xff, 0x51]).unwrap();
    assert!(decode(&patched("rgb.j2k", codestream + 6, &[size, size].concat())).is_err());
}

#[test]
fn what_is_no_image_is_none() {
    for stream in
        [&b""[..], b"P", b"P7", b"\xff\xd8\xff", b"text of no known format", b"BM", b"RIFF    WEBP", b"II*\0"]
    {
        assert_eq!(decode(stream), Err(Fault::Undecodable), "{stream:?}");
    }
}

/// Runs of models promise little stack; those with images need more, and so much is enough.
#[test]
fn decoders_take_little_stack() {
    let streams = samples();
    let decode_all = move || {
        for sample in &streams {
            decode(&sample.stream).unwrap();
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(decode_all).unwrap().join().unwrap();
}
