//! What the targets have in common.

use onnxc_runtime_images::image::Format;

/// Pixels beyond which a stream teaches nothing new: libFuzzer would spend its time on few of them.
const LARGE: usize = 1 << 22;

/// Decodes a stream that begins as those of a format do. False for others, which are not kept.
pub fn decodes(stream: &[u8], starts: &[&[u8]]) -> bool {
    if !starts.iter().any(|start| stream.starts_with(start)) {
        return false;
    }
    let Ok(image) = onnxc_runtime_images::decode(stream) else { return true };
    let pixels = image.height * image.width;
    assert_eq!(image.samples.len(), pixels * image.channels.count());
    assert!(pixels > 0, "an image without pixels");
    for format in [Format::Rgb, Format::Bgr, Format::Grayscale] {
        let mut out = vec![0; pixels * format.channels()];
        image.write(format, &mut out);
    }
    pixels <= LARGE
}

/// A target for streams that begin with one of these.
#[macro_export]
macro_rules! image_target {
    ($($start:expr),*) => {
        libfuzzer_sys::fuzz_target!(|stream: &[u8]| -> libfuzzer_sys::Corpus {
            match $crate::decodes(stream, &[$($start),*]) {
                true => libfuzzer_sys::Corpus::Keep,
                false => libfuzzer_sys::Corpus::Reject,
            }
        });
    };
}
