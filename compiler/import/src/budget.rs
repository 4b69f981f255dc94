//! What an import may still use.

use super::Limits;
use onnxc_ir::error::{Error, Kind, Result, Stage};

pub(super) struct Budget {
    limit: u64,
    /// Primitives left.
    pub left: u64,
    /// Maximum nesting of functions and bodies.
    pub nesting: u32,
    /// Functions and bodies around the current node.
    pub depth: u32,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Budget {
        Budget { limit: limits.primitives, left: limits.primitives, nesting: limits.nesting, depth: 0 }
    }

    /// Takes primitives.
    pub(super) fn charge(&mut self, primitives: u64) -> Result<()> {
        let left = self.left.checked_sub(primitives);
        self.left = left.unwrap_or(0);
        left.map(|_| ()).ok_or_else(|| {
            let limit = self.limit;
            let message =
                format!("the model becomes more than {limit} primitives, functions and bodies taken apart");
            Error::new(Stage::Import, Kind::Budget, message)
        })
    }

    /// Fails where one more function or body is too many.
    pub(super) fn check_depth(&self) -> Result<()> {
        if self.depth < self.nesting {
            return Ok(());
        }
        let message = format!("functions and bodies nest deeper than {}", self.nesting);
        Err(Error::new(Stage::Import, Kind::Budget, message))
    }

    /// Goes into a function.
    pub(super) fn enter(&mut self) -> Result<()> {
        self.check_depth()?;
        self.depth += 1;
        Ok(())
    }
}
