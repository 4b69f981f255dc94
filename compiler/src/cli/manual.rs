//! `onnxc completions` and `onnxc man`: made from the definitions of the command line.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::args::{Cli, CompletionsArgs, ManArgs};
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, one};
use crate::error::Result;
use crate::files::io_error;

pub fn completions(args: &CompletionsArgs) {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "onnxc", &mut text);
    say!("{}", String::from_utf8_lossy(&text).trim_end());
}

pub fn pages(args: &ManArgs) -> std::result::Result<(), Problems> {
    write(args).map_err(one)
}

fn write(args: &ManArgs) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = &args.output else {
        say!("{}", page(&command, "onnxc".to_string()).trim_end());
        return Ok(());
    };
    std::fs::create_dir_all(folder).map_err(|error| io_error(folder, &error))?;
    let commands = command.get_subcommands().filter(|own| own.get_name() != "help" && !own.is_hide_set());
    let mut pages = vec![page(&command, "onnxc".to_string())];
    let mut names = vec!["onnxc".to_string()];
    for own in commands {
        let name = format!("onnxc-{}", own.get_name());
        pages.push(page(own, name.clone()));
        names.push(name);
    }
    let places: Vec<_> = names.iter().map(|name| folder.join(format!("{name}.1"))).collect();
    places.iter().try_for_each(|place| output::check_place(place, &[]))?;
    let mut outputs = Outputs::beside(&places[0])?;
    for (place, text) in places.iter().zip(&pages) {
        outputs.write(place, &mut |file| {
            file.write_all(text.as_bytes()).map_err(|error| io_error(place, &error))
        })?;
    }
    outputs.commit()
}

/// A manual page in roff.
fn page(command: &Command, name: String) -> String {
    let mut text = Vec::new();
    let man = Man::new(command.clone().display_name(name.clone())).title(name);
    // A vector takes what is written.
    let _ = man.render(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}
