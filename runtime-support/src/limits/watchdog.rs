//! Deadlines: a thread that sets the flags of runs that take too long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `onnxc_watchdog`
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    watches: Mutex<Watches>,
    changed: Condvar,
}

#[derive(Default)]
struct Watches {
    /// By the deadline, and by a number of its own.
    pending: BTreeMap<(Instant, u64), Flag>,
    /// Deadlines by number.
    deadlines: BTreeMap<u64, Instant>,
    last: u64,
    ends: bool,
}

/// The flag of a run.
struct Flag(*const AtomicI32);

// SAFETY: the flag is an atomic, which stays until its watch is stopped.
unsafe impl Send for Flag {}

/// A run that is watched, until this is dropped.
pub struct Watch<'w> {
    watchdog: &'w Watchdog,
    number: u64,
}

impl Watchdog {
    /// Fails where the system has no thread.
    pub fn new() -> std::io::Result<Watchdog> {
        let shared = Arc::new(Shared { watches: Mutex::default(), changed: Condvar::new() });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("onnxc-watchdog".into()).spawn(move || own.watch())?;
        Ok(Watchdog { shared, thread: Some(thread) })
    }

    /// Sets `cancel` to 1 when `time` has passed, unless the watch is dropped before.
    pub fn watch<'w>(&'w self, cancel: &'w AtomicI32, time: Duration) -> Watch<'w> {
        Watch { watchdog: self, number: self.start(cancel, time) }
    }

    fn start(&self, cancel: &AtomicI32, time: Duration) -> u64 {
        let mut watches = self.shared.lock();
        watches.last += 1;
        let number = watches.last;
        // A deadline that the clock cannot represent never comes.
        if let Some(deadline) = Instant::now().checked_add(time) {
            let first = watches.pending.first_key_value().is_none_or(|(&(next, _), _)| deadline < next);
            watches.pending.insert((deadline, number), Flag(cancel));
            watches.deadlines.insert(number, deadline);
            if first {
                self.shared.changed.notify_one();
            }
        }
        number
    }

    /// Ends a watch, whose flag is not touched any more. Says whether its time was over.
    fn stop(&self, number: u64) -> bool {
        let mut watches = self.shared.lock();
        let deadline = watches.deadlines.remove(&number);
        deadline.is_some_and(|deadline| watches.pending.remove(&(deadline, number)).is_none())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watch<'_> {
    /// Ends the watch; says whether the flag was set by it.
    pub fn stop(self) -> bool {
        // The drop that follows finds nothing.
        self.watchdog.stop(self.number)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.watchdog.stop(self.number);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Watches> {
        // Nothing panics while it is locked.
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let mut watches = self.lock();
        while !watches.ends {
            let now = Instant::now();
            while let Some(due) = watches.pending.first_entry().filter(|due| due.key().0 <= now) {
                let flag = due.remove();
                // SAFETY: the watch is not stopped, as it is here, and nobody stops it while the lock is held.
                unsafe { &*flag.0 }.store(1, Ordering::Relaxed);
            }
            let next = watches.pending.first_key_value().map(|(&(deadline, _), _)| deadline);
            watches = match next {
                Some(deadline) => {
                    let wait = deadline.saturating_duration_since(now);
                    self.changed.wait_timeout(watches, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(watches).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// `onnxc_watchdog_create`
#[unsafe(no_mangle)]
pub extern "C" fn onnxc_watchdog_create() -> *mut Watchdog {
    Watchdog::new().map_or(std::ptr::null_mut(), |watchdog| Box::into_raw(Box::new(watchdog)))
}

/// `onnxc_watchdog_destroy`
///
/// # Safety
/// `watchdog` is null or came from `onnxc_watchdog_create`, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_watchdog_destroy(watchdog: *mut Watchdog) {
    if !watchdog.is_null() {
        // SAFETY: the caller says so.
        drop(unsafe { Box::from_raw(watchdog) });
    }
}

/// `onnxc_watchdog_start`
///
/// # Safety
/// `watchdog` is null or one; `cancel` is null, or stays until the watch is stopped, and only atomics or runs use it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_watchdog_start(
    watchdog: *mut Watchdog,
    cancel: *mut i32,
    milliseconds: i64,
) -> i64 {
    // SAFETY: the caller says so. An atomic is the same in memory.
    let (watchdog, cancel) = unsafe { (watchdog.as_ref(), cancel.cast::<AtomicI32>().as_ref()) };
    match (watchdog, cancel, u64::try_from(milliseconds)) {
        (Some(watchdog), Some(cancel), Ok(time)) => {
            watchdog.start(cancel, Duration::from_millis(time)) as i64
        }
        _ => 0,
    }
}

/// `onnxc_watchdog_stop`
///
/// # Safety
/// `watchdog` is null or one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_watchdog_stop(watchdog: *mut Watchdog, watch: i64) -> i32 {
    // SAFETY: the caller says so.
    match (unsafe { watchdog.as_ref() }, u64::try_from(watch)) {
        (Some(watchdog), Ok(number)) if number > 0 => i32::from(watchdog.stop(number)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for what must come, however long it takes.
    fn wait_for(flag: &AtomicI32) {
        while flag.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn flags_are_set_when_their_time_is_over() {
        let watchdog = Watchdog::new().unwrap();
        let [now, soon, late, never] = [const { AtomicI32::new(0) }; 4];
        let watch_late = watchdog.watch(&late, Duration::from_secs(3600));
        let watch_never = watchdog.watch(&never, Duration::MAX);
        let watch_now = watchdog.watch(&now, Duration::ZERO);
        let watch_soon = watchdog.watch(&soon, Duration::from_millis(20));
        wait_for(&now);
        wait_for(&soon);
        assert!(watch_now.stop() && watch_soon.stop() && !watch_late.stop());
        drop(watch_never);
        assert_eq!((late.load(Ordering::Relaxed), never.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_watch_that_is_stopped_touches_nothing() {
        let watchdog = Watchdog::new().unwrap();
        for _ in 0..200 {
            let flag = AtomicI32::new(0);
            let watch = watchdog.watch(&flag, Duration::from_micros(50));
            let was_set = watch.stop();
            assert_eq!(was_set, flag.load(Ordering::Relaxed) == 1);
            // Memory of another use by now: the next flag lies there.
        }
    }

    #[test]
    fn many_runs_share_a_watchdog() {
        let watchdog = Watchdog::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for at in 0..50 {
                        let flag = AtomicI32::new(0);
                        let watch = watchdog.watch(&flag, Duration::from_micros(at * 10));
                        wait_for(&flag);
                        assert!(watch.stop());
                    }
                });
            }
        });
    }
}
