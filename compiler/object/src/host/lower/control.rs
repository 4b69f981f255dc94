//! Loops and choices: calls of the step functions of bodies.
//!
//! A body gets a frame of its own: the addresses of its inputs and outputs, and an arena inside the scratch of the
//! step. What a body leaves in blocks moves to the slots of the program around it; nothing is copied.

use crate::host::abi::status;
use crate::host::ir::{
    Address, Binary, Checked, Compare, Condition, Frame, FrameField, FuncId, Op, Operand, Place, Slot, Type,
    Value,
};
use crate::host::lower::bind::Binder;
use crate::host::lower::internal;
use crate::host::lower::layout::{ControlPlan, Scope};
use crate::host::lower::steps::StepWriter;
use crate::host::lower::text::node_text;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Node, NodeId, Op as GraphOp, ValueId};
use onnxc_schedule::{Scratch, Storage, handed, handed_by_bodies};

/// A step of control flow.
pub(super) struct Control<'w, 'p> {
    pub node: NodeId,
    pub scratch: &'p Scratch,
    pub plan: &'p ControlPlan,
    /// The bodies and their functions.
    pub bodies: &'w [(Scope<'p>, Vec<FuncId>)],
}

/// What one iteration of a loop hands to the next, or adds to a result. The fields are those of the body's frame.
enum Lane {
    /// A state of one size: the body reads it in one buffer and writes its successor to another.
    State { result: Value, spare: Value, read: FrameField, write: FrameField, bytes: Operand },
    /// A state whose size may change: the body leaves it in the slot `inner`.
    Block { inner: Slot, outer: Slot, read: FrameField, initial: Dim },
    /// One slice per iteration of a tensor at `base`.
    Slice { base: Value, bytes: Operand, reverse: bool, field: FrameField },
    /// One slice per iteration of a tensor in a slot that grows; `used` is the number of bytes so far.
    Growing { outer: Slot, used: Value, bytes: Operand, field: FrameField },
    /// Parts, each left in the slot `inner`, one after the other in a slot that grows; `used` as above.
    Parts { inner: Slot, outer: Slot, used: Value, bytes: Dim },
}

/// A loop while it is written.
struct Iteration<'i> {
    /// Frame of the body.
    frame: Frame,
    number: Value,
    trip: Operand,
    /// The node, for messages.
    what: &'i str,
}

impl Iteration<'_> {
    fn place(&self, field: FrameField) -> Place {
        Place::Frame(Some(self.frame), field)
    }
}

impl<'p> StepWriter<'_, 'p> {
    /// Runs one of two bodies.
    pub(super) fn choice(&mut self, work: &Control<'_, 'p>) -> Result<()> {
        let node = &self.scope.graph.nodes[work.node];
        let condition = self.address(node.inputs[0])?;
        let condition = self.b.load_at(Type::I8, condition, 0);
        let left = handed_by_bodies(self.scope.graph, work.node);
        let mut regions = vec![];
        for (body, functions) in work.bodies {
            self.b.open();
            Binder { plan: self.plan, scope: body }.enter(self.b)?;
            self.body_frame(body.frame(), work.scratch)?;
            for (at, &value) in node.inputs[1..].iter().enumerate() {
                self.hand(body.frame(), FrameField::Input(at as u32), value)?;
            }
            for (at, &value) in node.outputs.iter().enumerate().filter(|(at, _)| !left.contains(at)) {
                self.hand(body.frame(), FrameField::Output(at as u32), value)?;
            }
            self.run_body(functions, body.frame());
            for &at in &left {
                let (from, to) = (self.left_slot(body, at)?, self.result_slot(node.outputs[at])?);
                self.b.effect(Op::Transfer { from, to });
            }
            regions.push(self.b.close());
        }
        let Ok([then, otherwise]) = <[_; 2]>::try_from(regions) else {
            return Err(internal(format!("{} is not a choice of two", work.node)));
        };
        self.b.if_else(Condition::Value(condition), then, otherwise);
        Ok(())
    }

    /// Runs a body again and again.
    pub(super) fn scan(&mut self, work: &Control<'_, 'p>) -> Result<()> {
        let node = &self.scope.graph.nodes[work.node];
        let (GraphOp::Scan { trip, conditional, states, scans, .. }, [(body, functions)]) =
            (&node.op, work.bodies)
        else {
            return Err(internal(format!("{} is not a loop", work.node)));
        };
        let frame = body.frame();
        self.body_frame(frame, work.scratch)?;
        for at in states + scans..node.inputs.len() {
            self.hand(frame, FrameField::Input(at as u32), node.inputs[at])?;
        }
        let what = &node_text(self.scope.graph, work.node);
        let (number, trip) = (self.b.fresh(Type::I64), self.size(trip)?);
        let turn = Iteration { frame, number, trip, what };
        self.enter_loop(body, node, &turn)?;
        let lanes = self.lanes(work, body, &turn)?;
        let counters = lanes.iter().filter_map(|lane| match lane {
            Lane::Growing { used, .. } | Lane::Parts { used, .. } => Some(*used),
            _ => None,
        });
        let params: Vec<Value> = [number].into_iter().chain(counters).collect();

        self.b.open();
        let mut more = self.b.compare(Compare::Lt, number, trip);
        if *conditional {
            let state = self.b.load(turn.place(FrameField::Input(0)));
            more = self.and_holds(more, state);
        }
        let head = self.b.close();
        let Operand::Value(condition) = more else {
            return Err(internal("a loop without condition".into()));
        };

        self.b.open();
        self.poll();
        let mut next = vec![self.b.binary(Binary::Add, number, 1)];
        let mut grown = vec![];
        for lane in &lanes {
            grown.extend(self.before(lane, &turn));
        }
        self.run_body(functions, frame);
        let mut grown = grown.into_iter();
        for lane in &lanes {
            let more = self.after(lane, &turn)?;
            next.extend(match lane {
                Lane::Growing { .. } => grown.next(),
                _ => more,
            });
        }
        let body = self.b.close();
        let init = vec![Operand::Int(0); params.len()];
        self.b.effect(Op::Loop { params, init, head, condition, body, next });
        lanes.iter().try_for_each(|lane| self.finish_lane(lane, &turn))
    }

    /// Checks what a body needs of sizes, if it will run.
    fn enter_loop(&mut self, body: &Scope<'p>, node: &Node, turn: &Iteration<'_>) -> Result<()> {
        let GraphOp::Scan { conditional, .. } = &node.op else { return Ok(()) };
        if self.plan.dynamic.conditions(body.index).is_none() {
            return Ok(());
        }
        let mut runs = self.b.compare(Compare::Gt, turn.trip, 0);
        if *conditional {
            let state = self.address(node.inputs[0])?;
            runs = self.and_holds(runs, state);
        }
        let binder = Binder { plan: self.plan, scope: body };
        match runs {
            // A loop of no turns.
            Operand::Int(0) => {}
            Operand::Int(_) => binder.enter(self.b)?,
            Operand::Value(runs) => {
                self.b.open();
                binder.enter(self.b)?;
                let checks = self.b.close();
                self.b.if_else(Condition::Value(runs), checks, vec![]);
            }
        }
        Ok(())
    }

    /// Whether `other` holds, and the bool at an address is true.
    fn and_holds(&mut self, other: Operand, bool: Value) -> Operand {
        let holds = self.b.load_at(Type::I8, bool, 0);
        let holds = self.b.compare(Compare::Ne, holds, 0);
        self.b.binary(Binary::And, other, holds)
    }

    /// The frame of a body, but for the addresses of its inputs and outputs.
    fn body_frame(&mut self, frame: Frame, scratch: &Scratch) -> Result<()> {
        self.b.effect(Op::Inherit(frame));
        let arena = self.scratch(scratch)?;
        self.b.store(Place::Frame(Some(frame), FrameField::Arena), arena);
        Ok(())
    }

    /// Gives a body the address of a value.
    fn hand(&mut self, frame: Frame, field: FrameField, value: ValueId) -> Result<()> {
        let address = self.address(value)?;
        self.b.store(Place::Frame(Some(frame), field), address);
        Ok(())
    }

    /// Calls the functions of a body.
    fn run_body(&mut self, functions: &[FuncId], frame: Frame) {
        let frame = self.b.address(Address::Frame(frame));
        for &function in functions {
            self.b.effect(Op::Call(function, vec![frame.into()]));
        }
    }

    /// Slot of the block in which a body leaves an output.
    fn left_slot(&self, body: &Scope<'_>, output: usize) -> Result<Slot> {
        let block = body.program.handed.get(&output);
        let block = block.ok_or_else(|| internal(format!("output {output} of a body is in no block")))?;
        self.plan.dynamic.slot(body.index, *block)
    }

    /// Slot of the block that a result of control flow comes in.
    fn result_slot(&self, value: ValueId) -> Result<Slot> {
        match self.scope.place(value)?.1 {
            Storage::Heap(block) => self.plan.dynamic.slot(self.scope.index, *block),
            _ => Err(internal(format!("{value} is handed over and is in no block"))),
        }
    }

    /// How each input and output changes between iterations, ready for the first one. Where the number of iterations
    /// is known the states alternate such that the last one writes the result.
    fn lanes(&mut self, work: &Control<'_, 'p>, body: &Scope<'p>, turn: &Iteration<'_>) -> Result<Vec<Lane>> {
        let (graph, node) = (self.scope.graph, &self.scope.graph.nodes[work.node]);
        let GraphOp::Scan { states, scans, reverse, .. } = &node.op else { return Ok(vec![]) };
        let (left, handed) = (handed_by_bodies(graph, work.node), handed(graph, work.node));
        let odd = self.b.binary(Binary::And, turn.trip, 1);
        let mut lanes = vec![];
        for (at, &value) in node.outputs.iter().enumerate() {
            let part = body.graph.ty(body.graph.outputs[at].1).bytes();
            let (read, write) = (FrameField::Input(at as u32), FrameField::Output(at as u32));
            if at < *states {
                self.hand(turn.frame, read, node.inputs[at])?;
            }
            lanes.push(match (left.contains(&at), handed.contains(&at)) {
                (true, _) => {
                    let (inner, outer) = (self.left_slot(body, at)?, self.result_slot(value)?);
                    match at < *states {
                        true => {
                            Lane::Block { inner, outer, read, initial: graph.ty(node.inputs[at]).bytes() }
                        }
                        false => Lane::Parts { inner, outer, used: self.b.fresh(Type::I64), bytes: part },
                    }
                }
                (false, true) => {
                    let (outer, used) = (self.result_slot(value)?, self.b.fresh(Type::I64));
                    Lane::Growing { outer, used, bytes: self.size(&part)?, field: write }
                }
                (false, false) if at < *states => {
                    let (result, bytes) = (self.address(value)?, self.size(&part)?);
                    let offset = work.plan.states[at].as_ref();
                    let offset = offset.ok_or_else(|| internal(format!("state {at} has no buffer")))?;
                    let spare = match work.scratch {
                        Scratch::Arena(_) => self.arena(offset)?,
                        Scratch::Heap(block) => {
                            let (base, offset) = (self.block(*block)?, self.size(offset)?);
                            self.b.offset(base, offset)
                        }
                    };
                    let first = self.b.select(odd, result, spare);
                    self.b.store(turn.place(write), first);
                    Lane::State { result, spare, read, write, bytes }
                }
                (false, false) => Lane::Slice {
                    base: self.address(value)?,
                    bytes: self.size(&part)?,
                    reverse: reverse[scans + at - states],
                    field: write,
                },
            });
        }
        for at in *states..states + scans {
            let base = self.address(node.inputs[at])?;
            let bytes = self.size(&body.graph.ty(body.graph.inputs[at].value).bytes())?;
            let (reverse, field) = (reverse[at - states], FrameField::Input(at as u32));
            lanes.push(Lane::Slice { base, bytes, reverse, field });
        }
        Ok(lanes)
    }

    /// What a lane needs before an iteration. Gives the bytes that a lane which grows here has then.
    fn before(&mut self, lane: &Lane, turn: &Iteration<'_>) -> Option<Operand> {
        match *lane {
            Lane::Slice { base, bytes, reverse, field } => {
                let index = match reverse {
                    true => {
                        let last = self.b.binary(Binary::Sub, turn.trip, 1);
                        self.b.binary(Binary::Sub, last, turn.number)
                    }
                    false => turn.number.into(),
                };
                let address = self.b.value(Type::Ptr, Op::Element { base, index, bytes });
                self.b.store(turn.place(field), address);
                None
            }
            Lane::Growing { outer, used, bytes, field } => {
                let wanted = self.grow_by(outer, used, bytes, turn.what);
                let base = self.b.load(Place::Block(outer));
                let address = self.b.offset(base, used);
                self.b.store(turn.place(field), address);
                Some(wanted)
            }
            Lane::State { .. } | Lane::Block { .. } | Lane::Parts { .. } => None,
        }
    }

    /// Makes room for `bytes` behind those used so far; gives their sum.
    fn grow_by(&mut self, slot: Slot, used: Value, bytes: Operand, what: &str) -> Operand {
        let (wanted, overflow) = self.b.checked(Checked::Add, used.into(), bytes);
        let template = format!("{what}: the number of bytes exceeds 64 bits");
        self.b.fail_if(overflow, status::SIZE_OVERFLOW, &template, &[]);
        self.grow(slot, used.into(), wanted, what);
        wanted
    }

    fn grow(&mut self, slot: Slot, used: Operand, bytes: Operand, what: &str) {
        self.b.effect(Op::Grow { slot, used, bytes, what: what.to_string() });
    }

    /// What a lane needs after an iteration. Gives the bytes that parts have then.
    fn after(&mut self, lane: &Lane, turn: &Iteration<'_>) -> Result<Option<Operand>> {
        match lane {
            Lane::State { result, spare, read, write, .. } => {
                let written = self.b.load(turn.place(*write));
                let is_result = self.b.compare(Compare::Eq, written, *result);
                let next = self.b.select(is_result, *spare, *result);
                self.b.store(turn.place(*read), written);
                self.b.store(turn.place(*write), next);
            }
            Lane::Block { inner, outer, read, .. } => {
                self.b.effect(Op::Empty(*outer));
                self.b.effect(Op::Transfer { from: *inner, to: *outer });
                let state = self.b.load(Place::Block(*outer));
                self.b.store(turn.place(*read), state);
            }
            Lane::Parts { inner, outer, used, bytes } => {
                let more = self.size(bytes)?;
                let wanted = self.grow_by(*outer, *used, more, turn.what);
                let (base, part) = (self.b.load(Place::Block(*outer)), self.b.load(Place::Block(*inner)));
                let to = self.b.offset(base, *used);
                self.b.copy(to, part, more);
                self.b.effect(Op::Release(*inner));
                return Ok(Some(wanted));
            }
            Lane::Slice { .. } | Lane::Growing { .. } => {}
        }
        Ok(None)
    }

    /// What is left to do after the last iteration, or after none.
    fn finish_lane(&mut self, lane: &Lane, turn: &Iteration<'_>) -> Result<()> {
        match lane {
            // Without iterations the result is the initial state; a condition may end the loop in the spare buffer.
            Lane::State { result, read, bytes, .. } => {
                let state = self.b.load(turn.place(*read));
                let elsewhere = self.b.compare(Compare::Ne, state, *result);
                self.b.open();
                self.b.copy(*result, state, *bytes);
                let copy = self.b.close();
                if let Operand::Value(elsewhere) = elsewhere {
                    self.b.if_else(Condition::Value(elsewhere), copy, vec![]);
                }
            }
            Lane::Block { outer, read, initial, .. } => {
                self.b.open();
                let (state, bytes) = (self.b.load(turn.place(*read)), self.size(initial)?);
                self.grow(*outer, 0.into(), bytes, turn.what);
                let to = self.b.load(Place::Block(*outer));
                self.b.copy(to, state, bytes);
                let copy = self.b.close();
                self.b.if_else(Condition::Holds(*outer), vec![], copy);
            }
            Lane::Growing { outer, .. } | Lane::Parts { outer, .. } => {
                self.b.open();
                self.grow(*outer, 0.into(), 0.into(), turn.what);
                let fill = self.b.close();
                self.b.if_else(Condition::Holds(*outer), vec![], fill);
            }
            Lane::Slice { .. } => {}
        }
        Ok(())
    }
}
