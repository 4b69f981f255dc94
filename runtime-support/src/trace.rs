//! A record of runs on a timeline: which thread was in which step, and in which part of a kernel, and when. It is written as JSON of the
//! Trace Event Format, which Perfetto and Chrome open.
//!
//! Threads record without waiting for each other: each takes the next place of one array. Names are those of the models, which stay where
//! they are.

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::abi::{Options, ParallelForFn, RangeFn, Status, event};

/// Events that there is room for where the caller does not say.
const EVENTS: usize = 1_000_000;

/// Beside those of `onnxc_event`: a part of a kernel, which is recorded when it ends.
const PART: i32 = -1;

#[derive(Clone, Copy)]
struct Event {
    /// Nanoseconds since the trace was made.
    at: u64,
    /// Of a part, how long it took; of others, their number.
    number: i64,
    kernel: *const c_char,
    nodes: *const c_char,
    /// Of a part.
    range: (i64, i64),
    kind: i32,
    thread: u32,
}

/// Room for an event; zeros before there is one.
struct Place {
    is_written: AtomicBool,
    event: UnsafeCell<MaybeUninit<Event>>,
}

/// A record of runs.
pub struct Trace {
    start: Instant,
    events: Box<[Place]>,
    /// How many came, also those that found no place.
    count: AtomicUsize,
    /// What parallel-for functions are wrapped as. Options point to them: they stay where they are.
    pools: Mutex<Vec<Pin<Box<Wrapped>>>>,
}

// SAFETY: each place of `events` is written once, by the thread that took its number, and read where that has said so. The pointers in them
// lead to constants of models.
unsafe impl Send for Trace {}
// SAFETY: as above.
unsafe impl Sync for Trace {}

/// A caller's parallel-for function behind that of the trace.
struct Wrapped {
    trace: *const Trace,
    parallel_for: ParallelForFn,
    pool: *mut c_void,
}

/// A loop of a kernel, for its parts.
struct Loop<'t> {
    trace: &'t Trace,
    body: RangeFn,
    job: *mut c_void,
    kernel: *const c_char,
    nodes: *const c_char,
}

thread_local! {
    /// The number of this thread in traces, from 1 on.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// The step that this thread runs: kernel and nodes.
    static STEP: Cell<(*const c_char, *const c_char)> = const { Cell::new((ptr::null(), ptr::null())) };
}

fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    THREAD.with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

/// Room for this number of events, which the system gives as it is used. Nothing where it has none.
fn room(events: usize) -> Option<Box<[Place]>> {
    let layout = Layout::array::<Place>(events).ok()?;
    // SAFETY: there is at least one event, and none is of size 0.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Place>();
    // SAFETY: the memory has the layout of the slice, and zeros are a place without an event.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(memory, events)) })
}

impl Trace {
    /// Room for `events` events, 0 for a million. Nothing if there is no memory.
    pub fn new(events: usize) -> Option<Box<Trace>> {
        let events = if events == 0 { EVENTS } else { events };
        Some(Box::new(Trace {
            start: Instant::now(),
            events: room(events)?,
            count: AtomicUsize::new(0),
            pools: Mutex::new(vec![]),
        }))
    }

    /// Has runs with these options recorded, and their parts on the threads of their parallel-for function.
    ///
    /// # Safety
    ///
    /// The trace stays where it is and outlives the runs, and the models stay loaded as long as it exists.
    pub unsafe fn attach(&self, options: &mut Options) {
        options.trace = Some(onnxc_trace_event);
        options.trace_context = ptr::from_ref(self).cast_mut().cast();
        let Some(parallel_for) = options.parallel_for else { return };
        if ptr::fn_addr_eq(parallel_for, trace_parallel_for as ParallelForFn) {
            return;
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |wrapped: &&Pin<Box<Wrapped>>| {
            wrapped.pool == options.pool && ptr::fn_addr_eq(wrapped.parallel_for, parallel_for)
        };
        let found = pools.iter().find(own).map(|wrapped| ptr::from_ref(&**wrapped));
        let wrapped = found.unwrap_or_else(|| {
            pools.push(Box::pin(Wrapped { trace: self, parallel_for, pool: options.pool }));
            ptr::from_ref(&**pools.last().expect("it was pushed"))
        });
        options.parallel_for = Some(trace_parallel_for);
        options.pool = wrapped.cast_mut().cast();
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn record(&self, event: Event) {
        let at = self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.events.get(at) {
            // SAFETY: no other thread has this number, and none reads the place before the flag is set.
            unsafe { (*place.event.get()).write(event) };
            place.is_written.store(true, Ordering::Release);
        }
    }

    /// Events that are recorded.
    pub fn events(&self) -> usize {
        self.count.load(Ordering::Relaxed).min(self.events.len())
    }

    /// Events that found no room.
    pub fn lost(&self) -> usize {
        self.count.load(Ordering::Relaxed).saturating_sub(self.events.len())
    }

    /// Writes what is recorded; of a run that is on its way, as far as it has come.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        self.write_json(&mut file)?;
        file.flush()
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let written = |place: &&Place| place.is_written.load(Ordering::Acquire);
        // SAFETY: the flag says that the place is written, which happens once.
        let event = |place: &Place| unsafe { (*place.event.get()).assume_init() };
        let events = self.events[..self.events()].iter().filter(written).map(event);
        let mut threads: Vec<(u32, Vec<Event>)> = vec![];
        for event in events {
            match threads.iter_mut().find(|(thread, _)| *thread == event.thread) {
                Some((_, own)) => own.push(event),
                None => threads.push((event.thread, vec![event])),
            }
        }
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"lost_events\":{}}},\"traceEvents\":[",
            self.lost()
        )?;
        let process = std::process::id();
        let mut writer = Writer { out, process, first: true };
        for (thread, events) in &threads {
            writer.item(&format!(
                "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"args\":{{\"name\":\"thread {thread}\"}}}}"
            ))?;
            writer.thread(events)?;
        }
        writeln!(out, "\n]}}")
    }
}

/// What is open on a thread.
struct Open {
    kind: i32,
    event: Event,
}

struct Writer<'o> {
    out: &'o mut dyn Write,
    process: u32,
    first: bool,
}

impl Writer<'_> {
    fn item(&mut self, text: &str) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        write!(self.out, "{comma}{text}")
    }

    /// The events of a thread, in their order. A step ends with the next event of its run; where events are lost, what is open ends with
    /// the last.
    fn thread(&mut self, events: &[Event]) -> io::Result<()> {
        let mut open: Vec<Open> = vec![];
        for event in events {
            let kind = event.kind;
            if kind == PART {
                let start = event.at.saturating_sub(event.number as u64);
                let args = format!("\"begin\":{},\"end\":{}", event.range.0, event.range.1);
                self.slice(event, (start, event.at), "part", &args)?;
                continue;
            }
            // A run inside a step, such as one of a function that computes an operator, does not end it.
            if kind != event::RUN_BEGIN {
                self.end_while(&mut open, event, |own| own == event::STEP)?;
            }
            match kind {
                event::RUN_BEGIN | event::STEP | event::ENTER => open.push(Open { kind, event: *event }),
                event::LEAVE if open.last().is_some_and(|last| last.kind == event::ENTER) => {
                    self.end(&mut open, event)?;
                }
                // Its own, and what it did not come to the end of.
                event::RUN_END => {
                    self.end_while(&mut open, event, |own| own != event::RUN_BEGIN)?;
                    self.end(&mut open, event)?;
                }
                _ => {}
            }
        }
        match events.last() {
            Some(last) => self.end_while(&mut open, &Event { kind: PART, ..*last }, |_| true),
            None => Ok(()),
        }
    }

    fn end_while(&mut self, open: &mut Vec<Open>, by: &Event, which: impl Fn(i32) -> bool) -> io::Result<()> {
        while open.last().is_some_and(|last| which(last.kind)) {
            self.end(open, by)?;
        }
        Ok(())
    }

    /// Ends what was opened last.
    fn end(&mut self, open: &mut Vec<Open>, by: &Event) -> io::Result<()> {
        let Some(Open { kind, event }) = open.pop() else { return Ok(()) };
        let (category, args) = match kind {
            event::RUN_BEGIN if by.kind == event::RUN_END => ("run", format!("\"status\":{}", by.number)),
            event::RUN_BEGIN => ("run", String::new()),
            _ => ("step", format!("\"step\":{}", event.number)),
        };
        self.slice(&event, (event.at, by.at), category, &args)
    }

    fn slice(
        &mut self,
        event: &Event,
        (begin, end): (u64, u64),
        category: &str,
        args: &str,
    ) -> io::Result<()> {
        let mut text = String::from("{\"name\":");
        quote(&mut text, event.kernel);
        let duration = end.saturating_sub(begin);
        let _ = write!(
            text,
            ",\"cat\":\"{category}\",\"ph\":\"X\",\"ts\":{}.{:03},\"dur\":{}.{:03},\"pid\":{},\"tid\":{},\"args\":{{{args}",
            begin / 1000,
            begin % 1000,
            duration / 1000,
            duration % 1000,
            self.process,
            event.thread
        );
        if category != "run" {
            text += if args.is_empty() { "\"nodes\":" } else { ",\"nodes\":" };
            quote(&mut text, event.nodes);
        }
        text += "}}";
        self.item(&text)
    }
}

/// Appends a text as JSON.
fn quote(out: &mut String, text: *const c_char) {
    out.push('"');
    if !text.is_null() {
        // SAFETY: names are constants of a model that is loaded, each with a zero behind it.
        for c in unsafe { CStr::from_ptr(text) }.to_string_lossy().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if u32::from(c) < 0x20 => {
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
    }
    out.push('"');
}

/// An `onnxc_trace_fn` whose context is a trace.
///
/// # Safety
///
/// As the runtime calls it.
unsafe extern "C" fn onnxc_trace_event(
    context: *mut c_void,
    kind: i32,
    number: i64,
    kernel: *const c_char,
    nodes: *const c_char,
) {
    // SAFETY: the trace outlives the runs it is attached to.
    let trace = unsafe { &*context.cast_const().cast::<Trace>() };
    STEP.set((kernel, nodes));
    trace.record(Event { at: trace.now(), number, kernel, nodes, range: (0, 0), kind, thread: thread() });
}

/// Runs a loop by the caller's function, and records its parts.
///
/// # Safety
///
/// As a model calls it.
unsafe extern "C" fn trace_parallel_for(
    pool: *mut c_void,
    begin: i64,
    end: i64,
    body: Option<RangeFn>,
    job: *mut c_void,
) -> i32 {
    // SAFETY: `attach` sets the two together, and what they lead to lives as long as the trace.
    let wrapped = unsafe { &*pool.cast_const().cast::<Wrapped>() };
    let Some(body) = body else {
        // SAFETY: the caller's.
        return unsafe { (wrapped.parallel_for)(wrapped.pool, begin, end, None, job) };
    };
    let (kernel, nodes) = STEP.get();
    // SAFETY: as above.
    let traced = Loop { trace: unsafe { &*wrapped.trace }, body, job, kernel, nodes };
    let own = ptr::from_ref(&traced).cast_mut().cast();
    // SAFETY: the loop has ended when the function returns, and with it the use of `traced`.
    unsafe { (wrapped.parallel_for)(wrapped.pool, begin, end, Some(part), own) }
}

/// # Safety
///
/// `job` is a `Loop`.
unsafe extern "C" fn part(job: *mut c_void, begin: i64, end: i64) -> i32 {
    // SAFETY: `trace_parallel_for` gave it, and waits.
    let Loop { trace, body, job, kernel, nodes } = unsafe { &*job.cast_const().cast::<Loop<'_>>() };
    let start = trace.now();
    // SAFETY: as the model asks for it.
    let result = unsafe { body(*job, begin, end) };
    let at = trace.now();
    trace.record(Event {
        at,
        number: (at - start) as i64,
        kernel: *kernel,
        nodes: *nodes,
        range: (begin, end),
        kind: PART,
        thread: thread(),
    });
    result
}

/// Documented in `onnxc.h`.
#[unsafe(no_mangle)]
pub extern "C" fn onnxc_trace_create(events: usize) -> *mut Trace {
    Trace::new(events).map_or(ptr::null_mut(), Box::into_raw)
}

/// Documented in `onnxc.h`.
///
/// # Safety
///
/// As `onnxc.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_trace_attach(trace: *const Trace, options: *mut Options) -> i32 {
    // SAFETY: both are null or valid.
    let (Some(trace), Some(options)) = (unsafe { trace.as_ref() }, unsafe { options.as_mut() }) else {
        return Status::NULL_POINTER.0;
    };
    if options.struct_size < std::mem::offset_of!(Options, weights) {
        return Status::BAD_OPTIONS.0;
    }
    // SAFETY: the caller's.
    unsafe { trace.attach(options) };
    Status::OK.0
}

/// Documented in `onnxc.h`.
///
/// # Safety
///
/// `trace` is a trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_trace_events(trace: *const Trace) -> usize {
    // SAFETY: the caller's.
    unsafe { trace.as_ref() }.map_or(0, Trace::events)
}

/// Documented in `onnxc.h`.
///
/// # Safety
///
/// `trace` is a trace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_trace_lost(trace: *const Trace) -> usize {
    // SAFETY: the caller's.
    unsafe { trace.as_ref() }.map_or(0, Trace::lost)
}

/// Documented in `onnxc.h`.
///
/// # Safety
///
/// `trace` is a trace, and `path` a text with a zero behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_trace_write(trace: *const Trace, path: *const c_char) -> i32 {
    /// `EINVAL`, the same everywhere.
    const INVALID: i32 = 22;
    // SAFETY: null or a trace.
    let Some(trace) = (unsafe { trace.as_ref() }) else { return INVALID };
    if path.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) };
    #[cfg(unix)]
    let path: std::borrow::Cow<'_, Path> = {
        use std::os::unix::ffi::OsStrExt;
        Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).into()
    };
    #[cfg(not(unix))]
    let path: std::borrow::Cow<'_, Path> =
        std::path::PathBuf::from(path.to_string_lossy().into_owned()).into();
    match trace.write(&path) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(INVALID),
    }
}

/// Documented in `onnxc.h`.
///
/// # Safety
///
/// `trace` is a trace of `onnxc_trace_create` that no options lead to any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_trace_destroy(trace: *mut Trace) {
    if !trace.is_null() {
        // SAFETY: it was made by `Box::into_raw`.
        drop(unsafe { Box::from_raw(trace) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Pool, onnxc_pool_parallel_for};

    /// The events of a model with a loop; its texts hold what JSON escapes.
    fn run(options: &Options) {
        let inform = |kind: i32, number: i64, kernel: &'static CStr, nodes: &'static CStr| {
            // SAFETY: the context is a trace.
            unsafe {
                options.trace.unwrap()(options.trace_context, kind, number, kernel.as_ptr(), nodes.as_ptr())
            };
        };
        unsafe extern "C" fn body(_: *mut c_void, begin: i64, end: i64) -> i32 {
            std::hint::black_box((begin, end));
            0
        }
        inform(event::RUN_BEGIN, 0, c"net", c"");
        inform(event::STEP, 0, c"g0", c"\"a\\\" (Conv)");
        if let Some(parallel_for) = options.parallel_for {
            // SAFETY: the body takes any job.
            assert_eq!(unsafe { parallel_for(options.pool, 0, 64, Some(body), ptr::null_mut()) }, 0);
        }
        inform(event::ENTER, 1, c"scan", c"loop (Loop)");
        for _ in 0..2 {
            inform(event::STEP, 2, c"g1", c"tab\there (Add)");
        }
        inform(event::LEAVE, 1, c"", c"");
        inform(event::STEP, 3, c"g2", c"last (Relu)");
        inform(event::RUN_END, 12, c"net", c"");
    }

    fn text(trace: &Trace) -> String {
        let mut bytes = vec![];
        trace.write_json(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Begin and end of the slices of this name, nanoseconds.
    fn slices(text: &str, name: &str) -> Vec<(u64, u64)> {
        let lines = text.lines().filter(|line| line.contains(&format!("{{\"name\":\"{name}\"")));
        let number = |line: &str, key: &str| -> u64 {
            let rest = line.split_once(&format!("\"{key}\":")).unwrap().1;
            let (whole, rest) = rest.split_once('.').unwrap();
            whole.parse::<u64>().unwrap() * 1000 + rest[..3].parse::<u64>().unwrap()
        };
        lines.map(|line| (number(line, "ts"), number(line, "ts") + number(line, "dur"))).collect()
    }

    #[test]
    fn steps_end_with_the_next_event_of_their_run() {
        let trace = Trace::new(100).unwrap();
        let mut options = Options::default();
        // SAFETY: the trace outlives all.
        unsafe { trace.attach(&mut options) };
        run(&options);
        let text = text(&trace);
        let one = |name: &str| slices(&text, name)[0];
        let (net, first, body, last) = (one("net"), one("g0"), one("scan"), one("g2"));
        assert_eq!((net.0 <= first.0, first.1, net.1), (true, body.0, last.1), "{text}");
        let inner = slices(&text, "g1");
        assert_eq!((inner.len(), inner[0].1, inner[1].1), (2, inner[1].0, body.1), "{text}");
        assert!(body.0 <= inner[0].0 && body.1 <= last.0, "{text}");
        assert!(text.contains("\"args\":{\"status\":12}"), "{text}");
        assert!(text.contains(r#""args":{"step":0,"nodes":"\"a\\\" (Conv)"}"#), "{text}");
        assert!(text.contains(r#"tab\u0009here"#), "{text}");
        assert_eq!((trace.events(), trace.lost()), (8, 0));
    }

    #[test]
    fn parts_are_on_the_threads_that_run_them() {
        let trace = Trace::new(0).unwrap();
        let pool = Pool::new(3).unwrap();
        let pool = ptr::from_ref(&pool).cast_mut().cast();
        let mut options = Options { parallel_for: Some(onnxc_pool_parallel_for), pool, ..Options::default() };
        // SAFETY: the trace outlives all.
        unsafe {
            trace.attach(&mut options);
            let (once, wrapped) = (options.pool, options.parallel_for);
            trace.attach(&mut options);
            assert_eq!(options.pool, once);
            assert!(wrapped.is_some_and(|function| !ptr::fn_addr_eq(
                function,
                onnxc_pool_parallel_for as ParallelForFn
            )));
            let mut other =
                Options { parallel_for: Some(onnxc_pool_parallel_for), pool, ..Options::default() };
            trace.attach(&mut other);
            assert_eq!(other.pool, once);
        }
        run(&options);
        let text = text(&trace);
        let parts: Vec<&str> = text.lines().filter(|line| line.contains("\"cat\":\"part\"")).collect();
        let field = |line: &str, key: &str| -> i64 {
            let rest = line.split_once(&format!("\"{key}\":")).unwrap().1;
            rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
        };
        let mut ranges: Vec<(i64, i64)> =
            parts.iter().map(|line| (field(line, "begin"), field(line, "end"))).collect();
        ranges.sort_unstable();
        // All of the loop, and no part twice.
        assert_eq!(
            ranges.iter().fold(0, |at, &(begin, end)| if begin == at { end } else { -1 }),
            64,
            "{ranges:?}"
        );
        assert!(
            parts
                .iter()
                .all(|line| line.starts_with("{\"name\":\"g0\"") && line.contains("a\\\\\\\" (Conv)")),
            "{text}"
        );
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let trace = Trace::new(3).unwrap();
        let mut options = Options::default();
        // SAFETY: the trace outlives all.
        unsafe { trace.attach(&mut options) };
        run(&options);
        assert_eq!((trace.events(), trace.lost()), (3, 5));
        // The run, the step, and the loop that is open at the end of the record.
        let text = text(&trace);
        assert_eq!(text.matches("\"ph\":\"X\"").count(), 3, "{text}");
        assert!(text.contains("\"lost_events\":5"), "{text}");
        assert!(Trace::new(usize::MAX / 8).is_none());
        // SAFETY: null and short options are refused.
        unsafe {
            assert_eq!(onnxc_trace_attach(ptr::null(), &mut options), Status::NULL_POINTER.0);
            options.struct_size = 112;
            assert_eq!(onnxc_trace_attach(&*trace, &mut options), Status::BAD_OPTIONS.0);
            assert_eq!(onnxc_trace_write(&*trace, ptr::null()), 22);
            assert_ne!(onnxc_trace_write(&*trace, c"/nonexistent/trace.json".as_ptr()), 0);
        }
    }
}
