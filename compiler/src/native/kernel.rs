//! The machine code of kernels in this process.

use cranelift_entity::PrimaryMap;
use memmap2::{Mmap, MmapMut};

use super::io;
use crate::codegen::kernels::KernelVersion;
use crate::error::{Error, Result, Stage};
use crate::host::interp::model::Model;
use crate::host::ir::KernelId;

type Entry = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64) -> i32;

/// Code bytes on an executable page.
pub struct LoadedKernel {
    page: Mmap,
    buffers: usize,
}

impl LoadedKernel {
    /// The code of a kernel with `buffers` buffers, which is trusted: it is the compiler's own, for this machine.
    pub fn new(code: &[u8], buffers: usize) -> Result<LoadedKernel> {
        let failed = |error: std::io::Error| io(format!("memory for a kernel's code: {error}"));
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

/// The kernels of a model that was compiled for this processor, for the interpreter of its host program: of each version the code, and
/// the first of the symbols whose values it reads.
pub struct ModelKernels(PrimaryMap<KernelId, Vec<(LoadedKernel, usize)>>);

impl ModelKernels {
    pub fn new(model: &Model<'_>) -> Result<ModelKernels> {
        let load = |kernel: KernelId| {
            let (code, buffers) = model.code(kernel);
            let load = |version: &KernelVersion| {
                Ok((LoadedKernel::new(&version.code.bytes, buffers)?, version.first_symbol as usize))
            };
            code.versions.iter().map(load).collect()
        };
        model.program.kernels.keys().map(load).collect::<Result<_>>().map(ModelKernels)
    }

    /// Runs a version of a kernel; as [`crate::host::interp::model::RunKernel`] has it.
    pub fn run(
        &self,
        (kernel, version): (KernelId, usize),
        buffers: &mut [Vec<u8>],
        words: &[i64],
        range: (i64, i64),
    ) -> Result<i32> {
        let (code, first) = &self.0[kernel][version];
        let Some(words) = words.get(*first..) else {
            return Err(Error::internal(
                Stage::Run,
                format!("{kernel} reads symbol {first} of {}", words.len()),
            ));
        };
        Ok(code.call(buffers, words, range))
    }
}
