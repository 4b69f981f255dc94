//! Models with some of their outputs: the others, and what only they need, are gone.

use std::collections::BTreeMap;

use super::Graph;
use crate::error::{Error, Kind, Result, Stage};

impl Graph {
    /// Keeps the outputs with these names, in the model's order. A name is that of the ONNX value: all parts of one stay. Errors: a
    /// name that no output has.
    pub fn keep_outputs(&mut self, names: &[String]) -> Result<()> {
        let parts = &self.output_parts;
        let value = |at: usize| parts.get(&at).map_or(&self.outputs[at].0, |part| &part.0);
        let all: Vec<&String> = (0..self.outputs.len()).map(value).collect();
        if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
            let mut known: Vec<String> = all.iter().map(|name| format!("`{name}`")).collect();
            known.dedup();
            let message = format!("the model has no output `{unknown}`; there are {}", known.join(", "));
            return Err(Error::new(Stage::Import, Kind::Usage, message));
        }
        let kept: Vec<usize> = (0..all.len()).filter(|&at| names.contains(all[at])).collect();
        self.outputs = kept.iter().map(|&at| self.outputs[at].clone()).collect();
        self.output_parts = renumbered(&kept, std::mem::take(&mut self.output_parts));
        self.any_rank = renumbered(&kept, std::mem::take(&mut self.any_rank));
        self.packed_outputs = renumbered(&kept, std::mem::take(&mut self.packed_outputs));
        self.keep_reachable();
        Ok(())
    }
}

/// What is known of outputs by their old numbers, by the new ones.
fn renumbered<T>(kept: &[usize], mut of: BTreeMap<usize, T>) -> BTreeMap<usize, T> {
    kept.iter().enumerate().filter_map(|(at, old)| Some((at, of.remove(old)?))).collect()
}
