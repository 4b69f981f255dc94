//! Constants and descriptions as C.

use std::fmt::Write as _;
use std::io::Write;

use crate::host::{Functions, plain};
use crate::io_error;
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType;
use onnxc_machine::target::{Endianness, Target};
use onnxc_object::emit::outline::{MODEL_BYTES, NEXT, Outline, Outlined, POINTER_BYTES};
use onnxc_object::host::ir::FunctionKind;

/// Most elements that are written as what they are worth; others are their bits.
const READABLE: usize = 64;

/// Where in a description the data is, behind the struct and the pointers.
const DATA: usize = MODEL_BYTES + POINTER_BYTES;

/// Numbers per line.
const PER_LINE: usize = 12;

/// The check that descriptions are for the compiler's order of bytes.
pub(crate) fn order(target: &Target) -> Result<String> {
    let order = match target.byte_order()? {
        Endianness::Little => "LITTLE",
        Endianness::Big => "BIG",
    };
    Ok(format!(
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_{order}_ENDIAN__\n#error \"this model was compiled for another order of bytes\"\n#endif\n\n"
    ))
}

/// The constants, as one block: each where the host program has it.
pub(crate) fn weights(outline: &Outline<'_>, out: &mut dyn Write) -> Result<()> {
    if outline.weight_bytes == 0 {
        return Ok(());
    }
    let name = &outline.name;
    let constants = outline.constants()?;
    let (mut text, mut at, mut paddings) = (String::new(), 0, 0);
    let _ = writeln!(
        text,
        "/* Constants of the model. */\nstatic OX_ALIGNED(64) const struct {name}_constants {{"
    );
    let mut pads = vec![];
    for (number, constant) in constants.iter().enumerate() {
        let pad = constant.offset - at;
        pads.push(pad > 0);
        if pad > 0 {
            let _ = writeln!(text, "    uint8_t padding{paddings}[{pad}];");
            paddings += 1;
        }
        if constant.bytes > 0 {
            let (ty, count) =
                (element(constant.dtype, constant.width), constant.bytes / constant.width as u64);
            let own = plain(&constant.name);
            let _ = writeln!(text, "    {ty} c{number}_{own}[{count}];");
        }
        at = constant.offset + constant.bytes;
    }
    if outline.weight_bytes > at {
        let _ = writeln!(text, "    uint8_t padding{paddings}[{}];", outline.weight_bytes - at);
    }
    let _ = writeln!(text, "}} {name}_weights = {{");
    out.write_all(text.as_bytes()).map_err(io_error)?;
    let mut number = 0;
    outline.each_constant(&mut |data| {
        let constant = &constants[number];
        let mut text = String::new();
        if pads[number] {
            text.push_str("    {0},\n");
        }
        number += 1;
        if !data.is_empty() {
            numbers(&mut text, constant.dtype, constant.width, data);
        }
        out.write_all(text.as_bytes()).map_err(io_error)
    })?;
    let tail = if outline.weight_bytes > at { "    {0},\n" } else { "" };
    let text = format!(
        "{tail}}};\ntypedef char {name}_constants_size[(sizeof(struct {name}_constants) + 63) / 64 == ({} + 63) / 64 ? 1 : -1];\n\n",
        outline.weight_bytes
    );
    out.write_all(text.as_bytes()).map_err(io_error)
}

/// The declaration of constants that another file has.
pub(crate) fn weights_apart(outline: &Outline<'_>) -> String {
    match outline.weight_bytes {
        0 => String::new(),
        bytes => format!(
            "/* Constants of the model. */\nextern OX_ALIGNED(64) const unsigned char {}_weights[{bytes}];\n\n",
            outline.name
        ),
    }
}

/// The type of the numbers of a constant, so that those which are written by their bits have these.
fn element(dtype: DType, width: usize) -> &'static str {
    match (dtype, width) {
        (DType::I8, _) => "int8_t",
        (DType::I16, _) => "int16_t",
        (DType::I32, _) => "int32_t",
        (DType::I64, _) => "int64_t",
        (_, 1) => "uint8_t",
        (_, 2) => "uint16_t",
        (_, 4) => "uint32_t",
        _ => "uint64_t",
    }
}

fn numbers(text: &mut String, dtype: DType, width: usize, data: &[u8]) {
    let count = data.len() / width;
    text.push_str("    {");
    // What floats are worth stands beside their bits, where they are few.
    let notes = (count <= READABLE && dtype == DType::F32).then(|| {
        let values = data
            .chunks_exact(4)
            .map(|bits| format!("{:?}", f32::from_le_bytes(bits.try_into().unwrap_or_default())));
        values.collect::<Vec<_>>().join(", ")
    });
    if let Some(notes) = notes {
        let _ = write!(text, "/* {notes} */");
    }
    for (at, number) in data.chunks_exact(width).enumerate() {
        if at % PER_LINE == 0 {
            text.push_str("\n        ");
        }
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(number);
        let bits = u64::from_le_bytes(bytes);
        let _ = match (dtype, width) {
            (DType::I8, _) => write!(text, "{}, ", bits as i8),
            (DType::I16, _) => write!(text, "{}, ", bits as i16),
            (DType::I32, _) if bits as i32 == i32::MIN => write!(text, "INT32_MIN, "),
            (DType::I32, _) => write!(text, "{}, ", bits as i32),
            (DType::I64, _) if bits as i64 == i64::MIN => write!(text, "INT64_MIN, "),
            (DType::I64, _) => write!(text, "INT64_C({}), ", bits as i64),
            (_, 1) => write!(text, "{bits}, "),
            (_, 8) => write!(text, "UINT64_C({bits:#x}), "),
            _ => write!(text, "{bits:#x}, "),
        };
    }
    text.push_str("\n    },\n");
}

/// The type of a program's description, and its name, which functions refer to.
pub(crate) fn declare(program: &Outlined<'_>) -> String {
    let name = &program.host.name;
    let rest = program.description.len().saturating_sub(DATA).max(1);
    format!(
        "/* The constant description of {name}: what the distances in its first part lead to, and its functions. */\nstruct {name}_description {{\n    \
         onnxc_model model;\n    OX_ALIGNED(8) onnxc_run_fn run;\n    OX_ALIGNED(8) onnxc_workspace_fn workspace;\n    OX_ALIGNED(8) \
         onnxc_state_bytes_fn state_bytes;\n    OX_ALIGNED(8) onnxc_state_reset_fn state_reset;\n    OX_ALIGNED(8) onnxc_model_fn next;\n    \
         OX_ALIGNED(8) uint8_t data[{rest}];\n}};\ntypedef char {name}_description_data[offsetof(struct {name}_description, data) == {DATA} ? 1 : -1];\n\nstatic const struct {name}_description \
         {name}_description;\n\n"
    )
}

/// The description of a program.
pub(crate) fn describe(
    program: &Outlined<'_>,
    next: Option<&Outlined<'_>>,
    functions: &Functions<'_>,
) -> String {
    let name = &program.host.name;
    let function = |kind: FunctionKind| {
        let found = program.host.functions.values().find(|function| function.kind == kind);
        found.map_or_else(|| "NULL".to_string(), |function| functions.name(function))
    };
    let mut text = format!("static const struct {name}_description {name}_description = {{\n    {{");
    let links: Vec<(u32, &str)> = program
        .links
        .iter()
        .map(|&(field, kind)| {
            let member = match kind {
                FunctionKind::Run => "run",
                FunctionKind::Workspace => "workspace",
                FunctionKind::StateBytes => "state_bytes",
                _ => "state_reset",
            };
            (field, member)
        })
        .chain(next.map(|_| (NEXT, "next")))
        .collect();
    let head = &program.description[..MODEL_BYTES.min(program.description.len())];
    let mut at = 0;
    while at < head.len() {
        // All fields have 32 bits but two, which lie side by side.
        let wide = (48..64).contains(&at);
        let size = if wide { 8 } else { 4 };
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&head[at..at + size]);
        let value = u64::from_ne_bytes(bytes);
        let value = if wide { value as i64 } else { i64::from(value as u32 as i32) };
        if let Some((_, member)) = links.iter().find(|(field, _)| *field as usize == at) {
            let _ = write!(text, "(int32_t)offsetof(struct {name}_description, {member}), ");
        } else {
            let _ = write!(text, "{value}, ");
        }
        at += size;
    }
    let next = next.map_or_else(|| "NULL".to_string(), |next| next.public[&FunctionKind::Model].clone());
    let _ = write!(
        text,
        "}},\n    {}, {}, {}, {}, {next},\n    {{",
        function(FunctionKind::Run),
        function(FunctionKind::Workspace),
        function(FunctionKind::StateBytes),
        function(FunctionKind::StateReset)
    );
    let data = program.description.get(DATA..).unwrap_or_default();
    for (at, byte) in data.iter().enumerate() {
        if at % 24 == 0 {
            text.push_str("\n        ");
        }
        let _ = write!(text, "{byte}, ");
    }
    if data.is_empty() {
        text.push('0');
    }
    text.push_str("\n    },\n};\n\n");
    text
}
