//! The memory of an interpreted run: blocks at addresses far apart. Every access is checked against them.

use std::collections::BTreeMap;

use crate::host::ir::Type;

/// What a block holds before anything is written to it.
const POISON: u8 = 0xa5;
/// Bytes between blocks, at least.
const GAP: u64 = 1 << 16;

struct MemoryBlock {
    bytes: Vec<u8>,
    writable: bool,
}

/// Blocks by their addresses.
pub struct Memory {
    blocks: BTreeMap<u64, MemoryBlock>,
    next: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { blocks: BTreeMap::new(), next: GAP }
    }
}

impl Memory {
    /// A new block of `bytes` bytes, at a multiple of 64.
    pub fn block(&mut self, bytes: usize) -> u64 {
        self.add(vec![POISON; bytes], true)
    }

    /// A new block with this content.
    pub fn with(&mut self, bytes: Vec<u8>) -> u64 {
        self.add(bytes, true)
    }

    /// A new block with this content, which no run may change.
    pub fn constant(&mut self, bytes: Vec<u8>) -> u64 {
        self.add(bytes, false)
    }

    fn add(&mut self, bytes: Vec<u8>, writable: bool) -> u64 {
        let address = self.next;
        self.next = (address + bytes.len() as u64).next_multiple_of(GAP) + GAP;
        self.blocks.insert(address, MemoryBlock { bytes, writable });
        address
    }

    /// Takes a block away that begins here; gives its bytes.
    pub fn remove(&mut self, address: u64) -> Option<Vec<u8>> {
        self.blocks.remove(&address).map(|block| block.bytes)
    }

    /// The start of the block around `bytes` at an address, and the offset in it.
    fn find(&self, address: u64, bytes: usize) -> Result<(u64, usize), String> {
        let block = self.blocks.range(..=address).next_back();
        match block {
            Some((&start, block)) if (address - start) as usize + bytes <= block.bytes.len() => {
                Ok((start, (address - start) as usize))
            }
            _ => Err(format!("{bytes} bytes at {address:#x} are in no block")),
        }
    }

    pub fn read(&self, address: u64, bytes: usize) -> Result<&[u8], String> {
        if bytes == 0 {
            return Ok(&[]);
        }
        let (start, offset) = self.find(address, bytes)?;
        Ok(&self.blocks[&start].bytes[offset..offset + bytes])
    }

    /// The bytes from an address to the end of its block; none behind every block.
    pub fn rest(&self, address: u64) -> &[u8] {
        match self.blocks.range(..=address).next_back() {
            Some((&start, block)) => block.bytes.get((address - start) as usize..).unwrap_or(&[]),
            None => &[],
        }
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (start, offset) = self.find(address, bytes.len())?;
        match self.blocks.get_mut(&start) {
            Some(block) if block.writable => {
                block.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(format!("{} bytes at {address:#x} are constant", bytes.len())),
        }
    }

    pub fn load(&self, ty: Type, address: u64) -> Result<i64, String> {
        let bytes = self.read(address, ty.bytes())?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = i64::from_le_bytes(word);
        // Signed, as values are compared.
        Ok(match ty {
            Type::I64 | Type::Ptr => word,
            Type::I32 => i64::from(word as i32),
            Type::I8 => i64::from(word as i8),
        })
    }

    pub fn store(&mut self, ty: Type, address: u64, value: i64) -> Result<(), String> {
        self.write(address, &value.to_le_bytes()[..ty.bytes()])
    }

    /// C `memcpy`: the ranges must not overlap.
    pub fn copy(&mut self, to: u64, from: u64, bytes: usize) -> Result<(), String> {
        let apart = to.abs_diff(from) >= bytes as u64;
        if !apart {
            return Err(format!("{bytes} bytes are copied from {from:#x} to {to:#x}, which overlap"));
        }
        let copied = self.read(from, bytes)?.to_vec();
        self.write(to, &copied)
    }
}
