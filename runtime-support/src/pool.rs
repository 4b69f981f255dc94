//! The default thread pool. A loop is cut into one part per thread; the caller runs the first part itself and
//! waits for the others. Workers look for the next loop for some microseconds, then sleep: kernels of one
//! run follow each other closely, and an idle pool costs nothing.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use crate::abi::RangeFn;

/// Looks for new work before a thread sleeps; some 20 microseconds.
const SPINS: u32 = 2000;

/// A loop, given to all threads at once.
#[derive(Clone, Copy)]
struct Loop {
    begin: i64,
    end: i64,
    body: RangeFn,
    job: *mut c_void,
}

unsafe impl Send for Loop {}

struct Shared {
    threads: usize,
    /// Changes with every loop, and when the pool ends.
    epoch: AtomicU64,
    /// Workers that have not finished the current loop.
    running: AtomicUsize,
    result: AtomicI32,
    state: Mutex<State>,
    /// A loop has come, or the end.
    work: Condvar,
    /// The last worker has finished.
    done: Condvar,
}

struct State {
    current: Option<Loop>,
    ending: bool,
}

/// A pool of threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose loop runs.
    turn: Mutex<()>,
}

thread_local! {
    /// Whether this thread runs a part of some loop: a loop inside it runs right here.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; 0 takes one per processor.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, |count| count.get()),
            count => count,
        };
        let shared = Arc::new(Shared {
            threads,
            epoch: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            result: AtomicI32::new(0),
            state: Mutex::new(State { current: None, ending: false }),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: vec![], turn: Mutex::new(()) };
        for number in 1..threads {
            let shared = pool.shared.clone();
            let worker = thread::Builder::new().name(format!("onnxc-{number}"));
            // Dropping the pool ends the threads that exist if one more is refused.
            pool.workers.push(worker.spawn(move || shared.worker(number))?);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `body` over `begin..end`, one part per thread; 0, or the result of the first part that failed.
    ///
    /// # Safety
    /// `body` may be called with `job` from any thread, for disjoint parts at once, until this returns.
    pub unsafe fn parallel_for(&self, begin: i64, end: i64, body: RangeFn, job: *mut c_void) -> i32 {
        if begin >= end {
            return 0;
        }
        let whole = Loop { begin, end, body, job };
        let small = end.saturating_sub(begin) == 1 || self.workers.is_empty();
        if small || INSIDE.get() {
            return unsafe { body(job, begin, end) };
        }
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.result.store(0, Ordering::Relaxed);
        shared.running.store(self.workers.len(), Ordering::Relaxed);
        {
            // The epoch changes under the lock, or a worker about to sleep could miss it.
            let mut state = lock(&shared.state);
            state.current = Some(whole);
            shared.epoch.fetch_add(1, Ordering::Release);
        }
        shared.work.notify_all();
        shared.part(whole, 0);
        shared.wait();
        shared.result.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.shared.state);
            state.ending = true;
            self.shared.epoch.fetch_add(1, Ordering::Release);
        }
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker ends only by returning.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs part `number` of a loop.
    fn part(&self, whole: Loop, number: usize) {
        let (extent, threads) = (i128::from(whole.end) - i128::from(whole.begin), self.threads as i128);
        let cut = |at: i128| whole.begin + (extent * at / threads) as i64;
        let (begin, end) = (cut(number as i128), cut(number as i128 + 1));
        if begin < end {
            INSIDE.set(true);
            let result = unsafe { (whole.body)(whole.job, begin, end) };
            INSIDE.set(false);
            if result != 0 {
                let _ = self.result.compare_exchange(0, result, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn worker(&self, number: usize) {
        let mut seen = 0;
        loop {
            for _ in 0..SPINS {
                if self.epoch.load(Ordering::Acquire) != seen {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut state = lock(&self.state);
            while self.epoch.load(Ordering::Acquire) == seen {
                state = self.work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            seen = self.epoch.load(Ordering::Acquire);
            if state.ending {
                return;
            }
            let current = state.current;
            drop(state);
            if let Some(whole) = current {
                self.part(whole, number);
            }
            if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Under the lock, or the caller could miss it between its look and its sleep.
                let _state = lock(&self.state);
                self.done.notify_all();
            }
        }
    }

    /// Waits until all workers have finished the current loop.
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut state = lock(&self.state);
        while self.running.load(Ordering::Acquire) != 0 {
            state = self.done.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// `onnxc_pool_create`: null if the system refuses.
#[unsafe(no_mangle)]
pub extern "C" fn onnxc_pool_create(threads: i64) -> *mut Pool {
    match usize::try_from(threads).ok().map(Pool::new) {
        Some(Ok(pool)) => Box::into_raw(Box::new(pool)),
        _ => std::ptr::null_mut(),
    }
}

/// `onnxc_pool_destroy`
///
/// # Safety
/// `pool` is null or came from [`onnxc_pool_create`], and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_destroy(pool: *mut Pool) {
    if !pool.is_null() {
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// `onnxc_pool_threads`
///
/// # Safety
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_threads(pool: *const Pool) -> i64 {
    unsafe { pool.as_ref() }.map_or(1, |pool| pool.threads() as i64)
}

/// `onnxc_pool_parallel_for`; without a pool everything runs here.
///
/// # Safety
/// `pool` is null or a live pool; `body` as in [`Pool::parallel_for`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_parallel_for(
    pool: *mut c_void,
    begin: i64,
    end: i64,
    body: Option<RangeFn>,
    job: *mut c_void,
) -> i32 {
    let Some(body) = body else { return 0 };
    match unsafe { pool.cast::<Pool>().as_ref() } {
        Some(pool) => unsafe { pool.parallel_for(begin, end, body, job) },
        None if begin < end => unsafe { body(job, begin, end) },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    unsafe extern "C" fn count(job: *mut c_void, begin: i64, end: i64) -> i32 {
        let cells = unsafe { std::slice::from_raw_parts(job.cast::<AtomicU32>(), 1000) };
        for cell in &cells[begin as usize..end as usize] {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        0
    }

    unsafe extern "C" fn fail_at_the_end(_job: *mut c_void, _begin: i64, end: i64) -> i32 {
        if end == 100 { 7 } else { 0 }
    }

    #[test]
    fn every_index_runs_once_whatever_the_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            let cells: Vec<AtomicU32> = (0..1000).map(|_| AtomicU32::new(0)).collect();
            for round in 1..200 {
                let size = [1000, 1, 2, 7][round as usize % 4];
                let result = unsafe { pool.parallel_for(0, size, count, cells.as_ptr() as *mut c_void) };
                assert_eq!(result, 0);
            }
            let rounds_of = |sizes: &[usize]| (1..200).filter(|r| sizes.contains(&(r % 4))).count() as u32;
            assert_eq!(cells[999].load(Ordering::Relaxed), rounds_of(&[0]));
            assert_eq!(cells[6].load(Ordering::Relaxed), rounds_of(&[0, 3]));
            assert_eq!(cells[0].load(Ordering::Relaxed), 199);
        }
    }

    #[test]
    fn a_failure_reaches_the_caller_and_callers_may_share_a_pool() {
        let pool = Pool::new(4).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let job = std::ptr::null_mut();
                        assert_eq!(unsafe { pool.parallel_for(0, 100, fail_at_the_end, job) }, 7);
                        assert_eq!(unsafe { pool.parallel_for(0, 99, fail_at_the_end, job) }, 0);
                    }
                });
            }
        });
    }
}
