//! What has a name in a host program, found from what a function is called with.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};

use super::{Writer, clif_type};
use crate::emit::func::Code;
use crate::emit::trace;
use crate::host::abi::{frame, options, tensor};
use crate::host::ir::{Address, Extent, Frame, FunctionKind, Place, Port, Program, Slot, TensorField};
use crate::host::lower::internal;
use onnxc_ir::error::Result;
use onnxc_loops::lower::explain::REPORT_WORDS;

/// The values by which a function reaches its memory. They are loaded when it begins, where all that follows sees them;
/// what nobody uses costs nothing.
#[derive(Default)]
pub(super) struct Environment {
    options: Option<Value>,
    /// Start of the sizes.
    workspace: Option<Value>,
    /// The caller's tensors; step functions find those of the outputs in the workspace.
    inputs: Option<Value>,
    outputs: Option<Value>,
    /// Step functions have these from their frame.
    frame: Option<Value>,
    arena: Option<Value>,
    weights: Option<Value>,
    cancel: Option<Value>,
    level: Option<Value>,
}

fn known(value: Option<Value>) -> Result<Value> {
    value.ok_or_else(|| internal("a function reaches for what it does not have".into()))
}

impl Environment {
    pub(super) fn new(
        code: &mut Code<'_>,
        program: &Program,
        kind: FunctionKind,
        params: &[Value],
    ) -> Environment {
        match (kind, params) {
            (FunctionKind::Run | FunctionKind::Checks, &[inputs, _, outputs, _, workspace, _, given]) => {
                let text = code.unit.text_symbol();
                let zeros = code.data_addr(text, true);
                Environment {
                    options: Some(code.b.ins().select(given, given, zeros)),
                    workspace: Some(workspace),
                    inputs: Some(inputs),
                    outputs: Some(outputs),
                    ..Environment::default()
                }
            }
            (FunctionKind::Steps(_), &[frame_at]) => {
                let workspace = code.load64(frame_at, frame::DIMS);
                let keeps_outputs = program.keeps_outputs;
                Environment {
                    options: Some(code.load64(frame_at, frame::OPTIONS)),
                    workspace: Some(workspace),
                    inputs: None,
                    outputs: keeps_outputs.then(|| code.load64(workspace, program.outputs_at())),
                    frame: Some(frame_at),
                    arena: Some(code.load64(frame_at, frame::ARENA)),
                    weights: Some(code.load64(frame_at, frame::WEIGHTS)),
                    cancel: Some(code.load64(frame_at, frame::CANCEL)),
                    level: Some(code.load64(frame_at, frame::LEVEL)),
                }
            }
            _ => Environment::default(),
        }
    }

    pub(super) fn options(&self) -> Result<Value> {
        known(self.options)
    }

    pub(super) fn workspace(&self) -> Result<Value> {
        known(self.workspace)
    }

    pub(super) fn frame(&self) -> Result<Value> {
        known(self.frame)
    }

    pub(super) fn level(&self) -> Result<Value> {
        known(self.level)
    }
}

impl Writer<'_, '_, '_> {
    /// A number at run time.
    pub(super) fn extent(&mut self, extent: Extent) -> Result<Value> {
        match extent {
            Extent::Const(value) => Ok(self.code.int(value)),
            Extent::Size(at) => self.load(Place::Size(at)),
        }
    }

    pub(super) fn address(&mut self, address: Address) -> Result<Value> {
        Ok(match address {
            Address::Weights(offset) => {
                let weights = match self.environment.weights {
                    Some(weights) => weights,
                    None => self.code.weights_addr(),
                };
                self.code.add(weights, offset as i64)
            }
            Address::Arena(offset) => {
                let start = match self.environment.arena {
                    Some(arena) => arena,
                    None => self.code.add(self.environment.workspace()?, self.program.arena),
                };
                match offset {
                    Extent::Const(offset) => self.code.add(start, offset),
                    offset => {
                        let offset = self.extent(offset)?;
                        self.code.b.ins().iadd(start, offset)
                    }
                }
            }
            Address::Workspace => self.environment.workspace()?,
            Address::Options => self.environment.options()?,
            Address::Cancel => match self.environment.cancel {
                Some(cancel) => cancel,
                None if self.symbols.trace.is_some() => trace::flag(self.code, self.environment.options()?),
                None => {
                    let cancel = self.code.load64(self.environment.options()?, options::CANCEL);
                    let text = self.code.unit.text_symbol();
                    let zeros = self.code.data_addr(text, true);
                    self.code.b.ins().select(cancel, cancel, zeros)
                }
            },
            Address::Report => {
                let slot = *self.report.get_or_insert_with(|| self.code.slot(8 * REPORT_WORDS));
                self.code.slot_addr(slot)
            }
            Address::Frame(frame) => self.frame(frame)?,
            Address::Descriptor => {
                let descriptor = self.code.unit.descriptor_symbol()?;
                self.code.data_addr(descriptor, true)
            }
            Address::Strings => {
                let at =
                    self.program.strings.ok_or_else(|| internal("there is no table of strings".into()))?;
                self.code.add(self.environment.workspace()?, at)
            }
        })
    }

    /// Start of a frame. Those on the stack share their place: a function uses one at a time.
    pub(super) fn frame(&mut self, frame: Frame) -> Result<Value> {
        let pointers = self.program.frames[frame].pointers;
        match pointers.at {
            Some(at) => Ok(self.code.add(self.environment.workspace()?, at)),
            None => {
                let slot = *self.body_frame.get_or_insert_with(|| self.code.slot(0));
                Ok(self.code.slot_addr_of(slot, 8 * pointers.count))
            }
        }
    }

    fn descriptor(&self, port: Port) -> Result<(Value, i64)> {
        let (array, at) = match port {
            Port::Input(at) => (self.environment.inputs, at),
            Port::Output(at) => (self.environment.outputs, at),
        };
        Ok((known(array)?, i64::from(at) * tensor::SIZE))
    }

    /// Base and offset of a place.
    fn place(&mut self, place: Place) -> Result<(Value, i64)> {
        Ok(match place {
            Place::Options(field) => (self.environment.options()?, field.offset()),
            Place::Tensor(port, field) => {
                let (array, at) = self.descriptor(port)?;
                (array, at + field.offset())
            }
            Place::Dim(port, axis) => {
                let (array, at) = self.descriptor(port)?;
                let dims = self.code.load64(array, at + TensorField::Dims.offset());
                (dims, 8 * i64::from(axis))
            }
            Place::Size(at) => (self.environment.workspace()?, 8 * i64::from(at)),
            Place::Outputs => (self.environment.workspace()?, self.program.outputs_at()),
            Place::Frame(frame, field) => {
                let (id, start) = match (frame, self.function.kind) {
                    (Some(id), _) => (id, self.frame(id)?),
                    (None, FunctionKind::Steps(own)) => (own, self.environment.frame()?),
                    (None, _) => return Err(internal("a frame of a function without".into())),
                };
                (start, field.offset(self.program.frames[id].inputs))
            }
            Place::Block(slot) => (self.environment.workspace()?, self.program.slot_at(slot)),
            Place::At { base, offset, .. } => (self.get(base)?, offset),
        })
    }

    pub(super) fn load(&mut self, place: Place) -> Result<Value> {
        let (base, offset) = self.place(place)?;
        Ok(self.code.load(clif_type(place.ty()), base, offset))
    }

    pub(super) fn store(&mut self, place: Place, value: Value) -> Result<()> {
        let (base, offset) = self.place(place)?;
        self.code.store(value, base, offset);
        Ok(())
    }

    /// The address in a slot.
    pub(super) fn block(&mut self, slot: Slot) -> Result<Value> {
        self.load(Place::Block(slot))
    }

    pub(super) fn inherit(&mut self, inner: Frame) -> Result<()> {
        let (from, to) = (self.environment.frame()?, self.frame(inner)?);
        for offset in (frame::ARENA + 8..frame::IO).step_by(8) {
            let value = self.code.load64(from, offset);
            self.code.store(value, to, offset);
        }
        Ok(())
    }

    /// The levels that the processor is good for, a bit each; the baseline has the lowest bit. They are tested in the first run,
    /// or in those that several threads begin before the first has stored the result.
    pub(super) fn level(&mut self) -> Value {
        let Some(test) = self.code.unit.level() else { return self.code.int(1) };
        let word = self.code.data_addr(test.known, true);
        let (unknown, next) = (self.code.cold_block(), self.code.block());
        self.code.b.append_block_param(next, types::I32);
        let known = self.code.b.ins().atomic_load(types::I32, MemFlagsData::trusted(), word);
        self.code.b.ins().brif(known, next, &[known.into()], unknown, &[]);
        self.code.b.switch_to_block(unknown);
        let upgrades = self.code.call(test.function, &[]);
        let upgrades = self.code.b.ins().iadd(upgrades, upgrades);
        let level = self.code.b.ins().bor_imm_s(upgrades, 1);
        self.code.b.ins().atomic_store(MemFlagsData::trusted(), level, word);
        self.code.jump(next, &[level]);
        self.code.b.switch_to_block(next);
        let level = self.code.b.block_params(next)[0];
        self.code.b.ins().sextend(types::I64, level)
    }
}
