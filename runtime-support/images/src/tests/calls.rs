//! The functions that models call, with the memory that they take from the caller.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};

use onnxc_runtime_support::strings::{STATE_BYTES, State, onnxc_strings_close, onnxc_strings_open};
use onnxc_runtime_support::{Options, Status, alloc};

use super::{fnv, samples, testdata};
use crate::{onnxc_images_decode, onnxc_images_size};

/// Counts blocks that are in use; gives none where `refuses` says so.
#[derive(Default)]
struct Allocator {
    used: Cell<i64>,
    refuses: bool,
    /// There is none at all.
    missing: bool,
}

unsafe extern "C" fn allocate(context: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: `run` hands an allocator over.
    let allocator = unsafe { &*context.cast::<Allocator>() };
    if allocator.refuses {
        return std::ptr::null_mut();
    }
    allocator.used.set(allocator.used.get() + 1);
    // SAFETY: the caller asks for a block.
    unsafe { alloc::onnxc_allocate(std::ptr::null_mut(), bytes, alignment) }
}

unsafe extern "C" fn release(context: *mut c_void, block: *mut c_void, bytes: usize, alignment: usize) {
    // SAFETY: as above.
    let allocator = unsafe { &*context.cast::<Allocator>() };
    allocator.used.set(allocator.used.get() - 1);
    // SAFETY: the block is one of those above.
    unsafe { alloc::onnxc_release(std::ptr::null_mut(), block, bytes, alignment) };
}

/// Opens a state with an allocator, and checks that closing it gives all back.
fn run(mut allocator: Allocator, body: impl FnOnce(*mut State, &Allocator)) {
    let options = Options {
        allocate: (!allocator.missing).then_some(allocate),
        release: Some(release),
        allocator: (&raw mut allocator).cast(),
        ..Options::default()
    };
    let mut state = [0u64; STATE_BYTES / 8];
    let state: *mut State = state.as_mut_ptr().cast();
    // SAFETY: there is room for a state, and the allocator stays until it is closed.
    unsafe {
        assert_eq!(onnxc_strings_open(state, &options, std::ptr::null()), Status::OK);
        body(state, &allocator);
        onnxc_strings_close(state);
    }
    assert_eq!(allocator.used.get(), 0);
}

fn size(state: *mut State, stream: &[u8], format: i64) -> Result<[i64; 2], Status> {
    let mut sizes = [-1; 2];
    // SAFETY: the state is open, and all is as long as it is said to be.
    match unsafe {
        onnxc_images_size(state, stream.as_ptr(), sizes.as_mut_ptr(), stream.len() as i64, format)
    } {
        Status::OK => Ok(sizes),
        status => Err(status),
    }
}

fn pixels(
    state: *mut State,
    stream: &[u8],
    format: i64,
    [height, width]: [i64; 2],
) -> Result<Vec<u8>, Status> {
    let mut out = vec![0; (height * width) as usize * if format == 2 { 1 } else { 3 }];
    let (from, to, n) = (stream.as_ptr(), out.as_mut_ptr(), stream.len() as i64);
    // SAFETY: as above.
    match unsafe { onnxc_images_decode(state, from, to, n, format, height, width) } {
        Status::OK => Ok(out),
        status => Err(status),
    }
}

#[test]
fn sizes_and_then_pixels() {
    for missing in [false, true] {
        run(Allocator { missing, ..Allocator::default() }, |state, allocator| {
            for sample in samples() {
                for (format, hash) in [(0, sample.hashes[0]), (2, sample.hashes[1])] {
                    let sizes = size(state, &sample.stream, format).unwrap();
                    assert_eq!(sizes, sample.sizes.map(|size| size as i64));
                    assert_eq!(allocator.used.get(), i64::from(!missing));
                    let pixels = pixels(state, &sample.stream, format, sizes).unwrap();
                    assert_eq!(fnv(&pixels), hash, "{}", sample.name);
                    assert_eq!(allocator.used.get(), 0);
                }
            }
        });
    }
}

#[test]
fn what_is_kept_is_of_this_stream_and_this_format() {
    let (first, second) = (testdata("rgb.png"), testdata("rgb.bmp"));
    let (other, hash) = (testdata("444.jpg"), |pixels: Vec<u8>| fnv(&pixels));
    run(Allocator::default(), |state, _| {
        let sizes = size(state, &first, 0).unwrap();
        assert_eq!(size(state, &other, 0), Ok(sizes));
        let expected = pixels(state, &second, 0, sizes).map(hash);
        assert_eq!(pixels(state, &first, 0, sizes).map(hash), expected);
        assert_ne!(pixels(state, &other, 0, sizes).map(hash), expected);
        size(state, &first, 1).unwrap();
        assert_eq!(pixels(state, &first, 0, sizes).map(hash), expected);
        // What nobody asks for again is given back at the end.
        size(state, &first, 1).unwrap();
    });
}

#[test]
fn an_allocator_without_memory_fails_the_run() {
    let stream = testdata("rgb.png");
    run(Allocator { refuses: true, ..Allocator::default() }, |state, _| {
        assert_eq!(size(state, &stream, 0), Err(Status::OUT_OF_MEMORY));
        assert_eq!(size(state, b"nothing", 0), Ok([0, 0]));
    });
}

#[test]
fn the_flag_of_a_run_ends_it() {
    for sample in samples() {
        let cancel = AtomicI32::new(0);
        let options = Options { cancel: cancel.as_ptr(), ..Options::default() };
        let mut state = [0u64; STATE_BYTES / 8];
        let state: *mut State = state.as_mut_ptr().cast();
        // SAFETY: there is room for a state, and the flag stays until it is closed.
        unsafe {
            assert_eq!(onnxc_strings_open(state, &options, std::ptr::null()), Status::OK);
            let sizes = size(state, &sample.stream, 0).unwrap();
            cancel.store(1, Ordering::Relaxed);
            assert_eq!(size(state, &sample.stream, 0), Err(Status::CANCELLED), "{}", sample.name);
            assert_eq!(pixels(state, &sample.stream, 0, sizes), Err(Status::CANCELLED), "{}", sample.name);
            onnxc_strings_close(state);
        }
    }
}

#[test]
fn failures_have_a_status() {
    let stream = testdata("rgb.png");
    run(Allocator::default(), |state, _| {
        assert_eq!(size(state, b"nothing", 0), Ok([0, 0]));
        assert_eq!(size(state, b"", 0), Ok([0, 0]));
        assert_eq!(pixels(state, b"nothing", 0, [0, 0]), Ok(vec![]));
        assert_eq!(pixels(state, b"nothing", 0, [1, 1]), Err(Status::BAD_SIZE));
        assert_eq!(pixels(state, &stream, 0, [19, 13]), Err(Status::BAD_SIZE));
        assert_eq!(size(state, &stream, 3), Err(Status::BAD_OPTIONS));
        assert_eq!(size(state, b"P5 60000 60000 255 ", 0), Err(Status::OUT_OF_MEMORY));
        assert_eq!(size(std::ptr::null_mut(), &stream, 0), Err(Status::NULL_POINTER));
        let (mut sizes, null) = ([0; 2], std::ptr::null());
        let mut out = [0u8; 1];
        // SAFETY: what is null and what is negative is refused before anything is read.
        unsafe {
            let sizes = sizes.as_mut_ptr();
            assert_eq!(onnxc_images_size(state, null, sizes, 1, 0), Status::NULL_POINTER);
            assert_eq!(onnxc_images_size(state, null, sizes, -1, 0), Status::BAD_SIZE);
            assert_eq!(onnxc_images_size(state, null, std::ptr::null_mut(), 0, 0), Status::NULL_POINTER);
            assert_eq!(onnxc_images_decode(state, null, out.as_mut_ptr(), 0, 0, -1, 1), Status::BAD_SIZE);
            assert_eq!(
                onnxc_images_decode(state, null, std::ptr::null_mut(), 0, 0, 1, 1),
                Status::NULL_POINTER
            );
            assert_eq!(
                onnxc_images_decode(state, null, out.as_mut_ptr(), 0, 0, i64::MAX, i64::MAX),
                Status::BAD_SIZE
            );
        }
    });
}
