//! The boxes of a file, as the library reads them (ITU-T T.800, I.4).

use super::cost::number;

/// Boxes one after the other: the type and the content of each. Ends where one is cut.
pub(super) struct Boxes<'s> {
    rest: &'s [u8],
}

impl<'s> Boxes<'s> {
    pub(super) fn of(stream: &'s [u8]) -> Boxes<'s> {
        Boxes { rest: stream }
    }
}

impl<'s> Iterator for Boxes<'s> {
    type Item = (&'s [u8], &'s [u8]);

    fn next(&mut self) -> Option<(&'s [u8], &'s [u8])> {
        let kind = self.rest.get(4..8)?;
        let (head, length) = match number(self.rest, 0, 4)? {
            0 => (8, self.rest.len()),
            1 => (16, usize::try_from(number(self.rest, 8, 8)?).ok()?),
            length => (8, length as usize),
        };
        let content = self.rest.get(head..length)?;
        self.rest = &self.rest[length..];
        Some((kind, content))
    }
}
