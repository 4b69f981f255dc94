//! The functions that compiled models call.
//!
//! Numbers of strings are i64. Each function takes the state, then its inputs, its outputs, and sizes: `[n]` below says
//! that a pointer is to `n` elements, in the machine's own byte order and aligned to them unless they are bytes. Outputs
//! do not overlap inputs or the state. All return a [`Status`]:
//!
//! - `NULL_POINTER`: the state is null, or something that has elements;
//! - `BAD_SIZE`: a size is negative, or is not what the texts need; the constants or the program are broken;
//! - `OUT_OF_RANGE`: a number has no text;
//! - `BAD_TEXT`, `BAD_DTYPE`: see the functions;
//! - `NEEDS_ALLOCATOR`, `OUT_OF_MEMORY`: there is no memory.
//!
//! Where an element is to blame, [`onnxc_strings_fault`] has its number.

use crate::abi::{Options, Status, StringView};

use super::arguments::{bytes, input, open, output, status};
use super::case::Case;
use super::number::Number;
use super::replace::Replacement;
use super::table::State;
use super::tokens::Tokens;

/// Opens the strings of a run: writes a state to `state`, whose `STATE_BYTES` at a multiple of 8 need no initialisation.
/// Allocates nothing. `options` may be null, and so may `constants`, which [`super::constants()`] makes. After a failure
/// the state is one without constants and memory, and may be closed.
///
/// # Safety
/// `state` is null or has `bytes` bytes. The others are as in `onnxc.h` and as made, or null. The constants and what the
/// allocator refers to stay while the state is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_open(
    state: *mut State,
    options: *const Options,
    constants: *const u8,
) -> Status {
    if state.is_null() {
        return Status::NULL_POINTER;
    }
    // SAFETY: the caller says so.
    let opened = unsafe { State::open(options, constants) };
    let result = opened.as_ref().err().copied().unwrap_or(Status::OK);
    // SAFETY: as above.
    unsafe { state.write(opened.unwrap_or_else(|_| State::empty())) };
    result
}

/// Ends the strings of a run: gives all memory back. Numbers of constants remain valid. Closing again does nothing.
///
/// # Safety
/// `state` is null, or was opened and is used by nobody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_close(state: *mut State) {
    // SAFETY: the caller says so.
    if let Some(state) = unsafe { state.as_mut() } {
        state.close();
    }
}

/// The element at which the last function failed, or -1 where none is to blame.
///
/// # Safety
/// `state` is null, or open; likewise below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_fault(state: *const State) -> i64 {
    // SAFETY: the caller says so.
    unsafe { state.as_ref() }.map_or(-1, State::fault)
}

/// The numbers of the caller's strings: `views[n]`, `out[n]`. Texts are not copied. A view without data whose size is beyond what
/// fits memory is constant number `!size`: so an object holds the default of an input, without an address. `OUT_OF_RANGE` where
/// there is no such constant.
///
/// # Safety
/// All pointers are as this module describes. The texts that views refer to stay as they are until the state is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_intern(
    state: *mut State,
    views: *const StringView,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, views, out) = (open(state)?, input(views, n)?, output(out, n)?);
        state.each(views.iter().zip(out), |(view, out)| {
            *out = match i64::try_from(view.size) {
                Ok(size) => state.refer(input(view.data, size)?)?,
                Err(_) if view.data.is_null() => state.constant(!view.size)?,
                Err(_) => return Err(Status::BAD_SIZE),
            };
            Ok(())
        })
    })())
}

/// Texts of a function of the user's, which are copied: `views[n]`, what they lie in, `out[n]`.
///
/// # Safety
/// All pointers are as this module describes; each view has its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_intern_copy(
    state: *mut State,
    views: *const StringView,
    _memory: *const u8,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, views, out) = (open(state)?, input(views, n)?, output(out, n)?);
        state.each(views.iter().zip(out), |(view, out)| {
            let size = i64::try_from(view.size).map_err(|_| Status::BAD_SIZE)?;
            *out = state.intern(input(view.data, size)?)?;
            Ok(())
        })
    })())
}

/// Numbers as they are: `numbers[n]`, memory that is not read, `out[n]`. A call keeps the memory alive until then.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_keep(
    _state: *mut State,
    numbers: *const i64,
    _memory: *const u8,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        output(out, n)?.copy_from_slice(input(numbers, n)?);
        Ok(())
    })())
}

/// The sum of the texts' bytes: `numbers[n]`, `out[1]`. `SIZE_OVERFLOW` where it does not fit.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_text_bytes(
    state: *mut State,
    numbers: *const i64,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, numbers, out) = (open(state)?, input(numbers, n)?, output(out, 1)?);
        let sum = state.text_bytes(numbers)?;
        out.fill(sum);
        Ok(())
    })())
}

/// Writes strings for the caller: `numbers[n]`, `out[total]` bytes, aligned to a `StringView`: `n` views, then the
/// texts they refer to, one behind the other. `total` is just what that takes.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_spell(
    state: *mut State,
    numbers: *const i64,
    out: *mut u8,
    n: i64,
    total: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe { open(state)?.spell(input(numbers, n)?, output(out, total)?) })())
}

/// Each text of `a` with that of `b` behind it: `a[n]`, `b[n]`, `out[n]`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_concat(
    state: *mut State,
    a: *const i64,
    b: *const i64,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe { open(state)?.concat(input(a, n)?, input(b, n)?, output(out, n)?) })())
}

/// `each` texts joined, with the separator between them: `texts[n * each]`, `separator[1]`, `out[n]`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_join(
    state: *mut State,
    texts: *const i64,
    separator: *const i64,
    out: *mut i64,
    n: i64,
    each: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let all = n.checked_mul(each).ok_or(Status::BAD_SIZE)?;
        let state = open(state)?;
        let each = bytes(each, 1)?;
        let separator = input(separator, 1)?[0];
        state.join(input(texts, all)?, separator, each, output(out, n)?)
    })())
}

/// Each text in small letters (`how` 1) or capitals (2): `numbers[n]`, `out[n]`. `BAD_TEXT` for one that is not UTF-8,
/// `BAD_SIZE` for another `how`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_change_case(
    state: *mut State,
    numbers: *const i64,
    out: *mut i64,
    n: i64,
    how: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let state = open(state)?;
        let case = Case::of(how).ok_or(Status::BAD_SIZE)?;
        state.change_case(input(numbers, n)?, output(out, n)?, case)
    })())
}

/// How many pieces [`onnxc_strings_split`] makes of each text: `numbers[n]`, `delimiter[1]`, `counts[n]`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_split_counts(
    state: *mut State,
    numbers: *const i64,
    delimiter: *const i64,
    counts: *mut i64,
    n: i64,
    maxsplit: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let state = open(state)?;
        let delimiter = input(delimiter, 1)?.first().copied().unwrap_or(-1);
        state.split_counts(input(numbers, n)?, delimiter, output(counts, n)?, maxsplit)
    })())
}

/// The pieces of each text between delimiters: `numbers[n]`, `delimiter[1]`, `out[n, width]`. The empty text as
/// delimiter is white space, however much; other texts cut wherever they are. At most `maxsplit` cuts are made in each,
/// from the left, unless it is negative. Rows end with empty texts; `BAD_SIZE` for a text of more pieces than `width`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_split(
    state: *mut State,
    numbers: *const i64,
    delimiter: *const i64,
    out: *mut i64,
    n: i64,
    maxsplit: i64,
    width: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let state = open(state)?;
        let delimiter = input(delimiter, 1)?.first().copied().unwrap_or(-1);
        let out = output(out, n.checked_mul(width).ok_or(Status::BAD_SIZE)?)?;
        state.split(input(numbers, n)?, delimiter, out, maxsplit, bytes(width, 1)?)
    })())
}

/// Whether each text matches a regular expression as a whole: `numbers[n]`, `program[program_bytes]`, which the
/// compiler makes, `out[n]` bytes: 1 or 0.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_regex(
    state: *mut State,
    numbers: *const i64,
    program: *const u8,
    out: *mut u8,
    n: i64,
    program_bytes: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        open(state)?.matches(input(numbers, n)?, input(program, program_bytes)?, output(out, n)?)
    })())
}

/// Texts in which matches of a regular expression are replaced: `numbers[n]`, `program[size]`, which `regex::search` makes,
/// `rewrite[rewrite_size]`, text as [`Replacement`] has it, `out[n]`; `all` 1 for every match, 0 for the first.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_replace(
    state: *mut State,
    numbers: *const i64,
    program: *const u8,
    rewrite: *const u8,
    out: *mut i64,
    n: i64,
    size: i64,
    rewrite_size: i64,
    all: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, program) = (open(state)?, input(program, size)?);
        let how = Replacement { program, rewrite: input(rewrite, rewrite_size)?, all: all != 0 };
        state.replace(input(numbers, n)?, &how, output(out, n)?)
    })())
}

/// How many tokens [`onnxc_strings_tokens`] finds in each text: `numbers` `[n]`, `program` `[program_bytes]`, `counts` `[n]`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_token_counts(
    state: *mut State,
    numbers: *const i64,
    program: *const u8,
    counts: *mut i64,
    n: i64,
    program_bytes: i64,
    shortest: i64,
    between: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (shortest, program) = (bytes(shortest, 1)?, input(program, program_bytes)?);
        let tokens = Tokens { program, shortest, between: between != 0 };
        open(state)?.token_counts(input(numbers, n)?, &tokens, output(counts, n)?)
    })())
}

/// The tokens of each text, of `shortest` characters at least: what matches a regular expression, or, where `between` is not 0, what
/// lies between its matches. `numbers` `[n]`, `program` `[program_bytes]`, which the compiler makes, `padding` `[1]`, the number
/// that rows end with, `out` `[n, width]`. `BAD_SIZE` for a text of more tokens than `width`.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_tokens(
    state: *mut State,
    numbers: *const i64,
    program: *const u8,
    padding: *const i64,
    out: *mut i64,
    n: i64,
    program_bytes: i64,
    shortest: i64,
    between: i64,
    width: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (shortest, program) = (bytes(shortest, 1)?, input(program, program_bytes)?);
        let tokens = Tokens { program, shortest, between: between != 0 };
        let padding = input(padding, 1)?.first().copied().unwrap_or(-1);
        let out = output(out, n.checked_mul(width).ok_or(Status::BAD_SIZE)?)?;
        open(state)?.tokens(input(numbers, n)?, &tokens, padding, out, bytes(width, 1)?)
    })())
}

/// The number that each text is: `numbers[n]`, `out[n]` of `dtype`. Decimal or scientific, or an infinity or NaN by
/// name for floats; white space on either side is passed over. Integer types cut a fraction off. A bool is `true`,
/// `false` or whether a number is not 0. `BAD_TEXT` for a text that is not a number, or not one of the integer type; `BAD_DTYPE` for a type
/// other than f16, bf16, f32, f64, i8 to i64, u8 to u64 and bool.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_parse(
    state: *mut State,
    numbers: *const i64,
    out: *mut u8,
    n: i64,
    dtype: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let state = open(state)?;
        let to = Number::of(dtype).ok_or(Status::BAD_DTYPE)?;
        let out = output(out, bytes(n, to.bytes())? as i64)?;
        state.parse(input(numbers, n)?, out, to)
    })())
}

/// The text of each number: `elements[n]` of `dtype`, `out[n]`. Integers in decimal, `True` or `False`, the shortest
/// decimal that reads as the same float, as numpy writes it: `1.0`, `1e-05`, `nan`, `-inf`. `BAD_DTYPE` as
/// [`onnxc_strings_parse`].
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_format(
    state: *mut State,
    elements: *const u8,
    out: *mut i64,
    n: i64,
    dtype: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let state = open(state)?;
        let from = Number::of(dtype).ok_or(Status::BAD_DTYPE)?;
        let elements = input(elements, bytes(n, from.bytes())? as i64)?;
        state.format(elements, output(out, n)?, from)
    })())
}

/// The rank of each text among those here, equal ones counted once, in ascending order of bytes: `numbers[n]`, `out[n]`.
/// What memory it takes it gives back.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_order(
    state: *mut State,
    numbers: *const i64,
    out: *mut i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe { open(state)?.order(input(numbers, n)?, output(out, n)?) })())
}

/// Where each number is among keys, the last place of several, or -1: `keys[k]`, `numbers[n]`, `out[n]`. They may be
/// any integers. Keys that are consecutive ascending numbers or few take no memory; what others take is given back.
///
/// # Safety
/// All pointers are as this module describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_find(
    state: *mut State,
    keys: *const i64,
    numbers: *const i64,
    out: *mut i64,
    k: i64,
    n: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe { open(state)?.find_keys(input(keys, k)?, input(numbers, n)?, output(out, n)?) })())
}
