//! Tensors in files: NumPy's `.npy`, and `.pb` with an ONNX `TensorProto`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::cli::output;
use crate::files::{Mapped, io_error};
use onnxc_import as import;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Op, Tensor};
use onnxc_ir::interp;

const MAGIC: &[u8] = b"\x93NUMPY";

fn bad(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(Stage::Io, Kind::Usage, format!("{}: {what}", path.display()))
}

/// A tensor from a `.npy` or `.pb` file, distinguished by their first bytes. `.npy` has no name for some element types
/// of ONNX: `expected` is what raw bytes of its size are taken for.
pub fn read_tensor(path: &Path, expected: Option<DType>) -> Result<Tensor> {
    let bytes = Mapped::open(path)?.bytes();
    if bytes.starts_with(MAGIC) {
        return parse_npy(&bytes, expected).map_err(|what| bad(path, what));
    }
    let proto = onnxc_proto::decode_tensor(bytes, &onnxc_proto::Budget::default());
    let proto = proto.map_err(|error| bad(path, format!("neither .npy nor a TensorProto: {error}")))?;
    import::dense_tensor(&proto).map_err(|error| bad(path, error))
}

/// Files `PREFIX_0.pb`, `PREFIX_1.pb`, ... of a folder of test data; some may be `.json`.
pub fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let file = |at: usize| {
        let forms = ["pb", "json"].map(|form| folder.join(format!("{prefix}_{at}.{form}")));
        forms.into_iter().find(|path| path.exists())
    };
    (0..).map_while(file).collect()
}

/// Writes a tensor as `.npy`.
pub fn write_npy(path: &Path, tensor: &Tensor) -> Result<()> {
    output::write_file(path, &mut |file| write_npy_to(file, path, tensor))
}

/// Writes a tensor as `.npy` into `file`, which belongs at `place`.
pub fn write_npy_to(file: &mut File, place: &Path, tensor: &Tensor) -> Result<()> {
    let header = npy_header(tensor).map_err(|what| bad(place, what))?;
    let written = file.write_all(&header).and_then(|()| file.write_all(&tensor.data));
    written.map_err(|error| io_error(place, &error))
}

/// NumPy's name of an element type; types it does not have are raw bytes of their size.
fn descr(dtype: DType) -> std::result::Result<String, String> {
    let kind = match dtype {
        DType::F16 | DType::F32 | DType::F64 => 'f',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        DType::Bool => 'b',
        DType::C64 | DType::C128 => 'c',
        DType::Str => return Err("strings have no .npy form".to_string()),
        _ => 'V',
    };
    Ok(format!("{}{kind}{}", if dtype.size() == 1 { '|' } else { '<' }, dtype.size()))
}

/// What comes before the data in a `.npy` file (format version 1.0, or 2.0 for a header of more than 64 KiB).
pub fn npy_header(tensor: &Tensor) -> std::result::Result<Vec<u8>, String> {
    let sizes: String = tensor.shape.iter().map(|size| format!("{size}, ")).collect();
    let sizes = if tensor.shape.len() > 1 { sizes.trim_end_matches([',', ' ']) } else { sizes.trim_end() };
    let descr = descr(tensor.dtype)?;
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let length_bytes = if header.len() > 65_000 { 4 } else { 2 };
    let prefix = MAGIC.len() + 2 + length_bytes;
    let total = (prefix + header.len() + 1).next_multiple_of(64);
    header.extend(std::iter::repeat_n(' ', total - prefix - header.len() - 1));
    header.push('\n');
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[if length_bytes == 2 { 1 } else { 2 }, 0]);
    out.extend_from_slice(&(header.len() as u32).to_le_bytes()[..length_bytes]);
    out.extend_from_slice(header.as_bytes());
    Ok(out)
}

/// Reads the bytes of a `.npy` file; see [`read_tensor`] about `expected`.
pub fn parse_npy(bytes: &[u8], expected: Option<DType>) -> std::result::Result<Tensor, String> {
    let (header, data) = split_npy(bytes).ok_or("the .npy header is cut short")?;
    let header = std::str::from_utf8(header).map_err(|_| "the .npy header is not text")?;
    let field = |name: &str| {
        let at = header.find(&format!("'{name}'")).ok_or(format!("the .npy header has no {name}"))?;
        let value = header[at..].split_once(':').map_or("", |(_, value)| value).trim_start();
        Ok::<&str, String>(value)
    };
    let descr = field("descr")?.strip_prefix('\'').and_then(|text| text.split('\'').next());
    let dtype = parse_descr(descr.ok_or("the .npy file holds records, not a plain tensor")?, expected)?;
    let shape = field("shape")?.strip_prefix('(').and_then(|text| text.split(')').next());
    let sizes = shape.ok_or("the .npy header has no shape")?.split(',').map(str::trim);
    let mut shape: Vec<usize> = sizes
        .filter(|size| !size.is_empty())
        .map(|size| size.parse().map_err(|_| format!("`{size}` in the shape of the .npy file")))
        .collect::<std::result::Result<_, String>>()?;
    let wanted = shape.iter().try_fold(dtype.size(), |product, &size| product.checked_mul(size));
    if wanted != Some(data.len()) {
        return Err(format!("{} bytes of data for {dtype}{shape:?}", data.len()));
    }
    let data = Bytes::copy_from_slice(data);
    if !field("fortran_order")?.starts_with("True") {
        return Ok(Tensor::new(dtype, shape, data));
    }
    // Column-major data is row-major data of the axes in reverse.
    shape.reverse();
    let perm = (0..shape.len()).rev().collect();
    let reversed = Tensor::new(dtype, shape, data);
    let mut results =
        interp::eval(&Op::Transpose { perm }, &[&reversed]).map_err(|error| error.to_string())?;
    Ok(results.remove(0))
}

/// Header text and data.
fn split_npy(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_at_checked(2)?;
    let (length, rest) = match version[0] {
        1 => (usize::from(u16::from_le_bytes(rest.first_chunk::<2>().copied()?)), &rest[2..]),
        _ => (u32::from_le_bytes(rest.first_chunk::<4>().copied()?) as usize, &rest[4..]),
    };
    rest.split_at_checked(length)
}

fn parse_descr(descr: &str, expected: Option<DType>) -> std::result::Result<DType, String> {
    let raw = descr.trim_start_matches(['<', '|', '=']);
    if let Some(size) = raw.strip_prefix('V').and_then(|size| size.parse::<usize>().ok())
        && let Some(dtype) = expected.filter(|dtype| dtype.size() == size)
    {
        return Ok(dtype);
    }
    DType::all()
        .find(|&dtype| {
            self::descr(dtype)
                .is_ok_and(|name| !name.contains('V') && name.trim_start_matches(['<', '|']) == raw)
        })
        .ok_or_else(|| format!("elements of NumPy type `{descr}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a `.npy` file.
    fn npy(tensor: &Tensor) -> std::result::Result<Vec<u8>, String> {
        Ok([npy_header(tensor)?.as_slice(), tensor.data.as_ref()].concat())
    }

    #[test]
    fn npy_round_trips_every_element_type() {
        for dtype in DType::all().filter(|&dtype| dtype != DType::Str) {
            for shape in [vec![], vec![3], vec![2, 3], vec![0, 2]] {
                let bytes = shape.iter().product::<usize>() * dtype.size();
                let data: Vec<u8> = (0..bytes).map(|at| (at % 2) as u8).collect();
                let tensor = Tensor::new(dtype, shape, data.into());
                let bytes = npy(&tensor).unwrap();
                assert_eq!((bytes.len() - tensor.data.len()) % 64, 0);
                assert_eq!(parse_npy(&bytes, Some(dtype)).unwrap(), tensor);
            }
        }
    }

    #[test]
    fn npy_reads_column_major_data() {
        let row_major = Tensor::from_slice(&[2, 3], &[1i16, 2, 3, 4, 5, 6]);
        let column_major = Tensor::from_slice(&[2, 3], &[1i16, 4, 2, 5, 3, 6]);
        let bytes = npy(&column_major).unwrap();
        let mut changed = bytes.clone();
        let start = bytes.windows(5).position(|window| window == b"False").unwrap();
        changed[start..start + 5].copy_from_slice(b"True ");
        assert_eq!(parse_npy(&changed, None).unwrap(), row_major);
    }

    #[test]
    fn npy_faults_are_errors() {
        let good = npy(&Tensor::scalar(1.0f32)).unwrap();
        for length in 0..good.len() {
            assert!(parse_npy(&good[..length], None).is_err(), "{length}");
        }
        let text = |descr: &str| {
            let mut bytes = good.clone();
            let at = bytes.windows(3).position(|window| window == b"<f4").unwrap();
            bytes[at..at + 3].copy_from_slice(descr.as_bytes());
            parse_npy(&bytes, None).unwrap_err()
        };
        assert!(text(">f4").contains("`>f4`"));
        assert!(text("<U1").contains("`<U1`"));
        assert!(text("<V4").contains("`<V4`"));
    }
}
