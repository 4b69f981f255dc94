//! The machine code of a kernel in this process.

use memmap2::{Mmap, MmapMut};
use onnxc_ir::error::{Error, Kind, Result, Stage};

type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64) -> i32;

/// Code bytes on an executable page.
pub struct LoadedKernel {
    page: Mmap,
    buffers: usize,
}

impl LoadedKernel {
    /// The code of a kernel with `buffers` buffers, which is trusted: it is the compiler's own, for this machine.
    pub fn new(code: &[u8], buffers: usize) -> Result<LoadedKernel> {
        let failed = |error: std::io::Error| {
            Error::new(Stage::Io, Kind::Io, format!("memory for a kernel's code: {error}"))
        };
        let mut page = MmapMut::map_anon(code.len().max(1)).map_err(failed)?;
        page[..code.len()].copy_from_slice(code);
        Ok(LoadedKernel { page: page.make_exec().map_err(failed)?, buffers })
    }

    /// Runs on these buffers, in order, each of the size that the kernel declares for these dims; gives the kernel's code.
    pub fn call(&self, buffers: &mut [Vec<u8>], dims: &[i64], range: (i64, i64)) -> i32 {
        assert_eq!(buffers.len(), self.buffers);
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
        // SAFETY: the page holds a function of this signature, which touches nothing but the buffers and the dims; the
        // caller sizes these to the kernel.
        unsafe {
            let entry: Entry = std::mem::transmute(self.page.as_ptr());
            entry(pointers.as_ptr(), dims.as_ptr(), range.0, range.1)
        }
    }
}
