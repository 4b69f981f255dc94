//! Models in Rust programs: called from a build script, compiles a model, archives the object for the linker
//! and writes a typed safe wrapper to be included.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), onnxc::build::Failure> {
//!     onnxc::build("model.onnx")?;
//!     Ok(())
//! }
//! ```
//!
//! ```ignore
//! // main.rs
//! include!(concat!(env!("OUT_DIR"), "/model.rs"));
//! let outputs = model::Model::new().run(&image)?;
//! ```

#![warn(missing_docs)]

mod wrapper;

use crate::files::Mapped;
use crate::files::external::ExternalFiles;
use crate::{Options, Precision, Quiet};
use bytes::Bytes;
use onnxc_import as import;
use onnxc_import::state::Choice;
use onnxc_import::{CustomOp, ExternalData, ImportOptions};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_machine::target::{Goal, Target};
use onnxc_object::emit::identifier;
use onnxc_schedule::Recompute;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fmt};
use target_lexicon::Triple;

/// Compiles a model with the default options; see [`Builder::compile`].
pub fn build(model: impl AsRef<Path>) -> std::result::Result<Files, Failure> {
    Builder::new(model).compile()
}

/// A model to compile, and how.
#[derive(Clone, Debug)]
pub struct Builder {
    model: PathBuf,
    name: Option<String>,
    input_dims: Vec<String>,
    input_shapes: Vec<String>,
    custom_ops: Vec<(String, bool)>,
    states: Vec<String>,
    state_capacity: Option<usize>,
    training: bool,
    recompute: Recompute,
    overridable_defaults: bool,
    strict: bool,
    external_data_root: Option<PathBuf>,
    opt_level: u8,
    exact: bool,
    trace: bool,
    unwind: bool,
    precision: Precision,
    goal: Goal,
    cpu: Option<String>,
    target: Option<String>,
    out_dir: Option<PathBuf>,
    form: wrapper::WrapperForm,
    weights_file: bool,
}

/// What [`Builder::generate`] wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Files {
    /// Prefix of the symbols, name of the library and of the wrapper's module.
    pub name: String,
    /// The object file.
    pub object: PathBuf,
    /// It as a static library, which the linker takes.
    pub archive: PathBuf,
    /// The wrapper, to be included.
    pub wrapper: PathBuf,
    /// The file of weights, with [`Builder::weights_file`].
    pub weights: Option<PathBuf>,
    /// What was read: the model and its external data, sorted.
    pub read: Vec<PathBuf>,
    /// What the model breaks, each kind once.
    pub warnings: Vec<String>,
}

/// Every problem of the model or the options; its `Debug` is for people too, as a failing `main` prints it.
#[non_exhaustive]
pub struct Failure {
    /// The file that was to be compiled.
    pub model: PathBuf,
    /// Each of them once.
    pub problems: Vec<Error>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: cannot be compiled", self.model.display())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

impl Builder {
    /// A model file; a relative path starts at the folder of the package's `Cargo.toml`, where Cargo runs
    /// build scripts.
    pub fn new(model: impl AsRef<Path>) -> Builder {
        Builder {
            model: model.as_ref().to_path_buf(),
            name: None,
            input_dims: vec![],
            custom_ops: vec![],
            input_shapes: vec![],
            states: vec![],
            state_capacity: None,
            training: false,
            recompute: Recompute::Nothing,
            overridable_defaults: false,
            strict: false,
            external_data_root: None,
            opt_level: onnxc_passes::options::ALL_PASSES,
            exact: false,
            trace: true,
            unwind: true,
            precision: Precision::F32,
            goal: Goal::Speed,
            cpu: None,
            target: None,
            out_dir: None,
            form: wrapper::WrapperForm::Plain,
            weights_file: false,
        }
    }

    /// Symbol prefix, module and file name; the model file's name if not set. Made an identifier.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// Pins a symbolic dim (`batch=1`) or an axis of an input (`image:0=1`). May be called many times.
    pub fn input_dim(mut self, pin: impl Into<String>) -> Builder {
        self.input_dims.push(pin.into());
        self
    }

    /// Gives an input that the model declares without a shape, or with a wrong one, its shape: `INPUT=DIM,DIM,...` of sizes,
    /// symbols and `?` (`x=N,3,224,224`); `x=[]` is a scalar. May be called many times.
    pub fn input_shape(mut self, shape: impl Into<String>) -> Builder {
        self.input_shapes.push(shape.into());
        self
    }

    /// Has a function of the program compute an operator that is not known: `DOMAIN.OP[@NODE]=FUNCTION`, then `,shapes=FUNCTION`,
    /// `,scratch=BYTES`, `,like=INPUT` as the command's `--custom-op` takes them. The function is `extern "C"` and `no_mangle`; see
    /// `onnxc_op` in `onnxc.h`, and `custom::Op` in the crate `onnxc-runtime-support`. May be called many times.
    pub fn custom_op(mut self, operator: impl Into<String>) -> Builder {
        self.custom_ops.push((operator.into(), false));
        self
    }

    /// The same for an operator that is known, in whose place the function works. May be called many times.
    pub fn override_op(mut self, operator: impl Into<String>) -> Builder {
        self.custom_ops.push((operator.into(), true));
        self
    }

    /// Keeps an input and an output as one tensor from run to run: `INPUT=OUTPUT`, `INPUT=OUTPUT:AXIS` where it grows along
    /// several, or `auto` for all pairs recognized by their names. May be called many times. Runs of the wrapper then take a `State`.
    pub fn state(mut self, pair: impl Into<String>) -> Builder {
        self.states.push(pair.into());
        self
    }

    /// Capacity of growing states, in elements; if not set, `State::new` takes it.
    pub fn state_capacity(mut self, elements: usize) -> Builder {
        self.state_capacity = Some(elements);
        self
    }

    /// Compiles what the model's `training_info` describes, too. The wrapper then has a module for each function that trains,
    /// `train_initialize` and `train_step`, numbered where there are several; they run on the same `State` as the model.
    pub fn training(mut self, training: bool) -> Builder {
        self.training = training;
        self
    }

    /// Lets steps of training compute values again that the way back needs, in place of keeping them: what is cheap, or, with `bytes`,
    /// products too, until intermediate values take no more. Results keep their bits.
    pub fn recompute(mut self, bytes: Option<u64>) -> Builder {
        self.recompute = Recompute::asked(bytes);
        self
    }

    /// Leaves initializers that are also inputs to the caller, who may override them.
    pub fn overridable_defaults(mut self, overridable: bool) -> Builder {
        self.overridable_defaults = overridable;
        self
    }

    /// Treats warnings as errors.
    pub fn strict(mut self, strict: bool) -> Builder {
        self.strict = strict;
        self
    }

    /// Directory below which external data may be read; the model's folder if not set.
    pub fn external_data_root(mut self, root: impl AsRef<Path>) -> Builder {
        self.external_data_root = Some(root.as_ref().to_path_buf());
        self
    }

    /// 0 (required passes only), 1 (all but minimal filtering) or 2 (all passes, the default; 3 is the same).
    pub fn opt_level(mut self, level: u8) -> Builder {
        self.opt_level = level;
        self
    }

    /// Rounds as the model says: does without algorithms that trade accuracy for speed.
    pub fn exact(mut self, exact: bool) -> Builder {
        self.exact = exact;
        self
    }

    /// Whether the object holds the names of kernels and nodes and informs callers that trace their runs. The default is that it does.
    pub fn trace(mut self, trace: bool) -> Builder {
        self.trace = trace;
        self
    }

    /// Whether the object holds records for unwinders (`.eh_frame`), by which debuggers, crash handlers and profilers walk the stack. The
    /// default is that it does.
    pub fn unwind(mut self, unwind: bool) -> Builder {
        self.unwind = unwind;
        self
    }

    /// What the operands of products of floats are rounded to; if not set, they stay f32.
    pub fn precision(mut self, precision: Precision) -> Builder {
        self.precision = precision;
        self
    }

    /// Whether the object is to be fast, the default, or small: one version of each kernel, loops that are not written out, weights
    /// in their own size.
    pub fn goal(mut self, goal: Goal) -> Builder {
        self.goal = goal;
        self
    }

    /// Processor to generate code for, such as `x86-64-v3` or `native`; if not set, any of the architecture, with
    /// versions of hot code for better ones.
    pub fn cpu(mut self, cpu: impl Into<String>) -> Builder {
        self.cpu = Some(cpu.into());
        self
    }

    /// Target triple; Cargo's `TARGET` if not set.
    pub fn target(mut self, triple: impl Into<String>) -> Builder {
        self.target = Some(triple.into());
        self
    }

    /// Folder to write to; Cargo's `OUT_DIR` if not set.
    pub fn out_dir(mut self, folder: impl AsRef<Path>) -> Builder {
        self.out_dir = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Gives the wrapper a field `pool`: runs take the threads of an `onnxc_runtime_support::Pool` that is put there. The package
    /// needs that crate under `[dependencies]`.
    pub fn threads(mut self) -> Builder {
        self.form = wrapper::WrapperForm::Threads;
        self
    }

    /// Keeps the weights in a file of their own, [`Files::weights`], beside the archive. The wrapper is that of [`Builder::threads`], and
    /// has a field `weights` as well: an `onnxc_runtime_support::weights::Weights` of that file, or of one that `onnxc weights` makes of
    /// another training, which `load_weights` opens.
    pub fn weights_file(mut self) -> Builder {
        self.form = wrapper::WrapperForm::Threads;
        self.weights_file = true;
        self
    }

    /// Makes the wrapper one for programs without the standard library: it allocates nothing, the workspace lies in the model's
    /// value, and `run_into` is what there is. For models of static shapes without strings, images and state.
    pub fn no_std(mut self) -> Builder {
        self.form = wrapper::WrapperForm::Bare;
        self
    }

    /// Compiles, archives, writes the wrapper and prints Cargo's directives: to link the archive, and to run
    /// the build script again when a file that was read changes.
    pub fn compile(&self) -> std::result::Result<Files, Failure> {
        let files = self.generate()?;
        for path in &files.read {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        for warning in &files.warnings {
            println!("cargo:warning={warning}");
        }
        println!("cargo:rerun-if-env-changed=AR");
        if let Some(folder) = files.archive.parent() {
            println!("cargo:rustc-link-search=native={}", folder.display());
        }
        println!("cargo:rustc-link-lib=static={}", files.name);
        Ok(files)
    }

    /// Compiles and writes the files, and prints nothing: for other build systems than Cargo.
    pub fn generate(&self) -> std::result::Result<Files, Failure> {
        self.files().map_err(|problems| Failure { model: self.model.clone(), problems })
    }

    fn files(&self) -> std::result::Result<Files, Vec<Error>> {
        let one = |error: Error| vec![error];
        let folder = match &self.out_dir {
            Some(folder) => folder.clone(),
            None => PathBuf::from(variable("OUT_DIR").map_err(one)?),
        };
        let options = self.options().map_err(one)?;
        let external = Recorder {
            files: ExternalFiles::new(self.model_folder(), self.external_data_root.as_deref())
                .map_err(one)?,
            read: Mutex::default(),
        };
        let model = Mapped::open(&self.model).map_err(one)?.bytes();
        let compiled = crate::compile(model, &external, &options, &mut Quiet)?;
        let artifact = compiled.artifact().map_err(one)?;
        let name = artifact.name.clone();
        if self.weights_file && !matches!(self.form, wrapper::WrapperForm::Threads) {
            return Err(one(usage("a wrapper without `std` does not map files of weights".into())));
        }
        if self.weights_file && artifact.weights_file.is_none() {
            return Err(one(usage("the model has no weights that could be apart".into())));
        }
        if let (wrapper::WrapperForm::Bare, Some(what)) = (self.form, &artifact.needs_allocator) {
            let message = format!("{what}: an allocator in a wrapper without `std`");
            return Err(one(Error::unsupported(Stage::Emit, message)));
        }
        let entries: Vec<_> =
            compiled.entries.iter().map(|entry| (entry.suffix.as_str(), &*entry.graph)).collect();
        let text = wrapper::text(&compiled.graph, &entries, &name, artifact.stats.workspace_bytes, self.form);
        let text = text.map_err(one)?;
        let wrapper = folder.join(format!("{name}.rs"));
        fs::write(&wrapper, text).map_err(|error| io(&wrapper, &error)).map_err(one)?;
        let weights = artifact.weights_file.as_ref().map(|_| folder.join(format!("{name}.weights")));
        if let (Some(place), Some(weights)) = (&weights, &artifact.weights_file) {
            let mut file = File::create(place).map_err(|error| io(place, &error)).map_err(one)?;
            weights.write(&mut file).map_err(one)?;
        }
        let object = folder.join(format!("{name}.o"));
        let mut file = File::create(&object).map_err(|error| io(&object, &error)).map_err(one)?;
        artifact.write_object(&mut file).map_err(one)?;
        drop(file);
        let archive = folder.join(format!("lib{name}.a"));
        archive_object(&object, &archive, &options.target.triple).map_err(one)?;
        let warnings = import::summary(&compiled.warnings);
        Ok(Files { name, object, archive, wrapper, weights, read: self.read(&external), warnings })
    }

    fn options(&self) -> Result<Options> {
        let Some(opt_level) = onnxc_passes::options::level(self.opt_level) else {
            return Err(usage(format!("optimization level {} is not 0, 1 or 2", self.opt_level)));
        };
        let triple = match &self.target {
            Some(triple) => triple.clone(),
            None => variable("TARGET")?,
        };
        let stem = self.model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = self.name.clone().or(stem).unwrap_or_default();
        let pins = self.input_dims.iter().map(|pin| pin.parse()).collect::<Result<Vec<_>>>()?;
        let shapes = self.input_shapes.iter().map(|shape| shape.parse()).collect::<Result<Vec<_>>>()?;
        let custom_op = |(text, overrides): &(String, bool)| {
            Ok(CustomOp { overrides: *overrides, ..text.parse::<CustomOp>()? })
        };
        Ok(Options {
            name: identifier(&name),
            target: Target::parse(&triple, self.cpu.as_deref())?.for_goal(self.goal),
            opt_level,
            exact: self.exact,
            precision: self.precision,
            goal: self.goal,
            import: ImportOptions {
                input_dims: pins,
                input_shapes: shapes,
                overridable_defaults: self.overridable_defaults,
                strict: self.strict,
                training: self.training,
                state: Choice::parse(&self.states, self.state_capacity)?,
                custom_ops: self.custom_ops.iter().map(custom_op).collect::<Result<_>>()?,
                ..ImportOptions::default()
            },
            rank: None,
            profile: false,
            trace: self.trace,
            unwind: self.unwind,
            listing: None,
            recompute: self.recompute,
            weights_apart: self.weights_file.then(crate::WeightsApart::default),
        })
    }

    fn model_folder(&self) -> &Path {
        self.model.parent().unwrap_or(Path::new(""))
    }

    /// The model and those of the recorded locations that are files where they were looked up.
    fn read(&self, external: &Recorder) -> Vec<PathBuf> {
        let locations = external.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut read = BTreeSet::from([self.model.clone()]);
        for location in locations.iter() {
            let near = self.model_folder().join(location);
            match &self.external_data_root {
                Some(root) if !near.exists() => read.insert(root.join(location)),
                _ => read.insert(near),
            };
        }
        read.into_iter().collect()
    }
}

/// External data that remembers what was asked for.
struct Recorder {
    files: ExternalFiles,
    read: Mutex<BTreeSet<String>>,
}

impl ExternalData for Recorder {
    fn read(&self, location: &str, offset: u64, length: Option<u64>) -> Result<Bytes> {
        let bytes = self.files.read(location, offset, length)?;
        self.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(location.to_string());
        Ok(bytes)
    }
}

/// An archive of one object, with no time and no owner in it: the same bytes for the same object.
fn archive_object(object: &Path, archive: &Path, triple: &Triple) -> Result<()> {
    if archive.exists() {
        fs::remove_file(archive).map_err(|error| io(archive, &error))?;
    }
    let program = env::var_os("AR").unwrap_or_else(|| "ar".into());
    // Apple's has no flag for it and takes the variable.
    let apple = triple.operating_system.to_string().starts_with("darwin")
        || triple.operating_system.to_string().starts_with("macos");
    let mut command = Command::new(&program);
    command.arg(if apple { "crs" } else { "crsD" }).env("ZERO_AR_DATE", "1").arg(archive).arg(object);
    let output = command.output().map_err(|error| io(Path::new(&program), &error))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(Stage::Io, Kind::Io, format!("{command:?}: {}: {}", output.status, message.trim())))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| usage(format!("`{name}` is not set; Cargo sets it for build scripts")))
}

fn usage(message: String) -> Error {
    Error::new(Stage::Emit, Kind::Usage, message)
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Stage::Io, Kind::Io, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx")
    }

    fn builder(dir: &Path) -> Builder {
        Builder::new(digits()).target("x86_64-unknown-linux-gnu").out_dir(dir)
    }

    #[test]
    fn the_same_model_gives_the_same_files_in_any_folder() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = builder(a.path()).generate().unwrap();
        let two = builder(b.path()).generate().unwrap();
        assert_eq!(one.name, "digits");
        assert_eq!(one.read, [digits()]);
        for (one, two) in
            [(&one.object, &two.object), (&one.archive, &two.archive), (&one.wrapper, &two.wrapper)]
        {
            assert!(one.starts_with(a.path()));
            assert_eq!(fs::read(one).unwrap(), fs::read(two).unwrap(), "{}", one.display());
        }
        assert!(fs::read(&one.archive).unwrap().starts_with(b"!<arch>\n"));
    }

    #[test]
    fn weights_may_lie_beside_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let files = builder(dir.path()).weights_file().generate().unwrap();
        assert!(fs::read(files.weights.unwrap()).unwrap().len() > 10_000);
        let text = fs::read_to_string(&files.wrapper).unwrap();
        assert!(text.contains("pub fn load_weights(") && text.contains("link_name = \"digits_model\""));
        let files = builder(dir.path()).generate().unwrap();
        assert_eq!(files.weights, None);
        assert!(!fs::read_to_string(&files.wrapper).unwrap().contains("load_weights"));
        let bare = format!("{:?}", builder(dir.path()).weights_file().no_std().generate().unwrap_err());
        assert!(bare.contains("without `std`"), "{bare}");
    }

    #[test]
    fn failures_say_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let failure = |builder: Builder| format!("{:?}", builder.generate().unwrap_err());
        assert!(failure(builder(dir.path()).opt_level(9)).contains("level 9"));
        assert!(failure(builder(dir.path()).input_dim("batch")).contains("`batch`"));
        assert!(failure(builder(dir.path()).input_shape("image=1,")).contains("`image=1,`"));
        assert!(failure(builder(dir.path()).input_shape("nothing=1")).contains("no input is `nothing`"));
        assert!(failure(builder(dir.path()).cpu("z80")).contains("z80"));
        assert!(failure(builder(dir.path()).target("pdp11")).contains("pdp11"));
        let missing =
            failure(Builder::new("/nowhere/m.onnx").target("x86_64-unknown-linux-gnu").out_dir(dir.path()));
        assert!(missing.starts_with("/nowhere/m.onnx: cannot be compiled\n"), "{missing}");
        assert!(failure(builder(&dir.path().join("missing"))).contains("missing"));
    }
}
