//! The library `tokenizers` behind a C ABI, see tokenizer.h. A panic ends the process, as no function may unwind into C.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

// The thread pool of `onnxc.h` belongs to the library that C programs link.
pub use onnxc_runtime_support as support;

/// A tokenizer of byte-level BPE.
pub struct Handle {
    tokenizer: tokenizers::Tokenizer,
    /// By token. Special tokens have none.
    bytes: Vec<Vec<u8>>,
}

/// The byte that a character of a token's name stands for: printable ones are themselves, the other 68 are U+0100 onwards
/// in their order (`bytes_to_unicode` of GPT-2).
fn byte_of(character: char) -> Option<u8> {
    let itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(itself),
        code => (0..=255).filter(|byte| !itself(byte)).nth(code as usize - 0x100),
    }
}

fn open(json: &[u8]) -> Result<Handle, String> {
    let tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
    let special = tokenizer.get_added_tokens_decoder();
    let bytes = (0..tokenizer.get_vocab_size(true) as u32).map(|token| match tokenizer.id_to_token(token) {
        Some(name) if !special.contains_key(&token) => name.chars().map(byte_of).collect::<Option<Vec<u8>>>().ok_or_else(|| {
            format!("token {token}, `{name}`, has a character that stands for no byte: this is not a byte-level BPE")
        }),
        _ => Ok(vec![]),
    });
    let bytes = bytes.collect::<Result<_, _>>()?;
    Ok(Handle { tokenizer, bytes })
}

/// # Safety
/// `json` has `bytes` bytes, `message` is null or has room for `message_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenizer_open(
    json: *const c_void,
    bytes: usize,
    message: *mut c_char,
    message_bytes: usize,
) -> *mut Handle {
    // SAFETY: the caller says so.
    match open(unsafe { slice::from_raw_parts(json.cast(), bytes) }) {
        Ok(handle) => Box::into_raw(Box::new(handle)),
        Err(error) => {
            if !message.is_null() && message_bytes > 0 {
                let count = error.len().min(message_bytes - 1);
                // SAFETY: there is room for `count` bytes and the zero behind them, and `error` has room for the same.
                unsafe {
                    message.copy_from_nonoverlapping(error.as_ptr().cast(), count);
                    message.add(count).write(0);
                }
            }
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `handle` is null or what `tokenizer_open` gave, and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenizer_close(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: it is a box of `tokenizer_open`, given back once.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// # Safety
/// `handle` is open, `text` has `bytes` bytes, `tokens` has room for `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenizer_encode(
    handle: *const Handle,
    text: *const c_char,
    bytes: usize,
    tokens: *mut i64,
    capacity: usize,
) -> i64 {
    // SAFETY: the caller says so.
    let (handle, text) = unsafe { (&*handle, slice::from_raw_parts(text.cast(), bytes)) };
    let Some(encoding) =
        std::str::from_utf8(text).ok().and_then(|text| handle.tokenizer.encode(text, false).ok())
    else {
        return -1;
    };
    let ids = encoding.get_ids();
    for (at, id) in ids.iter().take(capacity).enumerate() {
        // SAFETY: `at` is below `capacity`.
        unsafe { tokens.add(at).write(i64::from(*id)) };
    }
    ids.len() as i64
}

/// # Safety
/// `handle` is open, `bytes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenizer_bytes(
    handle: *const Handle,
    token: i64,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: the caller says so.
    let handle = unsafe { &*handle };
    let found =
        usize::try_from(token).ok().and_then(|token| handle.bytes.get(token)).map_or(&[][..], Vec::as_slice);
    // SAFETY: the caller says so.
    unsafe { bytes.write(found.len()) };
    found.as_ptr().cast()
}

/// # Safety
/// `handle` is open, `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenizer_token(handle: *const Handle, name: *const c_char) -> i64 {
    // SAFETY: the caller says so.
    let (handle, name) = unsafe { (&*handle, CStr::from_ptr(name)) };
    name.to_str().ok().and_then(|name| handle.tokenizer.token_to_id(name)).map_or(-1, i64::from)
}
