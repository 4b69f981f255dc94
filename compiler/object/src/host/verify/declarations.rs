//! What a program declares, and who calls whom.

use cranelift_entity::SecondaryMap;

use super::{expect, regions};
use crate::host::ir::{Extent, FuncId, Op, Policy, Program, Region, SlotUse};

pub(super) fn verify(program: &Program) -> Result<(), String> {
    calls(program)?;
    let size = |extent: Extent| match extent {
        Extent::Size(at) => expect((at as usize) < program.sizes.len(), || format!("there is no size {at}")),
        Extent::Const(_) => Ok(()),
    };
    expect(program.keeps_outputs || program.slots.is_empty(), || {
        "slots without the word for the caller's outputs".into()
    })?;
    for (slot, owner) in &program.slots {
        if let SlotUse::Output(at) = owner {
            expect(*at < program.outputs, || format!("{slot}: there is no output {at}"))?;
        }
    }
    for (id, kernel) in &program.kernels {
        let levels: Vec<usize> = kernel.versions.iter().map(|version| version.level).collect();
        expect(levels.first() == Some(&0), || format!("{id} has no version of level 0"))?;
        expect(levels.is_sorted(), || format!("the levels of {id} are not in order"))?;
        for version in &kernel.versions {
            [version.lo, version.hi].into_iter().try_for_each(size)?;
            if let Policy::From { size: work, .. } = version.threads {
                size(work)?;
            }
        }
    }
    arrays(program)
}

/// Words, arrays of pointers and arena must not overlap.
fn arrays(program: &Program) -> Result<(), String> {
    let mut end = 8 * program.words() as i64;
    let frames = program.frames.values().map(|frame| frame.pointers);
    for pointers in frames.chain([program.buffers]) {
        if let Some(at) = pointers.at {
            expect(at >= end && at % 8 == 0, || format!("an array of pointers at {at} overlaps another"))?;
            end = at + 8 * pointers.count as i64;
        }
    }
    expect(program.arena >= end, || format!("the arena at {} overlaps what is before it", program.arena))
}

/// No function calls itself, directly or by way of others.
fn calls(program: &Program) -> Result<(), String> {
    #[derive(Clone, Copy, PartialEq, Default)]
    enum Visit {
        #[default]
        Never,
        Open,
        Done,
    }
    let mut visits: SecondaryMap<FuncId, Visit> = SecondaryMap::new();
    let mut open: Vec<(FuncId, bool)> = program.functions.keys().map(|id| (id, false)).collect();
    while let Some((id, done)) = open.pop() {
        if done {
            visits[id] = Visit::Done;
            continue;
        }
        if visits[id] != Visit::Never {
            continue;
        }
        visits[id] = Visit::Open;
        open.push((id, true));
        let Some(function) = program.functions.get(id) else { continue };
        for callee in callees(&function.body) {
            expect(visits[callee] != Visit::Open, || format!("function {:?} calls itself", function.name))?;
            open.push((callee, false));
        }
    }
    Ok(())
}

fn callees(region: &Region) -> Vec<FuncId> {
    let mut found = vec![];
    let mut open = vec![region];
    while let Some(region) = open.pop() {
        for inst in region {
            if let Op::Call(callee, _) = inst.op {
                found.push(callee);
            }
            open.extend(regions(&inst.op));
        }
    }
    found
}
