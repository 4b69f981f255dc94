//! Sizes of inputs against what a service allows, before anything is allocated for them.

use std::ffi::{CStr, c_char};

use crate::abi::{Model, Status, Tensor, ValueInfo};

use super::{Refusal, report};

/// `onnxc_symbol_limit`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SymbolLimit {
    pub name: *const c_char,
    pub most: i64,
}

/// `onnxc_limits`. What is 0 has no limit.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Limits {
    pub struct_size: usize,
    pub dim: i64,
    pub elements: i64,
    pub bytes: i64,
    pub workspace: i64,
    pub symbols: *const SymbolLimit,
    pub symbol_count: usize,
}

/// `ONNXC_LIMITS_INIT`
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            struct_size: size_of::<Limits>(),
            dim: 0,
            elements: 0,
            bytes: 0,
            workspace: 0,
            symbols: std::ptr::null(),
            symbol_count: 0,
        }
    }
}

/// `onnxc_part`
const STATE: i32 = 8;

impl Limits {
    /// The limits of symbols by name.
    ///
    /// # Safety
    /// `symbols` has `symbol_count` elements, with names that end in zeros.
    unsafe fn symbols(&self) -> Vec<(String, i64)> {
        if self.symbols.is_null() {
            return vec![];
        }
        // SAFETY: the caller says so.
        let symbols = unsafe { std::slice::from_raw_parts(self.symbols, self.symbol_count) };
        // SAFETY: likewise.
        let name = |limit: &SymbolLimit| unsafe { CStr::from_ptr(limit.name) };
        symbols
            .iter()
            .filter(|limit| !limit.name.is_null())
            .map(|limit| (name(limit).to_string_lossy().into_owned(), limit.most))
            .collect()
    }

    /// Checks ranks and dims of inputs; of their data nothing is read. Gives the bytes of workspace of a run on them, which are 0 for
    /// a model with state: some of its symbols are in its state block.
    ///
    /// # Safety
    /// `model` is what a compiled model's `<name>_model` returned. Inputs have `rank` dims, and `self` is as
    /// in `onnxc.h`.
    pub unsafe fn check(&self, model: &Model, inputs: &[Tensor]) -> Result<usize, Refusal> {
        if self.struct_size != size_of::<Limits>() {
            return Err(Refusal::new(Status::BAD_OPTIONS, "limits of another version"));
        }
        // SAFETY: the caller says so; likewise below.
        let (infos, names, limits) = unsafe { (model.inputs(), model.symbols(), self.symbols()) };
        if infos.len() != inputs.len() {
            let message = format!("{} inputs given, the model has {}", inputs.len(), infos.len());
            return Err(Refusal::new(Status::BAD_COUNT, message));
        }
        let mut symbols = vec![-1; names.len()];
        let mut bytes = 0i64;
        for (at, (tensor, info)) in
            inputs.iter().zip(&infos).enumerate().filter(|(_, (_, info))| info.part != STATE)
        {
            let what = format!("input {at} `{}`", info.name);
            // SAFETY: as above.
            let dims = unsafe { dims(tensor, info, &what)? };
            let own = self.tensor(dims, info, &what)?;
            bytes = bytes.saturating_add(own);
            above(bytes, self.bytes, || format!("{what}: the inputs up to it have {bytes} bytes"))?;
            for (axis, (&size, symbol)) in dims.iter().zip(&info.symbols).enumerate() {
                let Some(symbol) = *symbol else { continue };
                let name = &names[symbol];
                if let Some((_, most)) = limits.iter().find(|(limited, _)| limited == name) {
                    let text = || format!("{what}: dimension {axis} (`{name}`) is {size}");
                    above(size, (*most).max(1), text)?;
                }
                if !info.has_default && symbols[symbol] < 0 {
                    symbols[symbol] = size;
                }
            }
        }
        if infos.iter().any(|info| info.part == STATE) {
            return Ok(0);
        }
        // SAFETY: there is a value for each symbol of the model.
        let workspace = unsafe { model.workspace()(symbols.as_ptr(), symbols.len()) };
        if workspace < 0 {
            let message = format!("there is no run of these sizes (status {})", -workspace);
            return Err(Refusal::new(
                Status(i32::try_from(-workspace).unwrap_or(Status::BAD_DIM.0)),
                message,
            ));
        }
        above(workspace, self.workspace, || format!("the workspace would have {workspace} bytes"))
            .map_err(|refusal| Refusal { status: Status::BAD_WORKSPACE, ..refusal })?;
        Ok(workspace as usize)
    }

    /// The dims of one input; gives its bytes.
    fn tensor(&self, dims: &[i64], info: &ValueInfo, what: &str) -> Result<i64, Refusal> {
        let mut elements = 1i64;
        for (axis, &size) in dims.iter().enumerate() {
            if size < 0 {
                let message = format!("{what}: dimension {axis} is {size}, which is negative");
                return Err(Refusal::new(Status::BAD_DIM, message));
            }
            above(size, self.dim, || format!("{what}: dimension {axis} is {size}"))?;
            elements = elements.saturating_mul(size);
        }
        above(elements, self.elements, || format!("{what}: {elements} elements"))?;
        Ok(elements.saturating_mul(info.element_bytes as i64))
    }
}

/// The dims of an input, checked against the model's rank; none for one that is left out.
///
/// # Safety
/// As [`Limits::check`].
unsafe fn dims<'t>(tensor: &'t Tensor, info: &ValueInfo, what: &str) -> Result<&'t [i64], Refusal> {
    if info.has_default && tensor.data.is_null() {
        return Ok(&[]);
    }
    let (rank, wanted) = (tensor.rank, info.dims.len());
    if usize::try_from(rank) != Ok(wanted) {
        return Err(Refusal::new(Status::BAD_RANK, format!("{what}: rank {rank}, must be {wanted}")));
    }
    if wanted == 0 {
        return Ok(&[]);
    }
    if tensor.dims.is_null() {
        return Err(Refusal::new(Status::NULL_POINTER, format!("{what}: dims is null")));
    }
    // SAFETY: the caller says so.
    Ok(unsafe { std::slice::from_raw_parts(tensor.dims, wanted) })
}

/// Fails where a number is above a limit, if there is one.
fn above(number: i64, most: i64, what: impl Fn() -> String) -> Result<(), Refusal> {
    if most > 0 && number > most {
        return Err(Refusal::new(Status::BAD_DIM, format!("{}, at most {most} are allowed", what())));
    }
    Ok(())
}

/// `onnxc_limits_check`
///
/// # Safety
/// All pointers are as `onnxc.h` describes them, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_limits_check(
    limits: *const Limits,
    model: *const Model,
    inputs: *const Tensor,
    input_count: usize,
    message: *mut c_char,
    capacity: usize,
) -> Status {
    // SAFETY: the caller says so; likewise below.
    let (limits, model) = unsafe { (limits.as_ref(), model.as_ref()) };
    let result = match (limits, model) {
        (Some(limits), Some(model)) if input_count == 0 || !inputs.is_null() => {
            // SAFETY: as above.
            unsafe {
                let inputs = match input_count {
                    0 => &[],
                    count => std::slice::from_raw_parts(inputs, count),
                };
                limits.check(model, inputs).map(drop)
            }
        }
        _ => Err(Refusal::new(Status::NULL_POINTER, "the limits, the model or the array of inputs is null")),
    };
    // SAFETY: as above.
    unsafe { report(result, message, capacity) }
}
