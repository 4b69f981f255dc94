//! What compiled models call to decode images: the functions of ImageDecoder. `libonnxc_runtime_images.a` has them and all of
//! `libonnxc_runtime_support.a`; models that decode no image never need it.
//!
//! The decoders take memory from the process, not from the caller's allocator: libraries do so. What they take is estimated
//! before they take it, bounded by [`image::LIMIT`] and given back before a function returns. Their work is bounded too, by the
//! pixels and by the bytes of the stream ([`fault::Fault::Work`]), and they end early where the run is cancelled ([`watch`]). A panic in a
//! library ends in a status, not in the caller; in a program that is built to abort on panics it ends the process.

mod bmp;
mod calls;
mod decode;
pub mod fault;
pub mod image;
mod jpeg;
mod jpeg2000;
mod png;
mod pnm;
mod tiff;
pub mod watch;
mod webp;

pub use calls::*;
pub use decode::{decode, decode_watched};
// All of it belongs to the library that C programs link.
pub use onnxc_runtime_support as support;

#[cfg(test)]
mod tests;
