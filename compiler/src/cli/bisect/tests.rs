//! Faults put in place of the compiler's parts: each is named.

use super::*;
use onnxc_backend::codegen::isa::{Opt, isa};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Dim, MapFn, Op, Origin, TensorType};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};
use onnxc_loops::{Expr, Stmt};
use onnxc_machine::target::Target;

/// A softmax and a product of its result, of two ONNX nodes.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let softmax = graph.origins.push(Origin::new("soft", "Softmax", 0));
    let scale = graph.origins.push(Origin::new("scale", "Mul", 1));
    let mut b = Builder::new(&mut graph, softmax);
    let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(4usize), Dim::from(40usize)]), None);
    let max = b.reduce(ReduceFn::Max, x, &[1]).unwrap();
    let shifted = b.binary(BinaryFn::Sub, x, max).unwrap();
    let e = b.unary(UnaryFn::Exp, shifted).unwrap();
    let sum = b.reduce(ReduceFn::Sum, e, &[1]).unwrap();
    let a = b.binary(BinaryFn::Div, e, sum).unwrap();
    let mut b = Builder::new(&mut graph, scale);
    let t = b.transpose(a, &[1, 0]).unwrap();
    let y = b.binary_scalar(BinaryFn::Mul, t, 3.0).unwrap();
    graph.values[a].name = "a".into();
    graph.values[y].name = "y".into();
    graph.outputs = vec![("a".into(), a), ("y".into(), y)];
    graph
}

fn examined(parts: &Parts<'_>, opt_level: u8) -> Report {
    let graph = graph();
    let options = Options { opt_level, ..Options::new("model", Target::host().unwrap()) };
    let mut inputs = vec![None];
    data::fill_randomly(&graph, &mut inputs, &[], 1).unwrap();
    let (options, functions) = (&options, &Functions::default());
    let subject = Subject { imported: &graph, inputs, expected: None, options, functions, rtol: None };
    subject.examine(parts).unwrap()
}

/// Stage, name and description of what is found wrong.
fn culprit(report: &Report) -> (&'static str, &str, &str) {
    let at = report.culprit.unwrap_or_else(|| panic!("nothing is found wrong\n{report}"));
    let StageRow { stage, name, about, .. } = &report.rows[at];
    (stage, name, about)
}

#[test]
fn nothing_is_wrong_without_a_fault() {
    for level in [0, 1, 3] {
        let report = examined(&Parts::default(), level);
        assert_eq!(report.culprit, None, "{report}");
        let stages: BTreeSet<&str> = report.rows.iter().map(|row| row.stage).collect();
        assert_eq!(
            stages.into_iter().collect::<Vec<_>>(),
            ["kernel", "model", "pass", "program"],
            "{report}"
        );
    }
}

/// Makes sums of the products.
fn wrong_pass(graph: &mut Graph, _: &pass::Options) -> Result<()> {
    for node in graph.nodes.values_mut() {
        if matches!(node.op, Op::Map(MapFn::Binary(BinaryFn::Mul))) {
            node.op = Op::Map(MapFn::Binary(BinaryFn::Add));
        }
    }
    Ok(())
}

#[test]
fn a_wrong_pass_is_named_with_its_node() {
    let wrong = PassDef { name: "wrong", run: wrong_pass, min_level: 0, doc: "", after: &[] };
    let mut passes: Vec<PassDef> = pass::passes().copied().collect();
    passes.insert(3, wrong);
    let report = examined(&Parts { passes, ..Parts::default() }, 2);
    let (stage, name, about) = culprit(&report);
    assert_eq!((stage, name), ("pass", "wrong"));
    assert!(about.contains("`y` of node 1 `scale` (Mul)"), "{report}");
}

/// Adds a quarter to what a kernel stores.
fn break_stores(body: &mut [Stmt]) -> usize {
    let mut count = 0;
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } => count += break_stores(body),
            Stmt::Store { value, .. } => {
                let old = std::mem::replace(value, Expr::constant(DType::F32, 0.0));
                *value = Expr::binary(BinaryFn::Add, old, Expr::constant(DType::F32, 0.25));
                count += 1;
            }
            _ => {}
        }
    }
    count
}

/// Breaks the kernel whose name ends so, and its machine code with it.
fn broken(mut built: Built, name: &str) -> Built {
    if built.kernel.name.ends_with(name) {
        assert!(break_stores(&mut built.kernel.body) > 0);
        // Cranelift takes every kernel.
        let target = Target::host().unwrap();
        let isa = isa(&target, Opt::Speed).unwrap();
        built.code = onnxc_backend::codegen::compile(&built.kernel, &*isa, &target).unwrap();
    }
    built
}

#[test]
fn a_wrong_loop_nest_is_named_with_its_nodes() {
    let build: Build<'_> =
        &|backends, graph, program, group| Ok(broken(backends.build(graph, program, group)?, "Softmax"));
    let report = examined(&Parts { build, ..Parts::default() }, 3);
    let (stage, name, about) = culprit(&report);
    assert_eq!(stage, "kernel");
    assert!(name.ends_with("Softmax (Rows)"), "{report}");
    assert!(about.contains("loop nest is wrong") && about.contains("0 `soft` (Softmax)"), "{report}");
}

/// Code that is not what the loop nest of `Mul` says.
fn broken_code(backends: &Backends<'_>, graph: &Graph, program: &Program, group: GroupId) -> Result<Built> {
    let built = backends.build(graph, program, group)?;
    let kernel = built.kernel.clone();
    Ok(Built { kernel, ..broken(built, "Mul") })
}

#[test]
fn wrong_machine_code_is_told_from_a_wrong_loop_nest() {
    let build: Build<'_> = &broken_code;
    let report = examined(&Parts { build, ..Parts::default() }, 3);
    let (stage, name, about) = culprit(&report);
    assert_eq!((stage, name.ends_with("Mul (Map)")), ("kernel", true), "{report}");
    assert!(about.contains("machine code is not") && about.contains("1 `scale` (Mul)"), "{report}");
}

/// On a processor with wide vectors, where the kernel is selected twice: for its code, and to find whose fault it is.
#[test]
fn wrong_selection_is_told_from_wrong_emission() {
    if Target::host().unwrap().wide.is_none() {
        return;
    }
    let build: Build<'_> = &broken_code;
    let wrong: Select<'_> = &|kernel, isa| {
        let mut kernel = kernel.clone();
        break_stores(&mut kernel.body);
        vector::lower(&kernel, isa)
    };
    let selections: [(Select<'_>, _); 2] = [
        (&vector::lower, "its vector IR is right"),
        (wrong, "its loop nest is right, its vector IR is not (selection)"),
    ];
    for (select, text) in selections {
        let report = examined(&Parts { build, select, ..Parts::default() }, 3);
        assert!(culprit(&report).2.contains(text), "{report}");
    }
}
