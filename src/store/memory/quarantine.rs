//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;

use super::Memory;
use super::rows::Rows;
use crate::domain::{OutboxEntry, Timestamp};
use crate::store::{
    CaseAction, CaseFilter, MAX_QUARANTINE_KEY, Quarantine, QuarantineCase, RESOLVED,
    RecordedAction, Resolution, SHOWN_ACTIONS, Sighting, StoreError,
};

/// Opens a case, or counts the one that is open.
pub(super) fn record(rows: &mut Rows, sighting: Sighting, now: Timestamp) {
    let mut cases = rows.quarantine.values_mut();
    let known = cases.find(|case| {
        case.resolution.is_none()
            && case.sighting.source == sighting.source
            && case.sighting.key == sighting.key
    });
    if let Some(case) = known {
        case.sighting = sighting;
        case.attempts += 1;
        case.last_seen = case.last_seen.max(now);
        return;
    }
    let id = rows.quarantine.last_key_value().map_or(0, |(id, _)| *id) + 1;
    let case = QuarantineCase {
        id,
        sighting,
        attempts: 1,
        first_seen: now,
        last_seen: now,
        resolution: None,
    };
    rows.quarantine.insert(id, case);
}

#[async_trait]
impl Quarantine for Memory {
    async fn record(&self, sighting: &Sighting) -> Result<(), StoreError> {
        if !(1..=MAX_QUARANTINE_KEY).contains(&sighting.key.len()) {
            return Err(StoreError::Constraint {
                constraint: "quarantine_key_length".to_owned(),
                detail: sighting.key.clone(),
            });
        }
        let kept = Sighting {
            payload: sighting.kept_payload().to_vec(),
            ..sighting.clone()
        };
        record(&mut self.rows(), kept, self.clock.in_process());
        Ok(())
    }

    async fn list(
        &self,
        filter: &CaseFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<QuarantineCase>, StoreError> {
        let rows = self.rows();
        let later = rows.quarantine.range(after.saturating_add(1)..);
        let wanted = later.map(|(_, case)| case).filter(|case| {
            let found = &case.sighting;
            filter.state.is_none_or(|state| state == case.state())
                && (filter.source.as_ref()).is_none_or(|source| *source == found.source)
                && (filter.key.as_ref()).is_none_or(|key| *key == found.key)
        });
        Ok(wanted.take(limit).cloned().collect())
    }

    async fn find(
        &self,
        id: i64,
    ) -> Result<Option<(QuarantineCase, Vec<RecordedAction>)>, StoreError> {
        let rows = self.rows();
        let mut actions = rows.actions.get(&id).cloned().unwrap_or_default();
        actions.drain(..actions.len().saturating_sub(SHOWN_ACTIONS));
        let case = rows.quarantine.get(&id).cloned();
        Ok(case.map(|case| (case, actions)))
    }

    async fn act(&self, action: &CaseAction) -> Result<bool, StoreError> {
        let now = self.clock.in_process();
        let mut rows = self.rows();
        let Some(case) = rows.quarantine.get_mut(&action.case) else {
            return Err(StoreError::Constraint {
                constraint: "quarantine_actions_case".to_owned(),
                detail: action.case.to_string(),
            });
        };
        let was_open = case.resolution.is_none();
        if was_open {
            let resolution = action.resolution.clone();
            case.resolution = resolution.map(|text| Resolution { at: now, text });
        }
        if let Some(message) = action.again.filter(|_| was_open) {
            rows.put_entry(&OutboxEntry {
                job: message.job,
                again: true,
                publish_after: now,
            });
            rows.take_message(message);
        }
        let outcome = if was_open { &action.outcome } else { RESOLVED };
        let actions = rows.actions.entry(action.case).or_default();
        actions.push(RecordedAction {
            kind: action.kind,
            by: action.by.clone(),
            at: now,
            outcome: outcome.to_owned(),
        });
        Ok(was_open)
    }
}
