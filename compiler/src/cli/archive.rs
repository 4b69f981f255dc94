//! Tensors by their names in one file: NumPy's `.npz`, a zip archive of `.npy` files, here without compression and below 4 GiB.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::cli::files::{npy_header, parse_npy};
use crate::cli::session::usage;
use crate::files::{Mapped, io_error};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Tensor};

/// Signatures of the records of zip.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;

/// Their bytes, without names.
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;

/// What a reader must be capable of, and that names are UTF-8.
const VERSION: u16 = 20;
const UTF8: u16 = 1 << 11;
/// The first of January 1980, so that equal tensors make equal files.
const DATE: u16 = 0x21;

/// The CRC of zip, of bytes one by one.
const CRCS: [u32; 256] = {
    let (mut table, mut at) = ([0; 256], 0);
    while at < 256 {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

fn crc(parts: [&[u8]; 2]) -> u32 {
    let next = |crc: u32, &byte: &u8| crc >> 8 ^ CRCS[(crc as u8 ^ byte) as usize];
    !parts.iter().copied().flatten().fold(!0, next)
}

/// Whether a file is to have this form.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npz"))
}

/// Writes tensors into `file`, which belongs at `place`.
pub fn write(file: &mut File, place: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let too_large = || usage(format!("{}: a .npz file of more than 4 GiB", place.display()));
    let mut central: Vec<u8> = vec![];
    let mut at = 0u64;
    let mut out = |bytes: &[u8]| file.write_all(bytes).map_err(|error| io_error(place, &error));
    for (name, tensor) in tensors {
        let header = npy_header(tensor).map_err(|what| usage(format!("{}: {what}", place.display())))?;
        let name = format!("{name}.npy");
        let length = u16::try_from(name.len()).map_err(|_| too_large())?;
        let bytes = u32::try_from(header.len() + tensor.data.len()).map_err(|_| too_large())?;
        // What both records have: version, flags, method, time, date, CRC, sizes, lengths of the name and of extra fields.
        let mut common: Vec<u8> =
            [VERSION, UTF8, 0, 0, DATE].iter().flat_map(|word| word.to_le_bytes()).collect();
        let numbers = [crc([&header, &tensor.data]), bytes, bytes];
        common.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        common.extend([length, 0].iter().flat_map(|word| word.to_le_bytes()));
        for part in [&LOCAL.to_le_bytes()[..], &common, name.as_bytes(), &header, &tensor.data] {
            out(part)?;
        }
        central.extend(CENTRAL.to_le_bytes().into_iter().chain(VERSION.to_le_bytes()));
        central.extend(&common);
        // No comment, on the first disk, no attributes.
        central.extend([0; 10]);
        central.extend(u32::try_from(at).map_err(|_| too_large())?.to_le_bytes());
        central.extend(name.as_bytes());
        at += (LOCAL_BYTES + name.len()) as u64 + u64::from(bytes);
    }
    let count = u16::try_from(tensors.len()).map_err(|_| too_large())?;
    let mut end: Vec<u8> = END.to_le_bytes().to_vec();
    end.extend([0, 0, count, count].iter().flat_map(|word| word.to_le_bytes()));
    let places = [central.len() as u64, at];
    for number in places {
        end.extend(u32::try_from(number).map_err(|_| too_large())?.to_le_bytes());
    }
    end.extend([0; 2]);
    out(&central)?;
    out(&end)
}

/// The tensors of an archive; `expected` gives the type of those that `.npy` has no name for.
pub fn read(path: &Path, expected: &dyn Fn(&str) -> Option<DType>) -> Result<Vec<(String, Tensor)>> {
    parse(&Mapped::open(path)?.bytes(), expected).map_err(|what| usage(format!("{}: {what}", path.display())))
}

fn parse(
    bytes: &[u8],
    expected: &dyn Fn(&str) -> Option<DType>,
) -> std::result::Result<Vec<(String, Tensor)>, String> {
    let cut = || "the archive is cut short".to_string();
    let word =
        |at: usize| Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?).into());
    let number = |at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    // A comment may be behind the last record.
    let last = bytes.len().checked_sub(END_BYTES).ok_or("not a zip archive, as .npz files are")?;
    let mut ends = (last.saturating_sub(usize::from(u16::MAX))..=last).rev();
    let end =
        ends.find(|&at| number(at) == Some(END as usize)).ok_or("not a zip archive, as .npz files are")?;
    let (count, mut at): (usize, usize) =
        (word(end + 10).ok_or_else(cut)?, number(end + 16).ok_or_else(cut)?);
    let mut tensors: Vec<(String, Tensor)> = vec![];
    for _ in 0..count {
        if number(at) != Some(CENTRAL as usize) {
            return Err("a record of the archive is not where it should be".to_string());
        }
        let [method, name, extra, comment]: [usize; 4] =
            [10, 28, 30, 32].map(|field| word(at + field).unwrap_or(usize::MAX));
        let [length, place] = [20, 42].map(|field| number(at + field).unwrap_or(usize::MAX));
        let text = bytes.get(at + CENTRAL_BYTES..).and_then(|rest| rest.get(..name)).ok_or_else(cut)?;
        let file = std::str::from_utf8(text).map_err(|_| "a name in the archive is not UTF-8")?;
        at += CENTRAL_BYTES + name + extra + comment;
        if method != 0 {
            return Err(format!("`{file}` is compressed; numpy.savez does not compress"));
        }
        if length == u32::MAX as usize || place == u32::MAX as usize {
            return Err(format!("`{file}` is beyond 4 GiB"));
        }
        let Some(own) = file.strip_suffix(".npy") else {
            return Err(format!("`{file}` is not a .npy file"));
        };
        let lengths = [26, 28].map(|field| word(place + field));
        let [Some(name), Some(extra)]: [Option<usize>; 2] = lengths else { return Err(cut()) };
        let data = bytes.get(place + LOCAL_BYTES + name + extra..).and_then(|rest| rest.get(..length));
        let tensor =
            parse_npy(data.ok_or_else(cut)?, expected(own)).map_err(|what| format!("`{file}`: {what}"))?;
        tensors.push((own.to_string(), tensor));
    }
    Ok(tensors)
}
