//! Numbers that are used as sizes: bytes of blocks and copies, offsets, dims and words of the sizes. The arithmetic behind
//! each must be checked arithmetic, and the function must have left where that had no result: by a `fail_if`, or an `if`
//! that returns, of a value that is not 0 whenever the operation's second result is not.

use cranelift_entity::{EntitySet, SecondaryMap};

use crate::host::ir::{
    Binary, Condition, Function, FunctionKind, Inst, Op, Operand, Place, Program, Region, Type, Value,
};
use crate::host::print::inst_text;
use crate::host::verify::{expect, falls_through};

pub(super) fn verify(program: &Program, function: &Function) -> Result<(), String> {
    let mut sizes = Sizes {
        program,
        returns_size: matches!(function.kind, FunctionKind::Workspace | FunctionKind::StateBytes),
        origins: SecondaryMap::new(),
        excluded: EntitySet::new(),
        good: EntitySet::new(),
        counters: EntitySet::new(),
    };
    sizes.region(&function.body)
}

struct Sizes<'p> {
    program: &'p Program,
    /// Whether what the function returns is a size.
    returns_size: bool,
    /// The operations that define values.
    origins: SecondaryMap<Value, Option<&'p Inst>>,
    /// Truth values that are 0 from here on.
    excluded: EntitySet<Value>,
    /// Values that are sizes from here on.
    good: EntitySet<Value>,
    /// Carried values that are not sizes.
    counters: EntitySet<Value>,
}

impl<'p> Sizes<'p> {
    fn region(&mut self, region: &'p Region) -> Result<(), String> {
        region.iter().try_for_each(|inst| self.inst(inst))
    }

    /// Checks a region; what it excludes does not hold behind it.
    fn inner(&mut self, region: &'p Region) -> Result<(), String> {
        let before = (self.excluded.clone(), self.good.clone());
        self.region(region)?;
        (self.excluded, self.good) = before;
        Ok(())
    }

    fn inst(&mut self, inst: &'p Inst) -> Result<(), String> {
        for &result in &inst.results {
            self.origins[result] = Some(inst);
        }
        let mut used = vec![];
        match &inst.op {
            Op::Offset(_, bytes) | Op::Element { bytes, .. } | Op::Allocate { bytes, .. } => {
                used.push(*bytes)
            }
            Op::Grow { used: kept, bytes, .. } => used.extend([*kept, *bytes]),
            Op::Store(Place::Size(_) | Place::Dim(..), value) => used.push(*value),
            Op::Return(value) if self.returns_size => used.push(*value),
            Op::Extern(function, args) => {
                let sizes = args.iter().zip(function.params).filter(|(_, ty)| **ty == Type::I64);
                used.extend(sizes.map(|(arg, _)| *arg));
            }
            _ => {}
        }
        for operand in used {
            self.expect_size(operand)
                .map_err(|text| format!("`{}`: {text}", inst_text(self.program, inst)))?;
        }
        match &inst.op {
            Op::FailIf { condition, .. } => self.exclude(*condition),
            Op::If { condition, then, otherwise } => {
                self.inner(then)?;
                self.inner(otherwise)?;
                if let Condition::Value(value) = condition
                    && !falls_through(then)
                {
                    self.exclude(*value);
                }
            }
            Op::Loop { params, init, head, body, next, .. } => {
                self.carried(params, init, head, body, next)?
            }
            Op::Attempt { body, handler, .. } => {
                self.inner(body)?;
                self.inner(handler)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A loop: a carried value is a size if it begins as one and every iteration hands on one. Which are is found by
    /// assuming it of all.
    fn carried(
        &mut self,
        params: &[Value],
        init: &[Operand],
        head: &'p Region,
        body: &'p Region,
        next: &[Operand],
    ) -> Result<(), String> {
        for (&param, &init) in params.iter().zip(init) {
            if self.expect_size(init).is_err() {
                self.counters.insert(param);
            }
        }
        loop {
            let before = (self.excluded.clone(), self.good.clone());
            self.region(head)?;
            let behind = (self.excluded.clone(), self.good.clone());
            let result = self.region(body);
            let mut more = false;
            for (&param, &next) in params.iter().zip(next) {
                if !self.counters.contains(param) && self.expect_size(next).is_err() {
                    more |= self.counters.insert(param);
                }
            }
            if !more {
                (self.excluded, self.good) = behind;
                return result;
            }
            (self.excluded, self.good) = before;
        }
    }

    /// A value is 0 from here on, and so is what it was made of by `or`.
    fn exclude(&mut self, value: Value) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if !self.excluded.insert(value) {
                continue;
            }
            if let Some(Inst { op: Op::Binary(Binary::Or, a, b), .. }) = self.origins[value] {
                open.extend([a, b].into_iter().filter_map(|operand| match operand {
                    Operand::Value(value) => Some(*value),
                    Operand::Int(_) => None,
                }));
            }
        }
    }

    fn expect_size(&mut self, operand: Operand) -> Result<(), String> {
        let Operand::Value(value) = operand else { return Ok(()) };
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if self.good.contains(value) {
                continue;
            }
            expect(!self.counters.contains(value), || format!("{value} is a counter, not a size"))?;
            if let Some(inst) = self.origins[value] {
                match &inst.op {
                    Op::Checked(..) => {
                        let none = inst.results.get(1).copied().unwrap_or(value);
                        expect(self.excluded.contains(none), || {
                            format!(
                                "{value} is used as a size, and nothing has excluded that it overflows ({none})"
                            )
                        })?;
                    }
                    Op::Binary(Binary::Add | Binary::Sub, ..) => {
                        return Err(format!("{value} is used as a size, and its arithmetic is not checked"));
                    }
                    _ => {}
                }
                // A load gives what somebody has stored as a size, or what a caller is asked to.
                if matches!(inst.op, Op::Checked(..) | Op::Binary(..) | Op::Select(..)) {
                    inst.op.visit_operands(&mut |operand| {
                        if let Operand::Value(value) = operand {
                            open.push(value);
                        }
                    });
                }
            }
            self.good.insert(value);
        }
        Ok(())
    }
}
