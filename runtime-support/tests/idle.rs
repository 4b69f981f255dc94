//! What a pool costs while nobody uses it. Alone in its process: the time of all of its threads is taken.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use onnxc_runtime_support::Pool;

/// Time that the threads of this process have run.
fn time_on_processors() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

unsafe extern "C" fn count(job: *mut c_void, begin: i64, end: i64) -> i32 {
    // SAFETY: the test passes a counter that outlives its loops.
    let turns = unsafe { &*job.cast::<AtomicU32>() };
    turns.fetch_add((end - begin) as u32, Ordering::Relaxed);
    0
}

#[test]
fn an_idle_pool_does_not_spin() {
    let pool = Pool::new(8).unwrap();
    let turns = AtomicU32::new(0);
    for _ in 0..100 {
        let job = (&raw const turns).cast_mut().cast();
        // SAFETY: as in `count`.
        assert_eq!(unsafe { pool.parallel_for(0, 1000, count, job) }, 0);
    }
    assert_eq!(turns.load(Ordering::Relaxed), 100_000);
    // The workers go to sleep.
    std::thread::sleep(Duration::from_millis(100));
    let (before, start) = (time_on_processors(), Instant::now());
    std::thread::sleep(Duration::from_millis(400));
    let (spent, passed) = (time_on_processors() - before, start.elapsed());
    assert!(spent * 100 < passed, "an idle pool ran for {spent:?} of {passed:?}");
    drop(pool);
}
