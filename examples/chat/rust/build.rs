fn main() -> Result<(), onnxc::build::Failure> {
    onnxc::build::Builder::new("../chat.onnx").state("auto").compile()?;
    Ok(())
}
