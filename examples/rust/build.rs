fn main() -> Result<(), onnxc::build::Failure> {
    onnxc::build("../digits/digits.onnx")?;
    Ok(())
}
