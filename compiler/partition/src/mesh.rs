//! The grid that ranks form: stages of a pipeline, each of the same axes.

use std::collections::BTreeSet;

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::graph::arrangement::{Arrangement, Sharding};
use onnxc_ir::graph::exchange::RankGroup;

use crate::unsupported;

/// A stage of the pipeline: its number in the model, and its ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MeshStage {
    pub number: i64,
    first: i64,
    stride: i64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mesh {
    pub stages: Vec<MeshStage>,
    /// How many ranks there are along each axis, the slowest axis first.
    pub radices: Vec<usize>,
}

fn bad(message: String) -> Error {
    Error::new(Stage::Import, Kind::Malformed, message)
}

impl Mesh {
    pub(crate) fn new(graph: &Graph, arrangement: &Arrangement) -> Result<Mesh> {
        let stages = stages(arrangement)?;
        let count = arrangement.ranks / stages.len();
        let mut mesh = Mesh { stages, radices: vec![count] };
        let mut bounds = BTreeSet::from([1, count]);
        for (value, sharding) in &arrangement.shardings {
            for (_, stride, parts) in mesh.strides(sharding)? {
                bounds.extend([stride, stride * parts]);
            }
            for cut in &sharding.axes {
                let size = graph.ty(*value).shape[cut.axis].as_const();
                if let (Some(size), Some(blocks)) = (size, cut.blocks)
                    && size % blocks != 0
                {
                    return Err(bad(format!("{}: {size} is not a multiple of {blocks}", sharding.place)));
                }
            }
        }
        let bounds: Vec<usize> = bounds.into_iter().collect();
        if let Some(pair) = bounds.windows(2).find(|pair| pair[1] % pair[0] != 0) {
            let message = format!(
                "device configuration `{}`: ranks are cut by {} and by {}, which do not form a grid",
                arrangement.name, pair[0], pair[1]
            );
            return Err(unsupported(message));
        }
        mesh.radices = bounds.windows(2).rev().map(|pair| pair[1] / pair[0]).collect();
        Ok(mesh)
    }

    /// Ranks of a stage.
    fn count(&self) -> usize {
        self.radices.iter().product()
    }

    /// How many positions lie between neighbours along an axis.
    pub(crate) fn stride(&self, dim: usize) -> usize {
        self.radices[dim + 1..].iter().product()
    }

    /// For each axis of a value that is cut: the axis, how many positions share a part, how many parts there are.
    pub(crate) fn strides(&self, sharding: &Sharding) -> Result<Vec<(usize, usize, usize)>> {
        let Sharding { place, parts, axes } = sharding;
        if parts.is_empty() {
            return Ok(vec![]);
        }
        let place_of = |rank: i64| {
            let of = |stage: &MeshStage| {
                let steps = rank - stage.first;
                let at = usize::try_from(steps / stage.stride).ok()?;
                (steps >= 0 && steps % stage.stride == 0 && at < self.count()).then_some(at)
            };
            self.stages.iter().enumerate().find_map(|(number, stage)| Some((number, of(stage)?)))
        };
        let mut part_of = vec![None; self.count()];
        let mut home = None;
        for (part, ranks) in parts.iter().enumerate() {
            for &rank in ranks {
                let (stage, at) =
                    place_of(rank).ok_or_else(|| bad(format!("{place}: rank {rank} is in no stage")))?;
                if *home.get_or_insert(stage) != stage {
                    return Err(unsupported(format!("{place}: its devices are in more than one stage")));
                }
                part_of[at] = Some(part);
            }
        }
        let Some(part_of) = part_of.into_iter().collect::<Option<Vec<usize>>>() else {
            let (some, all) = (parts.concat().len(), self.count());
            return Err(unsupported(format!("{place}: {some} devices, where its stage has {all}")));
        };
        let mut found = vec![];
        let mut inner: usize = axes.iter().map(|cut| cut.parts).product();
        for cut in axes {
            inner /= cut.parts;
            let index: Vec<usize> = part_of.iter().map(|part| part / inner % cut.parts).collect();
            let stride = index.iter().position(|&at| at != index[0]).unwrap_or(self.count());
            if !index.iter().enumerate().all(|(at, &part)| part == at / stride % cut.parts) {
                let message =
                    format!("{place}: the shards of axis {} are not in the order of the devices", cut.axis);
                return Err(unsupported(message));
            }
            found.push((cut.axis, stride, cut.parts));
        }
        Ok(found)
    }

    /// The digits of all positions.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Vec<usize>> {
        (0..self.count()).map(|at| self.digits(at))
    }

    fn digits(&self, position: usize) -> Vec<usize> {
        (0..self.radices.len()).map(|dim| position / self.stride(dim) % self.radices[dim]).collect()
    }

    /// The stage of a rank, and its digits there.
    pub(crate) fn place(&self, rank: i64) -> Option<(usize, Vec<usize>)> {
        (0..self.stages.len()).find_map(|stage| {
            let at = (0..self.count()).find(|&at| self.rank(stage, at) == rank)?;
            Some((stage, self.digits(at)))
        })
    }

    fn rank(&self, stage: usize, position: usize) -> i64 {
        self.stages[stage].first + position as i64 * self.stages[stage].stride
    }

    fn position(&self, digits: &[usize]) -> usize {
        digits.iter().enumerate().map(|(dim, digit)| digit * self.stride(dim)).sum()
    }

    /// The rank in another stage, at the same place.
    pub(crate) fn peer(&self, stage: usize, digits: &[usize]) -> i64 {
        self.rank(stage, self.position(digits))
    }

    /// The ranks along an axis.
    pub(crate) fn along(&self, stage: usize, digits: &[usize], dim: usize) -> RankGroup {
        let stride = self.stride(dim);
        let first = self.position(digits) - digits[dim] * stride;
        RankGroup {
            first: self.rank(stage, first),
            stride: stride as i64 * self.stages[stage].stride,
            count: self.radices[dim] as i64,
        }
    }

    /// The ranks at one place of all stages, where they are as far apart as the first two.
    pub(crate) fn across(&self, digits: &[usize]) -> Option<RankGroup> {
        let ranks: Vec<i64> = (0..self.stages.len()).map(|stage| self.peer(stage, digits)).collect();
        let stride = ranks.get(1)? - ranks[0];
        let even = stride > 0 && ranks.windows(2).all(|pair| pair[1] - pair[0] == stride);
        even.then_some(RankGroup { first: ranks[0], stride, count: ranks.len() as i64 })
    }

    pub(crate) fn text(&self, name: &str) -> Vec<String> {
        let ranks = self.count() * self.stages.len();
        let axes: Vec<String> = self.radices.iter().map(ToString::to_string).collect();
        let stages = match self.stages.len() {
            1 => String::new(),
            count => format!("{count} stages of "),
        };
        vec![format!("configuration `{name}`: {ranks} ranks, {stages}{}", axes.join(" x "))]
    }
}

/// The stages that nodes name, with their ranks: those of their shardings, or equal shares in order.
fn stages(arrangement: &Arrangement) -> Result<Vec<MeshStage>> {
    let numbers: BTreeSet<i64> = arrangement.stages.iter().map(|(_, stage)| *stage).collect();
    let numbers: Vec<i64> = if numbers.is_empty() { vec![0] } else { numbers.into_iter().collect() };
    let (name, ranks, count) = (&arrangement.name, arrangement.ranks, numbers.len());
    if ranks % count != 0 {
        let message =
            format!("device configuration `{name}`: {ranks} devices for {count} stages of equal size");
        return Err(unsupported(message));
    }
    let each = ranks / count;
    // The sets of devices that shardings name decide how ranks of a stage lie: one after the other, or apart.
    let consecutive = |sharding: &Sharding| {
        let mut all = sharding.parts.concat();
        all.sort_unstable();
        all.len() != each || all.windows(2).all(|pair| pair[1] - pair[0] == 1)
    };
    let apart = arrangement.shardings.iter().any(|(_, sharding)| !consecutive(sharding));
    let stage = |(at, &number): (usize, &i64)| match apart {
        false => MeshStage { number, first: (at * each) as i64, stride: 1 },
        true => MeshStage { number, first: at as i64, stride: count as i64 },
    };
    Ok(numbers.iter().enumerate().map(stage).collect())
}
