//! Who owns the blocks that a run allocates: every slot is followed from `run` through the functions that it calls, over
//! all paths. A block is given back or handed over once, and no slot holds one when a run ends, but those of outputs
//! when it ends well. The table of strings is followed as one slot more: it is open where it is used, and closed when a run ends.

use std::collections::HashMap;

use cranelift_entity::EntityRef;

use crate::host::ir::{
    CLOSE_STRINGS, Condition, FuncId, FunctionKind, Inst, MEMCPY, OPEN_STRINGS, Op, Operand, Place, Program,
    Region, Slot, SlotUse,
};
use crate::host::print::inst_text;
use crate::host::verify::expect;

/// What is known of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// Nothing has been stored there.
    Unset,
    Empty,
    Full,
    /// Empty or full, known at run time.
    Either,
}

impl State {
    fn join(self, other: State) -> State {
        match (self, other) {
            (a, b) if a == b => a,
            (State::Unset, State::Empty) | (State::Empty, State::Unset) => State::Unset,
            _ => State::Either,
        }
    }
}

type States = Vec<State>;

/// The states where two paths meet; `None` where no path leads.
fn join(a: Option<States>, b: Option<States>) -> Option<States> {
    match (a, b) {
        (Some(mut a), Some(b)) => {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = a.join(b));
            Some(a)
        }
        (a, b) => a.or(b),
    }
}

/// Where a function, or a part of one, can end.
#[derive(Clone, Default)]
struct Ends {
    /// With success, by `return`.
    returned: Option<States>,
    /// With a status.
    failed: Option<States>,
}

pub(super) fn verify(program: &Program) -> Result<(), String> {
    let Some(run) = program.function_of(FunctionKind::Run) else { return Ok(()) };
    if program.slots.is_empty() && program.strings.is_none() {
        return Ok(());
    }
    let mut blocks = Blocks { program, known: HashMap::new() };
    // The last state is that of the table of strings.
    let ends = blocks.function(run, vec![State::Unset; program.slots.len() + 1])?;
    for states in [&ends.failed, &ends.returned] {
        let open = states.as_ref().and_then(|states| states.last());
        expect(matches!(open, None | Some(State::Unset | State::Empty)), || {
            "the table of strings may be open when a run ends".to_string()
        })?;
    }
    for (slot, owner) in &program.slots {
        let state = |states: &Option<States>| states.as_ref().map(|states| states[slot.index()]);
        let kept = |state: Option<State>| matches!(state, Some(State::Full | State::Either));
        expect(!kept(state(&ends.failed)), || format!("{slot} may hold a block when a run fails"))?;
        let handed_over = matches!(owner, SlotUse::Output(_));
        expect(handed_over || !kept(state(&ends.returned)), || {
            format!("{slot} may hold a block when a run ends")
        })?;
    }
    Ok(())
}

struct Blocks<'p> {
    program: &'p Program,
    /// How functions end that begin in these states.
    known: HashMap<(FuncId, States), Ends>,
}

impl<'p> Blocks<'p> {
    fn function(&mut self, id: FuncId, states: States) -> Result<Ends, String> {
        let key = (id, states);
        if let Some(ends) = self.known.get(&key) {
            return Ok(ends.clone());
        }
        let function = &self.program.functions[id];
        let mut ends = Ends::default();
        self.region(&function.body, Some(key.1.clone()), &mut ends)
            .map_err(|text| format!("function {:?}: {text}", function.name))?;
        self.known.insert(key, ends.clone());
        Ok(ends)
    }

    /// Follows a region; gives the states behind it.
    fn region(
        &mut self,
        region: &'p Region,
        states: Option<States>,
        ends: &mut Ends,
    ) -> Result<Option<States>, String> {
        let mut states = states;
        // Whether the current states are among those of `ends.failed`.
        let mut noted = false;
        for inst in region {
            let Some(mut now) = states.take() else { return Ok(None) };
            if may_fail(&inst.op) && !noted {
                ends.failed = join(ends.failed.take(), Some(now.clone()));
                noted = true;
            }
            noted &= !changes(&inst.op);
            let named = |text: String| match inst.op {
                Op::If { .. } | Op::Loop { .. } | Op::Attempt { .. } | Op::Call(..) => text,
                _ => format!("`{}`: {text}", inst_text(self.program, inst)),
            };
            states = match &inst.op {
                Op::Return(status) => {
                    let end = match status {
                        Operand::Int(0) => &mut ends.returned,
                        _ => &mut ends.failed,
                    };
                    *end = join(end.take(), Some(now));
                    None
                }
                Op::If { condition, then, otherwise } => {
                    let (yes, no) = self.asked(*condition, now)?;
                    let then = self.region(then, yes, ends)?;
                    join(then, self.region(otherwise, no, ends)?)
                }
                Op::Loop { head, body, .. } => self.iteration(head, body, now, ends)?,
                Op::Attempt { body, handler, .. } => {
                    let mut inner = Ends::default();
                    let behind = self.region(body, Some(now), &mut inner)?;
                    ends.returned = join(ends.returned.take(), inner.returned);
                    join(behind, self.region(handler, inner.failed, ends)?)
                }
                Op::Call(callee, _) => {
                    let inner = self.function(*callee, now)?;
                    ends.failed = join(ends.failed.take(), inner.failed);
                    inner.returned
                }
                _ => {
                    self.plain(inst, &mut now).map_err(named)?;
                    Some(now)
                }
            };
        }
        Ok(states)
    }

    /// The states where a condition holds, and where it does not.
    fn asked(
        &self,
        condition: Condition,
        states: States,
    ) -> Result<(Option<States>, Option<States>), String> {
        let Condition::Holds(slot) = condition else { return Ok((Some(states.clone()), Some(states))) };
        let with = |state: State| {
            let mut states = states.clone();
            states[slot.index()] = state;
            Some(states)
        };
        match states[slot.index()] {
            State::Unset => Err(format!("{slot} is asked for a block before it is cleared")),
            State::Empty => Ok((None, with(State::Empty))),
            State::Full => Ok((with(State::Full), None)),
            State::Either => Ok((with(State::Full), with(State::Empty))),
        }
    }

    fn iteration(
        &mut self,
        head: &'p Region,
        body: &'p Region,
        first: States,
        ends: &mut Ends,
    ) -> Result<Option<States>, String> {
        let mut states = Some(first);
        loop {
            let behind = self.region(head, states.clone(), ends)?;
            let again = self.region(body, behind.clone(), ends)?;
            let joined = join(states.clone(), again);
            if joined == states {
                return Ok(behind);
            }
            states = joined;
        }
    }

    /// An operation that only touches slots.
    fn plain(&self, inst: &Inst, states: &mut States) -> Result<(), String> {
        let state = |slot: Slot| states[slot.index()];
        let is = |slot: Slot, wanted: State| {
            expect(state(slot) == wanted, || match (wanted, state(slot)) {
                (_, State::Unset) => format!("{slot} is used before it is cleared"),
                (State::Full, State::Either) => format!("{slot} may be empty"),
                (State::Full, _) => format!("{slot} is empty"),
                (_, State::Either) => format!("{slot} may hold a block, which would be lost"),
                _ => format!("{slot} holds a block, which would be lost"),
            })
        };
        let is_set = |slot: Slot| {
            expect(state(slot) != State::Unset, || format!("{slot} is used before it is cleared"))
        };
        match &inst.op {
            Op::Clear(slot) => {
                expect(state(*slot) == State::Unset, || format!("{slot} is cleared twice"))?;
                states[slot.index()] = State::Empty;
            }
            Op::Allocate { slot, .. } => {
                is(*slot, State::Empty)?;
                states[slot.index()] = State::Full;
            }
            Op::Grow { slot, .. } => {
                is_set(*slot)?;
                states[slot.index()] = State::Full;
            }
            Op::Release(slot) => {
                is(*slot, State::Full)?;
                states[slot.index()] = State::Empty;
            }
            Op::Empty(slot) => {
                is_set(*slot)?;
                states[slot.index()] = State::Empty;
            }
            Op::Transfer { from, to } => {
                is(*from, State::Full)?;
                is(*to, State::Empty)?;
                states[from.index()] = State::Empty;
                states[to.index()] = State::Full;
            }
            Op::Load(Place::Block(slot)) => is(*slot, State::Full)?,
            Op::Extern(function, _) => {
                let table = states.last_mut().ok_or("there is no table of strings")?;
                let expect = |wanted: State| match *table == wanted {
                    true => Ok(()),
                    false => Err(format!("the table of strings is {:?} here, not {wanted:?}", *table)),
                };
                if **function == OPEN_STRINGS {
                    expect(State::Unset)?;
                    *table = State::Full;
                } else if **function == CLOSE_STRINGS {
                    expect(State::Full)?;
                    *table = State::Empty;
                } else if **function != MEMCPY {
                    expect(State::Full)?;
                }
            }
            Op::Store(Place::Block(slot), _) => return Err(format!("{slot} is overwritten")),
            _ => {}
        }
        Ok(())
    }
}

/// Whether an operation may leave with a status, the slots being as before it.
fn may_fail(op: &Op) -> bool {
    matches!(
        op,
        Op::FailIf { .. } | Op::Poll | Op::Step { polls: true, .. } | Op::Allocate { .. } | Op::Grow { .. }
    )
}

/// Whether the slots may be others behind an operation.
fn changes(op: &Op) -> bool {
    matches!(
        op,
        Op::Clear(_)
            | Op::Allocate { .. }
            | Op::Grow { .. }
            | Op::Release(_)
            | Op::Empty(_)
            | Op::Transfer { .. }
            | Op::Extern(..)
            | Op::External(..)
            | Op::Exchange(..)
            | Op::Call(..)
            | Op::If { .. }
            | Op::Loop { .. }
            | Op::Attempt { .. }
    )
}
