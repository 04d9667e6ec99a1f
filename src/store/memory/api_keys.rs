//! Who may use the API.

use async_trait::async_trait;

use super::Memory;
use crate::domain::{ApiKey, ApiKeyId, Timestamp};
use crate::store::{ApiKeys, StoreError};

#[async_trait]
impl ApiKeys for Memory {
    async fn create(&self, key: &ApiKey) -> Result<(), StoreError> {
        let mut rows = self.rows();
        let broken = |constraint: &str| StoreError::Constraint {
            constraint: constraint.to_owned(),
            detail: key.id.to_string(),
        };
        if rows.api_keys.contains_key(&key.id) {
            return Err(broken("api_keys_pkey"));
        }
        let mut known = rows.api_keys.values();
        if known.any(|known| known.secret_hash == key.secret_hash) {
            return Err(broken("api_keys_secret_once"));
        }
        rows.api_keys.insert(key.id, key.clone());
        Ok(())
    }

    async fn all(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.rows().api_keys.values().cloned().collect())
    }

    async fn revoke(&self, id: ApiKeyId, at: Timestamp) -> Result<bool, StoreError> {
        let mut rows = self.rows();
        let living = rows
            .api_keys
            .get_mut(&id)
            .filter(|key| key.revoked_at.is_none());
        let found = living.is_some();
        if let Some(key) = living {
            key.revoked_at = Some(at);
        }
        Ok(found)
    }
}
