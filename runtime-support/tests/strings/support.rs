//! A run's strings, called as compiled models call them: every array has a block of its own and just its size, so that
//! checkers of memory see what lies outside.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::c_void;

use onnxc_runtime_support::strings::*;
use onnxc_runtime_support::{Options, Status, StringView};

/// An allocator that counts, and that can be made to fail.
#[derive(Default)]
pub(crate) struct Counter {
    blocks: RefCell<HashMap<usize, usize>>,
    /// Allocations so far.
    pub taken: Cell<u64>,
    /// The allocation that fails, and all after it; counted from 0.
    pub limit: Cell<Option<u64>>,
    /// Most bytes at any time.
    pub peak: Cell<usize>,
}

impl Counter {
    pub(crate) fn failing_at(limit: u64) -> Counter {
        Counter { limit: Cell::new(Some(limit)), ..Counter::default() }
    }

    /// Blocks and bytes that are not given back.
    pub(crate) fn open(&self) -> (usize, usize) {
        let blocks = self.blocks.borrow();
        (blocks.len(), blocks.values().sum())
    }
}

unsafe extern "C" fn allocate(allocator: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: the tests give a counter, which lives longer than the run.
    let counter = unsafe { &*allocator.cast::<Counter>() };
    assert!(bytes > 0 && alignment == 64);
    let number = counter.taken.replace(counter.taken.get() + 1);
    if counter.limit.get().is_some_and(|limit| number >= limit) {
        return std::ptr::null_mut();
    }
    let layout = Layout::from_size_align(bytes, alignment).unwrap();
    // SAFETY: there is at least one byte; all are written, so that reads before writes show.
    let start = unsafe {
        let start = alloc(layout);
        start.write_bytes(0xa5, bytes);
        start
    };
    counter.blocks.borrow_mut().insert(start as usize, bytes);
    counter.peak.set(counter.peak.get().max(counter.open().1));
    start.cast()
}

unsafe extern "C" fn release(allocator: *mut c_void, memory: *mut c_void, bytes: usize, alignment: usize) {
    // SAFETY: as above.
    let counter = unsafe { &*allocator.cast::<Counter>() };
    assert_eq!(counter.blocks.borrow_mut().remove(&(memory as usize)), Some(bytes), "a block with its bytes");
    // SAFETY: `allocate` made the block with this layout.
    unsafe {
        memory.write_bytes(0x5a, bytes);
        dealloc(memory.cast(), Layout::from_size_align(bytes, alignment).unwrap());
    }
}

/// Strings that are open.
pub(crate) struct Run<'c> {
    state: Box<UnsafeCell<[u64; STATE_BYTES / 8]>>,
    pub counter: Option<&'c Counter>,
    /// Texts that the state refers to, and its constants.
    texts: RefCell<Vec<Vec<u8>>>,
}

pub(crate) type Numbers = Result<Vec<i64>, Status>;

fn outcome<T>(status: Status, value: T) -> Result<T, Status> {
    if status == Status::OK { Ok(value) } else { Err(status) }
}

impl<'c> Run<'c> {
    pub(crate) fn new(counter: &'c Counter, constants: &[&[u8]]) -> Run<'c> {
        Run::with_blob(Some(counter), Some(constants_blob(constants))).unwrap()
    }

    pub(crate) fn with_blob(counter: Option<&'c Counter>, blob: Option<Vec<u8>>) -> Result<Run<'c>, Status> {
        let options = counter.map(|counter| Options {
            allocate: Some(allocate),
            release: Some(release),
            allocator: std::ptr::from_ref(counter).cast_mut().cast(),
            ..Options::default()
        });
        let state = Box::new(UnsafeCell::new([0xcccc_cccc_cccc_cccc; STATE_BYTES / 8]));
        let options = options.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let constants = blob.as_ref().map_or(std::ptr::null(), |blob| blob.as_ptr());
        // SAFETY: the state has its bytes; the run keeps the constants, and its user the counter.
        let status = unsafe { onnxc_strings_open(state.get().cast(), options, constants) };
        let texts = RefCell::new(blob.into_iter().collect());
        // Dropped, and so closed, also after a failure.
        outcome(status, Run { state, counter, texts })
    }

    pub(crate) fn state(&self) -> *mut State {
        self.state.get().cast()
    }

    pub(crate) fn fault(&self) -> i64 {
        // SAFETY: the state is open.
        unsafe { onnxc_strings_fault(self.state()) }
    }

    pub(crate) fn close(&mut self) {
        // SAFETY: the state is open.
        unsafe { onnxc_strings_close(self.state()) };
    }

    /// Calls a function with an output of `count` elements.
    fn fill<T: Copy>(count: usize, value: T, call: impl FnOnce(*mut T) -> Status) -> Result<Vec<T>, Status> {
        let mut out = vec![value; count];
        outcome(call(out.as_mut_ptr()), out)
    }

    pub(crate) fn intern(&self, texts: &[&[u8]]) -> Numbers {
        let own: Vec<Vec<u8>> = texts.iter().map(|&text| text.to_vec()).collect();
        let view = |text: &[u8]| match text.len() {
            0 => StringView { data: std::ptr::null(), size: 0 },
            size => StringView { data: text.as_ptr(), size },
        };
        let views: Vec<StringView> = own.iter().map(|text| view(text)).collect();
        self.texts.borrow_mut().extend(own);
        // SAFETY: the run keeps the texts.
        Run::fill(texts.len(), -7, |out| unsafe {
            onnxc_strings_intern(self.state(), views.as_ptr(), out, views.len() as i64)
        })
    }

    pub(crate) fn one(&self, text: &str) -> i64 {
        self.intern(&[text.as_bytes()]).unwrap()[0]
    }

    pub(crate) fn text_bytes(&self, numbers: &[i64]) -> Result<i64, Status> {
        // SAFETY: the arrays have these sizes; likewise below.
        let sum = Run::fill(1, -7, |out| unsafe {
            onnxc_strings_text_bytes(self.state(), numbers.as_ptr(), out, numbers.len() as i64)
        });
        Ok(sum?[0])
    }

    /// The block that `spell` fills, as 8-byte words.
    pub(crate) fn spell(&self, numbers: &[i64], total: usize) -> Result<Vec<u64>, Status> {
        let words = total.div_ceil(8);
        // SAFETY: as above.
        Run::fill(words, 0, |out: *mut u64| unsafe {
            onnxc_strings_spell(
                self.state(),
                numbers.as_ptr(),
                out.cast(),
                numbers.len() as i64,
                total as i64,
            )
        })
    }

    /// The texts of numbers.
    pub(crate) fn texts(&self, numbers: &[i64]) -> Result<Vec<Vec<u8>>, Status> {
        let total = 16 * numbers.len() + self.text_bytes(numbers)? as usize;
        let block = self.spell(numbers, total)?;
        let start = block.as_ptr().cast::<u8>();
        let inside = start as usize..=start as usize + total;
        let text = |at: usize| {
            // SAFETY: the views come first in the block, and their texts lie in it as well.
            unsafe {
                let view = start.cast::<StringView>().add(at).read();
                assert!(
                    inside.contains(&(view.data as usize))
                        && inside.contains(&(view.data as usize + view.size))
                );
                std::slice::from_raw_parts(view.data, view.size).to_vec()
            }
        };
        Ok((0..numbers.len()).map(text).collect())
    }

    pub(crate) fn strings(&self, numbers: &[i64]) -> Vec<String> {
        let texts = self.texts(numbers).unwrap();
        texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
    }

    pub(crate) fn concat(&self, a: &[i64], b: &[i64]) -> Numbers {
        // SAFETY: as above.
        Run::fill(a.len(), -7, |out| unsafe {
            onnxc_strings_concat(self.state(), a.as_ptr(), b.as_ptr(), out, a.len() as i64)
        })
    }

    pub(crate) fn change_case(&self, numbers: &[i64], how: i64) -> Numbers {
        // SAFETY: as above.
        Run::fill(numbers.len(), -7, |out| unsafe {
            onnxc_strings_change_case(self.state(), numbers.as_ptr(), out, numbers.len() as i64, how)
        })
    }

    pub(crate) fn split_counts(&self, numbers: &[i64], delimiter: i64, maxsplit: i64) -> Numbers {
        // SAFETY: as above.
        Run::fill(numbers.len(), -7, |out| unsafe {
            let n = numbers.len() as i64;
            onnxc_strings_split_counts(self.state(), numbers.as_ptr(), &delimiter, out, n, maxsplit)
        })
    }

    pub(crate) fn split(&self, numbers: &[i64], delimiter: i64, maxsplit: i64, width: usize) -> Numbers {
        // SAFETY: as above.
        Run::fill(numbers.len() * width, -7, |out| unsafe {
            let (n, width) = (numbers.len() as i64, width as i64);
            onnxc_strings_split(self.state(), numbers.as_ptr(), &delimiter, out, n, maxsplit, width)
        })
    }

    pub(crate) fn regex(&self, numbers: &[i64], program: &[u8]) -> Result<Vec<u8>, Status> {
        let program: Box<[u8]> = program.into();
        // SAFETY: as above.
        Run::fill(numbers.len(), 7, |out| unsafe {
            let (n, bytes) = (numbers.len() as i64, program.len() as i64);
            onnxc_strings_regex(self.state(), numbers.as_ptr(), program.as_ptr(), out, n, bytes)
        })
    }

    pub(crate) fn replace(
        &self,
        numbers: &[i64],
        program: &[u8],
        rewrite: &[u8],
        all: bool,
    ) -> Result<Vec<i64>, Status> {
        let (program, rewrite): (Box<[u8]>, Box<[u8]>) = (program.into(), rewrite.into());
        let (n, all) = (numbers.len() as i64, i64::from(all));
        // SAFETY: as above.
        Run::fill(numbers.len(), -7, |out| unsafe {
            let sizes = [program.len() as i64, rewrite.len() as i64];
            let (program, rewrite) = (program.as_ptr(), rewrite.as_ptr());
            onnxc_strings_replace(
                self.state(),
                numbers.as_ptr(),
                program,
                rewrite,
                out,
                n,
                sizes[0],
                sizes[1],
                all,
            )
        })
    }

    /// Elements as bytes.
    pub(crate) fn parse(&self, numbers: &[i64], dtype: i64) -> Result<Vec<u8>, Status> {
        let bytes = Number::of(dtype).map_or(8, Number::bytes);
        // SAFETY: as above.
        Run::fill(numbers.len() * bytes, 7, |out| unsafe {
            onnxc_strings_parse(self.state(), numbers.as_ptr(), out, numbers.len() as i64, dtype)
        })
    }

    pub(crate) fn format(&self, elements: &[u8], dtype: i64) -> Numbers {
        let count = elements.len() / Number::of(dtype).map_or(8, Number::bytes);
        // SAFETY: as above.
        Run::fill(count, -7, |out| unsafe {
            onnxc_strings_format(self.state(), elements.as_ptr(), out, count as i64, dtype)
        })
    }

    pub(crate) fn order(&self, numbers: &[i64]) -> Numbers {
        // SAFETY: as above.
        Run::fill(numbers.len(), -7, |out| unsafe {
            onnxc_strings_order(self.state(), numbers.as_ptr(), out, numbers.len() as i64)
        })
    }

    pub(crate) fn find(&self, keys: &[i64], numbers: &[i64]) -> Numbers {
        // SAFETY: as above.
        Run::fill(numbers.len(), -7, |out| unsafe {
            let (k, n) = (keys.len() as i64, numbers.len() as i64);
            onnxc_strings_find(self.state(), keys.as_ptr(), numbers.as_ptr(), out, k, n)
        })
    }
}

/// The blob of constants.
pub(crate) fn constants_blob(texts: &[&[u8]]) -> Vec<u8> {
    constants(texts)
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.close();
        if let Some(counter) = self.counter {
            assert_eq!(counter.open(), (0, 0), "all memory is given back");
        }
        self.close();
    }
}
