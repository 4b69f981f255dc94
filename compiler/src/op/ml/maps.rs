//! Maps, whose keys are integers: those of strings wait for tensors of strings.

use super::super::item::Layout;
use super::super::row::*;
use super::DOMAIN;

const MAP: &[Kind] = &[Kind::Map];

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    OpDef { domain: DOMAIN, ..row("ZipMap", 1, &[req("X", "tensor(float)")], &[req("Z", "T").of(&[Kind::Records])],
        &[optional("classlabels_int64s", Ints), optional("classlabels_strings", Strs)], &[("T", &[DType::F32])],
        ANY, zip_map, "A map from labels to numbers for each row") },
    OpDef { domain: DOMAIN, ..row("CastMap", 1, &[req("X", "T1").of(MAP)], &[req("Y", "T2")],
        &[int("max_map", 1), string("map_form", "DENSE"), string("cast_to", "TO_FLOAT")],
        &[("T1", &[DType::Str, DType::F32]), ("T2", &[DType::Str, DType::F32, DType::I64])], ANY, cast_map,
        "The values of a map in the order of its keys") },
    OpDef { domain: DOMAIN, ..row("DictVectorizer", 1, &[req("X", "T1").of(MAP)], &[req("Y", "T2")],
        &[optional("int64_vocabulary", Ints), optional("string_vocabulary", Strs)],
        &[("T1", &[DType::Str, DType::I64, DType::F32, DType::F64]),
          ("T2", &[DType::I64, DType::F32, DType::F64, DType::Str])], ANY, vectorize,
        "The values of a map in the order of a vocabulary") },
];

/// The keys that an attribute lists.
fn labels(cx: &NodeCx<'_, '_>, integers: &str, strings: &str) -> Result<Vec<i64>> {
    match (cx.ints(integers)?, cx.strs(strings)?) {
        (Some(labels), None) => Ok(labels),
        (None, Some(_)) => unsupported(format!("{strings}: keys that are strings")),
        _ => malformed(format!("one of {integers} and {strings} must be given")),
    }
}

fn zip_map(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let labels = labels(cx, "classlabels_int64s", "classlabels_strings")?;
    let rows = match cx.b.shape(x).as_slice() {
        [_, _] => x,
        [_] => cx.b.unsqueeze(x, &[0])?,
        _ => return malformed(format!("{} has no rows", cx.b.ty(x))),
    };
    let shape = cx.b.shape(rows);
    // Whether a symbolic number of columns is that of the labels shows when the model runs.
    if shape[1].as_const().is_some_and(|columns| columns != labels.len() as i64) {
        return malformed(format!("{} labels for the columns of {}", labels.len(), cx.b.ty(x)));
    }
    let values = cx.b.reshape(rows, vec![shape[0].clone(), Dim::from(labels.len())])?;
    let keys = cx.b.i64s(&labels);
    cx.give(vec![Item::new(Layout::Records, vec![keys, values])])
}

/// The columns of a map, whose keys must be integers.
fn columns(cx: &NodeCx<'_, '_>) -> Result<(ValueId, ValueId)> {
    match *cx.item(0)?.columns() {
        [keys, values] if cx.b.dtype(keys) == DType::I64 => Ok((keys, values)),
        [keys, _] => unsupported(format!("keys of {}", cx.b.dtype(keys))),
        _ => malformed("no map"),
    }
}

/// `out[j]`: the value whose key is `wanted[j]`, or 0.
fn looked_up(cx: &mut NodeCx<'_, '_>, keys: ValueId, values: ValueId, wanted: ValueId) -> Result<ValueId> {
    let (count, found) = (cx.b.shape(keys)[0].clone(), cx.b.shape(wanted)[0].clone());
    let dtype = cx.b.dtype(values);
    if dtype == DType::Str {
        return unsupported("values that are strings");
    }
    let column = cx.b.reshape(wanted, vec![found.clone(), Dim::ONE])?;
    let row = cx.b.reshape(keys, vec![Dim::ONE, count.clone()])?;
    let same = cx.b.compare(CompareFn::Eq, column, row)?;
    let values = cx.b.reshape(values, vec![Dim::ONE, count])?;
    let zero = cx.b.scalar(dtype, 0.0);
    let picked = cx.b.select(same, values, zero)?;
    let sum = cx.b.reduce(ReduceFn::Sum, picked, &[1])?;
    cx.b.reshape(sum, vec![Dim::ONE, found])
}

fn vectorize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let vocabulary = labels(cx, "int64_vocabulary", "string_vocabulary")?;
    let (keys, values) = columns(cx)?;
    let wanted = cx.b.i64s(&vocabulary);
    Ok(vec![looked_up(cx, keys, values, wanted)?])
}

/// DENSE: the values in the order in which the map has them, which is that of the keys. SPARSE: each at the place that its
/// key says, of `max_map` places.
fn cast_map(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let to = match cx.str("cast_to")?.as_str() {
        "TO_FLOAT" => DType::F32,
        "TO_INT64" => DType::I64,
        "TO_STRING" => return unsupported("cast_to `TO_STRING`"),
        other => return not_one_of("cast_to", other, "TO_FLOAT, TO_INT64, TO_STRING"),
    };
    let (keys, values) = columns(cx)?;
    let row = match cx.str("map_form")?.as_str() {
        "DENSE" => {
            if cx.b.dtype(values) == DType::Str {
                return unsupported("values that are strings");
            }
            let count = cx.b.shape(values)[0].clone();
            let index = cx.b.sort(keys, 0, false, count.clone())?.1;
            let sorted = cx.b.emit1(crate::graph::Op::Gather { axis: 0 }, &[values, index])?;
            cx.b.reshape(sorted, vec![Dim::ONE, count])?
        }
        "SPARSE" => {
            let places = cx.int("max_map")?;
            if places < 0 {
                return malformed(format!("max_map is {places}; it must not be negative"));
            }
            let wanted = cx.b.iota(vec![Dim::from(places)], 0)?;
            looked_up(cx, keys, values, wanted)?
        }
        other => return not_one_of("map_form", other, "DENSE, SPARSE"),
    };
    Ok(vec![cx.b.cast(row, to)?])
}
