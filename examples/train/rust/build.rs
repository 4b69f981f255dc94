fn main() -> Result<(), onnxc::build::Failure> {
    onnxc::build::Builder::new("../digits.onnx").training(true).compile()?;
    Ok(())
}
