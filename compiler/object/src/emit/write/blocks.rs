//! Blocks of the caller's allocator, each in a slot: its address, or null, and behind it its bytes.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};

use super::Writer;
use crate::host::abi::{options, status};
use crate::host::ir::{MEMCPY, Slot};
use crate::host::lower::internal;
use crate::host::message::V;
use onnxc_ir::error::Result;
use onnxc_schedule::ALIGN;

impl Writer<'_, '_, '_> {
    /// Offset of a slot, from the start of the workspace.
    fn slot(&self, slot: Slot) -> Result<(Value, i64)> {
        Ok((self.environment.workspace()?, self.program.slot_at(slot)))
    }

    pub(super) fn clear(&mut self, slot: Slot) -> Result<()> {
        let (workspace, at) = self.slot(slot)?;
        let zero = self.code.int(0);
        self.code.store(zero, workspace, at);
        Ok(())
    }

    /// Memory of the caller's allocator, noted in a slot.
    pub(super) fn allocate(&mut self, slot: Slot, bytes: Value, what: &str) -> Result<Value> {
        let options = self.environment.options()?;
        let signature = self.code.unit.signature(&[types::I64; 3], Some(types::I64));
        let allocate = self.code.load64(options, options::ALLOCATE);
        let allocator = self.code.load64(options, options::ALLOCATOR);
        let align = self.code.int(ALIGN);
        let data = self
            .code
            .call_pointer(&signature, allocate, &[allocator, bytes, align])
            .ok_or_else(|| internal("allocators have a result".into()))?;
        let none = self.code.icmp_imm(IntCC::Equal, data, 0);
        let template = format!("{what}: the allocator has no {V} bytes");
        self.fail_if(none, status::OUT_OF_MEMORY, &template, &[bytes])?;
        let (workspace, at) = self.slot(slot)?;
        self.code.store(data, workspace, at);
        self.code.store(bytes, workspace, at + 8);
        Ok(data)
    }

    /// Gives back what a slot holds, which is something.
    pub(super) fn release(&mut self, slot: Slot) -> Result<()> {
        let (workspace, at) = self.slot(slot)?;
        let (data, bytes) = (self.code.load64(workspace, at), self.code.load64(workspace, at + 8));
        self.give_back(data, bytes)?;
        self.clear(slot)
    }

    pub(super) fn empty(&mut self, slot: Slot) -> Result<()> {
        let (some, next) = (self.code.block(), self.code.block());
        let data = self.block(slot)?;
        self.code.branch(data, some, next);
        self.code.b.switch_to_block(some);
        self.release(slot)?;
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    pub(super) fn transfer(&mut self, from: Slot, to: Slot) -> Result<()> {
        let ((workspace, source), (_, target)) = (self.slot(from)?, self.slot(to)?);
        for word in [0, 8] {
            let value = self.code.load64(workspace, source + word);
            self.code.store(value, workspace, target + word);
        }
        self.clear(from)
    }

    pub(super) fn grow(&mut self, slot: Slot, used: Value, bytes: Value, what: &str) -> Result<()> {
        let (workspace, at) = self.slot(slot)?;
        let (more, next) = (self.code.block(), self.code.block());
        let (old, zero) = (self.code.load64(workspace, at), self.code.int(0));
        // The number of bytes means nothing in an empty slot.
        let held = self.code.load64(workspace, at + 8);
        let held = self.code.b.ins().select(old, held, zero);
        let empty = self.code.icmp_imm(IntCC::Equal, held, 0);
        let short = self.code.b.ins().icmp(IntCC::UnsignedLessThan, held, bytes);
        let grows = self.code.b.ins().bor(empty, short);
        self.code.branch(grows, more, next);
        self.code.b.switch_to_block(more);
        let (twice, least) = (self.code.b.ins().iadd(held, held), self.code.int(ALIGN));
        let wanted = self.code.b.ins().umax(twice, bytes);
        let wanted = self.code.b.ins().umax(wanted, least);
        let new = self.allocate(slot, wanted, what)?;
        let (copy, done) = (self.code.block(), self.code.block());
        self.code.branch(held, copy, done);
        self.code.b.switch_to_block(copy);
        let memcpy = self.code.unit.import(&MEMCPY)?;
        self.code.call(memcpy, &[new, old, used]);
        self.give_back(old, held)?;
        self.code.jump(done, &[]);
        self.code.b.switch_to_block(done);
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    fn give_back(&mut self, data: Value, bytes: Value) -> Result<()> {
        let options = self.environment.options()?;
        let signature = self.code.unit.signature(&[types::I64; 4], None);
        let release = self.code.load64(options, options::RELEASE);
        let allocator = self.code.load64(options, options::ALLOCATOR);
        let align = self.code.int(ALIGN);
        self.code.call_pointer(&signature, release, &[allocator, data, bytes, align]);
        Ok(())
    }
}
