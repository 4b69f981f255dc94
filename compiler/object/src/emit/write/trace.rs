//! Where a run informs a caller that traces it. The calls are out of the way of runs that nobody traces.

use cranelift_codegen::ir::{Value, types};

use super::Writer;
use super::leave::STATUS;
use crate::emit::func::Code;
use crate::emit::trace;
use crate::host::ir::{Address, Event, Frame, FrameField, FunctionKind, Operand, Place, Traced, Type};
use crate::host::lower::internal;
use onnxc_ir::error::Result;

/// The text that goes with an event: kernel and nodes.
type Texts<'t> = (&'t str, &'t str);

impl Writer<'_, '_, '_> {
    pub(super) fn trace_step(&mut self, number: i64, polls: bool, what: &Traced) -> Result<()> {
        let cancel = self.address(Address::Cancel)?;
        let flag = self.code.load(types::I32, cancel, 0);
        let texts: Texts = (&what.kernel, &what.nodes);
        match polls {
            true => self.look(flag, trace::code_of(Some(what.event()), number), texts),
            false => self.inform(flag, texts, |code| code.int(trace::unpolled_code_of(what.event(), number))),
        }
    }

    /// Leaves where the caller has cancelled the run; of an object that can be traced.
    pub(super) fn trace_poll(&mut self, flag: Value) -> Result<()> {
        self.look(flag, trace::code_of(None, 0), ("", ""))
    }

    /// Where the flag is set: informs the caller, and leaves if the run is cancelled.
    fn look(&mut self, flag: Value, code: i64, texts: Texts<'_>) -> Result<()> {
        let (set, next) = (self.code.cold_block(), self.code.block());
        self.code.branch(flag, set, next);
        self.code.b.switch_to_block(set);
        let code = self.code.int(code);
        let status = self.call_trace(code, texts)?;
        self.note(STATUS, status);
        let to = self.leave_to()?;
        self.code.branch(status, to, next);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    pub(super) fn trace_event(&mut self, event: Event, number: Operand) -> Result<()> {
        // The model's own frame has the flag when its run begins.
        let own = matches!(self.function.kind, FunctionKind::Run).then(|| Frame::from_u32(0));
        let cancel = self.load(Place::Frame(own, FrameField::Cancel))?;
        let flag = self.code.load(types::I32, cancel, 0);
        let number = self.operand(number, Type::I64)?;
        let name = self.program.name.clone();
        let texts = if event == Event::Leave { ("", "") } else { (name.as_str(), "") };
        self.inform(flag, texts, |code| trace::code_with(code, event.number(), number))
    }

    /// Where the flag is set: informs the caller, and goes on.
    fn inform(
        &mut self,
        flag: Value,
        texts: Texts<'_>,
        code: impl FnOnce(&mut Code<'_>) -> Value,
    ) -> Result<()> {
        let (set, next) = (self.code.cold_block(), self.code.block());
        self.code.branch(flag, set, next);
        self.code.b.switch_to_block(set);
        let code = code(self.code);
        self.call_trace(code, texts)?;
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }

    fn call_trace(&mut self, code: Value, (kernel, nodes): Texts<'_>) -> Result<Value> {
        let trace =
            self.symbols.trace.ok_or_else(|| internal("an object without the routine of traces".into()))?;
        let [kernel, nodes] = [kernel, nodes].map(|text| {
            let offset = self.code.unit.text(text);
            self.code.int(offset)
        });
        let options = self.environment.options()?;
        Ok(self.code.call(trace, &[options, code, kernel, nodes]))
    }
}
