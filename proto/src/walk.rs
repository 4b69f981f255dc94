//! A walk over the wire format that proves a file harmless before anything is built from it.
//!
//! It keeps its own stack, allocates nothing per field and charges every field to the budget, so a hostile
//! file costs no more than one pass over its bytes.

use crate::{Budget, DecodeError, Fault};

/// A message of the schema.
pub(crate) struct Message {
    pub name: &'static str,
    /// Size of the decoded struct, in bytes.
    pub size: usize,
    pub fields: &'static [Field],
}

pub(crate) struct Field {
    pub number: u64,
    pub name: &'static str,
    pub kind: Kind,
    pub repeated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    Text,
    Bytes,
    /// Index into [`MESSAGES`].
    Message(usize),
}

include!("generated/messages.rs");

/// Memory of a `String` or `Bytes` handle.
const HANDLE: u64 = 32;

/// A message that the walk is inside of.
struct Frame {
    message: &'static Message,
    /// First byte of its content.
    start: usize,
    end: usize,
    /// Field of the parent that holds it, and where that field's tag stands.
    field: Option<&'static Field>,
    tag: usize,
    /// Lists of it that have elements, by the numbers of their fields.
    lists: u64,
}

/// Elements that a list gets room for with the first one.
const FIRST_ROOM: u64 = 4;

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    frames: Vec<Frame>,
    budget: &'a Budget,
    memory: u64,
    elements: u64,
}

/// Checks `bytes` as a message named `root`.
pub(crate) fn walk(root: &'static str, bytes: &[u8], budget: &Budget) -> Result<(), DecodeError> {
    let message = MESSAGES.iter().find(|message| message.name == root).expect("the schema has the root");
    let frame = Frame { message, start: 0, end: bytes.len(), field: None, tag: 0, lists: 0 };
    let mut walk = Walk { bytes, at: 0, frames: vec![frame], budget, memory: 0, elements: 0 };
    if bytes.len() as u64 > budget.bytes {
        return Err(walk.error(Fault::Budget { unit: "bytes", limit: budget.bytes }));
    }
    walk.charge_memory(message.size as u64)?;
    while let Some(frame) = walk.frames.last() {
        if walk.at == frame.end {
            walk.frames.pop();
        } else {
            walk.field()?;
        }
    }
    Ok(())
}

impl Walk<'_> {
    fn frame(&self) -> &Frame {
        self.frames.last().expect("a field is inside a message")
    }

    fn error(&self, fault: Fault) -> DecodeError {
        DecodeError { path: self.path(), offset: self.at, fault }
    }

    /// `graph.node[3].attribute[0]`, or the root's name. Indices are counted here, on the way out, so that
    /// the walk itself keeps no counters.
    fn path(&self) -> String {
        let mut path = String::new();
        for pair in self.frames.windows(2) {
            let Some(field) = pair[1].field else { continue };
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(field.name);
            if field.repeated {
                let index = occurrences(self.bytes, pair[0].start, pair[1].tag, field.number);
                path.push_str(&format!("[{index}]"));
            }
        }
        if path.is_empty() { self.frames[0].message.name.to_string() } else { path }
    }

    fn charge_memory(&mut self, bytes: u64) -> Result<(), DecodeError> {
        self.memory = self.memory.saturating_add(bytes);
        let more = self.budget.memory_per_byte.saturating_mul(self.bytes.len() as u64);
        let limit = self.budget.memory.saturating_add(more);
        match self.memory > limit {
            true => Err(self.error(Fault::Budget { unit: "bytes of memory", limit })),
            false => Ok(()),
        }
    }

    fn charge_elements(&mut self, count: u64) -> Result<(), DecodeError> {
        self.elements = self.elements.saturating_add(count);
        match self.elements > self.budget.elements {
            true => Err(self.error(Fault::Budget { unit: "elements", limit: self.budget.elements })),
            false => Ok(()),
        }
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let (value, length) =
            varint(&self.bytes[self.at..self.frame().end]).map_err(|fault| self.error(fault))?;
        self.at += length;
        Ok(value)
    }

    fn skip(&mut self, length: usize) -> Result<(), DecodeError> {
        if self.frame().end - self.at < length {
            return Err(self.error(Fault::Truncated));
        }
        self.at += length;
        Ok(())
    }

    fn field(&mut self) -> Result<(), DecodeError> {
        let tag_at = self.at;
        let tag = self.varint()?;
        let (number, wire) = (tag >> 3, (tag & 7) as u8);
        if number == 0 || number > (1 << 29) - 1 {
            return Err(self.error(Fault::FieldNumber(number)));
        }
        self.charge_elements(1)?;
        let field = self.frame().message.fields.iter().find(|field| field.number == number);
        if let Some(field) = field
            && !fits(field, wire)
        {
            return Err(self.error(Fault::FieldType { field: field.name, wire }));
        }
        match wire {
            0 => {
                self.varint()?;
                self.charge_memory(if field.is_some() { 8 } else { 0 })
            }
            1 => self.skip(8),
            5 => self.skip(4),
            2 => self.delimited(field, tag_at),
            _ => Err(self.error(Fault::WireType(wire))),
        }
    }

    /// Structs that memory is reserved for by one more element of a field.
    fn room(&mut self, field: &Field) -> u64 {
        let frame = self.frames.last_mut().expect("a field is inside a message");
        let list = 1u64.checked_shl(field.number as u32).unwrap_or(0);
        if !field.repeated || frame.lists & list != 0 {
            return 1;
        }
        frame.lists |= list;
        FIRST_ROOM
    }

    /// A field that starts with its length.
    fn delimited(&mut self, field: Option<&'static Field>, tag: usize) -> Result<(), DecodeError> {
        let length = self.varint()?;
        let left = self.frame().end - self.at;
        let name = field.map_or("of an unknown number", |field| field.name);
        let Some(length) = usize::try_from(length).ok().filter(|&length| length <= left) else {
            return Err(self.error(Fault::Overrun { field: name, length, left }));
        };
        let start = self.at;
        let content = &self.bytes[start..start + length];
        match field.map(|field| field.kind) {
            Some(Kind::Message(at)) => {
                if self.frames.len() as u64 > u64::from(self.budget.nesting.min(Budget::MAX_NESTING)) {
                    let limit = u64::from(self.budget.nesting.min(Budget::MAX_NESTING));
                    return Err(self.error(Fault::Budget { unit: "nested messages", limit }));
                }
                let message = &MESSAGES[at];
                let room = field.map_or(1, |field| self.room(field));
                self.charge_memory(room * message.size as u64)?;
                self.frames.push(Frame { message, start, end: start + length, field, tag, lists: 0 });
                return Ok(());
            }
            Some(Kind::Text) => {
                if std::str::from_utf8(content).is_err() {
                    return Err(self.error(Fault::Utf8(name)));
                }
                self.charge_memory(HANDLE.saturating_add(length as u64))?;
            }
            Some(Kind::Bytes) => self.charge_memory(HANDLE)?,
            Some(Kind::Varint) => self.packed_varints(start + length)?,
            Some(Kind::Fixed32) => self.packed_fixed(name, length, 4)?,
            Some(Kind::Fixed64) => self.packed_fixed(name, length, 8)?,
            None => {}
        }
        self.at = start + length;
        Ok(())
    }

    fn packed_varints(&mut self, end: usize) -> Result<(), DecodeError> {
        let mut count = 0u64;
        while self.at < end {
            let (_, length) = varint(&self.bytes[self.at..end]).map_err(|fault| self.error(fault))?;
            self.at += length;
            count += 1;
        }
        self.charge_elements(count)?;
        self.charge_memory(count.saturating_mul(8))
    }

    fn packed_fixed(&mut self, field: &'static str, length: usize, width: usize) -> Result<(), DecodeError> {
        if !length.is_multiple_of(width) {
            return Err(self.error(Fault::Ragged { field, width, length }));
        }
        self.charge_memory(length as u64)
    }
}

/// Whether a wire type can carry a field; lists of numbers come packed or one by one.
fn fits(field: &Field, wire: u8) -> bool {
    match field.kind {
        Kind::Varint => wire == 0 || (wire == 2 && field.repeated),
        Kind::Fixed32 => wire == 5 || (wire == 2 && field.repeated),
        Kind::Fixed64 => wire == 1 || (wire == 2 && field.repeated),
        Kind::Text | Kind::Bytes | Kind::Message(_) => wire == 2,
    }
}

/// The number at the start of `bytes`, and its length.
fn varint(bytes: &[u8]) -> Result<(u64, usize), Fault> {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().enumerate() {
        // The tenth byte holds the highest bit.
        if at == 9 && byte > 1 {
            return Err(Fault::Varint);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(Fault::Truncated)
}

/// How many fields of a number stand between two positions that the walk has passed.
fn occurrences(bytes: &[u8], start: usize, end: usize, number: u64) -> usize {
    let (mut at, mut count) = (start, 0);
    while at < end {
        let Ok((tag, length)) = varint(&bytes[at..end]) else { break };
        count += usize::from(tag >> 3 == number);
        at += length;
        at += match tag & 7 {
            1 => 8,
            5 => 4,
            wire => match varint(&bytes[at..end]) {
                Ok((value, length)) => length + if wire == 2 { value as usize } else { 0 },
                Err(_) => break,
            },
        };
    }
    count
}
