//! Exchanges between ranks: processes that run one model together, each its share.
//!
//! A partitioned model is a graph per rank, and exchanges are nodes of it. They have effects, so their order is the same on all ranks:
//! every exchange but the first takes the token of the one before, and the last token is always needed ([`Graph::output_needs`]). Rows of a
//! tensor lie together in memory and columns do not, so what is gathered or scattered is flat, the parts of the ranks one after the
//! other; views around an exchange make axes of that.

use std::fmt;

pub use onnxc_runtime_support::ranks::RankGroup;
use onnxc_runtime_support::ranks::{AT_ONCE, Reduction, element_bytes};

use crate::error::{Error, Kind, Result, Stage};
use crate::graph::{DType, Dim, Graph, Op, TensorType, ValueId};
use crate::scalar::ReduceFn;

/// Which rank a graph is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    pub rank: i64,
    /// How many there are.
    pub ranks: i64,
    /// A digest of the whole model and of how it is partitioned: that of all its ranks.
    pub plan: i64,
}

/// What ranks exchange. The operands of an exchange are those that are named here, and then the token of the exchange before; its
/// results are that of `result`'s type, where there is one, and its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// `(x)`: the values of all ranks combined, in the order of the group.
    AllReduce(ReduceFn),
    /// `(x, counts)`: the elements of all ranks; `counts` i64 `[members]` says how many each has.
    AllGather,
    /// `(x, counts)`: `x` has `counts` elements for each member; the result is those for this rank, combined.
    ReduceScatter(ReduceFn),
    /// `(x)` where this rank is the root, that member of the group, otherwise `()`: the value of the root.
    Broadcast { root: i64 },
    /// `(x, sent, received)`: `sent` elements for each member, and `received` ones of each.
    AllToAll,
    /// `(x)`, without a result.
    Send { to: i64 },
    /// `()`
    Receive { from: i64 },
}

/// [`Op::Exchange`].
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    pub transfer: Transfer,
    /// The ranks that take part, this one among them.
    pub group: RankGroup,
    /// The type of the result; of the value that is sent.
    pub ty: TensorType,
}

/// The type of tokens: nothing is stored in one.
pub fn token() -> TensorType {
    TensorType::new(DType::U8, vec![Dim::ONE])
}

/// The number of a reduction in `onnxc.h`.
pub fn reduction(function: ReduceFn) -> Reduction {
    match function {
        ReduceFn::Sum => Reduction::Sum,
        ReduceFn::Prod => Reduction::Product,
        ReduceFn::Max => Reduction::Max,
        ReduceFn::Min => Reduction::Min,
        ReduceFn::And => Reduction::And,
        ReduceFn::Or => Reduction::Or,
    }
}

/// Whether ranks can combine elements of a type.
pub fn combines(dtype: DType) -> bool {
    element_bytes(dtype.to_onnx()).is_some()
}

impl Exchange {
    /// Operands before the token.
    pub fn operands(&self, rank_is_root: bool) -> usize {
        match self.transfer {
            Transfer::AllReduce(_) | Transfer::Send { .. } => 1,
            Transfer::AllGather | Transfer::ReduceScatter(_) => 2,
            Transfer::Broadcast { .. } => usize::from(rank_is_root),
            Transfer::AllToAll => 3,
            Transfer::Receive { .. } => 0,
        }
    }

    /// The value that this rank gives, where it gives one.
    pub fn given(&self, inputs: &[ValueId], graph: &Graph) -> Option<ValueId> {
        match self.transfer {
            Transfer::Receive { .. } => None,
            Transfer::Broadcast { .. } => inputs.first().copied().filter(|&value| !graph.is_token(value)),
            _ => inputs.first().copied(),
        }
    }

    /// Whether there is a result before the token.
    pub fn has_result(&self) -> bool {
        !matches!(self.transfer, Transfer::Send { .. })
    }

    /// The types of results. Fails where the operands do not fit.
    pub fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
        let is_token = |ty: &TensorType| *ty == token();
        // A root gives what has the type of the result. Where that is the type of a token, a lone operand is the token.
        let is_root = matches!(self.transfer, Transfer::Broadcast { .. })
            && inputs.first().is_some_and(|ty| **ty == self.ty)
            && (inputs.len() == 2 || !is_token(inputs[0]));
        let count = self.operands(is_root);
        let members = Dim::from(self.group.count);
        let is_counts = |ty: &TensorType| ty.dtype == DType::I64 && ty.shape == [members.clone()];
        let x = inputs.first();
        let fits = match self.transfer {
            Transfer::AllReduce(_) => x.is_some_and(|x| **x == self.ty && combines(x.dtype)),
            Transfer::Send { .. } => x.is_some_and(|x| **x == self.ty),
            Transfer::ReduceScatter(_) => x.is_some_and(|x| combines(x.dtype)) && self.flat(x),
            Transfer::AllGather | Transfer::AllToAll => self.flat(x),
            Transfer::Broadcast { root } => (0..self.group.count).contains(&root),
            Transfer::Receive { .. } => true,
        };
        let fits = fits
            && self.group.count >= 1
            && inputs.len() >= count
            && inputs.len() <= count + 1
            && inputs[count.min(1)..count].iter().all(|ty| is_counts(ty))
            && inputs[count..].iter().all(|ty| is_token(ty));
        if !fits {
            let message = format!("{} of {inputs:?} for {}", self.name(), self.ty);
            return Err(Error::internal(Stage::Infer, message));
        }
        let result = self.has_result().then(|| self.ty.clone());
        Ok(result.into_iter().chain([token()]).collect())
    }

    fn flat(&self, x: Option<&&TensorType>) -> bool {
        self.ty.rank() == 1 && x.is_some_and(|x| x.dtype == self.ty.dtype && x.rank() == 1)
    }

    pub fn name(&self) -> &'static str {
        match self.transfer {
            Transfer::AllReduce(_) => "all_reduce",
            Transfer::AllGather => "all_gather",
            Transfer::ReduceScatter(_) => "reduce_scatter",
            Transfer::Broadcast { .. } => "broadcast",
            Transfer::AllToAll => "all_to_all",
            Transfer::Send { .. } => "send",
            Transfer::Receive { .. } => "receive",
        }
    }

    /// Bytes that this rank sends, of an exchange with these operands: what the communicators of the runtime send.
    pub fn sent(&self, inputs: &[ValueId], graph: &Graph, rank: i64) -> Dim {
        let given = self.given(inputs, graph).map_or(Dim::ZERO, |value| graph.ty(value).bytes());
        let (members, own) = (self.group.count, self.group.place(rank).unwrap_or(0));
        let others = Dim::from(members - 1);
        match self.transfer {
            Transfer::AllReduce(_) if members > 2 => {
                // What is small goes to all others. What is large is scattered, summed and gathered.
                let all = self.ty.elements();
                let bound = |at: usize| {
                    (all.clone() * Dim::from(at)).floor_div(&Dim::from(members)).unwrap_or(Dim::ZERO)
                };
                let share = TensorType::new(self.ty.dtype, vec![bound(own + 1) - bound(own)]).bytes();
                let is_large = (given.clone() - Dim::from(AT_ONCE)).max_dim(&Dim::ZERO).min_dim(&Dim::ONE);
                given.clone() * others - is_large * (given - share) * Dim::from(members - 2)
            }
            Transfer::AllReduce(_) | Transfer::AllGather => given * others,
            Transfer::ReduceScatter(_) => given - self.ty.bytes(),
            Transfer::AllToAll => {
                let counts = inputs.get(1).and_then(|&counts| graph.producer(counts));
                let kept = match counts.map(|node| &graph.nodes[node].op) {
                    Some(Op::DimValues { dims }) => dims.get(own).cloned().unwrap_or(Dim::ZERO),
                    _ => Dim::ZERO,
                };
                given - TensorType::new(self.ty.dtype, vec![kept]).bytes()
            }
            Transfer::Broadcast { root } if self.group.place(rank) == usize::try_from(root).ok() => {
                given * others
            }
            Transfer::Send { .. } => given,
            Transfer::Broadcast { .. } | Transfer::Receive { .. } => Dim::ZERO,
        }
    }
}

impl Graph {
    /// Whether a value is the token of an exchange.
    pub fn is_token(&self, value: ValueId) -> bool {
        let Some(node) = self.producer(value) else { return false };
        let node = &self.nodes[node];
        matches!(node.op, Op::Exchange(_)) && node.outputs.last() == Some(&value)
    }

    /// The token of the last exchange, which all others come before.
    pub fn last_token(&self) -> Option<ValueId> {
        self.rank?;
        let of = |id: &crate::graph::NodeId| match &self.nodes.get(*id)?.op {
            Op::Exchange(_) => self.nodes[*id].outputs.last().copied(),
            _ => None,
        };
        self.order.iter().rev().find_map(of)
    }
}

/// Runs exchanges for an evaluation of the graph of one rank.
pub trait Ranks {
    /// The result of an exchange, without its token. `given` is the value that this rank gives; `counts` those of the operands.
    fn exchange(
        &mut self,
        exchange: &Exchange,
        given: Option<&crate::graph::Tensor>,
        counts: &[Vec<i64>],
    ) -> Result<Option<crate::graph::Tensor>>;
}

/// What an evaluation without other ranks has.
pub struct Alone;

impl Ranks for Alone {
    fn exchange(
        &mut self,
        exchange: &Exchange,
        _given: Option<&crate::graph::Tensor>,
        _counts: &[Vec<i64>],
    ) -> Result<Option<crate::graph::Tensor>> {
        let message = format!(
            "{} of {} ranks: this run has one alone; all ranks of a model are run together",
            exchange.name(),
            exchange.group.count
        );
        Err(Error::new(Stage::Run, Kind::Usage, message))
    }
}

/// Text form of the attributes.
impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transfer {
            Transfer::AllReduce(function) | Transfer::ReduceScatter(function) => {
                write!(f, "op={function}, ")?
            }
            Transfer::Broadcast { root } => write!(f, "root={root}, ")?,
            Transfer::Send { to } => write!(f, "to={to}, ")?,
            Transfer::Receive { from } => write!(f, "from={from}, ")?,
            Transfer::AllGather | Transfer::AllToAll => {}
        }
        let RankGroup { first, stride, count } = self.group;
        let TensorType { dtype, shape } = &self.ty;
        write!(f, "first={first}, stride={stride}, count={count}, dtype={dtype}, shape={shape:?}")
    }
}
