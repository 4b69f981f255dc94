//! Ranks: processes or threads that run one model together, each its share. A run of a rank asks for what it needs of the others by an
//! `onnxc_communicator`, a struct of functions. Here is one over any transport, that is, over a function that moves messages between
//! ranks; [`World`] is the transport between threads of one process.
//!
//! A sum is that of the ranks' numbers in the order of the group, for every size: all ranks get the same bits, and so does every
//! transport. A function that fails fails for good: whoever wants to go on makes a new communicator.

mod collectives;
mod reduce;
mod threads;

use std::ffi::c_void;

pub use collectives::{AT_ONCE, Peer};
pub use reduce::{Reduction, combine, element_bytes};
pub use threads::{World, onnxc_ranks_communicator, onnxc_ranks_create, onnxc_ranks_destroy};

/// Statuses of `onnxc.h` that communicators give.
pub mod status {
    pub const OK: i32 = 0;
    pub const NEEDS_COMMUNICATOR: i32 = 21;
    pub const WRONG_RANK: i32 = 22;
    pub const OTHER_MODEL: i32 = 23;
    pub const TIMEOUT: i32 = 24;
    pub const RANK_FAILED: i32 = 25;
    pub const EXCHANGE_FAILED: i32 = 26;
}

/// Ranks that take part in an exchange: `first`, `first + stride`, and so on, `count` of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RankGroup {
    pub first: i64,
    pub stride: i64,
    pub count: i64,
}

impl RankGroup {
    pub fn all(ranks: i64) -> RankGroup {
        RankGroup { first: 0, stride: 1, count: ranks }
    }

    pub fn ranks(self) -> impl Iterator<Item = i64> {
        (0..self.count).map(move |at| self.first + at * self.stride)
    }

    /// The place of a rank in the group.
    pub fn place(self, rank: i64) -> Option<usize> {
        self.ranks().position(|member| member == rank)
    }
}

type All = unsafe extern "C" fn(*mut c_void, i64, i64, i64, i64, i64, *const c_void, *mut c_void, i64) -> i32;
type Parts =
    unsafe extern "C" fn(*mut c_void, i64, i64, i64, i64, *const c_void, *mut c_void, *const i64) -> i32;
type Scattered =
    unsafe extern "C" fn(*mut c_void, i64, i64, i64, i64, i64, *const c_void, *mut c_void, *const i64) -> i32;
type Exchanged = unsafe extern "C" fn(
    *mut c_void,
    i64,
    i64,
    i64,
    i64,
    *const c_void,
    *const i64,
    *mut c_void,
    *const i64,
) -> i32;

/// `onnxc_communicator`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Communicator {
    pub struct_size: usize,
    pub context: *mut c_void,
    pub rank: i64,
    pub size: i64,
    pub begin: unsafe extern "C" fn(*mut c_void, i64) -> i32,
    pub all_reduce: All,
    pub all_gather: Parts,
    pub reduce_scatter: Scattered,
    pub broadcast:
        unsafe extern "C" fn(*mut c_void, i64, i64, i64, i64, *const c_void, *mut c_void, i64) -> i32,
    pub all_to_all: Exchanged,
    pub send: unsafe extern "C" fn(*mut c_void, i64, *const c_void, i64) -> i32,
    pub receive: unsafe extern "C" fn(*mut c_void, i64, *mut c_void, i64) -> i32,
    pub abort: unsafe extern "C" fn(*mut c_void, i32) -> i32,
}

/// `onnxc_message`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    pub rank: i64,
    pub data: *mut c_void,
    pub bytes: usize,
}

/// `onnxc_transport`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Transport {
    pub struct_size: usize,
    pub context: *mut c_void,
    pub exchange: unsafe extern "C" fn(*mut c_void, *const Message, usize, *const Message, usize) -> i32,
    pub abort: unsafe extern "C" fn(*mut c_void, i32) -> i32,
}

/// A communicator with what stands behind it.
#[repr(C)]
struct Owned {
    communicator: Communicator,
    peer: Peer,
}

/// `onnxc_communicator_create`: a communicator of rank `rank` of `size` over a transport; null where the numbers are not those of a rank.
///
/// # Safety
/// The transport is valid, and its context outlives the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_communicator_create(
    transport: *const Transport,
    rank: i64,
    size: i64,
) -> *mut Communicator {
    if transport.is_null() || size < 1 || !(0..size).contains(&rank) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller says that it is valid.
    let transport = unsafe { *transport };
    if transport.struct_size < size_of::<Transport>() {
        return std::ptr::null_mut();
    }
    let communicator = Communicator {
        struct_size: size_of::<Communicator>(),
        context: std::ptr::null_mut(),
        rank,
        size,
        begin,
        all_reduce,
        all_gather,
        reduce_scatter,
        broadcast,
        all_to_all,
        send,
        receive,
        abort,
    };
    let owned = Box::into_raw(Box::new(Owned { communicator, peer: Peer::new(transport, rank, size) }));
    // SAFETY: it was made just now.
    unsafe {
        (*owned).communicator.context = (&raw mut (*owned).peer).cast();
    }
    owned.cast()
}

/// `onnxc_communicator_destroy`
///
/// # Safety
/// The communicator came from [`onnxc_communicator_create`] and is not used any more; null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_communicator_destroy(communicator: *mut Communicator) {
    if !communicator.is_null() {
        // SAFETY: it is the first field of what was made there.
        drop(unsafe { Box::from_raw(communicator.cast::<Owned>()) });
    }
}

fn given(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(status::OK)
}

/// # Safety
/// `context` is that of a communicator which no other thread uses now.
unsafe fn peer<'p>(context: *mut c_void) -> &'p mut Peer {
    // SAFETY: as the caller says.
    unsafe { &mut *context.cast::<Peer>() }
}

/// # Safety
/// There are that many readable elements, unless it is none.
unsafe fn slice<'s, T>(data: *const c_void, count: usize) -> &'s [T] {
    match count {
        0 => &[],
        // SAFETY: as the caller says.
        count => unsafe { std::slice::from_raw_parts(data.cast(), count) },
    }
}

/// # Safety
/// There are that many writable bytes which nothing else uses, unless it is none.
unsafe fn slice_mut<'s>(data: *mut c_void, count: usize) -> &'s mut [u8] {
    match count {
        0 => &mut [],
        // SAFETY: as the caller says.
        count => unsafe { std::slice::from_raw_parts_mut(data.cast(), count) },
    }
}

/// A product of sizes, or the status of one that is none.
fn size(count: i64, bytes: i64) -> Result<usize, i32> {
    let size = count.checked_mul(bytes).and_then(|size| usize::try_from(size).ok());
    size.ok_or(status::EXCHANGE_FAILED)
}

unsafe extern "C" fn begin(context: *mut c_void, plan: i64) -> i32 {
    // SAFETY: the run hands over the communicator's context.
    given(unsafe { peer(context) }.begin(plan))
}

unsafe extern "C" fn all_reduce(
    context: *mut c_void,
    first: i64,
    stride: i64,
    count: i64,
    reduction: i64,
    dtype: i64,
    from: *const c_void,
    to: *mut c_void,
    elements: i64,
) -> i32 {
    let run = || {
        let (reduction, width) = reduce::checked(reduction, dtype)?;
        let bytes = size(elements, width as i64)?;
        // SAFETY: the caller gives room for that many elements.
        let (peer, from, to) = unsafe { (peer(context), slice(from, bytes), slice_mut(to, bytes)) };
        peer.all_reduce(RankGroup { first, stride, count }, reduction, dtype as i32, from, to)
    };
    given(run())
}

/// Sums up counts of parts, with room for their bytes.
unsafe fn counts<'c>(counts: *const i64, members: i64) -> Result<&'c [i64], i32> {
    // SAFETY: the caller gives one for each member.
    let counts: &[i64] = unsafe { slice(counts.cast(), size(members, 1)?) };
    match counts.iter().all(|&count| count >= 0) {
        true => Ok(counts),
        false => Err(status::EXCHANGE_FAILED),
    }
}

fn total(counts: &[i64], width: i64) -> Result<usize, i32> {
    let sum = counts.iter().try_fold(0i64, |sum, &count| sum.checked_add(count));
    size(sum.ok_or(status::EXCHANGE_FAILED)?, width)
}

unsafe extern "C" fn all_gather(
    context: *mut c_void,
    first: i64,
    stride: i64,
    count: i64,
    width: i64,
    from: *const c_void,
    to: *mut c_void,
    parts: *const i64,
) -> i32 {
    let run = || {
        let group = RankGroup { first, stride, count };
        // SAFETY: the caller gives a count for each member, and room for the parts.
        let (peer, parts) = unsafe { (peer(context), counts(parts, count)?) };
        let own = group.place(peer.rank()).ok_or(status::EXCHANGE_FAILED)?;
        let (own, all) = (size(parts[own], width)?, total(parts, width)?);
        // SAFETY: as above.
        let (from, to) = unsafe { (slice(from, own), slice_mut(to, all)) };
        peer.all_gather(group, width as usize, parts, from, to)
    };
    given(run())
}

unsafe extern "C" fn reduce_scatter(
    context: *mut c_void,
    first: i64,
    stride: i64,
    count: i64,
    reduction: i64,
    dtype: i64,
    from: *const c_void,
    to: *mut c_void,
    parts: *const i64,
) -> i32 {
    let run = || {
        let (reduction, width) = reduce::checked(reduction, dtype)?;
        let group = RankGroup { first, stride, count };
        // SAFETY: the caller gives a count for each member, and room for the parts.
        let (peer, parts) = unsafe { (peer(context), counts(parts, count)?) };
        let own = group.place(peer.rank()).ok_or(status::EXCHANGE_FAILED)?;
        let (own, all) = (size(parts[own], width as i64)?, total(parts, width as i64)?);
        // SAFETY: as above.
        let (from, to) = unsafe { (slice(from, all), slice_mut(to, own)) };
        peer.reduce_scatter(group, reduction, dtype as i32, parts, from, to)
    };
    given(run())
}

unsafe extern "C" fn broadcast(
    context: *mut c_void,
    first: i64,
    stride: i64,
    count: i64,
    root: i64,
    from: *const c_void,
    to: *mut c_void,
    bytes: i64,
) -> i32 {
    let run = || {
        let bytes = size(bytes, 1)?;
        let group = RankGroup { first, stride, count };
        // SAFETY: the caller gives room, and the root the bytes.
        let (peer, to) = unsafe { (peer(context), slice_mut(to, bytes)) };
        let is_root = group.place(peer.rank()) == usize::try_from(root).ok();
        // SAFETY: as above.
        let from = is_root.then(|| unsafe { slice(from, bytes) });
        peer.broadcast(group, root, from, to)
    };
    given(run())
}

unsafe extern "C" fn all_to_all(
    context: *mut c_void,
    first: i64,
    stride: i64,
    count: i64,
    width: i64,
    from: *const c_void,
    sent: *const i64,
    to: *mut c_void,
    received: *const i64,
) -> i32 {
    let run = || {
        // SAFETY: the caller gives counts for each member, and room for the parts.
        let (sent, received) = unsafe { (counts(sent, count)?, counts(received, count)?) };
        let (given, got) = (total(sent, width)?, total(received, width)?);
        // SAFETY: as above.
        let (peer, from, to) = unsafe { (peer(context), slice(from, given), slice_mut(to, got)) };
        peer.all_to_all(RankGroup { first, stride, count }, width as usize, (from, sent), (to, received))
    };
    given(run())
}

unsafe extern "C" fn send(context: *mut c_void, to: i64, data: *const c_void, bytes: i64) -> i32 {
    let run = || {
        let bytes = size(bytes, 1)?;
        // SAFETY: the caller gives that many bytes.
        unsafe { peer(context).send(to, slice(data, bytes)) }
    };
    given(run())
}

unsafe extern "C" fn receive(context: *mut c_void, from: i64, data: *mut c_void, bytes: i64) -> i32 {
    let run = || {
        let bytes = size(bytes, 1)?;
        // SAFETY: the caller gives room for that many bytes.
        unsafe { peer(context).receive(from, slice_mut(data, bytes)) }
    };
    given(run())
}

unsafe extern "C" fn abort(context: *mut c_void, status: i32) -> i32 {
    // SAFETY: the run hands over the communicator's context.
    unsafe { peer(context) }.abort(status);
    status::OK
}

#[cfg(test)]
mod tests;
