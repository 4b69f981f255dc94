//! The encoder and the decoder as one that listens and speaks.

use crate::decoder::{Decoder, Error, State};
use crate::encoder::{self, Encoder};

pub struct Speech {
    encoder: Encoder,
    decoder: Decoder,
    /// What the encoder made, and the caches of the tokens so far.
    state: State,
}

impl Speech {
    pub fn new() -> Result<Speech, Error> {
        Ok(Speech { encoder: Encoder::new(), decoder: Decoder::new(), state: State::new()? })
    }

    /// Forgets what was said of other samples.
    pub fn listen(&mut self, samples: &[f32; 40000]) -> Result<(), Box<dyn std::error::Error>> {
        let heard: encoder::Outputs = self.encoder.run(samples)?;
        self.state.reset();
        self.state.set_past_key_cross_0(&heard.present_key_cross_0[..])?;
        self.state.set_past_value_cross_0(&heard.present_value_cross_0[..])?;
        self.state.set_past_key_cross_1(&heard.present_key_cross_1[..])?;
        self.state.set_past_value_cross_1(&heard.present_value_cross_1[..])?;
        Ok(())
    }

    /// Takes the next token of the text; gives the most probable one behind it.
    pub fn next(&mut self, token: i64) -> Result<i64, Error> {
        let outputs = self.decoder.run(&mut self.state, 1, &[token])?;
        let best =
            (0..outputs.logits.len()).rev().max_by(|&a, &b| outputs.logits[a].total_cmp(&outputs.logits[b]));
        Ok(best.unwrap_or(0) as i64)
    }
}
