//! Tensors by names in one file: what is written, read, and refused.

use std::fs::{self, File};
use std::path::Path;

use onnxc::cli::archive;
use onnxc_ir::graph::{DType, Tensor};

fn read(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Tensor)>, String> {
    fs::write(path, bytes).unwrap();
    let expected = |name: &str| (name == "half").then_some(DType::BF16);
    archive::read(path, &expected).map_err(|error| error.to_string())
}

fn written(path: &Path, tensors: &[(String, Tensor)]) -> Vec<u8> {
    archive::write(&mut File::create(path).unwrap(), path, tensors).unwrap();
    fs::read(path).unwrap()
}

/// By its definition, a bit at a time.
fn crc(bytes: &[u8]) -> u32 {
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
    !bits.fold(!0, |crc, bit| if (crc ^ bit) & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
}

#[test]
fn tensors_come_back() {
    assert_eq!(crc(b"123456789"), 0xcbf4_3926);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let tensors = vec![
        ("w/0".to_string(), Tensor::from_slice(&[2, 2], &[1.0f32, -0.0, f32::NAN, 3.5])),
        ("gr\u{f6}\u{df}e".to_string(), Tensor::scalar(7i64)),
        ("none".to_string(), Tensor::from_slice(&[0, 3], &[0u8; 0])),
        ("half".to_string(), Tensor::new(DType::BF16, vec![1], vec![1, 2].into())),
    ];
    let bytes = written(&path, &tensors);
    let found = read(&path, &bytes).unwrap();
    assert_eq!(found.len(), tensors.len());
    for ((name, tensor), (wanted_name, wanted)) in found.iter().zip(&tensors) {
        assert_eq!((name, &tensor.shape, &tensor.data), (wanted_name, &wanted.shape, &wanted.data));
    }
    // The first record: 30 bytes, the name, what it is of.
    let size = u32::from_le_bytes(bytes[18..22].try_into().unwrap()) as usize;
    let content = &bytes[30 + "w/0.npy".len()..][..size];
    assert_eq!(bytes[14..18], crc(content).to_le_bytes());
    let none = written(&path, &[]);
    assert!(read(&path, &none).unwrap().is_empty());
}

/// No bytes make it panic.
#[test]
fn faults_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let bytes = written(&path, &[("w".to_string(), Tensor::from_slice(&[3], &[1.0f32, 2.0, 3.0]))]);
    for length in 0..bytes.len() {
        assert!(read(&path, &bytes[..length]).is_err(), "{length}");
    }
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let _ = read(&path, &changed);
        }
    }
    // The record at the end has 22 bytes, that of the only file 46 and its name.
    let central = bytes.len() - 22 - 46 - "w.npy".len();
    for (at, value, wanted) in [
        (central + 10, 8, "`w.npy` is compressed; numpy.savez does not compress"),
        (central, 0, "not a zip archive, as .npz files are"),
        (central + 16, bytes[central + 16] ^ 1, "`w.npy`: Invalid checksum"),
        (central + 46 + 4, b'x', "`w.npx` is not a .npy file"),
    ] {
        let mut changed = bytes.clone();
        changed[at] = value;
        let found = read(&path, &changed).unwrap_err();
        assert!(found.contains(wanted), "{found}");
    }
}
