//! From the loop IR to the [vector IR](onnxc_machine::vector).
//!
//! [`lower`] selects the instructions of a kernel for what a machine has ([`Isa`]): `select` turns loops, expressions and
//! indices into SSA form with explicit addresses, `reuse` loads once what several read, `pairs` joins stores of bytes, `scaled` and
//! `fold` move sums into addresses, and loads into the operations that read them, `halves` makes products of halves of
//! lanes, `element` products by a lane, `far` shares what displacements are too long for. A kernel that
//! holds anything the vector IR has no form for is refused. Emitters (`leaf`) give registers and write the bytes.

pub mod element;
pub mod far;
pub mod fold;
pub mod halves;
pub mod memory;
pub mod pairs;
pub mod reuse;
pub mod scaled;
pub mod select;
#[cfg(test)]
pub(crate) mod tests;

use onnxc_ir::graph::DType;
use onnxc_loops::Kernel;
use onnxc_machine::vector::ir::{self, Func};
use onnxc_machine::vector::isa::Isa;

/// Why a kernel is refused whose index mentions a size that no budget covers: a fault of the model, not of the machine.
pub const OVERGROWN: &str = "a size beyond the budget";

/// The instructions of a kernel that was lowered for the vectors of `isa`, or why there are none.
pub fn lower(kernel: &Kernel, isa: Isa) -> Result<Func, String> {
    let mut func = select::select(kernel, isa).map_err(|select::Refusal(reason)| reason)?;
    let quantizes = |lanes: &ir::Lanes| isa.has(ir::Op::QuantizePair(ir::Small::U8, 0, *lanes));
    let has_bytes = kernel.buffers.values().any(|buffer| matches!(buffer.dtype, DType::I8 | DType::U8));
    let pairs = [ir::Lanes::X4, ir::Lanes::X8].into_iter().find(quantizes).filter(|_| has_bytes);
    if isa.loads_apart || pairs.is_some() {
        let buffers = memory::Buffers::new(&func, kernel);
        if isa.loads_apart {
            reuse::run(&mut func, &buffers);
        }
        if let Some(lanes) = pairs {
            pairs::run(&mut func, &buffers, lanes);
        }
    }
    if isa.has_scaled_addresses {
        scaled::run(&mut func);
    }
    if isa.has_each_operands {
        fold::run(&mut func);
    }
    if isa.has_half_products {
        halves::run(&mut func);
    }
    if isa.has_element_products {
        element::run(&mut func, isa);
    }
    if let Some(reach) = isa.reach {
        far::run(&mut func, reach);
    }
    Ok(func)
}
