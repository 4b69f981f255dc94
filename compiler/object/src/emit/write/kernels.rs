//! Calls of kernels: the version for the processor, on this thread or shared by those of the caller.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Signature, Value, types};
use cranelift_module::FuncId;

use super::Writer;
use crate::emit::object::Unit;
use crate::host::abi::{frame, options};
use crate::host::ir::{self, FunctionKind, KernelId, Policy, Version};
use crate::host::lower::internal;
use onnxc_ir::error::Result;

/// `int32_t kernel(void *const *buffers, const int64_t *dims, int64_t lo, int64_t hi)`
pub(in crate::emit) fn kernel_signature(unit: &Unit) -> Signature {
    unit.signature(&[types::I64; 4], Some(types::I32))
}

impl<'p> Writer<'_, '_, 'p> {
    /// Runs the best version that the processor is good for; gives its result.
    pub(super) fn kernel(&mut self, kernel: KernelId, buffers: &[ir::Value]) -> Result<Value> {
        let array = match self.program.buffers.at {
            Some(at) => self.code.add(self.environment.workspace()?, at),
            None => {
                let slot = *self.buffers.get_or_insert_with(|| self.code.slot(0));
                self.code.slot_addr_of(slot, 8 * self.program.buffers.count)
            }
        };
        for (at, &buffer) in buffers.iter().enumerate() {
            let buffer = self.get(buffer)?;
            self.code.store(buffer, array, 8 * at as i64);
        }
        let (program, symbols) = (self.program, self.symbols);
        let mut versions = program.kernels[kernel].versions.iter().zip(&symbols.kernels[kernel]);
        let (Some(least), others) = (versions.next(), versions) else {
            return Err(internal(format!("{kernel} has no versions")));
        };
        if others.len() == 0 {
            return self.version(least, array);
        }
        let (join, levels) = (self.code.block(), self.environment.level()?);
        self.code.b.append_block_param(join, types::I32);
        for version in others.rev() {
            let (this, lesser) = (self.code.block(), self.code.block());
            let own = self.code.b.ins().band_imm_s(levels, 1 << version.0.level);
            let good = self.code.icmp_imm(IntCC::NotEqual, own, 0);
            self.code.branch(good, this, lesser);
            self.code.b.switch_to_block(this);
            let result = self.version(version, array)?;
            self.code.jump(join, &[result]);
            self.code.b.switch_to_block(lesser);
        }
        let result = self.version(least, array)?;
        self.code.jump(join, &[result]);
        self.code.b.switch_to_block(join);
        Ok(self.code.b.block_params(join)[0])
    }

    fn version(
        &mut self,
        (version, &(function, sizes)): (&Version, &(FuncId, i64)),
        array: Value,
    ) -> Result<Value> {
        let (lo, hi) = (self.extent(version.lo)?, self.extent(version.hi)?);
        let sizes_of_run = self.environment.workspace()?;
        let sizes = self.code.add(sizes_of_run, sizes);
        let enough = match version.threads {
            Policy::Never => {
                return Ok(self.code.call(function, &[array, sizes, lo, hi]));
            }
            Policy::Always => None,
            Policy::From { size, least } => {
                let size = self.extent(size)?;
                Some(self.code.icmp_imm(IntCC::SignedGreaterThanOrEqual, size, least))
            }
        };
        self.parallel(function, [array, sizes], [lo, hi], enough)
    }

    /// Runs a kernel through the caller's parallel-for, or here if there is none or not `enough` work.
    fn parallel(
        &mut self,
        function: FuncId,
        [array, sizes]: [Value; 2],
        [lo, hi]: [Value; 2],
        enough: Option<Value>,
    ) -> Result<Value> {
        let (threads, alone, join) = (self.code.block(), self.code.block(), self.code.block());
        self.code.b.append_block_param(join, types::I32);
        let parallel_for = self.code.load64(self.environment.frame()?, frame::PARALLEL);
        let extent = self.code.b.ins().isub(hi, lo);
        let given = self.code.icmp_imm(IntCC::NotEqual, parallel_for, 0);
        let several = self.code.icmp_imm(IntCC::SignedGreaterThan, extent, 1);
        let shared = self.code.b.ins().band(given, several);
        let shared = enough.map_or(shared, |enough| self.code.b.ins().band(shared, enough));
        self.code.branch(shared, threads, alone);

        self.code.b.switch_to_block(alone);
        let result = self.code.call(function, &[array, sizes, lo, hi]);
        self.code.jump(join, &[result]);

        self.code.b.switch_to_block(threads);
        let slot = *self.job.get_or_insert_with(|| self.code.slot(24));
        let job = self.code.slot_addr(slot);
        let kernel = self.code.function_addr(function);
        for (offset, value) in [(0, kernel), (8, array), (16, sizes)] {
            self.code.store(value, job, offset);
        }
        let part = self.program.function_of(FunctionKind::Part);
        let part = part.ok_or_else(|| internal("there is no function for parts".into()))?;
        let part = self.symbols.functions[part];
        let part_address = self.code.function_addr(part);
        self.code.unit.note_call(part, function);
        let pool = self.code.load64(self.environment.options()?, options::POOL);
        let signature = self.code.unit.signature(&[types::I64; 5], Some(types::I32));
        let result = self.code.call_pointer(&signature, parallel_for, &[pool, lo, hi, part_address, job]);
        let result = result.ok_or_else(|| internal("parallel_for has a result".into()))?;
        self.code.jump(join, &[result]);
        self.code.b.switch_to_block(join);
        Ok(self.code.b.block_params(join)[0])
    }

    /// One part of a parallel kernel. A job is the kernel, its buffers and the sizes.
    pub(super) fn job(&mut self, job: Value, begin: Value, end: Value) -> Result<Value> {
        let [function, array, sizes] = [0, 8, 16].map(|offset| self.code.load64(job, offset));
        let signature = kernel_signature(self.code.unit);
        let result = self.code.call_pointer(&signature, function, &[array, sizes, begin, end]);
        result.ok_or_else(|| internal("kernels have a result".into()))
    }
}
