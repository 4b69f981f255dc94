//! Shared libraries out of one object, without a linker: with ELF, DLLs for Windows, and with Mach-O.
//!
//! An object of this compiler refers to itself by distances, and to a few functions outside by name (`memcpy`, the runtime of strings).
//! So a library is the object's sections, placed in segments, with the distances filled in, a table of addresses that the loader
//! fills, a jump through it for each function that is called by distance, and the names that the loader looks up.

mod elf;
mod machine;
pub(super) mod macho;
mod pe;
mod unwind;

use std::io::Write;

use cranelift_object::object::FileKind;
use target_lexicon::{Architecture, BinaryFormat, OperatingSystem, Triple};

use onnxc_ir::error::{Error, Kind, Result, Stage};

/// Whether libraries of a target are written here. Of Apple's systems, those for macOS are: the others load what is signed as a
/// part of a program.
pub fn is_supported(triple: &Triple) -> bool {
    let format = matches!(
        (triple.binary_format, triple.operating_system),
        (BinaryFormat::Elf | BinaryFormat::Coff, _)
            | (BinaryFormat::Macho, OperatingSystem::Darwin(_) | OperatingSystem::MacOSX(_))
    );
    let machine = match triple.architecture {
        Architecture::X86_64 => true,
        Architecture::Aarch64(aarch64) => aarch64.endianness() == target_lexicon::Endianness::Little,
        _ => false,
    };
    format && machine
}

/// Writes the shared library of an object, which programs find by `name`. Errors: a relocation that is not known or does not fit, and
/// those of `out`.
pub fn write(object: &[u8], name: &str, out: &mut dyn Write) -> Result<()> {
    match FileKind::parse(object).map_err(bad)? {
        FileKind::Elf64 => elf::write(object, name, out),
        FileKind::MachO64 => macho::write(object, name, out),
        FileKind::Coff => pe::write(object, name, out),
        _ => Err(bad("its format is not known")),
    }
}

fn bad(what: impl std::fmt::Display) -> Error {
    Error::internal(Stage::Emit, format!("no shared library of this object: {what}"))
}

/// Little-endian fields, one behind the other.
struct Fields<'b>(&'b mut Vec<u8>);

impl Fields<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }
}

/// A writer that counts.
struct Counted<'o> {
    out: &'o mut dyn Write,
    count: u64,
}

impl Counted<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.count += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|error| Error::new(Stage::Emit, Kind::Io, error.to_string()))
    }

    fn pad(&mut self, offset: u64) -> Result<()> {
        let gap = offset.checked_sub(self.count).ok_or_else(|| bad("sections overlap"))?;
        self.put(&vec![0; usize::try_from(gap).map_err(bad)?])
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| Error::new(Stage::Emit, Kind::Io, error.to_string()))
    }
}
