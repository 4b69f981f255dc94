//! Tables of symbols, cheap to copy: a body starts with the symbols of the graph around it.

use std::ops::Index;
use std::sync::Arc;

use cranelift_entity::EntityRef;

use super::dim::Sym;

/// Symbols of a shared piece.
const PIECE: usize = 32;

/// A symbolic dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// `dim_param` of the model, or `?N` for a dim without a name.
    pub name: String,
}

/// The symbols of a graph, by their numbers. What has been added long ago is shared with copies: thousands of bodies have
/// thousands of symbols each, nearly all of them alike.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Symbols {
    shared: Vec<Arc<[Symbol; PIECE]>>,
    /// Fewer than a piece.
    last: Vec<Symbol>,
}

impl Symbols {
    pub fn push(&mut self, symbol: Symbol) -> Sym {
        let sym = Sym::new(self.len());
        self.last.push(symbol);
        if let Ok(piece) =
            <[Symbol; PIECE]>::try_from(std::mem::take(&mut self.last)).map_err(|few| self.last = few)
        {
            self.shared.push(Arc::new(piece));
        }
        sym
    }

    /// Gives a symbol of this table another name; copies keep theirs.
    pub fn rename(&mut self, sym: Sym, name: String) {
        let at = sym.index();
        match self.shared.get_mut(at / PIECE) {
            Some(piece) => Arc::make_mut(piece)[at % PIECE].name = name,
            None => self.last[at % PIECE].name = name,
        }
    }

    pub fn len(&self) -> usize {
        self.shared.len() * PIECE + self.last.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, sym: Sym) -> Option<&Symbol> {
        let at = sym.index();
        match self.shared.get(at / PIECE) {
            Some(piece) => Some(&piece[at % PIECE]),
            None => self.last.get(at - self.shared.len() * PIECE),
        }
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = Sym> + ExactSizeIterator + use<> {
        (0..self.len()).map(Sym::new)
    }

    pub fn values(&self) -> impl Iterator<Item = &Symbol> {
        self.shared.iter().flat_map(|piece| piece.iter()).chain(&self.last)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Sym, &Symbol)> {
        self.keys().zip(self.values())
    }
}

impl Index<Sym> for Symbols {
    type Output = Symbol;

    fn index(&self, sym: Sym) -> &Symbol {
        self.get(sym).unwrap_or_else(|| panic!("{sym} of {} symbols", self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_grow_by_themselves() {
        let symbol = |at: usize| Symbol { name: format!("n{at}") };
        for count in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let mut symbols = Symbols::default();
            for at in 0..count {
                assert_eq!(symbols.push(symbol(at)), Sym::new(at));
            }
            let mut copy = symbols.clone();
            assert_eq!(copy, symbols);
            copy.push(symbol(1000));
            symbols.push(symbol(2000));
            assert_eq!((copy.len(), symbols.len()), (count + 1, count + 1));
            assert_eq!((&copy[Sym::new(count)], &symbols[Sym::new(count)]), (&symbol(1000), &symbol(2000)));
            assert!(
                copy.iter()
                    .take(count)
                    .all(|(sym, own)| *own == symbol(sym.index()) && symbols.get(sym) == Some(own))
            );
            assert_eq!(copy.get(Sym::new(count + 1)), None);
            assert_eq!(copy.keys().len(), copy.values().count());
            for sym in [Sym::new(0), Sym::new(count)] {
                let before = copy[sym].clone();
                symbols.rename(sym, "new".into());
                assert_eq!((symbols[sym].name.as_str(), &copy[sym]), ("new", &before));
            }
        }
    }
}
