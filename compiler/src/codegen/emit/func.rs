//! Writing one function of an object: a thin layer over Cranelift's builder with the few idioms that entry
//! points are made of.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    Block, BlockArg, FuncRef, GlobalValue, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData,
    StackSlotKind, Type, Value, types,
};
use cranelift_frontend::FunctionBuilder;
use cranelift_module::{DataId, FuncId, Module};

use crate::codegen::emit::abi::status;
use crate::codegen::emit::object::{Unit, data_value};
use crate::error::Result;

/// A function being written.
pub(super) struct Code<'a> {
    pub b: FunctionBuilder<'a>,
    pub unit: &'a mut Unit,
    functions: HashMap<FuncId, FuncRef>,
    data: HashMap<DataId, GlobalValue>,
    fail: Option<Block>,
}

impl<'a> Code<'a> {
    pub fn new(b: FunctionBuilder<'a>, unit: &'a mut Unit) -> Code<'a> {
        Code { b, unit, functions: HashMap::new(), data: HashMap::new(), fail: None }
    }

    /// Ends the function; gives the functions that it calls or hands to others to call.
    pub fn finish(mut self) -> Vec<FuncId> {
        self.b.seal_all_blocks();
        let config = self.unit.isa.frontend_config();
        self.b.finalize(config);
        self.functions.into_keys().collect()
    }

    /// Parameters of the function; called while the entry block is current.
    pub fn params(&mut self) -> Vec<Value> {
        let entry = self.b.current_block().expect("a block is current");
        self.b.block_params(entry).to_vec()
    }

    pub fn int(&mut self, value: i64) -> Value {
        self.b.ins().iconst(types::I64, value)
    }

    pub fn int32(&mut self, value: i32) -> Value {
        self.b.ins().iconst(types::I32, i64::from(value))
    }

    pub fn load(&mut self, ty: Type, base: Value, offset: i64) -> Value {
        let (base, offset) = self.reach(base, offset);
        self.b.ins().load(ty, MemFlagsData::new().with_notrap(), base, offset)
    }

    pub fn load64(&mut self, base: Value, offset: i64) -> Value {
        self.load(types::I64, base, offset)
    }

    pub fn store(&mut self, value: Value, base: Value, offset: i64) {
        let (base, offset) = self.reach(base, offset);
        self.b.ins().store(MemFlagsData::new().with_notrap(), value, base, offset);
    }

    /// Offsets beyond 32 bits are added to the base.
    fn reach(&mut self, base: Value, offset: i64) -> (Value, i32) {
        match i32::try_from(offset) {
            Ok(offset) => (base, offset),
            Err(_) => (self.b.ins().iadd_imm_s(base, offset), 0),
        }
    }

    pub fn add(&mut self, base: Value, offset: i64) -> Value {
        if offset == 0 { base } else { self.b.ins().iadd_imm_s(base, offset) }
    }

    /// A stack slot of `bytes`, 16-byte aligned.
    pub fn slot(&mut self, bytes: usize) -> StackSlot {
        let size = u32::try_from(bytes.max(8)).unwrap_or(u32::MAX);
        self.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, size, 4))
    }

    pub fn slot_addr(&mut self, slot: StackSlot) -> Value {
        self.b.ins().stack_addr(types::I64, slot, 0)
    }

    /// Address of a slot, which has at least `bytes` from now on.
    pub fn slot_addr_of(&mut self, slot: StackSlot, bytes: usize) -> Value {
        let size = &mut self.b.func.sized_stack_slots[slot].size;
        *size = u32::try_from(bytes).unwrap_or(u32::MAX).max(*size);
        self.slot_addr(slot)
    }

    fn function(&mut self, id: FuncId) -> FuncRef {
        if let Some(&function) = self.functions.get(&id) {
            return function;
        }
        let function = self.unit.module.declare_func_in_func(id, self.b.func);
        self.functions.insert(id, function);
        function
    }

    /// Calls a function of this object; gives its result.
    pub fn call(&mut self, id: FuncId, args: &[Value]) -> Value {
        let function = self.function(id);
        let call = self.b.ins().call(function, args);
        self.b.inst_results(call)[0]
    }

    pub fn call_pointer(&mut self, signature: &Signature, pointer: Value, args: &[Value]) -> Option<Value> {
        let signature = self.b.import_signature(signature.clone());
        let call = self.b.ins().call_indirect(signature, pointer, args);
        self.b.inst_results(call).first().copied()
    }

    pub fn function_addr(&mut self, id: FuncId) -> Value {
        let function = self.function(id);
        self.b.ins().func_addr(types::I64, function)
    }

    pub fn data_addr(&mut self, id: DataId, near: bool) -> Value {
        let data = match self.data.get(&id) {
            Some(&data) => data,
            None => {
                let data = data_value(&mut self.b, id, near);
                self.data.insert(id, data);
                data
            }
        };
        self.b.ins().symbol_value(types::I64, data)
    }

    /// Start of the weights; 0 in a model without.
    pub fn weights_addr(&mut self) -> Value {
        match self.unit.weights_symbol() {
            Some((id, near)) => self.data_addr(id, near),
            None => self.int(0),
        }
    }

    /// Calls C `memcpy`.
    pub fn memcpy(&mut self, to: Value, from: Value, bytes: Value) -> Result<()> {
        let id = self.unit.memcpy()?;
        self.call(id, &[to, from, bytes]);
        Ok(())
    }

    pub fn block(&mut self) -> Block {
        self.b.create_block()
    }

    pub fn cold_block(&mut self) -> Block {
        let block = self.b.create_block();
        self.b.set_cold_block(block);
        block
    }

    pub fn jump(&mut self, to: Block, args: &[Value]) {
        let args: Vec<BlockArg> = args.iter().map(|&value| value.into()).collect();
        self.b.ins().jump(to, &args);
    }

    pub fn branch(&mut self, condition: Value, then: Block, otherwise: Block) {
        self.b.ins().brif(condition, then, &[], otherwise, &[]);
    }

    pub fn icmp(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        self.b.ins().icmp(cc, a, b)
    }

    pub fn icmp_imm(&mut self, cc: IntCC, a: Value, b: i64) -> Value {
        self.b.ins().icmp_imm_s(cc, a, b)
    }

    /// The block that reports a failure and returns its status. Parameters: status, offset of the message's
    /// template, two numbers for it, pointer to the options.
    pub fn fail_block(&mut self) -> Block {
        if let Some(block) = self.fail {
            return block;
        }
        let block = self.cold_block();
        for ty in [types::I32, types::I64, types::I64, types::I64, types::I64] {
            self.b.append_block_param(block, ty);
        }
        self.fail = Some(block);
        block
    }

    /// Leaves the function with `status` and a message when `bad` is not zero.
    pub fn fail_if(&mut self, bad: Value, status: i32, template: &str, args: [Value; 2], options: Value) {
        let cold = self.cold_block();
        let next = self.block();
        self.branch(bad, cold, next);
        self.b.switch_to_block(cold);
        self.fail(status, template, args, options);
        self.b.switch_to_block(next);
    }

    /// Ends the current block with a failure.
    pub fn fail(&mut self, status: i32, template: &str, args: [Value; 2], options: Value) {
        let fail = self.fail_block();
        let status = self.int32(status);
        let template = self.unit.text(template);
        let template = self.int(template);
        self.jump(fail, &[status, template, args[0], args[1], options]);
    }

    /// Leaves with `CANCELLED` when the flag at `cancel` is set.
    pub fn poll(&mut self, cancel: Value, options: Value) {
        let (flag, none) = (self.load(types::I32, cancel, 0), self.int(0));
        self.fail_if(flag, status::CANCELLED, "cancelled by the caller", [none, none], options);
    }

    /// Writes the failure block, if anything jumps to it: `message` writes the text.
    pub fn write_fail_block(&mut self, message: FuncId) {
        let Some(block) = self.fail.take() else { return };
        self.b.switch_to_block(block);
        let params = self.b.block_params(block).to_vec();
        let text = self.unit.text_symbol();
        let base = self.data_addr(text, true);
        let template = self.b.ins().iadd(base, params[1]);
        self.call(message, &[params[4], template, params[2], params[3]]);
        self.b.ins().return_(&[params[0]]);
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::control::ControlPlane;
    use cranelift_codegen::ir::{Function, UserFuncName};
    use cranelift_frontend::FunctionBuilderContext;

    use super::*;
    use crate::codegen::testing::{baseline, i64_bytes};
    use crate::native::kernel::LoadedKernel;

    /// No instruction has an offset of more than 32 bits.
    #[test]
    fn offsets_reach_beyond_32_bits() {
        const FAR: i64 = 1 << 40;
        let mut unit = Unit::new("far", &baseline()).unwrap();
        let signature = unit.signature(&[types::I64; 4], Some(types::I32));
        let mut function = Function::with_name_signature(UserFuncName::user(0, 0), signature);
        let mut context = FunctionBuilderContext::new();
        let mut b = FunctionBuilder::new(&mut function, &mut context);
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let mut code = Code::new(b, &mut unit);
        let buffers = code.params()[0];
        let words = code.load64(buffers, 0);
        // A base so far away that the offset leads back to the words: the first one goes to the others.
        for (word, far) in [(1, FAR), (2, -FAR)] {
            let base = code.add(words, -far);
            let value = code.load64(base, far);
            code.store(value, base, far + 8 * word);
        }
        let ok = code.int32(0);
        code.b.ins().return_(&[ok]);
        code.finish();
        let mut context = cranelift_codegen::Context::for_function(function);
        let compiled = context.compile(&*unit.isa, &mut ControlPlane::default()).unwrap();
        let kernel = LoadedKernel::new(compiled.code_buffer(), 1).unwrap();
        // One more word, so that what misses its place stays in the buffer.
        let word = 0x0102_0304_0506_0708;
        let mut buffers = [i64_bytes(&[word, 0, 0, 0])];
        assert_eq!(kernel.call(&mut buffers, &[], (0, 0)), 0);
        assert_eq!(buffers[0], i64_bytes(&[word, word, word, 0]));
    }
}
