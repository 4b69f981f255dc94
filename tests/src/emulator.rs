//! Processors that this machine is not: QEMU's user-mode emulation of x86-64.

use std::process::Command;

/// Processors of x86-64-v2 at most: an AVX instruction ends a program there.
pub const WITHOUT_AVX2: [&str; 3] = ["qemu64", "Nehalem", "SandyBridge"];
/// Processors of x86-64-v3 or more.
pub const WITH_AVX2: [&str; 2] = ["Haswell", "max"];
/// Processors that have AVX2 and lack something else of x86-64-v3, or a system that does not save its registers.
pub const INCOMPLETE: [&str; 5] =
    ["Haswell,-fma", "Haswell,-bmi2", "Haswell,-movbe", "Haswell,-abm", "Haswell,-xsave"];

/// The emulator's program. Without one, tests of other processors are left out, where `ONNXC_REQUIRE_QEMU=1` does not
/// ask for them.
pub fn qemu() -> Option<&'static str> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        println!("skipped: no x86-64 Linux, whose programs QEMU would run");
        return None;
    }
    let found = ["qemu-x86_64-static", "qemu-x86_64"].into_iter().find(|program| {
        Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success())
    });
    if found.is_none() {
        let required = std::env::var_os("ONNXC_REQUIRE_QEMU").is_some_and(|value| value == "1");
        assert!(!required, "qemu-x86_64 is required here (Debian: qemu-user-static), and not installed");
        println!("skipped: qemu-x86_64 (Debian: qemu-user-static) is not installed");
    }
    found
}

/// The command line that stands before a program to run it on a processor.
pub fn prefix(qemu: &str, cpu: &str) -> Vec<String> {
    [qemu, "-cpu", cpu].map(str::to_string).to_vec()
}

/// A program on a processor.
pub fn command(qemu: &str, cpu: &str, program: &std::path::Path) -> Command {
    let mut command = Command::new(qemu);
    command.args(["-cpu", cpu]).arg(program);
    command
}
