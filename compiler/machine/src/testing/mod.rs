//! Runs machine code in tests.

#[cfg(target_os = "linux")]
pub mod runner;

/// What the machine code of a level function returns here.
pub fn run_level(bytes: &[u8]) -> i32 {
    let mut page = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    page.copy_from_slice(bytes);
    let page = page.make_exec().unwrap();
    // SAFETY: the page holds a function of this signature.
    unsafe {
        let level: extern "C" fn() -> i32 = std::mem::transmute(page.as_ptr());
        level()
    }
}
