//! LabelEncoder: values by key. The keys are sorted when the model is compiled, and found by halving.

use super::DOMAIN;
use onnxc_ir::graph::{Op, Tensor as Data};
use onnxc_ops::row::*;
use onnxc_ops::strings::{constant, distinct, find};

const LABELS: &[DType] = &[DType::Str, DType::I64, DType::F32];
const LABELS_4: &[DType] = &[DType::Str, DType::I64, DType::F32, DType::I32, DType::I16, DType::F64];

pub const ROWS: &[OpDef] = &[
    ENCODER,
    ENCODER
        .since(2)
        .attributes(&[
            float("default_float", -0.0),
            int("default_int64", -1),
            string("default_string", "_Unused"),
            optional("keys_floats", Floats),
            optional("keys_int64s", Ints),
            optional("keys_strings", Strs),
            optional("values_floats", Floats),
            optional("values_int64s", Ints),
            optional("values_strings", Strs),
        ])
        .types(&[("T1", LABELS), ("T2", LABELS)]),
    ENCODER
        .since(4)
        .attributes(&[
            float("default_float", -0.0),
            int("default_int64", -1),
            string("default_string", "_Unused"),
            optional("default_tensor", Tensor),
            optional("keys_floats", Floats),
            optional("keys_int64s", Ints),
            optional("keys_strings", Strs),
            optional("keys_tensor", Tensor),
            optional("values_floats", Floats),
            optional("values_int64s", Ints),
            optional("values_strings", Strs),
            optional("values_tensor", Tensor),
        ])
        .types(&[("T1", LABELS_4), ("T2", LABELS_4)]),
];

const ENCODER: OpDef = op("LabelEncoder", 1, encode)
    .domain(DOMAIN)
    .inputs(&[req("X", "T1")])
    .outputs(&[req("Y", "T2")])
    .attributes(&[
        optional("classes_strings", Strs),
        int("default_int64", -1),
        string("default_string", "_Unused"),
    ])
    .types(&[("T1", &[DType::Str, DType::I64]), ("T2", &[DType::Str, DType::I64])])
    .doc("Values by key");

/// The list of numbers that `prefix` and a type name, as a vector.
fn list(cx: &NodeCx<'_, '_>, prefix: &str) -> Result<Data> {
    let vector = |data: Data| Data { shape: vec![data.len()], ..data };
    let name = |suffix: &str| format!("{prefix}_{suffix}");
    if cx.has(&name("tensor"))
        && let Some(tensor) = cx.tensor(&name("tensor"))?
    {
        return Ok(vector(tensor));
    }
    if let Some(values) = cx.ints(&name("int64s"))? {
        return Ok(Data::from_slice(&[values.len()], &values));
    }
    if let Some(values) = cx.floats(&name("floats"))? {
        return Ok(Data::from_slice(&[values.len()], &values));
    }
    match cx.strs(&name("strings"))? {
        Some(texts) => Ok(Data::from_texts(&[texts.len()], &texts)),
        None => malformed(format!("no {prefix} are given")),
    }
}

/// What a key that is not in the list gives, of the type of the values.
fn default(cx: &NodeCx<'_, '_>, values: DType) -> Result<Data> {
    if cx.has("default_tensor")
        && let Some(tensor) = cx.tensor("default_tensor")?
    {
        return match tensor.len() {
            1 => Ok(Data { shape: vec![], ..tensor }),
            count => malformed(format!("default_tensor has {count} elements, not 1")),
        };
    }
    let number = match values {
        DType::Str => return Ok(Data::from_texts(&[], &[cx.str("default_string")?])),
        DType::F32 | DType::F64 => Data::scalar(cx.float("default_float")?),
        _ => Data::scalar(cx.int("default_int64")?),
    };
    Ok(onnxc_ir::interp::cast(&number, values, true))
}

fn encode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    if !cx.has("keys_int64s") {
        return classes(cx, x);
    }
    let (keys, values) = (list(cx, "keys")?, list(cx, "values")?);
    if cx.b.dtype(x) != keys.dtype {
        return malformed(format!("keys of {} for an input of {}", keys.dtype, cx.b.dtype(x)));
    }
    if keys.len() != values.len() {
        return malformed(format!("{} keys and {} values", keys.len(), values.len()));
    }
    let default = default(cx, values.dtype)?;
    if default.dtype != values.dtype {
        return malformed(format!("a default of {} for values of {}", default.dtype, values.dtype));
    }
    if keys.dtype == DType::Str {
        let texts: Vec<String> =
            keys.texts().iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        return by_text(cx, x, &texts, values, default);
    }
    by_number(cx, x, &keys, values, default)
}

/// The value of the first key that is equal to a number, or the default.
fn by_number(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    keys: &Data,
    values: Data,
    default: Data,
) -> Result<Vec<ValueId>> {
    let (values, default) = (cx.b.constant(values), cx.b.constant(default));
    // The place of each key among the values; of equal keys the first one counts.
    let (sorted, places, nan) = match (keys.to_i64s(), keys.to_f64s()) {
        (Some(keys), _) => {
            let (sorted, places) = ordered(&keys, i64::cmp);
            let data = Data::from_slice(&[sorted.len()], &sorted);
            (data, places, None)
        }
        (None, Some(keys)) => {
            // No comparison finds a NaN; from version 4 on it is a key all the same.
            let nan = keys.iter().position(|key| key.is_nan()).filter(|_| cx.def.since >= 4);
            let numbers: Vec<(f64, usize)> = keys
                .iter()
                .enumerate()
                .filter(|(_, key)| !key.is_nan())
                .map(|(at, &key)| (key + 0.0, at))
                .collect();
            let (sorted, order) =
                ordered(&numbers.iter().map(|entry| entry.0).collect::<Vec<_>>(), f64::total_cmp);
            let places = order.iter().map(|&at| numbers[at as usize].1 as i64).collect();
            (Data::from_slice(&[sorted.len()], &sorted), places, nan)
        }
        _ => return unsupported(format!("keys of {}", keys.dtype)),
    };
    let shape = cx.b.shape(x);
    let mut y = cx.b.expand(default, shape)?;
    if !places.is_empty() {
        let sorted = onnxc_ir::interp::cast(&sorted, cx.b.dtype(x), true);
        let (found, at) = search(cx, x, sorted)?;
        let places = cx.b.constant(Data::from_slice(&[places.len()], &places));
        let place = cx.b.emit1(Op::Gather { axis: 0 }, &[places, at])?;
        let value = cx.b.emit1(Op::Gather { axis: 0 }, &[values, place])?;
        y = cx.b.select(found, value, y)?;
    }
    if let Some(at) = nan {
        let at = cx.b.constant(Data::scalar(at as i64));
        let value = cx.b.emit1(Op::Gather { axis: 0 }, &[values, at])?;
        let is_nan = cx.b.unary(UnaryFn::IsNan, x)?;
        y = cx.b.select(is_nan, value, y)?;
    }
    Ok(vec![y])
}

/// Version 1: strings to their places among the classes, or places to classes.
fn classes(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<Vec<ValueId>> {
    let classes = cx.strs("classes_strings")?.unwrap_or_default();
    let numbers: Vec<i64> = (0..classes.len() as i64).collect();
    between(cx, x, &classes, &numbers)
}

/// CategoryMapper: strings to integers, or integers to strings.
pub fn map_categories(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let (texts, numbers) =
        (cx.strs("cats_strings")?.unwrap_or_default(), cx.ints("cats_int64s")?.unwrap_or_default());
    if texts.len() != numbers.len() || texts.is_empty() {
        let (texts, numbers) = (texts.len(), numbers.len());
        return malformed(format!(
            "{texts} cats_strings and {numbers} cats_int64s: both lists must have one length, 1 or more"
        ));
    }
    between(cx, x, &texts, &numbers)
}

/// The number of each text, or the text of each number.
fn between(cx: &mut NodeCx<'_, '_>, x: ValueId, texts: &[String], numbers: &[i64]) -> Result<Vec<ValueId>> {
    let numbers = Data::from_slice(&[numbers.len()], numbers);
    if cx.b.dtype(x) == DType::Str {
        let default = default(cx, DType::I64)?;
        return by_text(cx, x, texts, numbers, default);
    }
    let default = default(cx, DType::Str)?;
    let texts = Data::from_texts(&[texts.len()], texts);
    by_number(cx, x, &numbers, texts, default)
}

/// The value of the first key that is equal to a text, or the default.
fn by_text(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    keys: &[String],
    values: Data,
    default: Data,
) -> Result<Vec<ValueId>> {
    let (default, shape) = (cx.b.constant(default), cx.b.shape(x));
    let default = cx.b.expand(default, shape)?;
    if keys.is_empty() {
        return Ok(vec![default]);
    }
    let (keys, places) = distinct(keys);
    // The first of equal keys counts.
    let firsts: Vec<i64> = (0..keys.len() as i64)
        .map(|key| places.iter().position(|&place| place == key).unwrap_or(0) as i64)
        .collect();
    let keys = constant(cx, &keys);
    let (firsts, values) = (cx.b.i64s(&firsts), cx.b.constant(values));
    let values = cx.b.emit1(Op::Gather { axis: 0 }, &[values, firsts])?;
    let place = find(cx.b, x, keys)?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let found = cx.b.compare(CompareFn::Ge, place, zero)?;
    let place = cx.b.binary(BinaryFn::Max, place, zero)?;
    let value = cx.b.emit1(Op::Gather { axis: 0 }, &[values, place])?;
    Ok(vec![cx.b.select(found, value, default)?])
}

/// Keys in ascending order, each once, and where the first of them stood.
fn ordered<T: Copy>(keys: &[T], compare: impl Fn(&T, &T) -> std::cmp::Ordering) -> (Vec<T>, Vec<i64>) {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| compare(&keys[a], &keys[b]));
    order.dedup_by(|b, a| compare(&keys[*a], &keys[*b]).is_eq());
    (order.iter().map(|&at| keys[at]).collect(), order.iter().map(|&at| at as i64).collect())
}

/// Whether each element of `x` is among `keys`, ascending, and where: the greatest key that is not above it, found by
/// bisection, in one step per bit of the number of keys.
fn search(cx: &mut NodeCx<'_, '_>, x: ValueId, keys: Data) -> Result<(ValueId, ValueId)> {
    let count = keys.len() as i64;
    let keys = cx.b.constant(keys);
    let zero = cx.b.scalar(DType::I64, 0.0);
    let shape = cx.b.shape(x);
    let mut at = cx.b.expand(zero, shape)?;
    let last = cx.b.constant(Data::scalar(count - 1));
    let mut step = (count as u64).next_power_of_two() as i64 / 2;
    while step > 0 {
        let step_value = cx.b.constant(Data::scalar(step));
        let next = cx.b.binary(BinaryFn::Add, at, step_value)?;
        let next = cx.b.binary(BinaryFn::Min, next, last)?;
        let probe = cx.b.emit1(Op::Gather { axis: 0 }, &[keys, next])?;
        let not_above = cx.b.compare(CompareFn::Le, probe, x)?;
        at = cx.b.select(not_above, next, at)?;
        step /= 2;
    }
    let key = cx.b.emit1(Op::Gather { axis: 0 }, &[keys, at])?;
    Ok((cx.b.compare(CompareFn::Eq, key, x)?, at))
}
