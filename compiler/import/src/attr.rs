//! Attributes: which kind one has, whether a row allows it, and its value.

use std::collections::HashMap;

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, NodeProto};

use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ops::training::{BODY, DOMAIN};
use onnxc_ops::{Attr, AttrDefault, AttrKind, OpDef, Texts};

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Import, message))
}

/// Kind of an attribute. Where the discriminator is missing (IR version 1), it follows from the field that is set.
pub(crate) fn kind(attribute: &AttributeProto) -> Result<AttrKind> {
    let name = attribute.name();
    let number = attribute.r#type.unwrap_or(0);
    Ok(match AttributeType::try_from(number) {
        Ok(AttributeType::Float) => AttrKind::Float,
        Ok(AttributeType::Int) => AttrKind::Int,
        Ok(AttributeType::String) => AttrKind::Str,
        Ok(AttributeType::Tensor) => AttrKind::Tensor,
        Ok(AttributeType::Graph) => AttrKind::Graph,
        Ok(AttributeType::SparseTensor) => AttrKind::SparseTensor,
        Ok(AttributeType::TypeProto) => AttrKind::Type,
        Ok(AttributeType::Floats) => AttrKind::Floats,
        Ok(AttributeType::Ints) => AttrKind::Ints,
        Ok(AttributeType::Strings) => AttrKind::Strs,
        Ok(AttributeType::Tensors) => AttrKind::Tensors,
        Ok(AttributeType::Graphs) => AttrKind::Graphs,
        Ok(AttributeType::SparseTensors | AttributeType::TypeProtos) => {
            return Err(Error::unsupported(Stage::Import, format!("attribute {name}: lists of its kind")));
        }
        Ok(AttributeType::Undefined) => match kind_of_set_field(attribute) {
            Some(kind) => kind,
            None => return malformed(format!("attribute {name} has no value")),
        },
        Err(_) => return malformed(format!("attribute {name} has the unknown kind {number}")),
    })
}

fn kind_of_set_field(attribute: &AttributeProto) -> Option<AttrKind> {
    let fields = [
        (attribute.f.is_some(), AttrKind::Float),
        (attribute.i.is_some(), AttrKind::Int),
        (attribute.s.is_some(), AttrKind::Str),
        (attribute.t.is_some(), AttrKind::Tensor),
        (attribute.g.is_some(), AttrKind::Graph),
        (attribute.sparse_tensor.is_some(), AttrKind::SparseTensor),
        (attribute.tp.is_some(), AttrKind::Type),
        (!attribute.floats.is_empty(), AttrKind::Floats),
        (!attribute.ints.is_empty(), AttrKind::Ints),
        (!attribute.strings.is_empty(), AttrKind::Strs),
        (!attribute.tensors.is_empty(), AttrKind::Tensors),
        (!attribute.graphs.is_empty(), AttrKind::Graphs),
    ];
    fields.into_iter().find(|field| field.0).map(|field| field.1)
}

/// Checks the kinds of a node's attributes that a row has, and that none occurs twice. Values of
/// references, and whether what is required is there, only a call decides: [`check_values`].
pub(crate) fn check_names(row: &OpDef, node: &NodeProto) -> Result<()> {
    for (at, attribute) in node.attribute.iter().enumerate() {
        let name = attribute.name();
        let Some(wanted) = row.attributes.iter().find(|wanted| wanted.name == name) else { continue };
        if node.attribute[..at].iter().any(|other| other.name() == name) {
            return malformed(format!("attribute {name} is given twice"));
        }
        if attribute.ref_attr_name().is_empty() {
            check_kind(name, wanted.default.kind(), kind(attribute)?)?;
        }
    }
    Ok(())
}

/// Checks the values of a node's attributes, references replaced, against a row.
pub(crate) fn check_values(row: &OpDef, values: &HashMap<String, Attr<'_>>) -> Result<()> {
    for wanted in row.attributes {
        match (values.get(wanted.name), wanted.default) {
            (Some(value), default) => check_kind(wanted.name, default.kind(), value.kind())?,
            (None, AttrDefault::Required(_)) => {
                return malformed(format!("the required attribute {} is missing", wanted.name));
            }
            (None, _) => {}
        }
    }
    Ok(())
}

fn check_kind(name: &str, wanted: AttrKind, found: AttrKind) -> Result<()> {
    // A decoded sparse tensor is a tensor.
    if wanted == found || (wanted, found) == (AttrKind::SparseTensor, AttrKind::Tensor) {
        return Ok(());
    }
    malformed(format!("attribute {name} is {found}, and must be {wanted}"))
}

/// Whether a row has an attribute. A Gradient has one more, which the importer gives it.
pub(crate) fn is_known(row: &OpDef, name: &str) -> bool {
    row.attributes.iter().any(|known| known.name == name) || name == BODY && row.domain == DOMAIN
}

/// The attributes of a row, for messages.
pub(crate) fn names(row: &OpDef) -> String {
    let names: Vec<&str> = row.attributes.iter().map(|attribute| attribute.name).collect();
    if names.is_empty() { format!("{}'s attributes: it has none", row.name) } else { names.join(", ") }
}

/// The texts of an attribute of several.
pub(crate) fn texts(attribute: &AttributeProto) -> Result<Texts<'_>> {
    match Texts::new(attribute.strings.as_slice()) {
        Some(texts) => Ok(texts),
        None => malformed(format!("attribute {} is not UTF-8", attribute.name())),
    }
}

/// The value of a string attribute; rows that ask for text refuse what is not UTF-8.
pub(crate) fn string(attribute: &AttributeProto) -> Attr<'static> {
    match std::str::from_utf8(attribute.s()) {
        Ok(text) => Attr::Str(text.to_string()),
        Err(_) => Attr::Bytes(attribute.s.clone().unwrap_or_default()),
    }
}

/// One of the texts of an attribute.
pub(crate) fn text(attribute: &AttributeProto, bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_string()),
        Err(_) => malformed(format!("attribute {} is not UTF-8", attribute.name())),
    }
}
