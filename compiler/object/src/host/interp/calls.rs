//! What a run asks of others: the caller's allocator, kernels, threads.

use cranelift_entity::EntityRef;

use super::{Activation, End, Environment, HostRun, KernelCall, Outcome};
use crate::host::abi::{frame, status};
use crate::host::ir::{FunctionKind, KernelId, MEMCPY, Operand, OptionsField, Policy, Slot, Type, Version};
use crate::host::message::V;
use onnxc_schedule::ALIGN;

/// Blocks.
impl<'p> HostRun<'p, '_> {
    /// Address and bytes in a slot.
    pub(super) fn slot(&self, a: &Activation<'_>, slot: Slot) -> Outcome<(i64, i64)> {
        let at = a.environment.workspace + self.program.slot_at(slot) as u64;
        Ok((self.memory.load(Type::Ptr, at)?, self.memory.load(Type::I64, at + 8)?))
    }

    pub(super) fn held(&self, a: &Activation<'_>, slot: Slot) -> Outcome<i64> {
        Ok(self.slot(a, slot)?.0)
    }

    pub(super) fn set_slot(
        &mut self,
        a: &Activation<'_>,
        slot: Slot,
        block: i64,
        bytes: Option<i64>,
    ) -> Outcome<()> {
        let at = a.environment.workspace + self.program.slot_at(slot) as u64;
        self.memory.store(Type::Ptr, at, block)?;
        bytes.map_or(Ok(()), |bytes| self.memory.store(Type::I64, at + 8, bytes))
    }

    pub(super) fn allocate(
        &mut self,
        a: &Activation<'_>,
        slot: Slot,
        bytes: i64,
        what: &str,
    ) -> Outcome<End> {
        let allocate = a.environment.options + OptionsField::Allocate.offset() as u64;
        if self.memory.load(Type::Ptr, allocate)? == 0 {
            return Err("the caller has no allocator".into());
        }
        let size = usize::try_from(bytes).ok().filter(|&bytes| bytes < 1 << 40 && self.grants > 0);
        let Some(size) = size else {
            let template = format!("{what}: the allocator has no {V} bytes");
            return self.fail(a, status::OUT_OF_MEMORY, &template, &[bytes]);
        };
        self.grants -= 1;
        let block = self.memory.block(size);
        self.blocks.insert(block, size);
        self.set_slot(a, slot, block as i64, Some(bytes))?;
        Ok(End::Next)
    }

    pub(super) fn release(&mut self, a: &Activation<'_>, slot: Slot) -> Outcome<()> {
        let (block, bytes) = self.slot(a, slot)?;
        self.give_back(block, bytes)?;
        self.set_slot(a, slot, 0, None)
    }

    fn give_back(&mut self, block: i64, bytes: i64) -> Outcome<()> {
        match self.blocks.remove(&(block as u64)) {
            Some(size) if size as i64 == bytes => {
                self.memory.remove(block as u64);
                Ok(())
            }
            Some(size) => Err(format!("a block of {size} bytes is given back as {bytes}")),
            None => Err(format!("{block:#x} is not a block of the run")),
        }
    }

    pub(super) fn grow(
        &mut self,
        a: &Activation<'_>,
        slot: Slot,
        (used, bytes): (Operand, Operand),
        what: &str,
    ) -> Outcome<End> {
        let (used, bytes) = (a.get(used), a.get(bytes));
        let (old, held) = self.slot(a, slot)?;
        if old != 0 && held as u64 >= bytes as u64 {
            return Ok(End::Next);
        }
        let held = if old == 0 { 0 } else { held };
        let wanted = (held.wrapping_mul(2) as u64).max(bytes as u64).max(ALIGN as u64);
        if let End::Left(status) = self.allocate(a, slot, wanted as i64, what)? {
            return Ok(End::Left(status));
        }
        if old != 0 {
            let new = self.held(a, slot)?;
            self.call_extern(&MEMCPY, &[new, old, used])?;
            self.give_back(old, held)?;
        }
        Ok(End::Next)
    }
}

/// Kernels.
impl<'p> HostRun<'p, '_> {
    pub(super) fn kernel(&mut self, a: &Activation<'p>, kernel: KernelId, buffers: &[u64]) -> Outcome<i32> {
        let versions: &'p [Version] = &self.program.kernels[kernel].versions;
        let own = a.frame()?;
        let levels = self.memory.load(Type::I64, own + frame::LEVEL as u64)?;
        let number = versions.iter().rposition(|version| levels >> version.level & 1 != 0).unwrap_or(0);
        let version = &versions[number];
        let array = match self.program.buffers.at {
            Some(at) => a.environment.workspace + at as u64,
            None => self.buffers,
        };
        for (number, &buffer) in buffers.iter().enumerate() {
            self.memory.store(Type::Ptr, array + 8 * number as u64, buffer as i64)?;
        }
        let (lo, hi) = (self.extent(a, version.lo)?, self.extent(a, version.hi)?);
        let enough = match version.threads {
            Policy::Never => false,
            Policy::Always => true,
            Policy::From { size, least } => self.extent(a, size)? >= least,
        };
        let parallel = self.memory.load(Type::Ptr, own + frame::PARALLEL as u64)?;
        let sizes = a.environment.workspace;
        if !(enough && parallel != 0 && hi - lo > 1) {
            let call = KernelCall { kernel, version: number, buffers, sizes, range: (lo, hi) };
            return (self.kernels)(&mut self.memory, &call);
        }
        // The kernel's code stands for its number and version; the job has its array and the sizes.
        let code = (kernel.index() << 8 | number) as i64;
        for (at, word) in [code, array as i64, sizes as i64].into_iter().enumerate() {
            self.memory.store(Type::I64, self.job + 8 * at as u64, word)?;
        }
        let part = self.program.function_of(FunctionKind::Part).ok_or("there is no function for parts")?;
        let middle = lo + (hi - lo) / 2;
        // A pool may run the parts in any order.
        for (begin, end) in [(middle, hi), (lo, middle)] {
            let code = self.enter(part, &[self.job as i64, begin, end], Environment::default())?;
            if code != 0 {
                return Ok(code as i32);
            }
        }
        Ok(0)
    }

    pub(super) fn part_of_job(&mut self, job: u64, range: (i64, i64)) -> Outcome<i32> {
        let word = |at: u64| self.memory.load(Type::I64, job + 8 * at);
        let (code, array, sizes) = (word(0)? as usize, word(1)? as u64, word(2)? as u64);
        let (kernel, version) = (KernelId::new(code >> 8), code & 0xff);
        // The array has the maximum length; a kernel reads only its own buffers.
        let count = self.program.buffers.count as u64;
        let buffers: Vec<u64> = (0..count)
            .map(|at| self.memory.load(Type::Ptr, array + 8 * at).map(|buffer| buffer as u64))
            .collect::<Outcome<_>>()?;
        let call = KernelCall { kernel, version, buffers: &buffers, sizes, range };
        (self.kernels)(&mut self.memory, &call)
    }
}
