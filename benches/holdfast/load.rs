//! What puts load on a server or a database: wrk and pgbench.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// What came of a run of wrk.
pub struct Requests {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// A file that stands beside this one.
pub fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("benches/holdfast")
        .join(name)
}

/// Reserves one unit per request for some seconds, each of one of so many SKUs. Every request
/// must be answered, and with success.
pub async fn reserves(server: &str, connections: u32, skus: u32, seconds: u32) -> Requests {
    shopping(server, connections, seconds, &[&skus.to_string()]).await
}

/// The same of one hot SKU, each under an Idempotency-Key of its own, which begins with `prefix`.
pub async fn keyed_reserves(
    server: &str,
    connections: u32,
    prefix: &str,
    seconds: u32,
) -> Requests {
    shopping(server, connections, seconds, &["1", prefix]).await
}

async fn shopping(server: &str, connections: u32, seconds: u32, arguments: &[&str]) -> Requests {
    let mut command = Command::new("wrk");
    command
        .args(["--threads", "1", "--timeout", "20s"])
        .args(["--connections", &connections.to_string()])
        .args(["--duration", &format!("{seconds}s")])
        .arg("--script")
        .arg(file("reserve.lua"))
        .arg(format!("{server}/v1/reservations"))
        .arg("--")
        .args(arguments);
    let output = output(command, "install Debian's package wrk").await;
    let line = output.lines().find(|line| line.starts_with('{'));
    let summary: Value = serde_json::from_str(line.expect("the script prints a summary")).unwrap();
    let figure = |name: &str| summary[name].as_f64().unwrap();
    assert!(figure("errors") < 1.0, "some requests failed: {summary}");
    Requests {
        per_second: figure("per_second"),
        p50_ms: figure("p50_ms"),
        p99_ms: figure("p99_ms"),
    }
}

/// How pgbench runs a script.
#[derive(Clone, Copy)]
pub enum Span {
    Seconds(u32),
    Transactions(usize),
}

/// Transactions per second of a script with so many clients.
pub async fn pgbench(
    database: &str,
    script: &str,
    variables: &[(&str, usize)],
    clients: u32,
    span: Span,
) -> f64 {
    let mut command = Command::new("pgbench");
    command
        .args(["--no-vacuum", "--protocol", "prepared"])
        .args(["--client", &clients.to_string()])
        .args(["--jobs", &clients.min(2).to_string()])
        .arg("--file")
        .arg(file(script));
    match span {
        Span::Seconds(seconds) => command.args(["--time", &seconds.to_string()]),
        Span::Transactions(count) => command.args(["--transactions", &count.to_string()]),
    };
    for (name, value) in variables {
        command.arg(format!("--define={name}={value}"));
    }
    // As the program's own connections are told.
    command.env(
        "PGOPTIONS",
        "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
         -c enable_mergejoin=off -c jit=off",
    );
    // Nothing is encrypted on this machine, for the program neither.
    command.env("PGSSLMODE", "disable");
    // Its own client does not know the words that other clients put behind the address.
    command.arg(database.split('?').next().unwrap_or(database));
    let output = output(command, "install Debian's package postgresql-contrib").await;
    let rate = output.lines().find_map(|line| {
        let rate = line.strip_prefix("tps = ")?;
        rate.split(' ').next()?.parse().ok()
    });
    rate.expect("pgbench says how many transactions it made")
}

/// What a command prints, while this process goes on with its other work.
async fn output(mut command: Command, advice: &str) -> String {
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output
        .unwrap()
        .unwrap_or_else(|error| panic!("{error}: {advice}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaint}");
    said
}
