//! Axes without elements, known and not: nothing is loaded where there is nothing. The interpreter and the emulator
//! refuse every access outside its buffer.

use super::*;

impl Draft {
    /// Draws other sizes for the symbols, some of them 0, and inputs of these sizes, if they are valid.
    fn resize(&mut self) -> bool {
        let dims = self.symbols.len();
        self.symbols = (0..dims).map(|_| self.dice.pick(&[0, 0, 1, 3, 17])).collect();
        let types: Vec<TensorType> =
            self.graph.inputs.iter().map(|input| self.graph.ty(input.value).clone()).collect();
        let symbols = |sym: Sym| self.symbols.get(sym.as_u32() as usize).map(|&size| size as i64);
        let mut dims = types.iter().flat_map(|ty| &ty.shape);
        if dims.any(|dim| dim.eval(&symbols).is_none_or(|size| size < 0)) {
            return false;
        }
        self.inputs.clear();
        for ty in types {
            let sizes: Vec<usize> = ty.shape.iter().map(|dim| self.size(dim)).collect();
            let tensor = self.dice.tensor(ty.dtype, &sizes);
            self.inputs.push(tensor);
        }
        true
    }
}

fn check_empty_graphs(core: &Core, execute: Execute<'_, Kernel>) {
    let (mut failures, mut checked) = (vec![], 0);
    for seed in 1..=300 {
        let mut draft = Draft::with_symbols(seed, 70);
        for _ in 0..6 {
            if !draft.resize() || !draft.symbols.contains(&0) || !draft.fits() {
                continue;
            }
            checked += 1;
            let fuse = draft.dice.chance(70);
            if let Err(message) = check(&draft.graph, &draft.inputs, fuse, core, execute) {
                let message: String = message.chars().take(4000).collect();
                failures.push(format!("seed {seed}, sizes {:?}\n{}\n{message}", draft.symbols, draft.graph));
                break;
            }
        }
    }
    let count = failures.len();
    assert!(failures.is_empty(), "{count} graphs failed\n{}", failures[..count.min(6)].join("\n\n"));
    assert!(checked > 200, "{checked} runs with empty axes");
}

#[test]
fn random_graphs_without_elements() {
    check_empty_graphs(&fixed_target().core, &loops::interp::run);
    check_empty_graphs(&fixed_target().leaf().unwrap(), &loops::interp::run);
}

#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn random_graphs_without_elements_as_leaf_kernels() {
    let target = fixed_target().leaf().unwrap();
    check_empty_graphs(
        &target,
        &|kernel, buffers, symbols| match leaf::compile(kernel, target.wide.unwrap())? {
            Ok(code) => {
                let (dims, range) = run_sizes(kernel, symbols);
                Ok(emulate(&code, buffers, &dims, range) as u32)
            }
            Err(_) => loops::interp::run(kernel, buffers, symbols),
        },
    );
}

/// A graph of an input `[s0, 3]` and another `[s1]`, run with these sizes and checked at all widths.
fn check_sizes(sizes: [usize; 2], build: impl FnOnce(&mut Builder<'_>, ValueId, ValueId) -> ValueId) {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let [s, t] = [0, 1].map(|_| Dim::sym(b.fresh_symbol()));
    let x = b.input("x", TensorType::new(DType::F32, vec![s, Dim::from(3usize)]), None);
    let y = b.input("y", TensorType::new(DType::F32, vec![t]), None);
    let result = build(&mut b, x, y);
    graph.outputs.push(("result".into(), result));
    let mut dice = Dice(4);
    let inputs = [dice.tensor(DType::F32, &[sizes[0], 3]), dice.tensor(DType::F32, &[sizes[1]])];
    for core in [fixed_target().core, fixed_target().leaf().unwrap()] {
        for fuse in [true, false] {
            check(&graph, &inputs, fuse, &core, &loops::interp::run).unwrap();
        }
    }
}

#[test]
fn the_place_of_the_best_of_nothing() {
    for max in [true, false] {
        check_sizes([0, 1], |b, x, _| b.emit1(Op::ArgReduce { max, axis: 0, last: false }, &[x]).unwrap());
    }
}

/// A NaN is more extreme than any number, wherever it stands.
#[test]
fn the_place_of_nan() {
    let nan = f32::NAN;
    let rows = [[1., nan, 3., nan], [nan, 5., 1., 2.], [1., 2., 3., nan], [2., 2., 1., 1.]];
    for (max, last) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(4usize); 2]), None);
        let place = b.emit1(Op::ArgReduce { max, axis: 1, last }, &[x]).unwrap();
        graph.outputs.push(("place".into(), place));
        let input = Tensor::from_slice::<f32>(&[4, 4], rows.as_flattened());
        check(&graph, &[input], true, &fixed_target().core, &loops::interp::run).unwrap();
    }
}

#[test]
fn a_border_around_nothing() {
    check_sizes([0, 1], |b, x, _| {
        let fill = b.scalar(DType::F32, 2.0);
        let one = || vec![Dim::ONE, Dim::ZERO];
        let padded = b.pad(x, fill, one(), one()).unwrap();
        b.unary(UnaryFn::Exp, padded).unwrap()
    });
}

/// A short concatenation would be an expression of its reader.
#[test]
fn something_after_nothing() {
    for sizes in [[3, 0], [0, 4]] {
        check_sizes(sizes, |b, x, y| {
            let count = b.shape(x)[0].clone() * Dim::from(3usize);
            let x = b.reshape(x, vec![count]).unwrap();
            let joined = b.concat(&[x, y], 0).unwrap();
            b.unary(UnaryFn::Neg, joined).unwrap()
        });
    }
}

/// What all columns of a row have in common is loaded once, if there is a column.
#[test]
fn rows_without_columns() {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let x = b.input("x", TensorType::new(DType::F32, vec![Dim::ZERO]), None);
    let weights = b.constant(Tensor::from_slice(&[5, 1], &[1f32, 2., 3., 4., 5.]));
    let powers = b.unary(UnaryFn::Exp, x).unwrap();
    let sum = b.binary(BinaryFn::Add, powers, weights).unwrap();
    let total = b.reduce(ReduceFn::Sum, sum, &[0, 1]).unwrap();
    graph.outputs = vec![("sum".into(), sum), ("total".into(), total)];
    let input = Tensor::from_slice::<f32>(&[0], &[]);
    for core in [fixed_target().core, fixed_target().leaf().unwrap()] {
        check(&graph, std::slice::from_ref(&input), true, &core, &loops::interp::run).unwrap();
    }
}

/// The same where only the run knows that there is no column: the row that all columns would read need not exist either.
#[test]
fn columns_of_one_row_of_nothing() {
    for sizes in [[0, 0], [2, 0], [2, 3]] {
        check_sizes(sizes, |b, x, y| {
            let columns = b.shape(y);
            let first = b.scalar(DType::I64, 0.0);
            let rows = b.expand(first, columns).unwrap();
            let gathered = b.emit1(Op::Gather { axis: 0 }, &[x, rows]).unwrap();
            let turned = b.transpose(gathered, &[1, 0]).unwrap();
            b.unary(UnaryFn::Exp, turned).unwrap()
        });
    }
}

/// Without elements, strides are 0 and addresses do not depend on loops: what is loaded there must stay inside.
#[test]
fn views_of_nothing() {
    for shape in [&[1, 0][..], &[0, 3], &[3, 0], &[2, 0, 3]] {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::ZERO]), None);
        let view = b.reshape(x, shape.iter().map(|&size| Dim::from(size as usize)).collect()).unwrap();
        let powers = b.unary(UnaryFn::Exp, view).unwrap();
        let total = b.reduce(ReduceFn::Sum, view, &[0]).unwrap();
        graph.outputs = vec![("powers".into(), powers), ("total".into(), total)];
        let input = Tensor::from_slice::<f32>(&[0], &[]);
        for core in [fixed_target().core, fixed_target().leaf().unwrap()] {
            for fuse in [false, true] {
                check(&graph, std::slice::from_ref(&input), fuse, &core, &loops::interp::run).unwrap();
            }
        }
    }
}
