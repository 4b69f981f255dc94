//! Matrix products with constant right-hand sides, as shares of the processor's peak: one thread, f32.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use onnxc_proto::build;
use prost::Message;
use serde::Serialize;

use super::Result;
use super::engine::{Engine, Starter};
use super::machine::Machine;
use super::peak::PeakTask;
use super::running::{Failure, Row, Settings, prepare, take_round};
use super::table::{NONE, markdown, milliseconds};

/// Milliseconds of the shortest measurements of the peak: few meet an interruption.
const SHORT_MS: f64 = 2.0;

/// `rows` x `inner` times `inner` x `columns`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Product {
    pub rows: usize,
    pub inner: usize,
    pub columns: usize,
}

impl FromStr for Product {
    type Err = String;

    fn from_str(text: &str) -> Result<Product> {
        let sizes: Option<Vec<usize>> = text
            .split('x')
            .map(|size| size.parse().ok().filter(|size| (1..1 << 16).contains(size)))
            .collect();
        match sizes.as_deref() {
            Some(&[rows, inner, columns]) => Ok(Product { rows, inner, columns }),
            _ => Err("a product is ROWSxINNERxCOLUMNS, each below 65536".to_string()),
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.rows, self.inner, self.columns)
    }
}

impl Product {
    /// Multiplications and additions.
    pub fn operations(self) -> f64 {
        2.0 * self.rows as f64 * self.inner as f64 * self.columns as f64
    }

    /// `y = x B` with `x` f32[rows, inner] and a constant B of seeded values.
    fn model(self) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(0);
        let constant = (0..self.inner * self.columns).map(|_| random.f32() - 0.5).collect();
        let x = build::f32_value("x", &[self.rows, self.inner]);
        let y = build::f32_value("y", &[self.rows, self.columns]);
        let node = build::node("MatMul", &["x", "B"], &["y"]);
        let mut graph = build::graph(vec![x], vec![node], vec![y]);
        graph.initializer = vec![build::f32_tensor("B", &[self.inner as i64, self.columns as i64], constant)];
        build::model(17, graph).encode_to_vec()
    }
}

/// A product's figures; rates in 10^9 operations per second.
#[derive(Debug, Serialize)]
pub struct Line {
    pub product: Product,
    pub row: Row,
    /// The peak in measurements as long as one product takes onnxc, and in short ones; none where it cannot be measured.
    pub peak: Option<f64>,
    pub short_peak: Option<f64>,
}

impl Line {
    fn rate(&self, engine: Engine) -> Option<f64> {
        Some(self.product.operations() / self.row.engine(engine)?.min_ms()? / 1e6)
    }
}

/// All products.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub rounds: usize,
    pub seconds: f64,
    pub lines: Vec<Line>,
    pub failures: Vec<Failure>,
}

/// Measures every product: in each round onnxc, the peers and the peak in turn.
pub fn run(settings: &Settings, products: &[Product], progress: &dyn Fn(&str)) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let starter = settings.starter(folder.path());
    let settings = Settings { threads: vec![1], ..settings.clone() };
    let mut report = Report {
        machine: Machine::this(),
        rounds: settings.rounds,
        seconds: settings.seconds,
        lines: vec![],
        failures: vec![],
    };
    for &product in products {
        let model = folder.path().join(format!("{product}.onnx"));
        if let Err(message) = measure(&starter, &settings, product, &model, &mut report, progress) {
            report.failures.push(Failure { what: product.to_string(), engine: None, message });
        }
        let _ = std::fs::remove_file(&model);
    }
    Ok(report)
}

fn measure(
    starter: &Starter,
    settings: &Settings,
    product: Product,
    model: &Path,
    report: &mut Report,
    progress: &dyn Fn(&str),
) -> Result<()> {
    std::fs::write(model, product.model()).map_err(|error| format!("{}: {error}", model.display()))?;
    let place: PathBuf = model.with_extension("");
    let mut prepared = prepare(starter, settings, model, &place, &mut report.failures, progress)?;
    let (mut row, mut tasks) = prepared.pop().ok_or("there is no row")?;
    let (mut peak, mut short_peak) = (None, None);
    for round in 0..settings.rounds {
        progress(&format!("{product}: round {} of {}", round + 1, settings.rounds));
        take_round(starter, &mut row, &mut tasks, &mut report.failures);
        let Some(window_ms) = row.engine(Engine::Onnxc).and_then(|measured| measured.min_ms()) else {
            continue;
        };
        for (best, window_ms) in [(&mut peak, window_ms), (&mut short_peak, SHORT_MS)] {
            match starter.peak(&PeakTask { window_ms, seconds: settings.seconds }) {
                Ok(rate) => *best = Some(best.map_or(rate, |best: f64| best.max(rate))),
                Err(message) if round == 0 => progress(&message),
                Err(_) => {}
            }
        }
    }
    report.lines.push(Line { product, row, peak, short_peak });
    Ok(())
}

/// The table.
pub fn table(report: &Report) -> String {
    let rate = |rate: Option<f64>| rate.map_or(NONE.to_string(), |rate| format!("{rate:.1}"));
    let rows = report.lines.iter().map(|line| {
        let ours = line.rate(Engine::Onnxc);
        let share = |peak: Option<f64>| match (ours, peak) {
            (Some(ours), Some(peak)) => format!("{:.1}%", 100.0 * ours / peak),
            _ => NONE.to_string(),
        };
        vec![
            line.product.to_string(),
            milliseconds(line.row.engine(Engine::Onnxc).and_then(|measured| measured.min_ms())),
            rate(ours),
            rate(line.rate(Engine::OnnxRuntime)),
            rate(line.rate(Engine::OpenVino)),
            rate(line.peak),
            share(line.peak),
            rate(line.short_peak),
            share(line.short_peak),
        ]
    });
    let head =
        ["product", "onnxc ms", "onnxc", "ONNX Runtime", "OpenVINO", "peak", "share", "short peak", "share"];
    markdown(&head, &rows.collect::<Vec<_>>())
}

/// All of it, as `gemm.md`.
pub fn document(report: &Report) -> String {
    let machine = &report.machine;
    let failures: String =
        report.failures.iter().map(|failure| format!("- no figures: {failure}\n")).collect();
    format!(
        "# Matrix products\n\n- Machine: {} with {} cores, {}\n- {} rounds of {} s per engine\n\n{}\n{NOTE}\n{failures}",
        machine.cpu,
        machine.cores,
        machine.system,
        report.rounds,
        report.seconds,
        table(report),
    )
}

const NOTE: &str = "\
Products of f32 matrices, rows x inner x columns, the right-hand one constant, on one thread: 10^9 operations per second in
the least time of all rounds. The peak is what fused multiply-adds on registers alone reach in the same rounds. It is
measured over as long as one product takes, so that both meet the interruptions of that time, and over 2 ms, which few
interruptions meet.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::running::tests::row;

    #[test]
    fn products_are_read_and_shown() {
        let product: Product = "128x768x3072".parse().unwrap();
        assert_eq!((product.to_string().as_str(), product.operations()), ("128x768x3072", 603_979_776.0));
        for text in ["128x768", "1x2x3x4", "0x1x1", "ax1x1", "1x1x65536"] {
            assert!(text.parse::<Product>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_of_the_peaks() {
        let product = Product { rows: 1000, inner: 1000, columns: 50 };
        let row = row("p", 1, [Some(1.0), Some(2.0), None]);
        let line = Line { product, row, peak: Some(101.0), short_peak: Some(110.0) };
        let machine = Machine { cpu: "a CPU".into(), cores: 1, system: "linux".into() };
        let text = table(&Report { machine, rounds: 1, seconds: 1.0, lines: vec![line], failures: vec![] });
        let cells: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        let wanted = ["1000x1000x50", "1.000", "100.0", "50.0", NONE, "101.0", "99.0%", "110.0", "90.9%"];
        assert_eq!(cells[1..10], wanted);
    }
}
