//! `onnxc train-graph`: writes `training_info` into a model.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::args::{LabelType, LossName, OptimizerName, TrainGraphArgs};
use crate::cli::check::to_json;
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Source, one, print_warnings, usage};
use crate::files::io_error;
use crate::{ExternalData, Label, Lora, Loss, Optimizer, TrainOptions};
use onnxc_import as import;
use onnxc_ir::error::Result;

/// What was written, for JSON.
#[derive(Serialize)]
struct Written {
    files: Vec<PathBuf>,
    bytes: usize,
    parameters: Vec<String>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

pub(super) fn run(args: &TrainGraphArgs) -> std::result::Result<(), Problems> {
    let options = options(args).map_err(one)?;
    if args.output == Path::new("-") {
        return Err(one(usage(
            "-o -: a model is not written to standard output; -o names a file".to_string(),
        )));
    }
    let source = Source::open(&args.model, args.external_data_root.as_deref()).map_err(one)?;
    output::check_place(&args.output, &source.read_files()).map_err(one)?;
    let trained = crate::train_graph(source.bytes(), source.external(), &options)?;
    let copies = copies(&args.output, &source, &trained.locations).map_err(one)?;
    output::check_place(&args.output, &source.read_files()).map_err(one)?;
    let mut outputs = Outputs::beside(&args.output).map_err(one)?;
    let mut write = |place: &Path, bytes: &[u8]| {
        outputs.write(place, &mut |file| file.write_all(bytes).map_err(|error| io_error(place, &error)))
    };
    for (location, place) in &copies {
        let bytes = source.external().read(location, 0, None).map_err(one)?;
        write(place, &bytes).map_err(one)?;
    }
    // Last, as it names the others.
    write(&args.output, &trained.model).map_err(one)?;
    outputs.commit().map_err(one)?;
    let mut notes = trained.notes;
    if !copies.is_empty() {
        let names: Vec<String> = copies.iter().map(|(_, place)| place.display().to_string()).collect();
        notes.push(format!("external data was copied to {}", names.join(", ")));
    }
    if !args.json {
        print_warnings(&trained.warnings, &notes);
        return Ok(());
    }
    let mut files: Vec<PathBuf> = copies.into_iter().map(|(_, place)| place).collect();
    files.push(args.output.clone());
    say!(
        "{}",
        to_json(&Written {
            files,
            bytes: trained.model.len(),
            parameters: trained.parameters,
            warnings: import::summary(&trained.warnings).iter().map(ToString::to_string).collect(),
            notes,
        })
    );
    Ok(())
}

/// Files of external data that the output needs beside it: none where it lies beside the model.
pub(super) fn copies(output: &Path, source: &Source, locations: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let folder = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut copies = vec![];
    for location in locations {
        let place = folder.join(location);
        // Refuses a location that leads elsewhere.
        let bytes = source.external().read(location, 0, None)?;
        // The file itself is not mapped once more, which large ones may have no room for.
        let is_itself = || place.canonicalize().is_ok_and(|place| source.read_files().contains(&place));
        let is_same = std::fs::metadata(&place).is_ok_and(|found| found.len() == bytes.len() as u64)
            && (is_itself() || crate::files::Mapped::open(&place)?.bytes() == bytes);
        if is_same {
            continue;
        }
        if place.exists() {
            return Err(usage(format!(
                "{}: external data of the model would be copied here, and another file is in its place; -o names another folder",
                place.display()
            )));
        }
        if let Some(folder) = place.parent() {
            std::fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
        }
        copies.push((location.clone(), place));
    }
    Ok(copies)
}

fn options(args: &TrainGraphArgs) -> Result<TrainOptions> {
    let loss = match args.loss {
        LossName::CrossEntropy => Loss::CrossEntropy,
        LossName::Mse => Loss::Mse,
        LossName::Bce => Loss::Bce,
    };
    let mut options = TrainOptions::new(loss, optimizer(args)?);
    options.learning_rate = match args.learning_rate.as_deref() {
        None => options.learning_rate,
        Some("input") => None,
        Some(text) => match text.parse::<f64>() {
            Ok(rate) if rate.is_finite() => Some(rate),
            _ => return Err(usage(format!("--learning-rate {text}: it must be a number or `input`"))),
        },
    };
    options.weight_decay = args.weight_decay.unwrap_or(options.weight_decay);
    options.output = args.loss_of.clone();
    options.label = args.label_type.map(|label| match label {
        LabelType::Int32 => Label::Int32,
        LabelType::Int64 => Label::Int64,
        LabelType::Float => Label::Float,
    });
    options.class_axis = args.class_axis;
    options.learn = args.learn.clone();
    options.freeze = args.freeze.clone();
    options.lora = args.lora.as_deref().map(|text| lora(text, &args.lora_for)).transpose()?;
    options.initialize = args.initialize;
    options.seed = args.seed;
    Ok(options)
}

fn optimizer(args: &TrainGraphArgs) -> Result<Optimizer> {
    let only = |option: &str, given: bool, names: &[OptimizerName]| match given
        && !names.contains(&args.optimizer)
    {
        true => Err(usage(format!("{option}: this optimizer has no such option"))),
        false => Ok(()),
    };
    use OptimizerName::{Adagrad, Adam, AdamW, Momentum, Sgd};
    only("--momentum", args.momentum.is_some(), &[Momentum])?;
    only("--nesterov", args.nesterov, &[Momentum])?;
    only("--betas", args.betas.is_some(), &[Adam, AdamW])?;
    only("--epsilon", args.epsilon.is_some(), &[Adam, AdamW, Adagrad])?;
    only("--rate-decay", args.rate_decay.is_some(), &[Adagrad])?;
    let betas = match args.betas.as_deref() {
        None => (0.9, 0.999),
        Some(&[first, second]) => (first, second),
        Some(other) => {
            return Err(usage(format!("--betas: {} numbers, must be 2, as in 0.9,0.999", other.len())));
        }
    };
    let epsilon = args.epsilon.unwrap_or(1e-8);
    Ok(match args.optimizer {
        Sgd => Optimizer::Sgd,
        Momentum => Optimizer::Momentum { momentum: args.momentum.unwrap_or(0.9), nesterov: args.nesterov },
        Adam => Optimizer::Adam { betas, epsilon },
        AdamW => Optimizer::AdamW { betas, epsilon },
        Adagrad => Optimizer::Adagrad {
            decay: args.rate_decay.unwrap_or(0.0),
            epsilon: args.epsilon.unwrap_or(1e-10),
        },
    })
}

/// `RANK[,alpha=A]`
fn lora(text: &str, weights: &[String]) -> Result<Lora> {
    let fail = || usage(format!("--lora {text}: it must be RANK or RANK,alpha=A, such as 8,alpha=16"));
    let (rank, alpha) = match text.split_once(',') {
        None => (text, None),
        Some((rank, rest)) => (rank, Some(rest.strip_prefix("alpha=").ok_or_else(fail)?)),
    };
    let rank = rank.parse::<i64>().ok().filter(|&rank| rank > 0).ok_or_else(fail)?;
    let alpha =
        alpha.map(|alpha| alpha.parse::<f64>().ok().filter(|alpha| alpha.is_finite()).ok_or_else(fail));
    Ok(Lora { rank, alpha: alpha.transpose()?, weights: weights.to_vec() })
}
