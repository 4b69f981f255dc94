//! Classifies one image of a handwritten digit with the model that the build script compiled.

use std::process::ExitCode;

include!(concat!(env!("OUT_DIR"), "/digits.rs"));

/// `label` and `image` of ../digits/sample.json.
fn sample() -> Option<(usize, [f32; 64])> {
    let text = include_str!("../../digits/sample.json");
    let (head, list) = text.split_once('[')?;
    let label = head.split([':', ',']).nth(1)?.trim().parse().ok()?;
    let (list, _) = list.split_once(']')?;
    let pixels: Vec<f32> = list.split(',').map(|pixel| pixel.trim().parse().ok()).collect::<Option<_>>()?;
    Some((label, pixels.try_into().ok()?))
}

fn main() -> ExitCode {
    let Some((label, image)) = sample() else {
        eprintln!("the sample is not a label and 64 pixels");
        return ExitCode::FAILURE;
    };
    let mut model = digits::Digits::new();
    let outputs = match model.run(&image) {
        Ok(outputs) => outputs,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let best = outputs.probabilities.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (predicted, probability) = best.unwrap_or((0, &0.0));
    println!("predicted {predicted} (probability {probability:.3}), label {label}");
    if predicted == label { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
