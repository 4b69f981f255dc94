//! The order of texts, and the places of numbers.

use crate::abi::Status;

use super::table::State;

/// Up to this number, keys are compared one by one.
const FEW: usize = 8;

/// A text to be sorted.
#[derive(Clone, Copy)]
struct Key {
    /// Its first bytes, which decide most comparisons: the first is the uppermost, those behind the end are 0.
    start: u64,
    /// Where it is in the input.
    at: usize,
}

fn start(text: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(text).for_each(|(to, &from)| *to = from);
    u64::from_be_bytes(bytes)
}

impl State {
    /// The rank of each text among those that are there, each counted once, in ascending order of their bytes; for UTF-8
    /// that is the order of its characters.
    pub fn order(&self, numbers: &[i64], out: &mut [i64]) -> Result<(), Status> {
        let mut keys = self.memory().array(numbers.len(), Key { start: 0, at: 0 })?;
        self.each(numbers.iter().zip(keys.iter_mut()).enumerate(), |(at, (&number, key))| {
            *key = Key { start: start(self.read(number)?), at };
            Ok(())
        })?;
        // All numbers have texts, or `each` had failed.
        let number = |key: &Key| numbers.get(key.at).copied().unwrap_or(-1);
        let text = |key: &Key| self.text(number(key)).unwrap_or_default();
        keys.sort_unstable_by(|a, b| {
            let numbers = number(a).cmp(&number(b));
            // Equal numbers are equal texts. Only constants that are broken have equal texts of different numbers.
            let texts = || if numbers.is_eq() { numbers } else { text(a).cmp(text(b)).then(numbers) };
            a.start.cmp(&b.start).then_with(texts)
        });
        let (mut rank, mut before) = (-1, None);
        for key in &*keys {
            if before != Some(number(key)) {
                rank += 1;
                before = Some(number(key));
            }
            if let Some(out) = out.get_mut(key.at) {
                *out = rank;
            }
        }
        Ok(())
    }

    /// Where each number is among `keys`, the last place of several, or -1. Numbers need no texts here.
    pub fn find_keys(&self, keys: &[i64], numbers: &[i64], out: &mut [i64]) -> Result<(), Status> {
        let outs = numbers.iter().zip(out);
        if let Some(&base) = keys.first()
            && base.checked_add(keys.len() as i64).is_some()
            && keys.iter().zip(base..).all(|(&key, number)| key == number)
        {
            for (&number, out) in outs {
                let at = number.checked_sub(base);
                *out = at.filter(|&at| at >= 0 && at < keys.len() as i64).unwrap_or(-1);
            }
            return Ok(());
        }
        if keys.len() <= FEW {
            for (number, out) in outs {
                *out = keys.iter().rposition(|key| key == number).map_or(-1, |at| at as i64);
            }
            return Ok(());
        }
        // A map of places, -1 where there is none: at most half full, so that every walk ends at such a one.
        let slots = keys.len().checked_mul(2).and_then(usize::checked_next_power_of_two);
        let mut map = self.memory().array(slots.ok_or(Status::OUT_OF_MEMORY)?, -1_i64)?;
        let mask = map.len() - 1;
        let spread = |number: i64| ((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let slot = |map: &[i64], number: i64| {
            let walk = (0..map.len()).map(|distance| spread(number).wrapping_add(distance) & mask);
            let key = |at: i64| usize::try_from(at).ok().and_then(|at| keys.get(at));
            let mut places = walk.filter_map(|slot| map.get(slot).map(|&at| (slot, at)));
            places.find(|&(_, at)| at < 0 || key(at) == Some(&number))
        };
        for (at, &key) in keys.iter().enumerate() {
            if let Some((slot, _)) = slot(&map, key)
                && let Some(place) = map.get_mut(slot)
            {
                *place = at as i64;
            }
        }
        for (&number, out) in outs {
            *out = slot(&map, number).map_or(-1, |(_, at)| at);
        }
        Ok(())
    }
}
