//! Loops and choices: code that runs the step functions of bodies.
//!
//! A body gets a frame of its own: the addresses of its inputs and outputs, and an arena inside the scratch of the
//! step. What a body leaves in blocks moves to the slots of the program around it; nothing is copied.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_module::FuncId;

use crate::codegen::emit::abi::frame;
use crate::codegen::emit::dynamic::{Context, node_text};
use crate::codegen::emit::layout::{ControlPlan, PointerArray, Scope, internal};
use crate::codegen::emit::steps::StepWriter;
use crate::error::Result;
use crate::graph::{Dim, Graph, NodeId, Op, ValueId};
use crate::schedule::{Place, Scratch, handed, handed_by_bodies};

/// A step of control flow.
pub(super) struct Control<'w, 'p> {
    pub node: NodeId,
    pub scratch: &'p Scratch,
    pub plan: &'p ControlPlan,
    /// The bodies and their functions.
    pub bodies: &'w [(Scope<'p>, Vec<FuncId>)],
}

/// What one iteration of a loop hands to the next, or adds to a result.
enum Lane {
    /// A state of one size: the body reads it in one buffer and writes its successor to another. `read` and `write` are
    /// the fields of the frame with their addresses.
    State { result: Value, spare: Value, read: i64, write: i64, bytes: Value },
    /// A state whose size may change: the body leaves it in the slot `inner`.
    Block { inner: i64, outer: i64, read: i64, initial: Dim },
    /// One slice per iteration of a tensor at `base`.
    Slice { base: Value, bytes: Value, reverse: bool, field: i64 },
    /// One slice per iteration of a tensor in a slot that grows.
    Growing { outer: i64, bytes: Value, field: i64 },
    /// Parts, each left in the slot `inner`, one after the other in a slot that grows; `used` is the address of the
    /// number of bytes so far.
    Parts { inner: i64, outer: i64, used: Value, bytes: Dim },
}

impl<'p> StepWriter<'_, '_, 'p> {
    /// Runs one of two bodies.
    pub(super) fn choice(&mut self, work: &Control<'_, 'p>) -> Result<()> {
        let node = &self.scope.graph.nodes[work.node];
        let condition = self.address(node.inputs[0])?;
        let condition = self.code.load(types::I8, condition, 0);
        let (then, otherwise, done) = (self.code.block(), self.code.block(), self.code.block());
        self.code.branch(condition, then, otherwise);
        let left = handed_by_bodies(self.scope.graph, work.node);
        for ((body, functions), block) in work.bodies.iter().zip([then, otherwise]) {
            self.code.b.switch_to_block(block);
            Context { scope: body, ..self.context() }.enter(self.code)?;
            let inner = self.body_frame(body, work.scratch)?;
            for (at, &value) in node.inputs[1..].iter().enumerate() {
                let address = self.address(value)?;
                self.code.store(address, inner, frame::IO + 8 * at as i64);
            }
            for (at, &value) in node.outputs.iter().enumerate().filter(|(at, _)| !left.contains(at)) {
                let address = self.address(value)?;
                self.code.store(address, inner, output_field(body.graph, at));
            }
            self.run_body(functions, inner);
            for &at in &left {
                let (from, to) = (self.left_slot(body, at)?, self.result_slot(node.outputs[at])?);
                self.context().transfer(self.code, from, to);
            }
            self.code.jump(done, &[]);
        }
        self.code.b.switch_to_block(done);
        Ok(())
    }

    /// Runs a body again and again.
    pub(super) fn scan(&mut self, work: &Control<'_, 'p>) -> Result<()> {
        let node = &self.scope.graph.nodes[work.node];
        let (Op::Scan { trip, conditional, states, scans, .. }, [(body, functions)]) =
            (&node.op, work.bodies)
        else {
            return Err(internal(format!("{} is no loop", work.node)));
        };
        let inner = self.body_frame(body, work.scratch)?;
        for at in states + scans..node.inputs.len() {
            let address = self.address(node.inputs[at])?;
            self.code.store(address, inner, frame::IO + 8 * at as i64);
        }
        let trip = self.size(trip)?;
        let lanes = self.lanes(work, body, inner, trip)?;
        let what = node_text(self.scope.graph, work.node);

        let (head, turn, done) = (self.code.block(), self.code.block(), self.code.block());
        self.code.b.append_block_param(head, types::I64);
        let zero = self.code.int(0);
        self.code.jump(head, &[zero]);
        self.code.b.switch_to_block(head);
        let number = self.code.b.block_params(head)[0];
        let mut more = self.code.icmp(IntCC::SignedLessThan, number, trip);
        if *conditional {
            let state = self.code.load64(inner, frame::IO);
            let holds = self.code.load(types::I8, state, 0);
            let holds = self.code.icmp_imm(IntCC::NotEqual, holds, 0);
            more = self.code.b.ins().band(more, holds);
        }
        self.code.branch(more, turn, done);

        self.code.b.switch_to_block(turn);
        self.poll();
        for lane in &lanes {
            self.before(lane, inner, number, trip, &what)?;
        }
        self.run_body(functions, inner);
        for lane in &lanes {
            self.after(lane, inner, &what)?;
        }
        let following = self.code.add(number, 1);
        self.code.jump(head, &[following]);
        self.code.b.switch_to_block(done);
        lanes.iter().try_for_each(|lane| self.finish_lane(lane, inner, &what))
    }

    /// The frame of a body, but for the addresses of its inputs and outputs.
    fn body_frame(&mut self, body: &Scope<'_>, scratch: &Scratch) -> Result<Value> {
        let inner = self.pointers(PointerArray::Frame(body.index));
        for offset in (frame::ARENA + 8..frame::IO).step_by(8) {
            let value = self.code.load64(self.frame, offset);
            self.code.store(value, inner, offset);
        }
        let arena = self.scratch(scratch)?;
        self.code.store(arena, inner, frame::ARENA);
        Ok(inner)
    }

    /// Calls the functions of a body; leaves with the status of one that fails.
    fn run_body(&mut self, functions: &[FuncId], inner: Value) {
        for &function in functions {
            let result = self.code.call(function, &[inner]);
            let next = self.code.block();
            self.code.b.ins().brif(result, self.leave, &[result.into()], next, &[]);
            self.code.b.switch_to_block(next);
        }
    }

    /// Slot of the block in which a body leaves an output.
    fn left_slot(&self, body: &Scope<'_>, output: usize) -> Result<i64> {
        let block = body.program.handed.get(&output);
        let block = block.ok_or_else(|| internal(format!("output {output} of a body is in no block")))?;
        self.plan.dynamic.block_at(body.index, *block)
    }

    /// Slot of the block that a result of control flow comes in.
    fn result_slot(&self, value: ValueId) -> Result<i64> {
        match self.scope.place(value)?.1 {
            Place::Heap(block) => self.plan.dynamic.block_at(self.scope.index, *block),
            _ => Err(internal(format!("{value} is handed over and is in no block"))),
        }
    }

    /// How each input and output changes between iterations, ready for the first one. Where the number of iterations
    /// is known the states alternate such that the last one writes the result.
    fn lanes(
        &mut self,
        work: &Control<'_, 'p>,
        body: &Scope<'p>,
        inner: Value,
        trip: Value,
    ) -> Result<Vec<Lane>> {
        let (graph, node) = (self.scope.graph, &self.scope.graph.nodes[work.node]);
        let Op::Scan { states, scans, reverse, .. } = &node.op else { return Ok(vec![]) };
        let arena = match work.scratch {
            Scratch::Arena(_) => self.arena,
            Scratch::Heap(block) => self.block(*block)?,
        };
        let (left, handed) = (handed_by_bodies(graph, work.node), handed(graph, work.node));
        let odd = self.code.b.ins().band_imm_u(trip, 1);
        let mut lanes = vec![];
        for (at, &value) in node.outputs.iter().enumerate() {
            let part = body.graph.ty(body.graph.outputs[at].1).bytes();
            let (read, write) = (frame::IO + 8 * at as i64, output_field(body.graph, at));
            if at < *states {
                let initial = self.address(node.inputs[at])?;
                self.code.store(initial, inner, read);
            }
            lanes.push(match (left.contains(&at), handed.contains(&at)) {
                (true, _) if at < *states => {
                    let (inner, outer) = (self.left_slot(body, at)?, self.result_slot(value)?);
                    Lane::Block { inner, outer, read, initial: graph.ty(node.inputs[at]).bytes() }
                }
                (true, _) => {
                    let slot = self.code.slot(8);
                    let (used, zero) = (self.code.slot_addr(slot), self.code.int(0));
                    self.code.store(zero, used, 0);
                    let (inner, outer) = (self.left_slot(body, at)?, self.result_slot(value)?);
                    Lane::Parts { inner, outer, used, bytes: part }
                }
                (false, true) => {
                    Lane::Growing { outer: self.result_slot(value)?, bytes: self.size(&part)?, field: write }
                }
                (false, false) if at < *states => {
                    let (result, bytes) = (self.address(value)?, self.size(&part)?);
                    let offset = work.plan.states[at].as_ref();
                    let offset = offset.ok_or_else(|| internal(format!("state {at} has no buffer")))?;
                    let spare = self.offset(arena, offset)?;
                    let first = self.code.b.ins().select(odd, result, spare);
                    self.code.store(first, inner, write);
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
            let (reverse, field) = (reverse[at - states], frame::IO + 8 * at as i64);
            lanes.push(Lane::Slice { base, bytes, reverse, field });
        }
        Ok(lanes)
    }

    /// What a lane needs before iteration `number`.
    fn before(&mut self, lane: &Lane, inner: Value, number: Value, trip: Value, what: &str) -> Result<()> {
        match *lane {
            Lane::Slice { base, bytes, reverse, field } => {
                let index = match reverse {
                    true => {
                        let last = self.code.add(trip, -1);
                        self.code.b.ins().isub(last, number)
                    }
                    false => number,
                };
                let offset = self.code.b.ins().imul(index, bytes);
                let address = self.code.b.ins().iadd(base, offset);
                self.code.store(address, inner, field);
            }
            Lane::Growing { outer, bytes, field } => {
                let used = self.code.b.ins().imul(number, bytes);
                let wanted = self.code.b.ins().iadd(used, bytes);
                self.context().grow(self.code, outer, used, wanted, what)?;
                let base = self.code.load64(self.dims, outer);
                let address = self.code.b.ins().iadd(base, used);
                self.code.store(address, inner, field);
            }
            Lane::State { .. } | Lane::Block { .. } | Lane::Parts { .. } => {}
        }
        Ok(())
    }

    /// What a lane needs after an iteration.
    fn after(&mut self, lane: &Lane, inner_frame: Value, what: &str) -> Result<()> {
        match lane {
            Lane::State { result, spare, read, write, .. } => {
                let written = self.code.load64(inner_frame, *write);
                let is_result = self.code.icmp(IntCC::Equal, written, *result);
                let next = self.code.b.ins().select(is_result, *spare, *result);
                self.code.store(written, inner_frame, *read);
                self.code.store(next, inner_frame, *write);
            }
            Lane::Block { inner, outer, read, .. } => {
                self.context().empty(self.code, *outer);
                self.context().transfer(self.code, *inner, *outer);
                let state = self.code.load64(self.dims, *outer);
                self.code.store(state, inner_frame, *read);
            }
            Lane::Parts { inner, outer, used, bytes } => {
                let (before, more) = (self.code.load64(*used, 0), self.size(bytes)?);
                let wanted = self.code.b.ins().iadd(before, more);
                self.context().grow(self.code, *outer, before, wanted, what)?;
                let (base, part) = (self.code.load64(self.dims, *outer), self.code.load64(self.dims, *inner));
                let to = self.code.b.ins().iadd(base, before);
                self.code.memcpy(to, part, more)?;
                self.code.store(wanted, *used, 0);
                self.context().empty(self.code, *inner);
            }
            Lane::Slice { .. } | Lane::Growing { .. } => {}
        }
        Ok(())
    }

    /// What is left to do after the last iteration, or after none.
    fn finish_lane(&mut self, lane: &Lane, inner: Value, what: &str) -> Result<()> {
        if let Lane::Slice { .. } = lane {
            return Ok(());
        }
        let (copy, next) = (self.code.cold_block(), self.code.block());
        match lane {
            // Without iterations the result is the initial state; a condition may end the loop in the spare buffer.
            Lane::State { result, read, bytes, .. } => {
                let state = self.code.load64(inner, *read);
                let elsewhere = self.code.icmp(IntCC::NotEqual, state, *result);
                self.code.branch(elsewhere, copy, next);
                self.code.b.switch_to_block(copy);
                self.code.memcpy(*result, state, *bytes)?;
            }
            Lane::Block { outer, read, initial, .. } => {
                let moved = self.code.load64(self.dims, *outer);
                self.code.branch(moved, next, copy);
                self.code.b.switch_to_block(copy);
                let (state, bytes, zero) =
                    (self.code.load64(inner, *read), self.size(initial)?, self.code.int(0));
                self.context().grow(self.code, *outer, zero, bytes, what)?;
                let to = self.code.load64(self.dims, *outer);
                self.code.memcpy(to, state, bytes)?;
            }
            Lane::Growing { outer, .. } | Lane::Parts { outer, .. } => {
                let some = self.code.load64(self.dims, *outer);
                self.code.branch(some, next, copy);
                self.code.b.switch_to_block(copy);
                let zero = self.code.int(0);
                self.context().grow(self.code, *outer, zero, zero, what)?;
            }
            Lane::Slice { .. } => {}
        }
        self.code.jump(next, &[]);
        self.code.b.switch_to_block(next);
        Ok(())
    }
}

/// The field of a body's frame with the address of an output.
fn output_field(body: &Graph, number: usize) -> i64 {
    frame::IO + 8 * (body.inputs.len() + number) as i64
}
