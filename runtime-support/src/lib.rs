//! The tiny runtime of models compiled by `onnxc`.
