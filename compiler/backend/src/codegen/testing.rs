//! Compiles kernels for this machine and runs them in the test process.

use target_lexicon::Triple;

use super::{Code, compile, disassemble, prefers_speed};
use crate::codegen::isa::{Opt, isa};
use crate::loaded::LoadedKernel;
use onnxc_ir::graph::Tensor;
use onnxc_loops::Kernel;
use onnxc_machine::target::Target;
use onnxc_machine::testing::run_level;

pub struct Runnable(LoadedKernel);

/// The least target of the host's architecture.
pub fn baseline() -> Target {
    let target = Target::new(Triple::host(), None).expect("the tests run on a supported host");
    Target { upgrades: vec![], ..target }
}

/// The target of the tests: one level above the least, where there are levels.
pub fn target() -> Target {
    let levels = Target::new(Triple::host(), None).expect("the tests run on a supported host");
    levels.upgrades.first().cloned().unwrap_or_else(baseline)
}

fn opt(kernel: &Kernel) -> Opt {
    if prefers_speed(kernel) { Opt::Speed } else { Opt::None }
}

pub fn assembly(kernel: &Kernel) -> String {
    let target = target();
    let isa = isa(&target, opt(kernel)).unwrap();
    disassemble(&compile(kernel, &*isa, &target).unwrap(), &*isa).unwrap()
}

/// Compiles a kernel at an optimization level, the preferred one by default.
pub fn build_at(kernel: &Kernel, level: Option<Opt>, target: &Target) -> Runnable {
    let isa = isa(target, level.unwrap_or(opt(kernel))).unwrap();
    Runnable::new(&compile(kernel, &*isa, target).unwrap(), kernel.operands().count())
}

pub fn build(kernel: &Kernel) -> Runnable {
    build_at(kernel, None, &target())
}

/// Compiles for other architectures and for the least x86-64: nothing may be missing or need a call there either. The tests run what
/// they compile for the host's baseline.
pub fn compile_elsewhere(kernel: &Kernel) {
    for (triple, cpu) in [
        ("aarch64-unknown-linux-gnu", "generic"),
        ("s390x-unknown-linux-gnu", "z14"),
        ("s390x-unknown-linux-gnu", "z17"),
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-unknown-linux-gnu", "x86-64-v2"),
    ] {
        if cfg!(target_arch = "x86_64") && cpu == "x86-64" {
            continue;
        }
        let target = Target::new(triple.parse().unwrap(), Some(cpu)).unwrap();
        let code = compile(kernel, &*isa(&target, Opt::None).unwrap(), &target);
        let code = code.unwrap_or_else(|e| panic!("{triple}: {e} in {kernel:?}"));
        assert!(!code.bytes.is_empty());
    }
}

/// Which upgrades of a target this processor and this process are good for, a bit each.
pub fn level_here(target: &Target) -> i32 {
    run_level(&target.level_code(|_| true).unwrap().bytes)
}

impl Runnable {
    pub fn new(code: &Code, buffers: usize) -> Runnable {
        Runnable(LoadedKernel::new(&code.bytes, buffers).unwrap())
    }

    /// Runs with these buffers, in order, and gives the kernel's code.
    pub fn run(&self, buffers: &mut [Vec<u8>], dims: &[i64], range: (i64, i64)) -> i32 {
        self.0.call(buffers, dims, range)
    }

    /// Runs and asserts success.
    pub fn run_ok(&self, buffers: &mut [Vec<u8>], dims: &[i64]) {
        assert_eq!(self.run(buffers, dims, (0, 0)), 0);
    }
}

pub fn bytes_of<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(values, f32::to_le_bytes)
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub fn i64_bytes(values: &[i64]) -> Vec<u8> {
    bytes_of(values, i64::to_le_bytes)
}

pub fn tensor_bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.data.to_vec()
}
