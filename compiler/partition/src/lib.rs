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

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_ir::graph::exchange::Rank;

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
    let mesh = mesh::Mesh::new(graph, arrangement)?;
    let plan = decide::decide(graph, arrangement, &mesh)?;
    let digest = digest(graph, &plan);
    let mut graphs = vec![];
    for rank in 0..arrangement.ranks as i64 {
        let own = Rank { rank, ranks: arrangement.ranks as i64, plan: digest };
        graphs.push(emit::emit(graph, &mesh, &plan, own)?);
    }
    Ok(Partition { graphs, arrangement: mesh.text(&arrangement.name) })
}

/// What is the same for all ranks of one model, and differs for others.
fn digest(graph: &Graph, plan: &decide::Plan) -> i64 {
    let text = format!("{graph}{}", plan.text(graph));
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    hash.cast_signed()
}

fn unsupported(message: String) -> Error {
    Error::new(Stage::Pass, Kind::Unsupported, message)
}

fn internal(message: String) -> Error {
    Error::internal(Stage::Pass, message)
}
