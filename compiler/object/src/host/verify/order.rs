//! `run` checks all it is given before it writes anything: no check of its own follows the first write. Functions that it
//! calls for checks write nothing.

use crate::host::ir::{Function, FunctionKind, Op, Program, Region};
use crate::host::print::inst_text;
use crate::host::verify::expect;

pub(super) fn verify(program: &Program, function: &Function) -> Result<(), String> {
    match function.kind {
        FunctionKind::Run | FunctionKind::Checks => {
            let mut order = Order { program, kind: function.kind, written: false };
            order.region(&function.body)
        }
        _ => Ok(()),
    }
}

struct Order<'p> {
    program: &'p Program,
    kind: FunctionKind,
    /// Whether something may have been written.
    written: bool,
}

impl Order<'_> {
    fn region(&mut self, region: &Region) -> Result<(), String> {
        for inst in region {
            let text = || inst_text(self.program, inst);
            if self.checks(&inst.op) {
                expect(!self.written, || format!("`{}`: a check after the first write", text()))?;
            }
            if self.writes(&inst.op) {
                expect(self.kind == FunctionKind::Run, || format!("`{}`: a write among checks", text()))?;
                self.written = true;
            }
            match &inst.op {
                Op::If { then, otherwise, .. } => {
                    let before = self.written;
                    self.region(then)?;
                    let after = std::mem::replace(&mut self.written, before);
                    self.region(otherwise)?;
                    self.written |= after;
                }
                Op::Loop { head, body, .. } => {
                    // What is written in one iteration is written before the next.
                    for region in [head, body, head, body] {
                        self.region(region)?;
                    }
                }
                Op::Attempt { body, handler, .. } => {
                    self.region(body)?;
                    self.region(handler)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_steps(&self, op: &Op) -> bool {
        let Op::Call(callee, _) = op else { return false };
        let callee = self.program.functions.get(*callee);
        callee.is_some_and(|callee| matches!(callee.kind, FunctionKind::Steps(_)))
    }

    fn checks(&self, op: &Op) -> bool {
        matches!(op, Op::FailIf { .. } | Op::Poll | Op::Step { polls: true, .. })
            || matches!(op, Op::Call(..)) && !self.is_steps(op)
    }

    fn writes(&self, op: &Op) -> bool {
        match op {
            Op::Store(..) | Op::Extern(..) | Op::External(..) | Op::Exchange(..) => true,
            Op::Kernel(..) | Op::Inherit(_) => true,
            Op::Clear(_) | Op::Allocate { .. } | Op::Grow { .. } => true,
            Op::Release(_) | Op::Empty(_) | Op::Transfer { .. } => true,
            op => self.is_steps(op),
        }
    }
}
