//! Writing one function of an object: a thin layer over Cranelift's builder.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    Block, BlockArg, FuncRef, GlobalValue, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData,
    StackSlotKind, Type, Value, types,
};
use cranelift_frontend::FunctionBuilder;
use cranelift_module::{DataId, FuncId, Module};
use target_lexicon::BinaryFormat;

use crate::emit::object::{Unit, data_value};

/// A function being written.
pub(super) struct Code<'a> {
    pub b: FunctionBuilder<'a>,
    pub unit: &'a mut Unit,
    functions: HashMap<FuncId, FuncRef>,
    data: HashMap<DataId, GlobalValue>,
}

impl<'a> Code<'a> {
    pub(super) fn new(b: FunctionBuilder<'a>, unit: &'a mut Unit) -> Code<'a> {
        Code { b, unit, functions: HashMap::new(), data: HashMap::new() }
    }

    /// Ends the function; gives the functions that it calls or hands to others to call.
    pub(super) fn finish(mut self) -> Vec<FuncId> {
        self.b.seal_all_blocks();
        let config = self.unit.isa.frontend_config();
        self.b.finalize(config);
        self.functions.into_keys().collect()
    }

    /// Parameters of the function; called while the entry block is current.
    pub(super) fn params(&mut self) -> Vec<Value> {
        let entry = self.b.current_block().expect("a block is current");
        self.b.block_params(entry).to_vec()
    }

    pub(super) fn int(&mut self, value: i64) -> Value {
        self.b.ins().iconst(types::I64, value)
    }

    pub(super) fn int32(&mut self, value: i32) -> Value {
        self.b.ins().iconst(types::I32, i64::from(value))
    }

    pub(super) fn load(&mut self, ty: Type, base: Value, offset: i64) -> Value {
        let (base, offset) = self.reach(base, offset);
        self.b.ins().load(ty, MemFlagsData::new().with_notrap(), base, offset)
    }

    pub(super) fn load64(&mut self, base: Value, offset: i64) -> Value {
        self.load(types::I64, base, offset)
    }

    pub(super) fn store(&mut self, value: Value, base: Value, offset: i64) {
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

    pub(super) fn add(&mut self, base: Value, offset: i64) -> Value {
        if offset == 0 { base } else { self.b.ins().iadd_imm_s(base, offset) }
    }

    /// A stack slot of `bytes`, 16-byte aligned.
    pub(super) fn slot(&mut self, bytes: usize) -> StackSlot {
        let size = u32::try_from(bytes.max(8)).unwrap_or(u32::MAX);
        self.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, size, 4))
    }

    pub(super) fn slot_addr(&mut self, slot: StackSlot) -> Value {
        self.b.ins().stack_addr(types::I64, slot, 0)
    }

    /// Address of a slot, which has at least `bytes` from now on.
    pub(super) fn slot_addr_of(&mut self, slot: StackSlot, bytes: usize) -> Value {
        let size = &mut self.b.func.sized_stack_slots[slot].size;
        *size = u32::try_from(bytes).unwrap_or(u32::MAX).max(*size);
        self.slot_addr(slot)
    }

    fn function(&mut self, id: FuncId) -> FuncRef {
        if let Some(&function) = self.functions.get(&id) {
            return function;
        }
        let function = self.unit.module.declare_func_in_func(id, self.b.func);
        // In COFF objects, a linker makes what leads to a function of another image.
        if self.unit.isa.triple().binary_format == BinaryFormat::Coff {
            self.b.func.dfg.ext_funcs[function].colocated = true;
        }
        self.functions.insert(id, function);
        function
    }

    /// Calls a function of this object; gives its result.
    pub(super) fn call(&mut self, id: FuncId, args: &[Value]) -> Value {
        self.call_extern(id, args).expect("the function has a result")
    }

    /// Calls a function; gives its result, if it has one.
    pub(super) fn call_extern(&mut self, id: FuncId, args: &[Value]) -> Option<Value> {
        let function = self.function(id);
        let call = self.b.ins().call(function, args);
        self.b.inst_results(call).first().copied()
    }

    pub(super) fn call_pointer(
        &mut self,
        signature: &Signature,
        pointer: Value,
        args: &[Value],
    ) -> Option<Value> {
        let signature = self.b.import_signature(signature.clone());
        let call = self.b.ins().call_indirect(signature, pointer, args);
        self.b.inst_results(call).first().copied()
    }

    pub(super) fn function_addr(&mut self, id: FuncId) -> Value {
        let function = self.function(id);
        self.b.ins().func_addr(types::I64, function)
    }

    pub(super) fn data_addr(&mut self, id: DataId, near: bool) -> Value {
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
    pub(super) fn weights_addr(&mut self) -> Value {
        match self.unit.weights_symbol() {
            Some((id, near)) => self.data_addr(id, near),
            None => self.int(0),
        }
    }

    pub(super) fn block(&mut self) -> Block {
        self.b.create_block()
    }

    pub(super) fn cold_block(&mut self) -> Block {
        let block = self.b.create_block();
        self.b.set_cold_block(block);
        block
    }

    pub(super) fn jump(&mut self, to: Block, args: &[Value]) {
        let args: Vec<BlockArg> = args.iter().map(|&value| value.into()).collect();
        self.b.ins().jump(to, &args);
    }

    pub(super) fn branch(&mut self, condition: Value, then: Block, otherwise: Block) {
        self.b.ins().brif(condition, then, &[], otherwise, &[]);
    }

    pub(super) fn icmp(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        self.b.ins().icmp(cc, a, b)
    }

    pub(super) fn icmp_imm(&mut self, cc: IntCC, a: Value, b: i64) -> Value {
        self.b.ins().icmp_imm_s(cc, a, b)
    }
}

#[cfg(test)]
mod tests {
    use cranelift_codegen::control::ControlPlane;
    use cranelift_codegen::ir::{Function, UserFuncName};
    use cranelift_frontend::FunctionBuilderContext;

    use super::*;
    use onnxc_backend::codegen::testing::{baseline, i64_bytes};
    use onnxc_backend::loaded::LoadedKernel;

    /// No instruction has an offset of more than 32 bits.
    #[test]
    fn offsets_reach_beyond_32_bits() {
        const FAR: i64 = 1 << 40;
        let mut unit = Unit::new("far", &baseline(), true).unwrap();
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
