//! What the back end makes of a program: machine code of every kernel, in versions for the levels of the target.

use std::collections::{BTreeSet, HashMap};

use cranelift_entity::PrimaryMap;

use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{Dim, NodeId, ValueId};
use onnxc_loops::work::Threads;
use onnxc_schedule::GroupId;

/// Machine code of a kernel. It refers to nothing outside itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MachineCode {
    pub bytes: Vec<u8>,
    /// Bytes; a power of two.
    pub alignment: u64,
    /// Bytes of stack, with the address to return to.
    pub stack: u32,
    /// The record of its prologue for unwinders, where the target has those.
    pub unwind: Vec<u8>,
}

/// The compiled kernel of one group. Its buffers are the group's inputs, then its outputs.
#[derive(Clone)]
pub struct KernelCode {
    /// For profiles and debuggers; need not be unique.
    pub name: String,
    /// From the least level up. The first is of level 0: it runs wherever the object does.
    pub versions: Vec<KernelVersion>,
    /// Whether it may fail, and what then says why.
    pub failure: Failure,
}

/// How a kernel may fail.
#[derive(Clone)]
pub enum Failure {
    Never,
    /// For one of several reasons; no code determines which.
    Unexplained,
    Explained(Box<Explanation>),
}

/// A kernel that finds out why another one failed; see [`onnxc_loops::lower::explain`].
#[derive(Clone)]
pub struct Explanation {
    pub code: KernelCode,
    pub texts: Vec<String>,
    /// Inputs that the kernel which failed has overwritten.
    pub lost: Vec<ValueId>,
}

/// A kernel's machine code for one level of the target. All versions of a kernel compute the same from the same
/// buffers, up to rounding.
#[derive(Clone)]
pub struct KernelVersion {
    /// The least of the target's levels, as [`Target::levels`](onnxc_machine::target::Target::levels) numbers them, that this runs on.
    pub level: usize,
    pub code: MachineCode,
    /// The code is called with the address of the value of this symbol; see `backend`.
    pub first_symbol: u32,
    /// Range of the parallel loop, whose parts may run on several threads.
    pub range: Option<(Dim, Dim)>,
    /// When several threads share that range.
    pub threads: Threads,
    /// Why it is not a leaf kernel, where the level has those.
    pub refusal: Option<String>,
}

impl KernelCode {
    /// Why the version for the best processors is not a leaf kernel, where it could be one.
    pub fn refusal(&self) -> Option<&str> {
        self.versions.last()?.refusal.as_deref()
    }

    /// The version of level 0.
    pub fn baseline(&self) -> Result<&KernelVersion> {
        match self.versions.first() {
            Some(version) if version.level == 0 => Ok(version),
            _ => Err(Error::internal(Stage::Emit, format!("kernel `{}` has no baseline", self.name))),
        }
    }
}

/// The kernels of a program: one per group, and those of the bodies of its control flow.
#[derive(Clone, Default)]
pub struct Kernels {
    pub groups: PrimaryMap<GroupId, KernelCode>,
    pub bodies: HashMap<NodeId, Vec<Kernels>>,
}

impl Kernels {
    /// Whether there is anything to choose when the object runs.
    pub fn has_upgrades(&self) -> bool {
        self.levels().len() > 1
    }

    /// The levels that kernels have versions for.
    pub fn levels(&self) -> BTreeSet<usize> {
        let (mut open, mut levels) = (vec![self], BTreeSet::new());
        while let Some(kernels) = open.pop() {
            let versions = kernels.groups.values().flat_map(|kernel| &kernel.versions);
            levels.extend(versions.map(|version| version.level));
            open.extend(kernels.bodies.values().flatten());
        }
        levels
    }
}
