//! The program `onnxc`; all of it is in [`onnxc::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    onnxc::cli::main(stdout::was_closed())
}

/// Whether standard output was closed when the process began. `main` is too late to ask: Rust's runtime opens the null
/// device in its place, and then everything written is lost without an error.
mod stdout {
    use std::sync::atomic::{AtomicBool, Ordering};

    static CLOSED: AtomicBool = AtomicBool::new(false);

    pub(crate) fn was_closed() -> bool {
        CLOSED.load(Ordering::Relaxed)
    }

    /// The linker's table of functions that run before the runtime starts.
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static LOOK: extern "C" fn() = look;

    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    extern "C" fn look() {
        // SAFETY: asks for a descriptor's flags, which it need not have; nothing of Rust's runtime is used.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(flags == -1, Ordering::Relaxed);
    }
}
