//! Sums of products of bytes over windows, as those of depthwise convolutions.
//!
//! One instruction adds four products to a sum where the four bytes of either operand are one lane. Those of a window's row lie a
//! pixel apart: they are put together once, and serve the neighbouring windows that lie within them, each with weights of its own,
//! which are zero for the bytes of others. These weights stay in registers while one vector of channels passes all positions.

use super::{Job, sum_at};
use crate::lower::runs::Run;
use crate::lower::{Lowering, internal};
use crate::{Expr, Index, Local, LoopKind, Stmt, Var};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim};
use onnxc_ir::infer::indices;
use onnxc_ir::scalar::{BinaryFn, ReduceFn};
use onnxc_tuning::reduce::quads_hold;

/// Bytes of a lane, `None` where it has fewer.
type Bytes = [Option<Expr>; 4];

/// Four bytes for every lane, and the sums that they are part of.
#[derive(Default)]
struct Quad {
    bytes: Bytes,
    /// Numbers of places, and the weights of these bytes there.
    sums: Vec<(usize, Bytes)>,
}

impl Quad {
    /// Adds the products of a place, unless there are too many bytes.
    fn add(&mut self, place: usize, products: &[[Expr; 2]]) -> bool {
        let (mut bytes, mut weights) = (self.bytes.clone(), Bytes::default());
        for [x, weight] in products {
            // A byte that a window has several times needs a place for each weight.
            let found = (0..4).find(|&at| bytes[at].as_ref() == Some(x) && weights[at].is_none());
            let Some(at) = found.or_else(|| bytes.iter().position(Option::is_none)) else { return false };
            bytes[at] = Some(x.clone());
            weights[at] = Some(weight.clone());
        }
        self.bytes = bytes;
        self.sums.push((place, weights));
        true
    }
}

impl Lowering<'_> {
    /// Whether a reduction adds up products of bytes in quads. Sums of floats are the same ones: windows have so few taps that all are
    /// integers which f32 holds.
    pub(super) fn adds_quads(&mut self, job: &Job, channels: &Dim) -> Result<bool> {
        let fits = self.core.joins_bytes()
            && job.op == ReduceFn::Sum
            && matches!(job.dtype, DType::I32 | DType::F32)
            && job.written_out == job.reduced.len()
            && quads_hold(job.reduced.iter(), channels);
        if !fits {
            return Ok(false);
        }
        let mut anywhere = Vec::new();
        for extent in self.graph.ty(job.x).shape.clone() {
            let var = self.kernel.loop_var("probe");
            self.extents.insert(var, extent);
            anywhere.push(Index::var(var));
        }
        let mut loads = false;
        let shared = self.scope(|cx| {
            loads = cx.bytes_at(job, &anywhere)?.is_some();
            Ok(())
        })?;
        Ok(loads && shared.is_empty())
    }

    /// All positions of some channels before the next ones.
    pub(super) fn reduce_quads(
        &mut self,
        job: &Job,
        index: &[Index],
        column: Option<usize>,
        columns: &[Run],
        channels: &[Run],
        kind: LoopKind,
    ) -> Result<()> {
        let width = self.core.lanes_of(DType::I32);
        for part in channels {
            let kind = if channels.len() == 1 { kind } else { LoopKind::Serial };
            self.for_each("c", &part.count, kind, |cx, chunk| {
                for first in (0..part.size).step_by(width) {
                    let lane = cx.kernel.loop_var("v");
                    cx.extents.insert(lane, Dim::from(width));
                    let mut place = index.to_vec();
                    if let Some(channel) = place.last_mut() {
                        *channel = channel.add(&part.at(&chunk, first)).add(&Index::var(lane));
                    }
                    let places = |run: &Run, piece: &Index| -> Vec<Vec<Index>> {
                        let at = |number: usize| {
                            let mut place = place.clone();
                            if let Some(axis) = column {
                                place[axis] = run.at(piece, number);
                            }
                            place
                        };
                        (0..run.size).map(at).collect()
                    };
                    let mut words: Vec<Bytes> = Vec::new();
                    for run in columns {
                        for quad in cx.quads(job, &places(run, &Index::zero()))? {
                            for (_, weights) in quad.sums {
                                if !words.contains(&weights) {
                                    words.push(weights);
                                }
                            }
                        }
                    }
                    let weights = cx.quad_weights(&words, lane, width);
                    for run in columns {
                        cx.for_each("x", &run.count, LoopKind::Serial, |cx, piece| {
                            let places = places(run, &piece);
                            let quads = cx.quads(job, &places)?;
                            cx.for_results(job, DType::I32, &places, lane, width, &mut |cx, acc| {
                                cx.add_quads(&quads, (&words, weights), acc, lane, width)
                            })
                        })?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The products of places, the rows of their windows one after the other.
    fn quads(&mut self, job: &Job, places: &[Vec<Index>]) -> Result<Vec<Quad>> {
        let sizes: Vec<usize> = job.reduced.iter().map(|dim| dim.as_const().unwrap_or(1) as usize).collect();
        let Some((&taps, rows)) = sizes.split_last() else { return Ok(vec![]) };
        let mut quads: Vec<Quad> = Vec::new();
        for row in indices(rows) {
            let mut quad = Quad::default();
            for (number, place) in places.iter().enumerate() {
                let mut products = Vec::with_capacity(taps);
                for tap in 0..taps {
                    let inner: Vec<Index> =
                        row.iter().chain([&tap]).map(|&at| Index::int(at as i64)).collect();
                    let Some(bytes) = self.bytes_at(job, &job.element(place, &inner))? else {
                        return internal(format!("{} is not a product of bytes everywhere", job.x));
                    };
                    products.push(bytes);
                }
                if !quad.add(number, &products) {
                    quads.push(std::mem::take(&mut quad));
                    quad.add(number, &products);
                }
            }
            quads.push(quad);
        }
        Ok(quads)
    }

    /// The bytes whose product an element is, where both are read from memory: the unsigned one, then the signed one.
    fn bytes_at(&mut self, job: &Job, index: &[Index]) -> Result<Option<[Expr; 2]>> {
        let Expr::Binary { op: BinaryFn::Mul, a, b } = self.expr_at(job.x, index)? else { return Ok(None) };
        let (Expr::Cast { x: a, .. }, Expr::Cast { x: b, .. }) = (*a, *b) else { return Ok(None) };
        let dtype = |expr: &Expr| match expr {
            Expr::Load { buf, .. } => Some(self.kernel.buffers[*buf].dtype),
            _ => None,
        };
        Ok(match (dtype(&a), dtype(&b)) {
            (Some(DType::U8), Some(DType::I8)) => Some([*a, *b]),
            (Some(DType::I8), Some(DType::U8)) => Some([*b, *a]),
            _ => None,
        })
    }

    /// Registers of weights.
    fn quad_weights(&mut self, words: &[Bytes], lane: Var, width: usize) -> Local {
        let weights = self.kernel.local("weights", DType::I32, &[words.len(), width], width);
        let body = words.iter().enumerate().map(|(number, word)| {
            let value = Expr::quad(word.clone().map(|byte| byte.unwrap_or(Expr::constant(DType::I8, 0.0))));
            Stmt::Set { local: weights, at: sum_at(number, lane, width), value }
        });
        self.push_lanes(lane, width, body.collect());
        weights
    }

    fn add_quads(
        &mut self,
        quads: &[Quad],
        (words, weights): (&[Bytes], Local),
        acc: Local,
        lane: Var,
        width: usize,
    ) -> Result<Local> {
        let stmts = self.scope(|cx| {
            for quad in quads {
                let bytes = quad.bytes.clone();
                let bytes = bytes.map(|byte| byte.unwrap_or(Expr::constant(DType::U8, 0.0)));
                let x = cx.bind("q", Expr::quad(bytes));
                for (place, own) in &quad.sums {
                    let Some(number) = words.iter().position(|word| word == own) else {
                        return internal("weights of other windows than the first");
                    };
                    let weight = Expr::Get { local: weights, at: sum_at(number, lane, width) };
                    let value = Expr::binary(BinaryFn::Dot, x.clone(), weight);
                    let at = sum_at(*place, lane, width);
                    cx.push(Stmt::Accumulate { local: acc, at, op: BinaryFn::Add, value });
                }
            }
            Ok(())
        })?;
        self.push_lanes(lane, width, stmts);
        Ok(acc)
    }
}
