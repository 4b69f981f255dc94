//! Numbers read from texts and written as texts: what Cast does from and to strings.

use crate::abi::Status;

use super::decimal::Decimal;
use super::small::{BF16, F16};
use super::split::trim;
use super::table::State;

/// The element types that texts are read as and made from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    F16,
    BF16,
    F32,
    F64,
    Bool,
    Signed { bytes: usize },
    Unsigned { bytes: usize },
}

impl Number {
    /// The type with this number in ONNX's `TensorProto.DataType`.
    pub fn of(dtype: i64) -> Option<Number> {
        Some(match dtype {
            1 => Number::F32,
            2 => Number::Unsigned { bytes: 1 },
            3 => Number::Signed { bytes: 1 },
            4 => Number::Unsigned { bytes: 2 },
            5 => Number::Signed { bytes: 2 },
            6 => Number::Signed { bytes: 4 },
            7 => Number::Signed { bytes: 8 },
            9 => Number::Bool,
            10 => Number::F16,
            11 => Number::F64,
            12 => Number::Unsigned { bytes: 4 },
            13 => Number::Unsigned { bytes: 8 },
            16 => Number::BF16,
            _ => return None,
        })
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Number::Bool => 1,
            Number::F16 | Number::BF16 => 2,
            Number::F32 => 4,
            Number::F64 => 8,
            Number::Signed { bytes } | Number::Unsigned { bytes } => bytes,
        }
    }

    /// Writes the number that a text is to an element.
    fn parse(self, text: &[u8], element: &mut [u8]) -> Result<(), Status> {
        let text = std::str::from_utf8(trim(text)).map_err(|_| Status::BAD_TEXT)?;
        let text = number_of_truth(text).unwrap_or(text);
        match self {
            Number::F32 => store(element, float::<f32>(text)?.to_ne_bytes()),
            Number::F64 => store(element, float::<f64>(text)?.to_ne_bytes()),
            Number::F16 => store(element, F16.narrow(float(text)?).to_ne_bytes()),
            Number::BF16 => store(element, BF16.narrow(float(text)?).to_ne_bytes()),
            Number::Bool => store(element, [u8::from(float::<f64>(text)? != 0.0)]),
            Number::Signed { bytes } | Number::Unsigned { bytes } => {
                let bits = 8 * bytes as u32;
                let (least, most) = match self {
                    Number::Signed { .. } => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
                    _ => (0, (1_i128 << bits) - 1),
                };
                let value = integer(text)?;
                if value < least || value > most {
                    return Err(Status::BAD_TEXT);
                }
                match bytes {
                    1 => store(element, (value as u8).to_ne_bytes()),
                    2 => store(element, (value as u16).to_ne_bytes()),
                    4 => store(element, (value as u32).to_ne_bytes()),
                    _ => store(element, (value as u64).to_ne_bytes()),
                }
            }
        }
    }

    /// Writes an element as text.
    fn format(self, element: &[u8], out: &mut Decimal) -> Result<(), Status> {
        match self {
            Number::F32 => out.f32(f32::from_ne_bytes(load(element)?)),
            Number::F64 => out.f64(f64::from_ne_bytes(load(element)?)),
            Number::F16 => out.small(F16, u16::from_ne_bytes(load(element)?)),
            Number::BF16 => out.small(BF16, u16::from_ne_bytes(load(element)?)),
            Number::Bool => out.text(if load(element)? == [0] { "False" } else { "True" }),
            Number::Signed { bytes } => out.integer(match bytes {
                1 => i128::from(i8::from_ne_bytes(load(element)?)),
                2 => i128::from(i16::from_ne_bytes(load(element)?)),
                4 => i128::from(i32::from_ne_bytes(load(element)?)),
                _ => i128::from(i64::from_ne_bytes(load(element)?)),
            }),
            Number::Unsigned { bytes } => out.integer(match bytes {
                1 => i128::from(u8::from_ne_bytes(load(element)?)),
                2 => i128::from(u16::from_ne_bytes(load(element)?)),
                4 => i128::from(u32::from_ne_bytes(load(element)?)),
                _ => i128::from(u64::from_ne_bytes(load(element)?)),
            }),
        }
        Ok(())
    }
}

fn store<const N: usize>(element: &mut [u8], value: [u8; N]) -> Result<(), Status> {
    *element.first_chunk_mut::<N>().ok_or(Status::BAD_SIZE)? = value;
    Ok(())
}

fn load<const N: usize>(element: &[u8]) -> Result<[u8; N], Status> {
    element.first_chunk::<N>().copied().ok_or(Status::BAD_SIZE)
}

/// Decimal or scientific, or the name of an infinity or of no number at all, in capitals or not. The standard library
/// reads just these, each rounded once.
fn float<T: std::str::FromStr>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|_| Status::BAD_TEXT)
}

/// A whole number exactly, another cut to its whole part. Beyond all integer types it is any number beyond.
fn integer(text: &str) -> Result<i128, Status> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        let value = digits
            .iter()
            .fold(0_i128, |value, digit| value.saturating_mul(10).saturating_add(i128::from(digit - b'0')));
        return Ok(if negative { -value } else { value });
    }
    let value = float::<f64>(text)?;
    if value.is_finite() { Ok(value as i128) } else { Err(Status::BAD_TEXT) }
}

/// The number that a text of a bool is, so that casts from bool through texts give what a direct one gives.
fn number_of_truth(text: &str) -> Option<&'static str> {
    let names = [("true", "1"), ("false", "0")];
    names.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, number)| number)
}

impl State {
    /// The numbers that texts are. White space on either side is passed over. `out` has the bytes of the elements.
    pub fn parse(&self, numbers: &[i64], out: &mut [u8], to: Number) -> Result<(), Status> {
        self.each(numbers.iter().zip(out.chunks_exact_mut(to.bytes())), |(&number, element)| {
            to.parse(self.read(number)?, element)
        })
    }

    /// The texts of numbers: integers in decimal, the shortest text that reads as the same float, `True` and `False`.
    pub fn format(&self, elements: &[u8], out: &mut [i64], from: Number) -> Result<(), Status> {
        self.each(elements.chunks_exact(from.bytes()).zip(out), |(element, out)| {
            let mut text = Decimal::new();
            from.format(element, &mut text)?;
            *out = self.intern(text.bytes())?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<const N: usize>(dtype: i64, text: &str) -> Result<[u8; N], Status> {
        let mut element = [0xaa; N];
        Number::of(dtype).unwrap().parse(text.as_bytes(), &mut element).map(|()| element)
    }

    #[test]
    fn floats() {
        let f32_of = |text| parse(1, text).map(f32::from_ne_bytes);
        let good = [
            ("1", 1.0),
            (" 1.5e3\n", 1500.0),
            ("-.5", -0.5),
            ("+5.", 5.0),
            ("1E8", 1e8),
            ("1e-50", 0.0),
            ("1e50", f32::INFINITY),
        ];
        for (text, value) in good {
            assert_eq!(f32_of(text), Ok(value), "{text}");
        }
        for text in ["inf", "INF", "+INF", "Infinity", "+iNfInItY", "\u{a0}inf "] {
            assert_eq!(f32_of(text), Ok(f32::INFINITY), "{text}");
        }
        for text in ["nan", "NaN", "+NAN", "-nan"] {
            assert!(f32_of(text).unwrap().is_nan(), "{text}");
        }
        for text in ["", " ", ".", "e5", "1e", "1_0", "0x10", "1 2", "--1", "abc", "1,5", "1\0", "infin", "١"]
        {
            for dtype in [1, 3, 7, 9, 10, 11, 13, 16] {
                assert_eq!(parse::<8>(dtype, text), Err(Status::BAD_TEXT), "{text}");
            }
        }
        // The middle of two f32, and more than that only in a far digit.
        assert_eq!(f32_of("16777217"), Ok(16777216.0));
        assert_eq!(f32_of(&format!("16777217.{}1", "0".repeat(900))), Ok(16777218.0));
        assert_eq!(parse(10, "65504").map(u16::from_ne_bytes), Ok(0x7bff));
        assert_eq!(parse(10, "1e9").map(u16::from_ne_bytes), Ok(0x7c00));
        assert_eq!(parse(16, "-1").map(u16::from_ne_bytes), Ok(0xbf80));
        assert_eq!(parse(11, "5e-324").map(f64::from_ne_bytes), Ok(5e-324));
    }

    #[test]
    fn integers() {
        assert_eq!(parse(3, "-128").map(i8::from_ne_bytes), Ok(-128));
        assert_eq!(parse(3, " 1.27e2").map(i8::from_ne_bytes), Ok(127));
        assert_eq!(parse(2, "255.9").map(u8::from_ne_bytes), Ok(255));
        assert_eq!(parse(2, "-0.9").map(u8::from_ne_bytes), Ok(0));
        assert_eq!(parse(7, "-9223372036854775808").map(i64::from_ne_bytes), Ok(i64::MIN));
        assert_eq!(parse(13, "18446744073709551615").map(u64::from_ne_bytes), Ok(u64::MAX));
        assert_eq!(parse(6, "+0002147483647").map(i32::from_ne_bytes), Ok(i32::MAX));
        let many = "9".repeat(1000);
        let beyond = [
            (3, "128"),
            (3, "-129"),
            (2, "256"),
            (2, "-1"),
            (13, "18446744073709551616"),
            (7, "1e19"),
            (7, "-1e400"),
            (13, &many),
        ];
        for (dtype, text) in beyond {
            assert_eq!(parse::<8>(dtype, text), Err(Status::BAD_TEXT), "{text}");
        }
        for text in ["inf", "-inf", "nan"] {
            assert_eq!(parse::<8>(7, text), Err(Status::BAD_TEXT), "{text}");
        }
    }

    #[test]
    fn truths() {
        for (text, value) in
            [("1", 1), ("0", 0), ("-0.0", 0), ("True", 1), (" FALSE ", 0), ("0.1", 1), ("nan", 1)]
        {
            assert_eq!(parse(9, text), Ok([value]), "{text}");
        }
        assert_eq!(parse::<1>(9, "yes"), Err(Status::BAD_TEXT));
        // Texts of bools are numbers, too.
        assert_eq!(parse(1, "True").map(f32::from_ne_bytes), Ok(1.0));
        assert_eq!(parse(11, "false").map(f64::from_ne_bytes), Ok(0.0));
        assert_eq!(parse(10, "TRUE").map(u16::from_ne_bytes), Ok(0x3c00));
        assert_eq!(parse(3, "true").map(i8::from_ne_bytes), Ok(1));
        assert_eq!(parse(13, " False").map(u64::from_ne_bytes), Ok(0));
    }

    #[test]
    fn other_types_are_refused() {
        for dtype in [-1, 0, 8, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 99, i64::MAX] {
            assert_eq!(Number::of(dtype), None);
        }
    }
}
