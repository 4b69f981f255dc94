//! Audio: power spectra of signals.

use super::{I64, extension};
use onnxc_ir::graph::Op;
use onnxc_ops::fourier::of_reals;
use onnxc_ops::row::*;

const F32: &str = "tensor(float)";

pub const ROWS: &[OpDef] = &[extension("StftNorm", stft_norm)
    .inputs(&[
        req("pcm", F32),
        req("n_fft", I64),
        req("hop_length", I64),
        req("window", F32),
        req("frame_length", I64),
    ])
    .outputs(&[req("output", F32)])
    .attributes(&[int("onesided", 1)])
    .shapes(&["pcm[1, _]", "n_fft[] | [1]", "hop_length[] | [1]", "window[_]", "frame_length[] | [1]"])
    .doc("The squared magnitudes of the spectra of frames of a signal")];

/// A size that is given by a constant.
fn size(cx: &NodeCx<'_, '_>, name: &str) -> Result<usize> {
    match cx.const_input(name)?.as_slice() {
        &[size] if size > 0 => Ok(size as usize),
        other => malformed(format!("{name} is {other:?}, must be one number from 1 on")),
    }
}

/// Frame `k` has its middle at `k * hop_length`; what is outside of the signal is 0. Windows that are shorter than the transform are at
/// its beginning: `output[0, f, k] = |sum over t of window[t] * pcm[k * hop_length - len(window) / 2 + t] * exp(-2 pi i f t / n_fft)|^2`.
fn stft_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (signal, window) = (cx.input("pcm")?, cx.input("window")?);
    let (length, hop, frame) = (size(cx, "n_fft")?, size(cx, "hop_length")?, size(cx, "frame_length")?);
    if frame != length {
        return unsupported(format!("frame_length {frame}, which is not n_fft {length}"));
    }
    let Some(points) = cx.b.shape(window)[0].as_const().and_then(|points| usize::try_from(points).ok())
    else {
        return unsupported("a window whose length the run decides");
    };
    if !(1..=length).contains(&points) {
        return malformed(format!("window has {points} points, must have 1 to n_fft, {length}"));
    }
    let b = &mut *cx.b;
    let zero = b.scalar(DType::F32, 0.0);
    let samples = b.shape(signal)[1].clone();
    let (before, behind) = (vec![Dim::ZERO, Dim::from(points / 2)], vec![Dim::ZERO, Dim::from(points)]);
    let padded = b.pad(signal, zero, before, behind)?;
    let frames = Op::Window { first: 1, kernel: vec![points], strides: vec![hop], dilations: vec![1] };
    let frames = b.emit1(frames, &[padded])?;
    // The padding behind the signal is enough for a frame too much.
    let count = samples.floor_div(&Dim::from(hop)).unwrap_or(Dim::ZERO) + Dim::ONE;
    let frames = b.slice_axis(frames, 1, Dim::ZERO, count)?;
    let frames = b.binary(BinaryFn::Mul, frames, window)?;
    let frames =
        b.pad(frames, zero, vec![Dim::ZERO; 3], vec![Dim::ZERO, Dim::ZERO, Dim::from(length - points)])?;
    let spectrum = of_reals(b, frames, false)?;
    let squares = b.binary(BinaryFn::Mul, spectrum, spectrum)?;
    let power = b.reduce(ReduceFn::Sum, squares, &[3])?;
    let mut power = b.squeeze(power, &[3])?;
    if cx.int("onesided")? == 0 {
        // Of real numbers the spectrum is the same from both ends.
        let (b, rest) = (&mut *cx.b, (length - 1) / 2);
        let mut sizes = b.shape(power);
        sizes[2] = Dim::from(rest);
        let mirrored =
            Op::Slice { starts: vec![Dim::ZERO, Dim::ZERO, Dim::from(rest)], steps: vec![1, 1, -1], sizes };
        let mirrored = b.emit1(mirrored, &[power])?;
        power = b.concat(&[power, mirrored], 2)?;
    }
    Ok(vec![cx.b.transpose(power, &[0, 2, 1])?])
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn case(signal: &[f32], [n, hop, frame]: [i64; 3], window: &[f32]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", "StftNorm", 1);
        let case =
            case.symbolic(&["", "n"], &[1, signal.len()], signal).constant(&[], &[n]).constant(&[1], &[hop]);
        case.constant(&[window.len()], window).constant(&[], &[frame])
    }

    /// By the definition, in double precision.
    fn defined(signal: &[f32], n: usize, hop: usize, window: &[f32], bins: usize) -> Vec<f64> {
        let at = |place: isize| {
            usize::try_from(place).ok().and_then(|place| signal.get(place)).copied().unwrap_or(0.0)
        };
        let frames = signal.len() / hop + 1;
        let mut power = vec![];
        for bin in 0..bins {
            for frame in 0..frames {
                let (mut real, mut imaginary) = (0.0, 0.0);
                for (point, &weight) in window.iter().enumerate() {
                    let place = (frame * hop + point) as isize - (window.len() / 2) as isize;
                    let value = f64::from(weight) * f64::from(at(place));
                    let (sin, cos) = (-std::f64::consts::TAU * (bin * point) as f64 / n as f64).sin_cos();
                    (real, imaginary) = (real + value * cos, imaginary + value * sin);
                }
                power.push(real * real + imaginary * imaginary);
            }
        }
        power
    }

    #[test]
    fn squared_magnitudes_of_frames() {
        let signal: Vec<f32> = onnxc_ops::node_case::ramp(23, 1);
        for (n, hop, points) in [(8, 3, 8), (8, 4, 5), (7, 2, 7), (16, 20, 16), (1, 5, 1), (2, 1, 2)] {
            let window: Vec<f32> = onnxc_ops::node_case::ramp(points, 3);
            let of = || case(&signal, [n as i64, hop as i64, n as i64], &window);
            let frames = signal.len() / hop + 1;
            let half = defined(&signal, n, hop, &window, n / 2 + 1);
            of().gives(0, &[1, n / 2 + 1, frames], &half);
            of().int("onesided", 0).gives(0, &[1, n, frames], &defined(&signal, n, hop, &window, n));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |sizes: [i64; 3], points: usize| {
            case(&[0.0; 4], sizes, &vec![1.0; points]).run().unwrap_err().to_string()
        };
        assert!(error([8, 4, 4], 8).contains("frame_length 4, which is not n_fft 8"));
        assert!(error([8, 0, 8], 8).contains("hop_length is [0]"));
        assert!(error([8, 4, 8], 9).contains("window has 9 points"));
    }
}
