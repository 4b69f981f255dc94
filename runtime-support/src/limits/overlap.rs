//! Buffers that must lie apart: what a run writes, from all else that it reads or writes.

use std::ffi::{c_char, c_void};

use crate::abi::{Model, Status, StringView, Tensor};

use super::{Refusal, report};

/// `onnxc_part`, and `ONNXC_STRING`.
const STATE: i32 = 8;
const STRING: i32 = 8;

/// Memory of a run, and whose.
struct Region {
    owner: Owner,
    start: usize,
    bytes: usize,
    is_written: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Input(usize),
    /// A text of an element.
    Text(usize, usize),
    Output(usize),
    Workspace,
    State,
}

impl Region {
    fn overlaps(&self, other: &Region) -> bool {
        self.start.abs_diff(other.start) < if self.start < other.start { self.bytes } else { other.bytes }
    }
}

impl Model {
    /// Fails where outputs overlap inputs, each other, the workspace or the state block, or where one of the last two overlaps
    /// an input: what `onnxc.h` forbids, and a run does not look for. Names both.
    ///
    /// # Safety
    /// `self` is what a compiled model's `<name>_model` returned. Of tensors of strings, the elements are there. Nothing else of
    /// any memory is read.
    pub unsafe fn check_overlap(
        &self,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: *const c_void,
        workspace_bytes: usize,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller says so; likewise below.
        let infos = unsafe { self.inputs() };
        let is_state = |at: usize| infos.get(at).is_some_and(|info| info.part == STATE);
        let mut regions = vec![Region {
            owner: Owner::Workspace,
            start: workspace.addr(),
            bytes: if workspace.is_null() { 0 } else { workspace_bytes },
            is_written: true,
        }];
        let tensor = |owner, tensor: &Tensor, is_written| Region {
            owner,
            start: tensor.data.addr(),
            bytes: if tensor.data.is_null() { 0 } else { tensor.bytes },
            is_written,
        };
        for (at, output) in outputs.iter().enumerate() {
            regions.push(tensor(Owner::Output(at), output, true));
        }
        for (at, input) in inputs.iter().enumerate() {
            let owner = if is_state(at) { Owner::State } else { Owner::Input(at) };
            regions.push(tensor(owner, input, is_state(at)));
            if input.dtype == STRING && !input.data.is_null() {
                // SAFETY: as above.
                regions.extend(unsafe { texts(at, input) });
            }
        }
        regions.retain(|region| region.bytes > 0);
        match first_overlap(&mut regions) {
            None => Ok(()),
            Some((a, b)) => {
                // SAFETY: as above.
                let [a, b] = [a, b].map(|region| unsafe { self.text_of(region) });
                Err(Refusal::new(Status::OVERLAP, format!("{a} and {b} overlap")))
            }
        }
    }

    /// # Safety
    /// As [`Model::check_overlap`].
    unsafe fn text_of(&self, region: &Region) -> String {
        // SAFETY: the caller says so.
        let (inputs, outputs) = unsafe { (self.inputs(), self.outputs()) };
        let name = |infos: &[crate::ValueInfo], at: usize| {
            infos.get(at).map_or(String::new(), |info| info.name.clone())
        };
        let bytes = format!("{} bytes at {:#x}", region.bytes, region.start);
        match region.owner {
            Owner::Input(at) => format!("input {at} `{}` ({bytes})", name(&inputs, at)),
            Owner::Text(at, element) => {
                format!("text {element} of input {at} `{}` ({bytes})", name(&inputs, at))
            }
            Owner::Output(at) => format!("output {at} `{}` ({bytes})", name(&outputs, at)),
            Owner::Workspace => format!("the workspace ({bytes})"),
            Owner::State => format!("the state block ({bytes})"),
        }
    }
}

/// The texts of an input.
///
/// # Safety
/// `tensor` has elements, which are views of texts.
unsafe fn texts(input: usize, tensor: &Tensor) -> impl Iterator<Item = Region> {
    let views: *const StringView = tensor.data.cast();
    (0..tensor.bytes / size_of::<StringView>()).map(move |element| {
        // SAFETY: the caller says so. What is not aligned is for the run to refuse.
        let view = unsafe { views.add(element).read_unaligned() };
        Region {
            owner: Owner::Text(input, element),
            start: view.data.addr(),
            bytes: view.size,
            is_written: false,
        }
    })
}

/// Two regions that overlap, at least one of them written. Regions are visited in the order of addresses: if any earlier region
/// overlaps the next one, then the one that ends last does. A region that is only read is compared with the written ones.
fn first_overlap(regions: &mut [Region]) -> Option<(&Region, &Region)> {
    regions.sort_by_key(|region| region.start);
    let (mut furthest, mut written): (Option<&Region>, Option<&Region>) = (None, None);
    let end = |region: &Region| region.start.saturating_add(region.bytes);
    for region in &*regions {
        let before = if region.is_written { furthest } else { written };
        if let Some(before) = before.filter(|before| before.overlaps(region)) {
            return Some((before, region));
        }
        if furthest.is_none_or(|other| end(other) < end(region)) {
            furthest = Some(region);
        }
        if region.is_written && written.is_none_or(|other| end(other) < end(region)) {
            written = Some(region);
        }
    }
    None
}

/// `onnxc_check_overlap`
///
/// # Safety
/// All pointers are as `onnxc.h` describes them, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_check_overlap(
    model: *const Model,
    inputs: *const Tensor,
    input_count: usize,
    outputs: *const Tensor,
    output_count: usize,
    workspace: *const c_void,
    workspace_bytes: usize,
    message: *mut c_char,
    capacity: usize,
) -> Status {
    let lists = [(inputs, input_count), (outputs, output_count)].map(|(tensors, count)| match count {
        0 => Some(&[][..]),
        _ if tensors.is_null() => None,
        // SAFETY: the caller says so; likewise below.
        count => Some(unsafe { std::slice::from_raw_parts(tensors, count) }),
    });
    // SAFETY: as above.
    let result = match (unsafe { model.as_ref() }, lists) {
        // SAFETY: as above.
        (Some(model), [Some(inputs), Some(outputs)]) => unsafe {
            model.check_overlap(inputs, outputs, workspace, workspace_bytes)
        },
        _ => Err(Refusal::new(Status::NULL_POINTER, "the model or an array of tensors is null")),
    };
    // SAFETY: as above.
    unsafe { report(result, message, capacity) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: usize, bytes: usize, is_written: bool) -> Region {
        Region { owner: Owner::Input(start), start, bytes, is_written }
    }

    #[test]
    fn what_is_written_lies_apart() {
        let found = |regions: &[(usize, usize, bool)]| {
            let mut regions: Vec<Region> = regions.iter().map(|&(a, b, c)| region(a, b, c)).collect();
            first_overlap(&mut regions).map(|(a, b)| (a.start, b.start))
        };
        assert_eq!(found(&[(100, 10, true), (110, 10, true), (90, 10, false)]), None);
        assert_eq!(found(&[(100, 10, false), (100, 10, false), (105, 3, false)]), None, "inputs may");
        assert_eq!(found(&[(100, 10, true), (109, 1, false)]), Some((100, 109)));
        assert_eq!(found(&[(100, 10, false), (109, 1, true)]), Some((100, 109)));
        assert_eq!(found(&[(100, 10, true), (100, 10, true)]), Some((100, 100)));
        assert_eq!(found(&[(100, 50, false), (110, 2, false), (140, 2, true)]), Some((100, 140)));
        assert_eq!(found(&[(100, 50, true), (110, 2, false)]), Some((100, 110)));
        assert_eq!(found(&[(1, 1, true), (3, usize::MAX - 3, true), (100, 1, false)]), Some((3, 100)));
    }

    /// Against every pair.
    #[test]
    fn random_regions_are_judged_as_pairs_are() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let mut regions: Vec<Region> = (0..random.usize(2..7))
                .map(|_| region(random.usize(..60), random.usize(1..12), random.bool()))
                .collect();
            let pairs = regions
                .iter()
                .enumerate()
                .any(|(at, a)| regions[..at].iter().any(|b| (a.is_written || b.is_written) && a.overlaps(b)));
            assert_eq!(first_overlap(&mut regions).is_some(), pairs);
        }
    }
}
