//! Runs the graphs of all ranks of a partitioned model, each on a thread of its own.

use std::time::Duration;

use bytes::Bytes;
use onnxc_runtime_support::ranks::{Communicator, World, status};

use super::run_as;
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::exchange::{Ranks, reduction};
use crate::graph::{Exchange, Graph, Tensor, Transfer};
use crate::primitives::eval::movement;

/// Stack of a rank's thread, bytes.
const STACK: usize = 16 << 20;

/// The outputs of each rank, for inputs of each rank. A rank that waits for another one for longer than `timeout` fails.
pub fn run_ranks(
    graphs: &[Graph],
    inputs: &[Vec<Tensor>],
    seed: u64,
    timeout: Duration,
) -> Result<Vec<Vec<Tensor>>> {
    let world = World::new(graphs.len(), timeout);
    let run = |rank: usize, graph: &Graph, inputs: &[Tensor]| {
        let Some(communicator) = world.communicator(rank) else {
            return Err(Error::internal(Stage::Run, format!("there is no rank {rank}")));
        };
        // SAFETY: the world lives longer, and this thread alone has the communicator of the rank.
        let mut ranks = Threads { communicator: unsafe { &*communicator } };
        let result = run_as(graph, inputs, seed, &mut ranks);
        if result.is_err() {
            world.abort();
        }
        result
    };
    let results: Vec<Result<Vec<Tensor>>> = std::thread::scope(|scope| {
        let mut threads = vec![];
        for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
            let (thread, run) = (std::thread::Builder::new().stack_size(STACK), &run);
            threads.push(thread.spawn_scoped(scope, move || run(rank, graph, inputs)));
        }
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<Vec<Tensor>>>>| {
            let ended = thread.ok().and_then(|thread| thread.join().ok());
            ended.unwrap_or_else(|| {
                world.abort();
                Err(Error::internal(Stage::Run, "the thread of a rank did not run"))
            })
        };
        threads.into_iter().map(join).collect()
    });
    // What failed first is what the others did not cause.
    let caused = |result: &&Result<Vec<Tensor>>| match result {
        Err(error) => error.message.contains(LEFT),
        Ok(_) => true,
    };
    if let Some(Err(error)) = results.iter().find(|result| !caused(result)) {
        return Err(error.clone());
    }
    results.into_iter().collect()
}

/// What a rank says that another one left alone.
const LEFT: &str = "another rank failed";

/// A rank among threads.
struct Threads<'w> {
    communicator: &'w Communicator,
}

impl Ranks for Threads<'_> {
    fn exchange(
        &mut self,
        exchange: &Exchange,
        given: Option<&Tensor>,
        counts: &[Vec<i64>],
    ) -> Result<Option<Tensor>> {
        let c = self.communicator;
        let (first, stride, count) = (exchange.group.first, exchange.group.stride, exchange.group.count);
        let Some(shape) = exchange.ty.static_shape() else {
            return Err(Error::internal(Stage::Run, format!("{} of {}", exchange.name(), exchange.ty)));
        };
        let dtype = exchange.ty.dtype;
        let room = if exchange.has_result() { shape.clone() } else { vec![0] };
        let mut result = movement::zeroed(dtype, &room)?;
        let (from, bytes) = match given {
            Some(tensor) => (tensor.data.as_ptr().cast(), tensor.data.len() as i64),
            None => (std::ptr::null(), 0),
        };
        let (width, number) = (dtype.size() as i64, i64::from(dtype.to_onnx()));
        let elements = given.map_or(0, |tensor| tensor.len() as i64);
        let to = result.as_mut_ptr().cast();
        let parts = |at: usize| counts.get(at).map_or(std::ptr::null(), |counts| counts.as_ptr());
        let (taken, room) = (bytes, result.len() as i64);
        let sum = |at: usize| counts.get(at).map_or(0, |counts| counts.iter().sum::<i64>() * width);
        let sound = match exchange.transfer {
            Transfer::AllReduce(_) => taken == room,
            Transfer::AllGather => sum(0) == room,
            Transfer::ReduceScatter(_) => sum(0) == taken,
            Transfer::AllToAll => sum(0) == taken && sum(1) == room,
            Transfer::Broadcast { .. } => given.is_none() || taken == room,
            Transfer::Send { .. } | Transfer::Receive { .. } => true,
        };
        if !sound {
            let message = format!("{} of {taken} bytes by {counts:?} into {room}", exchange.name());
            return Err(Error::internal(Stage::Run, message));
        }
        // SAFETY: `given` and `result` have the bytes that types and counts say, and each member of a group has its count.
        let status = unsafe {
            match exchange.transfer {
                Transfer::AllReduce(function) => {
                    let function = reduction(function) as i64;
                    (c.all_reduce)(c.context, first, stride, count, function, number, from, to, elements)
                }
                Transfer::AllGather => {
                    (c.all_gather)(c.context, first, stride, count, width, from, to, parts(0))
                }
                Transfer::ReduceScatter(function) => {
                    let function = reduction(function) as i64;
                    (c.reduce_scatter)(c.context, first, stride, count, function, number, from, to, parts(0))
                }
                Transfer::Broadcast { root } => {
                    (c.broadcast)(c.context, first, stride, count, root, from, to, room)
                }
                Transfer::AllToAll => {
                    (c.all_to_all)(c.context, first, stride, count, width, from, parts(0), to, parts(1))
                }
                Transfer::Send { to } => (c.send)(c.context, to, from, bytes),
                Transfer::Receive { from } => (c.receive)(c.context, from, to, room),
            }
        };
        let message = match status {
            status::OK => {
                let tensor = || Tensor::new(dtype, shape, Bytes::from(result));
                return Ok(exchange.has_result().then(tensor));
            }
            status::RANK_FAILED => LEFT.to_string(),
            status::TIMEOUT => "another rank does not answer".to_string(),
            status => {
                format!("the ranks run different models or exchange what does not fit (status {status})")
            }
        };
        Err(Error::new(Stage::Run, Kind::Usage, format!("{}: {message}", exchange.name())))
    }
}
