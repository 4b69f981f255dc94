//! The command line: gcc-like for compiling, subcommands for everything else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::target::Goal;

#[derive(Parser, Debug)]
#[command(
    name = "onnxc",
    version,
    about = "Ahead-of-time compiler from ONNX models to native object files",
    override_usage = "onnxc [OPTIONS] MODEL.onnx\n       onnxc COMMAND [OPTIONS] ...",
    after_help = "Without a command, the model is compiled: `onnxc compile --help` lists the options.",
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses arguments, the program's name first. Where no command is named, `compile` is meant. Ends the program
    /// on `--help`, `--version` and usage errors.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Cli {
        let mut arguments = dependency_flags(arguments);
        if let Some(first) = arguments.get(1).map(|first| first.to_string_lossy().into_owned()) {
            let mut commands = Cli::command();
            let is_command = commands.get_subcommands().any(|command| command.get_name() == first);
            if !is_command && !["help", "-h", "--help", "-V", "--version"].contains(&first.as_str()) {
                if let Some(message) = neither(&first, &commands) {
                    commands.error(ErrorKind::InvalidSubcommand, message).exit();
                }
                arguments.insert(1, "compile".into());
            }
        }
        Cli::parse_from(arguments)
    }
}

/// What is wrong with a first argument that is meant as a command: a bare word that names no file.
fn neither(first: &str, commands: &clap::Command) -> Option<String> {
    let is_word = first.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') && !first.starts_with('-');
    if !is_word || Path::new(first).exists() {
        return None;
    }
    let names = commands.get_subcommands().map(clap::Command::get_name);
    let near = names
        .map(|name| (strsim::jaro_winkler(first, name), name))
        .filter(|near| near.0 > NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match near {
        Some((_, name)) => format!("; did you mean `{name}`?"),
        None => "; `onnxc --help` lists the commands".to_string(),
    };
    Some(format!("`{first}` is neither a command nor a file{hint}"))
}

/// Likeness of two words from which on one is taken for the other mistyped.
const NEAR: f64 = 0.75;

/// Arguments with the flags that C compilers have for dependency files, `-MD` and `-MF FILE`, as `--depfile`.
fn dependency_flags(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.peekable();
    let (mut others, mut asked, mut file) = (vec![], false, None);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--") => {
                others.push(argument);
                others.extend(arguments);
                break;
            }
            Some("-MD" | "-MMD") => asked = true,
            Some("-MF") => file = arguments.next(),
            Some(text) if text.starts_with("-MF") => file = Some(text[3..].into()),
            _ => others.push(argument),
        }
    }
    let flag = match file {
        Some(file) => {
            let mut flag = OsString::from("--depfile=");
            flag.push(file);
            Some(flag)
        }
        None => asked.then(|| "--depfile".into()),
    };
    let at = others.iter().position(|argument| argument == "--").unwrap_or(others.len());
    others.splice(at..at, flag);
    others
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Compile a model (the default)
    Compile(CompileArgs),
    /// List every problem and every unsupported node of a model, or of many with a summary of the reasons
    Check(CheckArgs),
    /// Show inputs, outputs, dims, parameters, operators, FLOPs and the memory plan
    Inspect(InspectArgs),
    /// Compile and run a model on input files or random inputs
    Run(RunArgs),
    /// Compile and compare with the expected outputs of test_data_set_* folders
    Verify(VerifyArgs),
    /// Compile and time a model
    Bench(BenchArgs),
    /// Compile, time and write a page about a model: its groups, memory plan, times against bounds and sizes
    Report(ReportArgs),
    /// Print the operator table
    Ops(OpsArgs),
    /// Print completions of these commands and options for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(ManArgs),
}

/// Which model, and how it is compiled: shared by all subcommands that compile.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// The ONNX model; `-` is standard input
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Pin a symbolic dim (`batch=1`) or an axis of an input (`images:0=1`)
    #[arg(long = "input-dim", value_name = "NAME=N|INPUT:AXIS=N")]
    pub input_dims: Vec<String>,
    /// Shape of an input that the model declares without one or with a wrong one, for optionals and sequences of the elements:
    /// sizes, symbols (the same name is the same size) and `?`, such as x=N,3,224,224; x=[] is a scalar. Where data is given to
    /// run on, an input without a declared shape has the rank of the data
    #[arg(long = "input-shape", value_name = "INPUT=DIM,DIM,...")]
    pub input_shapes: Vec<String>,
    /// Leave initializers that are also inputs to the caller, who may override them (else they are constants)
    #[arg(long)]
    pub overridable_defaults: bool,
    /// Refuse models that break the specification in ways that else give a warning
    #[arg(long)]
    pub strict: bool,
    /// Channels per block in a model that ONNX Runtime saved in the layout of its machine, where the model does not determine it: 16 on
    /// x86-64 with AVX-512 and on aarch64, otherwise 8
    #[arg(long, value_name = "CHANNELS")]
    pub nchwc_block: Option<Block>,
    /// Keep an input and an output as one tensor in the caller's memory from run to run: INPUT=OUTPUT, with :AXIS where it grows
    /// along several; or an input that runs only read: INPUT; `auto` finds both by their names
    #[arg(long, value_name = "PAIR|INPUT|auto")]
    pub state: Vec<String>,
    /// Elements for which states that grow have room (default: a symbol, which is given when a state is made)
    #[arg(long, value_name = "N", requires = "state")]
    pub state_capacity: Option<usize>,
    /// Folder that external tensor data may be anywhere beneath (default: the model's folder)
    #[arg(long, value_name = "DIR")]
    pub external_data_root: Option<PathBuf>,
}

/// How code is generated.
#[derive(Args, Debug, Clone)]
pub struct CodeArgs {
    /// Optimization level: 0 (required passes only) to 3, or s for small objects: one version of each kernel, loops that are not
    /// written out, weights in their own size
    #[arg(short = 'O', value_name = "LEVEL", value_enum, default_value_t = Level::Three)]
    pub opt_level: Level,
    /// Round as the model says: without minimal filtering of convolutions, scales folded into weights, joined scales of quantized
    /// models and other trades of accuracy for speed
    #[arg(long)]
    pub exact: bool,
    /// Target triple (default: this machine's)
    #[arg(long, value_name = "TRIPLE")]
    pub target: Option<String>,
    /// Processor: a name such as x86-64-v3 or znver3, or `native`. By default compiled objects run on every processor of
    /// the architecture; on x86-64 they hold hot code also for x86-64-v3 and x86-64-v4, and choose in the first run. For commands that
    /// run the model the default is `native`
    #[arg(long, value_name = "NAME")]
    pub mcpu: Option<String>,
    /// Widest vectors to use, in bits (default: the widest that the processor has)
    #[arg(long, value_name = "BITS")]
    pub vector_width: Option<usize>,
    /// Leave out the records by which debuggers, crash handlers and profilers walk the stack (-Os leaves them out, too)
    #[arg(long)]
    pub no_unwind: bool,
}

/// See [`CodeArgs::opt_level`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Level {
    #[value(name = "0")]
    Zero,
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    #[value(name = "3")]
    Three,
    #[value(name = "s")]
    Size,
}

impl Level {
    /// The level of the passes, and what code is tuned for.
    pub fn parts(self) -> (u8, Goal) {
        match self {
            Level::Zero => (0, Goal::Speed),
            Level::One => (1, Goal::Speed),
            Level::Two => (2, Goal::Speed),
            Level::Three => (3, Goal::Speed),
            Level::Size => (3, Goal::Size),
        }
    }
}

#[derive(Args, Debug)]
pub struct CompileArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    /// Output file (default: the model's name with the extension of what is emitted; `-` is standard output, for text). Its
    /// extension says what to write: .o or .obj, .a, .h, a shared library of the target (.so, .dylib or .dll), or a form of the
    /// compiler's own such as .s. With several kinds to emit, the others take their places beside it
    #[arg(short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Prefix of every symbol (default: the output file's name, of libraries without `lib`)
    #[arg(long)]
    pub name: Option<String>,
    /// What to write, several kinds with commas between (default: what the output's extension says, or obj)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,...")]
    pub emit: Vec<Emit>,
    /// Write a dependency file for make or ninja that names the model and its external data: FILE, or the output's name with .d.
    /// -MD and -MF FILE mean the same
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub depfile: Option<Option<PathBuf>>,
    /// C compiler that links shared libraries for the target (default: CC_<target>, of this machine CC or cc, else the GNU one that
    /// is named after the target)
    #[arg(long, value_name = "PROGRAM")]
    pub linker: Option<OsString>,
    /// Print the graph after a pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    pub print_ir_after: Vec<String>,
    /// Print the time that every stage takes
    #[arg(long)]
    pub time_passes: bool,
    /// Say what is done
    #[arg(short, long)]
    pub verbose: bool,
}

/// Channels to a block of the layout `com.microsoft.nchwc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Block {
    #[value(name = "8")]
    Eight = 8,
    #[value(name = "16")]
    Sixteen = 16,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emit {
    /// Object file and header
    Obj,
    /// Static library and header, through `ar`
    Lib,
    /// Shared library and header, through `cc`
    So,
    /// The C header alone
    Header,
    /// The tensor IR after all passes
    Graph,
    /// The host program: what the model does outside of its kernels
    Host,
    /// The loop IR of every kernel
    Loops,
    /// The vector IR of every kernel in wide vectors
    Vector,
    /// Cranelift IR of every kernel
    Clif,
    /// Disassembly of every kernel
    Asm,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// More models; of a folder, also the first one, every .onnx file in it and in the folders inside
    #[arg(value_name = "MODEL.onnx|DIR")]
    pub more: Vec<PathBuf>,
    /// Problems as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[arg(long)]
    pub json: bool,
}

/// Sizes of what the model leaves open, in a run on random inputs.
#[derive(Args, Debug)]
pub struct SizeArgs {
    /// Size of a symbolic dim (`batch=8`) or of an axis of an input (`images:0=8`) in random inputs; the model is compiled for
    /// any (default: 1)
    #[arg(long = "size", value_name = "NAME=N|INPUT:AXIS=N")]
    pub sizes: Vec<String>,
    /// Give every element of an input this number in place of random ones, such as a mask its ones
    #[arg(long, value_name = "INPUT=NUMBER")]
    pub fill: Vec<String>,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    /// An input file (.npy or .pb), in the order of the model's inputs, or NAME=FILE
    #[arg(long = "input", value_name = "FILE")]
    pub inputs: Vec<String>,
    /// Take the inputs of this folder of test data (input_K.pb), whose sizes the open dims have
    #[arg(long, value_name = "DIR", conflicts_with_all = ["inputs", "random"])]
    pub data: Option<PathBuf>,
    /// Fill missing inputs with seeded random values
    #[arg(long, value_name = "SEED")]
    pub random: Option<u64>,
    /// Seed of the random numbers that the model draws
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Write outputs into this folder: tensors of numbers as .npy, strings, sequences, maps and optionals as .pb
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// What `verify` says, for its help.
const VERDICTS: &str = "\
Says for each output how it differs from what is expected, and what that means:
  exact             all elements are equal
  within tolerance  no element is further off than atol + rtol * |expected|; integers are equal
  noise             some are, but rounding explains it: the largest distance is at most 8 roundings of the largest
                    magnitude expected, and the norm of all distances at most 8 roundings of the norm expected, in the
                    coarsest type that the model computes in (such as f16, bf16 or quantised i8). With --rtol or --atol
                    nothing is noise
  WRONG             anything else
The exit code is 1 if an output is wrong, else 0.";

#[derive(Args, Debug)]
#[command(after_help = VERDICTS)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    /// Folder with input_K.pb and output_K.pb (default: every test_data_set_* beside the model)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Relative tolerance (default: 1e-3, or four units in the last place of a type where that is more)
    #[arg(long)]
    pub rtol: Option<f64>,
    /// Absolute tolerance (default: 1e-4)
    #[arg(long)]
    pub atol: Option<f64>,
    /// Name the first node whose value is wrong by the reference evaluator
    #[arg(long)]
    pub per_node: bool,
    /// Name the first pass, kernel or stage whose results differ from the reference evaluator's; without test data on
    /// random inputs
    #[arg(long, conflicts_with = "per_node")]
    pub bisect: bool,
    /// Seed of the random inputs of --bisect
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub random: u64,
    #[command(flatten)]
    pub sizes: SizeArgs,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// All figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Time per kernel, the least of all runs: its operators, the shape of its result, its share, and its rate against what this
    /// processor reaches. A kernel whose operations would take longer than its bytes is rated by GFLOP/s, else by GB/s. The peaks are
    /// measured in the same run, on the same number of threads: fused multiply-adds of the widest vectors in registers, and reading an
    /// array of 256 MiB, or of half the second-level cache for kernels whose tensors that holds
    #[arg(long)]
    pub per_node: bool,
    /// With --per-node, name the ONNX nodes of each kernel
    #[arg(short, long, requires = "per_node")]
    pub verbose: bool,
}

/// What a model is timed on, and for how long.
#[derive(Args, Debug)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Take the inputs of this folder of test data (input_K.pb), whose sizes the open dims have
    #[arg(long, value_name = "DIR", conflicts_with_all = ["sizes", "fill"])]
    pub data: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// How long to repeat the inference
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

#[derive(Args, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// The page (default: the model's name with .html)
    #[arg(short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show what differs from this page, or from the output of `bench --per-node --json`
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write onnxc.1 and a page for each command into this folder
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct OpsArgs {
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    #[arg(long)]
    pub markdown: bool,
}
