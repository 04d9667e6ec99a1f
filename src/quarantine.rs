//! `holdfast quarantine`: lists the cases in quarantine, shows them, replays and dismisses them.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::access::LOCAL;
use crate::database::{self, Database};
use crate::domain::{Reason, Rules, TextFault};
use crate::engine::{
    self, Cases, Dismissed, Engine, EngineError, ReplayMany, Replayed, Runtime, TokioRuntime,
};
use crate::http::{CaseBody, ReplayBody};
use crate::metrics::Metrics;
use crate::settings::{DismissCase, ListCases, QuarantineTask, ReplayCases, ShowCase};
use crate::store::{CaseFilter, CaseState, Clock, StoreError};

/// How many cases are read together for a list; each may be 64 KiB.
const READ_AT_ONCE: usize = 100;
/// How long a replay may wait for rows that others have locked.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a task about quarantine was not done.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The database is not to be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A replay did not come to its end.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What was found cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Nobody takes what is printed.
    #[error("cannot print: {0}")]
    Io(#[from] std::io::Error),
    /// The reason breaks the rule of texts.
    #[error("the reason {0}; give another --reason")]
    Reason(#[from] TextFault),
    /// There is no such case.
    #[error("there is no case {0}; `holdfast quarantine list` shows the numbers")]
    NoCase(i64),
    /// The case is about a hold that stands.
    #[error(
        "the hold of case {0} still stands, and nobody would release it; mend what stands in its \
         way, and replay the case"
    )]
    StillHeld(i64),
}

/// Does what is asked about quarantine. Each result goes to stdout as a line of JSON.
pub async fn perform(task: QuarantineTask) -> Result<(), QuarantineError> {
    match task {
        QuarantineTask::List(asked) => list(asked).await,
        QuarantineTask::Show(asked) => show(asked).await,
        QuarantineTask::Replay(asked) => replay(asked).await,
        QuarantineTask::Dismiss(asked) => dismiss(asked).await,
    }
}

async fn list(asked: ListCases) -> Result<(), QuarantineError> {
    let opened = database::open_existing(&asked.database.url, Clock::Database).await?;
    let filter = CaseFilter {
        source: asked.source,
        key: asked.key,
        state: asked.state.as_deref().and_then(CaseState::from_word),
    };
    let quarantine = opened.store.quarantine();
    let mut after = 0;
    loop {
        let page = quarantine.list(&filter, after, READ_AT_ONCE).await?;
        for case in &page {
            print(&CaseBody::listed(case))?;
        }
        match page.last() {
            Some(last) if page.len() == READ_AT_ONCE => after = last.id,
            _ => return Ok(()),
        }
    }
}

async fn show(asked: ShowCase) -> Result<(), QuarantineError> {
    let opened = database::open_existing(&asked.database.url, Clock::Database).await?;
    print_case(&opened, asked.id, None).await
}

/// Prints the case, and what came of its replay if it was replayed.
async fn print_case(
    opened: &Database,
    id: i64,
    replayed: Option<&Replayed>,
) -> Result<(), QuarantineError> {
    let found = opened.store.quarantine().find(id).await?;
    let (case, actions) = found.ok_or(QuarantineError::NoCase(id))?;
    let case = CaseBody::whole(&case, &actions);
    match replayed {
        None => print(&case),
        Some(replayed) => print(&ReplayBody::new(replayed, case)),
    }
}

/// An embedded database that somebody serves is refused: it has one engine that decides.
async fn replay(asked: ReplayCases) -> Result<(), QuarantineError> {
    database::refuse_missing(&asked.database.url)?;
    let opened = database::open_for_serving(&asked.database.url).await?;
    let (engine, cases) = start(&opened);
    let done = match asked.id {
        Some(id) => match cases.replay(id, LOCAL).await? {
            Some(replayed) => print_case(&opened, id, Some(&replayed)).await,
            None => Err(QuarantineError::NoCase(id)),
        },
        None => print(&cases.replay_many(&many(&asked), LOCAL).await?),
    };
    engine.shut_down().await;
    done
}

fn many(asked: &ReplayCases) -> ReplayMany {
    let limit = asked.limit.unwrap_or(ReplayMany::DEFAULT_LIMIT);
    ReplayMany {
        source: asked.source.clone(),
        after: asked.after.unwrap_or_default(),
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
        per_second: asked.per_second.unwrap_or(ReplayMany::DEFAULT_PER_SECOND),
        dry_run: !asked.apply,
    }
}

async fn dismiss(asked: DismissCase) -> Result<(), QuarantineError> {
    let reason = Reason::new(asked.reason)?;
    let id = asked.id;
    let opened = database::open_existing(&asked.database.url, Clock::Database).await?;
    let (engine, cases) = start(&opened);
    let dismissed = cases.dismiss(id, &reason, LOCAL).await;
    engine.shut_down().await;
    match dismissed? {
        Dismissed::Done => print_case(&opened, id, None).await,
        Dismissed::StillHeld => Err(QuarantineError::StillHeld(id)),
        Dismissed::NoCase => Err(QuarantineError::NoCase(id)),
    }
}

fn start(opened: &Database) -> (Engine, Cases) {
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::start());
    let settings = engine::Settings {
        // Nothing is held, extended or published here.
        rules: Rules {
            max_hold_seconds: i64::MAX,
            queue: None,
        },
        pace: None,
        retry_budget: crate::domain::RetryBudget::default(),
        sales_lanes: opened.sales_lanes,
        patience: PATIENCE,
    };
    let store = Arc::clone(&opened.store);
    let engine = Engine::start(store, runtime.clone(), &Arc::new(Metrics::new()), settings);
    let cases = Cases::new(engine.clone(), runtime);
    (engine, cases)
}

fn print(result: &impl serde::Serialize) -> Result<(), QuarantineError> {
    let line = serde_json::to_string(result)?;
    // Whoever reads a list may stop before its end.
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
