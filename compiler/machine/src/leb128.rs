//! LEB128: integers as groups of 7 bits, lowest first, in as few bytes as hold them (DWARF 4, section 7.6).

pub fn unsigned(mut value: u64) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

pub fn signed(mut value: i64) -> Vec<u8> {
    let mut bytes = vec![];
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        // The last byte has the sign as its highest bit.
        if value == -i64::from(low & 0x40 != 0) {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the standard.
    #[test]
    fn numbers_of_the_standard() {
        for (value, bytes) in
            [(2, &[2][..]), (127, &[127]), (128, &[0x80, 1]), (129, &[0x81, 1]), (12857, &[0xb9, 0x64])]
        {
            assert_eq!(unsigned(value), bytes);
        }
        for (value, bytes) in [
            (2, &[2][..]),
            (-2, &[0x7e]),
            (127, &[0xff, 0]),
            (-127, &[0x81, 0x7f]),
            (128, &[0x80, 1]),
            (-128, &[0x80, 0x7f]),
            (129, &[0x81, 1]),
            (-129, &[0xff, 0x7e]),
        ] {
            assert_eq!(signed(value), bytes);
        }
    }
}
