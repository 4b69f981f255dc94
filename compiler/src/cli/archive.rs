//! Tensors by their names in one file: NumPy's `.npz`, a zip archive of `.npy` files, without compression, as `numpy.savez` writes it.

use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::cli::files::{npy_header, parse_npy};
use crate::cli::session::usage;
use crate::files::{Mapped, io_error};
use onnxc_ir::error::{Error, Result};
use onnxc_ir::graph::{DType, Tensor};

/// Whether a file is to have this form.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"))
}

/// Writes tensors into `file`, which belongs at `place`. Equal tensors make equal files.
pub fn write(file: &mut File, place: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let mut archive = ZipWriter::new(file);
    let failed = |error: ZipError| match error {
        ZipError::Io(error) => io_error(place, &error),
        error => fault(place, error),
    };
    for (name, tensor) in tensors {
        let header = npy_header(tensor).map_err(|what| fault(place, what))?;
        let bytes = header.len() + tensor.data.len();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(bytes).is_err());
        archive.start_file(format!("{name}.npy"), options).map_err(failed)?;
        for part in [&header[..], &tensor.data] {
            archive.write_all(part).map_err(|error| io_error(place, &error))?;
        }
    }
    archive.finish().map(drop).map_err(failed)
}

/// The tensors of an archive; `expected` gives the type of those that `.npy` has no name for.
pub fn read(path: &Path, expected: &dyn Fn(&str) -> Option<DType>) -> Result<Vec<(String, Tensor)>> {
    let mapped = Mapped::open(path)?.bytes();
    parse(&mapped, expected).map_err(|what| fault(path, what))
}

fn parse(
    bytes: &[u8],
    expected: &dyn Fn(&str) -> Option<DType>,
) -> std::result::Result<Vec<(String, Tensor)>, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| format!("not a zip archive, as .npz files are: {error}"))?;
    let mut tensors = vec![];
    for at in 0..archive.len() {
        let record = archive.by_index_raw(at).map_err(|error| error.to_string())?;
        let name = record.name().to_string();
        let method = record.compression();
        drop(record);
        if method != CompressionMethod::Stored {
            return Err(format!("`{name}` is compressed; numpy.savez does not compress"));
        }
        let Some(own) = name.strip_suffix(".npy") else {
            return Err(format!("`{name}` is not a .npy file"));
        };
        let mut file = archive.by_index(at).map_err(|error| format!("`{name}`: {error}"))?;
        let mut data = vec![];
        file.read_to_end(&mut data).map_err(|error| format!("`{name}`: {error}"))?;
        let tensor = parse_npy(&data, expected(own)).map_err(|what| format!("`{name}`: {what}"))?;
        tensors.push((own.to_string(), tensor));
    }
    Ok(tensors)
}

fn fault(path: &Path, what: impl std::fmt::Display) -> Error {
    usage(format!("{}: {what}", path.display()))
}
