//! The functions that compiled models call.
//!
//! As those of strings they take the state of the run, then inputs, outputs and sizes: `[n]` below says that a pointer is to `n`
//! elements. `format` is 0 for RGB, 1 for BGR and 2 for gray. All return a [`Status`]:
//!
//! - `NULL_POINTER`: the state is null, or something that has elements;
//! - `BAD_SIZE`: a size is negative, or not the image's;
//! - `BAD_OPTIONS`: there is no such format;
//! - `OUT_OF_MEMORY`: the image needs more memory than there is, or more memory or work than is allowed;
//! - `CANCELLED`: the flag of the run was set meanwhile.

use onnxc_runtime_support::Status;
use onnxc_runtime_support::strings::State;

use crate::decode::decode_watched;
use crate::fault::Fault;
use crate::image::{Format, Image};
use crate::watch::Watch;

/// What is kept of an image between the two calls: these many bytes, the stream, the pixels. The first are a word for the format
/// and for each size.
const HEAD: usize = 24;

/// The height and the width of an image: `stream[n]`, `out[2]`. Both are 0 where the stream cannot be decoded for any reason: the
/// operator's result is empty then.
///
/// # Safety
/// `state` is null, or open and used by nobody else. The others are null or as described; nobody writes what is read meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_images_size(
    state: *mut State,
    stream: *const u8,
    out: *mut i64,
    n: i64,
    format: i64,
) -> Status {
    let size = || {
        // SAFETY: the caller says so.
        let (state, stream) = unsafe { (self::state(state)?, input(stream, n)?) };
        if out.is_null() {
            return Err(Status::NULL_POINTER);
        }
        let format = Format::of(format).ok_or(Status::BAD_OPTIONS)?;
        let [height, width] = size(state, stream, format)?;
        // SAFETY: `out` has two elements.
        unsafe { out.cast::<[i64; 2]>().write([height as i64, width as i64]) };
        Ok(())
    };
    status(size())
}

/// The pixels of an image whose sizes are known: `stream[n]`, `out[height * width * channels]`.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_images_decode(
    state: *mut State,
    stream: *const u8,
    out: *mut u8,
    n: i64,
    format: i64,
    height: i64,
    width: i64,
) -> Status {
    let decode = || {
        // SAFETY: the caller says so.
        let (state, stream) = unsafe { (self::state(state)?, input(stream, n)?) };
        let format = Format::of(format).ok_or(Status::BAD_OPTIONS)?;
        let sizes = [height, width].map(|size| usize::try_from(size).map_err(|_| Status::BAD_SIZE));
        let sizes = [sizes[0]?, sizes[1]?];
        let pixels = sizes[0].checked_mul(sizes[1]).and_then(|pixels| pixels.checked_mul(format.channels()));
        let bytes = pixels.filter(|&bytes| bytes <= isize::MAX as usize).ok_or(Status::BAD_SIZE)?;
        if bytes == 0 {
            return Ok(());
        }
        if out.is_null() {
            return Err(Status::NULL_POINTER);
        }
        // SAFETY: the caller says so.
        let out = unsafe { std::slice::from_raw_parts_mut(out, bytes) };
        pixels_of(state, stream, format, sizes, out)
    };
    status(decode())
}

fn status(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::OK)
}

/// # Safety
/// As for the functions.
unsafe fn state<'a>(state: *mut State) -> Result<&'a State, Status> {
    // SAFETY: the caller says so.
    unsafe { state.as_ref() }.ok_or(Status::NULL_POINTER)
}

/// # Safety
/// As for the functions.
unsafe fn input<'a>(stream: *const u8, n: i64) -> Result<&'a [u8], Status> {
    match usize::try_from(n).ok().filter(|&n| n <= isize::MAX as usize) {
        None => Err(Status::BAD_SIZE),
        Some(0) => Ok(&[]),
        Some(_) if stream.is_null() => Err(Status::NULL_POINTER),
        // SAFETY: the caller says so.
        Some(n) => Ok(unsafe { std::slice::from_raw_parts(stream, n) }),
    }
}

fn head(format: Format, sizes: [usize; 2]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    for (out, word) in head.as_chunks_mut().0.iter_mut().zip([format as usize, sizes[0], sizes[1]]) {
        *out = (word as u64).to_ne_bytes();
    }
    head
}

/// To know whether a stream can be decoded it has to be, so the pixels are kept for the call that follows.
fn size(state: &State, stream: &[u8], format: Format) -> Result<[usize; 2], Status> {
    let Some(image) = image_of(state, stream)? else { return Ok([0, 0]) };
    let sizes = [image.height, image.width];
    let pixels = image.height * image.width * format.channels();
    state.keep(HEAD + stream.len() + pixels, |kept| {
        let (head_out, rest) = kept.split_at_mut(HEAD);
        let (stream_out, pixels) = rest.split_at_mut(stream.len());
        head_out.copy_from_slice(&head(format, sizes));
        stream_out.copy_from_slice(stream);
        image.write(format, pixels);
    })?;
    Ok(sizes)
}

fn pixels_of(
    state: &State,
    stream: &[u8],
    format: Format,
    sizes: [usize; 2],
    out: &mut [u8],
) -> Result<(), Status> {
    // The whole stream is compared: another run of a loop may have another one at the same address.
    let found = state.kept(|kept| {
        let same = kept.strip_prefix(&head(format, sizes)).and_then(|rest| rest.strip_prefix(stream));
        same.filter(|pixels| pixels.len() == out.len()).map(|pixels| out.copy_from_slice(pixels)).is_some()
    });
    if found {
        return Ok(());
    }
    match image_of(state, stream)? {
        Some(image) if [image.height, image.width] == sizes => {
            image.write(format, out);
            Ok(())
        }
        _ => Err(Status::BAD_SIZE),
    }
}

/// The image of a stream, if it can be decoded.
fn image_of(state: &State, stream: &[u8]) -> Result<Option<Image>, Status> {
    match decode_watched(stream, &Watch::new(state.cancel())) {
        Ok(image) => Ok(Some(image)),
        Err(Fault::Undecodable) => Ok(None),
        Err(Fault::Memory | Fault::Work) => Err(Status::OUT_OF_MEMORY),
        Err(Fault::Cancelled) => Err(Status::CANCELLED),
    }
}
