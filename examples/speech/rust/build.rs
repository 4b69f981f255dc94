use onnxc::build::{Builder, Failure};

fn main() -> Result<(), Failure> {
    Builder::new("../encoder.onnx").compile()?;
    Builder::new("../decoder.onnx").state("auto").state_capacity(16).compile()?;
    Ok(())
}
