//! Functions outside of the object. Those of the runtime work on copies of their buffers, because addresses here differ from this
//! process's.

use super::{HostRun, Memory, Outcome};
use crate::host::ir::{CLOSE_STRINGS, Extern, FAULT_OF_STRINGS, MEMCPY, OPEN_STRINGS, Type};
use onnxc_ir::graph::call::{FUNCTIONS, Function, INTERN, SPELL};
use onnxc_ir::interp::invoke;
use onnxc_runtime_support::strings::{
    STATE_BYTES, onnxc_strings_close, onnxc_strings_fault, onnxc_strings_open,
};
use onnxc_runtime_support::{Options, alloc};
use std::ffi::c_void;

/// The table of strings of a run, and what it refers to.
pub(super) struct Table {
    state: Box<[u64; STATE_BYTES / 8]>,
    _options: Box<Options>,
    _constants: Words,
    texts: Vec<Words>,
}

impl Table {
    fn state(&mut self) -> *mut c_void {
        self.state.as_mut_ptr().cast()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: it was opened where it was made; to close it twice does nothing.
        unsafe { onnxc_strings_close(self.state().cast()) };
    }
}

/// A copy of bytes that is aligned as any buffer is.
struct Words {
    words: Vec<u64>,
    bytes: usize,
}

impl Words {
    fn new(bytes: &[u8]) -> Words {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        };
        Words { words: bytes.chunks(8).map(word).collect(), bytes: bytes.len() }
    }

    fn address(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(self.bytes);
        bytes
    }
}

impl HostRun<'_, '_> {
    pub(super) fn call_extern(&mut self, function: &Extern, args: &[i64]) -> Outcome<i64> {
        if *function == MEMCPY {
            let &[to, from, bytes] = args else { return Err("memcpy takes three operands".into()) };
            let bytes = usize::try_from(bytes).map_err(|_| format!("{bytes} bytes"))?;
            self.memory.copy(to as u64, from as u64, bytes)?;
            return Ok(to);
        }
        if *function == OPEN_STRINGS {
            let &[_, _, constants] = args else { return Err("a table is opened with three operands".into()) };
            self.table = Some(open(self.memory.rest(constants as u64))?);
            return Ok(0);
        }
        if *function == CLOSE_STRINGS {
            return self.table.take().map(|_| 0).ok_or("no table of strings is open".into());
        }
        if *function == FAULT_OF_STRINGS {
            let table = self.table.as_mut().ok_or("no table of strings is open")?;
            // SAFETY: the state was opened where it was made.
            return Ok(unsafe { onnxc_strings_fault(table.state().cast()) });
        }
        let called = FUNCTIONS.iter().find(|called| called.symbol == *function);
        let called = called.ok_or_else(|| format!("there is no function {} here", function.name))?;
        let table = self.table.as_mut().ok_or("no table of strings is open")?;
        call(&mut self.memory, table, called, &args[1..])
    }
}

impl HostRun<'_, '_> {
    /// Functions of the user's own are for compiled models, and for the evaluation of graphs.
    pub(super) fn call_external(&mut self, symbol: &str, record: u64) -> Outcome<i64> {
        let bytes = self.memory.load(Type::I64, record)?;
        Err(format!("`{symbol}` is outside of this interpreter; its record has {bytes} bytes"))
    }
}

fn open(constants: &[u8]) -> Outcome<Table> {
    let options = Options {
        allocate: Some(alloc::onnxc_allocate),
        release: Some(alloc::onnxc_release),
        ..Options::default()
    };
    let mut table = Table {
        state: Box::new([0; STATE_BYTES / 8]),
        _options: Box::new(options),
        _constants: Words::new(constants),
        texts: vec![],
    };
    let (options, constants) = (&raw const *table._options, table._constants.address());
    // SAFETY: the state is large enough and aligned, and options and constants live as long as the table.
    unsafe { onnxc_strings_open(table.state().cast(), options, constants.cast()) };
    Ok(table)
}

fn call(memory: &mut Memory, table: &mut Table, function: &Function, args: &[i64]) -> Outcome<i64> {
    let count = function.inputs.len();
    let [addresses, numbers] = match args.split_at_checked(count + 1) {
        Some((addresses, numbers)) => [addresses, numbers],
        None => return Err(format!("{} has {} operands", function.name, args.len())),
    };
    let result = addresses[count] as u64;
    let mut inputs: Vec<Words> = vec![];
    for &address in &addresses[..count] {
        inputs.push(match *function == INTERN {
            true => views(memory, table, address as u64, numbers[0])?,
            false => Words::new(memory.rest(address as u64)),
        });
    }
    let mut output = Words::new(memory.rest(result));
    let pointers: Vec<*const c_void> = inputs.iter_mut().map(|input| input.address().cast_const()).collect();
    // SAFETY: buffers reach to the ends of their blocks, where the program has all that the function reads and writes.
    let status = unsafe { invoke(function, table.state(), &pointers, output.address(), numbers) };
    let moved = result.wrapping_sub(output.address() as u64);
    if *function == SPELL {
        // Addresses in the copy become those in memory.
        let views = output.words.iter_mut().step_by(2).take(usize::try_from(numbers[0]).unwrap_or(0));
        views.for_each(|address| *address = address.wrapping_add(moved));
    }
    memory.write(result, &output.content())?;
    Ok(i64::from(status))
}

/// Texts of the caller, with addresses in this process. Views of constants have none.
fn views(memory: &Memory, table: &mut Table, at: u64, count: i64) -> Outcome<Words> {
    let count = usize::try_from(count).map_err(|_| format!("{count} texts"))?;
    let mut views = Words::new(memory.read(at, 16 * count)?);
    for view in views.words.as_chunks_mut::<2>().0.iter_mut().filter(|view| i64::try_from(view[1]).is_ok()) {
        let mut text = Words::new(memory.read(view[0], view[1] as usize)?);
        view[0] = text.address() as u64;
        table.texts.push(text);
    }
    Ok(views)
}
