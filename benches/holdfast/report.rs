//! What was measured, beside what it should be.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use holdfast::engine::{Runtime as _, TokioRuntime};
use serde_json::{Value, json};

/// Everything that was measured in one run.
#[derive(Default)]
pub struct Report {
    bench: &'static str,
    rows: Vec<Row>,
}

struct Row {
    bench: &'static str,
    what: String,
    unit: &'static str,
    /// One figure for each round; their median is what counts.
    rounds: Vec<f64>,
    target: Option<Target>,
    /// The machine's load average when it was written down.
    load: f64,
}

/// What a figure should be.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }

    fn words(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

impl Row {
    fn verdict(&self) -> &'static str {
        match self
            .target
            .map(|target| target.is_met(median(&self.rounds)))
        {
            None => "",
            Some(true) => "pass",
            Some(false) => "FAIL",
        }
    }

    fn rounds(&self) -> String {
        let rounds: Vec<String> = self.rounds.iter().map(|round| shown(*round)).collect();
        rounds.join(" ")
    }

    fn json(&self) -> Value {
        json!({
            "bench": self.bench,
            "what": self.what,
            "median": median(&self.rounds),
            "unit": self.unit,
            "rounds": self.rounds,
            "target": self.target.map(Target::words),
            "verdict": self.verdict(),
            "load_average": self.load,
        })
    }
}

impl Report {
    /// What follows belongs to this measurement.
    pub fn begin(&mut self, bench: &'static str) {
        self.bench = bench;
        eprintln!("{bench}:");
    }

    /// Notes a figure that stands beside others.
    pub fn note(&mut self, what: &str, unit: &'static str, rounds: &[f64]) {
        self.add(what, unit, rounds, None);
    }

    /// Notes a figure that has a target.
    pub fn judge(&mut self, what: &str, unit: &'static str, rounds: &[f64], target: Target) {
        self.add(what, unit, rounds, Some(target));
    }

    fn add(&mut self, what: &str, unit: &'static str, rounds: &[f64], target: Option<Target>) {
        eprintln!("  {what}: {} {unit}", shown(median(rounds)));
        self.rows.push(Row {
            bench: self.bench,
            what: what.to_owned(),
            unit,
            rounds: rounds.to_vec(),
            target,
            load: load_average(),
        });
    }

    /// Prints the table, writes the file, and fails if a target was missed.
    pub fn finish(self) -> ExitCode {
        println!("\n{}", self.table());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench.json");
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let text = serde_json::to_string_pretty(&rows).expect("figures are JSON");
        std::fs::write(&path, text + "\n").expect("target/ can be written");
        println!("All figures: {}", path.display());
        if self.rows.iter().any(|row| row.verdict() == "FAIL") {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    fn table(&self) -> String {
        let mut table = "| measured | median | rounds | target | load | |\n".to_owned();
        table += "| --- | --- | --- | --- | --- | --- |\n";
        for row in &self.rows {
            // Writing to a string does not fail.
            let _ = writeln!(
                table,
                "| {}: {} | {} {} | {} | {} | {:.1} | {} |",
                row.bench,
                row.what,
                shown(median(&row.rounds)),
                row.unit,
                row.rounds(),
                row.target.map(Target::words).unwrap_or_default(),
                row.load,
                row.verdict(),
            );
        }
        table
    }
}

/// The middle one.
pub fn median(figures: &[f64]) -> f64 {
    percentile(figures, 50)
}

/// The figure that so many per cent of the others do not exceed.
pub fn percentile(figures: &[f64], per_cent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last * per_cent + 50) / 100)
        .copied()
        .unwrap_or(f64::NAN)
}

/// The milliseconds since the stopwatch stood at `started`.
pub fn ms_since(stopwatch: &TokioRuntime, started: Duration) -> f64 {
    let took = stopwatch.elapsed().saturating_sub(started);
    took.as_secs_f64() * 1_000.0
}

/// Each figure of one list by that of the same round in another.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

fn shown(figure: f64) -> String {
    if figure.abs() >= 100.0 {
        format!("{figure:.0}")
    } else {
        format!("{figure:.2}")
    }
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or(f64::NAN)
}
