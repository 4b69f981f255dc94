//! Tensors outside the model file: mapped files beneath the model's folder, and nothing else.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use memmap2::Mmap;

use crate::files::io_error;
use onnxc_import::ExternalData;
use onnxc_ir::error::{Error, Result, Stage};

/// External data of one model.
///
/// A location is a relative path of plain names. Where it leads after symbolic links must lie beneath the
/// model's folder, or beneath the root that the user gives instead, and be a regular file. Without such a
/// root a file with several hard links is refused as well: another name of it may lie anywhere.
pub struct ExternalFiles {
    folder: PathBuf,
    root: Option<PathBuf>,
    maps: Mutex<HashMap<PathBuf, Bytes>>,
    /// Checksums by location: many tensors state that of one file.
    sums: Mutex<HashMap<String, [u8; 20]>>,
}

impl ExternalFiles {
    /// Files beneath `folder`, the model's. `root` widens that to a folder the user trusts: links may lead
    /// anywhere beneath it, and locations that `folder` lacks are looked up in it.
    pub fn new(folder: &Path, root: Option<&Path>) -> Result<ExternalFiles> {
        // The folder of `model.onnx` is the empty path.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let canonical = |path: &Path| path.canonicalize().map_err(|error| io_error(path, &error));
        Ok(ExternalFiles {
            folder: canonical(folder)?,
            root: root.map(canonical).transpose()?,
            maps: Mutex::default(),
            sums: Mutex::default(),
        })
    }

    /// The files that were read so far.
    pub fn read_files(&self) -> Vec<PathBuf> {
        let maps = self.maps.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        maps.keys().cloned().collect()
    }

    fn resolve(&self, location: &str) -> Result<PathBuf> {
        check_location(location)?;
        let mut path = self.folder.join(location);
        if let Some(root) = &self.root
            && !path.exists()
        {
            path = root.join(location);
        }
        let real = path.canonicalize().map_err(|error| io_error(Path::new(location), &error))?;
        let within = self.root.as_ref().unwrap_or(&self.folder);
        if real.starts_with(within) || (self.root.is_some() && real.starts_with(&self.folder)) {
            return Ok(real);
        }
        Err(refused(location, "it leads out of the model's folder"))
    }

    fn map(&self, location: &str) -> Result<Bytes> {
        let path = self.resolve(location)?;
        let mut maps = self.maps.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(bytes) = maps.get(&path) {
            return Ok(bytes.clone());
        }
        let fail = |error: io::Error| io_error(Path::new(location), &error);
        let named = std::fs::symlink_metadata(&path).map_err(fail)?;
        if !named.is_file() {
            return Err(refused(location, "it is not a regular file"));
        }
        let file = File::open(&path).map_err(fail)?;
        let opened = file.metadata().map_err(fail)?;
        if !opened.is_file() || !same_file(&named, &opened) {
            return Err(refused(location, "it was replaced while it was opened"));
        }
        if self.root.is_none() && links(&opened) > 1 {
            return Err(refused(
                location,
                "it has several hard links, which may lie outside the model's folder",
            ));
        }
        // SAFETY: the mapping is private and read-only, and lives as long as the `Bytes` that own it. Whoever
        // changes a model's files while it is compiled gets what they ask for, as with any mapped file.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        let bytes = Bytes::from_owner(map);
        maps.insert(path, bytes.clone());
        Ok(bytes)
    }
}

impl ExternalData for ExternalFiles {
    fn read(&self, location: &str, offset: u64, length: Option<u64>) -> Result<Bytes> {
        let bytes = self.map(location)?;
        let size = bytes.len() as u64;
        let end = match length {
            Some(length) => offset.checked_add(length),
            None => Some(size),
        };
        match end {
            Some(end) if offset <= end && end <= size => Ok(bytes.slice(offset as usize..end as usize)),
            _ => {
                let wanted = length.map_or_else(|| "data".to_string(), |length| format!("{length} bytes"));
                let message =
                    format!("external data `{location}` has {size} bytes: no {wanted} at offset {offset}");
                Err(Error::malformed(Stage::Import, message))
            }
        }
    }

    fn sha1(&self, location: &str) -> Result<[u8; 20]> {
        let mut sums = self.sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(sum) = sums.get(location) {
            return Ok(*sum);
        }
        let sum = onnxc_ir::digest::sha1(&self.map(location)?);
        sums.insert(location.to_string(), sum);
        Ok(sum)
    }
}

/// Only plain names, because file systems interpret the rest differently.
fn check_location(location: &str) -> Result<()> {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
    let ok = !location.is_empty()
        && !location.contains(['\0', '\\'])
        && Path::new(location).components().all(plain);
    if ok { Ok(()) } else { Err(refused(location, "it must be a relative path of plain names")) }
}

fn refused(location: &str, reason: &str) -> Error {
    Error::malformed(Stage::Import, format!("external data `{location}` is refused: {reason}"))
}

#[cfg(unix)]
pub fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(unix)]
fn links(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

#[cfg(not(unix))]
pub fn same_file(a: &Metadata, b: &Metadata) -> bool {
    a.len() == b.len() && a.modified().ok() == b.modified().ok()
}

/// The standard library has link counts on Unix only.
#[cfg(not(unix))]
fn links(_: &Metadata) -> u64 {
    1
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use onnxc_ir::error::Kind;

    struct Setup {
        base: tempfile::TempDir,
    }

    /// `base/model/{weights.bin, sub/more.bin}` and `base/secret.bin`.
    fn setup() -> Setup {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("model/sub")).unwrap();
        fs::write(base.path().join("model/weights.bin"), [0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        fs::write(base.path().join("model/sub/more.bin"), [9; 4]).unwrap();
        fs::write(base.path().join("secret.bin"), [42; 8]).unwrap();
        Setup { base }
    }

    impl Setup {
        fn model(&self) -> PathBuf {
            self.base.path().join("model")
        }

        fn read(&self, location: &str) -> Result<Bytes> {
            ExternalFiles::new(&self.model(), None)?.read(location, 0, None)
        }

        fn refusal(&self, location: &str) -> String {
            self.read(location).unwrap_err().message
        }
    }

    #[test]
    fn reads_ranges_and_refuses_what_lies_outside() {
        let setup = setup();
        let files = ExternalFiles::new(&setup.model(), None).unwrap();
        assert_eq!(files.read("weights.bin", 2, Some(3)).unwrap().as_ref(), [2, 3, 4]);
        assert_eq!(files.read("./weights.bin", 6, None).unwrap().as_ref(), [6, 7]);
        assert_eq!(files.read("sub/more.bin", 0, Some(4)).unwrap().as_ref(), [9; 4]);
        assert!(files.read("weights.bin", 8, Some(0)).unwrap().is_empty());
        for (offset, length) in [(6, Some(3)), (9, None), (u64::MAX, Some(2))] {
            let error = files.read("weights.bin", offset, length).unwrap_err();
            assert!(error.message.contains("has 8 bytes"), "{error}");
        }
        // Both reads share one mapping.
        let a = files.read("weights.bin", 0, None).unwrap();
        assert_eq!(a.as_ptr(), files.read("weights.bin", 0, None).unwrap().as_ptr());
    }

    #[test]
    fn refuses_paths_that_are_not_plain() {
        let setup = setup();
        let absolute = setup.model().join("weights.bin");
        for location in ["", "../secret.bin", "sub/../weights.bin", absolute.to_str().unwrap(), "a\\b", "w\0"]
        {
            assert!(setup.refusal(location).contains("plain names"), "{location}");
        }
        assert_eq!(setup.read("missing.bin").unwrap_err().kind, Kind::Io);
        assert!(setup.refusal("sub").contains("regular file"));
    }

    #[test]
    fn follows_links_only_inside() {
        let setup = setup();
        symlink("weights.bin", setup.model().join("inside.bin")).unwrap();
        symlink("../secret.bin", setup.model().join("outside.bin")).unwrap();
        symlink("..", setup.model().join("up")).unwrap();
        assert_eq!(setup.read("inside.bin").unwrap().len(), 8);
        assert!(setup.refusal("outside.bin").contains("leads out"));
        assert!(setup.refusal("up/secret.bin").contains("leads out"));
    }

    #[test]
    fn refuses_hard_links() {
        let setup = setup();
        fs::hard_link(setup.base.path().join("secret.bin"), setup.model().join("hard.bin")).unwrap();
        assert!(setup.refusal("hard.bin").contains("hard links"));
    }

    #[test]
    fn a_root_widens_what_may_be_read() {
        let setup = setup();
        symlink("../secret.bin", setup.model().join("outside.bin")).unwrap();
        fs::hard_link(setup.base.path().join("secret.bin"), setup.model().join("hard.bin")).unwrap();
        symlink("/", setup.model().join("top")).unwrap();
        let files = ExternalFiles::new(&setup.model(), Some(setup.base.path())).unwrap();
        for location in ["outside.bin", "hard.bin", "secret.bin"] {
            assert_eq!(files.read(location, 0, None).unwrap().as_ref(), [42; 8], "{location}");
        }
        assert!(files.read("../secret.bin", 0, None).is_err());
        assert!(files.read("top/etc/passwd", 0, None).is_err());
    }
}
