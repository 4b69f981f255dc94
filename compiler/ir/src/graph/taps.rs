//! Taps of windows over axes that are padded with zeros: those of a convolution.

use crate::graph::{Dim, Graph, Op, Tensor, ValueId};

/// The taps of a window along one axis of the padded image.
#[derive(Debug)]
pub struct Taps {
    /// The axis of the padded image, which is that of the positions, and the axis of the taps.
    pub axis: usize,
    pub tap_axis: usize,
    /// Taps, and elements from one to the next.
    pub kernel: usize,
    pub dilation: usize,
    /// Elements from one position to the next, and their number.
    pub stride: usize,
    pub positions: Dim,
    /// Zeros before the image, its extent, and zeros behind it.
    pub before: Dim,
    pub extent: Dim,
    pub after: Dim,
}

/// Windows over an image that is padded with zeros.
pub struct PaddedWindows<'g> {
    pub image: ValueId,
    pub lo: &'g [Dim],
    pub hi: &'g [Dim],
    /// Whether the zeros have no memory.
    pub is_implicit: bool,
    /// Along each axis of the windows.
    pub taps: Vec<Taps>,
}

impl PaddedWindows<'_> {
    /// What `windows` are, if that is this.
    pub fn of(graph: &Graph, windows: ValueId) -> Option<PaddedWindows<'_>> {
        let node = |value| graph.producer(value).map(|node| &graph.nodes[node]);
        let window = node(windows)?;
        let Op::Window { first, kernel, strides, dilations } = &window.op else { return None };
        let padding = node(window.inputs[0])?;
        let zero = |fill: &ValueId| graph.constant_data(*fill).is_some_and(Tensor::is_zero);
        let (lo, hi, is_implicit) = match (&padding.op, &padding.inputs[1..]) {
            (Op::Pad { lo, hi }, [fill]) if zero(fill) => (lo, hi, false),
            (Op::ImplicitPad { lo, hi }, []) => (lo, hi, true),
            _ => return None,
        };
        let image = padding.inputs[0];
        let taps = (0..kernel.len()).map(|at| {
            let axis = first + at;
            Taps {
                axis,
                tap_axis: axis + kernel.len(),
                kernel: kernel[at],
                dilation: dilations[at],
                stride: strides[at],
                positions: graph.ty(windows).shape[axis].clone(),
                before: lo[axis].clone(),
                extent: graph.ty(image).shape[axis].clone(),
                after: hi[axis].clone(),
            }
        });
        Some(PaddedWindows { image, lo, hi, is_implicit, taps: taps.collect() })
    }
}

impl Taps {
    pub fn is_padded(&self) -> bool {
        (&self.before, &self.after) != (&Dim::ZERO, &Dim::ZERO)
    }

    /// The positions, rising, at which a tap begins or ceases to read the image: of two neighbours that none of them lies between, the
    /// same taps do. `None` where only a run knows the order of more than two of them.
    pub fn breaks(&self) -> Option<Vec<Dim>> {
        let mut breaks: Vec<Dim> = vec![];
        for tap in 0..self.kernel {
            let own = Dim::from(tap * self.dilation);
            for place in [self.before.clone(), self.before.clone() + self.extent.clone()] {
                let at = (place - own.clone()).ceil_div(&Dim::from(self.stride))?;
                let at = at.max_dim(&Dim::ZERO).min_dim(&self.positions);
                if at.is_overgrown() {
                    return None;
                }
                if at != Dim::ZERO && at != self.positions && !breaks.contains(&at) {
                    breaks.push(at);
                }
            }
        }
        if breaks.iter().all(Dim::is_const) {
            breaks.sort_by_key(Dim::as_const);
            return Some(breaks);
        }
        match &breaks[..] {
            [_] => Some(breaks),
            [a, b] => Some(vec![a.min_dim(b), a.max_dim(b)]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Sym;

    /// Between breaks, every position reads the image with the same taps.
    #[test]
    fn taps_read_the_image_alike_between_breaks() {
        let mut told = 0;
        for (kernel, dilation, stride, before, after) in [
            (3, 12, 1, 12, 12),
            (3, 6, 2, 6, 5),
            (2, 7, 1, 7, 0),
            (3, 4, 1, 8, 0),
            (5, 2, 1, 4, 4),
            (1, 1, 1, 3, 2),
        ] {
            for extent in 1..40usize {
                let reach = (kernel - 1) * dilation;
                let Some(room) = (before + extent + after).checked_sub(reach + 1) else { continue };
                let reads = |position: usize| -> Vec<bool> {
                    let inside =
                        |tap| (before..before + extent).contains(&(position * stride + tap * dilation));
                    (0..kernel).map(inside).collect()
                };
                for known in [true, false] {
                    let symbol = Dim::sym(Sym::from_u32(0));
                    let size = if known { Dim::from(extent) } else { symbol };
                    let all = size.clone() + Dim::from(before + after) - Dim::from(reach + 1);
                    let positions = all.floor_div(&Dim::from(stride)).unwrap() + Dim::ONE;
                    let taps = Taps {
                        axis: 0,
                        tap_axis: 1,
                        kernel,
                        dilation,
                        stride,
                        positions,
                        before: Dim::from(before),
                        extent: size,
                        after: Dim::from(after),
                    };
                    let Some(breaks) = taps.breaks() else {
                        assert!(!known);
                        continue;
                    };
                    told += usize::from(!known);
                    let value = |dim: &Dim| dim.eval(&|_| Some(extent as i64)).unwrap() as usize;
                    let breaks: Vec<usize> = breaks.iter().map(value).collect();
                    assert!(breaks.is_sorted());
                    for position in 1..room / stride + 1 {
                        let alike = reads(position - 1) == reads(position);
                        assert!(alike || breaks.contains(&position), "{taps:?} at {position}: {breaks:?}");
                    }
                }
            }
        }
        assert!(told > 100);
    }
}
