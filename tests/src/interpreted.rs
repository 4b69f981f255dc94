//! Compiled models whose host program is interpreted, with the machine code of their kernels: what they give must be what
//! the whole machine code gives, refusals included.

use onnxc::Compiled;
use onnxc::native::kernel::ModelKernels;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::Tensor;
use onnxc_object::host::interp::model::{Arguments, Model, Outcome};
use onnxc_object::host::parse::parse;
use onnxc_object::host::verify::verify;

/// A model that was compiled for this very processor.
pub struct Interpreted<'c> {
    pub model: Model<'c>,
    code: ModelKernels,
}

impl<'c> Interpreted<'c> {
    /// The program is printed, read again and verified first.
    pub fn new(compiled: &'c Compiled) -> Result<Interpreted<'c>> {
        let mut model = compiled.interpreted()?;
        let text = model.program.to_string();
        let read = parse(&text)?;
        if read.to_string() != text {
            return Err(internal("the program is printed in another way when it has been read"));
        }
        verify(&read).map_err(|text| internal(&text))?;
        model.program = read;
        let code = ModelKernels::new(&model)?;
        Ok(Interpreted { model, code })
    }

    /// One run with these arguments.
    pub fn call(&self, arguments: Arguments) -> Result<Outcome> {
        self.model
            .call(arguments, &|kernel, buffers, words, range| self.code.run(kernel, buffers, words, range))
    }

    /// The outputs of a run on these inputs, which succeeds: on one thread, and the same where kernels are shared.
    pub fn run(&self, inputs: &[Option<Tensor>], shapes: &[Option<Vec<usize>>]) -> Result<Vec<Tensor>> {
        let outcome = self.call(self.model.arguments(inputs, shapes)?)?;
        if outcome.status != 0 {
            return Err(internal(&format!("status {}: {}", outcome.status, outcome.message)));
        }
        let mut arguments = self.model.arguments(inputs, shapes)?;
        arguments.share_kernels();
        match self.call(arguments)? == outcome {
            true => Ok(outcome.outputs),
            false => Err(internal("kernels that are shared by threads give other results")),
        }
    }
}

fn internal(text: &str) -> Error {
    Error::internal(Stage::Run, text)
}
