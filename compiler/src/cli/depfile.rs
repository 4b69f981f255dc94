//! Dependency files for make and ninja: what an output was made from.

use std::path::{Path, PathBuf};

/// A rule that makes `outputs` depend on `inputs`, and one without a recipe for each input, so that make goes on where one was
/// removed.
pub(super) fn text(outputs: &[PathBuf], inputs: &[PathBuf]) -> String {
    let names = |paths: &[PathBuf]| -> Vec<String> { paths.iter().map(|path| escape(&near(path))).collect() };
    let (outputs, inputs) = (names(outputs), names(inputs));
    let mut text = format!("{}:", outputs.join(" "));
    inputs.iter().for_each(|input| text += &format!(" \\\n  {input}"));
    text.push('\n');
    inputs.iter().for_each(|input| text += &format!("\n{input}:\n"));
    text
}

/// The path from the current folder, where it is beneath.
fn near(path: &Path) -> PathBuf {
    let current = std::env::current_dir().and_then(|folder| folder.canonicalize());
    match current.ok().and_then(|folder| path.strip_prefix(folder).ok().map(Path::to_path_buf)) {
        Some(near) => near,
        None => path.to_path_buf(),
    }
}

/// A name as make reads it.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        match c {
            ' ' | '#' | '\\' if c != '\\' || cfg!(not(windows)) => {
                text.push('\\');
                text.push(c);
            }
            '$' => text += "$$",
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            text(&paths(&["m.o", "m.h"]), &paths(&["a b.onnx", "$w#.bin"])),
            "m.o m.h: \\\n  a\\ b.onnx \\\n  $$w\\#.bin\n\na\\ b.onnx:\n\n$$w\\#.bin:\n"
        );
    }
}
