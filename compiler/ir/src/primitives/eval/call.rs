//! Calls of the runtime: its functions run here as they run in models.

use std::ffi::c_void;

use bytes::Bytes;
use onnxc_runtime_support::Status;

use super::{Symbols, internal, movement};
use crate::error::{Error, Kind, Result, Stage, without};
use crate::graph::call::{INTERN, LARGE_IMAGE, Subject, Type};
use crate::graph::{Call, Dim, Strings, Tensor};

/// The result of a call.
pub fn call(call: &Call, strings: Option<&Strings>, inputs: &[&Tensor], symbols: &Symbols) -> Result<Tensor> {
    let Some(strings) = strings else { return internal("a call without a table of strings".to_string()) };
    let known =
        |dims: &[Dim]| dims.iter().map(|dim| dim.eval(&|sym| symbols[sym])).collect::<Option<Vec<i64>>>();
    let shape =
        known(&call.result.shape).map(|shape| shape.iter().map(|&size| usize::try_from(size).ok()).collect());
    let (Some(numbers), Some(Some(shape))) = (known(&call.numbers), shape) else {
        return internal(format!(
            "a call of {} with {:?} gives {}",
            call.function.name, call.numbers, call.result
        ));
    };
    let shape: Vec<usize> = shape;
    if *call.function == INTERN {
        return Ok(interned(strings, inputs[0], &shape));
    }
    let mut data = movement::zeroed(call.result.dtype, &shape)?;
    let table = strings.table();
    // SAFETY: inference has checked that these are the types of the function's buffers, and the rows of the operators that
    // their lengths are what the numbers say.
    let status = unsafe {
        let buffers: Vec<*const c_void> = inputs.iter().map(|input| input.data.as_ptr().cast()).collect();
        invoke(call.function, table.state_ptr().cast(), &buffers, data.as_mut_ptr().cast(), &numbers)
    };
    match Status(status) {
        Status::OK => Ok(Tensor::new(call.result.dtype, shape, Bytes::from(data))),
        status => Err(Error::new(Stage::Run, Kind::Usage, failure(status, call.function.subject))),
    }
}

/// Texts of the caller. The table outlives the run here, and so has copies of them.
fn interned(strings: &Strings, views: &Tensor, shape: &[usize]) -> Tensor {
    let table = strings.table();
    let number = |view: &[u8; 16]| {
        let [address, length] =
            [0, 8].map(|at| u64::from_le_bytes(*view[at..].first_chunk().expect("16 bytes")));
        if length == 0 {
            return table.intern(&[]);
        }
        // SAFETY: `borders::views` made the address and the length, and the tensor keeps the text.
        table.intern(unsafe { std::slice::from_raw_parts(address as *const u8, length as usize) })
    };
    let numbers: Vec<i64> = views.data.as_chunks::<16>().0.iter().map(number).collect();
    Tensor::from_slice(shape, &numbers)
}

/// What a status of a function of the runtime says of its operands.
fn failure(status: Status, subject: Subject) -> String {
    match status {
        Status::OUT_OF_MEMORY if subject == Subject::Image => LARGE_IMAGE.to_string(),
        Status::CANCELLED => "cancelled by the caller".to_string(),
        Status::BAD_TEXT => "a text is not what is needed here".to_string(),
        Status::BAD_OPTIONS if subject == Subject::Image => without("image decoders", "images"),
        Status(code) => format!("status {code}"),
    }
}

type P = *const c_void;
type M = *mut c_void;

/// Calls a function of the runtime.
///
/// # Safety
/// The addresses and numbers are what the function asks for.
pub unsafe fn invoke(
    function: &crate::graph::call::Function,
    state: M,
    inputs: &[P],
    result: M,
    numbers: &[i64],
) -> i32 {
    let code = (function.address)();
    if code.is_null() {
        return onnxc_runtime_support::Status::BAD_OPTIONS.0;
    }
    debug_assert_eq!(function.symbol.params.iter().filter(|ty| **ty == Type::I64).count(), numbers.len());
    macro_rules! as_function {
        ($($ty:ty),*) => {
            std::mem::transmute::<P, unsafe extern "C" fn($($ty),*) -> i32>(code)
        };
    }
    // SAFETY: the caller says so, and the row of the function that these are its parameters.
    unsafe {
        match (inputs, numbers) {
            (&[a], &[n]) => (as_function!(M, P, M, i64))(state, a, result, n),
            (&[a], &[n, m]) => (as_function!(M, P, M, i64, i64))(state, a, result, n, m),
            (&[a], &[n, m, k, l]) => {
                (as_function!(M, P, M, i64, i64, i64, i64))(state, a, result, n, m, k, l)
            }
            (&[a, b], &[n]) => (as_function!(M, P, P, M, i64))(state, a, b, result, n),
            (&[a, b], &[n, m]) => (as_function!(M, P, P, M, i64, i64))(state, a, b, result, n, m),
            (&[a, b], &[n, m, k]) => (as_function!(M, P, P, M, i64, i64, i64))(state, a, b, result, n, m, k),
            (&[a, b], &[n, m, k, l]) => {
                (as_function!(M, P, P, M, i64, i64, i64, i64))(state, a, b, result, n, m, k, l)
            }
            (&[a, b, c], &[n, m]) => (as_function!(M, P, P, P, M, i64, i64))(state, a, b, c, result, n, m),
            (&[a, b, c], &[n, m, k]) => {
                (as_function!(M, P, P, P, M, i64, i64, i64))(state, a, b, c, result, n, m, k)
            }
            (&[a, b, c], &[n, m, k, l]) => {
                (as_function!(M, P, P, P, M, i64, i64, i64, i64))(state, a, b, c, result, n, m, k, l)
            }
            (&[a, b, c], &[n, m, k, l, o]) => {
                (as_function!(M, P, P, P, M, i64, i64, i64, i64, i64))(state, a, b, c, result, n, m, k, l, o)
            }
            _ => Status::BAD_COUNT.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::call::FUNCTIONS;

    /// Each function is called with the operands that its row has: none says that their number is wrong.
    #[test]
    fn every_number_of_operands_can_be_given() {
        for function in FUNCTIONS {
            let (inputs, numbers) =
                (vec![std::ptr::null(); function.inputs.len()], vec![-1; function.numbers]);
            // SAFETY: nothing is read where a size is negative.
            let status =
                unsafe { invoke(function, std::ptr::null_mut(), &inputs, std::ptr::null_mut(), &numbers) };
            assert_ne!(Status(status), Status::BAD_COUNT, "{}", function.name);
        }
    }
}
