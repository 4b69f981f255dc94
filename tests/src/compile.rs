//! Compiling in tests: models to object files, panics caught, and why a model does not compile.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{LazyLock, Mutex, Once};

use onnxc::files::Mapped;
use onnxc::files::external::ExternalFiles;
use onnxc::{Compiled, Options, Quiet};
use onnxc_import::ImportOptions;
use onnxc_import::state::Choice;
use onnxc_ir::error::{Error, Kind};
use onnxc_machine::target::Target;

use crate::source;

/// Why there is no object.
#[derive(Clone, Debug)]
pub enum Failure {
    Errors(Vec<Error>),
    Panic(String),
}

impl Failure {
    /// The one reason that an expected-failures list may give: the model needs what onnxc does not support yet.
    /// `None` for everything that is a defect.
    pub fn reason(&self) -> Option<String> {
        let Failure::Errors(errors) = self else { return None };
        if errors.iter().any(|error| error.kind != Kind::Unsupported) {
            return None;
        }
        let error = errors.first()?;
        let message = error.message.as_str();
        let reason = if let Some((operator, _)) = message.split_once(" opset ")
            && operator.starts_with("operator ")
        {
            operator.to_string()
        } else if let Some((_, ty)) = message.split_once(" of type ")
            && message.starts_with("input `")
        {
            let end = ty.find(['[', '(']).unwrap_or(ty.len());
            format!("inputs of type {}", &ty[..end])
        } else {
            match &error.node {
                Some(node) => format!("{}: {message}", node.op_type),
                None => message.to_string(),
            }
        };
        Some(reason)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Errors(errors) => {
                let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
                f.write_str(&texts.join("; "))
            }
            Failure::Panic(message) => write!(f, "panic: {message}"),
        }
    }
}

/// How code is generated.
#[derive(Clone, Debug)]
pub struct Code {
    pub target: Target,
    pub opt_level: u8,
}

impl From<Target> for Code {
    /// At the default level.
    fn from(target: Target) -> Code {
        Code { target, opt_level: 2 }
    }
}

/// Compiles a model file and writes the object to `object`; gives what it was written from.
pub fn compile_to(model: &Path, name: &str, code: &Code, object: &Path) -> Result<Compiled, Failure> {
    catch_panic(|| write_object(model, name, code, object)).map_err(Failure::Panic)?.map_err(Failure::Errors)
}

/// Runs part of the compiler; a panic, wherever it happens, is a result with its message and place.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    record_panics();
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let places = PANICS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let place = places.get(text).map_or("", String::as_str);
        format!("{text} {place}")
    })
}

fn write_object(model: &Path, name: &str, code: &Code, object: &Path) -> Result<Compiled, Vec<Error>> {
    let compiled = compile_for(model, name, code)?;
    let written = if code.target.is_source {
        source::object(&compiled, &source::Compiler::of(&code.target), object)
    } else {
        let mut file = File::create(object).expect("the test's own folder is writable");
        compiled.artifact().and_then(|artifact| artifact.write_object(&mut file))
    };
    written.map(|()| compiled).map_err(|error| vec![error])
}

/// Compiles a model file for this machine.
pub fn compile(model: &Path, name: &str) -> Result<Compiled, Vec<Error>> {
    compile_for(model, name, &Target::host().map_err(|error| vec![error])?.into())
}

/// Compiles a model file.
pub fn compile_for(model: &Path, name: &str, code: &Code) -> Result<Compiled, Vec<Error>> {
    compile_with_state(model, name, code, Choice::default())
}

/// Compiles a model file with this state.
pub fn compile_with_state(
    model: &Path,
    name: &str,
    code: &Code,
    state: Choice,
) -> Result<Compiled, Vec<Error>> {
    let one = |error: Error| vec![error];
    let folder = model.parent().unwrap_or(Path::new("."));
    let external = ExternalFiles::new(folder, None).map_err(one)?;
    let options = Options {
        opt_level: code.opt_level,
        // The size of blocks of channels does not follow from single nodes.
        import: ImportOptions { nchwc_block: Some(16), state, ..ImportOptions::default() },
        ..Options::new(name, code.target.clone())
    };
    let bytes = Mapped::open(model).map_err(one)?.bytes();
    onnxc::compile(bytes, &external, &options, &mut Quiet)
}

/// Where panics of a message happened; they may be on any thread.
static PANICS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Panics of the compiler are results of a test here: they are kept, not printed.
fn record_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map_or(String::new(), |location| format!("({location})"));
            if !place.contains("compiler/") && !place.contains("cranelift") {
                print(info);
            }
            let text = info.payload_as_str().unwrap_or("no message").to_string();
            PANICS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(text, place);
        }));
    });
}
