//! Who may use the API.

use async_trait::async_trait;

use super::error::store_error;
use super::instant::Instant;
use super::read::fetch;
use super::{Postgres, row};
use crate::domain::{ApiKey, ApiKeyId, Timestamp};
use crate::store::{ApiKeys, CorruptRow, StoreError};

const CREATE: &str = "
    INSERT INTO api_keys (id, name, merchant, scopes, secret_hash, created_at, revoked_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

const ALL: &str = "
    SELECT id, name, merchant, scopes, secret_hash, created_at, revoked_at
    FROM api_keys
    ORDER BY id";

const REVOKE: &str = "
    UPDATE api_keys
    SET revoked_at = $2
    WHERE id = $1 AND revoked_at IS NULL";

#[async_trait]
impl ApiKeys for Postgres {
    async fn create(&self, key: &ApiKey) -> Result<(), StoreError> {
        let query = sqlx::query(CREATE)
            .bind(key.id.as_uuid())
            .bind(key.name.as_str())
            .bind(key.merchant.as_str())
            .bind(key.scopes.to_string())
            .bind(key.secret_hash.as_slice())
            .bind(Instant(key.created_at))
            .bind(key.revoked_at.map(Instant));
        query.execute(&self.pool).await.map_err(store_error)?;
        Ok(())
    }

    async fn all(&self) -> Result<Vec<ApiKey>, StoreError> {
        let found = fetch(self, sqlx::query(ALL)).await?;
        let keys = found.iter().map(row::api_key);
        Ok(keys.collect::<Result<_, CorruptRow>>()?)
    }

    async fn revoke(&self, id: ApiKeyId, at: Timestamp) -> Result<bool, StoreError> {
        let query = sqlx::query(REVOKE).bind(id.as_uuid()).bind(Instant(at));
        let changed = query.execute(&self.pool).await.map_err(store_error)?;
        Ok(changed.rows_affected() > 0)
    }
}
