//! Code generation: kernels to machine code, and the object file and C header around them.

pub mod emit;
