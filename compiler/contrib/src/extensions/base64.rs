//! Bytes that attributes have as text.

/// The bytes of a text in base64 (RFC 4648, section 4), padded; `None` for any other.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"=").map_or(text, |rest| rest.strip_suffix(b"=").unwrap_or(rest));
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0;
        for &digit in group {
            bits = bits << 6
                | match digit {
                    b'A'..=b'Z' => u32::from(digit - b'A'),
                    b'a'..=b'z' => u32::from(digit - b'a') + 26,
                    b'0'..=b'9' => u32::from(digit - b'0') + 52,
                    b'+' => 62,
                    b'/' => 63,
                    _ => return None,
                };
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend(bits.to_be_bytes().iter().skip(1).take(group.len() - 1));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn texts_of_whole_groups_are_decoded() {
        let of = |text: &str| decode(text.as_bytes());
        assert_eq!(of("").as_deref(), Some(&b""[..]));
        assert_eq!(of("Zm9v").as_deref(), Some(&b"foo"[..]));
        assert_eq!(of("Zm9vYg==").as_deref(), Some(&b"foob"[..]));
        assert_eq!(of("Zm9vYmE=").as_deref(), Some(&b"fooba"[..]));
        assert_eq!(of("+/+/").as_deref(), Some(&[0xfb, 0xff, 0xbf][..]));
        for text in ["Zm9", "Zm9v=", "Z===", "Zm9-", "Zm=v", "===="] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
