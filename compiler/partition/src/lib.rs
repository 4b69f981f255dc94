//! One model as several ranks: from a graph and an arrangement of its values over ranks to a graph per rank.
//!
//! `mesh` finds the grid that the ranks form: axes of it cut values, stages of the pipeline follow each other. `decide` spreads what the
//! arrangement says to all other values, by the axes that operations keep ([`onnxc_ir::graph::axes`]) and by the cost of what would be
//! exchanged. `emit` writes the graph of each rank: its share of every operation, and the exchanges. Every rank takes all inputs and gives
//! all outputs, as one process does; weights and states it holds its share of.

mod cost;
mod decide;
mod emit;
mod layout;
mod mesh;
mod report;
mod suggest;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use onnxc_ir::digest::fnv1a;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::arrangement::{Arrangement, Sharding};
use onnxc_ir::graph::exchange::Rank;
use onnxc_ir::graph::{Graph, Input, ValueId};

pub use report::{Exchanged, Holding};
pub use suggest::{Role, Suggestion, stages, suggest};

/// A model, as ranks.
#[derive(Debug)]
pub struct Partition {
    pub graphs: Vec<Graph>,
    /// How the ranks are arranged, for people.
    pub arrangement: Vec<String>,
}

/// The graphs of all ranks.
pub fn partition(graph: &Graph, arrangement: &Arrangement) -> Result<Partition> {
    let all = 0..arrangement.ranks;
    let (mesh, graphs) = emitted(graph, arrangement, all)?;
    let mut arrangement = mesh.text(&arrangement.name);
    arrangement.extend(report::replicated(graph, &graphs));
    Ok(Partition { graphs, arrangement })
}

/// The graph of one rank.
pub fn of_rank(graph: &Graph, arrangement: &Arrangement, rank: usize) -> Result<Graph> {
    let (_, mut graphs) = emitted(graph, arrangement, rank..rank + 1)?;
    graphs.pop().ok_or_else(|| internal(format!("there is no rank {rank}")))
}

fn emitted(
    graph: &Graph,
    arrangement: &Arrangement,
    ranks: Range<usize>,
) -> Result<(mesh::Mesh, Vec<Graph>)> {
    let mesh = mesh::Mesh::new(graph, arrangement)?;
    let plan = decide::decide(graph, arrangement, &mesh)?;
    let digest = digest(graph, &plan);
    let of = |rank: usize| {
        let own = Rank { rank: rank as i64, ranks: arrangement.ranks as i64, plan: digest };
        emit::emit(graph, &mesh, &plan, own)
    };
    let graphs = ranks.map(of).collect::<Result<Vec<Graph>>>()?;
    Ok((mesh, graphs))
}

/// Settles the states that several programs of a model have in common: they lie as one of the programs asks for, else whole on all ranks.
pub fn agree(programs: &mut [(&Graph, &mut Arrangement)]) -> Result<()> {
    let mut asked: HashMap<String, Sharding> = HashMap::new();
    for (graph, arrangement) in programs.iter() {
        let mut stages = arrangement.stages.iter().map(|(_, stage)| stage);
        if let Some(first) = stages.next()
            && let Some(other) = stages.find(|&stage| stage != first)
        {
            let message = format!(
                "device configuration `{}` has the stages {first} and {other}: what trains a model is in one stage",
                arrangement.name
            );
            return Err(unsupported(message));
        }
        let states: HashMap<ValueId, &str> =
            states(graph).map(|input| (input.value, input.name.as_str())).collect();
        for (value, sharding) in &arrangement.shardings {
            let Some(&name) = states.get(value) else { continue };
            let known = asked.entry(name.to_string()).or_insert_with(|| sharding.clone());
            if (&known.parts, &known.axes) != (&sharding.parts, &sharding.axes) {
                let message = format!("{}, which is another one than {}", sharding.place, known.place);
                return Err(unsupported(message));
            }
        }
    }
    for (graph, arrangement) in programs {
        let known: HashSet<ValueId> = arrangement.shardings.iter().map(|(value, _)| *value).collect();
        for input in states(graph).filter(|input| !known.contains(&input.value)) {
            let place = format!("the state `{}`", input.name);
            let whole = Sharding { place, parts: vec![], axes: vec![] };
            let sharding = asked.get(&input.name).cloned().unwrap_or(whole);
            arrangement.shardings.push((input.value, sharding));
        }
    }
    Ok(())
}

fn states(graph: &Graph) -> impl Iterator<Item = &Input> {
    graph.inputs.iter().skip(graph.given_inputs())
}

/// What is the same for all ranks of one model, and differs for others.
fn digest(graph: &Graph, plan: &decide::RankPlan) -> i64 {
    fnv1a(format!("{graph}{}", plan.text(graph)).as_bytes()).cast_signed()
}

fn unsupported(message: String) -> Error {
    Error::new(Stage::Pass, Kind::Unsupported, message)
}

fn internal(message: String) -> Error {
    Error::internal(Stage::Pass, message)
}
