//! The language model as a function of a text that grows.

use crate::chat::{Chat, Error};

/// A text, as the caches that the model has made of its tokens.
#[derive(Default)]
pub struct Session {
    model: Chat,
    /// Key and value of each layer, f32[1, heads, length, head size].
    caches: [Vec<f32>; 8],
    length: usize,
    logits: Vec<f32>,
}

impl Session {
    /// Tokens that the text has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Appends tokens, at least one, and gives the logits of the next one.
    pub fn feed(&mut self, tokens: &[i64]) -> Result<&[f32], Error> {
        let (past, end) = (self.length, self.length + tokens.len());
        let positions: Vec<i64> = (past as i64..end as i64).collect();
        let [k0, v0, k1, v1, k2, v2, k3, v3] = &self.caches;
        let outputs = self.model.run(
            1,
            tokens.len(),
            end,
            past,
            tokens,
            &vec![1; end],
            &positions,
            k0,
            v0,
            k1,
            v1,
            k2,
            v2,
            k3,
            v3,
        )?;
        self.caches = [
            outputs.present_0_key,
            outputs.present_0_value,
            outputs.present_1_key,
            outputs.present_1_value,
            outputs.present_2_key,
            outputs.present_2_value,
            outputs.present_3_key,
            outputs.present_3_value,
        ];
        self.length = end;
        self.logits = outputs.logits;
        Ok(&self.logits[(tokens.len() - 1) * outputs.logits_dims[2]..])
    }

    /// Makes the text empty.
    pub fn forget(&mut self) {
        self.caches.iter_mut().for_each(Vec::clear);
        self.length = 0;
    }
}
