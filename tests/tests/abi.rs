//! What the C ABI promises of a model beside its results: the descriptor, cancelling, the processor's stack, threads as
//! helgrind sees them, and objects that depend on nothing but the model. Misuse is tried on every model of the suite and
//! the zoo; see `onnxc_tests::misuse`.

use std::collections::HashSet;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};

use onnxc::native::{self, Call, Models};
use onnxc_object::emit::Artifact;
use onnxc_proto::build::{self, f32_value, ints, node};
use onnxc_runtime_support::abi::DimKind;
use onnxc_runtime_support::{Options as RunOptions, Status};
use onnxc_tests::compile::compile;
use onnxc_tests::misuse::KINDS;
use onnxc_tests::object::{host, include_dir, must, source, write};
use onnxc_tests::scaling::FAMILIES;
use onnxc_tests::{abi, stack};
use prost::Message;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// Compiles a graph in its text form.
fn artifact(text: &str) -> Artifact {
    let graph = onnxc_ir::graph::parse::parse(text).unwrap();
    assert_eq!(onnxc_ir::verify::verify(&graph), Ok(()));
    let options = onnxc::Options::new("model", host());
    let (graph, program) = onnxc::optimize(graph, &options, &mut onnxc::Quiet).unwrap();
    let frontend = onnxc::Frontend { graph, program, notes: vec![], warnings: vec![], entries: vec![] };
    onnxc::backend(frontend, &options, &mut onnxc::Quiet).unwrap().artifact().unwrap()
}

/// Compiles a graph in its text form, links it and runs `body` on the model.
fn with_model(text: &str, body: impl Fn(&native::Model<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let object = write(artifact(text), dir.path());
    let library = dir.path().join("model.so");
    native::link(&[object], &library).unwrap();
    let models = Models::load(&library).unwrap();
    body(&models.get("model").unwrap());
}

/// Outputs that are a symbol, formulas of symbols, a constant, and what data decide.
const DIMS: &str = r#"graph "dims" {
  symbol s0 "n"
  symbol s1 "count" = v1[0]
  input v0 "x" : i64[s0]
  input v1 "count" : i64[1]
  v2 = const i64[] [7]
  v3 = expand v2 {shape=[1 + s0, s0*2]} : i64[1 + s0, s0*2] @o0(0 "Net" "net")
  v4 = expand v2 {shape=[s1, 3]} : i64[s1, 3] @o0
  v5 = neg v0 : i64[s0] @o0
  return v3 "formula", v4 "late", v5 "symbol"
}"#;

#[test]
fn the_descriptor_tells_what_decides_a_dim() {
    with_model(DIMS, |model| {
        let kinds: Vec<Vec<DimKind>> = model.outputs().into_iter().map(|info| info.kinds).collect();
        assert_eq!(kinds[0], [DimKind::Formula, DimKind::Formula]);
        assert_eq!(kinds[1], [DimKind::Data, DimKind::Static]);
        assert_eq!(kinds[2], [DimKind::Symbol]);
    });
}

/// Data decide a size that the inputs bound.
const BOUNDED: &str = r#"graph "bounded" {
  symbol s0 "n"
  symbol s1 "count" = v1[0] <= s0
  input v0 "x" : i64[s0]
  input v1 "count" : i64[1]
  v2 = iota {shape=[s1], axis=0} : i64[s1] @o0(0 "Net" "net")
  return v2 "y"
}"#;

#[test]
fn sizes_beyond_their_bounds_are_refused() {
    with_model(BOUNDED, |model| {
        let run = |count: i64| {
            let x = onnxc_ir::graph::Tensor::from_slice(&[3], &[0i64; 3]);
            let count = onnxc_ir::graph::Tensor::from_slice(&[1], &[count]);
            model.run(&[Some(x), Some(count)], &[None])
        };
        let counted = |count: usize| onnxc_ir::graph::Tensor::from_slice(&[count], &[0i64, 1, 2][..count]);
        for count in 0..=3 {
            assert_eq!(run(count as i64).unwrap(), [counted(count)]);
        }
        let error = run(4).unwrap_err();
        assert!(error.message.contains("is 4; it must be between 0 and 3"), "{error}");
    });
}

/// Data decide how many elements are computed and added up at once, and never stored.
const REDUCED: &str = r#"graph "reduced" {
  symbol s0 "count" = v0[0]
  input v0 "count" : i64[1]
  v1 = iota {shape=[s0, 3], axis=0} : i64[s0, 3] @o0(0 "Range" "range")
  v2 = reduce v1 {op=sum, axes=[0]} : i64[1, 3] @o1(1 "ReduceSum" "sum")
  return v2 "y"
}"#;

/// No allocator refuses such a size: the kernel would not end.
#[test]
fn results_that_no_memory_holds_are_refused_though_nothing_stores_them() {
    with_model(REDUCED, |model| {
        let run = |count: i64| {
            let count = onnxc_ir::graph::Tensor::from_slice(&[1], &[count]);
            model.run(&[Some(count)], &[Some(vec![1, 3])])
        };
        let sums = |sum: i64| onnxc_ir::graph::Tensor::from_slice(&[1, 3], &[sum; 3]);
        assert_eq!(run(0).unwrap(), [sums(0)]);
        assert_eq!(run(5).unwrap(), [sums(10)]);
        let message = |count: i64| run(count).unwrap_err().message;
        let text = message(1 << 45);
        assert!(text.contains("node `range` (Range)") && text.contains("844424930131968 bytes"), "{text}");
        let text = message(1 << 60);
        assert!(text.contains("node `range` (Range): the bytes of its result exceed 64 bits"), "{text}");
    });
}

/// A model that only hands its input on.
const SAME: &str = r#"graph "same" {
  input v0 "x" : i64[4]
  return v0 "y"
}"#;

#[test]
fn the_code_of_kernels_is_counted() {
    let same = artifact(SAME).stats;
    assert!(same.kernel_bytes == 0 && same.code_bytes > 0, "{same:?}");
    let dims = artifact(DIMS).stats;
    assert!(dims.kernel_bytes > 0 && dims.kernel_bytes < dims.code_bytes, "{dims:?}");
}

/// Equal layers are one function in the object.
#[test]
fn equal_kernels_share_their_code() {
    let sums = |count: usize| {
        let layer = |at: usize| {
            let op = "{op=sum, axis=0, exclusive=false, reverse=false}";
            let origin = if at == 0 { "(0 \"Net\" \"net\")" } else { "" };
            format!("  v{} = cumulate v{at} {op} : i64[4] @o0{origin}\n", at + 1)
        };
        let layers: String = (0..count).map(layer).collect();
        format!("graph \"sums\" {{\n  input v0 \"x\" : i64[4]\n{layers}  return v{count} \"y\"\n}}")
    };
    let (one, three) = (artifact(&sums(1)).stats, artifact(&sums(3)).stats);
    assert!(one.kernel_bytes > 0 && three.kernel_bytes == one.kernel_bytes, "{one:?}, {three:?}");
    let dir = tempfile::tempdir().unwrap();
    let object = std::fs::read(write(artifact(&sums(3)), dir.path())).unwrap();
    assert_eq!(object.windows(7).filter(|text| text == b".kernel").count(), 1, "functions of kernels");
    with_model(&sums(3), |model| {
        let x = onnxc_ir::graph::Tensor::from_slice(&[4], &[1i64, 2, 3, 4]);
        let wanted = onnxc_ir::graph::Tensor::from_slice(&[4], &[1i64, 5, 15, 35]);
        assert_eq!(model.run(&[Some(x)], &[Some(vec![4])]).unwrap(), [wanted]);
    });
}

/// One branch has a tensor with three elements less than the input.
const SHORTER: &str = r#"graph "shorter" {
  symbol s0 "n"
  input v0 "x" : i64[s0]
  input v1 "shorten" : bool[]
  v2 = if v1, v0 {then=graph "then" {
    symbol s0 "n"
    input v0 "x" : i64[s0]
    v1 = const i64[] [2]
    v2 "short" = expand v1 {shape=[-3 + s0]} : i64[-3 + s0] @o0(0 "Net" "net")
    v3 "sums" = cumulate v2 {op=sum, axis=0, exclusive=false, reverse=false} : i64[-3 + s0] @o0
    v4 = reduce v3 {op=sum, axes=[0]} : i64[1] @o0
    return v4 "y"
  }, else=graph "else" {
    symbol s0 "n"
    input v0 "x" : i64[s0]
    v1 = reduce v0 {op=sum, axes=[0]} : i64[1] @o0(0 "Net" "net")
    return v1 "y"
  }} : i64[1] @o0(0 "Net" "net")
  return v2 "y"
}"#;

/// A size that a branch computes from the inputs' sizes is refused where it is negative, and where the branch runs.
#[test]
fn sizes_of_a_branch_are_checked_where_it_runs() {
    with_model(SHORTER, |model| {
        let run = |values: &[i64], shorten: bool| {
            let x = onnxc_ir::graph::Tensor::from_slice(&[values.len()], values);
            let shorten = onnxc_ir::graph::Tensor::scalar(shorten);
            model.run(&[Some(x), Some(shorten)], &[Some(vec![1])])
        };
        let sum = |value: i64| [onnxc_ir::graph::Tensor::from_slice(&[1], &[value])];
        assert_eq!(run(&[7; 5], true).unwrap(), sum(2 + 4));
        assert_eq!(run(&[7; 2], false).unwrap(), sum(14));
        let error = run(&[7; 2], true).unwrap_err();
        assert!(error.message.contains("(-3 + n) would be -1"), "{error}");
    });
}

/// How a run with the arguments of a good call ends.
fn status_of(model: &native::Model<'_>, arguments: &mut native::Arguments) -> Status {
    // SAFETY: the arguments are those of a good call.
    unsafe { arguments.run(model) }
}

#[test]
fn a_model_without_kernels_is_cancelled() {
    with_model(SAME, |model| {
        let x = onnxc_ir::graph::Tensor::from_slice(&[4], &[1i64, 2, 3, 4]);
        let mut prepared = model.prepare(&[Some(x)], &[Some(vec![4])]).unwrap();
        let mut arguments = prepared.arguments(&Call::default());
        let cancel = 1;
        arguments.options.cancel = &cancel;
        assert_eq!(status_of(model, &mut arguments), Status::CANCELLED);
        assert!(prepared.is_untouched());
    });
}

/// A caller that cancels a run when it first allocates.
struct Canceller {
    own: RunOptions,
    cancel: AtomicI32,
    /// Blocks that the run has.
    blocks: AtomicI32,
}

impl Canceller {
    unsafe extern "C" fn allocate(caller: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
        // SAFETY: the caller outlives the run.
        let caller = unsafe { &*caller.cast::<Canceller>() };
        caller.cancel.store(1, Ordering::Relaxed);
        caller.blocks.fetch_add(1, Ordering::Relaxed);
        // SAFETY: what the run asks for.
        unsafe { caller.own.allocate.unwrap()(caller.own.allocator, bytes, alignment) }
    }

    unsafe extern "C" fn release(caller: *mut c_void, memory: *mut c_void, bytes: usize, alignment: usize) {
        // SAFETY: as above.
        let caller = unsafe { &*caller.cast::<Canceller>() };
        caller.blocks.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: what the run gives back.
        unsafe { caller.own.release.unwrap()(caller.own.allocator, memory, bytes, alignment) }
    }
}

/// Nodes of texts have no kernels, before which others look at the flag.
#[test]
fn a_model_of_texts_is_cancelled_between_its_nodes() {
    const STRING: i32 = 8;
    let text = |name: &str| build::value(name, STRING, &["2"]);
    let nodes =
        vec![node("StringConcat", &["x", "x"], &["twice"]), node("StringConcat", &["twice", "x"], &["y"])];
    let graph = build::graph(vec![text("x")], nodes, vec![text("y")]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("texts.onnx");
    std::fs::write(&path, build::model(20, graph).encode_to_vec()).unwrap();
    let library = dir.path().join("texts.so");
    let artifact = compile(&path, "texts").unwrap().artifact().unwrap();
    native::link(&[write(artifact, dir.path())], &library).unwrap();
    let models = Models::load(&library).unwrap();
    let model = models.get("texts").unwrap();
    let texts = ["of more than a few bytes", "that need memory"];
    let x = onnxc_ir::graph::Tensor::from_texts(&[2], &texts);
    let mut prepared = model.prepare(&[Some(x)], &[Some(vec![2])]).unwrap();
    let mut arguments = prepared.arguments(&Call::default());
    let caller = Canceller { own: arguments.options, cancel: AtomicI32::new(0), blocks: AtomicI32::new(0) };
    arguments.options.allocate = Some(Canceller::allocate);
    arguments.options.release = Some(Canceller::release);
    arguments.options.allocator = std::ptr::from_ref(&caller).cast_mut().cast();
    arguments.options.cancel = caller.cancel.as_ptr();
    let status = status_of(&model, &mut arguments);
    assert_eq!(caller.cancel.load(Ordering::Relaxed), 1, "nothing is allocated");
    assert_eq!((status, caller.blocks.load(Ordering::Relaxed)), (Status::CANCELLED, 0));
}

#[test]
fn a_static_model_counts_its_symbols() {
    let text = r#"graph "fixed" {
  input v0 "x" : f32[4]
  v1 = neg v0 : f32[4] @o0(0 "Neg" "neg")
  return v1 "y"
}"#;
    with_model(text, |model| {
        let symbols = [1i64];
        // SAFETY: there is one symbol to read.
        let bytes = unsafe { model.workspace_function()(symbols.as_ptr(), 1) };
        assert_eq!(bytes, -i64::from(Status::BAD_COUNT.0));
    });
}

#[test]
fn kinds_of_misuse_have_names_of_their_own() {
    let names: HashSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
    assert!(names.len() == KINDS.len() && names.len() >= 40, "{}", names.len());
}

/// Convolutions and a product that are worth threads.
fn busy_model() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut weight = |name: &str, dims: &[i64]| {
        build::f32_tensor(name, dims, (0..dims.iter().product()).map(|_| random.f32() - 0.5).collect())
    };
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]).with(ints("pads", &[1; 4])),
        node("Relu", &["c"], &["r"]),
        node("MatMul", &["r", "m"], &["t"]),
        node("Softmax", &["t"], &["y"]),
    ];
    let initializer = vec![weight("w", &[32, 8, 3, 3]), weight("m", &[40, 24])];
    let (x, y) = (f32_value("x", &[1, 8, 40, 40]), f32_value("y", &[1, 32, 40, 24]));
    let mut graph = build::graph(vec![x], nodes, vec![y]);
    graph.initializer = initializer;
    build::model(17, graph).encode_to_vec()
}

fn busy_file(dir: &Path) -> PathBuf {
    let path = dir.join("busy.onnx");
    std::fs::write(&path, busy_model()).unwrap();
    path
}

#[test]
fn a_model_worth_threads_keeps_the_promises() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("busy.so");
    let artifact = compile(&busy_file(dir.path()), "busy").unwrap().artifact().unwrap();
    let computed = artifact.stats.stack_bytes as usize;
    native::link(&[write(artifact, dir.path())], &library).unwrap();
    let models = Models::load(&library).unwrap();
    let x: Vec<f32> = (0..8 * 40 * 40).map(|at| (at % 17) as f32 - 8.0).collect();
    let x = onnxc_ir::graph::Tensor::from_slice(&[1, 8, 40, 40], &x);
    let findings =
        abi::check(&models.get("busy").unwrap(), &[Some(x)], &[Some(vec![1, 32, 40, 24])]).unwrap();
    assert!(findings.refused >= 20, "{}", findings.refused);
    // What the object says of itself, and the little code around it.
    println!("{computed} bytes of stack computed, {} used", findings.stack);
    assert!((computed..computed + 2048).contains(&findings.stack), "{computed} {}", findings.stack);
    assert!(findings.stack < 16 << 10);
}

/// Every body is a function that calls the bodies inside.
#[test]
fn bodies_that_nest_deep_need_little_stack() {
    let dir = tempfile::tempdir().unwrap();
    let (model, object, library) =
        (dir.path().join("nested.onnx"), dir.path().join("nested.o"), dir.path().join("nested.so"));
    let family = FAMILIES.iter().find(|family| family.name == "nested Ifs").unwrap();
    let compile = |depth: usize| {
        family.write(depth, &model).unwrap();
        Command::new(ONNXC).arg(&model).arg("-o").arg(&object).output().unwrap()
    };
    let compiled = compile(200);
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    native::link(std::slice::from_ref(&object), &library).unwrap();
    let models = Models::load(&library).unwrap();
    let values: Vec<f32> = (0..32).map(|at| at as f32 - 16.0).collect();
    let x = onnxc_ir::graph::Tensor::from_slice(&[4, 8], &values);
    let inputs = [Some(x), Some(onnxc_ir::graph::Tensor::scalar(true))];
    let findings = abi::check(&models.get("nested").unwrap(), &inputs, &[Some(vec![4, 8])]).unwrap();
    let relu: Vec<f32> = values.iter().map(|x| x.max(0.0)).collect();
    assert_eq!(findings.outputs, [onnxc_ir::graph::Tensor::from_slice(&[4, 8], &relu)]);
    println!("200 bodies: {} bytes of stack", findings.stack);
    assert!(findings.stack <= stack::LIMIT);
    let refused = compile(300);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("functions and bodies nest deeper than 512"),
        "{text}"
    );
}

/// Eight threads, each with a workspace of its own and loops on one to eight threads, under helgrind.
#[test]
fn helgrind_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(std::env::var_os("ONNXC_REQUIRE_VALGRIND").is_none(), "valgrind is required here");
        println!("skipped: valgrind is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("busy.o");
    must(Command::new(ONNXC).arg(busy_file(dir.path())).arg("-o").arg(&object));
    let program = dir.path().join("helgrind");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread", "-I"])
        .arg(include_dir());
    must(cc.arg("-I").arg(dir.path()).arg(source("helgrind.c")).arg(&object).arg("-o").arg(&program));
    let runs = std::env::var("ONNXC_HELGRIND_RUNS").unwrap_or("1".into());
    let valgrind = ["--tool=helgrind", "--error-exitcode=9", "--quiet"];
    let output = must(Command::new("valgrind").args(valgrind).arg(&program).arg(runs));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
}

/// Folder, language, time, number of threads, temporary folder, home and user change no byte.
/// From every instruction of a run but those of epilogues, an unwinder finds the caller: records are there for all functions, and right.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn the_stack_unwinds_from_every_instruction() {
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let model = examples.join("digits/digits.onnx");
    let compile = |name: &str, flags: &[&str]| {
        let object = folder.path().join(format!("{name}.o"));
        let mut onnxc = Command::new(ONNXC);
        must(onnxc.arg(&model).args(flags).args(["--name", name]).arg("-o").arg(&object));
        object
    };
    let objects = [("least", "x86-64"), ("avx2", "x86-64-v3"), ("avx512", "x86-64-v4")]
        .map(|(name, cpu)| compile(name, &["--mcpu", cpu]));
    let program = folder.path().join("backtrace");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include_dir())
        .arg("-I")
        .arg(folder.path());
    must(cc.arg(source("backtrace.c")).args(&objects).arg("-o").arg(&program));
    let run = Command::new(&program).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{} {text}", run.status);
    for line in text.lines() {
        let [_, tried, in_epilogues] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        let [tried, in_epilogues] = [tried, in_epilogues].map(|count| count.parse::<usize>().unwrap());
        assert!(tried > 500 && in_epilogues * 10 < tried, "{line}");
    }
    assert!(text.starts_with("least "), "{text}");
    // The records are a few bytes a function, and can be left out.
    let size = |flags: &[&str]| {
        std::fs::metadata(compile("least", &[&["--mcpu", "x86-64"], flags].concat())).unwrap().len()
    };
    let (with, without) = (size(&[]), size(&["--no-unwind"]));
    assert!(without < with && with - without < with / 8, "{with} {without}");
}

#[test]
fn objects_depend_on_nothing_but_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = busy_file(dir.path());
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    let environments: [&[(&str, &str)]; 8] = [
        &[],
        &[("LC_ALL", "tr_TR.UTF-8"), ("LANG", "tr_TR.UTF-8")],
        &[("TZ", "Pacific/Kiritimati"), ("SOURCE_DATE_EPOCH", "1")],
        &[("RAYON_NUM_THREADS", "1")],
        &[("RAYON_NUM_THREADS", "7")],
        &[("TMPDIR", "tmp"), ("HOME", "/nonexistent")],
        &[("USER", "nobody"), ("HOSTNAME", "elsewhere"), ("TERM", "dumb"), ("NO_COLOR", "1")],
        &[("CC", "no-such-compiler"), ("RUST_BACKTRACE", "full"), ("COLUMNS", "20")],
    ];
    let mut first: Option<Vec<Vec<u8>>> = None;
    for (at, environment) in environments.iter().enumerate() {
        let folder = dir.path().join(format!("{at}")).join("x".repeat(1 + 20 * at));
        std::fs::create_dir_all(folder.join("tmp")).unwrap();
        let mut files = vec![];
        for (name, model) in [("busy", &model), ("digits", &digits)] {
            // Absolute paths in one, relative ones in the other.
            let copy = folder.join(format!("{name}.onnx"));
            std::fs::copy(model, &copy).unwrap();
            let given = if at % 2 == 0 { copy } else { format!("{name}.onnx").into() };
            let mut command = Command::new(ONNXC);
            command.current_dir(&folder).envs(environment.iter().copied());
            must(command.arg(given).arg("-o").arg(format!("{name}.o")));
            for extension in ["o", "h"] {
                files.push(std::fs::read(folder.join(format!("{name}.{extension}"))).unwrap());
            }
        }
        match &first {
            None => first = Some(files),
            Some(first) => assert!(*first == files, "other bytes with {environment:?}"),
        }
    }
}
