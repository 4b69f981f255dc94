//! The options of main.c, less the threads: the wrapper of a model computes on the thread that calls it.

use std::str::FromStr;

pub struct Options {
    pub temperature: f64,
    pub top_k: usize,
    pub top_p: f64,
    pub seed: u64,
    pub tokens: usize,
    pub context: usize,
    pub endless: u8,
    pub ids: u8,
    /// The arguments behind the options, with spaces between them; none if there are none.
    pub prompt: Option<String>,
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            seed: 1,
            tokens: 200,
            context: 512,
            endless: 0,
            ids: 0,
            prompt: None,
        };
        let mut arguments = arguments.peekable();
        while let Some(name) = arguments.next_if(|argument| argument.starts_with("--")) {
            let value = arguments.next().unwrap_or_default();
            match name.as_str() {
                "--temperature" => set(&mut options.temperature, &name, &value)?,
                "--top-k" => set(&mut options.top_k, &name, &value)?,
                "--top-p" => set(&mut options.top_p, &name, &value)?,
                "--seed" => set(&mut options.seed, &name, &value)?,
                "--tokens" => set(&mut options.tokens, &name, &value)?,
                "--context" => set(&mut options.context, &name, &value)?,
                "--endless" => set(&mut options.endless, &name, &value)?,
                "--ids" => set(&mut options.ids, &name, &value)?,
                _ => return Err(format!("there is no option `{name}`")),
            }
        }
        let words: Vec<String> = arguments.collect();
        options.prompt = (!words.is_empty()).then(|| words.join(" "));
        Ok(options)
    }
}

fn set<T: FromStr>(option: &mut T, name: &str, value: &str) -> Result<(), String> {
    *option = value.parse().map_err(|_| format!("`{name}` takes a number, not `{value}`"))?;
    Ok(())
}
