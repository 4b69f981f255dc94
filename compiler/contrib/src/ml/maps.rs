//! Maps, whose keys are integers or strings.

use super::DOMAIN;
use onnxc_ir::graph::{Op, Tensor as Data};
use onnxc_ops::item::Layout;
use onnxc_ops::row::*;
use onnxc_ops::strings;

const MAP: &[ItemKind] = &[ItemKind::Map];

pub const ROWS: &[OpDef] = &[
    op("ZipMap", 1, zip_map)
        .domain(DOMAIN)
        .inputs(&[req("X", "tensor(float)")])
        .outputs(&[req("Z", "T").of(&[ItemKind::Records])])
        .attributes(&[optional("classlabels_int64s", Ints), optional("classlabels_strings", Strs)])
        .types(&[("T", &[DType::F32])])
        .doc("A map from labels to numbers for each row"),
    op("CastMap", 1, cast_map)
        .domain(DOMAIN)
        .inputs(&[req("X", "T1").of(MAP)])
        .outputs(&[req("Y", "T2")])
        .attributes(&[int("max_map", 1), string("map_form", "DENSE"), string("cast_to", "TO_FLOAT")])
        .types(&[("T1", &[DType::Str, DType::F32]), ("T2", &[DType::Str, DType::F32, DType::I64])])
        .doc("The values of a map in the order of its keys"),
    op("DictVectorizer", 1, vectorize)
        .domain(DOMAIN)
        .inputs(&[req("X", "T1").of(MAP)])
        .outputs(&[req("Y", "T2")])
        .attributes(&[optional("int64_vocabulary", Ints), optional("string_vocabulary", Strs)])
        .types(&[
            ("T1", &[DType::Str, DType::I64, DType::F32, DType::F64]),
            ("T2", &[DType::I64, DType::F32, DType::F64, DType::Str]),
        ])
        .doc("The values of a map in the order of a vocabulary"),
];

/// The keys that an attribute lists.
fn labels(cx: &NodeCx<'_, '_>, integers: &str, strings: &str) -> Result<Data> {
    match (cx.ints(integers)?, cx.strs(strings)?) {
        (Some(labels), None) => Ok(Data::from_slice(&[labels.len()], &labels)),
        (None, Some(labels)) => Ok(Data::from_texts(&[labels.len()], &labels)),
        _ => malformed(format!("one of {integers} and {strings} must be given")),
    }
}

fn zip_map(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
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
    let keys = cx.b.constant(labels);
    cx.give(vec![Item::new(Layout::Records, vec![keys, values])])
}

/// The columns of a map.
fn columns(cx: &NodeCx<'_, '_>) -> Result<(ValueId, ValueId)> {
    match *cx.item(0)?.columns() {
        [keys, values] => Ok((keys, values)),
        _ => malformed("no map"),
    }
}

/// `out[j]`: the value whose key is `wanted[j]`, or 0; of strings the empty one.
fn looked_up(cx: &mut NodeCx<'_, '_>, keys: ValueId, values: ValueId, wanted: ValueId) -> Result<ValueId> {
    if cx.b.dtype(keys) != cx.b.dtype(wanted) {
        let (keys, wanted) = (cx.b.dtype(keys), cx.b.dtype(wanted));
        return malformed(format!("a map from keys of {keys}, and {wanted} to look up"));
    }
    let (count, found) = (cx.b.shape(keys)[0].clone(), cx.b.shape(wanted)[0].clone());
    let column = cx.b.reshape(wanted, vec![found.clone(), Dim::ONE])?;
    let row = cx.b.reshape(keys, vec![Dim::ONE, count.clone()])?;
    let same = cx.b.compare(CompareFn::Eq, column, row)?;
    let hits = cx.b.cast(same, DType::I64)?;
    let place = cx.b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[hits])?;
    let is_there = cx.b.reduce(ReduceFn::Or, same, &[1])?;
    // What is nowhere lies behind all values.
    let behind = dim(cx, &count)?;
    let place = cx.b.select(is_there, place, behind)?;
    let nothing = cx.b.scalar(cx.b.dtype(values), 0.0);
    let nothing = cx.b.reshape(nothing, vec![Dim::ONE])?;
    let values = cx.b.concat(&[values, nothing], 0)?;
    let picked = cx.b.emit1(Op::Gather { axis: 0 }, &[values, place])?;
    cx.b.reshape(picked, vec![Dim::ONE, found])
}

fn vectorize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let vocabulary = labels(cx, "int64_vocabulary", "string_vocabulary")?;
    let (keys, values) = columns(cx)?;
    let wanted = cx.b.constant(vocabulary);
    Ok(vec![looked_up(cx, keys, values, wanted)?])
}

/// DENSE: the values in the order in which the map has them, which is that of the keys. SPARSE: each at the place that its
/// key says, of `max_map` places.
fn cast_map(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let to = match cx.str("cast_to")?.as_str() {
        "TO_FLOAT" => DType::F32,
        "TO_INT64" => DType::I64,
        "TO_STRING" => DType::Str,
        other => return not_one_of("cast_to", other, "TO_FLOAT, TO_INT64, TO_STRING"),
    };
    let (keys, values) = columns(cx)?;
    let row = match cx.str("map_form")?.as_str() {
        "DENSE" => {
            let count = cx.b.shape(values)[0].clone();
            let index = cx.b.sort(keys, 0, false, count.clone())?.1;
            let sorted = cx.b.emit1(Op::Gather { axis: 0 }, &[values, index])?;
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
    let from = cx.b.dtype(row);
    Ok(vec![match (from, to) {
        _ if from == to => row,
        (DType::Str, _) => strings::parse(cx.b, row, to)?,
        (_, DType::Str) => strings::format(cx.b, row)?,
        _ => cx.b.cast(row, to)?,
    }])
}

#[cfg(test)]
mod tests {
    use onnxc_proto::AttributeProto;
    use onnxc_proto::attribute_proto::AttributeType;
    use onnxc_proto::build;

    use onnxc_import::testing::{graph, node};
    use onnxc_import::{ImportOptions, NoExternalData, import};

    #[test]
    fn a_form_that_is_none_is_named() {
        let form =
            AttributeProto { s: Some("dense".into()), ..build::attribute("map_form", AttributeType::String) };
        let mut cast = node("y = CastMap(m)").with(form);
        cast.domain = Some("ai.onnx.ml".into());
        let mut model = build::model(17, graph(&["m: map(i64, f32[])"], vec![cast], &["y"]));
        model.opset_import.push(build::opset("ai.onnx.ml", 1));
        let errors =
            import(&model, &ImportOptions::default(), &NoExternalData, &crate::tests::table()).err().unwrap();
        let wanted = "map_form is `dense`; it may be one of DENSE, SPARSE";
        assert!(errors[0].to_string().contains(wanted), "{errors:?}");
    }
}
