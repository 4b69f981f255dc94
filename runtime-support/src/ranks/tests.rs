//! Exchanges of threads, against what they are to give.

use std::ffi::c_void;
use std::time::Duration;

use super::*;

const FLOAT: i64 = 1;

/// A time that no rank waits for, on however slow a machine.
const HANG: Duration = Duration::from_secs(45 * 60);

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
}

/// Runs a function on each rank; gives what they return.
fn on_all<T: Send>(world: &World, ranks: usize, run: impl Fn(usize, &Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let run = &run;
                scope.spawn(move || {
                    // SAFETY: each thread has that of its own rank.
                    run(rank, unsafe { &*world.communicator(rank).expect("there is such a rank") })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn pointer<T>(data: &[T]) -> *const c_void {
    data.as_ptr().cast()
}

#[test]
fn sums_are_those_in_order_on_all_ranks() {
    for (ranks, elements) in [(1, 3), (2, 0), (2, 5), (3, 7), (4, 1), (3, 5001), (4, 20000), (4, 2)] {
        let world = World::new(ranks, HANG);
        let of = |rank: usize| -> Vec<f32> {
            (0..elements).map(|at| 0.1 * (at * 7 + rank * 13) as f32 - 0.3).collect()
        };
        let wanted: Vec<f32> = (0..elements)
            .map(|at| (1..ranks).fold(of(0)[at], |sum, rank| sum + (0.1 * (at * 7 + rank * 13) as f32 - 0.3)))
            .collect();
        let results = on_all(&world, ranks, |rank, c| {
            let (from, mut to) = (bytes(&of(rank)), vec![0; 4 * elements]);
            // SAFETY: the buffers have that many elements.
            let status = unsafe {
                (c.all_reduce)(
                    c.context,
                    0,
                    1,
                    ranks as i64,
                    Reduction::Sum as i64,
                    FLOAT,
                    pointer(&from),
                    to.as_mut_ptr().cast(),
                    elements as i64,
                )
            };
            assert_eq!(status, status::OK);
            floats(&to)
        });
        results.iter().for_each(|result| assert_eq!(*result, wanted, "{ranks} ranks, {elements} elements"));
    }
}

#[test]
fn uneven_parts_are_gathered_scattered_and_exchanged_in_groups() {
    // Two groups of two: 0 and 2, 1 and 3. Parts of 3 and 0 elements.
    let world = World::new(4, HANG);
    let results = on_all(&world, 4, |rank, c| {
        let (first, place) = ((rank % 2) as i64, rank / 2);
        let parts = [3i64, 0];
        let own: Vec<f32> = (0..parts[place]).map(|at| (10 * rank) as f32 + at as f32).collect();
        let (from, mut all) = (bytes(&own), vec![0; 12]);
        // SAFETY: the buffers are as long as the parts say.
        let gathered = unsafe {
            (c.all_gather)(c.context, first, 2, 2, 4, pointer(&from), all.as_mut_ptr().cast(), parts.as_ptr())
        };
        assert_eq!(gathered, status::OK);
        let mut share = vec![0; 4 * parts[place] as usize];
        // SAFETY: as above.
        let scattered = unsafe {
            let (sum, to) = (Reduction::Sum as i64, share.as_mut_ptr().cast());
            (c.reduce_scatter)(c.context, first, 2, 2, sum, FLOAT, pointer(&all), to, parts.as_ptr())
        };
        assert_eq!(scattered, status::OK);
        // Rank of place p sends p + 1 elements to the first, p + 2 to the second.
        let sent = [place as i64 + 1, place as i64 + 2];
        let received = [place as i64 + 1, place as i64 + 2];
        let given: Vec<f32> = (0..sent[0] + sent[1]).map(|at| (100 * rank) as f32 + at as f32).collect();
        let (given, mut got) = (bytes(&given), vec![0; 4 * (received[0] + received[1]) as usize]);
        // SAFETY: as above.
        let exchanged = unsafe {
            let to = got.as_mut_ptr().cast();
            (c.all_to_all)(c.context, first, 2, 2, 4, pointer(&given), sent.as_ptr(), to, received.as_ptr())
        };
        assert_eq!(exchanged, status::OK);
        (floats(&all), floats(&share), floats(&got))
    });
    for (rank, (all, share, got)) in results.iter().enumerate() {
        let first = (10 * (rank % 2)) as f32;
        assert_eq!(*all, [first, first + 1.0, first + 2.0]);
        let twice: Vec<f32> = all.iter().map(|value| 2.0 * value).collect();
        assert_eq!(*share, if rank < 2 { twice } else { vec![] });
        let (low, high) = ((100 * (rank % 2)) as f32, (100 * (rank % 2 + 2)) as f32);
        match rank < 2 {
            true => assert_eq!(*got, [low, high, high + 1.0]),
            false => assert_eq!(*got, [low + 1.0, low + 2.0, high + 2.0, high + 3.0, high + 4.0]),
        }
    }
}

#[test]
fn roots_and_pairs_move_bytes() {
    let world = World::new(3, HANG);
    let results = on_all(&world, 3, |rank, c| {
        let (from, mut to) = ([7u8, 8, 9], [0u8; 3]);
        let given = if rank == 1 { pointer(&from) } else { std::ptr::null() };
        // SAFETY: the buffers have three bytes.
        let status = unsafe { (c.broadcast)(c.context, 0, 1, 3, 1, given, to.as_mut_ptr().cast(), 3) };
        assert_eq!(status, status::OK);
        to[0] += rank as u8;
        let mut got = [0u8; 3];
        // SAFETY: as above.
        let status = unsafe {
            match rank {
                0 => (c.send)(c.context, 2, pointer(&to), 3),
                2 => (c.receive)(c.context, 0, got.as_mut_ptr().cast(), 3),
                _ => status::OK,
            }
        };
        assert_eq!(status, status::OK);
        (to, got)
    });
    assert_eq!(results[1].0, [8, 8, 9]);
    assert_eq!(results[2].1, [7, 8, 9]);
}

#[test]
fn ranks_that_lag_fail_or_run_another_model_are_a_status() {
    // SAFETY: numbers alone.
    let begin = |c: &Communicator, plan| unsafe { (c.begin)(c.context, plan) };
    let world = World::new(3, Duration::from_millis(100));
    let lag = on_all(&world, 3, |rank, c| if rank == 1 { status::OK } else { begin(c, 5) });
    assert_eq!(lag, [status::TIMEOUT, status::OK, status::TIMEOUT]);
    let world = World::new(3, HANG);
    let other = on_all(&world, 3, |rank, c| begin(c, if rank == 2 { 6 } else { 5 }));
    assert_eq!(other, [status::OTHER_MODEL; 3]);
    let world = World::new(3, HANG);
    let failed = on_all(&world, 3, |rank, c| match rank {
        // SAFETY: as above.
        0 => unsafe { (c.abort)(c.context, 11) },
        _ => begin(c, 5),
    });
    assert_eq!(failed, [status::OK, status::RANK_FAILED, status::RANK_FAILED]);
    // For good.
    let again = on_all(&world, 3, |_, c| begin(c, 5));
    assert_eq!(again, [status::RANK_FAILED; 3]);
}

#[test]
fn a_message_of_another_length_is_another_model() {
    let world = World::new(2, HANG);
    let results = on_all(&world, 2, |rank, c| {
        let (from, parts) = (vec![0u8; 4], [1 + rank as i64, 1 + rank as i64]);
        let mut to = [0u8; 4];
        // SAFETY: the buffers have room for the parts.
        unsafe {
            (c.all_gather)(c.context, 0, 1, 2, 1, pointer(&from), to.as_mut_ptr().cast(), parts.as_ptr())
        }
    });
    assert_eq!(results, [status::OTHER_MODEL; 2]);
}
