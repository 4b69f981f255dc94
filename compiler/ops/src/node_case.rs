//! One operator node as a test: lowered from its row, run by the reference evaluator, held against values
//! that other implementations computed.

use std::collections::HashMap;

use crate::{Attr, FAMILIES, NodeCx, OpDef, Table};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::tensor::Element;
use onnxc_ir::graph::{DType, Dim, Graph, Origin, Symbol, Tensor, TensorType};
use onnxc_ir::interp;

/// A node with its operands.
pub struct Case {
    families: &'static [&'static [OpDef]],
    domain: &'static str,
    name: &'static str,
    opset: u32,
    attributes: HashMap<String, Attr<'static>>,
    inputs: Vec<Option<Operand>>,
    outputs: usize,
    rank: Option<usize>,
}

struct Operand {
    tensor: Tensor,
    constant: bool,
    /// Names of symbolic dims; empty for a static one.
    dims: Vec<String>,
}

impl Case {
    pub fn new(name: &'static str, opset: u32) -> Case {
        Case::of(FAMILIES, "", name, opset)
    }

    /// A node of an operator of these families.
    pub fn of(
        families: &'static [&'static [OpDef]],
        domain: &'static str,
        name: &'static str,
        opset: u32,
    ) -> Case {
        Case {
            families,
            domain,
            name,
            opset,
            attributes: HashMap::new(),
            inputs: Vec::new(),
            outputs: 1,
            rank: None,
        }
    }

    /// The same node of another opset.
    pub fn at(self, opset: u32) -> Case {
        Case { opset, ..self }
    }

    pub fn attr(mut self, name: &str, value: Attr<'static>) -> Case {
        self.attributes.insert(name.to_string(), value);
        self
    }

    pub fn without(mut self, name: &str) -> Case {
        self.attributes.remove(name);
        self
    }

    pub fn int(self, name: &str, value: i64) -> Case {
        self.attr(name, Attr::Int(value))
    }

    pub fn float(self, name: &str, value: f32) -> Case {
        self.attr(name, Attr::Float(value))
    }

    pub fn str(self, name: &str, value: &str) -> Case {
        self.attr(name, Attr::Str(value.to_string()))
    }

    pub fn ints(self, name: &str, values: &[i64]) -> Case {
        self.attr(name, Attr::Ints(values.to_vec().into()))
    }

    pub fn floats(self, name: &str, values: &[f32]) -> Case {
        self.attr(name, Attr::Floats(values.to_vec().into()))
    }

    pub fn strs(self, name: &str, values: &[&str]) -> Case {
        self.attr(name, Attr::Strs(values.iter().map(|text| text.to_string()).collect::<Vec<_>>().into()))
    }

    /// An operand known only at run time.
    pub fn input<T: Element>(self, shape: &[usize], values: &[T]) -> Case {
        self.operand(Tensor::from_slice(shape, values), false, &[])
    }

    /// Run-time strings; each dim with a name is symbolic.
    pub fn texts(self, dims: &[&str], shape: &[usize], texts: &[&str]) -> Case {
        self.operand(Tensor::from_texts(shape, texts), false, dims)
    }

    /// Run-time complex numbers of type c64, given by real and imaginary parts.
    pub fn complex(self, shape: &[usize], parts: &[f32]) -> Case {
        let data = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        self.operand(Tensor::new(DType::C64, shape.to_vec(), data), false, &[])
    }

    /// A run-time operand of [`ramp`] values.
    pub fn ramp(self, shape: &[usize], seed: usize) -> Case {
        let values = ramp(shape.iter().product(), seed);
        self.input(shape, &values)
    }

    /// A constant operand of [`ramp`] values.
    pub fn constant_ramp(self, shape: &[usize], seed: usize) -> Case {
        let values = ramp(shape.iter().product(), seed);
        self.constant(shape, &values)
    }

    /// A run-time operand; each dim with a name is symbolic.
    pub fn symbolic<T: Element>(self, dims: &[&str], shape: &[usize], values: &[T]) -> Case {
        self.operand(Tensor::from_slice(shape, values), false, dims)
    }

    /// A constant operand.
    pub fn constant<T: Element>(self, shape: &[usize], values: &[T]) -> Case {
        self.operand(Tensor::from_slice(shape, values), true, &[])
    }

    pub fn operand(mut self, tensor: Tensor, constant: bool, dims: &[&str]) -> Case {
        let dims = dims.iter().map(|name| name.to_string()).collect();
        self.inputs.push(Some(Operand { tensor, constant, dims }));
        self
    }

    /// An optional operand that is left out.
    pub fn missing(mut self) -> Case {
        self.inputs.push(None);
        self
    }

    pub fn outputs(mut self, count: usize) -> Case {
        self.outputs = count;
        self
    }

    /// Outputs that are declared to have this rank.
    pub fn of_rank(mut self, rank: usize) -> Case {
        self.rank = Some(rank);
        self
    }

    /// The lowered graph, with the run-time operands.
    pub fn lower(&self) -> Result<(Graph, Vec<Tensor>)> {
        let table = Table::new(self.families.iter().copied());
        let def = table.lookup(self.domain, self.name, self.opset).expect("the operator has a row");
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("test", self.name, 0));
        let mut symbols: HashMap<&str, Dim> = HashMap::new();
        let mut b = Builder::new(&mut graph, origin);
        let (mut inputs, mut data) = (Vec::new(), Vec::new());
        for operand in &self.inputs {
            let Some(Operand { tensor, constant, dims }) = operand else {
                inputs.push(None);
                continue;
            };
            if *constant {
                inputs.push(Some(b.constant(tensor.clone())));
                continue;
            }
            let mut shape: Vec<Dim> = tensor.shape.iter().map(|&size| Dim::from(size)).collect();
            for (dim, name) in shape.iter_mut().zip(dims).filter(|(_, name)| !name.is_empty()) {
                let symbols = symbols
                    .entry(name)
                    .or_insert_with(|| Dim::sym(b.graph.symbols.push(Symbol { name: name.clone() })));
                *dim = symbols.clone();
            }
            inputs.push(Some(b.input("x", TensorType::new(tensor.dtype, shape), None)));
            data.push(tensor.clone());
        }
        let wanted = vec![true; self.outputs];
        let declared = vec![None; self.outputs];
        let ranks = vec![self.rank; self.outputs];
        let mut cx = NodeCx {
            b: &mut b,
            def,
            opset: self.opset,
            inputs: inputs.clone(),
            compounds: Default::default(),
            given: Vec::new(),
            attributes: &self.attributes,
            outputs: self.outputs,
            wanted: &wanted,
            declared: &declared,
            ranks: &ranks,
            bodies: &mut crate::NoBodies,
            tolerated: Vec::new(),
        };
        let outputs: Vec<_> = cx.lower()?.iter().filter_map(|item| item.tensor()).collect();
        assert!(outputs.len() >= self.outputs, "{} gives {} outputs", self.name, outputs.len());
        graph.outputs =
            outputs.into_iter().take(self.outputs).map(|value| ("y".to_string(), value)).collect();
        Ok((graph, data))
    }

    pub fn run(&self) -> Result<Vec<Tensor>> {
        let (graph, data) = self.lower()?;
        interp::run(&graph, &data)
    }

    /// Asserts the shape and, to a relative and absolute `1e-4`, the elements of output `at`.
    pub fn gives(&self, at: usize, shape: &[usize], wanted: &[f64]) {
        let outputs = self.run().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert_eq!(outputs[at].shape, shape, "shape of output {at} of {}", self.name);
        let found = elements(&outputs[at]);
        assert_eq!(found.len(), wanted.len());
        for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            assert!(
                close(*found, *wanted, 1e-4),
                "output {at} of {}: element {index} is {found}, not {wanted}",
                self.name
            );
        }
    }

    /// Runs the case and holds output `at` against these strings.
    pub fn gives_texts(&self, at: usize, shape: &[usize], wanted: &[&str]) {
        let outputs = self.run().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert_eq!(outputs[at].shape, shape, "shape of output {at} of {}", self.name);
        let found = outputs[at].texts();
        let found: Vec<_> = found.iter().map(|text| String::from_utf8_lossy(text)).collect();
        assert_eq!(found, wanted, "output {at} of {}", self.name);
    }
}

/// Values between -1.25 and 1.25 that neighbours do not share.
pub fn ramp(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7 + seed * 3) % 11) as f32 * 0.25 - 1.25).collect()
}

/// All elements as f64.
pub fn elements(tensor: &Tensor) -> Vec<f64> {
    tensor
        .to_f64s()
        .or_else(|| Some(tensor.to_i64s()?.into_iter().map(|value| value as f64).collect()))
        .unwrap_or_else(|| {
            let wide = interp::cast(tensor, onnxc_ir::graph::DType::F64, true);
            wide.to_f64s().expect("f64 elements")
        })
}

/// Holds a node of complex numbers against the same node of real ones: its result has the results of both parts. `case` makes the
/// node of an operand, which is the first or the second part, or both.
pub fn computes_parts(
    shape: &[usize],
    case: impl Fn(Case, ComplexPart) -> Case,
    name: &'static str,
    opset: u32,
) {
    let (real, imaginary) = (ramp(shape.iter().product(), 1), ramp(shape.iter().product(), 4));
    let both: Vec<f32> = real.iter().zip(&imaginary).flat_map(|(&a, &b)| [a, b]).collect();
    let new = || Case::new(name, opset);
    let run = |case: Case| case.run().unwrap_or_else(|error| panic!("{name}: {error}")).remove(0);
    let found = run(case(new().complex(shape, &both), ComplexPart::Both));
    let real = elements(&run(case(new().input(shape, &real), ComplexPart::Real)));
    let imaginary = elements(&run(case(new().input(shape, &imaginary), ComplexPart::Imaginary)));
    let wanted: Vec<f64> = real.into_iter().zip(imaginary).flat_map(|(a, b)| [a, b]).collect();
    let found: Vec<f64> = parts(&found).into_iter().map(f64::from).collect();
    assert_eq!(found, wanted, "{name}-{opset}");
}

/// A part of complex numbers, for [`computes_parts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComplexPart {
    Real,
    Imaginary,
    Both,
}

/// Real and imaginary parts of a tensor of c64.
pub fn parts(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.dtype, DType::C64);
    tensor.data.chunks_exact(4).map(|part| f32::from_le_bytes(part.try_into().unwrap())).collect()
}

/// Equality up to `tolerance`, relative and absolute; NaN equals NaN.
pub fn close(a: f64, b: f64, tolerance: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
}
