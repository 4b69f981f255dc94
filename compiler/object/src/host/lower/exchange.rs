//! Exchanges with other ranks: calls of the functions of the caller's communicator, and what a run checks of that first.

use crate::host::abi::{communicator, options, status};
use crate::host::ir::{
    BEGIN_RANKS, Compare, Condition, Extern, Op, Operand, OptionsField, Place, Type, exchange_function,
};
use crate::host::lower::builder::Builder;
use crate::host::lower::internal;
use crate::host::lower::steps::StepWriter;
use crate::host::lower::text::node_text;
use crate::host::message::V;
use onnxc_ir::error::Result;
use onnxc_ir::graph::exchange::reduction;
use onnxc_ir::graph::{Exchange, NodeId, Rank, Transfer};

/// What the statuses of a communicator mean.
const STATUSES: [(i32, &str); 3] = [
    (status::TIMEOUT, "another rank does not answer in time"),
    (status::RANK_FAILED, "another rank failed or ended"),
    (status::OTHER_MODEL, "another rank runs another model, or exchanges another value"),
];

/// Leaves unless the caller has a communicator of the object's own rank.
pub(super) fn check_communicator(b: &mut Builder, own: Rank) {
    let Rank { rank, ranks, .. } = own;
    let none = format!("the model is rank {rank} of {ranks}, and the options have no communicator");
    let size = b.load(Place::Options(OptionsField::StructSize));
    let short = b.compare(Compare::LtUnsigned, size, options::THIRD_SIZE);
    b.fail_if(short, status::NEEDS_COMMUNICATOR, &none, &[]);
    let given = b.load(Place::Options(OptionsField::Communicator));
    let null = b.compare(Compare::Eq, given, 0);
    b.fail_if(null, status::NEEDS_COMMUNICATOR, &none, &[]);
    let size = b.load_at(Type::I64, given, communicator::STRUCT_SIZE);
    let short = b.compare(Compare::LtUnsigned, size, communicator::SIZE);
    b.fail_if(short, status::BAD_OPTIONS, "the communicator is shorter than its struct", &[]);
    let found = [communicator::RANK, communicator::RANKS].map(|field| b.load_at(Type::I64, given, field));
    let template = format!("the model is rank {rank} of {ranks}, the communicator's is rank {V} of {V}");
    for (found_one, wanted) in found.into_iter().zip([rank, ranks]) {
        let differs = b.compare(Compare::Ne, found_one, wanted);
        b.fail_if(differs, status::WRONG_RANK, &template, &found.map(Operand::from));
    }
}

/// Makes sure that all ranks run the same model.
pub(super) fn begin(b: &mut Builder, own: Rank) {
    let Rank { rank, ranks, plan } = own;
    call(b, &BEGIN_RANKS, vec![plan.into()], &format!("rank {rank} of {ranks}"));
}

/// Calls a function of the communicator; leaves unless all is well.
fn call(b: &mut Builder, function: &'static Extern, args: Vec<Operand>, place: &str) {
    let result = b.value(Type::I32, Op::Exchange(function, args));
    let result = b.extend(result);
    let failed = b.compare(Compare::Ne, result, i64::from(status::OK));
    let Operand::Value(failed) = failed else { return };
    b.open();
    for (status, what) in STATUSES {
        let is = b.compare(Compare::Eq, result, i64::from(status));
        b.fail_if(is, status, &format!("{place}: {what}"), &[]);
    }
    let template = format!("{place}: the communicator failed and gave {V}");
    b.fail_if(1.into(), status::EXCHANGE_FAILED, &template, &[result.into()]);
    let failure = b.close();
    b.if_else(Condition::Value(failed), failure, vec![]);
}

impl StepWriter<'_, '_> {
    pub(super) fn exchange(&mut self, node: NodeId, exchange: &Exchange) -> Result<()> {
        let graph = self.scope.graph;
        let data = &graph.nodes[node];
        let given = match exchange.given(&data.inputs, graph) {
            Some(value) => self.address(value)?.into(),
            None => Operand::Int(0),
        };
        let mut counts = vec![];
        for &input in data.inputs.iter().skip(1).filter(|&&input| !graph.is_token(input)) {
            counts.push(Operand::from(self.address(input)?));
        }
        let result = match (exchange.has_result(), data.outputs.first()) {
            (false, _) => Operand::Int(0),
            (true, Some(&result)) => self.address(result)?.into(),
            (true, None) => return Err(internal(format!("{node} has no result"))),
        };
        let (bytes, elements) = (self.size(&exchange.ty.bytes())?, self.size(&exchange.ty.elements())?);
        let group = [exchange.group.first, exchange.group.stride, exchange.group.count].map(Operand::Int);
        let width = Operand::Int(exchange.ty.dtype.size() as i64);
        let dtype = Operand::Int(i64::from(exchange.ty.dtype.to_onnx()));
        let of = |function| Operand::Int(reduction(function) as i64);
        let mut args = group.to_vec();
        match exchange.transfer {
            Transfer::AllReduce(function) => args.extend([of(function), dtype, given, result, elements]),
            Transfer::AllGather => args.extend([width, given, result]),
            Transfer::ReduceScatter(function) => args.extend([of(function), dtype, given, result]),
            Transfer::Broadcast { root } => args.extend([Operand::Int(root), given, result, bytes]),
            Transfer::AllToAll => args.extend([width, given, counts[0], result]),
            Transfer::Send { to } => args = vec![Operand::Int(to), given, bytes],
            Transfer::Receive { from } => args = vec![Operand::Int(from), result, bytes],
        }
        args.extend(counts.last());
        let function = exchange_function(exchange.name());
        let function = function.ok_or_else(|| internal(format!("{} has no function", exchange.name())))?;
        call(self.b, function, args, &node_text(graph, node));
        Ok(())
    }
}
