//! Compiles the schema in process: prost structs, and a table of the messages for the budgeted walk.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;

/// Numbers of `FieldDescriptorProto.Type`.
const DOUBLE: i32 = 1;
const FLOAT: i32 = 2;
const STRING: i32 = 9;
const MESSAGE: i32 = 11;
const BYTES: i32 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/onnx.proto", "proto/onnx-data.proto"], ["proto"])?;
    let mut messages = Vec::new();
    for file in &files.file {
        // (descriptor, path of its names)
        let mut open: Vec<_> = file.message_type.iter().rev().map(|message| (message, vec![])).collect();
        while let Some((message, mut path)) = open.pop() {
            path.push(message.name().to_string());
            open.extend(message.nested_type.iter().rev().map(|nested| (nested, path.clone())));
            messages.push((message, path));
        }
    }
    let proto_name = |path: &[String]| format!(".onnx.{}", path.join("."));
    let mut table = String::from("pub static MESSAGES: &[Message] = &[\n");
    for (message, path) in &messages {
        writeln!(
            table,
            "    Message {{ name: {:?}, size: size_of::<{}>(), fields: &[",
            path.join("."),
            rust_path(path)
        )?;
        for field in &message.field {
            let kind = match field.r#type() as i32 {
                DOUBLE => "Kind::Fixed64".to_string(),
                FLOAT => "Kind::Fixed32".to_string(),
                STRING => "Kind::Text".to_string(),
                BYTES => "Kind::Bytes".to_string(),
                MESSAGE => {
                    let at = messages.iter().position(|(_, path)| proto_name(path) == field.type_name());
                    format!("Kind::Message({})", at.ok_or("a field has a message type of another file")?)
                }
                _ => "Kind::Varint".to_string(),
            };
            let repeated = field.label() as i32 == 3;
            writeln!(
                table,
                "        Field {{ number: {}, name: {:?}, kind: {kind}, repeated: {repeated} }},",
                field.number(),
                field.name()
            )?;
        }
        table.push_str("    ] },\n");
    }
    table.push_str("];\n");
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("messages.rs"), table)?;
    // Most attributes hold none of these, and would be several times as large with room for them.
    let boxed = ["t", "g", "tp", "sparse_tensor"].map(|field| format!(".onnx.AttributeProto.{field}"));
    let mut config = prost_build::Config::new();
    for field in boxed {
        config.boxed(field);
    }
    config.bytes(["."]).compile_fds(files)?;
    Ok(())
}

/// Path of the struct that prost generates: outer messages are modules in snake case.
fn rust_path(path: &[String]) -> String {
    let mut out = String::from("crate");
    let (last, outer) = path.split_last().expect("a message has a name");
    for module in outer {
        out.push_str("::");
        for (at, letter) in module.char_indices() {
            if letter.is_uppercase() && at > 0 {
                out.push('_');
            }
            out.extend(letter.to_lowercase());
        }
    }
    out + "::" + last
}
