//! Figures as Markdown, which also serves the terminal: columns are padded to one width.

use super::engine::Engine;
use super::running::{Report, Row, geometric_mean};

/// What stands where there is no figure.
pub const NONE: &str = "–";

/// A table whose first column is text and all others numbers.
pub fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count());
        cells.chain([head[at].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |texts: Vec<&str>| {
        let cells = texts.iter().zip(&widths).enumerate().map(|(at, (text, &width))| match at {
            0 => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(head.to_vec());
    let rule = widths.iter().enumerate().map(|(at, &width)| match at {
        0 => format!("|{}", "-".repeat(width + 2)),
        _ => format!("|{}:", "-".repeat(width + 1)),
    });
    text += &format!("{}|\n", rule.collect::<String>());
    for row in &rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// Four significant digits, at most four of them behind the point.
pub fn milliseconds(value: Option<f64>) -> String {
    let Some(value) = value else { return NONE.to_string() };
    let digits = if value > 0.0 { value.log10().floor() as i64 } else { 0 };
    let decimals = (3 - digits).clamp(0, 4) as usize;
    format!("{value:.decimals$}")
}

/// Two decimals.
pub fn ratio(value: Option<f64>) -> String {
    value.map_or(NONE.to_string(), |value| format!("{value:.2}"))
}

/// MiB with one decimal.
pub fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or(NONE.to_string(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
}

fn figure(row: &Row, engine: Engine, of: impl Fn(&super::running::Measured) -> Option<f64>) -> String {
    milliseconds(row.engine(engine).and_then(of))
}

const ENGINES: [Engine; 3] = [Engine::Onnxc, Engine::OnnxRuntime, Engine::OpenVino];

/// Times of repeated runs, with the geometric mean of the ratios for each number of threads.
pub fn speed(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in &report.rows {
        let mut cells = vec![row.label(), row.threads.to_string()];
        cells.extend(ENGINES.map(|engine| figure(row, engine, |measured| measured.min_ms())));
        cells.push(ratio(row.ratio()));
        cells.extend(ENGINES.map(|engine| figure(row, engine, |measured| measured.median_ms())));
        rows.push(cells);
    }
    for (threads, mean) in means(report) {
        let mut cells = vec!["geometric mean".to_string(), threads.to_string()];
        cells.extend(ENGINES.map(|_| String::new()));
        cells.push(ratio(mean));
        cells.extend(ENGINES.map(|_| String::new()));
        rows.push(cells);
    }
    let head = [
        "model",
        "threads",
        "onnxc ms",
        "ONNX Runtime ms",
        "OpenVINO ms",
        "ratio",
        "onnxc median",
        "ONNX Runtime median",
        "OpenVINO median",
    ];
    markdown(&head, &rows)
}

/// The geometric mean of all ratios for each number of threads.
pub fn means(report: &Report) -> Vec<(usize, Option<f64>)> {
    thread_counts(report).into_iter().map(|threads| (threads, mean(report, threads))).collect()
}

fn mean(report: &Report, threads: usize) -> Option<f64> {
    let rows = report.rows.iter().filter(|row| row.threads == threads);
    geometric_mean(&rows.filter_map(Row::ratio).collect::<Vec<_>>())
}

/// Numbers of threads in the order in which the rows have them.
pub fn thread_counts(report: &Report) -> Vec<usize> {
    let mut counts: Vec<usize> = report.rows.iter().map(|row| row.threads).collect();
    let mut seen = Vec::new();
    counts.retain(|count| {
        !seen.contains(count) && {
            seen.push(*count);
            true
        }
    });
    counts
}

/// Time to the first result and peak memory.
pub fn start(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in &report.rows {
        let mut cells = vec![row.label(), row.threads.to_string()];
        cells.extend(ENGINES.map(|engine| figure(row, engine, |measured| measured.first_ms())));
        cells.extend(
            ENGINES.map(|engine| mebibytes(row.engine(engine).and_then(|measured| measured.bytes()))),
        );
        rows.push(cells);
    }
    let head = [
        "model",
        "threads",
        "onnxc first ms",
        "ONNX Runtime first ms",
        "OpenVINO first ms",
        "onnxc MiB",
        "ONNX Runtime MiB",
        "OpenVINO MiB",
    ];
    markdown(&head, &rows)
}

/// What compiling costs onnxc, once per model.
pub fn compiling(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut last = None;
    for row in &report.rows {
        let Some(compiled) = row.compiled.as_ref().filter(|_| last != Some(&row.model)) else { continue };
        last = Some(&row.model);
        rows.push(vec![
            row.model.clone(),
            format!("{:.2}", compiled.compile_ms / 1e3),
            format!("{:.2}", compiled.link_ms / 1e3),
            mebibytes(compiled.bytes),
            mebibytes(Some(compiled.object_bytes)),
        ]);
    }
    markdown(&["model", "compile s", "link s", "peak MiB", "object MiB"], &rows)
}

/// All of it, as `benchmarks.md`.
pub fn document(report: &Report) -> String {
    let versions: Vec<String> =
        report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let machine = &report.machine;
    let flags = if report.flags.is_empty() {
        String::new()
    } else {
        format!("\n- Flags of onnxc: `{}`", report.flags.join(" "))
    };
    let failures: String = match report.failures.as_slice() {
        [] => String::new(),
        failures => {
            let lines: Vec<String> = failures.iter().map(|failure| format!("- {failure}")).collect();
            format!("\n## Without figures\n\n{}\n", lines.join("\n"))
        }
    };
    format!(
        "# Benchmarks\n\n\
         - Machine: {} with {} cores, {}\n- Versions: {}\n- {} rounds of {} s per engine{flags}\n\n\
         ![Ratios](benchmarks.svg)\n\n\
         ## Speed\n\n{}\n{SPEED_NOTE}\n\n## First result and memory\n\n{}\n{START_NOTE}\n\n\
         ## Compiling\n\n{}\n{COMPILE_NOTE}\n{failures}",
        machine.cpu,
        machine.cores,
        machine.system,
        versions.join(", "),
        report.rounds,
        report.seconds,
        speed(report),
        start(report),
        compiling(report),
    )
}

const SPEED_NOTE: &str = "\
Times of one inference. Each engine runs in a fresh process every round, the engines in turn, on the same inputs; a time is
the least of all rounds, a median the median of the rounds' medians. The ratio is the better peer's time divided by
onnxc's: above 1 onnxc is faster. onnxc's object is called from native code with the runtime library's thread pool; peers are
called from Python, which costs them some microseconds. ONNX Runtime has one inter-op thread; OpenVINO runs in f32 with
the latency hint. Symbolic dims without a data set are pinned (in ONNX Runtime those with a name); rows that name sizes run one compiled
object of onnxc and ONNX Runtime's session of the dynamic model, OpenVINO a model reshaped to them.";

const START_NOTE: &str = "\
First ms: from the engine's library in memory to the first result, files in the page cache. For onnxc that is loading the
compiled model's shared library, allocating and filling the buffers, starting the thread pool and one run; for peers
it is reading the model, compiling it and one run. MiB: peak resident memory of the process less what was resident
before the engine came, the inputs in memory: for peers before their library is imported into Python, for onnxc before the
model's library is loaded. Both count the engine, the weights and all buffers.";

const COMPILE_NOTE: &str = "\
Compiling is from the model's file to the object's, linking is the C compiler's time for the shared library. The
peak is resident memory, less that of the program before it opened the model; it includes the mapped model file.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::running::Failure;
    use crate::bench::running::tests::row;

    pub(super) fn report() -> Report {
        let rows = vec![
            row("a|b", 1, [Some(2.0), Some(3.0), Some(8.0)]),
            row("a|b", 2, [Some(2.0), Some(1.0), None]),
            row("c", 1, [Some(1.0), Some(6.0), None]),
            row("c", 2, [None, Some(6.0), Some(5.0)]),
        ];
        let machine = Machine { cpu: "a CPU".into(), cores: 2, system: "linux".into() };
        let versions = vec![("onnxc".to_string(), "1".to_string())];
        let failures = vec![Failure { what: "c".into(), engine: Some(Engine::Onnxc), message: "no".into() }];
        Report { machine, versions, rounds: 1, seconds: 1.0, flags: vec![], rows, failures }
    }

    #[test]
    fn figures_keep_four_digits() {
        let texts = [12345.6, 123.456, 9.87654, 0.0123456, 0.0].map(|value| milliseconds(Some(value)));
        assert_eq!(texts, ["12346", "123.5", "9.877", "0.0123", "0.000"]);
        assert_eq!(milliseconds(None), NONE);
        assert_eq!(ratio(Some(1.005_1)), "1.01");
        assert_eq!(ratio(None), NONE);
        assert_eq!(mebibytes(Some(3 << 19)), "1.5");
    }

    #[test]
    fn speed_has_a_row_per_model_and_thread_count_and_the_means() {
        let text = speed(&report());
        let cells = |line: &str| {
            line.replace("\\|", "/").split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>()
        };
        let lines: Vec<Vec<String>> = text.lines().map(cells).collect();
        assert_eq!(lines.len(), 2 + 4 + 2);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
        assert_eq!(lines[2][1..7], ["a/b", "1", "2.000", "3.000", "8.000", "1.50"]);
        assert_eq!(lines[3][3..7], ["2.000", "1.000", NONE, "0.50"]);
        assert_eq!(lines[5][3..7], [NONE, "6.000", "5.000", NONE]);
        assert_eq!((lines[6][1].as_str(), lines[6][6].as_str()), ("geometric mean", "3.00"));
        assert_eq!(lines[7][6], "0.50");
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|&width| width == widths[0]), "{text}");
    }

    #[test]
    fn the_document_tells_failures() {
        let text = document(&report());
        assert!(text.contains("## Without figures\n\n- c: onnxc: no\n"), "{text}");
        assert!(text.contains("a CPU with 2 cores"));
    }
}
