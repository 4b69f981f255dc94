//! Recognizes files that are not ONNX models.

/// Bytes that are inspected to recognize text.
const LOOK: usize = 512;

/// Characters of a text that a message shows.
const SHOWN: usize = 40;

/// What bytes at the start of a file, from an offset on, say of it.
const FORMATS: &[(usize, &[u8], &str)] = &[
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch saves; the exporter of the framework writes .onnx"),
    (4, b"TFL3", "a TensorFlow Lite model; tf2onnx writes .onnx"),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras saves; tf2onnx writes .onnx"),
    (0, b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (0, b"\x93NUMPY", "a NumPy array, not a model"),
    (0, b"\x7fELF", "an ELF object or program"),
];

/// Why bytes are not a message with a graph, where that is known.
pub fn other(bytes: &[u8]) -> Option<String> {
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
        ] {
            assert!(other(bytes).is_some_and(|text| text.contains(part)), "{part}: {:?}", other(bytes));
        }
        let model = onnxc_proto::build::model(17, onnxc_proto::GraphProto::default()).encode_to_vec();
        assert_eq!(other(&model), None);
        assert_eq!(other(&[0, 1, 2, 3]), None);
    }
}
