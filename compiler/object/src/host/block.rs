//! Tensors in a state block, for callers in this process and in the interpreter; `host::lower::state` has the layout.

use std::ops::Range;

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::dim::dims;
use onnxc_ir::graph::{DType, PanelLayout, PanelPlaces, Tensor};

/// Elements along a growing axis for which such callers make room beyond what a run leaves: strides are others than if there
/// were none.
pub const SPARE: usize = 3;

/// A tensor in a state block.
pub struct StateTensor {
    pub name: String,
    pub dtype: DType,
    /// With room for more along the axis that grows.
    pub dims: Vec<usize>,
    /// That axis, and the word of the block with the number of elements.
    pub growth: Option<(usize, usize)>,
    /// An axis along which the tensor lies in panels, and elements to a panel; `None` for a row-major tensor.
    pub panels: Option<(usize, usize)>,
    /// Bytes from the start of the block.
    pub offset: usize,
}

impl StateTensor {
    /// The axis along which the tensor lies in panels, and where these have their elements.
    fn in_panels(&self) -> Option<(usize, PanelPlaces)> {
        let (axis, width) = self.panels?;
        let layout = PanelLayout::of_plain(&dims(&self.dims), axis, axis, width)?;
        Some((axis, layout.places()?))
    }

    pub fn bytes(&self) -> usize {
        let elements = match self.in_panels() {
            Some((axis, places)) => self.dims[..axis].iter().product::<usize>() * places.len(),
            None => self.dims.iter().product(),
        };
        elements * self.dtype.size()
    }

    /// Where in the block each element of a tensor of this shape lies, in row-major order.
    fn places(&self, shape: &[usize]) -> Vec<usize> {
        let panels = self.in_panels();
        let mut index = vec![0; shape.len()];
        let mut places = Vec::with_capacity(shape.iter().product());
        for _ in 0..shape.iter().product::<usize>() {
            let row_major = |axes: Range<usize>| axes.fold(0, |at, own| at * self.dims[own] + index[own]);
            let at = match panels {
                Some((axis, panels)) => {
                    let behind = row_major(axis + 1..shape.len());
                    row_major(0..axis) * panels.len() + panels.at(behind, index[axis])
                }
                None => row_major(0..shape.len()),
            };
            places.push(self.offset + at * self.dtype.size());
            for own in (0..shape.len()).rev() {
                index[own] += 1;
                if index[own] < shape[own] {
                    break;
                }
                index[own] = 0;
            }
        }
        places
    }

    /// Puts a tensor there, and its size into its word.
    pub fn put(&self, tensor: &Tensor, block: &mut [u8]) -> Result<()> {
        let fits = |axis: usize| match self.growth {
            Some((own, _)) if own == axis => tensor.shape[axis] <= self.dims[axis],
            _ => tensor.shape[axis] == self.dims[axis],
        };
        let same = tensor.dtype == self.dtype && tensor.shape.len() == self.dims.len();
        if !same || !(0..self.dims.len()).all(fits) {
            let (name, dtype, shape, dims) = (&self.name, tensor.dtype, &tensor.shape, &self.dims);
            let message =
                format!("state `{name}`: {dtype}{shape:?} where there is room for {}{dims:?}", self.dtype);
            return Err(Error::new(Stage::Run, Kind::Usage, message));
        }
        if let Some((axis, word)) = self.growth {
            block[8 * word..][..8].copy_from_slice(&(tensor.shape[axis] as i64).to_le_bytes());
        }
        let size = self.dtype.size();
        for (place, element) in self.places(&tensor.shape).into_iter().zip(tensor.data.chunks_exact(size)) {
            block[place..place + size].copy_from_slice(element);
        }
        Ok(())
    }

    /// What is there.
    pub fn tensor(&self, block: &[u8]) -> Result<Tensor> {
        let mut shape = self.dims.clone();
        if let Some((axis, word)) = self.growth {
            let word = block[8 * word..][..8].try_into().map(i64::from_le_bytes).unwrap_or(-1);
            let count = usize::try_from(word).ok().filter(|&count| count <= self.dims[axis]);
            let Some(count) = count else {
                let message = format!("state `{}` came back with {word} elements", self.name);
                return Err(Error::internal(Stage::Run, message));
            };
            shape[axis] = count;
        }
        let size = self.dtype.size();
        let places = self.places(&shape).into_iter();
        let data: Vec<u8> = places.flat_map(|place| block[place..place + size].iter().copied()).collect();
        Ok(Tensor::new(self.dtype, shape, data.into()))
    }
}
