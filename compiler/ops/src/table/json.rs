//! The operator table as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::{Arity, AttrDefault, AttrKind, OpDef, Param};
use super::{Table, grouped, type_lists};

impl Table {
    /// The whole table: `{domain: {operator: [{since, inputs, outputs, attributes, types, doc}, ..]}}`.
    pub fn json(&self) -> Value {
        let operators =
            |operators: BTreeMap<&'static str, Vec<&'static OpDef>>| -> serde_json::Map<String, Value> {
                operators
                    .into_iter()
                    .map(|(name, rows)| (name.to_string(), rows.into_iter().map(row_json).collect()))
                    .collect()
            };
        grouped(self)
            .into_iter()
            .map(|(domain, of_domain)| (domain.to_string(), Value::Object(operators(of_domain))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

fn row_json(row: &OpDef) -> Value {
    let params = |params: &[Param]| -> Vec<Value> { params.iter().map(param_json).collect() };
    let attributes: Vec<Value> = row
        .attributes
        .iter()
        .map(|attribute| {
            let (kind, default) = default_json(&attribute.default);
            let required = matches!(attribute.default, AttrDefault::Required(_));
            json!({ "name": attribute.name, "kind": kind.name(), "required": required, "default": default })
        })
        .collect();
    let types: serde_json::Map<String, Value> =
        type_lists(row).map(|(variable, types)| (variable.to_string(), types.into())).collect();
    json!({
        "since": row.since,
        "inputs": params(row.inputs),
        "outputs": params(row.outputs),
        "attributes": attributes,
        "types": types,
        "shapes": row.shapes,
        "doc": row.doc,
    })
}

fn param_json(param: &Param) -> Value {
    let arity = match param.arity {
        Arity::Required => "required",
        Arity::Optional => "optional",
        Arity::Variadic | Arity::Mixed => "variadic",
    };
    let kinds: Vec<String> = param.kinds.iter().map(|kind| kind.to_string()).collect();
    json!({ "name": param.name, "type": param.ty, "arity": arity, "kinds": kinds })
}

fn default_json(default: &AttrDefault) -> (AttrKind, Value) {
    match default {
        AttrDefault::Required(kind) | AttrDefault::Optional(kind) => (*kind, Value::Null),
        AttrDefault::Int(value) => (AttrKind::Int, json!(value)),
        AttrDefault::Float(value) => (AttrKind::Float, json!(value)),
        AttrDefault::Str(value) => (AttrKind::Str, json!(value)),
        AttrDefault::Ints(values) => (AttrKind::Ints, json!(values)),
        AttrDefault::Strs(values) => (AttrKind::Strs, json!(values)),
    }
}
