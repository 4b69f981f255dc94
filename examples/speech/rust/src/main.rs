//! Prints what is said in recordings, each word as it is found: `speech [--ids] FILE.wav ...`. The twin of main.c: the same tokens.

mod speech;
mod wav;

use std::error::Error;
use std::io::{Write, stdout};

use speech::Speech;

include!(concat!(env!("OUT_DIR"), "/encoder.rs"));
include!(concat!(env!("OUT_DIR"), "/decoder.rs"));

/// The texts of the tokens, from the header that the program in C reads.
fn tokens() -> Vec<&'static str> {
    let list = include_str!("../../tokens.h").lines().filter_map(|line| line.strip_prefix("    \""));
    list.filter_map(|line| line.strip_suffix("\",")).collect()
}

/// Most tokens of a text.
const MOST: usize = 16;
const END: i64 = 0;
const START: i64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let (options, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    if files.is_empty() || options.iter().any(|option| option != "--ids") {
        return Err("usage: speech [--ids] FILE.wav ...".into());
    }
    let (mut speech, tokens) = (Speech::new()?, tokens());
    for file in &files {
        let samples = wav::read(file).map_err(|problem| format!("{file}: {problem}"))?;
        speech.listen(&samples)?;
        let mut token = START;
        for count in 0..MOST {
            token = speech.next(token)?;
            let space = if count == 0 { "" } else { " " };
            if !options.is_empty() {
                print!("{space}{token}");
            } else if token != END {
                print!("{space}{}", tokens[token as usize]);
            }
            stdout().flush()?;
            if token == END {
                break;
            }
        }
        println!();
    }
    Ok(())
}
