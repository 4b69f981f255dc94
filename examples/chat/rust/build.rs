fn main() -> Result<(), onnxc::build::Failure> {
    onnxc::build("../chat.onnx")?;
    Ok(())
}
