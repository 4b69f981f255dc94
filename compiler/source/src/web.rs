//! What makes the C source of a model a module of WebAssembly: C for what the module exports, the few functions of a C library that it
//! needs, constants as the assembler takes them, and beside the module an ES module that runs it, with its types for TypeScript.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write;

use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Part};
use onnxc_object::emit::outline::{Outline, Outlined, field};
use onnxc_object::host::abi::ABI_VERSION;

use crate::io_error;

/// A `string.h` for compilers without a C library.
pub const STRING_H: &str = include_str!("web/string.h");

/// C of what the module exports.
pub fn exports(outline: &Outline<'_>) -> String {
    include_str!("web/module.c").replace("MODEL", &outline.name)
}

/// Assembly that puts the constants, which the file of this path has, into the module; `None` of a model without constants.
pub fn assembly(outline: &Outline<'_>, path: &str) -> Option<String> {
    let text = include_str!("web/constants.s");
    let text = text.replace("MODEL", &outline.name).replace("BYTES", &outline.weight_bytes.to_string());
    let text = text.replace("FILE", &path.replace('\\', "\\\\").replace('"', "\\\""));
    (outline.weight_bytes > 0).then_some(text)
}

/// Writes the constants as bytes.
pub fn constants(outline: &Outline<'_>, out: &mut dyn Write) -> Result<()> {
    let mut places = outline.constants()?.into_iter();
    let mut at = 0;
    let pad = |out: &mut dyn Write, to: u64, from: u64| {
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), to - from), out).map_err(io_error)
    };
    outline.each_constant(&mut |data| {
        let place =
            places.next().ok_or_else(|| Error::internal(Stage::Emit, "a constant without a place"))?;
        pad(out, place.offset, at)?;
        out.write_all(data).map_err(io_error)?;
        at = place.offset + place.bytes;
        Ok(())
    })?;
    pad(out, outline.weight_bytes, at)?;
    out.flush().map_err(io_error)
}

/// The ES module beside the module of this file name.
pub fn script(outline: &Outline<'_>, file: &str) -> String {
    // As in a URL relative to the script; the rest of a file name may be any text.
    let mut url = String::from("./");
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => url.push(char::from(byte)),
            _ => {
                let _ = write!(url, "%{byte:02X}");
            }
        }
    }
    include_str!("web/module.mjs")
        .replace("PLAIN", &outline.name)
        .replace("\"FILE\"", &quoted(&url))
        .replace("= ABI;", &format!("= {ABI_VERSION};"))
}

/// Its types.
pub fn types(outline: &Outline<'_>) -> Result<String> {
    let (mut shapes, mut entries) = (String::new(), String::new());
    let mut sizes = HashSet::new();
    for (number, program) in outline.programs.iter().enumerate() {
        let description = Description { bytes: &program.description };
        let suffix = suffix(outline, program);
        let kind = if number == 0 { String::new() } else { camel(suffix) };
        let inputs = description.ports(Field::Inputs)?;
        let outputs = description.ports(Field::Outputs)?;
        let _ = writeln!(shapes, "/** The inputs{}. */\nexport interface {kind}Inputs {{", of(suffix));
        for port in inputs.iter().filter(|port| !port.is_state) {
            let (array, mark) = (array(port.dtype), if port.has_default { "?" } else { "" });
            let given = if port.dtype == DType::U8 { " | Uint8ClampedArray" } else { "" };
            let _ = writeln!(
                shapes,
                "    /** {} */\n    {}{mark}: {array}{given} | Given<{array}{given}>;",
                port.text,
                quoted(&port.name)
            );
        }
        let _ =
            writeln!(shapes, "}}\n\n/** The outputs{}. */\nexport interface {kind}Outputs {{", of(suffix));
        for port in &outputs {
            let (array, name) = (array(port.dtype), quoted(&port.name));
            let _ = writeln!(
                shapes,
                "    /** {} */\n    {name}: Tensor<{array}, {}>;",
                port.text,
                quoted(port.dtype.name())
            );
        }
        shapes.push_str("}\n\n");
        if number > 0 {
            let _ = writeln!(
                entries,
                "        readonly {}: Program<{kind}Inputs, {kind}Outputs>;",
                quoted(suffix)
            );
        }
        sizes.extend(description.state_sizes()?);
    }
    let mut sizes: Vec<String> =
        sizes.into_iter().map(|name| format!("    {}: number;\n", quoted(&name))).collect();
    sizes.sort();
    let has_state = outline.programs.iter().any(|own| {
        let description = Description { bytes: &own.description };
        description.int(field::STATE_COUNT).is_ok_and(|count| count > 0)
    });
    let text = include_str!("web/module.d.mts")
        .replace("PLAIN", &outline.name)
        .replace("    SIZES;\n", &sizes.concat())
        .replace("        ENTRIES;\n", &entries)
        .replace(
            "OPTIONS",
            if has_state { "options: RunOptions & { state: State }" } else { "options?: RunOptions" },
        )
        .replace("// SHAPES\n\n", &shapes);
    Ok(text)
}

fn of(suffix: &str) -> String {
    if suffix.is_empty() { " of a run, by name".into() } else { format!(" of `{suffix}`, by name") }
}

/// What follows the model's name in that of a program.
fn suffix<'o>(outline: &Outline<'_>, program: &'o Outlined<'_>) -> &'o str {
    program.host.name.strip_prefix(&outline.name).unwrap_or_default().trim_start_matches('_')
}

/// `TrainStep` of `train_step`.
fn camel(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect()
}

/// A string of JavaScript.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Line ends of JavaScript as well.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The typed array of a type.
fn array(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::C64 => "Float32Array",
        DType::F64 | DType::C128 => "Float64Array",
        DType::F16 | DType::BF16 | DType::U16 => "Uint16Array",
        DType::I8 => "Int8Array",
        DType::I16 => "Int16Array",
        DType::I32 => "Int32Array",
        DType::I64 => "BigInt64Array",
        DType::U32 => "Uint32Array",
        DType::U64 => "BigUint64Array",
        _ => "Uint8Array",
    }
}

/// An input or output.
struct Port {
    name: String,
    dtype: DType,
    /// Type and dims, as a comment.
    text: String,
    has_default: bool,
    is_state: bool,
}

/// Where `onnxc_model` has the number of ports, their records and their parts.
#[derive(Clone, Copy)]
enum Field {
    Inputs,
    Outputs,
}

impl Field {
    fn places(self) -> (usize, usize, usize) {
        match self {
            Field::Inputs => (field::INPUT_COUNT, field::INPUTS, field::INPUT_PARTS),
            Field::Outputs => (field::OUTPUT_COUNT, field::OUTPUTS, field::OUTPUT_PARTS),
        }
    }
}

const VALUE_RECORD: usize = 32;
const STATE_RECORD: usize = 16;
const PART_RECORD: usize = 8;

/// The bytes of an `onnxc_model`, little-endian.
struct Description<'d> {
    bytes: &'d [u8],
}

impl Description<'_> {
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let found = self.bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        found.ok_or_else(|| Error::internal(Stage::Emit, "a description that ends too early"))
    }

    fn int(&self, at: usize) -> Result<i32> {
        self.take(at).map(i32::from_le_bytes)
    }

    /// The distance at a place.
    fn distance(&self, at: usize) -> Result<usize> {
        self.int(at).map(|distance| usize::try_from(distance).unwrap_or(usize::MAX >> 1))
    }

    /// The text at the distance at a place.
    fn text(&self, at: usize) -> Result<String> {
        let bytes = self.bytes.get(self.distance(at)?..).unwrap_or_default();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn symbol(&self, number: i32) -> Result<String> {
        self.text(self.distance(field::SYMBOLS)? + 4 * number.max(0) as usize)
    }

    fn ports(&self, field: Field) -> Result<Vec<Port>> {
        let (count, records, parts) = field.places();
        let (records, parts) = (self.distance(records)?, self.distance(parts)?);
        let number = self.int(count)?.max(0) as usize;
        (0..number)
            .map(|at| self.port(records + VALUE_RECORD * at, self.int(parts + PART_RECORD * at + 4)?))
            .collect()
    }

    fn port(&self, record: usize, part: i32) -> Result<Port> {
        let number = self.int(record + 4)?;
        let dtype = DType::from_onnx(number)
            .ok_or_else(|| Error::internal(Stage::Emit, format!("type {number} in a description")))?;
        let rank = self.int(record + 8)?.max(0) as usize;
        let (dims, texts) = (self.distance(record + 12)?, self.distance(record + 16)?);
        let dims = (0..rank).map(|axis| match self.take(dims + 8 * axis).map(i64::from_le_bytes)? {
            size if size >= 0 => Ok(size.to_string()),
            _ => self.text(texts + 4 * axis),
        });
        let dims = dims.collect::<Result<Vec<String>>>()?.join(", ");
        let text = onnxc_object::emit::printable(&format!("{dtype}[{dims}]")).replace("*/", "* /");
        let has_default = self.int(record + 24)? != 0;
        Ok(Port {
            name: self.text(record)?,
            dtype,
            text,
            has_default,
            is_state: part == Part::State.number(),
        })
    }

    /// The sizes that a state block is made for.
    fn state_sizes(&self) -> Result<HashSet<String>> {
        let (values, records) = (self.distance(field::STATES)?, self.distance(field::STATE_RECORDS)?);
        let (mut sizes, mut grown) = (HashSet::new(), HashSet::new());
        for state in 0..self.int(field::STATE_COUNT)?.max(0) as usize {
            let record = values + VALUE_RECORD * state;
            grown.insert(self.int(records + STATE_RECORD * state + 8)?);
            let symbols = self.distance(record + 20)?;
            for axis in 0..self.int(record + 8)?.max(0) as usize {
                sizes.insert(self.int(symbols + 4 * axis)?);
            }
        }
        sizes.iter().filter(|&&own| own >= 0 && !grown.contains(&own)).map(|&own| self.symbol(own)).collect()
    }
}
