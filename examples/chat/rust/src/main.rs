//! Continues a text by a language model and prints each token as it is drawn: `chat [options] PROMPT ...`. Without PROMPT the
//! text is read from the standard input. The twin of main.c: the same options, the same tokens.

mod options;
mod sampler;
mod session;

use std::error::Error;
use std::io::{Read, Write, stderr, stdin, stdout};
use std::time::Instant;

use options::Options;
use sampler::Sampler;
use session::Session;
use tokenizers::Tokenizer;

include!(concat!(env!("OUT_DIR"), "/chat.rs"));

/// Stands before each text that the model was trained on.
const END_OF_TEXT: &str = "<|endoftext|>";

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let tokenizer =
        Tokenizer::from_bytes(include_bytes!("../../tokenizer.json")).map_err(|error| error.to_string())?;
    let prompt = match &options.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut text = String::new();
            stdin().read_to_string(&mut text)?;
            text
        }
    };
    let end = i64::from(tokenizer.token_to_id(END_OF_TEXT).ok_or("the tokenizer has no end of a text")?);
    let encoding = tokenizer.encode(prompt, false).map_err(|error| error.to_string())?;
    let mut tokens: Vec<i64> =
        [end].into_iter().chain(encoding.get_ids().iter().map(|&id| i64::from(id))).collect();
    let prompted = tokens.len();

    // Characters that are several tokens come when they are whole.
    let mut stream = tokenizer.decode_stream(true);
    let mut print = |token: i64| -> Result<(), Box<dyn Error>> {
        if let Some(text) = stream.step(token as u32).map_err(|error| error.to_string())? {
            stdout().write_all(text.as_bytes())?;
            stdout().flush()?;
        }
        Ok(())
    };
    if options.ids == 0 {
        tokens.iter().try_for_each(|&token| print(token))?;
    }

    let Options { temperature, top_k, top_p, seed: state, context, .. } = options;
    let (mut session, mut sampler) = (Session::new(context)?, Sampler { temperature, top_k, top_p, state });
    let start = Instant::now();
    let mut logits = session.feed(&tokens[prompted.saturating_sub(context)..])?;
    let prefilled = Instant::now();
    while tokens.len() < prompted + options.tokens {
        let token = sampler.next(logits).ok_or("the model's logits are not finite")? as i64;
        tokens.push(token);
        if options.ids == 0 {
            print(token)?;
        } else {
            println!("{token}");
        }
        if token == end && options.endless == 0 {
            break;
        }
        // A text that is as long as the context goes on from its later half.
        let mut fed = 1;
        if session.length() >= context {
            session.forget();
            fed = context / 2;
        }
        logits = session.feed(&tokens[tokens.len() - fed..])?;
    }
    let (milliseconds, seconds) =
        ((prefilled - start).as_secs_f64() * 1e3, prefilled.elapsed().as_secs_f64());
    let rate = (tokens.len() - prompted) as f64 / seconds;
    writeln!(
        stderr(),
        "\nprompt: {prompted} tokens in {milliseconds:.1} ms; then {rate:.0} tokens per second"
    )?;
    Ok(())
}
