//! A pool in children of its process: loops run there, and it can be destroyed. Some children begin while the pool runs a
//! loop for another thread.
#![cfg(unix)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use onnxc_runtime_support::Pool;
use onnxc_runtime_support::pool::{onnxc_pool_create, onnxc_pool_destroy};

const COUNT: usize = 1000;

unsafe extern "C" fn fill(job: *mut c_void, begin: i64, end: i64) -> i32 {
    for at in begin..end {
        // SAFETY: the job is an array of `COUNT` cells, and parts do not overlap.
        unsafe { *job.cast::<i64>().add(at as usize) = 3 * at };
    }
    0
}

fn loops(pool: &Pool) -> bool {
    let mut cells = [-1i64; COUNT];
    // SAFETY: `fill` writes to cells that live until the loop is done.
    let result = unsafe { pool.parallel_for(0, COUNT as i64, fill, cells.as_mut_ptr().cast()) };
    result == 0 && cells.iter().zip(0..).all(|(&cell, at)| cell == 3 * at)
}

/// What a child does with a pool of its parent: 0 if all is well.
fn child(pool: *mut Pool) -> i32 {
    // SAFETY: a signal ends a child that hangs, long after any that does not; the pool is alive until it is destroyed.
    let inherited = unsafe {
        libc::alarm(1800);
        loops(&*pool)
    };
    let own = onnxc_pool_create(3);
    // SAFETY: both pools are from `onnxc_pool_create`, and this process does not use them afterwards.
    let good = unsafe {
        let good = !own.is_null() && loops(&*own);
        onnxc_pool_destroy(pool);
        onnxc_pool_destroy(own);
        good
    };
    i32::from(!(inherited && good))
}

#[test]
fn children_use_and_destroy_the_pools_of_their_parent() {
    let pool = onnxc_pool_create(4);
    // SAFETY: the pool is destroyed at the end.
    let shared = unsafe { &*pool };
    assert!(loops(shared));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(loops(shared));
            }
        });
        for number in 0..40 {
            // SAFETY: the child calls what may be called after `fork`, and leaves without running anything else.
            let process = unsafe { libc::fork() };
            if process == 0 {
                let code = child(pool);
                // SAFETY: nothing of this process is needed any more.
                unsafe { libc::_exit(code) };
            }
            let mut status = -1;
            // SAFETY: `status` is a local.
            assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
            assert_eq!(status, 0, "child {number}");
            assert!(loops(shared));
        }
        stop.store(true, Ordering::Relaxed);
    });
    // SAFETY: nobody uses the pool any more.
    unsafe { onnxc_pool_destroy(pool) };
}
