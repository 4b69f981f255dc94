//! Numbers as text, the way numpy writes them.

use std::fmt::Write;

use super::small::Small;

/// Bytes of the longest text that fits: of an f64 in scientific notation, of an integer of 64 bits, and some for
/// digits on the way there.
const MOST: usize = 48;

/// A short text. What does not fit is left out.
pub(super) struct Decimal {
    bytes: [u8; MOST],
    size: usize,
}

impl Write for Decimal {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.size + text.len();
        self.bytes.get_mut(self.size..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.size = end;
        Ok(())
    }
}

/// Where positional notation ends, and scientific begins.
const F64_END: f64 = 1e16;
const F32_END: f64 = 1e6;
const SMALL_END: f64 = 1e3;

impl Decimal {
    pub(super) fn new() -> Decimal {
        Decimal { bytes: [0; MOST], size: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.size).unwrap_or_default()
    }

    /// These functions write less than fits, so none fails.
    pub(super) fn text(&mut self, text: &str) {
        let _ = self.write_str(text);
    }

    pub(super) fn integer(&mut self, value: i128) {
        let _ = write!(self, "{value}");
    }

    pub(super) fn f64(&mut self, value: f64) {
        let mut digits = Decimal::new();
        let _ = write!(digits, "{value:e}");
        let even = Decimal::rounded(value, digits.precision());
        if even.read() == Some(value) {
            digits = even;
        }
        self.float(value, digits.bytes(), F64_END);
    }

    pub(super) fn f32(&mut self, value: f32) {
        let mut digits = Decimal::new();
        let _ = write!(digits, "{value:e}");
        let even = Decimal::rounded(f64::from(value), digits.precision());
        if even.read() == Some(value) {
            digits = even;
        }
        self.float(f64::from(value), digits.bytes(), F32_END);
    }

    /// With `precision` digits behind the point. In the middle between two, the even one is taken, where the shortest digits
    /// of the standard library are the upper one.
    fn rounded(value: f64, precision: usize) -> Decimal {
        let mut digits = Decimal::new();
        let _ = write!(digits, "{value:.precision$e}");
        digits
    }

    /// Digits behind the point.
    fn precision(&self) -> usize {
        let point = self.bytes().iter().position(|&byte| byte == b'.');
        let end = self.bytes().iter().position(|&byte| byte == b'e');
        point.zip(end).map_or(0, |(point, end)| end.saturating_sub(point + 1))
    }

    /// What one more in the last digit is worth.
    fn unit(&self) -> Option<f64> {
        let (_, exponent) = std::str::from_utf8(self.bytes()).ok()?.split_once('e')?;
        let mut unit = Decimal::new();
        let _ = write!(unit, "1e{}", exponent.parse::<i32>().ok()?.checked_sub(self.precision() as i32)?);
        unit.read()
    }

    fn read<T: std::str::FromStr>(&self) -> Option<T> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }

    pub(super) fn small(&mut self, format: Small, bits: u16) {
        let value = format.widen(bits);
        let mut digits = Decimal::new();
        // Of the numbers with fewest digits that read as this one, the nearest. A power of two has numbers twice as close
        // below as above, so that one above it may read as it where a nearer one below does not.
        for precision in 0..6 {
            digits = Decimal::rounded(value, precision);
            let above = digits.unit().map(|unit| Decimal::rounded(value + unit.copysign(value), precision));
            let is = |digits: &Decimal| digits.read().map(|value| format.narrow(value)) == Some(bits);
            if !value.is_finite() || is(&digits) {
                break;
            }
            if let Some(above) = above.filter(is) {
                digits = above;
                break;
            }
        }
        self.float(value, digits.bytes(), SMALL_END);
    }

    /// Lays digits such as `-1.25e-7` out.
    fn float(&mut self, value: f64, scientific: &[u8], end: f64) {
        if value.is_nan() {
            return self.text("nan");
        }
        if value.is_sign_negative() {
            self.text("-");
        }
        if value.is_infinite() {
            return self.text("inf");
        }
        if value == 0.0 {
            return self.text("0.0");
        }
        let text = std::str::from_utf8(scientific).unwrap_or_default().trim_start_matches('-');
        let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (first, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fraction = fraction.trim_end_matches('0');
        let exponent = exponent.parse::<i32>().unwrap_or(0);
        let size = value.abs();
        // The value decides, not its digits: 1e-4 as an f32 is less than that.
        if size < 1e-4 || size >= end {
            self.text(first);
            if !fraction.is_empty() {
                self.text(".");
                self.text(fraction);
            }
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(self, "e{sign}{:02}", exponent.abs());
        } else if exponent < 0 {
            self.text("0.");
            (1..-exponent).for_each(|_| self.text("0"));
            self.text(first);
            self.text(fraction);
        } else {
            let (whole, rest) = fraction.split_at_checked(exponent as usize).unwrap_or((fraction, ""));
            self.text(first);
            self.text(whole);
            (whole.len()..exponent as usize).for_each(|_| self.text("0"));
            self.text(".");
            self.text(if rest.is_empty() { "0" } else { rest });
        }
    }
}
