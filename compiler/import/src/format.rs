//! Recognizes files that are not ONNX models.

use bytes::Bytes;
use onnxc_proto::{Budget, DecodeError, Fault};

/// Bytes that are inspected to recognize text.
const LOOK: usize = 512;

/// Characters of a text that a message shows.
const SHOWN: usize = 40;

/// What bytes at the start of a file, from an offset on, say of it.
const FORMATS: &[(usize, &[u8], &str)] = &[
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch saves; the exporter of the framework writes .onnx"),
    (4, b"TFL3", "a TensorFlow Lite model; tf2onnx writes .onnx"),
    (4, b"ORTM", "a model in ONNX Runtime's own format (.ort); give the .onnx file that it was made from"),
    (
        0,
        b"GGUF",
        "a GGUF file, as llama.cpp reads: weights without a graph; export the model to .onnx, as Optimum does",
    ),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras saves; tf2onnx writes .onnx"),
    (0, b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (0, b"\x93NUMPY", "a NumPy array, not a model"),
    (0, b"\x7fELF", "an ELF object or program"),
];

/// Why bytes are not a message with a graph, where that is known.
pub fn other(bytes: &Bytes) -> Option<String> {
    if bytes.is_empty() {
        return Some("not an ONNX file: it is empty".to_string());
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Some(
            "not an ONNX file but a pointer of Git LFS to one; `git lfs pull` fetches it".to_string(),
        );
    }
    let known =
        FORMATS.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    if let Some((_, _, what)) = known {
        return Some(format!("not an ONNX file: it is {what}"));
    }
    if is_safetensors(bytes) {
        return Some(
            "not an ONNX file: it is a safetensors file: weights without a graph; export the model to .onnx, as Optimum does"
                .to_string(),
        );
    }
    if is_tensor(bytes) {
        return Some(
            "not an ONNX model: it is a TensorProto, one tensor, as test data has; `onnxc run MODEL.onnx --input FILE` takes it"
                .to_string(),
        );
    }
    let start = &bytes[..bytes.len().min(LOOK)];
    // The last character may be cut.
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_text = text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    let shown: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect();
    is_text.then(|| format!("not an ONNX file: it is text that begins with `{shown}`"))
}

/// The length of a header, and a header in JSON.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    let length = u64::from_le_bytes(*length);
    rest.starts_with(b"{") && length >= 2 && length <= rest.len() as u64
}

/// A tensor with elements, or with sizes.
fn is_tensor(bytes: &Bytes) -> bool {
    let tensor = onnxc_proto::decode_tensor(bytes.clone(), &Budget::default());
    tensor.is_ok_and(|tensor| {
        tensor.data_type.is_some() && (tensor.raw_data.is_some() || !tensor.dims.is_empty())
    })
}

/// What to say of a file that ends inside its graph, which is nearly all of a model; `length` bytes are there.
pub fn cut_off(error: &DecodeError, length: usize) -> Option<String> {
    match error.fault {
        Fault::Overrun { field: "graph", length: graph, left } if error.path == ROOT => {
            let wanted = (length as u64).saturating_sub(left as u64).saturating_add(graph);
            let what = "as an unfinished download or copy";
            Some(format!("the file is cut off, {what}: it has {length} bytes of {wanted}"))
        }
        _ => None,
    }
}

/// The path of errors in the file's own fields.
const ROOT: &str = "ModelProto";

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn other_files_are_told() {
        for (bytes, part) in [
            (&b""[..], "empty"),
            (b"hello\n  world", "text that begins with `hello world`"),
            ("\u{e9}t\u{e9} ".repeat(100).as_bytes(), "text that begins with"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
            (b"PK\x03\x04\0\0", "ZIP"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (b"\x28\0\0\0ORTM\0\0\0\0", "ONNX Runtime's own format"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"\x02\0\0\0\0\0\0\0{}", "safetensors"),
            (&onnxc_proto::build::f32_tensor("w", &[2], vec![1.0, 2.0]).encode_to_vec(), "TensorProto"),
        ] {
            let found = other(&Bytes::copy_from_slice(bytes));
            assert!(found.as_ref().is_some_and(|text| text.contains(part)), "{part}: {found:?}");
        }
        let model = onnxc_proto::build::model(17, onnxc_proto::GraphProto::default()).encode_to_vec();
        let other = |bytes: &[u8]| other(&Bytes::copy_from_slice(bytes));
        assert_eq!(other(&model), None);
        assert_eq!(other(&[0, 1, 2, 3]), None);
        for cut in 3..model.len() {
            assert_eq!(other(&model[..cut]), None, "{cut}");
        }
    }
}
