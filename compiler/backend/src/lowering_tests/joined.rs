//! Joins of many parts of sizes that the run decides: where each begins is the sum of all before it.

use std::cell::RefCell;

use super::*;

/// Rows of parts of such sizes, side by side. Checks the result, and gives the instructions of the leaf kernels.
fn join(sizes: &[usize]) -> usize {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("join", "Concat", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let mut dice = Dice(7);
    let (mut parts, mut inputs) = (vec![], vec![]);
    for (at, &size) in sizes.iter().enumerate() {
        let dims = vec![Dim::from(2usize), Dim::sym(b.fresh_symbol())];
        parts.push(b.input(&format!("x{at}"), TensorType::new(DType::I64, dims), None));
        inputs.push(dice.tensor(DType::I64, &[2, size]));
    }
    let joined = b.concat(&parts, 1).unwrap();
    graph.outputs.push(("joined".into(), joined));
    let target = fixed_target().leaf().unwrap();
    let instructions = RefCell::new(0);
    let execute = |kernel: &Kernel, buffers: &mut [Vec<u8>], symbols: &dyn Fn(Sym) -> Option<i64>| {
        let func = vector::lower(kernel, target.wide.unwrap()).unwrap();
        *instructions.borrow_mut() += func.blocks.values().map(|block| block.insts.len()).sum::<usize>();
        loops::interp::run(kernel, buffers, symbols)
    };
    check(&graph, &inputs, true, &target, &execute).unwrap();
    instructions.into_inner()
}

#[test]
fn the_offset_of_a_part_is_that_of_the_one_before_and_its_size() {
    let sizes: Vec<usize> = (0..100).map(|at| [3, 0, 1, 17, 2][at % 5]).collect();
    let [few, many] = [25, 100].map(|count| join(&sizes[..count]));
    // It grows as a square where each part adds up all before it.
    assert!(many < 6 * few, "{few} instructions for 25 parts, {many} for 100");
}
