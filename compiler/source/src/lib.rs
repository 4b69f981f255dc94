//! C source of a model: the host program and the loop nests as one file of C99, beside the header that objects have.
//!
//! [`write()`] is a thin writer below both IRs: `host` prints functions of the host program, `kernel` a loop nest as a function, and its
//! expressions; `data` prints constants and descriptions. `helpers` has what printed code calls: arithmetic that C leaves
//! undefined, functions that a C library would have, vectors. A file has those that it uses. `web` has what makes the source a module of
//! WebAssembly.

mod data;
mod helpers;
mod host;
mod kernel;
pub mod web;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Write};

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{Graph, Sym};
use onnxc_loops::{Kernel, math, visit};
use onnxc_machine::target::Target;
use onnxc_object::emit::outline::{Outline, Outlined};

use crate::helpers::{Helpers, PRELUDE};
use crate::host::{Functions, Unit, plain, prototype, support};

/// Where the constants of a model are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Constants {
    /// In the C source.
    Inside,
    /// In another file of the same program, which has them as `<name>_weights`.
    Apart,
}

/// Writes the C source of a model. `target` is one that C is written for ([`Target::for_source`]). Errors: what the target has no form of,
/// constants that cannot be evaluated, and those of `out`.
pub fn write(
    outline: &Outline<'_>,
    target: &Target,
    constants: Constants,
    out: &mut dyn Write,
) -> Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    let mut unit = Unit {
        model: &outline.name,
        has_weights: outline.weight_bytes > 0,
        externs: BTreeMap::new(),
        externals: HashSet::new(),
        late: HashSet::new(),
        exchanges: false,
        uses_message: false,
    };
    let mut helpers = Helpers::default();
    let (mut kernels, mut known, mut functions) = (String::new(), HashMap::new(), String::new());
    for program in &outline.programs {
        let names = print_kernels(program, target, &mut helpers, (&mut kernels, &mut known))?;
        let printed = Functions { program: &program.host, public: &program.public, kernels: &names };
        let _ = writeln!(functions, "{}", printed.prototypes());
        for function in program.host.functions.values() {
            let text = printed.text(function, &mut unit)?;
            let _ = writeln!(functions, "{text}");
        }
    }
    check_width(&unit, target)?;
    let emit = |out: &mut dyn Write, text: &str| out.write_all(text.as_bytes()).map_err(io_error);
    emit(&mut out, &prologue(outline, target))?;
    emit(&mut out, PRELUDE)?;
    emit(&mut out, &format!("#include \"{}.h\"\n\n", outline.name))?;
    if target.core.is_leaf() {
        emit(&mut out, VECTORS)?;
    }
    emit(&mut out, &data::order(target)?)?;
    emit(&mut out, helpers.text())?;
    emit(&mut out, &support(&outline.name))?;
    emit(&mut out, "\n")?;
    for function in unit.externs.values() {
        emit(&mut out, &prototype(function))?;
    }
    let mut externals: Vec<&String> = unit.externals.iter().collect();
    externals.sort();
    for symbol in externals {
        emit(&mut out, &format!("int32_t {symbol}(onnxc_op *op);\n"))?;
    }
    match constants {
        Constants::Inside => data::weights(outline, &mut out)?,
        Constants::Apart => emit(&mut out, &data::weights_apart(outline))?,
    }
    for program in &outline.programs {
        emit(&mut out, &data::declare(program))?;
    }
    emit(&mut out, &kernels)?;
    emit(&mut out, &functions)?;
    for (at, program) in outline.programs.iter().enumerate() {
        let printed = Functions { program: &program.host, public: &program.public, kernels: &[] };
        emit(&mut out, &data::describe(program, outline.programs.get(at + 1), &printed))?;
    }
    out.flush().map_err(io_error)
}

/// Fails for what has 64 bits in the memory of a run: tensors and texts that other functions are given.
fn check_width(unit: &Unit<'_>, target: &Target) -> Result<()> {
    if !target.is_source_only() {
        return Ok(());
    }
    let function = unit.externs.keys().next().map(ToString::to_string);
    let function = function.or(unit.externals.iter().chain(&unit.late).min().cloned());
    match function.or(unit.exchanges.then(|| "communicator".to_string())) {
        Some(function) => Err(Error::new(
            Stage::Emit,
            Kind::Usage,
            format!(
                "the model calls `{function}`, which needs pointers of 64 bits: models with strings, images, functions of one's own or \
                 several ranks are not for the target `{}`",
                target.triple
            ),
        )),
        None => Ok(()),
    }
}

/// Kernels without their names, and the symbols that need 64 bits in them; the name of the function of each.
type KnownKernels = HashMap<(Kernel, BTreeSet<Sym>), String>;

/// The symbols whose numbers do not fit a pointer, where that has 32 bits: what the data decide and nothing bounds, such as where a
/// slice ends, and the seed.
fn wide_symbols(graph: &Graph, target: &Target) -> BTreeSet<Sym> {
    if !target.is_source_only() {
        return BTreeSet::new();
    }
    let unbounded = graph.data.iter().filter(|(_, symbol)| symbol.bound.is_none()).map(|(&sym, _)| sym);
    unbounded.chain(graph.seed).collect()
}

/// The kernels of a program as functions; gives their names. Equal ones are one function under the first name.
fn print_kernels(
    program: &Outlined<'_>,
    target: &Target,
    helpers: &mut Helpers,
    (text, known): (&mut String, &mut KnownKernels),
) -> Result<Vec<String>> {
    let mut names = vec![];
    for (used, declared) in program.kernels.iter().zip(program.host.kernels.values()) {
        let mut nest = used.nest(&declared.name, &target.core)?;
        math::expand(&mut nest);
        visit::drop_unused_lets(&mut nest.body);
        let name = plain(&format!("{}_{}", program.host.name, declared.name));
        let mut shared = nest.clone();
        shared.name.clear();
        shared.tuning.clear();
        shared.buffers.values_mut().for_each(|buffer| buffer.name.clear());
        shared.vars.values_mut().for_each(|var| var.name.clear());
        let key = (shared, wide_symbols(used.graph, target));
        if let Some(name) = known.get(&key) {
            names.push(name.clone());
            continue;
        }
        let function = kernel::function(&nest, &name, (&target.core, &key.1), helpers)?;
        let _ = writeln!(text, "{}{function}", comment(&used.nodes()));
        known.insert(key, name.clone());
        names.push(name);
    }
    Ok(names)
}

/// The nodes that a kernel computes.
fn comment(nodes: &[String]) -> String {
    const MOST: usize = 8;
    let mut lines: Vec<String> = nodes.iter().take(MOST).map(|node| in_comment(node)).collect();
    if nodes.len() > MOST {
        lines.push(format!("and {} more nodes", nodes.len() - MOST));
    }
    format!("/* {} */\n", lines.join("\n * "))
}

/// Text that can stand in a comment of C.
fn in_comment(text: &str) -> String {
    onnxc_object::emit::printable(text).replace("*/", "* /").replace("/*", "/ *")
}

fn prologue(outline: &Outline<'_>, target: &Target) -> String {
    let name = &outline.name;
    let mut text =
        format!("/* {name}.c: a model compiled by onnxc for {} ({}), C99.\n *\n", target.triple, target.cpu);
    let _ = writeln!(text, " * Compile it with the folder of onnxc.h as an include folder, such as\n *");
    let _ = writeln!(text, " *     cc -O3 -I INCLUDE -c {name}.c\n *");
    let _ = writeln!(text, " * It needs memcpy of the C library, and nothing of its mathematics.");
    let _ = writeln!(text, " *\n * Constants: {} bytes.", outline.weight_bytes);
    if let Some(bytes) = outline.workspace_bytes {
        let _ = writeln!(text, " * Workspace of a run: {bytes} bytes.");
    }
    text.push_str(" */\n\n");
    text
}

/// For compilers with vectors.
const VECTORS: &str = r#"#if !defined(__GNUC__)
#error "vectors of GNU C are needed: compile the model for a target without vectors, such as x86_64-pc-windows-msvc"
#endif
#pragma GCC diagnostic ignored "-Wpsabi"

"#;

fn io_error(error: io::Error) -> Error {
    Error::new(Stage::Emit, Kind::Io, error.to_string())
}
