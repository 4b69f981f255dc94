//! Exchanges of several ranks, made of messages. Every message of one exchange is on its way at once.

use std::ffi::c_void;

use super::{Message, RankGroup, Reduction, Transport, combine, element_bytes, status};

/// Bytes up to which each rank sends all it has to all others rather than a share of it: one message's time instead of two.
pub const AT_ONCE: usize = 16 << 10;

/// A rank, as the others see it.
#[derive(Debug)]
pub struct Peer {
    transport: Transport,
    rank: i64,
    size: i64,
    /// The model that all ranks run.
    agreed: Option<i64>,
    /// What an exchange failed with: those behind it fail too.
    failed: Option<i32>,
    scratch: Vec<u8>,
}

/// A message to or from a rank.
struct Part<'p> {
    rank: i64,
    data: &'p [u8],
}

struct PartMut<'p> {
    rank: i64,
    data: &'p mut [u8],
}

impl Peer {
    pub(super) fn new(transport: Transport, rank: i64, size: i64) -> Peer {
        Peer { transport, rank, size, agreed: None, failed: None, scratch: vec![] }
    }

    pub fn rank(&self) -> i64 {
        self.rank
    }

    fn exchange(&mut self, sends: &[Part<'_>], receives: &mut [PartMut<'_>]) -> Result<(), i32> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let sends: Vec<Message> = sends
            .iter()
            .map(|part| Message {
                rank: part.rank,
                data: part.data.as_ptr().cast_mut().cast(),
                bytes: part.data.len(),
            })
            .collect();
        let receives: Vec<Message> = receives
            .iter_mut()
            .map(|part| Message {
                rank: part.rank,
                data: part.data.as_mut_ptr().cast::<c_void>(),
                bytes: part.data.len(),
            })
            .collect();
        let Transport { context, exchange, .. } = self.transport;
        // SAFETY: the messages lie in slices that live as long as the call, those received in ones that nothing else uses.
        let status =
            unsafe { exchange(context, sends.as_ptr(), sends.len(), receives.as_ptr(), receives.len()) };
        match status {
            status::OK => Ok(()),
            status => {
                self.failed = Some(status);
                Err(status)
            }
        }
    }

    fn own(&mut self, group: RankGroup) -> Result<usize, i32> {
        let inside = group.count >= 1
            && group.first >= 0
            && (group.count == 1 || group.stride >= 1)
            && group.ranks().last().is_some_and(|last| last < self.size);
        let place = if inside { group.place(self.rank) } else { None };
        place.ok_or(status::EXCHANGE_FAILED)
    }

    /// Compares the model with that of the others, when it is not the one of before.
    pub fn begin(&mut self, plan: i64) -> Result<(), i32> {
        if self.agreed == Some(plan) && self.failed.is_none() {
            return Ok(());
        }
        let (group, own) = (RankGroup::all(self.size), plan.to_ne_bytes());
        let mut all = vec![0; 8 * self.size as usize];
        self.all_gather(group, 8, &vec![1; self.size as usize], &own, &mut all)?;
        if all.chunks(8).any(|other| other != own) {
            self.failed = Some(status::OTHER_MODEL);
            return Err(status::OTHER_MODEL);
        }
        self.agreed = Some(plan);
        Ok(())
    }

    pub fn all_reduce(
        &mut self,
        group: RankGroup,
        reduction: Reduction,
        dtype: i32,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), i32> {
        let own = self.own(group)?;
        let (members, width) = (group.count as usize, element_bytes(dtype).ok_or(status::EXCHANGE_FAILED)?);
        if members == 1 || from.is_empty() {
            to.copy_from_slice(from);
            return Ok(());
        }
        if from.len() > AT_ONCE && members > 2 {
            let elements = from.len() / width;
            let parts: Vec<i64> = (0..members)
                .map(|at| ((at + 1) * elements / members - at * elements / members) as i64)
                .collect();
            let mut share = vec![0; parts[own] as usize * width];
            self.reduce_scatter(group, reduction, dtype, &parts, from, &mut share)?;
            return self.all_gather(group, width, &parts, &share, to);
        }
        let mut others = std::mem::take(&mut self.scratch);
        others.resize(from.len() * (members - 1), 0);
        let ranks: Vec<i64> = group.ranks().filter(|&rank| rank != self.rank).collect();
        let sends: Vec<Part<'_>> = ranks.iter().map(|&rank| Part { rank, data: from }).collect();
        let mut receives: Vec<PartMut<'_>> = ranks
            .iter()
            .zip(others.chunks_mut(from.len()))
            .map(|(&rank, data)| PartMut { rank, data })
            .collect();
        let result = self.exchange(&sends, &mut receives);
        if result.is_ok() {
            in_order(own, members, from, &others, to, |to, from| combine(reduction, dtype, to, from));
        }
        self.scratch = others;
        result
    }

    pub fn all_gather(
        &mut self,
        group: RankGroup,
        width: usize,
        parts: &[i64],
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), i32> {
        let own = self.own(group)?;
        let mut rest = to;
        let mut receives = vec![];
        for (at, rank) in group.ranks().enumerate() {
            let (part, behind) = rest.split_at_mut(parts[at] as usize * width);
            rest = behind;
            match at == own {
                true => part.copy_from_slice(from),
                false if part.is_empty() => {}
                false => receives.push(PartMut { rank, data: part }),
            }
        }
        let others = group.ranks().filter(|&rank| rank != self.rank && !from.is_empty());
        let sends: Vec<Part<'_>> = others.map(|rank| Part { rank, data: from }).collect();
        self.exchange(&sends, &mut receives)
    }

    pub fn reduce_scatter(
        &mut self,
        group: RankGroup,
        reduction: Reduction,
        dtype: i32,
        parts: &[i64],
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), i32> {
        let own = self.own(group)?;
        let (members, width) = (group.count as usize, element_bytes(dtype).ok_or(status::EXCHANGE_FAILED)?);
        let (mut rest, mut mine, mut sends) = (from, &from[..0], vec![]);
        for (at, rank) in group.ranks().enumerate() {
            let (part, behind) = rest.split_at(parts[at] as usize * width);
            rest = behind;
            match at == own {
                true => mine = part,
                false if part.is_empty() => {}
                false => sends.push(Part { rank, data: part }),
            }
        }
        let mut others = std::mem::take(&mut self.scratch);
        others.resize(mine.len() * (members - 1), 0);
        let ranks = group.ranks().filter(|&rank| rank != self.rank);
        let mut receives: Vec<PartMut<'_>> = match mine.is_empty() {
            true => vec![],
            false => {
                ranks.zip(others.chunks_mut(mine.len())).map(|(rank, data)| PartMut { rank, data }).collect()
            }
        };
        let result = self.exchange(&sends, &mut receives);
        if result.is_ok() && !mine.is_empty() {
            in_order(own, members, mine, &others, to, |to, from| combine(reduction, dtype, to, from));
        }
        self.scratch = others;
        result
    }

    pub fn broadcast(
        &mut self,
        group: RankGroup,
        root: i64,
        from: Option<&[u8]>,
        to: &mut [u8],
    ) -> Result<(), i32> {
        self.own(group)?;
        if !(0..group.count).contains(&root) {
            return Err(status::EXCHANGE_FAILED);
        }
        let root = group.first + root * group.stride;
        if to.is_empty() {
            return Ok(());
        }
        match from {
            Some(from) => {
                to.copy_from_slice(from);
                let others = group.ranks().filter(|&rank| rank != root);
                let sends: Vec<Part<'_>> = others.map(|rank| Part { rank, data: from }).collect();
                self.exchange(&sends, &mut [])
            }
            None => self.exchange(&[], &mut [PartMut { rank: root, data: to }]),
        }
    }

    pub fn all_to_all(
        &mut self,
        group: RankGroup,
        width: usize,
        (from, sent): (&[u8], &[i64]),
        (to, received): (&mut [u8], &[i64]),
    ) -> Result<(), i32> {
        let own = self.own(group)?;
        let (mut given, mut room) = (from, to);
        let (mut sends, mut receives, mut mine) = (vec![], vec![], None);
        for (at, rank) in group.ranks().enumerate() {
            let (part, behind) = given.split_at(sent[at] as usize * width);
            given = behind;
            let (place, rest) = room.split_at_mut(received[at] as usize * width);
            room = rest;
            if at == own {
                mine = Some((part, place));
                continue;
            }
            if !part.is_empty() {
                sends.push(Part { rank, data: part });
            }
            if !place.is_empty() {
                receives.push(PartMut { rank, data: place });
            }
        }
        match mine {
            Some((part, place)) if part.len() == place.len() => place.copy_from_slice(part),
            _ => return Err(status::EXCHANGE_FAILED),
        }
        self.exchange(&sends, &mut receives)
    }

    pub fn send(&mut self, to: i64, data: &[u8]) -> Result<(), i32> {
        match data.is_empty() {
            true => Ok(()),
            false => self.exchange(&[Part { rank: to, data }], &mut []),
        }
    }

    pub fn receive(&mut self, from: i64, data: &mut [u8]) -> Result<(), i32> {
        match data.is_empty() {
            true => Ok(()),
            false => self.exchange(&[], &mut [PartMut { rank: from, data }]),
        }
    }

    /// Lets the others know that this rank does not go on.
    pub fn abort(&mut self, status: i32) {
        self.failed.get_or_insert(status::RANK_FAILED);
        // SAFETY: the context is the transport's own.
        unsafe { (self.transport.abort)(self.transport.context, status) };
    }
}

/// Combines the numbers of all members in the order of the group; those of the others lie one after the other.
fn in_order(
    own: usize,
    members: usize,
    mine: &[u8],
    others: &[u8],
    to: &mut [u8],
    mut combine: impl FnMut(&mut [u8], &[u8]),
) {
    let mut others = others.chunks(mine.len());
    for at in 0..members {
        let part = if at == own { mine } else { others.next().unwrap_or(mine) };
        match at {
            0 => to.copy_from_slice(part),
            _ => combine(to, part),
        }
    }
}
