//! `memcpy` for programs without a C library.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, types};

use crate::emit::func::Code;

/// Bytes that an iteration copies while at least that number is left.
const WORD: i64 = 8;

/// Writes the body of a function of C's `memcpy`: to, from, bytes. Words first, then bytes.
pub(super) fn body(code: &mut Code<'_>) {
    let [to, from, bytes] = code.params()[..] else { unreachable!("the signature has three parameters") };
    let zero = code.int(0);
    let words = code.b.ins().band_imm_s(bytes, -WORD);
    let mut start = zero;
    for (end, ty, step) in [(words, types::I64, WORD), (bytes, types::I8, 1)] {
        let (head, copy, done) = (code.block(), code.block(), code.block());
        let at = code.b.append_block_param(head, types::I64);
        code.b.ins().jump(head, &[BlockArg::Value(start)]);
        code.b.switch_to_block(head);
        let more = code.b.ins().icmp(IntCC::UnsignedLessThan, at, end);
        code.b.ins().brif(more, copy, &[], done, &[]);
        code.b.switch_to_block(copy);
        let flags = MemFlagsData::new().with_notrap();
        let (source, place) = (code.b.ins().iadd(from, at), code.b.ins().iadd(to, at));
        let value = code.b.ins().load(ty, flags, source, 0);
        code.b.ins().store(flags, value, place, 0);
        let next = code.b.ins().iadd_imm_s(at, step);
        code.b.ins().jump(head, &[BlockArg::Value(next)]);
        code.b.switch_to_block(done);
        start = at;
    }
    code.b.ins().return_(&[to]);
}
