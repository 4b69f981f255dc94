//! Stack that calls need: a call on a thread whose stack is painted before and read afterwards.

use std::ffi::c_void;
use std::io;

/// `ONNXC_STACK_BYTES`: stack that `<name>_run` may use.
pub const LIMIT: usize = 64 << 10;

/// Bytes of the painted stack. What uses more ends the process at a protected page.
const BYTES: usize = 1 << 20;

const PAINT: u8 = 0xa7;

/// Pages that a thread gets as its stack.
struct Stack {
    start: *mut u8,
}

/// The input and the result of the thread.
struct Job<'a> {
    body: &'a mut (dyn FnMut() + Send),
    /// Where the stack ends for the caller of the body.
    top: usize,
}

/// Runs `body` on a stack of its own; gives the bytes of stack that it used, at most a few hundred more.
pub fn used(body: &mut (dyn FnMut() + Send)) -> io::Result<usize> {
    let stack = Stack::new()?;
    let mut job = Job { body, top: 0 };
    stack.run(&mut job)?;
    Ok(job.top - stack.lowest_written())
}

impl Stack {
    fn new() -> io::Result<Stack> {
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), Stack::all(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Stack { start: start.cast() };
        // SAFETY: the pages are this stack's own; no reference to them exists.
        let guarded = unsafe {
            std::ptr::write_bytes(stack.start, PAINT, Stack::all());
            libc::mprotect(start, Stack::guard(), libc::PROT_NONE)
        };
        if guarded == 0 { Ok(stack) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes of the protected pages below the stack.
    fn guard() -> usize {
        64 << 10
    }

    fn all() -> usize {
        Stack::guard() + BYTES
    }

    fn run(&self, job: &mut Job<'_>) -> io::Result<()> {
        let check =
            |result: i32| if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) };
        // SAFETY: the attributes are initialised before they are used and destroyed after; the thread runs on pages that
        // outlive it, as it is joined here, and so does the job.
        unsafe {
            let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
            check(libc::pthread_attr_init(&mut attributes))?;
            let mut thread = std::mem::zeroed::<libc::pthread_t>();
            let made = check(libc::pthread_attr_setstack(
                &mut attributes,
                self.start.add(Stack::guard()).cast(),
                BYTES,
            ))
            .and_then(|()| {
                let job = std::ptr::from_mut(job).cast::<c_void>();
                check(libc::pthread_create(&mut thread, &attributes, enter, job))
            });
            libc::pthread_attr_destroy(&mut attributes);
            made?;
            check(libc::pthread_join(thread, std::ptr::null_mut()))
        }
    }

    /// Address of the lowest byte that is not as it was painted.
    fn lowest_written(&self) -> usize {
        // SAFETY: the pages are readable, and no thread runs on them any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.add(Stack::guard()), BYTES) };
        // Pages at once, as a megabyte is looked at after every run.
        const PAGE: [u8; 4096] = [PAINT; 4096];
        let (pages, _) = bytes.as_chunks::<4096>();
        let whole = pages.iter().take_while(|&page| *page == PAGE).count() * PAGE.len();
        let untouched = whole + bytes[whole..].iter().take_while(|&&byte| byte == PAINT).count();
        self.start.addr() + Stack::guard() + untouched
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, on which nothing runs any more.
        unsafe { libc::munmap(self.start.cast(), Stack::all()) };
    }
}

extern "C" fn enter(job: *mut c_void) -> *mut c_void {
    // SAFETY: `run` gives a job that outlives the thread.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    job.top = std::ptr::from_ref(&job).addr();
    (job.body)();
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deep(bytes: &mut [u8; 40_000]) -> u8 {
        std::hint::black_box(&mut *bytes)[17] = 3;
        bytes[39_999]
    }

    #[test]
    fn a_large_frame_shows() {
        let small = used(&mut || {}).unwrap();
        let large = used(&mut || {
            std::hint::black_box(deep(&mut [1; 40_000]));
        })
        .unwrap();
        assert!(small < 2_000, "{small}");
        assert!((40_000..60_000).contains(&large), "{large}");
    }
}
