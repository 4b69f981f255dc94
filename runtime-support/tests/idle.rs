//! What a pool costs while nobody uses it. Alone in its process: other tests have threads, too.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onnxc_runtime_support::Pool;

/// Nanoseconds that each thread of this process but the one that asks has run. They change where a thread ran, on a machine
/// however slow.
fn ran() -> BTreeMap<String, u64> {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let others = tasks.filter(|task| task.file_name() != own.file_name());
    let time = |task: std::path::PathBuf| {
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        Some((task.display().to_string(), text.split_whitespace().next()?.parse().ok()?))
    };
    others.filter_map(time).collect()
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
    // The workers go to sleep, and then none runs: of two readings in a row one has the same times as the one before.
    let mut before = ran();
    assert!(before.len() >= 7, "{before:?}");
    let rests = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let now = ran();
        now == std::mem::replace(&mut before, now.clone())
    });
    assert!(rests, "the threads of an idle pool run on and on: {before:?}");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(ran(), before, "a thread of an idle pool woke up");
    drop(pool);
}
