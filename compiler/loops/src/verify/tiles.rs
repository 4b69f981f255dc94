//! The rules of tiles.

use super::{Checked, Surroundings, Verifier};
use crate::Access;
use crate::tiles::{MAX_TILES, Tile, TileDecl, TileStmt};

impl Verifier<'_> {
    pub(super) fn tile_decls(&self) -> Checked {
        if self.kernel.tiles.len() > MAX_TILES {
            return Err(format!("{} tiles, at most {MAX_TILES} are possible", self.kernel.tiles.len()));
        }
        match self.kernel.tiles.values().find_map(TileDecl::fault) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    pub(super) fn tile_stmt(&mut self, stmt: &TileStmt, place: &Surroundings) -> Checked {
        if place.vector {
            return Err("a tile in a vector loop".to_string());
        }
        if let Some((_, index)) = stmt.place() {
            self.index(index)?;
        }
        match stmt {
            TileStmt::Zero { tile } => {
                self.tile(*tile)?;
                self.set_tiles.insert(*tile);
            }
            TileStmt::Load { tile, buf, .. } => {
                let found = self.access(*buf, Access::Write)?;
                self.same_type(found, self.tile(*tile)?.dtype, &format!("load of {tile}"))?;
                self.set_tiles.insert(*tile);
            }
            TileStmt::Store { tile, buf, index, .. } => {
                let wanted = self.access(*buf, Access::Read)?;
                self.same_type(self.set_tile(*tile)?.dtype, wanted, &format!("store of {tile}"))?;
                self.apart(*buf, index, place)?;
            }
            TileStmt::Dot { acc, a, b } => {
                let (sum, a, b) = (self.set_tile(*acc)?, self.set_tile(*a)?, self.set_tile(*b)?);
                if let Some(fault) = sum.dot_fault(a, b) {
                    return Err(format!("{acc}: {fault}"));
                }
            }
        }
        Ok(())
    }

    fn tile(&self, tile: Tile) -> Checked<&TileDecl> {
        self.kernel.tiles.get(tile).ok_or_else(|| format!("{tile} is not declared"))
    }

    fn set_tile(&self, tile: Tile) -> Checked<&TileDecl> {
        match self.set_tiles.contains(&tile) {
            true => self.tile(tile),
            false => Err(format!("{tile} is read before it is set")),
        }
    }
}
