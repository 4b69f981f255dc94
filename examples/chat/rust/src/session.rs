//! The language model as a function of a text that grows.

use crate::chat::{Chat, Error, State};

/// A text, as the caches that the model has made of its tokens.
pub struct Session {
    model: Chat,
    state: State,
    logits: Vec<f32>,
}

impl Session {
    /// An empty text of at most `context` tokens.
    pub fn new(context: usize) -> Result<Session, Error> {
        Ok(Session { model: Chat::new(), state: State::new(1, context)?, logits: vec![] })
    }

    /// Tokens that the text has.
    pub fn length(&self) -> usize {
        self.state.past()
    }

    /// Appends tokens, at least one, and gives the logits of the next one.
    pub fn feed(&mut self, tokens: &[i64]) -> Result<&[f32], Error> {
        let (length, end) = (self.length(), self.length() + tokens.len());
        let positions: Vec<i64> = (length as i64..end as i64).collect();
        let mask = vec![1; end];
        let outputs = self.model.run(&mut self.state, tokens.len(), end, tokens, &mask, &positions)?;
        self.logits = outputs.logits;
        Ok(&self.logits[(tokens.len() - 1) * outputs.logits_dims[2]..])
    }

    /// Makes the text empty.
    pub fn forget(&mut self) {
        self.state.reset();
    }
}
