//! Products of small integers in the arithmetic that the target has most of: products of bytes where kernels add these
//! up at once (`bytes`), else of floats, as long as every sum is exact (`floats`).

mod bytes;
mod floats;
mod range;
mod twins;

pub(crate) use bytes::{Bytes, bytes, less_columns};
pub(crate) use range::{LOOKS, Range, range};

use crate::Options;
use crate::rewrite::{bodies, rewrite};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    rewrite(graph, |b, id| bytes::in_bytes(b, id, &options.pack))?;
    twins::run(graph, if options.pack.signed_bytes { DType::I8 } else { DType::U8 })?;
    let mut left = floats::MOST_OF_ALL;
    rewrite(graph, |b, id| match floats::depthwise(b, id, &options.pack)? {
        Some(sum) => Ok(Some(sum)),
        None => floats::in_floats(b, id, &mut left),
    })?;
    rewrite(graph, floats::back)?;
    bodies(graph, options, run)
}
