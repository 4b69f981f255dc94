//! The command line: gcc-like for compiling, subcommands for everything else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use onnxc_ir::words::nearest;
use onnxc_machine::target::Goal;
use onnxc_passes::{Precision, options};

#[derive(Parser, Debug)]
#[command(
    name = "onnxc",
    version,
    about = "Ahead-of-time compiler from ONNX models to native object files",
    override_usage = "onnxc [OPTIONS] MODEL.onnx\n       onnxc COMMAND [OPTIONS] ...",
    after_help = USED_MOST,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print errors and results only: no warnings, notes or progress
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// The options that people use, for the help of the program itself.
const USED_MOST: &str = "\
Without a command, the model is compiled. The options used most:
  -o FILE                  Output: .o, .a, .so, .c, .wasm, .h, or text such as .s [default: MODEL.o and MODEL.h]
  --mcpu NAME              Processor, such as native or x86-64-v3 [default: any of the target]
  --target TRIPLE          Target, such as aarch64-unknown-linux-gnu [default: this machine]
  --input-dim batch=1      Fix a symbolic size
  --state auto             Keep caches in the caller's memory between runs
  -O LEVEL                 0, 1, 2, or s for small objects [default: 2]
  --emit KIND,...          What to write: obj, lib, so, c, wasm, header, graph, loops, asm, ...
`onnxc compile --help` lists all of them, `onnxc COMMAND --help` those of a command.

Exit codes: 0 success; 1 invalid model, wrong results or I/O error; 2 usage error";

impl Cli {
    /// Parses arguments, the program's name first. Where no command is named, `compile` is meant. Ends the program
    /// on `--help`, `--version` and usage errors.
    pub fn from_arguments(arguments: impl Iterator<Item = OsString>) -> Cli {
        let mut arguments = dependency_flags(arguments);
        let is_quiet = |argument: &OsString| argument == "-q" || argument == "--quiet";
        let first = arguments.iter().skip(1).find(|argument| !is_quiet(argument));
        if let Some(first) = first.map(|first| first.to_string_lossy().into_owned()) {
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
    let hint = match nearest(first, names) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => "; `onnxc --help` lists the commands".to_string(),
    };
    Some(format!("`{first}` is neither a command nor a file{hint}"))
}

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
    /// List every error, unsupported node and warning of models and folders
    Check(CheckArgs),
    /// Print inputs, outputs, sizes, parameters, operators, FLOPs and the memory plan
    Inspect(InspectArgs),
    /// Compile a model and run it on files or random inputs
    Run(RunArgs),
    /// Write the weights of a model for an object that was compiled from another training of it
    Weights(WeightsArgs),
    /// Write what trains a model into it, as training_info: loss, derivatives and optimizer
    TrainGraph(TrainGraphArgs),
    /// Write a device configuration into a model: which rank has which share of it
    Shard(ShardArgs),
    /// Compile a model and compare its outputs with those of test_data_set_* folders
    Verify(VerifyArgs),
    /// Compile a model and time it
    Bench(BenchArgs),
    /// Compile a model, time it and write a page: kernels, times against bounds, memory plan, sizes
    Report(ReportArgs),
    /// Print the operator table
    Ops(OpsArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write a page for each command
    Man(ManArgs),
}

/// Which model, and how it is compiled: shared by all subcommands that compile.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// The ONNX model; `-` is standard input
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Fix a symbolic size (`batch=1`) or an axis of an input (`images:0=1`)
    #[arg(long = "input-dim", value_name = "NAME=N|INPUT:AXIS=N")]
    pub input_dims: Vec<String>,
    /// Shape of an input that the model declares without one or with a wrong one: sizes, names of symbols and `?`, such as
    /// x=N,3,224,224; x=[] is a scalar. Of sequences and optionals it is the shape of the elements. Commands that run the model take
    /// the rank from the data where no option gives a shape
    #[arg(long = "input-shape", value_name = "INPUT=DIM,DIM,...")]
    pub input_shapes: Vec<String>,
    /// Keep initializers that are also inputs as inputs with a default; without it they are constants
    #[arg(long)]
    pub overridable_defaults: bool,
    /// Treat warnings as errors
    #[arg(long)]
    pub strict: bool,
    /// Channels per block of a model that ONNX Runtime saved in the blocked layout of its machine, if the weights do not show it:
    /// 16 for x86-64 with AVX-512 and aarch64, 8 for others
    #[arg(long, value_name = "CHANNELS")]
    pub nchwc_block: Option<BlockSize>,
    /// Keep a tensor in the caller's memory between runs: INPUT=OUTPUT, with :AXIS if it grows along several axes; INPUT for one that
    /// runs only read; `auto` finds both by their names
    #[arg(long, value_name = "PAIR|INPUT|auto")]
    pub state: Vec<String>,
    /// Capacity of growing states, in elements (default: chosen at run time)
    #[arg(long, value_name = "N", requires = "state")]
    pub state_capacity: Option<usize>,
    /// Compile what the model's training_info describes, too: functions that initialize what is trained and that train on a batch, beside
    /// the one that infers; what is trained becomes state. Without it the model only infers
    #[arg(long)]
    pub training: bool,
    /// Have a C function of the program that links the model compute an operator that is not known, `mine.Op=my_op`, or one node of it,
    /// `mine.Op@node=my_op`. Behind it, each after a comma: shapes=FUNCTION determines sizes that the model does not declare, scratch=BYTES
    /// asks for memory, like=INPUT gives results the type of an input, late has the options of a run compute it: no function is linked
    #[arg(long = "custom-op", value_name = "DOMAIN.OP[@NODE]=FUNCTION[,...]")]
    pub custom_ops: Vec<String>,
    /// The same for an operator that is known, in whose place the function works: `ai.onnx::Conv@conv1=my_conv`
    #[arg(long = "override", value_name = "DOMAIN::OP[@NODE]=FUNCTION[,...]")]
    pub overrides: Vec<String>,
    /// A file with such operators, one to a line; lines that begin with `override ` are for known ones, `#` begins a comment
    #[arg(long, value_name = "FILE")]
    pub custom_ops_file: Vec<PathBuf>,
    /// A shared library with their functions, for commands that run the model
    #[arg(long = "custom-library", value_name = "FILE")]
    pub custom_libraries: Vec<PathBuf>,
    /// Directory below which external data may be read (default: the model's own)
    #[arg(long, value_name = "DIR")]
    pub external_data_root: Option<PathBuf>,
}

/// Which share of a model that runs on several machines.
#[derive(Args, Debug, Clone)]
pub struct RankArgs {
    /// Follow this device configuration of the model: its devices are ranks, processes that each have a share of the model and exchange
    /// values by the communicator of their options. Without it configurations are ignored
    #[arg(long, value_name = "NAME")]
    pub configuration: Option<String>,
    /// The rank, from 0 on
    #[arg(long, value_name = "R", requires = "configuration")]
    pub rank: Option<usize>,
}

/// How code is generated.
#[derive(Args, Debug, Clone)]
pub struct CodeArgs {
    // The passes say what their levels are.
    #[arg(short = 'O', value_name = "LEVEL", value_enum, default_value_t = Level::Two, help = options::levels())]
    pub opt_level: Level,
    #[arg(long, help = format!("Use no algorithm that trades accuracy for speed. {}", options::left_out_by_exact()))]
    pub exact: bool,
    /// What the operands of products of floats are rounded to: f32 leaves them, bf16 multiplies faster on processors with
    /// AVX512-BF16 or AMX and halves weights, auto means bf16 on those; sums, norms, softmax and results stay f32
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = clap::value_parser!(Precision))]
    pub precision: Precision,
    /// Target triple (default: this machine's)
    #[arg(long, value_name = "TRIPLE")]
    pub target: Option<String>,
    /// Processor: a name such as x86-64-v3 or znver3, or `native`. By default objects run on every processor of the architecture; on
    /// x86-64 and aarch64 they also hold hot code for better ones, and the first run selects it. Commands that run the model default to
    /// `native`
    #[arg(long, value_name = "NAME")]
    pub mcpu: Option<String>,
    /// Levels of processors that an object without `--mcpu` holds code for, such as x86-64,x86-64-v3,x86-64-v4+vnni; it needs the lowest
    /// of them (default: all). An unknown name lists the known ones
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "mcpu")]
    pub levels: Option<Vec<String>>,
    /// Widest vectors to use, in bits (default: the processor's widest)
    #[arg(long, value_name = "BITS")]
    pub vector_width: Option<usize>,
    /// Leave out the records by which debuggers, crash handlers and profilers walk the stack (-Os leaves them out, too)
    #[arg(long)]
    pub no_unwind: bool,
    /// Leave out the names of kernels and nodes, and the calls by which a program traces runs (-Os leaves them out, and so do targets
    /// without an operating system)
    #[arg(long)]
    pub no_trace: bool,
    /// Let steps of training compute values again that the way back needs, in place of keeping them: what is cheap, or products too, until
    /// intermediate values take BYTES at most. Results keep their bits
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true)]
    pub recompute: Option<Option<u64>>,
    /// Keep weights out of objects, libraries and C, in this file as the kernels read them. Programs map it (onnxc_weights_map), share its
    /// pages, and may exchange it for one that `onnxc weights` makes of another training of the model. Commands that run the model
    /// compile it as the file says, and take the weights from there
    #[arg(long, value_name = "FILE")]
    pub weights_file: Option<PathBuf>,
    /// Least bytes of a weight in that file. Smaller ones, scalars and 64-bit integers are part of the code
    #[arg(long, value_name = "BYTES", default_value_t = 8, requires = "weights_file")]
    pub weights_from: usize,
}

/// See [`CodeArgs::opt_level`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Level {
    #[value(name = "0")]
    Zero,
    #[value(name = "1")]
    One,
    #[value(name = "2", alias = "3")]
    Two,
    #[value(name = "s")]
    Size,
}

impl Level {
    /// The level of the passes, and what code is tuned for.
    pub fn parts(self) -> (u8, Goal) {
        match self {
            Level::Zero => (0, Goal::Speed),
            Level::One => (1, Goal::Speed),
            Level::Two => (options::ALL_PASSES, Goal::Speed),
            Level::Size => (options::ALL_PASSES, Goal::Size),
        }
    }
}

#[derive(Args, Debug, Clone)]
pub struct CompileArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[command(flatten)]
    pub ranks: RankArgs,
    /// Write the files of every rank: net.rank0.o, net.rank1.o and so on, where one is net.o; their names are net_rank0, net_rank1
    #[arg(long, requires = "configuration", conflicts_with = "rank")]
    pub all_ranks: bool,
    /// Output file (default: the model's name with the extension of the kind). The extension selects what is written: .o or .obj, .a,
    /// .c, .wasm, .h, the target's shared library (.so, .dylib or .dll), or text such as .s. `-` is standard output, for text. Further
    /// kinds of --emit are written beside it
    #[arg(short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Compute this output and others named so, and nothing that only the rest of the model's outputs need; states stay
    #[arg(long, value_name = "NAME")]
    pub only_output: Vec<String>,
    /// Prefix of every symbol (default: the output file's name, without the `lib` prefix of libraries)
    #[arg(long)]
    pub name: Option<String>,
    /// What to write, separated by commas (default: by the output's extension, or obj). It must agree with the extension of -o
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,...")]
    pub emit: Vec<Emit>,
    /// Write a dependency file for make or ninja that names the model and its external data: FILE, or the output's name with .d.
    /// -MD and -MF FILE mean the same
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub depfile: Option<Option<PathBuf>>,
    /// Write a listing whose lines name steps, kernels and ONNX nodes, and line tables (.debug_line) into the ELF object that lead
    /// debuggers and profilers from code to its lines: FILE, or the output's name with .lst
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub listing: Option<Option<PathBuf>>,
    /// C compiler that links shared libraries. Those with ELF, for macOS or Windows, on x86-64 and aarch64, need none. Others are linked
    /// by `CC_<target>`; for the host CC or cc; otherwise the target's GNU compiler. For .wasm it is a clang; without it
    /// CC_wasm32_unknown_unknown or the clang that is found
    #[arg(long, value_name = "PROGRAM")]
    pub linker: Option<OsString>,
    /// Print the graph after a pass (`all`: after each)
    #[arg(long, value_name = "PASS")]
    pub print_ir_after: Vec<String>,
    /// Print the time of every stage
    #[arg(long)]
    pub time_passes: bool,
    /// Print progress
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print the files written, sizes, times, warnings and notes as JSON
    #[arg(long)]
    pub json: bool,
}

/// Channels to a block of the layout `com.microsoft.nchwc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BlockSize {
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
    /// Shared library and header
    So,
    /// C source and header, for machines with a C compiler
    C,
    /// WebAssembly module, with an ES module and its types, through clang
    Wasm,
    /// C header alone
    Header,
    /// Tensor IR after all passes
    Graph,
    /// Schedule: groups in their order, and where values have their bytes
    Schedule,
    /// Host program: everything outside of kernels
    Host,
    /// Loop IR of every kernel
    Loops,
    /// Vector IR of every kernel
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
    /// More models; a folder stands for every .onnx file below it
    #[arg(value_name = "MODEL.onnx|DIR")]
    pub more: Vec<PathBuf>,
    /// Print the problems as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a device configuration is made of.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes a model that computes the same, with a device configuration of all that is asked for: the number of ranks is the product. Prints
what was chosen by cost, and what each rank holds and sends. `onnxc --configuration ranks --all-ranks` compiles it.")]
pub struct ShardArgs {
    /// The ONNX model; `-` is standard input
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// Shares of each tensor: products by columns and then by rows, heads, channels
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tensor_parallel: u16,
    /// Stages of a pipeline
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub pipeline: u16,
    /// Parts of a batch: the first axis of inputs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub data_parallel: u16,
    /// Of a model with training_info, give each part of a batch a part of what the optimizer keeps, such as momenta
    #[arg(long)]
    pub shard_optimizer: bool,
    /// Name of the configuration
    #[arg(long, value_name = "NAME", default_value = "ranks")]
    pub configuration: String,
    /// The model with its configuration
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Directory below which external data may be read (default: the model's own)
    #[arg(long, value_name = "DIR")]
    pub external_data_root: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[command(flatten)]
    pub ranks: RankArgs,
    /// Also compile the model, and report the versions of every kernel with their bytes
    #[arg(long)]
    pub versions: bool,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

/// Sizes of what the model leaves open, in a run on random inputs.
#[derive(Args, Debug)]
pub struct SizeArgs {
    /// Size of a symbolic dimension (`batch=8`) or of an axis of an input (`images:0=8`) in random inputs; the code serves any size
    /// (default: 1)
    #[arg(long = "size", value_name = "NAME=N|INPUT:AXIS=N")]
    pub sizes: Vec<String>,
    /// Give every element of an input this value, such as a mask its ones
    #[arg(long, value_name = "INPUT=NUMBER")]
    pub fill: Vec<String>,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    /// An input file (.npy or .pb), in the model's order, or NAME=FILE
    #[arg(long = "input", value_name = "FILE")]
    pub inputs: Vec<String>,
    /// Read the inputs from a folder of test data (input_K.pb)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["inputs", "random", "sizes", "fill"])]
    pub data: Option<PathBuf>,
    /// Fill missing inputs with random values of this seed; --size and --fill imply seed 0
    #[arg(long, value_name = "SEED")]
    pub random: Option<u64>,
    /// Seed of the random numbers that the model draws
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Train the model by its training_info: on the batches in the folders of --data (input_K.pb of the step in each), or on --input
    /// NAME=FILE, cut into batches of --batch along the first axis. Prints the means of each epoch, such as the loss
    #[arg(long, conflicts_with_all = ["random", "sizes", "fill", "output"])]
    pub train: bool,
    /// Rows of a batch that are cut from --input with --train
    #[arg(long, value_name = "ROWS", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: u64,
    /// Times that --train goes over the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub epochs: u64,
    /// With --train, begin with the state in this file, in place of that of the initialization; of a .npz file with the variables that it
    /// has by name
    #[arg(long, value_name = "FILE", requires = "train")]
    pub restore: Option<PathBuf>,
    /// With --train, write the state to this file at the end; as .npz its variables by name, for NumPy
    #[arg(long, value_name = "FILE", requires = "train")]
    pub save: Option<PathBuf>,
    /// Write the outputs into this folder: numbers as .npy; strings, sequences, maps and optionals as .pb
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print the outputs as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The model is compiled with the options of FILE, which `--weights-file` wrote, and gives another file for the same object. Where
operations, shapes, types or constants differ that the object's code depends on, nothing is written, and the first difference is named.")]
pub struct WeightsArgs {
    /// The ONNX model whose weights are written
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// A file of weights of the object
    #[arg(long = "for", value_name = "FILE")]
    pub like: PathBuf,
    /// The new file
    #[arg(short, value_name = "FILE")]
    pub output: PathBuf,
    /// Directory below which external data may be read (default: the model's own)
    #[arg(long, value_name = "DIR")]
    pub external_data_root: Option<PathBuf>,
}

/// What the written model does, for the help of `train-graph`.
const TRAINED: &str = "\
Writes a model that infers as before and has a step of training: `onnxc run --train` runs it, `onnxc --training` compiles it. The step
takes the model's inputs and `target`, gives the loss, and changes what learns: all initializers of f32 or f64 that the output depends
on, but scalars, settings of operators, running statistics and scales of quantized tensors. Patterns have `*` and `?`; a name without
them also makes such a tensor learn.";

#[derive(Args, Debug)]
#[command(after_help = TRAINED)]
pub struct TrainGraphArgs {
    /// The ONNX model; `-` is standard input
    #[arg(value_name = "MODEL.onnx")]
    pub model: PathBuf,
    /// The model with its training
    #[arg(short, value_name = "FILE.onnx")]
    pub output: PathBuf,
    /// What becomes small: cross-entropy of scores and class numbers, mse (the square of the difference), or bce of scores and numbers
    /// from 0 to 1. All are means. The scores are those before a Softmax or Sigmoid at the end
    #[arg(long, value_enum)]
    pub loss: LossName,
    /// How the parameters follow their gradients
    #[arg(long, value_enum)]
    pub optimizer: OptimizerName,
    /// The output that learns, or another value of the graph (default: the only output)
    #[arg(long = "output", value_name = "NAME")]
    pub loss_of: Option<String>,
    /// Type of `target` (default: int64 for cross-entropy, else float). For cross-entropy float means a probability for each class
    #[arg(long, value_enum, value_name = "TYPE")]
    pub label_type: Option<LabelType>,
    /// Axis of classes for cross-entropy; -1 is the last
    #[arg(long, value_name = "AXIS", default_value_t = 1, allow_negative_numbers = true)]
    pub class_axis: i64,
    /// A number, which becomes a variable that the program may change, or `input` for an input of the step (default: 0.01; 0.001 for adam
    /// and adamw)
    #[arg(long, value_name = "X|input")]
    pub learning_rate: Option<String>,
    /// L2 regularization, for adamw decoupled from the gradient (default: 0.01 for adamw, else 0)
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub weight_decay: Option<f64>,
    /// Of the optimizer momentum (default: 0.9)
    #[arg(long, value_name = "X", value_parser = below_one)]
    pub momentum: Option<f64>,
    /// Nesterov's form of the optimizer momentum
    #[arg(long)]
    pub nesterov: bool,
    /// Of adam and adamw: how much of the means of gradients and of their squares stays (default: 0.9,0.999)
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1, value_parser = below_one)]
    pub betas: Option<Vec<f64>>,
    /// Added to the root that adam, adamw and adagrad divide by (default: 1e-8, 1e-10 for adagrad)
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub epsilon: Option<f64>,
    /// Of adagrad: the rate is divided by 1 + steps * this (default: 0)
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub rate_decay: Option<f64>,
    /// Initializers that learn, and no others but factors of --lora
    #[arg(long, value_name = "PATTERN")]
    pub learn: Vec<String>,
    /// Initializers that do not learn
    #[arg(long, value_name = "PATTERN")]
    pub freeze: Vec<String>,
    /// Have factors of this rank learn beside weights of MatMul, Gemm and MatMulNBits, in place of the model's own parameters; what they
    /// add is scaled by A/RANK (default: 1)
    #[arg(long, value_name = "RANK[,alpha=A]")]
    pub lora: Option<String>,
    /// The weights, or nodes, that have factors (default: all)
    #[arg(long, value_name = "PATTERN", requires = "lora")]
    pub lora_for: Vec<String>,
    /// Also write an initialization, which draws what learns anew: weights of products from the normal distribution with variance 2 by
    /// the length of their sums, scales 1, biases 0
    #[arg(long)]
    pub initialize: bool,
    /// Seed of the first values of factors
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Directory below which external data may be read (default: the model's own)
    #[arg(long, value_name = "DIR")]
    pub external_data_root: Option<PathBuf>,
    /// Print the file, what learns, warnings and notes as JSON
    #[arg(long)]
    pub json: bool,
}

/// See [`crate::Loss`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LossName {
    CrossEntropy,
    Mse,
    Bce,
}

/// See [`crate::Optimizer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OptimizerName {
    Sgd,
    Momentum,
    Adam,
    #[value(name = "adamw")]
    AdamW,
    Adagrad,
}

/// See [`crate::Label`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LabelType {
    Int32,
    Int64,
    Float,
}

fn number(text: &str, fits: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && fits(value) => Ok(value),
        _ => Err(format!("it must be a number {range}")),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "that is not negative")
}

fn below_one(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..1.0).contains(&value), "from 0 to below 1")
}

/// The verdicts of `verify`, for its help.
const VERDICTS: &str = "\
Prints for each output how far it is from the expected one, and a verdict:
  exact             all elements are equal
  within tolerance  every element is within atol + rtol * |expected|; integers are equal
  noise             some are not, but rounding explains it: the largest distance is at most 8 roundings of the largest
                    expected magnitude, and the norm of all distances at most 8 roundings of the expected norm, in the
                    coarsest type that the model computes in (such as f16, bf16 or quantised i8). With --rtol or --atol
                    there is no such verdict
  WRONG             anything else
The exit code is 1 if an output is wrong, otherwise 0. With --quiet, only wrong outputs are printed.";

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
    /// Relative tolerance (default: 1e-3, or four units in the last place of the type if that is more)
    #[arg(long)]
    pub rtol: Option<f64>,
    /// Absolute tolerance (default: 1e-4)
    #[arg(long)]
    pub atol: Option<f64>,
    /// Name the first node whose value differs from the reference evaluator's
    #[arg(long)]
    pub per_node: bool,
    /// Name the first pass, kernel or stage that differs from the reference evaluator; without test data, on random inputs
    #[arg(long, conflicts_with = "per_node")]
    pub bisect: bool,
    /// Seed of the random inputs of --bisect
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub random: u64,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Print the verdicts as JSON
    #[arg(long, conflicts_with_all = ["bisect", "per_node"])]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub code: CodeArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Print all figures as JSON
    #[arg(long)]
    pub json: bool,
    /// Time each kernel: operators, shape of the result, minimum time, share, and rate against the peak of this processor. Kernels
    /// bound by arithmetic are rated in GFLOP/s, others in GB/s. Peaks are measured in the same run on the same number of threads: fused
    /// multiply-adds in registers, and reads of 256 MiB, or of half the second-level cache for kernels whose tensors fit there
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
    /// Read the inputs from a folder of test data (input_K.pb)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["sizes", "fill"])]
    pub data: Option<PathBuf>,
    /// Threads of a run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// How long to repeat the run
    #[arg(long, value_name = "S", default_value_t = 3.0)]
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
    /// Print the figures as JSON as well
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Shells with completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Write onnxc.1 and a page for each command into this folder
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct OpsArgs {
    /// Print every row with its inputs, outputs, attributes and shape agreements as JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print a table for each domain with all versions, in Markdown
    #[arg(long)]
    pub markdown: bool,
}
