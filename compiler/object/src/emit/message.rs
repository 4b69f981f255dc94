//! The routine in every object that writes a failure's message into the caller's buffer.
//!
//! Templates are those of `host::message`: the byte 1 stands for the next signed number. No libc is needed.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Value, types};
use cranelift_module::FuncId;

use crate::emit::func::Code;
use crate::emit::object::Unit;
use crate::host::abi::options;
use onnxc_ir::error::Result;

/// Longest decimal number with its sign.
const DIGITS: i64 = 24;

/// Defines `int32_t message(options, template, numbers)`: fills the message buffer of `options`, always terminated
/// by a zero, cut where the buffer ends. Always 0.
pub(super) fn define(unit: &mut Unit) -> Result<FuncId> {
    let signature = unit.signature(&[types::I64; 3], Some(types::I32));
    let id = unit.declare("message", &signature)?;
    unit.build(id, |code| {
        body(code);
        Ok(())
    })?;
    Ok(id)
}

fn body(code: &mut Code<'_>) {
    let params = code.params();
    let digits = code.slot(DIGITS as usize);
    let (scan, checked, classify, literal, number, done, leave) =
        (code.block(), code.block(), code.block(), code.block(), code.block(), code.block(), code.block());
    let buffer = code.load64(params[0], options::MESSAGE);
    let capacity = code.load64(params[0], options::MESSAGE_CAPACITY);
    let limit = code.add(capacity, -1);
    let end = code.b.ins().iadd(buffer, limit);
    let has_buffer = code.icmp_imm(IntCC::NotEqual, buffer, 0);
    let has_room = code.icmp_imm(IntCC::NotEqual, capacity, 0);
    let writes = code.b.ins().band(has_buffer, has_room);
    code.branch(writes, checked, leave);

    // scan(out, at, numbers): the next byte of the template.
    for block in [scan, scan, scan, done] {
        code.b.append_block_param(block, types::I64);
    }
    code.b.switch_to_block(checked);
    code.jump(scan, &[buffer, params[1], params[2]]);
    code.b.switch_to_block(scan);
    let (out, at) = (code.b.block_params(scan)[0], code.b.block_params(scan)[1]);
    let numbers = code.b.block_params(scan)[2];
    let byte = code.load(types::I8, at, 0);
    let next = code.add(at, 1);
    let full = code.icmp(IntCC::Equal, out, end);
    let stop = code.icmp_imm(IntCC::Equal, byte, 0);
    let stop = code.b.ins().bor(full, stop);
    code.b.ins().brif(stop, done, &[out.into()], classify, &[]);

    code.b.switch_to_block(classify);
    let is_text = code.b.ins().icmp_imm_u(IntCC::NotEqual, byte, 1);
    code.branch(is_text, literal, number);

    code.b.switch_to_block(literal);
    code.store(byte, out, 0);
    let past = code.add(out, 1);
    code.jump(scan, &[past, next, numbers]);

    code.b.switch_to_block(number);
    let value = code.load64(numbers, 0);
    let later = code.add(numbers, 8);
    let slot = code.slot_addr(digits);
    let slot_end = code.add(slot, DIGITS);
    let start = write_digits(code, value, slot_end);
    copy_digits(code, (start, slot_end), (out, end), (scan, next, later));

    code.b.switch_to_block(done);
    let out = code.b.block_params(done)[0];
    let zero = code.b.ins().iconst(types::I8, 0);
    code.store(zero, out, 0);
    code.jump(leave, &[]);

    code.b.switch_to_block(leave);
    let zero = code.int32(0);
    code.b.ins().return_(&[zero]);
}

/// Writes the decimal digits of `value` so that they end before `end`; gives their start.
fn write_digits(code: &mut Code<'_>, value: Value, end: Value) -> Value {
    let (digit, sign, minus, ready) = (code.block(), code.block(), code.block(), code.block());
    for block in [digit, digit, ready] {
        code.b.append_block_param(block, types::I64);
    }
    let negative = code.icmp_imm(IntCC::SignedLessThan, value, 0);
    let negated = code.b.ins().ineg(value);
    let magnitude = code.b.ins().select(negative, negated, value);
    code.jump(digit, &[end, magnitude]);

    code.b.switch_to_block(digit);
    let (at, rest) = (code.b.block_params(digit)[0], code.b.block_params(digit)[1]);
    let ten = code.int(10);
    let quotient = code.b.ins().udiv(rest, ten);
    let remainder = code.b.ins().urem(rest, ten);
    let character = code.add(remainder, i64::from(b'0'));
    let character = code.b.ins().ireduce(types::I8, character);
    let at = code.add(at, -1);
    code.store(character, at, 0);
    code.b.ins().brif(quotient, digit, &[at.into(), quotient.into()], sign, &[]);

    code.b.switch_to_block(sign);
    code.b.ins().brif(negative, minus, &[], ready, &[at.into()]);
    code.b.switch_to_block(minus);
    let dash = code.b.ins().iconst(types::I8, i64::from(b'-'));
    let before = code.add(at, -1);
    code.store(dash, before, 0);
    code.jump(ready, &[before]);
    code.b.switch_to_block(ready);
    code.b.block_params(ready)[0]
}

/// Copies `start..stop` to `out`, up to `end`, and goes on with `scan(out, next, numbers)`.
fn copy_digits(
    code: &mut Code<'_>,
    (start, stop): (Value, Value),
    (out, end): (Value, Value),
    (scan, next, numbers): (Block, Value, Value),
) {
    let (copy, move_one) = (code.block(), code.block());
    code.b.append_block_param(copy, types::I64);
    code.b.append_block_param(copy, types::I64);
    code.jump(copy, &[start, out]);
    code.b.switch_to_block(copy);
    let (from, to) = (code.b.block_params(copy)[0], code.b.block_params(copy)[1]);
    let empty = code.icmp(IntCC::Equal, from, stop);
    let full = code.icmp(IntCC::Equal, to, end);
    let finished = code.b.ins().bor(empty, full);
    code.b.ins().brif(finished, scan, &[to.into(), next.into(), numbers.into()], move_one, &[]);
    code.b.switch_to_block(move_one);
    let byte = code.load(types::I8, from, 0);
    code.store(byte, to, 0);
    let (from, to) = (code.add(from, 1), code.add(to, 1));
    code.jump(copy, &[from, to]);
}
