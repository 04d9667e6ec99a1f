//! The queue that the settings name, as far as serving needs it.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::QueueRule;
use crate::engine::Runtime;
use crate::queue::{DeliveryMode, Findings, Queue, QueueState, Side};
use crate::settings::QueueSettings;

use super::ServeError;

/// How long the start waits for the queue to say how it wants to be used.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a queue is asked again that did not say.
const ASKED_EVERY: Duration = Duration::from_secs(10);

/// A queue, and what goes with it.
#[derive(Clone)]
pub(super) struct Opened {
    pub queue: Arc<dyn Queue>,
    /// What tells it from every other one that is or was configured.
    pub identity: String,
    pub state: Arc<QueueState>,
}

/// Opens the queue that the settings name; `None` for the built-in timer. One that wants to be
/// used otherwise than its driver does is refused; one that cannot be reached is waited for in
/// the background, since nothing but publishing needs it.
pub(super) async fn open(
    settings: &QueueSettings,
    runtime: &Arc<dyn Runtime>,
) -> Result<Option<Opened>, ServeError> {
    let opened = settings
        .open()
        .map_err(|fault| ServeError::Queue(fault.to_string()))?;
    let (Some(queue), Some(identity)) = (opened, settings.identity()) else {
        return Ok(None);
    };
    let state = Arc::new(QueueState::default());
    let asked = tokio::select! {
        asked = queue.check() => asked.map_err(|fault| fault.to_string()),
        () = runtime.sleep(PATIENCE) => Err("it does not answer".to_owned()),
    };
    match asked {
        Ok(findings) => fits(&findings).map_err(ServeError::Queue)?,
        Err(trouble) => {
            state.is_unwell(Side::Publishing, &trouble);
            let again = ask_again(Arc::clone(&queue), Arc::clone(&state), Arc::clone(runtime));
            runtime.spawn(Box::pin(again));
        }
    }
    if let Some(url) = settings.push_url() {
        tracing::info!("pushes go to {url}");
    }
    Ok(Some(Opened {
        queue,
        identity,
        state,
    }))
}

impl Opened {
    /// What the domain has to know of it.
    pub fn rule(&self) -> QueueRule {
        QueueRule {
            max_delay_ms: self.queue.limits().max_delay_ms,
        }
    }

    /// Is it to be pulled?
    pub fn is_pulled(&self) -> bool {
        self.queue.limits().delivery == DeliveryMode::Pull
    }
}

fn fits(findings: &Findings) -> Result<(), String> {
    if findings.mismatches.is_empty() {
        return Ok(());
    }
    let mismatches = findings.mismatches.join("; ");
    Err(format!(
        "the queue wants to be used otherwise: {mismatches}; `holdfast queue check` says more"
    ))
}

/// Asks a queue until it says how it wants to be used.
async fn ask_again(queue: Arc<dyn Queue>, state: Arc<QueueState>, runtime: Arc<dyn Runtime>) {
    loop {
        runtime.sleep(ASKED_EVERY).await;
        let Ok(findings) = queue.check().await else {
            continue;
        };
        match fits(&findings) {
            Ok(()) => state.is_well(Side::Publishing),
            Err(trouble) => {
                tracing::error!("{trouble}");
                state.is_unwell(Side::Publishing, &trouble);
            }
        }
        return;
    }
}
