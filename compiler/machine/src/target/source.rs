//! Machines that C is written for and no machine code: microcontrollers, and WebAssembly.
//!
//! What is known of them decides tiles: registers, and sizes of caches or of fast memory.

use target_lexicon::{Architecture, ArmArchitecture, Riscv32Architecture, Triple};

use super::{Core, Target, unknown_cpu};
use crate::vector::isa::Isa;
use onnxc_ir::error::Result;

/// A processor: name, bytes of a vector, number of registers for vectors, or for numbers without vectors, KiB of the first-level data
/// cache, or of fast memory without a cache, and KiB of the second-level cache.
type SourceCpu = (&'static str, usize, usize, usize, usize);

/// The first of each is what its triple means.
const V6M: &[SourceCpu] =
    &[("cortex-m0plus", 4, 8, 8, 32), ("cortex-m0", 4, 8, 8, 32), ("cortex-m1", 4, 8, 8, 32)];
const V7M: &[SourceCpu] = &[("cortex-m3", 4, 10, 16, 64)];
/// Half of the registers of floats.
const V7EM: &[SourceCpu] = &[("cortex-m4", 4, 16, 16, 64), ("cortex-m7", 4, 16, 16, 256)];
const V8M_BASE: &[SourceCpu] = &[("cortex-m23", 4, 8, 8, 32)];
const V8M: &[SourceCpu] =
    &[("cortex-m33", 4, 16, 16, 64), ("cortex-m55", 4, 16, 16, 128), ("cortex-m85", 4, 16, 32, 256)];
const RV32: &[SourceCpu] = &[("generic-rv32", 4, 16, 16, 64)];
const XTENSA: &[SourceCpu] = &[("esp32s3", 4, 16, 32, 128), ("esp32", 4, 16, 32, 128)];
/// Engines have the registers of the machine; those of x86-64 are fewest.
const WASM: &[SourceCpu] = &[("simd128", 16, 16, 32, 512), ("mvp", 4, 16, 32, 512)];

/// Programs of 32 bits for systems of either width.
const X86: &[SourceCpu] = &[("i686", 16, 8, 32, 256)];
const ARM: &[SourceCpu] = &[("cortex-a7", 16, 16, 32, 256)];

fn rows(triple: &Triple) -> Option<&'static [SourceCpu]> {
    use ArmArchitecture::*;
    Some(match triple.architecture {
        Architecture::Arm(Thumbv6m) => V6M,
        Architecture::Arm(Thumbv7m) => V7M,
        Architecture::Arm(Thumbv7em) => V7EM,
        Architecture::Arm(Thumbv8mBase) => V8M_BASE,
        Architecture::Arm(Thumbv8mMain) => V8M,
        Architecture::Riscv32(
            Riscv32Architecture::Riscv32i
            | Riscv32Architecture::Riscv32im
            | Riscv32Architecture::Riscv32imc
            | Riscv32Architecture::Riscv32imac
            | Riscv32Architecture::Riscv32imafc
            | Riscv32Architecture::Riscv32gc,
        ) => RV32,
        Architecture::XTensa => XTENSA,
        Architecture::Wasm32 => WASM,
        Architecture::X86_32(_) => X86,
        Architecture::Arm(Armv7 | Armv7a) => ARM,
        _ => return None,
    })
}

/// Whether C is what can be written for a triple.
pub(super) fn is_for(triple: &Triple) -> bool {
    rows(triple).is_some()
}

pub(super) fn names(triple: &Triple) -> Vec<&'static str> {
    rows(triple).unwrap_or_default().iter().map(|row| row.0).collect()
}

pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    let rows = rows(&triple).unwrap_or_default();
    let row = mcpu.map_or(rows.first(), |cpu| rows.iter().find(|row| row.0 == cpu));
    let &(cpu, vector_bytes, registers, l1, l2) =
        row.ok_or_else(|| unknown_cpu(mcpu.unwrap_or_default(), &triple, &names(&triple)))?;
    let narrow = Isa { vector_bytes, vector_registers: registers, ..Isa::SCALAR };
    Ok(Target {
        narrow,
        is_source: true,
        core: Core {
            vector_bytes,
            vector_registers: registers,
            wide: None,
            l1_bytes: l1 << 10,
            l2_bytes: l2 << 10,
            l1_ways: 4,
        },
        ..Target::base(triple, cpu)
    })
}

/// A machine without what loop nests are made for where one instruction does it.
pub(super) fn plain(isa: Isa) -> Isa {
    Isa {
        dot: None,
        has_tiles: false,
        has_bf16: false,
        has_bf16_dot: false,
        has_half_products: false,
        has_element_products: false,
        has_byte_permute: false,
        ..isa
    }
}
