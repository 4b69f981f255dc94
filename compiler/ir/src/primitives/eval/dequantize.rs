//! Codes of few bits as reals.

use bytes::Bytes;

use super::movement::zeroed;
use super::{Tensor, cast, internal};
use crate::error::Result;
use crate::graph::{DType, code_shift, codes_per_word};

/// `(code - bias - zero) * scale`, each step rounded to f32, see `Op::Dequantize`.
pub(in crate::primitives) fn dequantize(
    inputs: &[&Tensor],
    bits: usize,
    bias: usize,
    shape: &[usize],
) -> Result<Tensor> {
    let per_word = codes_per_word(bits, inputs[0].dtype).unwrap_or(1);
    let (Some(codes), &[.., steps, columns]) = (cast(inputs[0], DType::I64, true).to_i64s(), shape) else {
        return internal(format!("codes of {}", inputs[0].dtype));
    };
    let parameters: Vec<Vec<f32>> = inputs[1..]
        .iter()
        .map(|parameter| cast(parameter, DType::F32, true).to_f64s().unwrap_or_default())
        .map(|values| values.into_iter().map(|value| value as f32).collect())
        .collect();
    let mut data = zeroed(DType::F32, shape)?;
    for (at, element) in data.chunks_exact_mut(4).enumerate() {
        let (column, step, part) = (at % columns, at / columns % steps, at / columns / steps);
        let word = codes[(part * (steps / per_word) + step / per_word) * columns + column];
        let code = match per_word {
            1 => word,
            _ => word >> code_shift(bits, step % per_word) & ((1 << bits) - 1),
        };
        let own = |number: usize| parameters.get(number).map(|values| values[part * columns + column]);
        let value = code as f32 - bias as f32 - own(1).unwrap_or(0.0);
        element.copy_from_slice(&(value * own(0).unwrap_or(1.0)).to_le_bytes());
    }
    Ok(Tensor::new(DType::F32, shape.to_vec(), Bytes::from(data)))
}
