//! The vector IR: what kernels are between the loop IR and machine code.
//!
//! A function prints ([`mod@print`]), is read ([`parse`]), verified ([`verify`]) and interpreted ([`interp`]), so that what goes
//! wrong between loops and bytes shows on its own level. [`op`] says what each operation is and which machines have it, [`isa`] what
//! machines are.

pub mod interp;
pub mod ir;
pub mod isa;
pub mod op;
pub mod parse;
pub mod print;
pub mod verify;
