//! What kernels are lowered for.

use crate::vector::isa::Isa;
use onnxc_ir::graph::DType;

/// One set of vectors, and the caches behind them: all that the cost model and the lowering of loop nests know of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Core {
    /// Bytes of the vectors, and how many registers of them there are.
    pub vector_bytes: usize,
    pub vector_registers: usize,
    /// The instructions of leaf kernels, where nests are lowered for those; kernels that Cranelift compiles have none of their own.
    pub wide: Option<Isa>,
    /// Bytes of the first and second level data caches of one core.
    pub l1_bytes: usize,
    pub l2_bytes: usize,
    /// Ways of the first-level cache: lines at one place modulo its size divided by this that it holds at once.
    pub l1_ways: usize,
}

impl Core {
    /// Vectors of 128 bits, without caches.
    pub(super) const BASE: Core =
        Core { vector_bytes: 16, vector_registers: 32, wide: None, l1_bytes: 0, l2_bytes: 0, l1_ways: 1 };

    /// The same caches behind the vectors of leaf kernels.
    pub(super) fn with(self, isa: Isa) -> Core {
        let Isa { vector_bytes, vector_registers, .. } = isa;
        Core { vector_bytes, vector_registers, wide: Some(isa), ..self }
    }

    /// Whether nests are lowered for leaf kernels.
    pub fn is_leaf(&self) -> bool {
        self.wide.is_some()
    }

    /// Lanes of a vector of elements of `size` bytes, 1 without vectors.
    pub fn lanes(&self, size: usize) -> usize {
        (self.vector_bytes / size).max(1)
    }

    /// Lanes of a vector of elements of a type, 1 where vectors of it are not worth it. Floats of 16 bits are in lanes of 32, as in
    /// leaf kernels all elements of less than 32 bits are.
    pub fn lanes_of(&self, dtype: DType) -> usize {
        use DType::*;
        match dtype {
            F32 | I32 | F64 => self.lanes(dtype.size()),
            F16 | BF16 => self.lanes(4),
            I64 if self.is_leaf() => self.lanes(8),
            I8 | U8 | I16 | U16 if self.is_leaf() => self.lanes(4),
            _ => 1,
        }
    }

    /// Whether there are products of bytes as an instruction each.
    pub fn has_byte_products(&self) -> bool {
        self.wide.is_some_and(|isa| isa.dot.is_some())
    }

    /// Whether there are products of pairs of 16 bits as an instruction each, which adds them to a sum.
    pub fn has_pair_products(&self) -> bool {
        self.wide.is_some_and(Isa::adds_pair_products)
    }

    /// Whether there are products of pairs of bf16 as an instruction each.
    pub fn has_bf16_products(&self) -> bool {
        self.wide.is_some_and(Isa::adds_bf16_products)
    }

    /// Whether bytes are joined; see [`Isa::joins_bytes`].
    pub fn joins_bytes(&self) -> bool {
        self.wide.is_some_and(Isa::joins_bytes)
    }

    /// Whether there are products by one lane of a vector.
    pub fn has_element_products(&self) -> bool {
        self.wide.is_some_and(|isa| isa.has_element_products)
    }

    /// Whether operations have no operands in memory.
    pub fn loads_apart(&self) -> bool {
        self.wide.is_some_and(|isa| isa.loads_apart)
    }

    /// Whether products of halves of lanes are added up.
    pub fn has_half_products(&self) -> bool {
        self.wide.is_some_and(|isa| isa.has_half_products)
    }
}
