//! The default thread pool. A loop is cut into one share per thread, and a share into a few parts, each half as long as
//! the one before, by its range and the number of threads alone. Every thread runs the parts of its own share first, then
//! parts that others have not begun: a thread that wakes late, or that the system runs elsewhere for a while, holds nobody
//! up, and the caller never waits for a thread that still sleeps.
//!
//! Workers look for the next loop for some microseconds, then sleep: kernels of one run follow each other closely, and
//! an idle pool costs nothing.
//!
//! A child of `fork` has the pools of its parent without their threads, and perhaps with their locks held. There, loops
//! run on the thread that calls, and the end of a pool touches nothing of it.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::abi::RangeFn;

/// How long a thread looks for something before it sleeps: longer than what a model does between two loops.
const PATIENCE: Duration = Duration::from_micros(50);

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// Parts of a thread's share, at most.
const PARTS: u32 = 8;

/// How many parts of a share nobody has begun, below the number of the loop (see [`Shared::epoch`]). Alone on its cache
/// lines, as every part taken writes it.
#[repr(align(128))]
struct Ticket(AtomicU64);

/// Bits of a ticket for the parts.
const PART_BITS: u32 = 8;

struct Shared {
    tickets: Vec<Ticket>,
    /// The number of the loop that runs or ran last.
    epoch: AtomicU64,
    /// That loop. Only who holds one of its parts reads this: it does not change before all parts are done.
    begin: AtomicI64,
    end: AtomicI64,
    body: AtomicPtr<c_void>,
    job: AtomicPtr<c_void>,
    /// Parts that are not done.
    open: AtomicUsize,
    result: AtomicI32,
    /// Workers that sleep, or are about to.
    sleepers: AtomicUsize,
    /// Whether the caller sleeps, or is about to.
    caller_sleeps: AtomicBool,
    ending: AtomicBool,
    /// Held between the last look before a sleep and the sleep.
    door: Mutex<()>,
    /// A loop has come, or the end.
    work: Condvar,
    /// The last part is done.
    done: Condvar,
}

/// A pool of threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose loop runs.
    turn: Mutex<()>,
    /// What [`FORKS`] was when the threads began.
    forks: usize,
}

/// How many times a process was forked into a child since the first pool, on the way to this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Begins to count [`FORKS`].
#[cfg(unix)]
fn watch_forks() -> std::io::Result<()> {
    unsafe extern "C" {
        // <pthread.h>
        fn pthread_atfork(
            prepare: Option<unsafe extern "C" fn()>,
            parent: Option<unsafe extern "C" fn()>,
            child: Option<unsafe extern "C" fn()>,
        ) -> i32;
    }
    unsafe extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static RESULT: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler only counts, which is allowed in a process that has just been forked.
    match *RESULT.get_or_init(|| unsafe { pthread_atfork(None, None, Some(in_child)) }) {
        0 => Ok(()),
        error => Err(std::io::Error::from_raw_os_error(error)),
    }
}

#[cfg(not(unix))]
fn watch_forks() -> std::io::Result<()> {
    Ok(())
}

thread_local! {
    /// Whether this thread runs a part of some loop: a loop inside it runs right here.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Looks whether `ready` for a while.
fn look(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now.duration_since(*start.get_or_insert(now)) > PATIENCE {
            return false;
        }
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; 0 takes one per processor.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, |count| count.get()),
            count => count,
        };
        // More would be refused one by one, after much work.
        if threads > 1 << 16 {
            return Err(std::io::Error::other(format!("a pool of {threads} threads")));
        }
        watch_forks()?;
        let shared = Arc::new(Shared {
            tickets: (0..threads).map(|_| Ticket(AtomicU64::new(0))).collect(),
            epoch: AtomicU64::new(0),
            begin: AtomicI64::new(0),
            end: AtomicI64::new(0),
            body: AtomicPtr::new(std::ptr::null_mut()),
            job: AtomicPtr::new(std::ptr::null_mut()),
            open: AtomicUsize::new(0),
            result: AtomicI32::new(0),
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            door: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut pool =
            Pool { shared, workers: vec![], turn: Mutex::new(()), forks: FORKS.load(Ordering::Relaxed) };
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
        self.shared.threads()
    }

    /// Whether the threads are those of another process, which was forked into this one.
    fn is_inherited(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Runs `body` over disjoint parts of `begin..end`; 0, or the result of a part that failed. Loops of several callers
    /// take turns; a loop inside a part of another runs on that part's thread.
    ///
    /// # Safety
    /// `body` may be called with `job` from any thread, for disjoint parts at once, until this returns.
    pub unsafe fn parallel_for(&self, begin: i64, end: i64, body: RangeFn, job: *mut c_void) -> i32 {
        if begin >= end {
            return 0;
        }
        let small = end.saturating_sub(begin) == 1 || self.workers.is_empty();
        if small || INSIDE.get() || self.is_inherited() {
            // SAFETY: the caller vouches for it.
            return unsafe { body(job, begin, end) };
        }
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.begin.store(begin, Ordering::Relaxed);
        shared.end.store(end, Ordering::Relaxed);
        shared.body.store(body as *mut c_void, Ordering::Relaxed);
        shared.job.store(job, Ordering::Relaxed);
        shared.result.store(0, Ordering::Relaxed);
        let open: usize = (0..shared.threads()).map(|share| shared.parts(share)).sum();
        shared.open.store(open, Ordering::Relaxed);
        let epoch = shared.epoch.load(Ordering::Relaxed) + 1;
        for (share, ticket) in shared.tickets.iter().enumerate() {
            // Whoever takes a part of this loop sees the stores above.
            ticket.0.store(epoch << PART_BITS | shared.parts(share) as u64, Ordering::Release);
        }
        shared.epoch.store(epoch, Ordering::Release);
        shared.wake(open - 1);
        shared.work_on(epoch, 0);
        shared.wait();
        shared.result.load(Ordering::Relaxed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_inherited() {
            // There is nothing to wait for, and no thread that the handles name.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        {
            let _door = lock(&self.shared.door);
            self.shared.ending.store(true, Ordering::Release);
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
    fn threads(&self) -> usize {
        self.tickets.len()
    }

    /// Wakes at most `most` sleeping workers.
    fn wake(&self, most: usize) {
        // Either a worker about to sleep sees the loop, or it is seen here.
        fence(Ordering::SeqCst);
        let sleepers = self.sleepers.load(Ordering::Relaxed).min(most);
        if sleepers > 0 {
            drop(lock(&self.door));
            (0..sleepers).for_each(|_| self.work.notify_one());
        }
    }

    /// Runs parts of loop `epoch` while there are any that nobody has begun, of share `own` first.
    fn work_on(&self, epoch: u64, own: usize) {
        INSIDE.set(true);
        for share in (own..self.threads()).chain(0..own) {
            while let Some(part) = self.take(epoch, share) {
                self.part(share, part);
            }
        }
        INSIDE.set(false);
    }

    /// The next part of a share of loop `epoch`, which is then the caller's to run.
    fn take(&self, epoch: u64, share: usize) -> Option<usize> {
        let ticket = &self.tickets[share].0;
        let mut seen = ticket.load(Ordering::Acquire);
        loop {
            let left = (seen & ((1 << PART_BITS) - 1)) as usize;
            if seen >> PART_BITS != epoch || left == 0 {
                return None;
            }
            match ticket.compare_exchange_weak(seen, seen - 1, Ordering::Acquire, Ordering::Acquire) {
                // From here on the loop cannot end, and its range may be read.
                Ok(_) => return Some(self.parts(share) - left),
                Err(now) => seen = now,
            }
        }
    }

    fn range(&self) -> (i128, i128) {
        let at = |end: &AtomicI64| i128::from(end.load(Ordering::Relaxed));
        (at(&self.begin), at(&self.end))
    }

    fn share(&self, share: usize) -> (i128, i128) {
        let ((begin, end), threads) = (self.range(), self.threads() as i128);
        let at = |share: usize| begin + (end - begin) * share as i128 / threads;
        (at(share), at(share + 1))
    }

    /// Parts of a share.
    fn parts(&self, share: usize) -> usize {
        let (begin, end) = self.share(share);
        (i128::BITS - (end - begin).leading_zeros()).min(PARTS) as usize
    }

    /// Where a part of a share begins. Each but the last is half of what is left: few calls in all, and the last ones so
    /// short that all threads are done at about the same time, even if one is slower or held up.
    fn part_begin(&self, share: usize, part: usize) -> i128 {
        let (begin, end) = self.share(share);
        if part == self.parts(share) { end } else { end - ((end - begin) >> part) }
    }

    /// Runs a part that was taken.
    fn part(&self, share: usize, part: usize) {
        let at = |part| self.part_begin(share, part) as i64;
        // SAFETY: `parallel_for` stored a function of this type.
        let body = unsafe { std::mem::transmute::<*mut c_void, RangeFn>(self.body.load(Ordering::Relaxed)) };
        // SAFETY: the caller of `parallel_for` vouches for it, and does not return before this part is done.
        let result = unsafe { body(self.job.load(Ordering::Relaxed), at(part), at(part + 1)) };
        if result != 0 {
            let _ = self.result.compare_exchange(0, result, Ordering::Relaxed, Ordering::Relaxed);
        }
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Either the caller about to sleep sees that all is done, or it is seen here.
            fence(Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::Relaxed) {
                drop(lock(&self.door));
                self.done.notify_all();
            }
        }
    }

    fn worker(&self, number: usize) {
        let mut seen = 0;
        loop {
            let news = || self.epoch.load(Ordering::Acquire) != seen;
            if !look(news) {
                let mut door = lock(&self.door);
                self.sleepers.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                while !news() {
                    door = self.work.wait(door).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
                self.sleepers.fetch_sub(1, Ordering::Relaxed);
            }
            seen = self.epoch.load(Ordering::Acquire);
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            self.work_on(seen, number);
        }
    }

    /// Waits until all parts are done.
    fn wait(&self) {
        let done = || self.open.load(Ordering::Acquire) == 0;
        if look(done) {
            return;
        }
        let mut door = lock(&self.door);
        self.caller_sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !done() {
            door = self.done.wait(door).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.caller_sleeps.store(false, Ordering::Relaxed);
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
        // SAFETY: the caller says that it came from `onnxc_pool_create`, which made it of a box.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// `onnxc_pool_threads`
///
/// # Safety
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_pool_threads(pool: *const Pool) -> i64 {
    // SAFETY: the caller says that it is null or alive.
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
    // SAFETY: the caller says that it is null or alive.
    match unsafe { pool.cast::<Pool>().as_ref() } {
        // SAFETY: the caller vouches for `body`, here and below.
        Some(pool) => unsafe { pool.parallel_for(begin, end, body, job) },
        // SAFETY: as above.
        None if begin < end => unsafe { body(job, begin, end) },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    unsafe extern "C" fn count(job: *mut c_void, begin: i64, end: i64) -> i32 {
        // SAFETY: the tests pass an array of 1000.
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
                // SAFETY: the cells outlive the loop; likewise in the other tests for what their bodies use.
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
    fn shares_and_parts_cover_any_range_in_order() {
        let pool = Pool::new(3).unwrap();
        let seen = Mutex::new(vec![]);
        unsafe extern "C" fn note(job: *mut c_void, begin: i64, end: i64) -> i32 {
            // SAFETY: the job is the list below.
            let seen = unsafe { &*job.cast::<Mutex<Vec<(i64, i64)>>>() };
            lock(seen).push((begin, end));
            0
        }
        let most = i64::MAX;
        for (begin, end) in [(0, 2), (0, 3), (5, 9), (-7, 100), (0, 1_000_003), (-most, most)] {
            let job = (&raw const seen).cast_mut().cast();
            // SAFETY: the list outlives the loop.
            assert_eq!(unsafe { pool.parallel_for(begin, end, note, job) }, 0);
            let mut parts = std::mem::take(&mut *lock(&seen));
            parts.sort();
            assert!(parts.len() <= 3 * PARTS as usize && parts.iter().all(|(begin, end)| begin < end));
            assert_eq!((parts[0].0, parts[parts.len() - 1].1), (begin, end));
            assert!(parts.windows(2).all(|pair| pair[0].1 == pair[1].0), "{parts:?}");
            if (begin, end) == (-7, 100) {
                let lengths: Vec<i64> = parts.iter().map(|(begin, end)| end - begin).collect();
                assert_eq!(
                    lengths[..6],
                    [18, 9, 4, 2, 1, 1],
                    "each part but the last is half of what is left"
                );
            }
        }
        for end in [4, -4] {
            // SAFETY: nothing is called for no range.
            assert_eq!(unsafe { pool.parallel_for(4, end, note, std::ptr::null_mut()) }, 0);
        }
    }

    #[test]
    fn a_loop_inside_a_loop_runs_on_its_own_thread() {
        struct Both {
            pool: Pool,
            turns: AtomicU32,
        }
        unsafe extern "C" fn inner(job: *mut c_void, begin: i64, end: i64) -> i32 {
            // SAFETY: the job is the value below, which outlives the loops.
            let both = unsafe { &*job.cast::<Both>() };
            both.turns.fetch_add((end - begin) as u32, Ordering::Relaxed);
            i32::from((begin, end) != (0, 10))
        }
        unsafe extern "C" fn outer(job: *mut c_void, begin: i64, end: i64) -> i32 {
            // SAFETY: as in `inner`, for both.
            let both = unsafe { &*job.cast::<Both>() };
            // SAFETY: as above.
            (begin..end).map(|_| unsafe { both.pool.parallel_for(0, 10, inner, job) }).sum()
        }
        let both = Both { pool: Pool::new(3).unwrap(), turns: AtomicU32::new(0) };
        for _ in 0..100 {
            let job = (&raw const both).cast_mut().cast();
            // SAFETY: the job outlives the loop.
            assert_eq!(unsafe { both.pool.parallel_for(0, 30, outer, job) }, 0);
        }
        assert_eq!(both.turns.load(Ordering::Relaxed), 30_000);
    }

    #[test]
    fn sleeping_workers_are_woken_and_late_ones_hold_nobody_up() {
        let pool = Pool::new(5).unwrap();
        let cells: Vec<AtomicU32> = (0..1000).map(|_| AtomicU32::new(0)).collect();
        for round in 0..60 {
            // From "all awake" to "all asleep".
            thread::sleep(Duration::from_micros(5 * round));
            // SAFETY: the cells outlive the loop.
            assert_eq!(unsafe { pool.parallel_for(0, 1000, count, cells.as_ptr() as *mut c_void) }, 0);
        }
        assert!(cells.iter().all(|cell| cell.load(Ordering::Relaxed) == 60));
    }

    #[test]
    fn a_failure_reaches_the_caller_and_callers_may_share_a_pool() {
        let pool = Pool::new(4).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let job = std::ptr::null_mut();
                        for (end, result) in [(100, 7), (99, 0)] {
                            // SAFETY: the body does not use its job.
                            assert_eq!(unsafe { pool.parallel_for(0, end, fail_at_the_end, job) }, result);
                        }
                    }
                });
            }
        });
    }
}
