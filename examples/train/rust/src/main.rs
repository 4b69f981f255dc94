//! Learns to read handwritten digits, from nothing, as the program in C does, with the same numbers: train [DATA [EPOCHS [SEED]]].

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

include!(concat!(env!("OUT_DIR"), "/digits.rs"));

const PIXELS: usize = 64;
const RECORD: usize = 33;
const CLASSES: usize = 10;
const BATCH: usize = 32;
const RATE: f32 = 3e-3;

struct Image {
    pixels: [f32; PIXELS],
    label: usize,
}

fn read_images(path: &str) -> Result<Vec<Image>, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let of_record = |record: &[u8]| {
        let level = |at: usize| f32::from(record[1 + at / 2] >> (at % 2 * 4) & 15) / 15.0;
        Image { pixels: std::array::from_fn(level), label: record[0].into() }
    };
    let images: Vec<Image> = bytes.chunks_exact(RECORD).map(of_record).collect();
    if images.len() < 8 {
        return Err(format!("too few images in {path}").into());
    }
    Ok(images)
}

/// The class that is most probable, and how probable it is.
fn predict(model: &mut digits::Digits, state: &mut digits::State, image: &Image) -> Result<(usize, f32), digits::Error> {
    let mut probabilities = [0.0; CLASSES];
    model.run_into(state, 1, &image.pixels, &mut probabilities)?;
    let mut best = 0;
    for at in 1..CLASSES {
        if probabilities[at] > probabilities[best] {
            best = at;
        }
    }
    Ok((best, probabilities[best]))
}

fn accuracy(model: &mut digits::Digits, state: &mut digits::State, images: &[Image]) -> Result<f64, digits::Error> {
    let mut right = 0;
    for image in images {
        right += usize::from(predict(model, state, image)?.0 == image.label);
    }
    Ok(100.0 * right as f64 / images.len() as f64)
}

/// Numbers in no order, the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 as usize % end
    }
}

fn learn() -> Result<bool, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let images = read_images(arguments.first().map_or("digits.bin", String::as_str))?;
    let number = |at: usize, otherwise: u64| arguments.get(at).map_or(Ok(otherwise), |text| text.parse());
    let (epochs, seed) = (number(1, 12)?, number(2, 1)?);
    let (trained, tested) = images.split_at(images.len() * 3 / 4);

    let (mut model, mut step) = (digits::Digits::new(), digits::train_step::TrainStep::new());
    let mut state = digits::State::new()?;
    println!(
        "{} images to train on, {} to test with; a state of {} bytes",
        trained.len(),
        tested.len(),
        state.as_bytes().len()
    );
    let mut initialize = digits::train_initialize::TrainInitialize::new();
    initialize.seed = seed;
    initialize.run(&mut state)?;
    println!("before: accuracy {:.1}%", accuracy(&mut model, &mut state, tested)?);

    let (mut random, mut order) = (Random(seed), (0..trained.len()).collect::<Vec<_>>());
    let (mut pixels, mut labels) = ([0.0; BATCH * PIXELS], [0; BATCH]);
    let (mut probabilities, mut loss) = ([0.0; BATCH * CLASSES], [0.0]);
    for epoch in 1..=epochs {
        print!("epoch {epoch:2} of {epochs}  [");
        for at in (1..order.len()).rev() {
            let with = random.below(at + 1);
            order.swap(at, with);
        }
        let (mut sum, last) = (0.0, order.len() / BATCH);
        for (number, batch) in order.chunks_exact(BATCH).enumerate() {
            for (at, &image) in batch.iter().enumerate() {
                pixels[at * PIXELS..][..PIXELS].copy_from_slice(&trained[image].pixels);
                labels[at] = trained[image].label as i64;
            }
            step.run_into(&mut state, BATCH, &pixels, &labels, &[RATE], &mut probabilities, &mut loss)?;
            sum += f64::from(loss[0]);
            if 20 * (number + 1) / last > 20 * number / last {
                print!("#");
                std::io::stdout().flush()?;
            }
        }
        println!("]  loss {:.4}  accuracy {:.1}%", sum / last as f64, accuracy(&mut model, &mut state, tested)?);
    }

    std::fs::write("digits.state", state.as_bytes())?;
    let mut other = digits::State::new()?;
    if !other.restore(&std::fs::read("digits.state")?) {
        return Err("digits.state is that of another model".into());
    }
    println!("saved and restored: accuracy {:.1}%", accuracy(&mut model, &mut other, tested)?);
    let image = &tested[0];
    for row in image.pixels.chunks(8) {
        let shades: Vec<&str> = row.iter().map(|&pixel| &" .:-=+*#%@"[(pixel * 9.0) as usize..][..1]).collect();
        println!("{}", shades.join(" "));
    }
    let (found, certainty) = predict(&mut model, &mut other, image)?;
    println!("this is a {found} ({:.1}%); it is labelled {}", 100.0 * certainty, image.label);
    Ok(found == image.label)
}

fn main() -> ExitCode {
    match learn() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::FAILURE
        }
    }
}
