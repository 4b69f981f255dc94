//! The ways to leave a function: with a status, and with a message for the caller.

use std::collections::BTreeMap;

use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, Value, types};

use super::Writer;
use crate::error::Result;
use crate::host::abi::{options, status};
use crate::host::ir::Address;
use crate::host::lower::internal;

/// Where a status goes that something leaves with: out of the function, or to a handler.
pub(super) struct Leave {
    /// Its parameter is the status.
    to: Block,
    /// Blocks that write the message of a failure first, as many checks have the same; parameters: its numbers.
    failures: BTreeMap<Failure, Block>,
    is_used: bool,
}

/// What code for a failure depends on: the status, the offset of the template, and how many numbers it takes.
type Failure = (i32, i64, usize);

/// The end of a [`Leave`].
pub(super) struct Left {
    pub block: Block,
    pub is_used: bool,
}

impl Writer<'_, '_, '_> {
    pub(super) fn push_leave(&mut self) {
        let to = self.code.cold_block();
        self.code.b.append_block_param(to, types::I32);
        self.leaves.push(Leave { to, failures: BTreeMap::new(), is_used: false });
    }

    /// Where a status goes.
    pub(super) fn leave(&mut self) -> Result<Block> {
        Ok(self.innermost()?.to)
    }

    /// What is left next, which from now on is.
    fn innermost(&mut self) -> Result<&mut Leave> {
        let leave = self.leaves.last_mut().ok_or_else(|| internal("nowhere to leave to".into()))?;
        leave.is_used = true;
        Ok(leave)
    }

    /// Ends what may leave, and writes the blocks that fail.
    pub(super) fn pop_leave(&mut self) -> Result<Left> {
        let leave = self.leaves.pop().ok_or_else(|| internal("nothing to leave".into()))?;
        if leave.failures.is_empty() {
            return Ok(Left { block: leave.to, is_used: leave.is_used });
        }
        // Parameters: status, offset of the template. The numbers are in a slot.
        let fail = self.code.cold_block();
        for ty in [types::I32, types::I64] {
            self.code.b.append_block_param(fail, ty);
        }
        let slot = *self.numbers.get_or_insert_with(|| self.code.slot(0));
        for ((status, template, count), block) in leave.failures {
            self.code.b.switch_to_block(block);
            if count > 0 {
                let numbers = self.code.slot_addr_of(slot, 8 * count);
                for (at, number) in self.code.b.block_params(block).to_vec().into_iter().enumerate() {
                    self.code.store(number, numbers, 8 * at as i64);
                }
            }
            let args = [self.code.int32(status), self.code.int(template)];
            self.code.jump(fail, &args);
        }
        self.code.b.switch_to_block(fail);
        let params = self.code.b.block_params(fail).to_vec();
        let text = self.code.unit.text_symbol();
        let base = self.code.data_addr(text, true);
        let template = self.code.b.ins().iadd(base, params[1]);
        let options = self.environment.options()?;
        let numbers = self.code.slot_addr(slot);
        self.code.call(self.symbols.message, &[options, template, numbers]);
        self.code.jump(leave.to, &[params[0]]);
        Ok(Left { block: leave.to, is_used: leave.is_used })
    }

    /// The block of a failure.
    fn failure(&mut self, status: i32, template: &str, numbers: usize) -> Result<Block> {
        let key = (status, self.code.unit.text(template), numbers);
        if let Some(&block) = self.innermost()?.failures.get(&key) {
            return Ok(block);
        }
        let block = self.code.cold_block();
        for _ in 0..numbers {
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
        let (block, args) = match template.is_empty() {
            true => (self.leave()?, vec![BlockArg::from(self.code.int32(status))]),
            false => {
                let args = numbers.iter().map(|&number| BlockArg::from(number));
                (self.failure(status, template, numbers.len())?, args.collect())
            }
        };
        self.code.b.ins().brif(bad, block, &args, next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Result<()> {
        let cancel = self.address(Address::Cancel)?;
        let flag = self.code.load(types::I32, cancel, 0);
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
