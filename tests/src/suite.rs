//! The official tests of the ONNX package as folders, and one such test run on a compiled model.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Error, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::Compiled;
use onnxc::cli::values::{self, Port};
use onnxc::cli::{compare, files};
use onnxc::native::{Call, Model};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_runtime_support::abi::ValueInfo;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::abi;
use crate::drawn;
use crate::interpreted::Interpreted;
use crate::onnx_env::{self, Environment};
use crate::remote::Program;

/// Folders of the suite, in the order they are reported.
pub const KINDS: [&str; 5] = ["node", "simple", "pytorch-converted", "pytorch-operator", "light"];

/// `meta.json` of a test; see `python/export_suite.py`.
#[derive(Deserialize)]
pub struct Meta {
    pub rtol: f64,
    pub atol: f64,
    /// Per data set what the files of inputs and outputs hold.
    data_sets: Vec<[Vec<String>; 2]>,
}

/// One test of the suite.
#[derive(Clone, Serialize, Deserialize)]
pub struct Case {
    /// `kind/name`
    pub id: String,
    /// Prefix of the compiled model's symbols.
    pub symbol: String,
    pub folder: PathBuf,
}

/// The request to the process that runs compiled tests: a library and the tests in it.
#[derive(Serialize, Deserialize)]
pub struct Batch {
    pub library: PathBuf,
    pub cases: Vec<Case>,
    pub checks: Checks,
}

/// What a run of a test looks at besides its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Checks {
    /// Nothing: its buffers are those of the heap.
    None,
    /// Buffers lie at protected pages.
    Bounds,
    /// The first data set with all that the C ABI promises too: misuse, failing allocations, stack.
    Abi,
}

/// What it reports, one JSON object per line.
#[derive(Serialize, Deserialize)]
pub enum Report {
    Start(usize),
    /// Number of the case, and how it failed.
    Done(usize, Option<Miss>),
}

/// How a test that ran failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Miss {
    pub text: String,
    /// All that is wrong is elements beyond the tolerance by no more than rounding explains.
    pub rounding: bool,
}

impl From<String> for Miss {
    fn from(text: String) -> Miss {
        Miss { text, rounding: false }
    }
}

impl From<onnxc_ir::error::Error> for Miss {
    fn from(error: onnxc_ir::error::Error) -> Miss {
        error.to_string().into()
    }
}

/// Runs the data set of a number: gives the outputs, which have these shapes.
type RunSet<'r> = &'r dyn Fn(usize, &[Option<Tensor>], &[Option<Vec<usize>>]) -> Result<Vec<Tensor>, Miss>;

/// How a tensor of an output, of this name, differs from the one expected, if it does; fails where no rounding explains it.
type Judge<'j> = &'j dyn Fn(&str, &Tensor, &Tensor) -> Result<Option<Miss>, Miss>;

/// Most units in the last place that rounding at other steps than the reference explains.
const ROUNDING_ULP: u64 = 4;

/// All tests, sorted by kind and name. The suite is written once beneath the target folder.
pub fn cases() -> io::Result<Vec<Case>> {
    cases_of(&root()?)
}

/// The node tests of release 1.22 with other models than the newest release has. All other models differ in their drawn data alone.
pub fn changed_since_1_22() -> io::Result<Vec<Case>> {
    let newest = root()?;
    let mut cases = cases_of(&root_1_22()?)?;
    cases.retain(|case| {
        let of_newest = newest.join(&case.id).join("model.onnx");
        case.id.starts_with("node/") && fs::read(of_newest).ok() != fs::read(case.model()).ok()
    });
    Ok(cases)
}

/// Folder of the suite, written if need be.
pub fn root() -> io::Result<PathBuf> {
    let root = onnx_env::target_dir().join("onnx-suite");
    provide(&onnx_env::ONNX, &root)?;
    Ok(root)
}

/// Folder of the suite of release 1.22.
pub fn root_1_22() -> io::Result<PathBuf> {
    let root = onnx_env::target_dir().join("onnx-1.22-suite");
    provide(&onnx_env::ONNX_1_22, &root)?;
    Ok(root)
}

fn cases_of(root: &Path) -> io::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for kind in KINDS {
        let mut names: Vec<String> = fs::read_dir(root.join(kind))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()?;
        names.sort();
        for name in names {
            let (id, symbol) = (format!("{kind}/{name}"), format!("t{}", cases.len()));
            cases.push(Case { id, symbol, folder: root.join(kind).join(name) });
        }
    }
    Ok(cases)
}

fn provide(environment: &Environment, root: &Path) -> io::Result<()> {
    environment.interpreter()?;
    let lock = File::create(root.with_extension("lock"))?;
    lock.lock()?;
    // The stamp holds all that the suite depends on, and is written last.
    let recipe = format!("{}{}", environment.requirements(), include_str!("../python/export_suite.py"));
    let stamp = root.join("stamp.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == recipe) {
        return Ok(());
    }
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    fs::create_dir_all(root)?;
    environment.run_script("export_suite.py", &[&root.to_string_lossy()])?;
    fs::write(stamp, recipe)
}

/// `../shared/models` relative to the repository, also when this is one of its work trees. Where it is missing, tests of
/// real models are left out, and standard error says so past the test runner's capture; `ONNXC_REQUIRE_MODELS=1` makes that
/// a failure.
pub fn models_folder() -> Option<PathBuf> {
    let folder = find_models();
    if folder.is_none() {
        let required = std::env::var_os("ONNXC_REQUIRE_MODELS").is_some_and(|value| value == "1");
        assert!(
            !required,
            "ONNXC_REQUIRE_MODELS is 1, and there is no ../shared/models beside the repository"
        );
        let text = "NOT TESTED: there is no ../shared/models beside the repository, tests of real models are left out";
        // Nothing depends on the message, so an error of standard error does not matter.
        let _ = writeln!(io::stderr(), "{text}");
    }
    folder
}

/// Largest absolute error of an output of a real model; relatively, its type's own.
pub const MODEL_ATOL: f64 = 1e-4;

/// The real model of a folder, whose test data lie beside it, as a test of the suite; it is put together beneath `scratch`.
pub fn zoo_case(model: &Path, scratch: &Path) -> io::Result<Case> {
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = scratch.join(&name);
    fs::create_dir(&folder)?;
    let (mut sets, mut rtol) = (vec![], 0f64);
    for entry in fs::read_dir(model)? {
        let (path, file) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        std::os::unix::fs::symlink(&path, folder.join(&file))?;
        if file.to_string_lossy().starts_with("test_data_set_") {
            let kinds = |prefix| vec!["tensor"; files::numbered(&path, prefix).len()];
            sets.push([kinds("input"), kinds("output")]);
            for output in files::numbered(&path, "output") {
                let tensor = files::read_tensor(&output, None);
                rtol = rtol.max(tensor.map_or(0.0, |tensor| compare::default_rtol(tensor.dtype)));
            }
        }
    }
    let meta = json!({ "rtol": rtol, "atol": MODEL_ATOL, "data_sets": sets });
    fs::write(folder.join("meta.json"), meta.to_string())?;
    let symbol = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
    Ok(Case { id: name, symbol: format!("model_{symbol}"), folder })
}

fn find_models() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let common = Command::new("git")
        .args(["rev-parse", "--path-format=absolute", "--git-common-dir"])
        .current_dir(repository)
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| Path::new(text.trim()).parent().map(Path::to_path_buf));
    let roots = [Some(repository.to_path_buf()), common];
    let folders = roots.into_iter().flatten().map(|root| root.join("../shared/models"));
    folders.into_iter().find(|folder| folder.is_dir())
}

impl Case {
    pub fn model(&self) -> PathBuf {
        self.folder.join("model.onnx")
    }

    pub fn meta(&self) -> io::Result<Meta> {
        serde_json::from_str(&fs::read_to_string(self.folder.join("meta.json"))?).map_err(Error::other)
    }

    /// Runs every data set of the test; fails with what is wrong.
    pub fn run(&self, model: &Model<'_>, checks: Checks) -> Result<(), Miss> {
        let ports = |infos: Vec<ValueInfo>| infos.iter().map(Port::from).collect::<Vec<Port>>();
        let ports = [ports(model.inputs()), ports(model.outputs())];
        self.run_sets(&ports, &|at, inputs, shapes| {
            if drawn::is_drawn(&self.id) {
                drawn::check_frequencies(self, model, inputs, shapes)?;
            }
            match (checks, at) {
                (Checks::None, _) => Ok(model.run(inputs, shapes)?),
                (Checks::Abi, 0) => Ok(abi::check(model, inputs, shapes)?.outputs),
                (Checks::Bounds | Checks::Abi, _) => {
                    Ok(model.run_guarded(inputs, shapes, &Call::default())?)
                }
            }
        })
    }

    /// Runs every data set of the test as model `number` of a program for another machine, this often; fails with what is
    /// wrong.
    pub fn run_remote(&self, program: &mut Program, number: usize, runs: usize) -> Result<(), Miss> {
        let infos = program.describe(number)?;
        let ports = infos.each_ref().map(|infos| infos.iter().map(Port::from).collect::<Vec<Port>>());
        let program = RefCell::new(program);
        self.run_sets(&ports, &|_, inputs, shapes| {
            Ok(program.borrow_mut().run(number, runs, &infos[1], inputs, shapes)?)
        })
    }

    /// Runs every data set of the test in the interpreter of host programs; fails with what is wrong.
    pub fn interpret(&self, compiled: &Compiled) -> Result<(), Miss> {
        let ports = [values::inputs(&compiled.graph), values::outputs(&compiled.graph)];
        let model = Interpreted::new(compiled)?;
        self.run_sets(&ports, &|_, inputs, shapes| Ok(model.run(inputs, shapes)?))
    }

    /// Runs every data set of the test on the model as another program has it; fails with what is wrong. `run` gives the outputs of inputs
    /// (`None`: the input's default).
    pub fn run_by(
        &self,
        compiled: &Compiled,
        run: impl Fn(&[Option<Tensor>]) -> Result<Vec<Tensor>, Miss>,
    ) -> Result<(), Miss> {
        let ports = [values::inputs(&compiled.graph), values::outputs(&compiled.graph)];
        self.run_sets(&ports, &|_, inputs, _| run(inputs))
    }

    /// `ports` are the inputs and the outputs.
    fn run_sets(&self, ports: &[Vec<Port>; 2], run: RunSet<'_>) -> Result<(), Miss> {
        let meta = self.meta().map_err(|error| error.to_string())?;
        let judge: Judge = match drawn::is_drawn(&self.id) {
            true => &|name, got, wanted| match drawn::check_outcome(got, wanted) {
                Ok(()) => Ok(None),
                Err(text) => Err(format!("{name}: {text}").into()),
            },
            false => &|name, got, wanted| miss(name, got, wanted, &meta),
        };
        for at in 0..meta.data_sets.len() {
            let folder = self.folder.join(format!("test_data_set_{at}"));
            run_set(ports, &folder, judge, (at, run))
                .map_err(|miss| Miss { text: format!("data set {at}: {}", miss.text), ..miss })?;
        }
        Ok(())
    }
}

/// The unit in the last place of the largest element of an f32 or f64 tensor, about: what sums of elements like it
/// leave where they cancel. 0 for other types.
fn unit_of_largest(tensor: &Tensor) -> f64 {
    let epsilon = match tensor.dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F64 => f64::EPSILON,
        _ => return 0.0,
    };
    let values = tensor.to_f64s().unwrap_or_default();
    values.iter().filter(|value| value.is_finite()).fold(0f64, |most, value| most.max(value.abs())) * epsilon
}

/// Runs one data set.
fn run_set(
    [inputs, outputs]: &[Vec<Port>; 2],
    folder: &Path,
    judge: Judge<'_>,
    (number, run): (usize, RunSet<'_>),
) -> Result<(), Miss> {
    let groups = values::grouped(outputs);
    let wanted = values::read_numbered(folder, "output", &groups)?;
    let inputs = values::test_inputs(inputs, folder)?;
    // The outputs' sizes are those expected; a model that makes others says so.
    let mut shapes: Vec<Option<Vec<usize>>> = vec![];
    for (value, own) in wanted.iter().zip(&groups) {
        shapes.extend(values::pack(value, own)?.into_iter().map(|tensor| Some(tensor.shape)));
    }
    let got = run(number, &inputs, &shapes)?;
    let got = values::unpack_all(&got, outputs)?;
    let mut misses: Vec<Miss> = Vec::new();
    for (at, ((_, got), wanted)) in got.iter().zip(&wanted).enumerate() {
        let pairs = values::pairs(&format!("output {at}"), got, wanted);
        for (name, got, wanted) in pairs.map_err(|what| format!("output {at}: {what}"))? {
            misses.extend(judge(&name, got, wanted)?);
        }
    }
    let rounding = misses.iter().all(|miss| miss.rounding);
    match misses.into_iter().next() {
        Some(first) => Err(Miss { rounding, ..first }),
        None => Ok(()),
    }
}

/// How a tensor of an output differs from the one expected, if it does.
fn miss(name: &str, got: &Tensor, wanted: &Tensor, meta: &Meta) -> Result<Option<Miss>, Miss> {
    // As the package's own runner does: two units in the last place of a bf16.
    let rtol = if wanted.dtype == DType::BF16 { meta.rtol.max(1.0 / 64.0) } else { meta.rtol };
    let difference = compare::compare(got, wanted, rtol, meta.atol);
    let difference = difference.map_err(|what| format!("{name}: {what}"))?;
    if difference.matches() {
        return Ok(None);
    }
    let near = difference.max_ulp.is_some_and(|ulp| ulp <= ROUNDING_ULP)
        || difference.max_abs <= ROUNDING_ULP as f64 * unit_of_largest(wanted);
    // A NaN or infinity where there should be none has an undefined distance, and is never near.
    let finite = got.to_f64s().is_some_and(|values| values.iter().all(|value| value.is_finite()));
    Ok(Some(Miss { text: format!("{name}: {difference}"), rounding: near && finite }))
}
