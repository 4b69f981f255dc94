//! Operators that functions of the program compute: `onnxc_op` of `onnxc.h` for functions in Rust.
//!
//! A model that was compiled with `--custom-op mine.Clip=my_clip` calls
//!
//! ```ignore
//! #[unsafe(no_mangle)]
//! unsafe extern "C" fn my_clip(op: *mut custom::RawOp) -> i32 {
//!     // SAFETY: the model gives what `onnxc.h` says.
//!     unsafe {
//!         custom::run(op, |op| {
//!             let limit = op.float("limit").unwrap_or(1.0) as f32;
//!             let x = op.input::<f32>(0)?;
//!             for (y, x) in op.output::<f32>(0)?.iter_mut().zip(x) {
//!                 *y = x.min(limit);
//!             }
//!             Ok(())
//!         })
//!     }
//! }
//! ```

use std::ffi::CStr;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::{Options, StringView, Tensor};

/// `onnxc_op`
#[derive(Debug)]
#[repr(C)]
pub struct RawOp {
    pub struct_size: usize,
    pub inputs: *const Tensor,
    pub input_count: usize,
    pub outputs: *mut Tensor,
    pub output_count: usize,
    pub scratch: *mut u8,
    pub scratch_bytes: usize,
    pub options: *const Options,
    pub attributes: *const i64,
    pub texts: *const u8,
}

/// Statuses that this module gives; a function may give any number but 0 for a failure.
pub mod status {
    /// There is no input or output of this number, or it has been left out.
    pub const ABSENT: i32 = 101;
    /// Its elements are of another type.
    pub const TYPE: i32 = 102;
    /// The function has panicked.
    pub const PANIC: i32 = 103;
}

mod sealed {
    pub trait Sealed {}
}

/// Types of elements.
pub trait Element: sealed::Sealed + Copy {
    /// `onnxc_dtype`
    const DTYPE: i32;
}

macro_rules! elements {
    ($($ty:ty = $dtype:literal),*) => {
        $(impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: i32 = $dtype;
        })*
    };
}

elements!(
    f32 = 1,
    u8 = 2,
    i8 = 3,
    u16 = 4,
    i16 = 5,
    i32 = 6,
    i64 = 7,
    StringView = 8,
    f64 = 11,
    u32 = 12,
    u64 = 13
);

/// A call. Slices of inputs, outputs and scratch are of different memory.
#[derive(Debug)]
pub struct Op<'c> {
    raw: *mut RawOp,
    call: PhantomData<&'c mut RawOp>,
}

/// Runs a function; a panic in it becomes [`status::PANIC`].
///
/// # Safety
/// `op` is what a compiled model calls its functions with.
pub unsafe fn run(op: *mut RawOp, body: impl FnOnce(&mut Op<'_>) -> Result<(), i32>) -> i32 {
    let mut op = Op { raw: op, call: PhantomData };
    match catch_unwind(AssertUnwindSafe(|| body(&mut op))) {
        Ok(Ok(())) => 0,
        // A failure is never 0.
        Ok(Err(status)) => {
            if status == 0 {
                -1
            } else {
                status
            }
        }
        Err(_) => status::PANIC,
    }
}

/// An attribute: how many values it has, and its value.
type Entry = (usize, i64);

impl<'c> Op<'c> {
    fn raw(&self) -> &RawOp {
        // SAFETY: `run` was given the address of a call that lasts.
        unsafe { &*self.raw }
    }

    fn inputs(&self) -> &'c [Tensor] {
        let raw = self.raw();
        // SAFETY: the call has this many inputs.
        unsafe { slice::from_raw_parts(raw.inputs, raw.input_count) }
    }

    fn outputs(&self) -> &'c [Tensor] {
        let raw = self.raw();
        // SAFETY: the call has this many outputs.
        unsafe { slice::from_raw_parts(raw.outputs, raw.output_count) }
    }

    /// Sizes of an input; `None` where it has been left out.
    pub fn input_dims(&self, at: usize) -> Option<&'c [i64]> {
        dims(self.inputs().get(at)?)
    }

    /// Sizes of an output.
    pub fn output_dims(&self, at: usize) -> Option<&'c [i64]> {
        dims(self.outputs().get(at)?)
    }

    /// Sizes of an output for a function for shapes, which sets those that are -1.
    pub fn output_dims_mut(&mut self, at: usize) -> Option<&mut [i64]> {
        let tensor = self.outputs().get(at)?;
        match tensor.rank {
            0 => Some(&mut []),
            // SAFETY: the call has memory for `rank` sizes, and `self` is borrowed alone.
            rank => Some(unsafe { slice::from_raw_parts_mut(tensor.dims, rank as usize) }),
        }
    }

    /// Elements of an input.
    pub fn input<T: Element>(&self, at: usize) -> Result<&'c [T], i32> {
        elements(self.inputs().get(at))
    }

    /// Elements of an output, to be written. Each output is to be asked for once at a time.
    #[allow(clippy::mut_from_ref, reason = "the buffer is the caller's, not part of this")]
    pub fn output<T: Element>(&self, at: usize) -> Result<&'c mut [T], i32> {
        let tensor = self.outputs().get(at).ok_or(status::ABSENT)?;
        let count = count::<T>(tensor)?;
        match count {
            0 => Ok(&mut []),
            // SAFETY: the elements are of this type and count, and no other memory of the call overlaps them.
            count => Ok(unsafe { slice::from_raw_parts_mut(tensor.data.cast(), count) }),
        }
    }

    /// Scratch of the call.
    pub fn scratch(&mut self) -> &mut [u8] {
        let raw = self.raw();
        match raw.scratch_bytes {
            0 => &mut [],
            // SAFETY: the call has this many bytes, and `self` is borrowed alone.
            bytes if !raw.scratch.is_null() => unsafe { slice::from_raw_parts_mut(raw.scratch, bytes) },
            _ => &mut [],
        }
    }

    /// For a function for shapes: bytes of scratch that the function will find.
    pub fn set_scratch_bytes(&mut self, bytes: usize) {
        // SAFETY: as in `raw`, and `self` is borrowed alone.
        unsafe { (*self.raw).scratch_bytes = bytes };
    }

    pub fn options(&self) -> &'c Options {
        // SAFETY: the options of a call are never null.
        unsafe { &*self.raw().options }
    }

    fn word(&self, at: usize) -> i64 {
        // SAFETY: callers ask for words that the table has.
        unsafe { *self.raw().attributes.add(at) }
    }

    fn text(&self, at: i64) -> &'c CStr {
        // SAFETY: places of texts are within them, and each ends with a zero.
        unsafe { CStr::from_ptr(self.raw().texts.add(at as usize).cast()) }
    }

    fn attribute(&self, name: &str, kind: i64) -> Option<Entry> {
        let entries = (0..self.word(0) as usize).map(|at| 1 + 4 * at);
        let mut named = entries.filter(|&at| {
            self.word(at + 1) == kind && self.text(self.word(at)).to_bytes() == name.as_bytes()
        });
        named.next().map(|at| (self.word(at + 2) as usize, self.word(at + 3)))
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name, 2).map(|(_, value)| value)
    }

    pub fn float(&self, name: &str) -> Option<f64> {
        self.attribute(name, 1).map(|(_, value)| f64::from_bits(value as u64))
    }

    /// The bytes of a text.
    pub fn bytes(&self, name: &str) -> Option<&'c [u8]> {
        let (size, at) = self.attribute(name, 3)?;
        // SAFETY: the text has this size.
        Some(unsafe { slice::from_raw_parts(self.raw().texts.add(at as usize), size) })
    }

    pub fn ints(&self, name: &str) -> Option<&'c [i64]> {
        let (count, at) = self.attribute(name, 7)?;
        // SAFETY: the list has this many words.
        Some(unsafe { slice::from_raw_parts(self.raw().attributes.add(at as usize), count) })
    }

    pub fn floats(&self, name: &str) -> Option<Vec<f64>> {
        let (count, at) = self.attribute(name, 6)?;
        Some((0..count).map(|value| f64::from_bits(self.word(at as usize + value) as u64)).collect())
    }

    /// Elements of a tensor among the attributes.
    pub fn tensor<T: Element>(&self, name: &str) -> Result<&'c [T], i32> {
        let (_, at) = self.attribute(name, 4).ok_or(status::ABSENT)?;
        let raw = self.raw();
        // SAFETY: the tensors of attributes follow the inputs.
        elements(Some(unsafe { &*raw.inputs.add(raw.input_count + at as usize) }))
    }
}

fn dims<'c>(tensor: &Tensor) -> Option<&'c [i64]> {
    match (tensor.dtype, tensor.rank) {
        (0, _) => None,
        (_, 0) => Some(&[]),
        // SAFETY: a tensor has `rank` sizes.
        (_, rank) => Some(unsafe { slice::from_raw_parts(tensor.dims, rank as usize) }),
    }
}

fn count<T: Element>(tensor: &Tensor) -> Result<usize, i32> {
    if tensor.dtype != T::DTYPE {
        return Err(if tensor.dtype == 0 { status::ABSENT } else { status::TYPE });
    }
    Ok(dims(tensor).unwrap_or_default().iter().product::<i64>() as usize)
}

fn elements<'c, T: Element>(tensor: Option<&Tensor>) -> Result<&'c [T], i32> {
    let tensor = tensor.ok_or(status::ABSENT)?;
    match count::<T>(tensor)? {
        0 => Ok(&[]),
        // SAFETY: the elements are of this type and count.
        count => Ok(unsafe { slice::from_raw_parts(tensor.data.cast_const().cast(), count) }),
    }
}
