//! The routine in every object that can be traced: what happens at a step where the caller's flag is set, or where it traces the run.
//!
//! A run looks at the caller's flag before each step. Where a run is traced, it is given the address of a word that is set in place of that
//! flag, so that this routine is called at each step: a run that is not traced does nothing for it but one test when it begins.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_module::FuncId;

use crate::emit::func::Code;
use crate::emit::object::{SET_WORD, Unit};
use crate::host::abi::{event, options, status};
use onnxc_ir::error::Result;

/// Bits of an event in a code.
const EVENT_BITS: i64 = 3;

/// The event of a poll, which no trace is informed of.
const NONE: i64 = 7;

/// The bit of a code that says that the run does not end here.
const UNPOLLED: i64 = 1 << EVENT_BITS;

/// Bits of a code below the number that goes with the event.
const CODE_BITS: i64 = EVENT_BITS + 1;

/// An event with its number, as the routine takes them.
pub(super) fn code_of(event: Option<i64>, number: i64) -> i64 {
    number << CODE_BITS | event.unwrap_or(NONE)
}

/// The code of an event at which the run does not end, though it is cancelled.
pub(super) fn unpolled_code_of(event: i64, number: i64) -> i64 {
    code_of(Some(event), number) | UNPOLLED
}

/// The code of an event with a number that only the run knows.
pub(super) fn code_with(code: &mut Code<'_>, event: i64, number: Value) -> Value {
    let number = code.b.ins().ishl_imm_u(number, CODE_BITS);
    code.b.ins().bor_imm_s(number, event)
}

/// The address of the flag that a run looks at. A caller without a flag has a zero, and one that traces the run a word that is set.
pub(super) fn flag(code: &mut Code<'_>, options: Value) -> Value {
    let text = code.unit.text_symbol();
    let zeros = code.data_addr(text, true);
    let cancel = code.load64(options, options::CANCEL);
    let cancel = code.b.ins().select(cancel, cancel, zeros);
    let set = code.add(zeros, SET_WORD);
    let trace = given(code, options, zeros);
    code.b.ins().select(trace, set, cancel)
}

/// The caller's function, or null. Options that end before it are not read there.
fn given(code: &mut Code<'_>, options: Value, zeros: Value) -> Value {
    let size = code.load64(options, options::STRUCT_SIZE);
    let has = code.icmp_imm(IntCC::UnsignedGreaterThanOrEqual, size, options::FOURTH_SIZE);
    let options = code.b.ins().select(has, options, zeros);
    code.load64(options, options::TRACE)
}

/// Defines `int32_t trace(options, code, kernel, nodes)`: fails where the caller has cancelled the run and the event is one at which it may
/// end, else calls the caller's trace. Kernel and nodes are offsets in the text data.
pub(super) fn define(unit: &mut Unit, message: FuncId) -> Result<FuncId> {
    let signature = unit.signature(&[types::I64; 4], Some(types::I32));
    let id = unit.declare("trace", &signature)?;
    let cancelled = unit.text("cancelled by the caller");
    unit.build(id, |code| {
        body(code, message, cancelled);
        Ok(())
    })?;
    Ok(id)
}

fn body(code: &mut Code<'_>, message: FuncId, cancelled: i64) {
    let params = code.params();
    let (options, given_code) = (params[0], params[1]);
    let (look, fail, inform, call, done) =
        (code.block(), code.block(), code.block(), code.block(), code.block());
    let text = code.unit.text_symbol();
    let zeros = code.data_addr(text, true);
    let event = code.b.ins().band_imm_s(given_code, (1 << EVENT_BITS) - 1);
    // What a run does not end at.
    let passive = [event::RUN_BEGIN, event::RUN_END, event::LEAVE].into_iter().chain(UNPOLLED..2 * UNPOLLED);
    let bits = code.int(passive.fold(0, |bits, at| bits | 1 << at));
    let kind = code.b.ins().band_imm_s(given_code, (1 << CODE_BITS) - 1);
    let bit = code.b.ins().ushr(bits, kind);
    let bit = code.b.ins().band_imm_s(bit, 1);
    code.branch(bit, inform, look);

    code.b.switch_to_block(look);
    let cancel = code.load64(options, options::CANCEL);
    let cancel = code.b.ins().select(cancel, cancel, zeros);
    let flag = code.load(types::I32, cancel, 0);
    code.branch(flag, fail, inform);

    code.b.switch_to_block(fail);
    let template = code.add(zeros, cancelled);
    code.call(message, &[options, template, template]);
    let status = code.int32(status::CANCELLED);
    code.b.ins().return_(&[status]);

    code.b.switch_to_block(inform);
    let function = given(code, options, zeros);
    let is_event = code.icmp_imm(IntCC::NotEqual, event, NONE);
    let has = code.icmp_imm(IntCC::NotEqual, function, 0);
    let calls = code.b.ins().band(is_event, has);
    code.branch(calls, call, done);

    code.b.switch_to_block(call);
    let context = code.load64(options, options::TRACE_CONTEXT);
    let number = code.b.ins().sshr_imm_u(given_code, CODE_BITS);
    let event = code.b.ins().ireduce(types::I32, event);
    let [kernel, nodes] = [params[2], params[3]].map(|offset| code.b.ins().iadd(zeros, offset));
    let words = [types::I64, types::I32, types::I64, types::I64, types::I64];
    let signature = code.unit.signature(&words, None);
    code.call_pointer(&signature, function, &[context, event, number, kernel, nodes]);
    code.jump(done, &[]);

    code.b.switch_to_block(done);
    let ok = code.int32(status::OK);
    code.b.ins().return_(&[ok]);
}
