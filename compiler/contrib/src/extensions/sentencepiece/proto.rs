//! What a serialized `ModelProto` of sentencepiece has, as `sentencepiece_model.proto` of that library describes it.

/// What a piece is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PieceKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'m> {
    pub(super) text: &'m [u8],
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// How texts become pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
    Word,
    Characters,
}

/// The fields of a model that tokenizing needs.
#[derive(Debug)]
pub(super) struct Model<'m> {
    pub(super) pieces: Vec<Piece<'m>>,
    pub(super) algorithm: Algorithm,
    pub(super) treat_whitespace_as_suffix: bool,
    pub(super) byte_fallback: bool,
    pub(super) start: &'m [u8],
    pub(super) end: &'m [u8],
    pub(super) unknown_surface: &'m [u8],
    pub(super) map: &'m [u8],
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
    /// Whether texts of tokens are normalized once more.
    pub(super) has_denormalizer: bool,
}

/// The value of a field.
#[derive(Clone, Copy)]
enum Value<'m> {
    Number(u64),
    Fixed(u32),
    Bytes(&'m [u8]),
    /// Of eight bytes, which no field has that is read here.
    Wide,
}

/// The fields of a message in their order; an error where the bytes are none.
struct Fields<'m>(&'m [u8]);

const BROKEN: &str = "it is not a serialized ModelProto of sentencepiece";

impl<'m> Fields<'m> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, bytes: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Value<'m>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Wide)?,
            2 => {
                let size = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(size)?)
            }
            5 => Value::Fixed(u32::from_le_bytes(*self.take(4)?.first_chunk()?)),
            _ => return None,
        };
        (key >> 3 != 0).then_some((key >> 3, value))
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u64, Value<'m>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(BROKEN.to_owned()))
    }
}

impl<'m> Value<'m> {
    fn bytes(self) -> Result<&'m [u8], String> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(BROKEN.to_owned()),
        }
    }

    fn number(self) -> Result<u64, String> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(BROKEN.to_owned()),
        }
    }

    fn flag(self) -> Result<bool, String> {
        Ok(self.number()? != 0)
    }
}

impl<'m> Model<'m> {
    pub(super) fn of(bytes: &'m [u8]) -> Result<Model<'m>, String> {
        let mut model = Model {
            pieces: vec![],
            algorithm: Algorithm::Unigram,
            treat_whitespace_as_suffix: false,
            byte_fallback: false,
            start: b"<s>",
            end: b"</s>",
            unknown_surface: " \u{2047} ".as_bytes(),
            map: &[],
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
            has_denormalizer: false,
        };
        for field in Fields(bytes) {
            match field? {
                (1, value) => {
                    let piece = Piece::of(value.bytes()?, model.pieces.len())?;
                    model.pieces.push(piece);
                }
                (2, value) => model.trainer(value.bytes()?)?,
                (3, value) => model.normalizer(value.bytes()?)?,
                (5, value) => {
                    for field in Fields(value.bytes()?) {
                        model.has_denormalizer |= matches!(field?, (2, Value::Bytes([_, ..])));
                    }
                }
                _ => {}
            }
        }
        Ok(model)
    }

    fn trainer(&mut self, bytes: &'m [u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (3, value) => {
                    self.algorithm = match value.number()? {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        3 => Algorithm::Word,
                        4 => Algorithm::Characters,
                        other => return Err(format!("its model_type is {other}; there are 1 to 4")),
                    }
                }
                (24, value) => self.treat_whitespace_as_suffix = value.flag()?,
                (35, value) => self.byte_fallback = value.flag()?,
                (44, value) => self.unknown_surface = value.bytes()?,
                // An empty name is that of the default.
                (46, value) if !value.bytes()?.is_empty() => self.start = value.bytes()?,
                (47, value) if !value.bytes()?.is_empty() => self.end = value.bytes()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, bytes: &'m [u8]) -> Result<(), String> {
        for field in Fields(bytes) {
            match field? {
                (2, value) => self.map = value.bytes()?,
                (3, value) => self.add_dummy_prefix = value.flag()?,
                (4, value) => self.remove_extra_whitespaces = value.flag()?,
                (5, value) => self.escape_whitespaces = value.flag()?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'m> Piece<'m> {
    fn of(bytes: &'m [u8], at: usize) -> Result<Piece<'m>, String> {
        let mut piece = Piece { text: &[], score: 0.0, kind: PieceKind::Normal };
        for field in Fields(bytes) {
            match field? {
                (1, value) => piece.text = value.bytes()?,
                (2, Value::Fixed(bits)) => piece.score = f32::from_bits(bits),
                (2, _) => return Err(BROKEN.to_owned()),
                (3, value) => {
                    piece.kind = match value.number()? {
                        1 => PieceKind::Normal,
                        2 => PieceKind::Unknown,
                        3 => PieceKind::Control,
                        4 => PieceKind::UserDefined,
                        5 => PieceKind::Unused,
                        6 => PieceKind::Byte,
                        other => return Err(format!("the type of piece {at} is {other}; there are 1 to 6")),
                    }
                }
                _ => {}
            }
        }
        if piece.text.is_empty() {
            return Err(format!("piece {at} has no text"));
        }
        if piece.score.is_nan() {
            return Err(format!("the score of piece {at} is not a number"));
        }
        Ok(piece)
    }
}
