//! The table of a run: which text a number stands for.

use std::cell::Cell;
use std::sync::atomic::AtomicI32;

use crate::abi::{Options, Status, StringView};

use super::chunks::{Chunks, Draft};
use super::constants::Constants;
use super::index::Index;
use super::kept::Kept;
use super::memory::Memory;
use super::probe::hash;

/// Bytes that a workspace has for a [`State`], at a multiple of 8. Some are left for later versions.
pub const STATE_BYTES: usize = 256;

const _: () = assert!(size_of::<State>() <= STATE_BYTES && align_of::<State>() <= 8);

/// The strings of one run. Nothing is allocated before a text comes that the model's constants have not.
///
/// Texts never move, and stay until the end: methods that add some take a shared reference, so that others can be read
/// meanwhile. A state belongs to one thread at a time.
#[repr(C)]
pub struct State {
    memory: Memory,
    constants: Constants,
    index: Index,
    chunks: Chunks,
    pub(super) kept: Kept,
    fault: Cell<i64>,
    /// The caller's flag, or null.
    cancel: *const AtomicI32,
}

impl State {
    /// # Safety
    /// `options` is null, or its allocator and its flag are as `onnxc.h` describes them, while the state is used. `constants` is null or
    /// what [`super::constants()`] made, and stays as it is. See [`State::close`].
    pub unsafe fn open(options: *const Options, constants: *const u8) -> Result<State, Status> {
        // SAFETY: the caller says so.
        let (memory, constants) = unsafe { (Memory::of(options), Constants::of(constants)?) };
        let mut state = State::with(memory, constants);
        if !options.is_null() {
            // SAFETY: every version of the struct has this field. Both types are the same in memory.
            state.cancel = unsafe { (&raw const (*options).cancel).read() }.cast();
        }
        Ok(state)
    }

    fn with(memory: Memory, constants: Constants) -> State {
        State {
            memory,
            constants,
            index: Index::new(),
            chunks: Chunks::new(),
            kept: Kept::new(),
            fault: Cell::new(-1),
            cancel: std::ptr::null(),
        }
    }

    /// The flag of the run that asks it to end, if it has one: for functions that take long.
    pub fn cancel(&self) -> Option<&AtomicI32> {
        // SAFETY: who opened the state says that the flag stays, and only atomics change it.
        unsafe { self.cancel.as_ref() }
    }

    /// A state without strings and memory: what [`State::open`] leaves where it fails.
    pub(super) fn empty() -> State {
        // SAFETY: neither is there.
        let memory = unsafe { Memory::of(std::ptr::null()) };
        State::with(memory, Constants::NONE)
    }

    /// Forgets all but the constants, and gives all memory back. Nothing does so by itself: a state that is dropped
    /// keeps its memory.
    pub fn close(&mut self) {
        self.index.close(&self.memory);
        self.chunks.close(&self.memory);
        self.kept.close(&self.memory);
    }

    /// How many numbers have a text.
    pub fn count(&self) -> i64 {
        (self.constants.count() + self.index.count()) as i64
    }

    /// The text of a number.
    pub fn text(&self, number: i64) -> Option<&[u8]> {
        let index = usize::try_from(number).ok()?;
        match index.checked_sub(self.constants.count()) {
            None => self.constants.text(index),
            Some(index) => self.index.text(index),
        }
    }

    /// The text of a number, or the status for want of one.
    pub(super) fn read(&self, number: i64) -> Result<&[u8], Status> {
        self.text(number).ok_or(Status::OUT_OF_RANGE)
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of a constant, by its place.
    pub(super) fn constant(&self, place: usize) -> Result<i64, Status> {
        if place < self.constants.count() { Ok(place as i64) } else { Err(Status::OUT_OF_RANGE) }
    }

    /// The number of a text, or its hash if it has none.
    fn find(&self, text: &[u8]) -> Result<i64, u32> {
        let hash = hash(text);
        if let Some(index) = self.constants.find(hash, text) {
            return Ok(i64::from(index));
        }
        match self.index.find(hash, text) {
            Some(index) => Ok(self.constants.count() as i64 + i64::from(index)),
            None => Err(hash),
        }
    }

    /// # Safety
    /// As [`Index::add`].
    unsafe fn add(&self, hash: u32, text: &[u8]) -> Result<i64, Status> {
        // SAFETY: the caller says so.
        let index = unsafe { self.index.add(&self.memory, hash, text)? };
        Ok(self.constants.count() as i64 + i64::from(index))
    }

    /// The number of a text, which is not copied.
    ///
    /// # Safety
    /// The text stays where it is and as it is until the state is closed or used no more.
    pub unsafe fn refer(&self, text: &[u8]) -> Result<i64, Status> {
        match self.find(text) {
            Ok(number) => Ok(number),
            // SAFETY: the caller says so.
            Err(hash) => unsafe { self.add(hash, text) },
        }
    }

    /// The number of a text, which is copied if it is new.
    pub fn intern(&self, text: &[u8]) -> Result<i64, Status> {
        match self.find(text) {
            Ok(number) => Ok(number),
            Err(_) => {
                let mut draft = self.draft();
                draft.push(text)?;
                self.finish(draft)
            }
        }
    }

    /// Begins a text that a function makes.
    pub(super) fn draft(&self) -> Draft<'_> {
        self.chunks.draft(&self.memory)
    }

    /// The number of a text that is complete.
    pub(super) fn finish(&self, mut draft: Draft<'_>) -> Result<i64, Status> {
        match self.find(draft.written()) {
            Ok(number) => Ok(number),
            // SAFETY: what is kept stays until `close`. (Without memory for the entry, the text is kept for nothing.)
            Err(hash) => unsafe { self.add(hash, draft.keep()) },
        }
    }

    /// The element that the last function failed at, or -1.
    pub fn fault(&self) -> i64 {
        self.fault.get()
    }

    /// Notes which element failed.
    pub(super) fn blame(&self, element: Option<usize>) {
        self.fault.set(element.map_or(-1, |at| at as i64));
    }

    /// Runs `body` on each of `items`, and notes the one that fails.
    pub(super) fn each<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut body: impl FnMut(T) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.blame(None);
        for (at, item) in items.into_iter().enumerate() {
            body(item).inspect_err(|_| self.blame(Some(at)))?;
        }
        Ok(())
    }

    /// The sum of the bytes of all texts.
    pub fn text_bytes(&self, numbers: &[i64]) -> Result<i64, Status> {
        let mut sum = 0_i64;
        self.each(numbers, |&number| {
            let size = self.read(number)?.len() as i64;
            sum = sum.checked_add(size).ok_or(Status::SIZE_OVERFLOW)?;
            Ok(())
        })?;
        Ok(sum)
    }

    /// Writes views of the texts and behind them the texts' bytes, which the views refer to. All of `out` is used.
    pub fn spell(&self, numbers: &[i64], out: &mut [u8]) -> Result<(), Status> {
        let views = numbers.len().checked_mul(size_of::<StringView>()).ok_or(Status::BAD_SIZE)?;
        let (views, mut rest) = out.split_at_mut_checked(views).ok_or(Status::BAD_SIZE)?;
        let views = views.as_chunks_mut::<{ size_of::<StringView>() }>().0;
        self.each(numbers.iter().zip(views), |(&number, view)| {
            let text = self.read(number)?;
            let (to, behind) =
                std::mem::take(&mut rest).split_at_mut_checked(text.len()).ok_or(Status::BAD_SIZE)?;
            to.copy_from_slice(text);
            rest = behind;
            let record = StringView { data: to.as_ptr(), size: to.len() };
            // SAFETY: there are the bytes of one view.
            unsafe { view.as_mut_ptr().cast::<StringView>().write_unaligned(record) };
            Ok(())
        })?;
        if rest.is_empty() { Ok(()) } else { Err(Status::BAD_SIZE) }
    }

    /// Element by element, the text of `a` followed by that of `b`.
    pub fn concat(&self, a: &[i64], b: &[i64], out: &mut [i64]) -> Result<(), Status> {
        self.each(a.iter().zip(b).zip(out), |((&a, &b), out)| {
            let (first, second) = (self.read(a)?, self.read(b)?);
            *out = match (first, second) {
                ([], _) => b,
                (_, []) => a,
                _ => {
                    let mut draft = self.draft();
                    draft.push(first)?;
                    draft.push(second)?;
                    self.finish(draft)?
                }
            };
            Ok(())
        })
    }

    /// `each` texts after each other, with the separator between them, for every element of `out`.
    pub fn join(&self, texts: &[i64], separator: i64, each: usize, out: &mut [i64]) -> Result<(), Status> {
        self.each(out.iter_mut().enumerate(), |(at, out)| {
            let texts = &texts[at * each..(at + 1) * each];
            if let [only] = texts {
                self.read(*only)?;
                *out = *only;
                return Ok(());
            }
            let mut draft = self.draft();
            for (at, &text) in texts.iter().enumerate() {
                if at > 0 {
                    draft.push(self.read(separator)?)?;
                }
                draft.push(self.read(text)?)?;
            }
            *out = self.finish(draft)?;
            Ok(())
        })
    }
}
