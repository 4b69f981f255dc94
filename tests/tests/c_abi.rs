//! The C ABI of compiled models: what `run` computes, refuses and reports, seen from C programs. The kernels
//! here come from a C compiler and the programs are written by hand, so that only entry points, descriptor,
//! header and object are under test.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use onnxc::native::{self, Call};
use onnxc_backend::codegen::kernels::{KernelVersion, Kernels};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{
    DType, Dim, Graph, MapFn, NodeId, Op, Origin, OriginId, Sym, Symbol, Tensor, TensorType, ValueId,
};
use onnxc_ir::scalar::BinaryFn;
use onnxc_machine::target::Target;
use onnxc_object::emit::{self, Artifact, Options, Source};
use onnxc_schedule::{Group, GroupId, GroupKind, Program, Scratch, Step, Storage, control_scratch};
use onnxc_tests::abi;
use onnxc_tests::object::{c_kernel, host, include_dir, must, run_c, runtime, source, write};
use onnxc_tests::sample_models::any_rank;

fn origin(graph: &mut Graph, name: &str, op_type: &str) -> OriginId {
    let index = graph.origins.len();
    graph.origins.push(Origin::new(name, op_type, index))
}

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType::new(dtype, shape.iter().map(|&size| Dim::from(size)).collect())
}

fn add(graph: &mut Graph, node: &str, a: ValueId, b: ValueId) -> (ValueId, NodeId) {
    let origin = origin(graph, node, "Add");
    let value = Builder::new(graph, origin).emit1(Op::Map(MapFn::Binary(BinaryFn::Add)), &[a, b]).unwrap();
    (value, graph.producer(value).unwrap())
}

fn group(node: NodeId, inputs: &[ValueId], outputs: &[ValueId]) -> Group {
    Group {
        kind: GroupKind::Map,
        nodes: vec![node],
        anchor: node,
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        stages: vec![],
        scratch: Dim::ZERO,
        settings: Default::default(),
    }
}

/// A graph, its program and its kernels.
struct Model {
    graph: Arc<Graph>,
    program: Program,
    kernels: Kernels,
}

impl Model {
    fn write(&self, name: &str, dir: &Path) -> std::path::PathBuf {
        let options = Options { name: name.into(), ..Options::default() };
        write(self.emit(&portable(), &options).unwrap(), dir)
    }

    fn emit(&self, target: &Target, options: &Options) -> onnxc_ir::error::Result<Artifact> {
        let Model { graph, program, kernels } = self;
        emit::emit(&[Source { suffix: "", graph, program, kernels }], target, options)
    }
}

/// `y[i] = x[i] + i` over i32[2, 3], with a constant.
fn static_model(dir: &Path) -> Model {
    let mut graph = Graph { name: "plus iota".into(), ..Graph::default() };
    let o = origin(&mut graph, "start", "Constant");
    let mut b = Builder::new(&mut graph, o);
    let x = b.input("x", ty(DType::I32, &[2, 3]), None);
    let w = b.constant(Tensor::from_slice(&[2, 3], &[0i32, 1, 2, 3, 4, 5]));
    let (y, node) = add(&mut graph, "plus", x, w);
    graph.outputs.push(("y".into(), y));
    graph.metadata.push(("author".into(), "nobody".into()));
    let mut program = Program::default();
    let id = program.groups.push(group(node, &[x, w], &[y]));
    program.steps.push(Step::Run(id));
    program.places[x] = Some(Storage::Input(0));
    program.places[w] = Some(Storage::Constant);
    program.places[y] = Some(Storage::Output(0));
    let body = "const int32_t *x = b[0], *w = b[1]; int32_t *y = b[2];\n\
                for (int64_t i = 3 * lo; i < 3 * hi; i++) y[i] = x[i] + w[i];";
    let mut kernels = Kernels::default();
    kernels.groups.push(c_kernel(dir, "add", Some((Dim::ZERO, Dim::from(2i64))), body));
    Model { graph: Arc::new(graph), program, kernels }
}

/// What an object is compiled for when no processor is named.
fn portable() -> Target {
    Target::new(host().triple, None).unwrap()
}

/// [`static_model`] with a kernel for the level above the baseline that adds 1000 more.
fn two_level_model(dir: &Path) -> Model {
    let mut model = static_model(dir);
    let body = "const int32_t *x = b[0], *w = b[1]; int32_t *y = b[2];\n\
                for (int64_t i = 6 * lo; i < 6 * hi; i++) y[i] = x[i] + w[i] + 1000;";
    let better = c_kernel(dir, "add", None, body).versions.remove(0);
    for kernel in model.kernels.groups.values_mut() {
        kernel.versions.push(KernelVersion { level: 1, ..better.clone() });
    }
    model
}

/// `z = (x + y) + b` over i32[batch, 4] with `b` i32[4] defaulting to 100, 200, 300, 400; `x + y` is in the
/// arena.
fn dynamic_model(dir: &Path) -> Model {
    let mut graph = Graph { name: "sum3".into(), ..Graph::default() };
    let batch = Dim::sym(graph.symbols.push(Symbol { name: "batch".into() }));
    let o = origin(&mut graph, "start", "Constant");
    let mut b = Builder::new(&mut graph, o);
    let wide = TensorType::new(DType::I32, vec![batch.clone(), Dim::from(4i64)]);
    let x = b.input("x", wide.clone(), None);
    let y = b.input("y", wide.clone(), None);
    let bias = b.input("b", ty(DType::I32, &[4]), Some(Tensor::from_slice(&[4], &[100i32, 200, 300, 400])));
    let (t, first) = add(&mut graph, "x plus y", x, y);
    let (z, second) = add(&mut graph, "plus b", t, bias);
    graph.outputs.push(("z".into(), z));
    let mut program = Program { arena: wide.bytes(), ..Program::default() };
    let one = program.groups.push(group(first, &[x, y], &[t]));
    let two = program.groups.push(group(second, &[t, bias], &[z]));
    program.steps.extend([Step::Run(one), Step::Run(two)]);
    for (at, value) in [x, y, bias].into_iter().enumerate() {
        program.places[value] = Some(Storage::Input(at));
    }
    program.places[t] = Some(Storage::Arena { offset: Dim::ZERO, size: wide.bytes() });
    program.places[z] = Some(Storage::Output(0));
    let mut kernels = Kernels::default();
    let rows = Some((Dim::ZERO, batch.clone()));
    kernels.groups.push(c_kernel(
        dir,
        "first",
        rows.clone(),
        "const int32_t *x = b[0], *y = b[1]; int32_t *t = b[2]; if (hi > dims[0]) return 9;\n\
         for (int64_t i = 4 * lo; i < 4 * hi; i++) t[i] = x[i] + y[i];",
    ));
    kernels.groups.push(c_kernel(
        dir,
        "second",
        rows,
        "const int32_t *t = b[0], *c = b[1]; int32_t *z = b[2];\n\
         for (int64_t i = 4 * lo; i < 4 * hi; i++) { if (t[i] < 0) return 3; z[i] = t[i] + c[i % 4]; }",
    ));
    Model { graph: Arc::new(graph), program, kernels }
}

/// A running sum over time of i32[steps, 2] from an initial i32[2]: the last state, and all states in reverse
/// order. The body is `next = state + x`, also its stacked output.
fn scan_model(dir: &Path) -> Model {
    let mut graph = Graph { name: "running".into(), ..Graph::default() };
    let steps = Dim::sym(graph.symbols.push(Symbol { name: "steps".into() }));
    let mut body = Graph { symbols: graph.symbols.clone(), ..Graph::default() };
    let o = origin(&mut body, "inside", "Identity");
    let mut b = Builder::new(&mut body, o);
    let state = b.input("state", ty(DType::I32, &[2]), None);
    let x = b.input("x", ty(DType::I32, &[2]), None);
    let (next, inner) = add(&mut body, "accumulate", state, x);
    let (copy, copier) = add(&mut body, "copied", next, next);
    body.outputs = vec![("next".into(), next), ("all".into(), copy)];
    let mut inside = Program::default();
    let sum = inside.groups.push(group(inner, &[state, x], &[next]));
    let double = inside.groups.push(group(copier, &[next], &[copy]));
    inside.steps.extend([Step::Run(sum), Step::Run(double)]);
    for (value, place) in [
        (state, Storage::Input(0)),
        (x, Storage::Input(1)),
        (next, Storage::Output(0)),
        (copy, Storage::Output(1)),
    ] {
        inside.places[value] = Some(place);
    }

    let o = origin(&mut graph, "loop", "Scan");
    let mut b = Builder::new(&mut graph, o);
    let initial = b.input("initial", ty(DType::I32, &[2]), None);
    let xs = b.input("xs", TensorType::new(DType::I32, vec![steps.clone(), Dim::from(2i64)]), None);
    let op = Op::scan(body, steps.clone(), 1, 1, vec![false, true]);
    let results = b.emit(op, &[initial, xs]).unwrap();
    let node = graph.producer(results[0]).unwrap();
    graph.outputs = vec![("last".into(), results[0]), ("all".into(), results[1])];
    let bodies = vec![inside];
    let arena = control_scratch(&graph, node, &bodies).1;
    let mut program = Program { arena, ..Program::default() };
    program.steps.push(Step::Control { node, bodies, scratch: Scratch::Arena(Dim::ZERO) });
    for (value, place) in [
        (initial, Storage::Input(0)),
        (xs, Storage::Input(1)),
        (results[0], Storage::Output(0)),
        (results[1], Storage::Output(1)),
    ] {
        program.places[value] = Some(place);
    }
    let mut inner = Kernels::default();
    let sum = "const int32_t *s = b[0], *x = b[1]; int32_t *n = b[2];\n\
               n[0] = s[0] + x[0]; n[1] = s[1] + x[1];";
    inner.groups.push(c_kernel(dir, "sum", None, sum));
    let double = "const int32_t *n = b[0]; int32_t *c = b[1]; c[0] = n[0] * 2; c[1] = n[1] * 2;";
    inner.groups.push(c_kernel(dir, "double", None, double));
    let mut kernels = Kernels::default();
    kernels.bodies.insert(node, vec![inner]);
    Model { graph: Arc::new(graph), program, kernels }
}

#[test]
fn static_model_runs_from_c_and_describes_itself() {
    let dir = tempfile::tempdir().unwrap();
    let object = static_model(dir.path()).write("plus iota", dir.path());
    assert!(object.ends_with("plus_iota.o"));
    assert_eq!(run_c(dir.path(), &source("static.c"), &[object], &[]), "ok\n");
}

#[test]
fn dynamic_model_checks_everything_before_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let object = dynamic_model(dir.path()).write("sum3", dir.path());
    assert_eq!(run_c(dir.path(), &source("misuse.c"), &[object], &[]), "ok\n");
}

#[test]
fn services_limit_memory_time_and_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let object = dynamic_model(dir.path()).write("sum3", dir.path());
    let libraries = ["-lpthread", "-ldl", "-lm"];
    assert_eq!(run_c(dir.path(), &source("limits.c"), &[object, runtime()], &libraries), "ok\n");
}

#[test]
fn a_scan_threads_states_and_stacks_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let object = scan_model(dir.path()).write("running", dir.path());
    assert_eq!(run_c(dir.path(), &source("scan.c"), &[object], &[]), "ok\n");
}

/// Sizes that data decide, in the text form; see `late.c`.
const LATE: &str = r#"graph "late" {
  symbol s0 "n"
  symbol s1 "count" = v1[0]
  symbol s2 "?" = v8[0] <= s0
  symbol s3 "cut" = v2[0] <= s0
  input v0 "x" : i64[s0]
  input v1 "count" : i64[1]
  input v2 "cut_at" : i64[1]
  v3 = const i64[] [0]
  v4 = gt v0, v3 : bool[s0] @o0(0 "Net" "net")
  v6 = cast v4 {to=i64, saturate=true} : i64[s0] @o0
  v7 = cumulate v6 {op=sum, axis=0, exclusive=true, reverse=false} : i64[s0] @o0
  v8 = reduce v6 {op=sum, axes=[0]} : i64[1] @o0
  v9 = dim_values {dims=[s0]} : i64[1] known [s0] @o0
  v10 = select v4, v7, v9 : i64[s0] @o0
  v11 = expand v3 {shape=[1 + s0]} : i64[1 + s0] @o0
  v12 = scatter_elements v11, v10, v0 {axis=0} : i64[1 + s0] @o0
  v13 = slice v12 {starts=[0], steps=[1], sizes=[s2]} : i64[s2] @o0
  v14 = cumulate v13 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s2] @o0
  v15 = cumulate v14 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s2] @o0
  v16 = iota {shape=[s1], axis=0} : i64[s1] @o0
  v17 = cumulate v16 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s1] @o0
  v18 = cumulate v17 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s1] @o0
  v19 = slice v0 {starts=[0], steps=[1], sizes=[s3]} : i64[s3] @o0
  v20 = neg v19 : i64[s3] @o0
  v21 = expand v3 {shape=[s1]} : i64[s1] @o0
  v22 = scan v21, v16 {trip=3, states=1, scans=0, reverse=[], body=graph "step" {
    input v0 "state" : i64[s1]
    input v1 "index" : i64[s1]
    v2 = cumulate v0 {op=sum, axis=0, exclusive=false, reverse=false} : i64[s1] @o0(0 "Add" "inner")
    v3 = cumulate v2 {op=max, axis=0, exclusive=false, reverse=false} : i64[s1] @o0
    v4 = add v3, v1 : i64[s1] @o0
    return v4 "next"
  }} : i64[s1] @o0
  return v15 "chosen", v18 "counted", v20 "cut", v22 "stepped"
}"#;

/// Loops and choices whose results have sizes that only they determine; see `control.c`.
const CONTROL: &str = include_str!("../c/control.onnxir");

#[test]
fn sizes_that_data_decide_are_checked_and_nothing_leaks() {
    run_text("late", LATE);
}

#[test]
fn values_of_loops_and_choices_grow_and_nothing_leaks() {
    run_text("control", CONTROL);
}

#[test]
fn bounds_that_multiply_are_allocated_at_their_sizes() {
    run_text("multiplied", include_str!("../c/multiplied.onnxir"));
}

#[test]
fn outputs_have_the_rank_of_the_run_and_nothing_leaks() {
    let import = onnxc_import::import(
        &any_rank(),
        &Default::default(),
        &onnxc_import::NoExternalData,
        onnxc::operators(),
    )
    .unwrap();
    run_graph("any_rank", &import.graph);
}

/// Compiles a graph in its text form and runs the C program of its name with it.
fn run_text(name: &str, text: &str) {
    run_graph(name, &onnxc_ir::graph::parse::parse(text).unwrap());
}

fn run_graph(name: &str, graph: &Graph) {
    assert_eq!(onnxc_ir::verify::verify(graph), Ok(()));
    let dir = tempfile::tempdir().unwrap();
    for opt_level in [0, 3] {
        let options = onnxc::Options { opt_level, ..onnxc::Options::new(name, host()) };
        let (graph, program) = onnxc::optimize(graph.clone(), &options, &mut onnxc::Quiet).unwrap();
        let frontend = onnxc::Frontend { graph, program, notes: vec![], warnings: vec![], entries: vec![] };
        let compiled = onnxc::backend(frontend, &options, &mut onnxc::Quiet).unwrap();
        let object = write(compiled.artifact().unwrap(), dir.path());
        assert_eq!(
            run_c(dir.path(), &source(&format!("{name}.c")), &[object], &["-fsanitize=address,undefined"]),
            "ok\n"
        );
    }
}

/// A model of two i32[3] whose kernel is this C code, loaded.
fn with_kernel(body: &str, check: impl Fn(&native::Model<'_>, &[Option<Tensor>])) {
    let dir = tempfile::tempdir().unwrap();
    let mut model = wide_model(dir.path(), 2);
    let kernels = std::mem::take(&mut model.kernels.groups);
    let kernel = c_kernel(dir.path(), "sum", None, body);
    kernels.values().for_each(|_| {
        model.kernels.groups.push(kernel.clone());
    });
    let object = model.write("wide", dir.path());
    let library = dir.path().join("wide.so");
    native::link(&[object], &library).unwrap();
    let models = native::Models::load(&library).unwrap();
    let input = Some(Tensor::from_slice(&[2], &[5i32, 6]));
    check(&models.get("wide").unwrap(), &[input.clone(), input]);
}

#[test]
fn guarded_runs_see_outputs_that_are_not_written() {
    with_kernel("int32_t *y = b[2]; y[0] = 1;", |model, inputs| {
        let error = model.run_guarded(inputs, &[Some(vec![2])], &Call::default()).unwrap_err();
        assert!(error.message.contains("`y` depends on what memory held"), "{error}");
        assert!(error.message.contains("first at element Some(1)"), "{error}");
    });
}

/// Reads and writes one element before, or behind, an input or the output: each ends a process with a signal.
#[test]
fn guarded_runs_fault_outside_of_buffers() {
    let good = "const int32_t *x = b[0]; int32_t *y = b[2]; y[0] = x[0]; y[1] = x[1];";
    let cases = [
        (good.to_string(), 0),
        (format!("{good} y[1] = x[2];"), libc::SIGSEGV),
        (format!("{good} y[1] = x[-1];"), libc::SIGSEGV),
        (format!("{good} y[2] = 0;"), libc::SIGSEGV),
        (format!("{good} y[-1] = 0;"), libc::SIGSEGV),
        (format!("{good} ((int32_t *)b[0])[0] = 0;"), libc::SIGSEGV),
    ];
    for (body, signal) in cases {
        with_kernel(&body, |model, inputs| {
            // SAFETY: the child only runs the model, and leaves without running anything else.
            let process = unsafe { libc::fork() };
            if process == 0 {
                let good = model.run_guarded(inputs, &[Some(vec![2])], &Call::default()).is_ok();
                // SAFETY: nothing of this process is needed any more.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            let mut status = -1;
            // SAFETY: `status` is a local.
            assert_eq!(unsafe { libc::waitpid(process, &mut status, 0) }, process);
            let ended = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { status };
            assert_eq!(ended, signal, "{body}");
        });
    }
}

/// `y` is the sum of the first elements of `inputs` tensors i32[2].
fn wide_model(dir: &Path, inputs: usize) -> Model {
    let mut graph = Graph { name: "wide".into(), ..Graph::default() };
    let o = origin(&mut graph, "start", "Constant");
    let mut b = Builder::new(&mut graph, o);
    let values: Vec<ValueId> =
        (0..inputs).map(|at| b.input(&format!("x{at}"), ty(DType::I32, &[2]), None)).collect();
    let (y, node) = add(&mut graph, "sum", values[0], values[1]);
    graph.outputs.push(("y".into(), y));
    let mut program = Program::default();
    let id = program.groups.push(group(node, &values, &[y]));
    program.steps.push(Step::Run(id));
    for (at, &value) in values.iter().enumerate() {
        program.places[value] = Some(Storage::Input(at));
    }
    program.places[y] = Some(Storage::Output(0));
    let body = format!(
        "int32_t *y = b[{inputs}]; y[0] = y[1] = 0;\n\
         for (int i = 0; i < {inputs}; i++) y[0] += ((const int32_t *)b[i])[0];"
    );
    let mut kernels = Kernels::default();
    kernels.groups.push(c_kernel(dir, "sum", None, &body));
    Model { graph: Arc::new(graph), program, kernels }
}

/// Pointers to thousands of tensors would take too much of the stack that a run may use.
#[test]
fn a_model_of_many_inputs_needs_little_stack() {
    let dir = tempfile::tempdir().unwrap();
    for inputs in [2, 200, 1500] {
        let object = wide_model(dir.path(), inputs).write("wide", dir.path());
        let library = dir.path().join(format!("wide{inputs}.so"));
        native::link(&[object], &library).unwrap();
        let models = native::Models::load(&library).unwrap();
        let model = models.get("wide").unwrap();
        let tensors: Vec<Option<Tensor>> =
            (0..inputs).map(|at| Some(Tensor::from_slice(&[2], &[at as i32, -1]))).collect();
        let findings = abi::check(&model, &tensors, &[Some(vec![2])]).unwrap();
        let sum = (0..inputs as i32).sum();
        assert_eq!(findings.outputs, [Tensor::from_slice(&[2], &[sum, 0])]);
        assert_eq!(findings.workspace == 0, inputs < 100, "only what is long is in the workspace");
        assert!(findings.stack < 16 << 10, "{inputs} inputs: {} bytes of stack", findings.stack);
    }
}

#[test]
fn models_and_copies_of_a_model_link_together_and_run_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let objects = [
        dynamic_model(dir.path()).write("sum3", dir.path()),
        dynamic_model(dir.path()).write("again", dir.path()),
        static_model(dir.path()).write("plus_iota", dir.path()),
    ];
    assert_eq!(run_c(dir.path(), &source("threads.c"), &objects, &[]), "ok\n");
}

/// On this machine, and on emulated ones where there is an emulator.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_processor_decides_which_version_runs() {
    use onnxc_tests::emulator::{self, INCOMPLETE, WITH_AVX2, WITHOUT_AVX2};
    let dir = tempfile::tempdir().unwrap();
    let object = two_level_model(dir.path()).write("levels", dir.path());
    let text = run_c(dir.path(), &source("levels.c"), &[object], &[]);
    let has_v3 = std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi2");
    assert_eq!(text, if has_v3 { "upgrade\n" } else { "baseline\n" });
    let Some(qemu) = emulator::qemu() else { return };
    let baseline = WITHOUT_AVX2.iter().chain(&INCOMPLETE).map(|cpu| (cpu, "baseline\n"));
    for (cpu, wanted) in baseline.chain(WITH_AVX2.iter().map(|cpu| (cpu, "upgrade\n"))) {
        let run = must(&mut emulator::command(qemu, cpu, &dir.path().join("levels")));
        assert_eq!(String::from_utf8(run.stdout).unwrap(), wanted, "{cpu}");
    }
}

#[test]
fn a_level_that_the_target_lacks_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = two_level_model(dir.path());
    let error = |model: &Model, target: &Target| model.emit(target, &Options::default()).err().unwrap();
    let single = Target { upgrades: vec![], ..portable() };
    assert_eq!(error(&model, &single).kind, onnxc_ir::error::Kind::Internal);
    model.kernels.groups.values_mut().for_each(|kernel| drop(kernel.versions.remove(0)));
    assert_eq!(error(&model, &portable()).kind, onnxc_ir::error::Kind::Internal);
}

/// One word is the exception: what the test of the processor found, in objects that choose by it.
#[test]
fn objects_have_no_writable_data_and_link_in_every_way() {
    let dir = tempfile::tempdir().unwrap();
    for (name, model) in [
        ("plus_iota", static_model(dir.path())),
        ("sum3", dynamic_model(dir.path())),
        ("running", scan_model(dir.path())),
        #[cfg(target_arch = "x86_64")]
        ("levels", two_level_model(dir.path())),
    ] {
        let object = model.write(name, dir.path());
        let symbols = must(Command::new("nm").arg("-S").arg(&object)).stdout;
        let (mut globals, mut written) = (vec![], vec![]);
        for line in String::from_utf8(symbols).unwrap().lines() {
            let mut fields = line.split_whitespace().rev();
            let (symbol, kind) = (fields.next().unwrap(), fields.next().unwrap());
            match kind {
                "T" => globals.push(symbol.to_string()),
                "U" => assert!(matches!(symbol, "memcpy" | "memset"), "{name}: undefined {symbol}"),
                "b" => written.push((symbol.to_string(), fields.next().unwrap().to_string())),
                "t" | "r" => assert!(symbol.starts_with(&format!("{name}.")), "{name}: {symbol}"),
                _ => panic!("{name}: {line}"),
            }
        }
        let word = (format!("{name}.known_level"), format!("{:016x}", 4));
        assert_eq!(written, if name == "levels" { vec![word] } else { vec![] });
        globals.sort();
        assert_eq!(globals, ["model", "run", "workspace"].map(|part| format!("{name}_{part}")));

        let shared = dir.path().join("shared.so");
        let link = |flags: &[&str]| {
            let mut command = Command::new("cc");
            must(command.args(flags).arg(&object).args(["-Wl,-z,text,--fatal-warnings", "-o"]).arg(&shared));
        };
        link(&["-shared"]);
        let headers =
            String::from_utf8(must(Command::new("readelf").arg("-dW").arg(&shared)).stdout).unwrap();
        assert!(!headers.contains("TEXTREL"), "{headers}");
        let main = dir.path().join("main.c");
        std::fs::write(&main, format!("#include \"{name}.h\"\nint main(void) {{ return !{name}_model(); }}"))
            .unwrap();
        let program = dir.path().join("main");
        for flags in [&["-fPIE", "-pie"], &["-fno-pie", "-no-pie"]] {
            must(
                Command::new("cc")
                    .args(flags)
                    .args(["-Wl,-z,text,--fatal-warnings", "-I"])
                    .arg(include_dir())
                    .args([&main, &object])
                    .arg("-o")
                    .arg(&program),
            );
            must(&mut Command::new(&program));
        }
    }
}

#[test]
fn headers_compile_as_c99_and_cpp() {
    let dir = tempfile::tempdir().unwrap();
    for (name, model) in [
        ("plus_iota", static_model(dir.path())),
        ("sum3", dynamic_model(dir.path())),
        ("running", scan_model(dir.path())),
    ] {
        model.write(name, dir.path());
        let main = dir.path().join("main.c");
        std::fs::write(&main, format!("#include \"{name}.h\"\nint main(void) {{ return 0; }}\n")).unwrap();
        for language in [["-std=c99", "-xc"], ["-std=c++11", "-xc++"]] {
            must(
                Command::new("cc")
                    .args(language)
                    .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
                    .arg(include_dir())
                    .arg(&main),
            );
        }
    }
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |model: Model| std::fs::read(model.write("same", dir.path())).unwrap();
    assert_eq!(bytes(dynamic_model(dir.path())), bytes(dynamic_model(dir.path())));
    assert_eq!(bytes(scan_model(dir.path())), bytes(scan_model(dir.path())));
}

#[test]
fn other_targets_give_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (model, levels) = (dynamic_model(dir.path()), two_level_model(dir.path()));
    for (triple, magic) in [
        ("aarch64-unknown-linux-gnu", &b"\x7fELF"[..]),
        ("x86_64-apple-darwin", b"\xcf\xfa\xed\xfe"),
        ("aarch64-apple-darwin", b"\xcf\xfa\xed\xfe"),
        ("x86_64-pc-windows-msvc", b"\x64\x86"),
    ] {
        let target = Target::new(triple.parse().unwrap(), None).unwrap();
        for model in [&model, &levels] {
            if model.kernels.has_upgrades() && target.upgrades.is_empty() {
                continue;
            }
            let mut bytes = vec![];
            model.emit(&target, &Options::default()).unwrap().write_object(&mut bytes).unwrap();
            assert!(bytes.starts_with(magic), "{triple}");
        }
    }
    let target = Target { triple: "i686-unknown-linux-gnu".parse().unwrap(), ..host() };
    let Err(error) = model.emit(&target, &Options::default()) else {
        panic!("a 32-bit target gave an object");
    };
    assert_eq!(error.kind, onnxc_ir::error::Kind::Unsupported);
}

#[test]
fn a_size_that_no_input_decides_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = dynamic_model(dir.path());
    let stray: Sym = Arc::make_mut(&mut model.graph).symbols.push(Symbol { name: "?".into() });
    model.program.arena = Dim::sym(stray) * Dim::from(64i64);
    let Err(error) = model.emit(&host(), &Options::default()) else {
        panic!("an undecided size was accepted");
    };
    assert_eq!(error.kind, onnxc_ir::error::Kind::Unsupported, "{error}");
}

#[test]
fn a_step_without_kernel_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = static_model(dir.path());
    model.program.steps.push(Step::Run(GroupId::from_u32(7)));
    let Err(error) = model.emit(&host(), &Options::default()) else {
        panic!("a step without kernel was accepted");
    };
    assert_eq!(error.kind, onnxc_ir::error::Kind::Internal, "{error}");
}
