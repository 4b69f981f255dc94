//! Encoded images. Calls of the runtime decode them.

use super::row::*;
use onnxc_ir::graph::{TensorType, call};

const U8: &[DType] = &[DType::U8];

pub const ROWS: &[OpDef] = &[op("ImageDecoder", 20, decode)
    .inputs(&[req("encoded_stream", "T1")])
    .outputs(&[req("image", "T2")])
    .attributes(&[string("pixel_format", "RGB")])
    .types(&[("T1", U8), ("T2", U8)])
    .shapes(&["encoded_stream[_]"])
    .doc("The pixels of an encoded image: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF or WebP")];

/// `image: [H, W, C]`. Of a stream that cannot be decoded `H` and `W` are 0.
fn decode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let stream = cx.input("encoded_stream")?;
    let (number, channels) = match cx.str("pixel_format")?.as_str() {
        "RGB" => (0i64, 3usize),
        "BGR" => (1, 3),
        "Grayscale" => (2, 1),
        other => return not_one_of("pixel_format", other, "RGB, BGR, Grayscale"),
    };
    let numbers = vec![cx.b.ty(stream).elements(), Dim::from(number)];
    let sizes = TensorType::new(DType::I64, vec![Dim::from(2usize)]);
    let sizes = cx.b.call(&call::IMAGE_SIZE, &[stream], numbers.clone(), sizes)?;
    let sizes = cx.b.sizes(sizes, &|_| None)?;
    let image = TensorType::new(DType::U8, sizes.iter().cloned().chain([Dim::from(channels)]).collect());
    Ok(vec![cx.b.call(&call::DECODE_IMAGE, &[stream], [numbers, sizes].concat(), image)?])
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    fn case(stream: &[u8], format: &str) -> Case {
        Case::new("ImageDecoder", 20).input(&[stream.len()], stream).str("pixel_format", format)
    }

    #[test]
    fn channels_are_in_the_order_of_the_format() {
        let stream = b"P6 2 1 255\nabcxyz";
        case(stream, "RGB").gives(0, &[1, 2, 3], &[97.0, 98.0, 99.0, 120.0, 121.0, 122.0]);
        case(stream, "BGR").gives(0, &[1, 2, 3], &[99.0, 98.0, 97.0, 122.0, 121.0, 120.0]);
        case(stream, "Grayscale").gives(0, &[1, 2, 1], &[98.0, 121.0]);
    }

    #[test]
    fn what_cannot_be_decoded_is_empty() {
        case(b"no image", "RGB").gives(0, &[0, 0, 3], &[]);
        case(b"P5 4 4 255 ", "Grayscale").gives(0, &[0, 0, 1], &[]);
    }

    #[test]
    fn other_formats_are_refused() {
        assert!(case(b"", "YUV").run().unwrap_err().message.contains("RGB, BGR, Grayscale"));
    }
}
