//! Draws a token from the logits of a language model: sampler.h describes how.

pub(crate) struct Sampler {
    pub temperature: f64,
    pub top_k: usize,
    pub top_p: f64,
    /// The seed, and what follows from it.
    pub state: u64,
}

impl Sampler {
    /// The next token, or none where a logit is NaN or the greatest is not finite.
    pub(crate) fn next(&mut self, logits: &[f32]) -> Option<usize> {
        let mut candidates: Vec<(f64, usize)> =
            logits.iter().enumerate().map(|(token, &logit)| (f64::from(logit), token)).collect();
        if candidates.iter().any(|candidate| candidate.0.is_nan()) {
            return None;
        }
        // The greatest logit first, equal ones by number. (That of -0 and 0 is equal, which `total_cmp` does not say.)
        let order = |a: &(f64, usize), b: &(f64, usize)| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1));
        let (best, token) =
            *candidates.iter().min_by(|a, b| order(a, b)).filter(|best| best.0.is_finite())?;
        if self.temperature <= 0.0 {
            return Some(token);
        }
        if (1..candidates.len()).contains(&self.top_k) {
            candidates.select_nth_unstable_by(self.top_k, order);
            candidates.truncate(self.top_k);
        }
        candidates.sort_unstable_by(order);
        let mut total = 0.0;
        for (weight, _) in &mut candidates {
            *weight = ((*weight - best) / self.temperature).exp();
            total += *weight;
        }
        let (mut sum, mut nucleus) = (0.0, 0);
        while nucleus < candidates.len() && (nucleus == 0 || sum < self.top_p * total) {
            sum += candidates[nucleus].0;
            nucleus += 1;
        }
        let (drawn, mut reached) = (self.uniform() * sum, 0.0);
        for (weight, token) in &candidates[..nucleus] {
            reached += weight;
            if reached > drawn {
                return Some(*token);
            }
        }
        Some(candidates[nucleus - 1].1)
    }

    /// From 0 to less than 1.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 * 2f64.powi(-53)
    }
}
