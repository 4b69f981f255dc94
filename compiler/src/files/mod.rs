//! Files that are read: models, and the external data of their tensors.

pub mod external;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

use onnxc_ir::error::{Error, Kind, Result, Stage};

pub fn io_error(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Stage::Io, Kind::Io, format!("{}: {error}", path.display()))
}

/// The bytes of a model: a file mapped into memory, or what was read from a pipe. They may be shared.
pub struct Mapped {
    bytes: Bytes,
    /// Of a file that is not empty.
    map: Option<Arc<Mmap>>,
}

struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Mapped {
    pub fn open(path: &Path) -> Result<Mapped> {
        let fail = |error: std::io::Error| io_error(path, &error);
        let (file, metadata) = open_regular(path)?;
        if metadata.len() == 0 {
            return Ok(Mapped { bytes: Bytes::new(), map: None });
        }
        // SAFETY: the mapping is private and read-only, and lives as long as the bytes handed out. Whoever changes a
        // file while it is read gets what they ask for.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(fail)?);
        Ok(Mapped { bytes: Bytes::from_owner(Owner(map.clone())), map: Some(map) })
    }

    /// Reads to the end of a pipe or another stream.
    pub fn read(stream: &mut dyn std::io::Read) -> std::io::Result<Mapped> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(Mapped { bytes: bytes.into(), map: None })
    }

    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Gives the memory of the file's pages back; reading them again reads the file.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            // SAFETY: the mapping is of a file and read-only, so nothing is lost. Failure costs memory only.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }
}

/// Opens a file to read. Anything else is refused without waiting for whoever may write into it.
fn open_regular(path: &Path) -> Result<(File, fs::Metadata)> {
    let fail = |error: std::io::Error| io_error(path, &error);
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => {
            let message = format!(
                "{}: not a regular file; a pipe or a device must be copied to one first, or `-` reads standard input",
                path.display()
            );
            Err(Error::new(Stage::Io, Kind::Usage, message))
        }
    }
}
