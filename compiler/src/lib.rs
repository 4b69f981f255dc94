//! onnxc: an ahead-of-time compiler from ONNX models to native object files.
//!
//! Rust programs call [`build()`] from their build script: it compiles a model, archives the object for the linker and writes a typed
//! safe wrapper. [`Builder`] has the options. This is what the package promises to keep; the rest of it, which is hidden here, is how the
//! command `onnxc` is made.

// Data flows one way: bytes, protobuf structs, a graph of primitives, passes, a schedule of fusion groups, loop nests, machine code, an
// object. Everything but `files`, `cli`, `native` and `build` is pure: bytes in, bytes out, no global state, the same object bit for bit
// from the same input.

mod author;
pub mod build;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod files;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod native;
mod pipeline;
#[cfg(test)]
mod tests;

pub use build::{Builder, Failure, Files, build};
pub use onnxc_ir::error::{Error, Kind, NodeRef, Stage};
pub use onnxc_machine::target::Goal;
pub use onnxc_passes::Precision;

#[doc(hidden)]
pub use author::{ShardOptions, Sharded, Trained, shard, train_graph};
#[doc(hidden)]
pub use onnxc_backend::Counter;
#[doc(hidden)]
pub use onnxc_import::shard::Grid;
#[doc(hidden)]
pub use onnxc_import::train_graph::{Label, Lora, Loss, Optimizer, TrainOptions};
#[doc(hidden)]
pub use onnxc_import::{
    DimPin, ExternalData, ImportOptions, InputDim, InputShape, Limits, NoExternalData, Warning,
};
#[doc(hidden)]
pub use onnxc_ir::error::Result;
#[doc(hidden)]
pub use onnxc_machine::target::Target;
#[doc(hidden)]
pub use onnxc_object::emit::{Artifact, Listing, WeightsFile};
#[doc(hidden)]
pub use pipeline::{
    Compiled, CompiledEntry, EntryFrontend, Frontend, Observer, Options, Quiet, WeightsApart, backend,
    compile, decode, frontend, operators, optimize, ranks,
};
