//! Messages that nothing can be done with until somebody has looked.

use async_trait::async_trait;

use super::Memory;
use super::rows::Rows;
use crate::domain::Timestamp;
use crate::store::{MAX_QUARANTINE_KEY, Quarantine, QuarantineCase, Sighting, StoreError};

/// Opens a case, or counts the one that is open.
pub(super) fn record(rows: &mut Rows, sighting: Sighting, now: Timestamp) {
    let mut cases = rows.quarantine.values_mut();
    let known = cases
        .find(|case| case.sighting.source == sighting.source && case.sighting.key == sighting.key);
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

    async fn open(&self, limit: usize, after: i64) -> Result<Vec<QuarantineCase>, StoreError> {
        let rows = self.rows();
        let later = rows.quarantine.range(after.saturating_add(1)..);
        Ok(later.take(limit).map(|(_, case)| case.clone()).collect())
    }
}
