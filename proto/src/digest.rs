//! Digests of the schemas and of the code generated from them, shared by the generator and the test that holds them together.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

const FILES: [&str; 4] =
    ["proto/onnx.proto", "proto/onnx-data.proto", "src/generated/onnx.rs", "src/generated/messages.rs"];

/// A line for each file: its digest (FNV-1a, 64 bits, of the text without carriage returns) and its path. `proto` is the crate's folder.
pub(crate) fn of_files(proto: &Path) -> io::Result<String> {
    let mut lines = String::new();
    for file in FILES {
        let text = fs::read(proto.join(file))?;
        let digest =
            text.iter().filter(|&&byte| byte != b'\r').fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        writeln!(lines, "{digest:016x} {file}").expect("a string takes any text");
    }
    Ok(lines)
}
