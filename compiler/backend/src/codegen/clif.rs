//! The vector IR as Cranelift IR: an instruction or a short sequence for each operation. Selection, hoisting and addresses
//! are done above, by `vector::select`; [`types`] decides which Cranelift type each register has, `ops.rs` has the operations
//! on vectors and masks, `memory.rs` loads and stores, `scalar.rs` the sequences for numbers alone.

mod memory;
mod ops;
mod remainder;
mod scalar;
mod types;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, ConstantData, Endianness, Function, InstBuilder, MemFlagsData, Signature,
    StackSlot, StackSlotData, StackSlotKind, Type, UserFuncName, Value, types as t,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_entity::SecondaryMap;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use onnxc_machine::vector::ir::{BlockId, Class, Cond, End, Func, Inst, Lanes, Mem, Op, Operand, Reg};
use onnxc_machine::vector::isa::Isa;
use types::Types;

/// What cannot be emitted, which the verifier of the vector IR should have refused.
type Emitted<T = ()> = Result<T, String>;

/// Cranelift IR of a function that was selected for `isa`, a machine of Cranelift's; `target` is the machine itself.
pub(super) fn function(func: &Func, isa: Isa, target: &dyn TargetIsa) -> Emitted<Function> {
    let mut signature = Signature::new(CallConv::triple_default(target.triple()));
    let pointer = target.pointer_type();
    for ty in [pointer, pointer, t::I64, t::I64] {
        signature.params.push(AbiParam::new(ty));
    }
    signature.returns.push(AbiParam::new(t::I32));
    let mut out = Function::with_name_signature(UserFuncName::user(0, 0), signature);
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut out, &mut context);
    let mut blocks = SecondaryMap::with_default(Block::from_u32(0));
    for id in func.blocks.keys() {
        blocks[id] = b.create_block();
    }
    let frame = u32::try_from(func.frame).ok().filter(|bytes| *bytes > 0).map(|bytes| {
        b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, FRAME_ALIGN_SHIFT))
    });
    let types = Types::of(func, isa);
    let mut emitter = Emitter { isa, func, types, b, blocks, values: SecondaryMap::new(), frame };
    for id in func.blocks.keys() {
        emitter.block(id).map_err(|text| format!("{id}: {text}"))?;
    }
    emitter.b.seal_all_blocks();
    emitter.b.finalize(target.frontend_config());
    Ok(out)
}

/// No access needs more than its vectors' alignment.
const FRAME_ALIGN_SHIFT: u8 = 4;

struct Emitter<'f> {
    isa: Isa,
    func: &'f Func,
    types: Types,
    b: FunctionBuilder<'f>,
    blocks: SecondaryMap<BlockId, Block>,
    values: SecondaryMap<Reg, Option<Value>>,
    /// The function's own memory.
    frame: Option<StackSlot>,
}

impl Emitter<'_> {
    fn block(&mut self, id: BlockId) -> Emitted {
        let (func, block) = (self.func, self.blocks[id]);
        let source = &func.blocks[id];
        if id == BlockId::from_u32(0) {
            self.b.append_block_params_for_function_params(block);
        } else {
            for &param in &source.params {
                self.b.append_block_param(block, self.types.of_reg(param));
            }
        }
        let params = self.b.block_params(block).to_vec();
        for (&reg, value) in source.params.iter().zip(params) {
            self.values[reg] = Some(value);
        }
        self.b.switch_to_block(block);
        for inst in &source.insts {
            self.inst(inst).map_err(|text| format!("{:?}: {text}", inst.op))?;
        }
        match &source.end {
            End::Jump(to, args) => {
                let params = &func.blocks[*to].params;
                let args = args.iter().zip(params).map(|(&arg, &param)| {
                    let ty = self.types.of_reg(param);
                    self.used_as(arg, ty).map(BlockArg::Value)
                });
                let args = args.collect::<Emitted<Vec<_>>>()?;
                self.b.ins().jump(self.blocks[*to], &args);
            }
            End::Branch { cond, a, b, then, otherwise } => {
                let a = self.int(*a)?;
                let b = match b {
                    Operand::Reg(b) => self.int(*b)?,
                    Operand::Imm(b) => self.b.ins().iconst(t::I64, i64::from(*b)),
                };
                let cc = match cond {
                    Cond::Lt => IntCC::SignedLessThan,
                    Cond::Ge => IntCC::SignedGreaterThanOrEqual,
                    Cond::Eq => IntCC::Equal,
                    Cond::Ne => IntCC::NotEqual,
                };
                let holds = self.b.ins().icmp(cc, a, b);
                self.b.ins().brif(holds, self.blocks[*then], &[], self.blocks[*otherwise], &[]);
            }
            End::Return(code) => {
                if *code != 0 {
                    self.b.set_cold_block(block);
                }
                let code = self.b.ins().iconst(t::I32, i64::from(*code));
                self.b.ins().return_(&[code]);
            }
        }
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Emitted {
        let value = match inst.op {
            // Constants are made where they are used.
            Op::Splat(..) | Op::Prefetch => return Ok(()),
            Op::Store(lanes) => return self.store(inst, lanes),
            Op::StorePart(small) => return self.store_part(inst, small),
            op => match inst.dst.map(|dst| self.func.regs[dst]) {
                Some(Class::Int) => self.general(inst)?,
                Some(Class::Mask) => self.mask(inst)?,
                Some(Class::Vec) => self.vector(inst)?,
                None => return Err(format!("{op:?} has no result")),
            },
        };
        let Some(dst) = inst.dst else { return Ok(()) };
        let ty = self.types.of_reg(dst);
        self.values[dst] = Some(self.cast(value, ty)?);
        Ok(())
    }

    fn type_of(&self, value: Value) -> Type {
        self.b.func.dfg.value_type(value)
    }

    /// A register as a value of a type.
    fn used_as(&mut self, reg: Reg, ty: Type) -> Emitted<Value> {
        if let Some(bits) = self.types.constant(reg) {
            return Ok(self.constant(ty, bits));
        }
        let value = self.values[reg].ok_or_else(|| format!("{reg} has no value"))?;
        self.cast(value, ty)
    }

    fn int(&mut self, reg: Reg) -> Emitted<Value> {
        self.used_as(reg, t::I64)
    }

    /// Operand `at` of an instruction, which is in memory if no register is there.
    fn operand(&mut self, inst: &Inst, at: usize, ty: Type) -> Emitted<Value> {
        match (inst.uses.get(at), inst.mem) {
            (Some(&reg), _) => self.used_as(reg, ty),
            (None, Some(Mem::Constant(bits))) => Ok(self.constant(ty, bits)),
            (None, Some(Mem::At(_))) => self.load(inst, ty),
            _ => Err(format!("operand {at} is missing")),
        }
    }

    /// A vector as a scalar of its first lane, a scalar as the first lane of a vector, or other types of the same bits.
    fn cast(&mut self, value: Value, ty: Type) -> Emitted<Value> {
        let from = self.type_of(value);
        match (from.is_vector(), ty.is_vector()) {
            _ if from == ty => Ok(value),
            // A pair of f64, as an integer: see `types`.
            _ if from == t::I128 => {
                let (low, _) = self.b.ins().isplit(value);
                self.cast(low, ty)
            }
            _ if ty == t::I128 => {
                let low = self.cast(value, t::I64)?;
                Ok(self.b.ins().uextend(t::I128, low))
            }
            (true, false) => {
                let whole = ty.by(128 / ty.bits()).ok_or("no such vector")?;
                let value = self.bitcast(whole, value);
                Ok(self.b.ins().extractlane(value, 0))
            }
            (false, true) => {
                let lane = if from.bits() == 64 { t::F64 } else { t::F32 };
                let lane = self.bitcast(lane, value);
                let whole =
                    self.b.ins().scalar_to_vector(if from.bits() == 64 { t::F64X2 } else { t::F32X4 }, lane);
                Ok(self.bitcast(ty, whole))
            }
            _ if from.bits() == ty.bits() => Ok(self.bitcast(ty, value)),
            _ => Err(format!("{from} is no {ty}")),
        }
    }

    fn bitcast(&mut self, ty: Type, value: Value) -> Value {
        if self.type_of(value) == ty {
            return value;
        }
        // Lanes are in the order of memory, and so are the bytes of each: other lanes of a vector are those bytes again.
        let order = if self.isa.is_big_endian { Endianness::Big } else { Endianness::Little };
        let flags = MemFlagsData::new().with_endianness(order);
        self.b.ins().bitcast(ty, flags, value)
    }

    /// These bits in every lane.
    fn constant(&mut self, ty: Type, bits: u64) -> Value {
        match ty {
            t::F32 => self.b.ins().f32const(Ieee32::with_bits(bits as u32)),
            t::F64 => self.b.ins().f64const(Ieee64::with_bits(bits)),
            t::I128 => {
                let half = self.b.ins().iconst(t::I64, bits as i64);
                self.b.ins().iconcat(half, half)
            }
            _ if ty.is_vector() => {
                let width = ty.lane_bits() as usize / 8;
                let data: Vec<u8> = bits.to_le_bytes()[..width].iter().copied().cycle().take(16).collect();
                let constant = self.b.func.dfg.constants.insert(ConstantData::from(data.as_slice()));
                self.b.ins().vconst(ty, constant)
            }
            _ => {
                let unused = 64 - ty.bits();
                self.b.ins().iconst(ty, (bits << unused >> unused) as i64)
            }
        }
    }

    fn shifted(&mut self, value: Value, count: u8, shift: Shift) -> Value {
        let count = self.b.ins().iconst(t::I32, i64::from(count));
        match shift {
            Shift::Left => self.b.ins().ishl(value, count),
            Shift::Right => self.b.ins().ushr(value, count),
            Shift::Arithmetic => self.b.ins().sshr(value, count),
        }
    }

    /// Operations on general registers.
    fn general(&mut self, inst: &Inst) -> Emitted<Value> {
        let a = |cx: &mut Self| cx.operand(inst, 0, t::I64);
        let b = |cx: &mut Self| cx.operand(inst, 1, t::I64);
        Ok(match inst.op {
            Op::Int(value) => self.b.ins().iconst(t::I64, value),
            Op::Frame(at) => match self.frame {
                Some(frame) => self.b.ins().stack_addr(t::I64, frame, at),
                None => return Err("a frame of no bytes".into()),
            },
            Op::LoadInt => self.load(inst, t::I64)?,
            Op::LoadInt32 => {
                let value = self.load(inst, t::I32)?;
                self.b.ins().sextend(t::I64, value)
            }
            Op::LoadPart(small) => self.load_part(inst, small)?,
            Op::ToGeneral(Lanes::D1) => self.operand(inst, 0, t::I64)?,
            Op::ToGeneral(_) => {
                let lane = self.operand(inst, 0, t::I32)?;
                self.b.ins().uextend(t::I64, lane)
            }
            Op::Add => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().iadd(a, b)
            }
            Op::Sub => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().isub(a, b)
            }
            Op::Mul => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().imul(a, b)
            }
            Op::MulHigh => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().umulhi(a, b)
            }
            Op::DivInt => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().sdiv(a, b)
            }
            Op::MinInt => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().smin(a, b)
            }
            Op::MaxInt => {
                let (a, b) = (a(self)?, b(self)?);
                self.b.ins().smax(a, b)
            }
            Op::AddInt(0) | Op::MulInt(1) | Op::ShlInt(0) | Op::ShrInt(0) => a(self)?,
            Op::AddInt(by) => {
                let (a, by) = (a(self)?, self.b.ins().iconst(t::I64, i64::from(by)));
                self.b.ins().iadd(a, by)
            }
            Op::MulInt(by) => {
                let (a, by) = (a(self)?, self.b.ins().iconst(t::I64, i64::from(by)));
                self.b.ins().imul(a, by)
            }
            Op::ShlInt(count) => {
                let a = a(self)?;
                self.shifted(a, count, Shift::Left)
            }
            Op::ShrInt(count) => {
                let a = a(self)?;
                self.shifted(a, count, Shift::Right)
            }
            _ => return Err("no operation on general registers".into()),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shift {
    Left,
    Right,
    Arithmetic,
}
