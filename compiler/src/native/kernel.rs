//! The machine code of kernels in this process.

use cranelift_entity::PrimaryMap;
use onnxc_backend::codegen::kernels::KernelVersion;
pub use onnxc_backend::loaded::LoadedKernel;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_object::host::interp::model::Model;
use onnxc_object::host::ir::KernelId;

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

    /// Runs a version of a kernel; as [`onnxc_object::host::interp::model::RunKernel`] has it.
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
