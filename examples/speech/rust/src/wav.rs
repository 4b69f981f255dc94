//! Recordings in files: one channel of 16 bits at 8,000 Hz, not longer than a window of the model.

use std::error::Error;

const RATE: u32 = 8000;

/// Samples from -1 to 1, with zeros behind the recording.
pub fn read(path: &str) -> Result<Box<[f32; 40000]>, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let Some((b"RIFF", [_, _, _, _, b'W', b'A', b'V', b'E', rest @ ..])) = bytes.split_first_chunk() else {
        return Err("not a WAV file".into());
    };
    let (mut rest, mut format) = (rest, &[][..]);
    // Chunks: a name, the bytes of what follows, and that, filled up to an even number.
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes(head[4..].try_into()?) as usize;
        let chunk = &behind[..length.min(behind.len())];
        match &head[..4] {
            b"fmt " => format = chunk,
            b"data" => return samples(format, chunk),
            _ => {}
        }
        rest = behind.get(length.next_multiple_of(2)..).unwrap_or(&[]);
    }
    Err("no recording in the file".into())
}

fn samples(format: &[u8], data: &[u8]) -> Result<Box<[f32; 40000]>, Box<dyn Error>> {
    let [1, 0, 1, 0, a, b, c, d, _, _, _, _, _, _, 16, 0, ..] = *format else {
        return Err("not PCM of one channel and 16 bits".into());
    };
    if u32::from_le_bytes([a, b, c, d]) != RATE {
        return Err("another rate than the model's".into());
    }
    let mut samples = vec![0f32; 40000];
    if data.len() / 2 > samples.len() {
        return Err("longer than the model's window".into());
    }
    for (sample, bytes) in samples.iter_mut().zip(data.chunks_exact(2)) {
        *sample = f32::from(i16::from_le_bytes([bytes[0], bytes[1]])) / 32768.0;
    }
    samples.into_boxed_slice().try_into().map_err(|_| "not a window".into())
}
