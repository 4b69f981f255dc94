//! What bodies give: values of every kind, as columns among the outputs of their graphs.

use super::{inside, is_outer};
use crate::Body;
use crate::item::{ItemType, Layout, columns, from_columns};
use crate::row::*;

/// The results of a body with their types.
pub(super) fn results_of(body: &Body) -> Vec<ItemType> {
    let values: Vec<ValueId> = body.graph.outputs.iter().map(|(_, value)| *value).collect();
    let typed = |item: Item| ItemType {
        layout: item.layout(),
        columns: item.columns().iter().map(|&column| body.graph.ty(column).clone()).collect(),
    };
    from_columns(&body.results, &values).into_iter().map(typed).collect()
}

/// The ranks of those results of a body that are tensors.
fn ranks_of(body: &Body) -> Vec<Option<usize>> {
    let rank = |ty: &ItemType| (ty.layout == Layout::Tensor).then(|| ty.columns[0].rank());
    results_of(body).iter().map(rank).collect()
}

/// Whether the results have the ranks that the model declares.
pub(super) fn has_declared_ranks(cx: &NodeCx<'_, '_>, body: &Body) -> bool {
    let fits = |(at, rank): (usize, Option<usize>)| match (rank, cx.declared_rank(at)) {
        (Some(rank), Some(declared)) => rank == declared,
        _ => true,
    };
    ranks_of(body).into_iter().enumerate().all(fits)
}

/// Whether the tensors that two bodies give with unlike ranks may be handed on so.
pub(super) fn may_differ_in_rank(cx: &NodeCx<'_, '_>, [a, b]: &[Body; 2]) -> bool {
    let rank = |ty: &ItemType| (ty.layout == Layout::Tensor).then(|| ty.columns[0].rank());
    let (a, b) = (results_of(a), results_of(b));
    let mut pairs = a.iter().zip(&b).enumerate();
    pairs.all(|(at, (a, b))| {
        let same = a.layout == b.layout && rank(a) == rank(b);
        same || cx.bodies.may_have_any_rank(at)
    })
}

/// Whether tensors that two bodies give have equal ranks.
pub(super) fn same_ranks([a, b]: &[Body; 2]) -> bool {
    ranks_of(a).iter().zip(ranks_of(b)).all(|(a, b)| *a == b)
}

/// Lets two bodies give the same columns.
pub(super) fn same_layouts(
    cx: &mut NodeCx<'_, '_>,
    bodies: &mut [Body; 2],
    outer: usize,
) -> Result<Vec<Layout>> {
    let [then, otherwise] = [0, 1].map(|which| results_of(&bodies[which]));
    let stays = |dim: &Dim| is_outer(dim, outer);
    let mut types = vec![];
    for (at, (a, b)) in then.iter().zip(&otherwise).enumerate() {
        let joined = match a.of_any_rank(b) {
            Some(joined) if cx.bodies.may_have_any_rank(at) => Ok(joined),
            // Tensors of unlike ranks are an error of what follows.
            Some(_) => Ok(a.clone()),
            None => a.join(b, &stays),
        };
        types.push(joined.map_err(|error| of_output(at, error))?);
    }
    for body in bodies {
        give_types(cx, body, 0, &types)?;
    }
    Ok(types.into_iter().map(|ty| ty.layout).collect())
}

/// An error that concerns a result.
pub(super) fn of_output(at: usize, error: Error) -> Error {
    error.reworded(|message| format!("output {at}: {message}"))
}

/// Converts the results of a body, from number `first` on, to types that can hold them.
pub(super) fn give_types(
    cx: &mut NodeCx<'_, '_>,
    body: &mut Body,
    first: usize,
    types: &[ItemType],
) -> Result<()> {
    let values: Vec<ValueId> = body.graph.outputs.iter().map(|(_, value)| *value).collect();
    let items = from_columns(&body.results, &values);
    let fits = |(item, ty): (&Item, &ItemType)| item.layout() == ty.layout;
    if items.iter().skip(first).zip(types).all(fits) {
        return Ok(());
    }
    let mut converted = vec![];
    for (at, item) in items.into_iter().enumerate() {
        converted.push(match at.checked_sub(first).and_then(|at| types.get(at)) {
            Some(ty) => inside(cx, &mut body.graph, |b| item.convert(b, ty))?,
            None => item,
        });
    }
    body.results = converted.iter().map(Item::layout).collect();
    body.graph.outputs = columns(&converted).into_iter().map(|value| (String::new(), value)).collect();
    Ok(())
}
