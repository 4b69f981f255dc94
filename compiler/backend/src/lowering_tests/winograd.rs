//! Minimal filtering of images whose sizes only the run knows. The emulator refuses every access outside a buffer.

use super::*;
#[cfg(unix)]
use crate::codegen::testing;

/// Both transforms without products between them, another operand added to the results; batch, height and width are symbols.
fn graph_of(tile: usize, channels: usize, dtype: DType) -> Graph {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let [batch, height, width] = [0; 3].map(|_| Dim::sym(b.fresh_symbol()));
    let image = |height: Dim, width: Dim| vec![batch.clone(), height, width, Dim::from(channels)];
    let two = Dim::from(2usize);
    let sizes = image(height.clone() + two.clone(), width.clone() + two);
    let x = b.input("x", TensorType::new(if dtype == DType::I32 { DType::U8 } else { dtype }, sizes), None);
    let more = b.input("more", TensorType::new(dtype, image(height.clone(), width.clone())), None);
    let rest = |size: &Dim| {
        let by = Dim::from(tile);
        size.ceil_div(&by).unwrap() * by - size.clone()
    };
    let hi = vec![Dim::ZERO, rest(&height), rest(&width), Dim::ZERO];
    let fill = b.scalar(b.dtype(x), 0.0);
    let x = b.pad(x, fill, vec![Dim::ZERO; 4], hi).unwrap();
    let squares = b.emit1(Op::WinogradInput { tile }, &[x]).unwrap();
    let squares = b.transpose(squares, &[3, 0, 1, 2, 4]).unwrap();
    let squares = b.cast(squares, dtype).unwrap();
    let y = b.emit1(Op::WinogradOutput { tile, height, width }, &[squares]).unwrap();
    let y = b.binary(BinaryFn::Add, y, more).unwrap();
    graph.outputs = vec![("y".into(), y)];
    graph
}

/// Weights of kernels, transformed; one axis behind that of the taps is a symbol, if there is any.
fn filters_of(tile: usize, rest: &[usize], dtype: DType) -> Graph {
    let mut graph = Graph::default();
    graph.origins.push(Origin::new("test", "Test", 0));
    let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
    let mut shape: Vec<Dim> = [9].iter().chain(rest).map(|&size| Dim::from(size)).collect();
    if let Some(first) = shape.get_mut(1) {
        *first = Dim::sym(b.fresh_symbol());
    }
    let weights = b.input("weights", TensorType::new(dtype, shape), None);
    let squares = b.emit1(Op::WinogradFilter { tile }, &[weights]).unwrap();
    graph.outputs = vec![("squares".into(), squares)];
    graph
}

/// Images and their heights and widths: none, one, and each rest of a tile in either direction.
const SIZES: [(usize, usize, usize); 10] = [
    (1, 0, 3),
    (1, 5, 0),
    (0, 2, 2),
    (3, 1, 1),
    (1, 1, 17),
    (2, 2, 5),
    (1, 3, 2),
    (1, 4, 8),
    (1, 7, 6),
    (1, 17, 3),
];

fn check_sizes(core: &Core, execute: Execute<'_, Kernel>) {
    let mut dice = Dice(63);
    for (tile, channels, dtype) in [(2, 11, DType::F32), (4, 8, DType::F32), (4, 3, DType::I32)] {
        let graph = graph_of(tile, channels, dtype);
        for (batch, height, width) in SIZES {
            let own = if dtype == DType::I32 { DType::U8 } else { dtype };
            let x = dice.tensor(own, &[batch, height + 2, width + 2, channels]);
            let more = dice.tensor(dtype, &[batch, height, width, channels]);
            check(&graph, &[x, more], true, core, execute)
                .unwrap_or_else(|error| panic!("tiles of {tile}, {batch} of {height} by {width}: {error}"));
        }
    }
    let rests: [&[usize]; 7] = [&[], &[1], &[37], &[0, 8], &[3, 5, 16], &[2, 3, 24], &[2, 3, 4]];
    let dtypes = [DType::F32, DType::F64, DType::I32];
    for (rest, dtype) in rests.into_iter().flat_map(|rest| dtypes.map(|dtype| (rest, dtype))) {
        for tile in [2, 4] {
            let weights = dice.tensor(dtype, &[&[9], rest].concat());
            check(&filters_of(tile, rest, dtype), &[weights], true, core, execute)
                .unwrap_or_else(|error| panic!("weights {rest:?} for tiles of {tile}: {error}"));
        }
    }
}

#[test]
fn open_sizes() {
    check_sizes(&fixed_target().core, &loops::interp::run);
    check_sizes(&fixed_target().leaf().unwrap(), &loops::interp::run);
}

/// Every kernel is a leaf kernel; `call` runs it.
#[cfg(unix)]
fn check_leaf_sizes(core: &Core, call: LeafCall<'_>) {
    let known = RefCell::new(BTreeMap::new());
    check_sizes(core, &|kernel, buffers, symbols| {
        let mut known = known.borrow_mut();
        let code = known.entry(kernel.to_string()).or_insert_with_key(|text| {
            let code = leaf::compile(kernel, core.wide.unwrap()).unwrap();
            code.unwrap_or_else(|why| panic!("{why:?}\n{text}"))
        });
        let (dims, range) = run_sizes(kernel, symbols);
        Ok(call(code, buffers, &dims, range) as u32)
    });
}

#[test]
#[cfg(all(target_arch = "x86_64", unix))]
fn open_sizes_as_leaf_kernels() {
    let wide = Target::new(fixed_target().triple, Some("x86-64-v4")).unwrap();
    for target in [fixed_target(), wide] {
        check_leaf_sizes(&target.leaf().unwrap(), &emulate);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn open_sizes_as_leaf_kernels_of_aarch64() {
    let Some(runner) = onnxc_machine::testing::runner::Runner::new("max") else { return };
    let runner = RefCell::new(runner);
    let target = Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    check_leaf_sizes(&target.leaf().unwrap(), &|code, buffers, dims, range| {
        runner.borrow_mut().call(&code.bytes, buffers, dims, range)
    });
}

/// What machines without leaf kernels run, and compiled for others.
#[test]
#[cfg(unix)]
fn open_sizes_by_cranelift() {
    for target in [testing::baseline(), testing::target()] {
        let known = RefCell::new(BTreeMap::new());
        check_sizes(&target.core, &|kernel, buffers, symbols| {
            let mut known = known.borrow_mut();
            let code = known.entry(kernel.to_string()).or_insert_with(|| {
                testing::compile_elsewhere(kernel);
                testing::build_at(kernel, None, &target)
            });
            let (dims, range) = run_sizes(kernel, symbols);
            Ok(code.run(buffers, &dims, range) as u32)
        });
    }
}
