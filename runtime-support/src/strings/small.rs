//! Floats of 16 bits, whose numbers the runtime reads and writes as f64.

/// A format: a sign, an exponent and `fraction` bits of fraction, 16 bits together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Small {
    fraction: u32,
}

pub(super) const F16: Small = Small { fraction: 10 };
pub(super) const BF16: Small = Small { fraction: 7 };

impl Small {
    /// What an exponent of 0 is stored as; also the exponent of the greatest numbers.
    fn bias(self) -> i32 {
        (1 << (14 - self.fraction)) - 1
    }

    fn infinity(self) -> u16 {
        0x7fff >> self.fraction << self.fraction
    }

    /// The nearest number, of two the even one.
    pub(super) fn narrow(self, value: f64) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        if value.is_nan() {
            return sign | self.infinity() | 1 << (self.fraction - 1);
        }
        if value.is_infinite() {
            return sign | self.infinity();
        }
        let bits = value.abs().to_bits();
        let (exponent, lowest) = ((bits >> 52) as i32 - 1023, 1 - self.bias());
        let whole = bits & ((1 << 52) - 1) | 1 << 52;
        // Below the lowest exponent, numbers have fewer bits. With 54 dropped, nothing is left to round up.
        let dropped = (52 - self.fraction + (lowest - exponent).max(0) as u32).min(54);
        let (kept, rest, half) = (whole >> dropped, whole & ((1 << dropped) - 1), 1 << (dropped - 1));
        let up = rest > half || (rest == half && kept & 1 == 1);
        // A carry goes into the exponent; the uppermost bit that is kept is the exponent's lowest one.
        let base = ((exponent - lowest).max(0) as u64) << self.fraction;
        let rounded = base + kept + u64::from(up);
        sign | rounded.min(u64::from(self.infinity())) as u16
    }

    pub(super) fn widen(self, bits: u16) -> f64 {
        let fraction = u64::from(bits) & ((1 << self.fraction) - 1);
        let exponent = i32::from((bits & 0x7fff) >> self.fraction);
        let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
        let lowest = 1 - self.bias();
        let value = if bits & 0x7fff > self.infinity() {
            f64::NAN
        } else if bits & 0x7fff == self.infinity() {
            f64::INFINITY
        } else if exponent == 0 {
            fraction as f64 * power(lowest - self.fraction as i32)
        } else {
            (fraction | 1 << self.fraction) as f64 * power(exponent - 1 + lowest - self.fraction as i32)
        };
        if bits & 0x8000 != 0 { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for (format, one) in [(F16, 0x3c00), (BF16, 0x3f80)] {
            assert_eq!(format.narrow(1.0), one);
            for bits in 0..=u16::MAX {
                let value = format.widen(bits);
                match value.is_nan() {
                    true => assert!(format.widen(format.narrow(value)).is_nan()),
                    false => assert_eq!(format.narrow(value), bits),
                }
                if format == BF16 && !value.is_nan() {
                    assert_eq!(value, f64::from(f32::from_bits(u32::from(bits) << 16)));
                }
            }
        }
    }

    #[test]
    fn between_numbers_the_nearest_is_taken() {
        for format in [F16, BF16] {
            for bits in 0..format.infinity() - 1 {
                let (low, high) = (format.widen(bits), format.widen(bits + 1));
                let middle = f64::midpoint(low, high);
                let even = bits + (bits & 1);
                assert_eq!(format.narrow(middle), even);
                assert_eq!(format.narrow(-middle), even | 0x8000);
                assert_eq!(format.narrow(middle.next_down()), bits);
                assert_eq!(format.narrow(middle.next_up()), bits + 1);
            }
        }
        assert_eq!(F16.narrow(65519.9), F16.infinity() - 1);
        assert_eq!(F16.narrow(65520.0), F16.infinity());
        assert_eq!(F16.narrow(1e300), F16.infinity());
        assert_eq!(F16.narrow(f64::from_bits(1)), 0);
        assert_eq!(BF16.narrow(-f64::MIN_POSITIVE), 0x8000);
        assert_eq!(F16.widen(1), 2_f64.powi(-24));
        assert_eq!(F16.widen(0x7bff), 65504.0);
    }
}
