//! The ways to leave a function: with a status, and with a message for the caller.
//!
//! A long function has thousands of checks that may fail. A failure passes its status, template and numbers to the code that all
//! of them share in a slot of the stack, not in parameters of a block: the register allocator takes quadratic time for a
//! parameter that is given from many places.

use std::collections::BTreeMap;

use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, StackSlot, Type, Value, types};

use super::Writer;
use crate::host::abi::{options, status};
use crate::host::ir::Address;
use crate::host::lower::internal;
use onnxc_ir::error::Result;

/// Where a status goes that something leaves with: out of the function, or to a handler.
pub(super) struct Leave {
    /// The status is in the slot.
    to: Block,
    /// Blocks that write the message of a failure first, shared by checks with the same message; parameters: its numbers.
    failures: BTreeMap<Failure, Block>,
    is_used: bool,
}

/// What code for a failure depends on: the status, the offset of the template if there is one, and how many numbers it takes.
type Failure = (i32, Option<i64>, usize);

/// Where in the slot are the status, the offset of the template, and the first of the numbers.
pub(super) const STATUS: i64 = 0;
const TEMPLATE: i64 = 8;
const NUMBERS: i64 = 16;

/// The end of a [`Leave`].
pub(super) struct Left {
    pub block: Block,
    pub is_used: bool,
}

impl Writer<'_, '_, '_> {
    pub(super) fn push_leave(&mut self) {
        let to = self.code.cold_block();
        self.leaves.push(Leave { to, failures: BTreeMap::new(), is_used: false });
    }

    /// Leaves with a status where it is not 0.
    pub(super) fn leave_if(&mut self, status: Value) -> Result<()> {
        self.note(STATUS, status);
        let (to, next) = (self.innermost()?.to, self.code.block());
        self.code.branch(status, to, next);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    /// The status that something left with; called where it was left to.
    pub(super) fn status(&mut self) -> Value {
        self.noted(types::I32, STATUS)
    }

    fn leave_slot(&mut self) -> StackSlot {
        *self.leave_slot.get_or_insert_with(|| self.code.slot(NUMBERS as usize))
    }

    pub(super) fn note(&mut self, offset: i64, value: Value) {
        let slot = self.leave_slot();
        let base = self.code.slot_addr_of(slot, offset as usize + 8);
        self.code.store(value, base, offset);
    }

    fn noted(&mut self, ty: Type, offset: i64) -> Value {
        let slot = self.leave_slot();
        let base = self.code.slot_addr(slot);
        self.code.load(ty, base, offset)
    }

    /// What is left next, which from now on is.
    fn innermost(&mut self) -> Result<&mut Leave> {
        let leave = self.leaves.last_mut().ok_or_else(|| internal("nowhere to leave to".into()))?;
        leave.is_used = true;
        Ok(leave)
    }

    /// The block that something leaves to which has noted its status.
    pub(super) fn leave_to(&mut self) -> Result<Block> {
        Ok(self.innermost()?.to)
    }

    /// Ends what may leave, and writes the blocks that fail.
    pub(super) fn pop_leave(&mut self) -> Result<Left> {
        let leave = self.leaves.pop().ok_or_else(|| internal("nothing to leave".into()))?;
        let mut fail = None;
        for ((status, template, _), block) in leave.failures {
            self.code.b.switch_to_block(block);
            let numbers = self.code.b.block_params(block).to_vec();
            let status = self.code.int32(status);
            self.note(STATUS, status);
            let Some(template) = template else {
                self.code.jump(leave.to, &[]);
                continue;
            };
            let template = self.code.int(template);
            self.note(TEMPLATE, template);
            for (at, number) in numbers.into_iter().enumerate() {
                self.note(NUMBERS + 8 * at as i64, number);
            }
            let fail = *fail.get_or_insert_with(|| self.code.cold_block());
            self.code.jump(fail, &[]);
        }
        if let Some(fail) = fail {
            self.code.b.switch_to_block(fail);
            self.write_message()?;
            self.code.jump(leave.to, &[]);
        }
        Ok(Left { block: leave.to, is_used: leave.is_used })
    }

    /// Writes the message of the failure in the slot.
    fn write_message(&mut self) -> Result<()> {
        let text = self.code.unit.text_symbol();
        let base = self.code.data_addr(text, true);
        let offset = self.noted(types::I64, TEMPLATE);
        let template = self.code.b.ins().iadd(base, offset);
        let options = self.environment.options()?;
        let slot = self.leave_slot();
        let base = self.code.slot_addr(slot);
        let numbers = self.code.add(base, NUMBERS);
        self.code.call(self.symbols.message, &[options, template, numbers]);
        Ok(())
    }

    /// The block of a failure; without a template there is no message.
    fn failure(&mut self, status: i32, template: &str, numbers: usize) -> Result<Block> {
        let key = match template {
            "" => (status, None, 0),
            _ => (status, Some(self.code.unit.text(template)), numbers),
        };
        if let Some(&block) = self.innermost()?.failures.get(&key) {
            return Ok(block);
        }
        let block = self.code.cold_block();
        for _ in 0..key.2 {
            self.code.b.append_block_param(block, types::I64);
        }
        self.innermost()?.failures.insert(key, block);
        Ok(block)
    }

    /// Fails where `bad` is not 0.
    pub(super) fn fail_if(
        &mut self,
        bad: Value,
        status: i32,
        template: &str,
        numbers: &[Value],
    ) -> Result<()> {
        let next = self.code.block();
        let numbers = if template.is_empty() { &[] } else { numbers };
        let block = self.failure(status, template, numbers.len())?;
        let args: Vec<BlockArg> = numbers.iter().map(|&number| BlockArg::from(number)).collect();
        self.code.b.ins().brif(bad, block, &args, next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Result<()> {
        let cancel = self.address(Address::Cancel)?;
        let flag = self.code.load(types::I32, cancel, 0);
        if self.symbols.trace.is_some() {
            return self.trace_poll(flag);
        }
        self.fail_if(flag, status::CANCELLED, "cancelled by the caller", &[])
    }

    pub(super) fn step_done(&mut self, step: i64) -> Result<()> {
        let options = self.environment.options()?;
        let callback = self.code.load64(options, options::STEP_DONE);
        let (call, next) = (self.code.block(), self.code.block());
        self.code.branch(callback, call, next);
        self.code.b.switch_to_block(call);
        let context = self.code.load64(options, options::STEP_CONTEXT);
        let number = self.code.int(step);
        let signature = self.code.unit.signature(&[types::I64; 2], None);
        self.code.call_pointer(&signature, callback, &[context, number]);
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }
}
