//! `onnxc weights`: files of weights for objects that are there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Parser;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_object::emit::apart::difference;
use onnxc_object::emit::identifier;
use onnxc_runtime_support::weights::{MAGIC, Weights, hex, words};

use crate::cli::args::{Cli, Command, CompileArgs, Level, WeightsArgs};
use crate::cli::compile::options_of;
use crate::cli::output::Outputs;
use crate::cli::session::{Problems, Progress, Session, one, print_warnings, usage};

/// The flags of a compilation that decide what code it gives, as words of a command line.
pub(super) fn flags(args: &CompileArgs) -> Vec<String> {
    let CompileArgs { model, code, ranks, only_output, .. } = args;
    let mut flags: Vec<String> = vec![];
    let mut say = |flag: &str, value: String| flags.push(format!("--{flag}={value}"));
    model.input_dims.iter().for_each(|text| say("input-dim", text.clone()));
    model.input_shapes.iter().for_each(|text| say("input-shape", text.clone()));
    model.state.iter().for_each(|text| say("state", text.clone()));
    model.state_capacity.iter().for_each(|count| say("state-capacity", count.to_string()));
    model.custom_ops.iter().for_each(|text| say("custom-op", text.clone()));
    model.overrides.iter().for_each(|text| say("override", text.clone()));
    model.custom_ops_file.iter().for_each(|file| say("custom-ops-file", file.to_string_lossy().into_owned()));
    model.nchwc_block.iter().for_each(|&block| say("nchwc-block", (block as usize).to_string()));
    ranks.configuration.iter().for_each(|name| say("configuration", name.clone()));
    ranks.rank.iter().for_each(|rank| say("rank", rank.to_string()));
    only_output.iter().for_each(|name| say("only-output", name.clone()));
    code.target.iter().for_each(|triple| say("target", triple.clone()));
    code.mcpu.iter().for_each(|cpu| say("mcpu", cpu.clone()));
    code.levels.iter().for_each(|levels| say("levels", levels.join(",")));
    code.vector_width.iter().for_each(|bits| say("vector-width", bits.to_string()));
    say("precision", format!("{:?}", code.precision).to_lowercase());
    say("weights-from", code.weights_from.to_string());
    let level = match code.opt_level {
        Level::Zero => "0",
        Level::One => "1",
        Level::Two => "2",
        Level::Size => "s",
    };
    flags.push(format!("-O{level}"));
    for (is_given, flag) in [
        (model.overridable_defaults, "--overridable-defaults"),
        (model.training, "--training"),
        (code.exact, "--exact"),
        (args.is_source(), "--emit=c"),
    ] {
        flags.extend(is_given.then(|| flag.to_string()));
    }
    flags
}

/// A file of weights and what it says of itself.
struct Known {
    weights: Weights,
    listing: String,
}

impl Known {
    fn open(file: &Path) -> Result<Known> {
        let weights = Weights::open_any(file).map_err(|refusal| usage(refusal.message))?;
        let listing = weights.header().listing(weights.data()).map(str::to_string);
        let listing = listing.ok_or_else(|| {
            let bytes = weights.data().len();
            usage(format!(
                "{}: it is cut off: the list of its layout lies behind its {bytes} bytes",
                file.display()
            ))
        })?;
        Ok(Known { weights, listing })
    }

    /// How the object was compiled, for a model.
    fn arguments(&self, model: &Path, file: &Path) -> Result<CompileArgs> {
        let note = self.listing.lines().next().unwrap_or_default();
        let flags: Vec<String> = serde_json::from_str(note)
            .map_err(|_| usage(format!("{}: it does not say how its model was compiled", file.display())))?;
        let words = ["onnxc", "compile", "--weights-file"].map(Into::into).into_iter();
        let words = words.chain([file.as_os_str().to_owned()]).chain(flags.into_iter().map(Into::into));
        let words = words.chain(["--".into(), model.as_os_str().to_owned()]);
        match Cli::try_parse_from(words) {
            Ok(Cli { command: Command::Compile(args), .. }) => Ok(args),
            _ => Err(usage(format!("{}: it was compiled with flags that are unknown here", file.display()))),
        }
    }
}

/// How the object of a file of weights was compiled.
pub(super) fn recorded(file: &Path) -> Result<CompileArgs> {
    Known::open(file)?.arguments(Path::new("model.onnx"), file)
}

pub(super) fn run(args: &WeightsArgs) -> std::result::Result<(), Problems> {
    let known = Known::open(&args.like).map_err(one)?;
    let mut compile = known.arguments(&args.model, &args.like).map_err(one)?;
    compile.model.external_data_root = args.external_data_root.clone();
    let session = Session::open(&compile.model).map_err(one)?;
    let stem = args.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let options = options_of(&compile, &session, compile.ranks.rank).map_err(one)?;
    let options = crate::Options { name: identifier(&stem), ..options };
    let mut progress = Progress::new(false, false, vec![]);
    let compiled = session.compile(&options, &mut progress)?;
    progress.hide();
    print_warnings(&compiled.warnings, &compiled.notes);
    let write = || -> Result<()> {
        let file = match options.target.is_source {
            true => compiled.outline()?.weights_file,
            false => compiled.artifact()?.weights_file,
        };
        let (model, like) = (args.model.display(), args.like.display());
        let Some(file) = file else {
            return Err(usage(format!("{model}: it has no weights, and {like} has some")));
        };
        if words(&file.layout) != known.weights.header().layout {
            let what = difference(&file.listing, &known.listing);
            let what = what.unwrap_or_else(|| "the lists of their layouts are equal".into());
            let message = format!("{model} is not another training of the model of {like}: {what}");
            return Err(Error::new(Stage::Emit, Kind::Usage, message));
        }
        session.check_place(&args.output)?;
        let mut outputs = Outputs::beside(&args.output)?;
        outputs.write(&args.output, &mut |out| file.write(out))?;
        outputs.commit()
    };
    write().map_err(one)
}

/// Prints what a file of weights is.
pub(super) fn describe(file: &Path) -> Result<String> {
    let Known { weights, listing } = Known::open(file)?;
    let header = weights.header();
    let mut lines = listing.lines();
    let note: Vec<String> = serde_json::from_str(lines.next().unwrap_or_default()).unwrap_or_default();
    let mut text = format!(
        "weights of `{}`: {} bytes, which are those that were written\nlayout {}\ncontent {}\nflags {}\n",
        header.model,
        header.bytes,
        hex(header.layout),
        hex(header.content),
        note.join(" ")
    );
    for line in lines {
        let (line, label) = line.split_once('\t').unwrap_or((line, ""));
        if let Some(rest) = line.strip_prefix("weights ") {
            text += &format!("  {label} {rest}\n");
        } else if label == "the options" {
            text += &format!("{line}\n");
        }
    }
    Ok(text)
}

/// Whether a file begins as one of weights does.
pub(super) fn is_file(file: &Path) -> bool {
    let mut magic = [0; 8];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut magic));
    let magic = u64::from_ne_bytes(magic);
    read.is_ok() && (magic == MAGIC || magic.swap_bytes() == MAGIC)
}
