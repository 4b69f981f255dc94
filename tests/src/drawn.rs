//! Official tests whose outputs are drawn. "The generator operator is non-deterministic and may not produce the same values in different
//! implementations even if a seed is specified", says the suite beside the tests of Bernoulli; it expects the numbers that NumPy's
//! generator drew when it was made. So these tests are judged by the specification: by the type, the shape, that elements are 0 or 1, that
//! a seed of the model's own decides them, and otherwise how often each is 1.

use std::fs;

use onnxc::cli::files;
use onnxc::native::{Call, Memory, Model};
use onnxc_ir::graph::Tensor;
use onnxc_proto::ModelProto;
use prost::Message;

use crate::suite::Case;

/// How the names of such tests begin.
const DRAWN: &str = "node/test_bernoulli";

/// Runs, each with a seed of its own, that frequencies are taken from.
const RUNS: u32 = 4096;

/// Most standard deviations of a frequency from its probability.
const MOST_DEVIATIONS: f64 = 5.0;

/// Whether the outputs of a test are drawn.
pub fn is_drawn(id: &str) -> bool {
    id.starts_with(DRAWN)
}

/// Fails where an output has another type or shape than the one that the suite has, or elements other than 0 and 1.
pub fn check_outcome(got: &Tensor, wanted: &Tensor) -> Result<(), String> {
    if (got.dtype, &got.shape) != (wanted.dtype, &wanted.shape) {
        return Err(format!(
            "{}{:?} where {}{:?} is expected",
            got.dtype, got.shape, wanted.dtype, wanted.shape
        ));
    }
    let values = got.to_f64s().unwrap_or_default();
    match values.iter().find(|value| ![0.0, 1.0].contains(*value)) {
        Some(value) => Err(format!("an element is {value}, neither 0 nor 1")),
        None => Ok(()),
    }
}

/// Fails where elements are 1 more or less often than their probabilities say, over runs with other seeds; or where a model
/// with a seed of its own gives others in one of them.
pub fn check_frequencies(
    case: &Case,
    model: &Model<'_>,
    inputs: &[Option<Tensor>],
    shapes: &[Option<Vec<usize>>],
) -> Result<(), String> {
    let probabilities = probabilities(case)?;
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let mut prepared = model.prepare_in(Memory::default(), inputs, shapes).map_err(text)?;
    let mut hits = vec![0u32; probabilities.len()];
    for seed in 0..RUNS {
        prepared.run(&Call { seed: seed.into(), ..Call::default() }).map_err(text)?;
        let outputs = prepared.outputs().map_err(text)?;
        let drawn = outputs[0].to_f64s().unwrap_or_default();
        hits.iter_mut().zip(drawn).for_each(|(hits, drawn)| *hits += u32::from(drawn == 1.0));
    }
    match has_seed(case)? {
        true => match hits.iter().find(|&&hits| ![0, RUNS].contains(&hits)) {
            Some(hits) => Err(format!("the model has a seed, and an element is 1 in {hits} of {RUNS} runs")),
            None => Ok(()),
        },
        false => compare(&hits, &probabilities),
    }
}

fn compare(hits: &[u32], probabilities: &[f64]) -> Result<(), String> {
    let runs = f64::from(RUNS);
    for (at, (&hits, &probability)) in hits.iter().zip(probabilities).enumerate() {
        let deviation = (runs * probability * (1.0 - probability)).sqrt();
        if (f64::from(hits) - runs * probability).abs() > MOST_DEVIATIONS * deviation {
            return Err(format!(
                "element {at} is 1 in {hits} of {RUNS} runs; its probability is {probability}, which gives {:.0}",
                runs * probability
            ));
        }
    }
    Ok(())
}

/// How likely the elements are 1, from the input of the test, or the initializer of its variant.
fn probabilities(case: &Case) -> Result<Vec<f64>, String> {
    let folder = case.folder.join("test_data_set_0");
    let paths = ["input_0.pb", "constant_0.pb"].map(|name| folder.join(name));
    let path = paths.iter().find(|path| path.exists()).ok_or("the test has no probabilities")?;
    let tensor = files::read_tensor(path, None).map_err(|error| error.to_string())?;
    let mut values = tensor.to_f64s().ok_or("the probabilities are not numbers")?;
    if case.id.ends_with("_expanded") {
        // The body of Bernoulli as a function is `Greater(RandomUniformLike(x), x)`, which holds as often as the operator gives 0.
        values.iter_mut().for_each(|value| *value = 1.0 - *value);
    }
    Ok(values)
}

fn has_seed(case: &Case) -> Result<bool, String> {
    let bytes = fs::read(case.model()).map_err(|error| error.to_string())?;
    let model = ModelProto::decode(bytes.as_slice()).map_err(|error| error.to_string())?;
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    Ok(nodes.flat_map(|node| &node.attribute).any(|attribute| attribute.name() == "seed"))
}

#[cfg(test)]
mod tests {
    use onnxc_ir::graph::DType;

    use super::*;

    #[test]
    fn frequencies_are_those_of_the_probabilities() {
        let half = RUNS / 2;
        assert!(compare(&[half, 0, RUNS, half + 150], &[0.5, 0.0, 1.0, 0.5]).is_ok());
        for (hits, probability) in
            [(half + 161, 0.5), (half - 161, 0.5), (1, 0.0), (RUNS - 1, 1.0), (0, 0.01)]
        {
            assert!(compare(&[hits], &[probability]).is_err(), "{hits} of {RUNS} by {probability}");
        }
    }

    #[test]
    fn outcomes_are_zeros_and_ones() {
        let tensor = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Tensor::new(DType::F32, vec![values.len()], bytes.into())
        };
        let wanted = tensor(&[0.0, 0.0]);
        assert!(check_outcome(&tensor(&[1.0, 0.0]), &wanted).is_ok());
        assert!(check_outcome(&tensor(&[1.0, 0.5]), &wanted).is_err());
        assert!(check_outcome(&tensor(&[1.0, f32::NAN]), &wanted).is_err());
        assert!(check_outcome(&tensor(&[1.0]), &wanted).is_err());
    }
}
