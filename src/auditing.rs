//! The command `audit`: says which rows are not as promised, and has counters put right.

use std::error::Error;
use std::sync::Arc;

use crate::database::{self, Database};
use crate::engine::{Finding, Repairer, TokioRuntime};
use crate::settings::AuditSettings;
use crate::store::{Clock, Drift, Horizons, Store};

/// Does what is asked, and says whether nothing is left that is not as promised.
pub async fn perform(settings: &AuditSettings) -> Result<bool, Box<dyn Error>> {
    let url = &settings.database.url;
    let Database { store, .. } = database::open_existing(url, Clock::Database).await?;
    if settings.repair {
        return repair(store, settings.apply).await;
    }
    let is_sound = audit(store.as_ref()).await?;
    if is_sound {
        eprintln!("every row of {url} is as promised");
    }
    Ok(is_sound)
}

/// Prints each row that is not as promised, and says how many there are.
async fn audit(store: &dyn Store) -> Result<bool, Box<dyn Error>> {
    let drift = store.audit().await?;
    for row in &drift {
        println!("{}", describe(row));
    }
    for line in describe_horizons(&store.retention().horizons().await?) {
        eprintln!("{line}");
    }
    if !drift.is_empty() {
        eprintln!("{} rows are not as promised", drift.len());
    }
    Ok(drift.is_empty())
}

/// Prints a line of JSON for each counter that is put right, or would be, and for each that cannot
/// be; and in the last line how many there are.
async fn repair(store: Arc<dyn Store>, apply: bool) -> Result<bool, Box<dyn Error>> {
    let runtime = Arc::new(TokioRuntime::start());
    let repairer = Repairer::new(store, runtime, apply);
    let mut tell = |finding: Finding| match serde_json::to_string(&finding) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("holdfast: {}: {error}", finding.row),
    };
    let run = repairer.run(&mut tell).await?;
    println!("{}", serde_json::to_string(&run)?);
    let is_done = apply || run.repaired == 0;
    Ok(is_done && run.left == 0 && !run.more)
}

/// A row that is not as promised, in a line.
pub fn describe(row: &Drift) -> String {
    format!("{}: {}: {}", row.promise, row.row, row.detail)
}

/// How far back there was nothing to compare with.
fn describe_horizons(horizons: &Horizons) -> Vec<String> {
    let tables = [
        ("ledger", horizons.ledger),
        ("reservations", horizons.reservations),
        ("events", horizons.events),
    ];
    let deleted = tables
        .into_iter()
        .filter_map(|(table, horizon)| Some((table, horizon?)));
    deleted
        .map(|(table, horizon)| {
            format!(
                "rows of {table} up to {horizon} were deleted for their age, and are not missed"
            )
        })
        .collect()
}
