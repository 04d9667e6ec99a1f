//! Measures Holdfast against its targets, each beside what it is compared with. README.md, one
//! directory up, says what is measured and how to repeat it.

#![cfg(test)]

mod bounds;
mod due;
mod expiry;
mod footprint;
mod holds;
mod lateness;
mod load;
mod queue;
mod report;
mod reserve;
#[path = "../../tests/world/mod.rs"]
mod world;

use std::process::ExitCode;

use report::Report;

/// Every measurement, in the order in which they run.
const NAMES: [&str; 7] = [
    "reserve",
    "expiry",
    "lateness",
    "bounds",
    "due",
    "footprint",
    "queue",
];

/// What the servers log: no line per request, but the one that says where they listen.
const SETTINGS: [(&str, &str); 1] = [("HOLDFAST_LOG", "warn,holdfast::serve=info")];

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .partition(|argument| argument.starts_with('-'));
    let unknown = names.iter().find(|name| !NAMES.contains(&name.as_str()));
    let unknown = unknown.or_else(|| flags.iter().find(|flag| *flag != "--ten-million"));
    if let Some(unknown) = unknown {
        eprintln!("`{unknown}` is not one of {NAMES:?} or --ten-million");
        return ExitCode::FAILURE;
    }
    let chosen = |name: &str| names.is_empty() || names.iter().any(|given| given == name);
    let runtime = tokio::runtime::Runtime::new().expect("tokio starts");
    let report = runtime.block_on(async {
        let mut report = Report::default();
        for name in NAMES.into_iter().filter(|name| chosen(name)) {
            report.begin(name);
            match name {
                "reserve" => reserve::measure(&mut report).await,
                "expiry" => expiry::measure(&mut report).await,
                "lateness" => lateness::measure(&mut report).await,
                "bounds" => bounds::measure(&mut report).await,
                "due" => due::measure(&mut report, !flags.is_empty()).await,
                "queue" => queue::measure(&mut report).await,
                _ => footprint::measure(&mut report).await,
            }
        }
        report
    });
    report.finish()
}
