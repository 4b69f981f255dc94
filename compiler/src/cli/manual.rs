//! `onnxc completions` and `onnxc man`: made from the definitions of the command line. Behind the feature `manual`.

use std::io::Write;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::args::{Cli, CompletionsArgs, ManArgs, Shell};
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, one};
use crate::files::io_error;
use onnxc_ir::error::Result;

pub(super) fn completions(args: &CompletionsArgs) {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Elvish => clap_complete::Shell::Elvish,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Powershell => clap_complete::Shell::PowerShell,
        Shell::Zsh => clap_complete::Shell::Zsh,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "onnxc", &mut text);
    say!("{}", String::from_utf8_lossy(&text).trim_end());
}

pub(super) fn pages(args: &ManArgs) -> std::result::Result<(), Problems> {
    write(args).map_err(one)
}

fn write(args: &ManArgs) -> Result<()> {
    // `help` has no page.
    let mut command = Cli::command().disable_help_subcommand(true);
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
    let examples = examples(&name);
    let man = Man::new(command.clone().display_name(name.clone())).title(name);
    // A vector takes what is written.
    let _ = man.render(&mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if !examples.is_empty() {
        text += ".SH EXAMPLES\n";
    }
    for (what, line) in examples {
        text += &format!("{what}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n.PP\n", line.replace('-', "\\-"));
    }
    text += ".SH \"EXIT STATUS\"\n0: success.\n.br\n1: invalid model, wrong results or I/O error.\n.br\n2: usage error.\n";
    text
}

/// What command lines do, of a page.
fn examples(page: &str) -> &'static [(&'static str, &'static str)] {
    let found = EXAMPLES.iter().find(|(command, _)| page.strip_prefix("onnxc-").unwrap_or("") == *command);
    found.map_or(&[], |(_, examples)| examples)
}

type Examples = &'static [(&'static str, &'static str)];

/// By command; the program's own page is that of the empty name.
const EXAMPLES: &[(&str, Examples)] = &[
    (
        "",
        &[
            (
                "An object and its header, for every processor of this kind",
                "onnxc mobilenet.onnx -o mobilenet.o",
            ),
            (
                "For a processor and a fixed batch",
                "onnxc model.onnx --mcpu=znver4 --input-dim batch=1 -o model.o",
            ),
            ("For another machine", "onnxc model.onnx --target=aarch64-unknown-linux-gnu -o model.o"),
        ],
    ),
    (
        "compile",
        &[
            ("A shared library with a dependency file", "onnxc compile model.onnx -o libmodel.so -MD"),
            ("Assembly on standard output", "onnxc compile model.onnx --emit asm -o -"),
        ],
    ),
    ("check", &[("Every model of a folder", "onnxc check models --json")]),
    ("inspect", &[("What a model is, for a batch of 8", "onnxc inspect model.onnx --input-dim batch=8")]),
    (
        "run",
        &[
            ("On files, outputs into a folder", "onnxc run model.onnx --input x=x.npy --output out"),
            ("On random numbers", "onnxc run model.onnx --size batch=4 --random 1"),
        ],
    ),
    (
        "train-graph",
        &[
            (
                "A classifier that learns by Adam",
                "onnxc train-graph model.onnx --loss cross-entropy --optimizer adam -o trained.onnx",
            ),
            (
                "Its last layer alone, with a rate that each step takes",
                "onnxc train-graph model.onnx --loss cross-entropy --optimizer sgd --learn 'head.*' --learning-rate input -o trained.onnx",
            ),
        ],
    ),
    ("shard", &[("For two ranks", "onnxc shard model.onnx --tensor-parallel 2 -o sharded.onnx")]),
    (
        "verify",
        &[
            ("Against test_data_set_* beside the model", "onnxc verify model.onnx"),
            ("The first pass or kernel that is wrong", "onnxc verify model.onnx --bisect"),
        ],
    ),
    ("weights", &[("Of another training", "onnxc weights tuned.onnx --for net.weights -o tuned.weights")]),
    ("bench", &[("Time of each kernel on four threads", "onnxc bench model.onnx --per-node --threads 4")]),
    ("report", &[("A page", "onnxc report model.onnx -o model.html")]),
    ("ops", &[("Versions of an operator", "onnxc ops | grep Conv")]),
    ("completions", &[("For this shell", "source <(onnxc completions bash)")]),
    ("man", &[("Pages where man finds them", "onnxc man --output ~/.local/share/man/man1")]),
];
