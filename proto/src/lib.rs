//! The ONNX model format: bytes to plain structs, under one budget.
//!
//! [`decode`] first walks the wire format without recursion or allocation, drawing on a [`Budget`], and only
//! then lets prost build the structs. Tensor data stays where it is: every `bytes` field is a slice of
//! the given [`Bytes`], which may be a mapped file. This crate knows no semantics: what a well-formed
//! message means is the importer's business.

pub mod build;
#[cfg(test)]
mod digest;
mod walk;

/// The structs of `proto/onnx.proto` and `proto/onnx-data.proto`.
mod schema {
    include!("generated/onnx.rs");
}

use std::error::Error;
use std::fmt::{self, Display, Formatter};

use bytes::Bytes;
use prost::Message;

pub use schema::*;

/// The bytes of a message.
pub fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// The newest IR version whose fields the schema has.
pub const IR_VERSION: i64 = 14;

/// What decoding may use. The defaults fit every model that fits a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Length of the input, in bytes.
    pub bytes: u64,
    /// Memory of the decoded structs, in bytes, without the `bytes` payloads (they are not copied): this for any input, and
    /// `memory_per_byte` more for each byte of it. Nodes, attributes and types take a few dozen bytes in the file and a few hundred
    /// decoded; only weights make a file of many megabytes.
    pub memory: u64,
    pub memory_per_byte: u64,
    /// Messages and scalars in all: fields, and elements of lists of variable-length numbers.
    pub elements: u64,
    /// Messages inside each other; more than [`Budget::MAX_NESTING`] are never decoded.
    pub nesting: u32,
}

impl Budget {
    /// Depth that protobuf implementations agree on.
    pub const MAX_NESTING: u32 = 100;
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            bytes: 64 << 30,
            memory: 192 << 20,
            memory_per_byte: 4,
            elements: 1 << 31,
            nesting: Budget::MAX_NESTING,
        }
    }
}

/// Why a file is not an ONNX model, and where: `graph.node[3].attribute[0]` at a byte offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// The innermost message, from the root's fields.
    pub path: String,
    /// Position in the input where the fault was seen.
    pub offset: usize,
    pub fault: Fault,
}

impl Display for DecodeError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}, in {}: {}", self.offset, self.path, self.fault)
    }
}

impl Error for DecodeError {}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The data ends inside a field.
    Truncated,
    /// A variable-length number has more than 64 bits.
    Varint,
    FieldNumber(u64),
    WireType(u8),
    FieldType {
        field: &'static str,
        wire: u8,
    },
    /// A field is longer than what is left.
    Overrun {
        field: &'static str,
        length: u64,
        left: usize,
    },
    Utf8(&'static str),
    Ragged {
        field: &'static str,
        width: usize,
        length: usize,
    },
    Budget {
        unit: &'static str,
        limit: u64,
    },
    Structure(String),
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Truncated => write!(f, "the data ends inside a field"),
            Fault::Varint => write!(f, "a variable-length number has more than 64 bits"),
            Fault::FieldNumber(number) => write!(f, "field number {number} is not valid"),
            Fault::WireType(wire) => write!(f, "wire type {wire} is not part of the format"),
            Fault::FieldType { field, wire } => {
                write!(f, "field {field} has wire type {wire}, which does not fit it")
            }
            Fault::Overrun { field, length, left } => {
                write!(f, "field {field} is {length} bytes long, and {left} are left")
            }
            Fault::Utf8(field) => write!(f, "field {field} is not UTF-8"),
            Fault::Ragged { field, width, length } => {
                write!(f, "list {field} of {width}-byte elements is {length} bytes long")
            }
            Fault::Budget { unit, limit } => write!(f, "the budget of {limit} {unit} is exceeded"),
            Fault::Structure(text) => f.write_str(text),
        }
    }
}

impl Error for Fault {}

/// Decodes a model file.
pub fn decode(bytes: Bytes, budget: &Budget) -> Result<ModelProto, DecodeError> {
    decode_as("ModelProto", bytes, budget)
}

/// Decodes a lone tensor, the format of test data.
pub fn decode_tensor(bytes: Bytes, budget: &Budget) -> Result<TensorProto, DecodeError> {
    decode_as("TensorProto", bytes, budget)
}

/// Decodes a lone sequence.
pub fn decode_sequence(bytes: Bytes, budget: &Budget) -> Result<SequenceProto, DecodeError> {
    decode_as("SequenceProto", bytes, budget)
}

/// Decodes a lone optional.
pub fn decode_optional(bytes: Bytes, budget: &Budget) -> Result<OptionalProto, DecodeError> {
    decode_as("OptionalProto", bytes, budget)
}

/// Decodes a lone map.
pub fn decode_map(bytes: Bytes, budget: &Budget) -> Result<MapProto, DecodeError> {
    decode_as("MapProto", bytes, budget)
}

/// Decodes a lone sparse tensor.
pub fn decode_sparse_tensor(bytes: Bytes, budget: &Budget) -> Result<SparseTensorProto, DecodeError> {
    decode_as("SparseTensorProto", bytes, budget)
}

fn decode_as<M: Message + Default>(
    root: &'static str,
    bytes: Bytes,
    budget: &Budget,
) -> Result<M, DecodeError> {
    walk::walk(root, &bytes, budget)?;
    // The walk checks all that prost checks; this error would be a difference between the two.
    M::decode(bytes).map_err(|error| DecodeError {
        path: root.to_string(),
        offset: 0,
        fault: Fault::Structure(error.to_string()),
    })
}

#[cfg(test)]
mod tests;
