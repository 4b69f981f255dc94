//! The listing of an object: a text whose lines name functions, steps and kernels with their ONNX nodes. The line tables of the object lead
//! from code to its lines (`lines`).

use std::collections::BTreeMap;

use cranelift_entity::EntityRef;
use cranelift_module::FuncId;

use crate::emit::lines::{Function, Lines};
use crate::emit::write::{Symbols, location};
use crate::host::StepInfo;
use crate::host::ir::{KernelId, Op, Region};
use crate::host::lower::Lowered;
use crate::host::message::printable;

/// Names the functions, steps and kernels of a program; not kernels that an earlier program of the object has as well.
pub(super) fn program(lines: &mut Lines, symbols: &Symbols<'_>, lowered: &Lowered<'_>) {
    let program = &lowered.program;
    let mut users: BTreeMap<KernelId, Vec<i64>> = BTreeMap::new();
    for (id, function) in &program.functions {
        lines.line("");
        let name = format!("{}.{}", program.name, function.name);
        let line = lines.line(&format!("function {name}"));
        let mut steps = BTreeMap::new();
        let mut step = None;
        walk(&function.body, &mut |op| match op {
            Op::Step { number, .. } => {
                step = Some(*number);
                let text = lowered.steps.get(*number as usize).map_or_else(String::new, step_text);
                let line = lines.line(&format!("    step {number}: {text}"));
                steps.insert(location(*number).bits(), line);
            }
            Op::Kernel(kernel, _) => users.entry(*kernel).or_default().extend(step),
            _ => {}
        });
        lines.functions.insert(symbols.functions[id], Function { name, line, steps });
    }
    lines.line("");
    // Equal kernels lie in the object once, under the name of the first.
    let mut placed: Vec<(FuncId, Vec<KernelId>)> = vec![];
    for (id, versions) in &symbols.kernels {
        let Some(&(function, _)) = versions.first() else { continue };
        match placed.iter_mut().find(|(known, _)| *known == function) {
            Some((_, kernels)) => kernels.push(id),
            None => placed.push((function, vec![id])),
        }
    }
    for (_, kernels) in placed {
        let (mut steps, mut nodes) = (vec![], vec![]);
        for &id in &kernels {
            steps.extend(users.remove(&id).unwrap_or_default());
            nodes.extend(lowered.kernels[id.index()].nodes());
        }
        let used = &lowered.kernels[kernels[0].index()];
        let numbers: Vec<String> = steps.iter().map(i64::to_string).collect();
        let plural = if numbers.len() == 1 { "" } else { "s" };
        let what = if used.explains.is_some() { ", only where it fails" } else { "" };
        let kernel = &program.kernels[kernels[0]].name;
        let text = format!("kernel {kernel}, step{plural} {}{what}: {}", numbers.join(" "), nodes.join(", "));
        let line = lines.line(&text);
        let origin = &used.graph.origins[used.graph.nodes[used.group.anchor].origin];
        let first = numbers.first().map_or("none", String::as_str);
        let others =
            if numbers.len() > 1 { format!(" and {} more", numbers.len() - 1) } else { String::new() };
        let name = format!("{}_step_{first} ({} \"{}\"){others}", program.name, origin.op_type, origin.name);
        for &(function, _) in kernels.iter().flat_map(|&id| &symbols.kernels[id]) {
            let name = printable(&name).to_string();
            lines.functions.entry(function).or_insert(Function { name, line, steps: BTreeMap::new() });
        }
    }
}

fn step_text(step: &StepInfo) -> String {
    let nodes = if step.nodes.is_empty() { String::new() } else { format!(": {}", step.nodes.join(", ")) };
    let result = step.result.as_ref().map_or_else(String::new, |result| format!(" -> {result}"));
    format!("{}{nodes}{result}", step.kernel)
}

/// Visits the operations of a region in their order.
fn walk(region: &Region, visit: &mut dyn FnMut(&Op)) {
    for inst in region {
        visit(&inst.op);
        match &inst.op {
            Op::If { then, otherwise, .. } => {
                [then, otherwise].into_iter().for_each(|part| walk(part, visit))
            }
            Op::Loop { head, body, .. } => [head, body].into_iter().for_each(|part| walk(part, visit)),
            Op::Attempt { body, handler, .. } => {
                [body, handler].into_iter().for_each(|part| walk(part, visit))
            }
            _ => {}
        }
    }
}
