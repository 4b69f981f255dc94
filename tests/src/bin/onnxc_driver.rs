//! The `onnxc` command, for tests: cargo builds the binaries of a package for its tests, not those of others.

fn main() -> std::process::ExitCode {
    onnxc::cli::main(false)
}
