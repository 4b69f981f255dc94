//! The ways to leave a function: with a status, and with a message for the caller.

use cranelift_codegen::ir::{Block, InstBuilder, Value, types};

use super::Writer;
use crate::error::Result;
use crate::host::abi::{options, status};
use crate::host::ir::Address;
use crate::host::lower::internal;

/// Where a status goes that something leaves with: out of the function, or to a handler.
pub(super) struct Leave {
    /// Its parameter is the status.
    to: Block,
    /// Writes the message first. Parameters: status, offset of the template, two numbers.
    fail: Option<Block>,
    is_used: bool,
}

/// The end of a [`Leave`].
pub(super) struct Left {
    pub block: Block,
    pub is_used: bool,
}

impl Writer<'_, '_, '_> {
    pub(super) fn push_leave(&mut self) {
        let to = self.code.cold_block();
        self.code.b.append_block_param(to, types::I32);
        self.leaves.push(Leave { to, fail: None, is_used: false });
    }

    /// Where a status goes.
    pub(super) fn leave(&mut self) -> Result<Block> {
        let leave = self.leaves.last_mut().ok_or_else(|| internal("nowhere to leave to".into()))?;
        leave.is_used = true;
        Ok(leave.to)
    }

    /// Ends what may leave, and writes the block that fails.
    pub(super) fn pop_leave(&mut self) -> Result<Left> {
        let leave = self.leaves.pop().ok_or_else(|| internal("nothing to leave".into()))?;
        if let Some(block) = leave.fail {
            self.code.b.switch_to_block(block);
            let params = self.code.b.block_params(block).to_vec();
            let text = self.code.unit.text_symbol();
            let base = self.code.data_addr(text, true);
            let template = self.code.b.ins().iadd(base, params[1]);
            let options = self.environment.options()?;
            self.code.call(self.symbols.message, &[options, template, params[2], params[3]]);
            self.code.jump(leave.to, &[params[0]]);
        }
        Ok(Left { block: leave.to, is_used: leave.is_used })
    }

    /// Ends the current block with a failure.
    pub(super) fn fail(&mut self, status: i32, template: &str, numbers: [Value; 2]) -> Result<()> {
        let to = self.leave()?;
        let status = self.code.int32(status);
        if template.is_empty() {
            self.code.jump(to, &[status]);
            return Ok(());
        }
        let known = self.leaves.last().and_then(|leave| leave.fail);
        let block = known.unwrap_or_else(|| {
            let block = self.code.cold_block();
            for ty in [types::I32, types::I64, types::I64, types::I64] {
                self.code.b.append_block_param(block, ty);
            }
            block
        });
        if let Some(leave) = self.leaves.last_mut() {
            leave.fail = Some(block);
        }
        let template = self.code.unit.text(template);
        let template = self.code.int(template);
        self.code.jump(block, &[status, template, numbers[0], numbers[1]]);
        Ok(())
    }

    /// Fails where `bad` is not 0.
    pub(super) fn fail_if(
        &mut self,
        bad: Value,
        status: i32,
        template: &str,
        numbers: [Value; 2],
    ) -> Result<()> {
        let (cold, next) = (self.code.cold_block(), self.code.block());
        self.code.branch(bad, cold, next);
        self.code.b.switch_to_block(cold);
        self.fail(status, template, numbers)?;
        self.code.b.switch_to_block(next);
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Result<()> {
        let cancel = self.address(Address::Cancel)?;
        let flag = self.code.load(types::I32, cancel, 0);
        let none = self.code.int(0);
        self.fail_if(flag, status::CANCELLED, "cancelled by the caller", [none, none])
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
