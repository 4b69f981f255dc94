//! A heap in the caller's memory, the least element on top.

use crate::abi::Status;

use super::super::memory::List;

/// Adds an element.
pub(super) fn push<T: Copy + Ord>(heap: &mut List<'_, T>, value: T) -> Result<(), Status> {
    heap.push(value)?;
    let mut at = heap.len() - 1;
    while at > 0 {
        let above = (at - 1) / 2;
        if heap.get(above) <= heap.get(at) {
            break;
        }
        heap.swap(above, at);
        at = above;
    }
    Ok(())
}

/// Removes the least.
pub(super) fn pop<T: Copy + Ord>(heap: &mut List<'_, T>) {
    let Some(last) = heap.len().checked_sub(1) else { return };
    heap.swap(0, last);
    heap.truncate(last);
    let mut at = 0;
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let least =
            if heap.get(right).is_some_and(|right| heap.get(left) > Some(right)) { right } else { left };
        if heap.get(least).is_none_or(|least| heap.get(at) <= Some(least)) {
            return;
        }
        heap.swap(at, least);
        at = least;
    }
}
