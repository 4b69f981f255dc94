use std::process::ExitCode;

fn main() -> ExitCode {
    onnxc::cli::main()
}
