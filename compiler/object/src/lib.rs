//! Host programs and objects: [`host`] is what a model does outside of its kernels, [`emit`] writes it with them to an object and a header.

pub mod emit;
pub mod host;
