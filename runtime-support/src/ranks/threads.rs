//! Ranks that are threads of one process.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{
    Communicator, Message, Transport, onnxc_communicator_create, onnxc_communicator_destroy, status,
};

/// Threads that exchange messages.
#[derive(Debug)]
struct Hub {
    timeout: Duration,
    post: Mutex<Post>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Post {
    /// Messages on their way, by who sends and who gets them.
    ways: HashMap<(i64, i64), VecDeque<Vec<u8>>>,
    aborted: bool,
    /// Bytes that each rank has sent.
    sent: HashMap<i64, u64>,
}

impl Hub {
    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(&self, rank: i64, sends: &[(i64, &[u8])], receives: &mut [(i64, &mut [u8])]) -> i32 {
        // Copied before the others wait for the lock.
        let copies: Vec<(i64, Vec<u8>)> = sends.iter().map(|(to, data)| (*to, data.to_vec())).collect();
        let mut post = self.post();
        for (to, copy) in copies {
            *post.sent.entry(rank).or_default() += copy.len() as u64;
            post.ways.entry((rank, to)).or_default().push_back(copy);
        }
        if !sends.is_empty() {
            self.arrived.notify_all();
        }
        let end = Instant::now() + self.timeout;
        for (from, room) in receives {
            let message = loop {
                // What has arrived counts, also where its sender has failed since.
                if let Some(message) = post.ways.get_mut(&(*from, rank)).and_then(VecDeque::pop_front) {
                    break message;
                }
                if post.aborted {
                    return status::RANK_FAILED;
                }
                let now = Instant::now();
                if now >= end {
                    return status::TIMEOUT;
                }
                let waited = self.arrived.wait_timeout(post, end - now);
                post = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            if message.len() != room.len() {
                return status::OTHER_MODEL;
            }
            drop(post);
            room.copy_from_slice(&message);
            post = self.post();
        }
        status::OK
    }
}

/// What the transport of a rank hands back.
#[derive(Debug)]
struct Place {
    hub: Arc<Hub>,
    rank: i64,
}

unsafe extern "C" fn exchange(
    context: *mut c_void,
    sends: *const Message,
    send_count: usize,
    receives: *const Message,
    receive_count: usize,
) -> i32 {
    // SAFETY: the context is a place, and the caller gives that many messages.
    let (place, sends, receives) = unsafe {
        let place = &*context.cast::<Place>();
        (place, messages(sends, send_count), messages(receives, receive_count))
    };
    // SAFETY: each message has that many bytes, those received are written by nobody else.
    let sends: Vec<(i64, &[u8])> = unsafe {
        let part = |message: &Message| std::slice::from_raw_parts(message.data.cast::<u8>(), message.bytes);
        sends.iter().map(|message| (message.rank, part(message))).collect()
    };
    // SAFETY: as above.
    let mut receives: Vec<(i64, &mut [u8])> = unsafe {
        let part =
            |message: &Message| std::slice::from_raw_parts_mut(message.data.cast::<u8>(), message.bytes);
        receives.iter().map(|message| (message.rank, part(message))).collect()
    };
    place.hub.exchange(place.rank, &sends, &mut receives)
}

/// # Safety
/// There are that many messages, unless it is none.
unsafe fn messages<'m>(messages: *const Message, count: usize) -> &'m [Message] {
    match count {
        0 => &[],
        // SAFETY: as the caller says.
        count => unsafe { std::slice::from_raw_parts(messages, count) },
    }
}

unsafe extern "C" fn abort(context: *mut c_void, _status: i32) -> i32 {
    // SAFETY: the context is a place.
    let place = unsafe { &*context.cast::<Place>() };
    place.hub.post().aborted = true;
    place.hub.arrived.notify_all();
    status::OK
}

/// `onnxc_ranks`: communicators for threads of this process, one each.
#[derive(Debug)]
pub struct World {
    hub: Arc<Hub>,
    communicators: Vec<(*mut Communicator, *mut Place)>,
}

// SAFETY: a communicator is used by one thread at a time, as its users promise; what threads share is behind a lock.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// Communicators of this many ranks; one that waits longer than `timeout` for another rank gives a status.
    pub fn new(ranks: usize, timeout: Duration) -> World {
        let hub = Arc::new(Hub { timeout, post: Mutex::default(), arrived: Condvar::new() });
        let member = |rank: usize| {
            let place = Box::into_raw(Box::new(Place { hub: hub.clone(), rank: rank as i64 }));
            let transport =
                Transport { struct_size: size_of::<Transport>(), context: place.cast(), exchange, abort };
            // SAFETY: the transport is valid, and the place outlives the communicator.
            (unsafe { onnxc_communicator_create(&transport, rank as i64, ranks as i64) }, place)
        };
        let communicators = (0..ranks).map(member).collect();
        World { hub, communicators }
    }

    /// That of a rank. One thread at a time may use it.
    pub fn communicator(&self, rank: usize) -> Option<*const Communicator> {
        self.communicators.get(rank).map(|&(communicator, _)| communicator.cast_const())
    }

    /// Bytes that a rank has sent.
    pub fn bytes(&self, rank: usize) -> u64 {
        self.hub.post().sent.get(&(rank as i64)).copied().unwrap_or(0)
    }

    /// Lets all ranks that wait, or will wait, go on with a status.
    pub fn abort(&self) {
        self.hub.post().aborted = true;
        self.hub.arrived.notify_all();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for &(communicator, place) in &self.communicators {
            // SAFETY: they were made for this world, and nobody uses them any more.
            unsafe {
                onnxc_communicator_destroy(communicator);
                drop(Box::from_raw(place));
            }
        }
    }
}

/// `onnxc_ranks_create`: communicators for `size` threads of this process; null where there are none.
#[unsafe(no_mangle)]
pub extern "C" fn onnxc_ranks_create(size: i64, timeout_milliseconds: i64) -> *mut World {
    match (usize::try_from(size), u64::try_from(timeout_milliseconds)) {
        (Ok(size @ 1..=4096), Ok(timeout)) => {
            Box::into_raw(Box::new(World::new(size, Duration::from_millis(timeout))))
        }
        _ => std::ptr::null_mut(),
    }
}

/// `onnxc_ranks_communicator`: that of a rank, for one thread at a time; null where there is no such rank.
///
/// # Safety
/// `ranks` came from [`onnxc_ranks_create`], or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_ranks_communicator(ranks: *const World, rank: i64) -> *const Communicator {
    // SAFETY: as the caller says.
    let world = unsafe { ranks.as_ref() };
    let of = |world: &World| world.communicator(usize::try_from(rank).ok()?);
    world.and_then(of).unwrap_or(std::ptr::null())
}

/// `onnxc_ranks_destroy`
///
/// # Safety
/// `ranks` came from [`onnxc_ranks_create`], and no thread uses its communicators; null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_ranks_destroy(ranks: *mut World) {
    if !ranks.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(ranks) });
    }
}
