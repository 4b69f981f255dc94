//! Writes `proto/src/generated` from the schemas of `proto/proto`: prost structs, a table of the messages for the budgeted walk, and the
//! digests of all these files, by which a test of the crate knows that they were made of each other. A program outside of the workspace, so
//! that neither the compiler nor its tests build a compiler of schemas:
//!
//! `cargo run --manifest-path proto/generate/Cargo.toml`

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[path = "../../src/digest.rs"]
mod digest;

/// Numbers of `FieldDescriptorProto.Type`.
const DOUBLE: i32 = 1;
const FLOAT: i32 = 2;
const STRING: i32 = 9;
const MESSAGE: i32 = 11;
const BYTES: i32 = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    generate(&proto.join("proto"), &proto.join("src/generated"))?;
    fs::write(proto.join("src/generated/digests.txt"), digest::of_files(proto)?)?;
    Ok(())
}

/// Writes `onnx.rs` and `messages.rs` into a folder.
fn generate(schema: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let files = protox::compile(["onnx.proto", "onnx-data.proto"].map(|name| schema.join(name)), [schema])?;
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
    let mut table = String::from("pub(crate) static MESSAGES: &[Message] = &[\n");
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
    fs::write(folder.join("messages.rs"), table)?;
    // Most attributes hold none of these, and would be several times as large with room for them.
    let boxed = ["t", "g", "tp", "sparse_tensor"].map(|field| format!(".onnx.AttributeProto.{field}"));
    let mut config = prost_build::Config::new();
    for field in boxed {
        config.boxed(field);
    }
    config.bytes(["."]).out_dir(folder).compile_fds(files)?;
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
