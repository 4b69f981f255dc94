//! The command line: gcc-like for compiling, subcommands for everything else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

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
        let mut arguments: Vec<OsString> = arguments.collect();
        if let Some(first) = arguments.get(1).map(|first| first.to_string_lossy()) {
            let is_command = Cli::command().get_subcommands().any(|command| command.get_name() == first);
            if !is_command && !["help", "-h", "--help", "-V", "--version"].contains(&first.as_ref()) {
                arguments.insert(1, "compile".into());
            }
        }
        Cli::parse_from(arguments)
    }
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Compile a model (the default)
    Compile(CompileArgs),
    /// List every problem and every unsupported node of a model
    Check(CheckArgs),
    /// Show inputs, outputs, dims, parameters, operators, FLOPs and the memory plan
    Inspect(InspectArgs),
    /// Compile and run a model on input files or random inputs
    Run(RunArgs),
    /// Compile and compare with the expected outputs of test_data_set_* folders
    Verify(VerifyArgs),
    /// Compile and time a model
    Bench(BenchArgs),
    /// Print the operator table
    Ops(OpsArgs),
}

/// Which model, and how it is compiled: shared by all subcommands that compile.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// The ONNX model
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Pin a symbolic dim (`batch=1`) or an axis of an input (`images:0=1`)
    #[arg(long = "input-dim", value_name = "NAME=N|INPUT:AXIS=N")]
    pub input_dims: Vec<String>,
    /// Leave initializers that are also inputs to the caller, who may override them (else they are constants)
    #[arg(long)]
    pub overridable_defaults: bool,
    /// Refuse models that break the specification in ways that else give a warning: wrong declared types and shapes, nodes out
    /// of order, operators and types that only ONNX Runtime has
    #[arg(long)]
    pub strict: bool,
    /// Channels to a block in a model that ONNX Runtime saved in the layout of its machine, where the model does not tell: 16 on
    /// x86-64 with AVX-512 and on aarch64, else 8
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
    /// Optimization level: 0 (required passes only) to 3
    #[arg(short = 'O', value_name = "LEVEL", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt_level: u8,
    /// Do without algorithms that trade accuracy for speed (minimal filtering of convolutions)
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
}

#[derive(Args, Debug)]
pub struct CompileArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    /// Output file (default: the model's name with the extension of what is emitted; `-` is standard output, for text). Its
    /// extension says what to write: .o or .obj, .a, .so or .dylib, .h
    #[arg(short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Prefix of every symbol (default: the output file's name)
    #[arg(long)]
    pub name: Option<String>,
    /// What to write (default: what the output's extension says, or obj)
    #[arg(long, value_enum)]
    pub emit: Option<Emit>,
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
    /// Fill missing inputs with seeded random values
    #[arg(long, value_name = "SEED")]
    pub random: Option<u64>,
    /// Seed of the random numbers that the model draws
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Write outputs as .npy files into this folder
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
    pub sizes: SizeArgs,
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// How long to repeat the inference
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    #[arg(long)]
    pub json: bool,
    /// Share of the time per ONNX node
    #[arg(long)]
    pub per_node: bool,
}

#[derive(Args, Debug)]
pub struct OpsArgs {
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    #[arg(long)]
    pub markdown: bool,
}
