//! `onnxc_driver MODEL [--name NAME] -o FILE.o`: the object and header of a model, for tests that run a
//! compiler from make or CMake. Cargo builds the binaries of a package for its tests, not those of others.

use std::error::Error;
use std::path::{Path, PathBuf};

use onnxc::import::{ImportOptions, NoExternalData};
use onnxc::target::Target;
use onnxc::{Options, Quiet};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, name, output) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [model, "-o", output] => (model, None, output),
        [model, "--name", name, "-o", output] => (model, Some(name), output),
        _ => return Err("usage: onnxc_driver MODEL [--name NAME] -o FILE.o".into()),
    };
    let output = PathBuf::from(output);
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let options = Options {
        name: name.unwrap_or(&stem).to_string(),
        target: Target::host()?,
        opt_level: 3,
        import: ImportOptions::default(),
        profile: false,
    };
    let model = std::fs::read(Path::new(model))?.into();
    let compiled = onnxc::compile(model, &NoExternalData, &options, &mut Quiet)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let artifact = compiled.artifact()?;
    std::fs::write(output.with_extension("h"), &artifact.header)?;
    artifact.write_object(&mut std::fs::File::create(&output)?)?;
    Ok(())
}
