//! Nodes and their attributes.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, FunctionProto, NodeProto};

use super::{NodeScope, Role, Validator, malformed};
use crate::check::check_signature;
use crate::{attr, domain_name, newest, normal_domain};
use onnxc_ir::error::Error;
use onnxc_ir::rules::Rule;
use onnxc_ops::training::BODY;
use onnxc_ops::{OpDef, Table};

/// Operators that versions of their domains deprecate: the first such version, the last one if a later version brings the
/// operator back, and what takes its place. Those that the schemas of ONNX call deprecated.
const DEPRECATED: &[(&str, &str, u32, u32, &str)] = &[
    ("", "GroupNormalization", 18, 20, "GroupNormalization of opset 21"),
    ("", "Scatter", 11, u32::MAX, "ScatterElements"),
    ("", "Upsample", 10, u32::MAX, "Resize"),
    ("ai.onnx.ml", "TreeEnsembleClassifier", 5, u32::MAX, "TreeEnsemble"),
    ("ai.onnx.ml", "TreeEnsembleRegressor", 5, u32::MAX, "TreeEnsemble"),
];

impl<'m> Validator<'m> {
    pub(super) fn node(&mut self, index: usize, node: &'m NodeProto, place: &NodeScope<'m>) {
        let about = |message: String| malformed(message).at(place.site(node, index));
        if !node.metadata_props.is_empty() {
            self.metadata(&format!("node {index} `{}`", node.name()), &node.metadata_props);
        }
        if node.output.is_empty() {
            self.error(Rule::NodeOutputs, || {
                about("the node has no outputs; it must have one or more".to_string())
            });
        }
        match self.callee(node) {
            Some(function) => self.call(node, function, place, &about),
            None => self.operator(node, place, &about),
        }
        for attribute in &node.attribute {
            self.attribute(attribute, Some(place), &about);
        }
        self.shards(node, &about);
    }

    fn call(
        &mut self,
        node: &'m NodeProto,
        function: &'m FunctionProto,
        place: &NodeScope<'m>,
        about: &dyn Fn(String) -> Error,
    ) {
        let domain = normal_domain(node.domain());
        if place.role == Role::Compiled && place.opsets.imported(domain).is_none() {
            self.error(Rule::FunctionDomain, || {
                let owner = match place.function {
                    Some(caller) => format!("function {}", caller.name()),
                    None => "the model".to_string(),
                };
                about(format!(
                    "{owner} calls function {} of `{}` and imports no version of this domain",
                    function.name(),
                    domain_name(domain)
                ))
            });
        }
        for attribute in &node.attribute {
            let name = attribute.name();
            if !has_attribute(function, name) {
                self.log.found(Rule::CallAttribute, || {
                    about(format!(
                        "function {} has no attribute `{name}`; its value is not read",
                        function.name()
                    ))
                });
            }
        }
    }

    fn operator(&mut self, node: &'m NodeProto, place: &NodeScope<'m>, about: &dyn Fn(String) -> Error) {
        let (domain, name) = (normal_domain(node.domain()), node.op_type());
        let newest = newest(domain);
        let imported = place.opsets.imported(domain);
        if let (None, Some(newest), None, false) = (imported, newest, place.function, place.opsets.is_empty())
            && self.not_imported.insert(domain)
        {
            self.log.found(Rule::DomainNotImported, || {
                let domain = domain_name(domain);
                about(format!(
                    "no version of `{domain}` is imported; version {newest}, the newest known, is taken"
                ))
            });
        }
        let opset = imported.or(newest.filter(|_| place.function.is_none())).unwrap_or(0);
        let Some(row) = self.table.find(domain, name, opset) else {
            if place.role != Role::Compiled {
                let shown = domain_name(domain);
                self.aside(
                    place,
                    about(match imported {
                        Some(_) => format!("operator {name} of {shown} opset {opset} is not known"),
                        None => format!("operator {name} of {shown}, but no version of {shown} is imported"),
                    }),
                );
            }
            return;
        };
        if place.role != Role::Compiled
            && let Err(error) = check_signature(row, node)
        {
            self.aside(place, about(error.message));
        }
        let matches = |entry: &&(&str, &str, u32, u32, &str)| {
            (entry.0, entry.1) == (domain, name) && (entry.2..=entry.3).contains(&opset)
        };
        if let Some((.., instead)) = DEPRECATED.iter().find(matches) {
            self.log.found(Rule::DeprecatedOperator, || {
                let domain = domain_name(domain);
                about(format!(
                    "operator {name} is deprecated at opset {opset} of {domain}; {instead} takes its place"
                ))
            });
        }
        self.known_attributes(row, node, about);
        self.padding(row, node, about);
    }

    /// What is wrong with a node that is not compiled.
    fn aside(&mut self, place: &NodeScope<'m>, error: Error) {
        let rule = if place.role == Role::Unused { Rule::UnusedFunction } else { Rule::TrainingOperator };
        self.log.found(rule, || error);
    }

    /// Attributes that the row does not have are not read, unless another version of the operator has them: then the exporter
    /// meant another version, and what the attribute says would be lost.
    fn known_attributes(
        &mut self,
        row: &'static OpDef,
        node: &'m NodeProto,
        about: &dyn Fn(String) -> Error,
    ) {
        for attribute in &node.attribute {
            let name = attribute.name();
            if has_name(row, name) || name == BODY {
                continue;
            }
            let versions = versions_with(self.table, row, name);
            let text = format!("attribute `{name}` is not one of {}", attr::names(row));
            match versions.is_empty() {
                true => self.log.found(Rule::AttributeUnknown, || about(format!("{text}; it is not read"))),
                false => self.error(Rule::AttributeOfOtherVersion, || {
                    about(format!("{text}; it is one at version {}", versions.join(", ")))
                }),
            }
        }
    }

    fn padding(&mut self, row: &OpDef, node: &'m NodeProto, about: &dyn Fn(String) -> Error) {
        let of =
            |name| node.attribute.iter().find(|attribute| attribute.name() == name && has_name(row, name));
        let (Some(auto), Some(pads)) = (of("auto_pad"), of("pads")) else { return };
        if matches!(auto.s(), b"" | b"NOTSET") || pads.ints.is_empty() {
            return;
        }
        self.log.found(Rule::AutoPadWithPads, || {
            let auto = String::from_utf8_lossy(auto.s()).into_owned();
            about(format!("auto_pad is {auto} and pads is given, {:?}; pads is not read", pads.ints))
        });
    }

    /// The fields of an attribute: one value, of its type. `place` is that of its node, if it is one of a node.
    pub(super) fn attribute(
        &mut self,
        attribute: &'m AttributeProto,
        place: Option<&NodeScope<'m>>,
        about: &dyn Fn(String) -> Error,
    ) {
        let name = attribute.name();
        let fields = set_fields(attribute);
        let texts = || fields.iter().map(|field| field.1).collect::<Vec<_>>().join(" and ");
        let reference = attribute.ref_attr_name();
        if !reference.is_empty() {
            if !fields.is_empty() {
                self.log.found(Rule::ReferenceWithValue, || {
                    about(format!(
                        "attribute {name} refers to `{reference}` and has {}, too; the reference holds",
                        texts()
                    ))
                });
            }
            let function = place.and_then(|place| place.function);
            if let Some(function) = function.filter(|function| !has_attribute(function, reference)) {
                self.log.found(Rule::ReferenceNowhere, || {
                    about(format!(
                        "attribute {name} refers to `{reference}`, which function {} does not have; {name} is left out",
                        function.name()
                    ))
                });
            }
            return;
        }
        let number = attribute.r#type.unwrap_or(0);
        let ty = AttributeType::try_from(number).unwrap_or(AttributeType::Undefined);
        match (fields.as_slice(), ty) {
            ([_, _, ..], _) => self.error(Rule::AttributeFields, || {
                about(format!(
                    "attribute {name} has {}; it must have one value, of its type {}",
                    texts(),
                    ty.as_str_name()
                ))
            }),
            // What its kind is, the importer asks.
            (_, AttributeType::Undefined) if number != 0 => {}
            ([(_, value)], AttributeType::Undefined) if self.model.ir_version() >= 2 => {
                self.error(Rule::AttributeType, || {
                    about(format!(
                        "attribute {name} has {value} and no type; the type says which field is read"
                    ))
                });
            }
            ([(kind, value)], ty) if ty != AttributeType::Undefined && *kind != ty => {
                self.error(Rule::AttributeField, || {
                    about(format!(
                        "attribute {name} is of type {}, and what it has is {value}",
                        ty.as_str_name()
                    ))
                });
            }
            ([], AttributeType::Int | AttributeType::Float | AttributeType::String) => {
                self.log.found(Rule::AttributeValue, || {
                    let zero = if ty == AttributeType::String { "the empty text" } else { "0" };
                    about(format!(
                        "attribute {name} of type {} has no value; {zero} is taken",
                        ty.as_str_name()
                    ))
                });
            }
            _ => {}
        }
    }
}

fn has_name(row: &OpDef, name: &str) -> bool {
    row.attributes.iter().any(|attribute| attribute.name == name)
}

fn has_attribute(function: &FunctionProto, name: &str) -> bool {
    function.attribute.iter().any(|attribute| attribute == name)
        || function.attribute_proto.iter().any(|attribute| attribute.name() == name)
}

/// The versions of a row's operator that have an attribute.
fn versions_with(table: &Table, row: &OpDef, name: &str) -> Vec<String> {
    let mut versions: Vec<u32> = (1..=newest(row.domain).unwrap_or(1))
        .filter_map(|opset| table.lookup(row.domain, row.name, opset))
        .filter(|other| has_name(other, name))
        .map(|other| other.since)
        .collect();
    versions.dedup();
    versions.iter().map(u32::to_string).collect()
}

/// The value fields that are set, each as the type it is of and in words.
fn set_fields(attribute: &AttributeProto) -> Vec<(AttributeType, &'static str)> {
    use AttributeType::*;
    let fields = [
        (attribute.f.is_some(), (Float, "a float")),
        (attribute.i.is_some(), (Int, "an int")),
        (attribute.s.is_some(), (String, "a string")),
        (attribute.t.is_some(), (Tensor, "a tensor")),
        (attribute.g.is_some(), (Graph, "a graph")),
        (attribute.sparse_tensor.is_some(), (SparseTensor, "a sparse tensor")),
        (attribute.tp.is_some(), (TypeProto, "a type")),
        (!attribute.floats.is_empty(), (Floats, "a list of floats")),
        (!attribute.ints.is_empty(), (Ints, "a list of ints")),
        (!attribute.strings.is_empty(), (Strings, "a list of strings")),
        (!attribute.tensors.is_empty(), (Tensors, "a list of tensors")),
        (!attribute.graphs.is_empty(), (Graphs, "a list of graphs")),
        (!attribute.sparse_tensors.is_empty(), (SparseTensors, "a list of sparse tensors")),
        (!attribute.type_protos.is_empty(), (TypeProtos, "a list of types")),
    ];
    fields.into_iter().filter(|field| field.0).map(|field| field.1).collect()
}
