//! What the C ABI promises for every model: it touches nothing but its buffers, its results depend on
//! nothing else than its inputs, the workspace it asks for is enough and one byte less is refused, it needs little
//! stack, and misuse gives a status. A violation may end the process.

use onnxc::native::{Call, Memory, Model};
use onnxc_ir::graph::Tensor;

use crate::{misuse, stack};

/// What [`check`] found.
pub struct Findings {
    pub outputs: Vec<Tensor>,
    /// Wrong calls that were refused.
    pub refused: usize,
    /// Bytes of stack of a run, with those of a little code around it.
    pub stack: usize,
    pub workspace: usize,
}

/// Runs a model in guarded memory, measures its stack and calls it wrongly.
pub fn check(
    model: &Model<'_>,
    inputs: &[Option<Tensor>],
    output_shapes: &[Option<Vec<usize>>],
) -> Result<Findings, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let outputs = model.run_guarded(inputs, output_shapes, &Call::default()).map_err(text)?;
    let mut prepared = model.prepare_in(Memory::default(), inputs, output_shapes).map_err(text)?;
    let mut result = Ok(());
    let stack =
        stack::used(&mut || result = prepared.run(&Call::default())).map_err(|error| error.to_string())?;
    result.map_err(text)?;
    if stack > stack::LIMIT {
        return Err(format!("a run used {stack} bytes of stack, more than {}", stack::LIMIT));
    }
    let refused = misuse::check(model, inputs, output_shapes)?;
    if prepared.outputs().map_err(text)? != outputs {
        return Err("results on another stack are others".into());
    }
    Ok(Findings { outputs, refused, stack, workspace: prepared.workspace_bytes() })
}
