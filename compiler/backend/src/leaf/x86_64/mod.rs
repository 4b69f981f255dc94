//! x86-64: AVX2, whose 16 registers also serve as masks, and AVX-512, with 32 registers and masks apart.

mod codes;
mod codes64;
#[cfg(all(test, target_arch = "x86_64", unix))]
pub mod emulator;
pub mod encode;
pub(super) mod registers;
mod small;
#[cfg(all(test, target_arch = "x86_64", unix))]
mod tests;
