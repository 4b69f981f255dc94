//! Runs programs: every group lowered and interpreted on the bytes that the plan gives it. What the plan
//! overwrites too early shows as a wrong result.

use onnxc_ir::graph::{DType, Dim, Graph, ValueId};
use onnxc_ir::graph::{Sym, Tensor};
use onnxc_loops::lower::lower;
use onnxc_machine::target::{Core, Target};
use onnxc_schedule::testing::*;
use onnxc_schedule::{GroupId, Options, Program, Scratch, Step, Storage, schedule};
use proptest::prelude::*;

/// Size of every symbol.
const SIZE: i64 = 5;

struct Memory<'a> {
    graph: &'a Graph,
    program: &'a Program,
    inputs: &'a [Tensor],
    outputs: Vec<Vec<u8>>,
    arena: Vec<u8>,
}

fn size(dim: &Dim) -> usize {
    usize::try_from(dim.eval(&|_: Sym| Some(SIZE)).unwrap()).unwrap()
}

impl Memory<'_> {
    fn read(&self, value: ValueId) -> Vec<u8> {
        let bytes = size(&self.graph.ty(value).bytes());
        match self.program.place(value).unwrap() {
            Storage::Input(at) => self.inputs[*at].data.to_vec(),
            Storage::Output(at) => self.outputs[*at][..bytes].to_vec(),
            Storage::Constant => onnxc_ir::interp::constant(self.graph, value).unwrap().data.to_vec(),
            Storage::Arena { offset, .. } => self.arena[size(offset)..size(offset) + bytes].to_vec(),
            other => panic!("{value} is placed at {other:?}"),
        }
    }

    fn write(&mut self, value: ValueId, data: &[u8]) {
        match self.program.place(value).unwrap() {
            Storage::Output(at) => self.outputs[*at].copy_from_slice(data),
            Storage::Arena { offset, .. } => self.arena[size(offset)..][..data.len()].copy_from_slice(data),
            other => panic!("{value} is written at {other:?}"),
        }
    }

    fn scratch(&self, id: GroupId) -> Vec<u8> {
        let Some(Scratch::Arena(offset)) = &self.program.scratch[id] else { panic!("{id} has no scratch") };
        let start = size(offset);
        self.arena[start..][..size(&self.program.groups[id].scratch)].to_vec()
    }

    fn run(&mut self, core: &Core) {
        for step in &self.program.steps {
            match step {
                Step::Run(id) => {
                    let group = &self.program.groups[*id];
                    let kernel = lower(self.graph, group, "kernel", core).unwrap();
                    let ends = group.inputs.iter().chain(&group.outputs);
                    let mut buffers: Vec<Vec<u8>> = ends.map(|&value| self.read(value)).collect();
                    if group.has_scratch() {
                        buffers.push(self.scratch(*id));
                    }
                    let code = onnxc_loops::interp::run(&kernel, &mut buffers, &|_| Some(SIZE)).unwrap();
                    assert_eq!(code, 0);
                    for (&value, data) in group.outputs.iter().zip(&buffers[group.inputs.len()..]) {
                        self.write(value, data);
                    }
                }
                Step::Copy { from, output } => self.outputs[*output] = self.read(*from),
                Step::Control { .. } | Step::Bind(_) | Step::Allocate(_) | Step::Release(_) => {
                    panic!("{step:?} is not run here")
                }
            }
        }
    }
}

/// The program of a graph of integers gives what the reference evaluator gives, fused and not.
fn assert_computes(graph: &Graph) {
    let mut seed = 12345u32;
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        let shape: Vec<usize> = graph.ty(input.value).shape.iter().map(size).collect();
        let mut next = || {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            (seed >> 16) as i32 % 200 - 100
        };
        let data: Vec<i32> = (0..shape.iter().product::<usize>()).map(|_| next()).collect();
        inputs.push(Tensor::from_slice(&shape, &data));
    }
    let wanted = onnxc_ir::interp::run(graph, &inputs).unwrap();
    let core = Target::host().unwrap().core;
    for fuse in [true, false] {
        let program =
            schedule(graph, Options { fuse, chain_above: Some(i64::MIN), ..Options::default() }).unwrap();
        let outputs = graph.outputs.iter().map(|(_, value)| vec![0xAA; size(&graph.ty(*value).bytes())]);
        let (outputs, arena) = (outputs.collect(), vec![0xAA; size(&program.arena)]);
        let mut memory = Memory { graph, program: &program, inputs: &inputs, outputs, arena };
        memory.run(&core);
        for (at, tensor) in wanted.iter().enumerate() {
            assert!(
                memory.outputs[at] == tensor.data,
                "output {at} differs (fuse {fuse})\n{}",
                program.text(graph)
            );
        }
    }
}

#[test]
fn a_depthwise_convolution_with_its_activation_computes() {
    assert_computes(&depthwise());
}

#[test]
fn rows_that_wait_for_each_other_compute() {
    assert_computes(&onnxc_ir::graph::parse::parse(CROSSED_ROWS).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Integers wrap, so that any order of a sum gives the same bits.
    #[test]
    fn random_graphs_compute_what_the_reference_does(
        picks in prop::collection::vec(pick(), 1..24),
        outputs in prop::collection::vec(any::<u16>(), 1..3),
        symbolic in any::<bool>(),
    ) {
        assert_computes(&random_graph(&picks, &outputs, lead(symbolic), DType::I32));
    }
}
