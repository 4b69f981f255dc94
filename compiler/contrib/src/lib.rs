//! Operators of other domains than ONNX's own: `com.microsoft`, of ONNX Runtime, `ai.onnx.ml`, of classic models, and
//! `ai.onnx.contrib`, of onnxruntime-extensions.

pub mod extensions;
pub mod microsoft;
pub mod ml;
#[cfg(test)]
mod tests;

use onnxc_ops::OpDef;

/// Families of these domains, for an [`onnxc_ops::Table`].
pub const FAMILIES: &[&[OpDef]] = &[
    extensions::audio::ROWS,
    extensions::bert::ROWS,
    extensions::bpe::ROWS,
    extensions::json::ROWS,
    extensions::patterns::ROWS,
    extensions::sentencepiece::ROWS,
    extensions::strings::ROWS,
    ml::ROWS,
    ml::labels::ROWS,
    ml::maps::ROWS,
    ml::linear::ROWS,
    ml::svm::ROWS,
    ml::trees::ROWS,
    microsoft::elementwise::ROWS,
    microsoft::gates::ROWS,
    microsoft::fused::ROWS,
    microsoft::groups::ROWS,
    microsoft::nchwc::ROWS,
    microsoft::standard::ROWS,
    microsoft::numbers::ROWS,
    microsoft::moe::ROWS,
    microsoft::crops::ROWS,
    microsoft::windows::ROWS,
    microsoft::matmul::ROWS,
    microsoft::blockwise::ROWS,
    microsoft::byte_blocks::ROWS,
    microsoft::attention::ROWS,
    microsoft::group_query::ROWS,
    microsoft::multi_head::ROWS,
    microsoft::rotary::ROWS,
    microsoft::relative::ROWS,
    microsoft::layers::ROWS,
    microsoft::linear::ROWS,
    microsoft::gated_delta::ROWS,
    microsoft::branches::ROWS,
    microsoft::ngrams::ROWS,
    microsoft::recurrent::ROWS,
    microsoft::generation::ROWS,
    microsoft::packed::ROWS,
    microsoft::masked_decoder::ROWS,
    microsoft::sparse::ROWS,
    microsoft::words::ROWS,
    microsoft::text::ROWS,
    microsoft::training::ROWS,
];
