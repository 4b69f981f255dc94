//! The index of unwind records (`.eh_frame_hdr`), by which unwinders find the record of an address.

use onnxc_machine::unwind::RELATIVE_32;

/// Bytes of its header, and of a row.
pub(super) const HEADER_BYTES: u64 = 12;
pub(super) const ROW_BYTES: u64 = 8;

/// The one encoding of addresses in records that is known.
const DISTANCE: u8 = RELATIVE_32;

/// Offsets of the records of functions; `None` where a record is of another form.
fn records(data: &[u8]) -> Option<Vec<usize>> {
    let word = |at: usize| Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?));
    let (mut at, mut rows, mut known) = (0, vec![], false);
    while at < data.len() {
        let length = word(at)?;
        if length == 0 {
            break;
        }
        if length >= 0xffff_fff0 {
            return None;
        }
        match word(at + 4)? {
            0 => known = encoding(data.get(at + 8..)?) == Some(DISTANCE),
            _ if known => rows.push(at),
            _ => return None,
        }
        at = at.checked_add(4 + length as usize)?;
    }
    Some(rows)
}

/// The encoding of addresses that a common record gives, whose bytes behind its identity these are.
fn encoding(record: &[u8]) -> Option<u8> {
    let (_, rest) = record.split_first()?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let (augmentation, rest) = (&rest[..end], &rest[end + 1..]);
    let mut at = 0;
    let mut skip = || {
        while rest.get(at)? & 0x80 != 0 {
            at += 1;
        }
        at += 1;
        Some(())
    };
    // Factors of code and data, and the register of the return address.
    (0..3).try_for_each(|_| skip())?;
    match augmentation {
        b"zR" => {
            skip()?;
            rest.get(at).copied()
        }
        _ => None,
    }
}

/// Number of rows; `None` where no index is made.
pub(super) fn count(data: &[u8]) -> Option<usize> {
    records(data).map(|rows| rows.len())
}

/// The index at address `place` of the records at `frame`.
pub(super) fn index(data: &[u8], frame: u64, place: u64) -> Result<Vec<u8>, String> {
    let records = records(data).ok_or("records of an unknown form")?;
    let distance = |to: u64| i32::try_from(to.wrapping_sub(place) as i64).map_err(|_| "too far".to_string());
    let mut rows = vec![];
    for &at in &records {
        let field =
            data.get(at + 8..).and_then(|bytes| bytes.first_chunk()).ok_or("a record is cut short")?;
        let start = (frame + at as u64 + 8).wrapping_add_signed(i64::from(i32::from_le_bytes(*field)));
        rows.push((distance(start)?, distance(frame + at as u64)?));
    }
    rows.sort_unstable();
    // Version 1; the records by distance, a count of 32 bits, rows by distances from here.
    let mut bytes = vec![1, DISTANCE, 0x03, 0x3b];
    let to_frame = i32::try_from(frame.wrapping_sub(place + 4) as i64).map_err(|_| "too far")?;
    bytes.extend(to_frame.to_le_bytes());
    bytes.extend((rows.len() as u32).to_le_bytes());
    for (start, record) in rows {
        bytes.extend(start.to_le_bytes());
        bytes.extend(record.to_le_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A common record, and those of two functions, the later one first.
    fn sample() -> Vec<u8> {
        let mut data = vec![];
        data.extend(16u32.to_le_bytes());
        data.extend(0u32.to_le_bytes());
        data.extend([1, b'z', b'R', 0, 1, 0x78, 16, 1, DISTANCE, 0, 0, 0]);
        for (at, start) in [(20u32, 0x900i32), (40, 0x100)] {
            data.extend(16u32.to_le_bytes());
            data.extend((at + 4).to_le_bytes());
            data.extend(start.to_le_bytes());
            data.extend(32u32.to_le_bytes());
            data.extend([0; 4]);
        }
        data.extend(0u32.to_le_bytes());
        data
    }

    #[test]
    fn rows_are_sorted() {
        let data = sample();
        assert_eq!(count(&data), Some(2));
        let index = index(&data, 0x1000, 0x2000).unwrap();
        let words: Vec<i32> =
            index[4..].chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
        let starts = [0x1000 + 48 + 0x100 - 0x2000, 0x1000 + 28 + 0x900 - 0x2000];
        assert_eq!(
            words,
            [0x1000 - 0x2004, 2, starts[0], 0x1000 + 40 - 0x2000, starts[1], 0x1000 + 20 - 0x2000]
        );
    }

    #[test]
    fn other_forms_have_no_index() {
        let mut data = sample();
        data[16] = 0;
        assert_eq!(count(&data), None);
        assert_eq!(count(&data[..30]), None);
        assert_eq!(count(&[]), Some(0));
    }
}
