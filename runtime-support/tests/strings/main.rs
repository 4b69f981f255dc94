//! The functions on strings through their C ABI.

mod exhaustion;
mod functions;
mod lists;
mod patterns;
mod properties;
mod sequences;
mod support;
