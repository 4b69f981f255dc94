//! Files of weights: those of models that were compiled with their weights apart. The compiler writes them, programs map them.
//!
//! A file begins with words of 64 bits in the byte order of its target, see [`word`], and the name of its model. The constants follow at
//! [`HEADER_BYTES`], each at a multiple of 64 bytes from the start of the file, as the kernels read them; behind them a text that lists
//! what the layout is for, a line each.

use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::abi::{Model, Options, Status};
use crate::limits::{Refusal, report};
use crate::sha256::{Sha256, sha256};

/// `ONNXCWTS`, as a number: files of the other byte order do not have it.
pub const MAGIC: u64 = 0x4f4e_4e58_4357_5453;

/// Version of the format.
pub const VERSION: u64 = 1;

/// Where the constants begin.
pub const HEADER_BYTES: usize = 256;

/// Where the name of the model is, which ends with a zero.
pub const NAME: usize = 128;

/// Most bytes of the name.
pub const NAME_BYTES: usize = HEADER_BYTES - NAME - 1;

/// Alignment of a file in memory, bytes.
pub const ALIGNMENT: usize = 64;

/// Numbers of the words.
pub mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// Bytes that a run needs: up to the end of the constants.
    pub const BYTES: usize = 2;
    /// Bytes of the file.
    pub const FILE_BYTES: usize = 3;
    /// Four words: SHA-256 of what the layout depends on.
    pub const LAYOUT: usize = 4;
    /// Four words: SHA-256 of the constants, from `HEADER_BYTES` on.
    pub const CONTENT: usize = 8;
    pub const LISTING: usize = 12;
    pub const LISTING_BYTES: usize = 13;
    /// The first 32 bits of the layout's digest, by which messages of runs name it.
    pub const NUMBER: usize = 14;
}

/// Keys of the metadata of a model whose weights are apart: the digest of its layout as hexadecimal digits, and the bytes that a run needs.
pub const LAYOUT_KEY: &str = "onnxc.weights.layout";
pub const BYTES_KEY: &str = "onnxc.weights.bytes";

/// A digest as words of the header.
pub fn words(digest: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|at| digest[8 * at..][..8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}

/// See [`word::NUMBER`].
pub fn number(digest: &[u8; 32]) -> u64 {
    words(digest)[0] >> 32
}

/// A digest as hexadecimal digits.
pub fn hex(words: [u64; 4]) -> String {
    words.iter().map(|word| format!("{word:016x}")).collect()
}

fn refuse<T>(status: Status, message: String) -> Result<T, Refusal> {
    Err(Refusal::new(status, message))
}

/// The header of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    pub model: String,
    pub layout: [u64; 4],
    pub content: [u64; 4],
    pub bytes: u64,
    pub file_bytes: u64,
    listing: (u64, u64),
    /// It has the byte order of another machine.
    turned: bool,
}

impl Header {
    /// Reads a header, also one of another byte order. Errors: it is none, or the file is cut off.
    pub fn read(data: &[u8]) -> Result<Header, Refusal> {
        let word = |at: usize| {
            data.get(8 * at..8 * at + 8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
        };
        let magic = word(word::MAGIC);
        let turned = magic == Some(MAGIC.swap_bytes());
        if magic != Some(MAGIC) && !turned {
            return refuse(Status::BAD_WEIGHTS, "it is not a file of weights".into());
        }
        if data.len() < HEADER_BYTES {
            return refuse(
                Status::BAD_WEIGHTS,
                format!("it has {} bytes, and the header alone has {HEADER_BYTES}", data.len()),
            );
        }
        let word = |at: usize| {
            let word = word(at).unwrap_or_default();
            if turned { word.swap_bytes() } else { word }
        };
        let version = word(word::VERSION);
        if version != VERSION {
            return refuse(
                Status::BAD_WEIGHTS,
                format!("its format has the version {version}, and this is for version {VERSION}"),
            );
        }
        let name = &data[NAME..HEADER_BYTES];
        let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
        let four = |first: usize| std::array::from_fn(|at| word(first + at));
        let header = Header {
            model: String::from_utf8_lossy(name).into_owned(),
            layout: four(word::LAYOUT),
            content: four(word::CONTENT),
            bytes: word(word::BYTES),
            file_bytes: word(word::FILE_BYTES),
            listing: (word(word::LISTING), word(word::LISTING_BYTES)),
            turned,
        };
        if (data.len() as u64) < header.bytes || header.bytes < HEADER_BYTES as u64 {
            return refuse(
                Status::BAD_WEIGHTS,
                format!(
                    "it has {} bytes, and the weights of `{}` have {}",
                    data.len(),
                    header.model,
                    header.bytes
                ),
            );
        }
        Ok(header)
    }

    /// The listing of the layout.
    pub fn listing<'d>(&self, data: &'d [u8]) -> Option<&'d str> {
        let start = usize::try_from(self.listing.0).ok()?;
        let end = start.checked_add(usize::try_from(self.listing.1).ok()?)?;
        std::str::from_utf8(data.get(start..end)?).ok()
    }

    /// The constants.
    pub fn constants<'d>(&self, data: &'d [u8]) -> &'d [u8] {
        data.get(HEADER_BYTES..self.bytes as usize).unwrap_or_default()
    }

    /// Fails where the constants are not those that were written.
    pub fn check_content(&self, data: &[u8]) -> Result<(), Refusal> {
        let found = words(&sha256(self.constants(data)));
        if found == self.content {
            return Ok(());
        }
        let [found, wanted] = [found, self.content].map(hex);
        refuse(
            Status::BAD_WEIGHTS,
            format!("it is damaged: the digest of its weights is {found}, and the header says {wanted}"),
        )
    }
}

/// Fails where a file in memory is not one that the model takes. Its contents are not looked at.
pub fn check(model: &Model, data: &[u8]) -> Result<Header, Refusal> {
    // SAFETY: a reference to a model is one that its function gave.
    let (own, metadata) = unsafe { (model.name(), model.metadata()) };
    let find = |key: &str| metadata.iter().find(|entry| entry.0 == key).map(|entry| entry.1.as_str());
    let Some(layout) = find(LAYOUT_KEY) else {
        return refuse(
            Status::OTHER_WEIGHTS,
            format!("the model `{own}` has its weights in the object and takes no others"),
        );
    };
    let header = Header::read(data)?;
    if header.turned {
        return refuse(
            Status::OTHER_WEIGHTS,
            format!("the weights of `{}` are for machines of another byte order than `{own}`", header.model),
        );
    }
    let found = hex(header.layout);
    if found != layout {
        return refuse(
            Status::OTHER_WEIGHTS,
            format!(
                "the weights are of `{}` with the layout {found}, and `{own}` takes the layout {layout}: they are of another model, or \
                 were compiled with other options or another version",
                header.model
            ),
        );
    }
    Ok(header)
}

/// A file in memory, which processes share.
pub struct Weights {
    map: Map,
    header: Header,
}

impl Weights {
    /// Maps a file and checks that it is one of the model's, and that its contents are what was written.
    pub fn open(path: &Path, model: &Model) -> Result<Weights, Refusal> {
        let weights = Weights::map(path, |data| check(model, data))?;
        weights.header.check_content(weights.data()).map_err(|refusal| of_file(path, refusal))?;
        Ok(weights)
    }

    /// Maps a file of any model, and checks its contents.
    pub fn open_any(path: &Path) -> Result<Weights, Refusal> {
        let weights = Weights::map(path, Header::read)?;
        weights.header.check_content(weights.data()).map_err(|refusal| of_file(path, refusal))?;
        Ok(weights)
    }

    fn map(path: &Path, check: impl Fn(&[u8]) -> Result<Header, Refusal>) -> Result<Weights, Refusal> {
        let fail =
            |error: std::io::Error| of_file(path, Refusal::new(Status::BAD_WEIGHTS, error.to_string()));
        let file = File::open(path).map_err(fail)?;
        let map = Map::new(&file).map_err(fail)?;
        let header = check(map.data()).map_err(|refusal| of_file(path, refusal))?;
        Ok(Weights { map, header })
    }

    pub fn data(&self) -> &[u8] {
        self.map.data()
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Has runs with these options use the weights, which must live as long.
    pub fn bind(&self, options: &mut Options) {
        options.weights = self.data().as_ptr().cast();
        options.weights_bytes = self.data().len();
    }
}

fn of_file(path: &Path, refusal: Refusal) -> Refusal {
    Refusal { message: format!("{}: {}", path.display(), refusal.message), ..refusal }
}

/// Bytes of a file, read only and shared by all processes that map it.
struct Map {
    start: *const u8,
    bytes: usize,
}

// SAFETY: nobody writes to it.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &File) -> std::io::Result<Map> {
        let bytes = usize::try_from(file.metadata()?.len())
            .map_err(|_| std::io::Error::other("it is larger than memory"))?;
        if bytes == 0 {
            return Ok(Map { start: std::ptr::dangling(), bytes: 0 });
        }
        Ok(Map { start: system::map(file, bytes)?, bytes })
    }

    fn data(&self) -> &[u8] {
        // SAFETY: the mapping has these bytes for as long as it is there.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `map` gave it with these bytes.
            unsafe { system::unmap(self.start, self.bytes) };
        }
    }
}

#[cfg(unix)]
mod system {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    const PROT_READ: c_int = 1;
    const MAP_SHARED: c_int = 1;

    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            bytes: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    }

    pub(super) fn map(file: &File, bytes: usize) -> io::Result<*const u8> {
        // SAFETY: a new mapping anywhere.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_READ, MAP_SHARED, file.as_raw_fd(), 0) };
        if start.addr() == usize::MAX {
            Err(io::Error::last_os_error())
        } else {
            Ok(start.cast_const().cast())
        }
    }

    /// # Safety
    /// `map` gave it.
    pub(super) unsafe fn unmap(start: *const u8, bytes: usize) {
        // SAFETY: the caller says so.
        unsafe { munmap(start.cast_mut().cast(), bytes) };
    }
}

#[cfg(windows)]
mod system {
    use std::ffi::c_void;
    use std::fs::File;
    use std::io;
    use std::os::windows::io::AsRawHandle;

    const PAGE_READONLY: u32 = 2;
    const FILE_MAP_READ: u32 = 4;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn CreateFileMappingW(
            file: *mut c_void,
            attributes: *const c_void,
            protection: u32,
            high: u32,
            low: u32,
            name: *const u16,
        ) -> *mut c_void;
        fn MapViewOfFile(mapping: *mut c_void, access: u32, high: u32, low: u32, bytes: usize)
        -> *mut c_void;
        fn UnmapViewOfFile(at: *const c_void) -> i32;
        fn CloseHandle(handle: *mut c_void) -> i32;
    }

    pub fn map(file: &File, bytes: usize) -> io::Result<*const u8> {
        // SAFETY: a new mapping anywhere; the view keeps it when the handle is closed.
        unsafe {
            let none = std::ptr::null();
            let mapping =
                CreateFileMappingW(file.as_raw_handle(), none, PAGE_READONLY, 0, 0, std::ptr::null());
            if mapping.is_null() {
                return Err(io::Error::last_os_error());
            }
            let start = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
            let error = io::Error::last_os_error();
            CloseHandle(mapping);
            if start.is_null() { Err(error) } else { Ok(start.cast_const().cast()) }
        }
    }

    /// # Safety
    /// `map` gave it.
    pub unsafe fn unmap(start: *const u8, _: usize) {
        // SAFETY: the caller says so.
        unsafe { UnmapViewOfFile(start.cast()) };
    }
}

/// Without mappings: a copy.
#[cfg(not(any(unix, windows)))]
mod system {
    use std::alloc::{Layout, alloc, dealloc};
    use std::fs::File;
    use std::io::{self, Read};

    pub fn map(mut file: &File, bytes: usize) -> io::Result<*const u8> {
        let layout = Layout::from_size_align(bytes, super::ALIGNMENT).map_err(io::Error::other)?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the block has these bytes.
        let read = file.read_exact(unsafe { std::slice::from_raw_parts_mut(start, bytes) });
        if let Err(error) = read {
            // SAFETY: it was allocated like that.
            unsafe { dealloc(start, layout) };
            return Err(error);
        }
        Ok(start)
    }

    /// # Safety
    /// `map` gave it.
    pub unsafe fn unmap(start: *const u8, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, super::ALIGNMENT) {
            // SAFETY: the caller says so.
            unsafe { dealloc(start.cast_mut(), layout) };
        }
    }
}

/// Writes a file: the header takes its place when the rest is known.
pub struct Writer<W> {
    out: W,
    content: Sha256,
    /// Bytes of constants so far.
    bytes: u64,
    turned: bool,
}

impl<W: std::io::Write + std::io::Seek> Writer<W> {
    /// `little`: the byte order of the target.
    pub fn new(mut out: W, little: bool) -> std::io::Result<Writer<W>> {
        out.write_all(&[0; HEADER_BYTES])?;
        let turned = little != cfg!(target_endian = "little");
        Ok(Writer { out, content: Sha256::default(), bytes: 0, turned })
    }

    /// Bytes of constants, in the target's order.
    pub fn constants(&mut self, data: &[u8]) -> std::io::Result<()> {
        self.content.update(data);
        self.bytes += data.len() as u64;
        self.out.write_all(data)
    }

    pub fn finish(mut self, model: &str, layout: &[u8; 32], listing: &str) -> std::io::Result<()> {
        self.out.write_all(listing.as_bytes())?;
        let mut header = [0; HEADER_BYTES];
        let end = HEADER_BYTES as u64 + self.bytes;
        let mut put = |at: usize, value: u64| {
            let value = if self.turned { value.swap_bytes() } else { value };
            header[8 * at..8 * at + 8].copy_from_slice(&value.to_ne_bytes());
        };
        put(word::MAGIC, MAGIC);
        put(word::VERSION, VERSION);
        put(word::BYTES, end);
        put(word::FILE_BYTES, end + listing.len() as u64);
        (0..4).zip(words(layout)).for_each(|(at, own)| put(word::LAYOUT + at, own));
        (0..4).zip(words(&self.content.finish())).for_each(|(at, own)| put(word::CONTENT + at, own));
        put(word::LISTING, end);
        put(word::LISTING_BYTES, listing.len() as u64);
        put(word::NUMBER, number(layout));
        let mut length = model.len().min(NAME_BYTES);
        while !model.is_char_boundary(length) {
            length -= 1;
        }
        header[NAME..NAME + length].copy_from_slice(&model.as_bytes()[..length]);
        self.out.seek(std::io::SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.flush()
    }
}

/// `onnxc_weights`
#[derive(Debug)]
#[repr(C)]
pub struct Mapped {
    pub data: *const c_void,
    pub bytes: usize,
    file: *mut c_void,
}

/// Maps a file of weights, shared with all processes that do so, and checks that it is one of the model's and not damaged. A failure is
/// described in `message`, and leaves nothing to be unmapped.
///
/// # Safety
/// As `onnxc.h` has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_weights_map(
    path: *const c_char,
    model: *const Model,
    weights: *mut Mapped,
    message: *mut c_char,
    capacity: usize,
) -> Status {
    let open = || {
        // SAFETY: the caller says so.
        let Some(model) = (unsafe { model.as_ref() }).filter(|_| !path.is_null() && !weights.is_null())
        else {
            return refuse(Status::NULL_POINTER, "the path, the model or the weights are null".into());
        };
        // SAFETY: as above.
        Weights::open(&path_of(unsafe { CStr::from_ptr(path) }), model)
    };
    let opened = catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| refuse(Status::BAD_WEIGHTS, "the file cannot be read".into()));
    let refusal = match opened {
        Ok(opened) => {
            let (data, bytes) = (opened.data().as_ptr().cast(), opened.data().len());
            let mapped = Mapped { data, bytes, file: Box::into_raw(Box::new(opened)).cast() };
            // SAFETY: as above.
            unsafe { weights.write(mapped) };
            return Status::OK;
        }
        Err(refusal) => refusal,
    };
    if !weights.is_null() {
        // SAFETY: as above.
        unsafe { weights.write(Mapped { data: std::ptr::null(), bytes: 0, file: std::ptr::null_mut() }) };
    }
    // SAFETY: as above.
    unsafe { report(Err(refusal), message, capacity) }
}

#[cfg(unix)]
fn path_of(path: &CStr) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()))
}

#[cfg(not(unix))]
fn path_of(path: &CStr) -> PathBuf {
    PathBuf::from(path.to_string_lossy().into_owned())
}

/// Gives back what `onnxc_weights_map` gave; no run may use it any more.
///
/// # Safety
/// As `onnxc.h` has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_weights_unmap(weights: *mut Mapped) {
    // SAFETY: the caller says so.
    let Some(weights) = (unsafe { weights.as_mut() }) else { return };
    let file = std::mem::replace(&mut weights.file, std::ptr::null_mut());
    (weights.data, weights.bytes) = (std::ptr::null(), 0);
    if !file.is_null() {
        // SAFETY: `onnxc_weights_map` made it of a box.
        drop(unsafe { Box::from_raw(file.cast::<Weights>()) });
    }
}
