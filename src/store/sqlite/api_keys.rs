//! Who may use the API.

use async_trait::async_trait;

use super::error::store_error;
use super::{Sqlite, row};
use crate::domain::{ApiKey, ApiKeyId, Timestamp};
use crate::store::{ApiKeys, CorruptRow, StoreError};

#[async_trait]
impl ApiKeys for Sqlite {
    async fn create(&self, key: &ApiKey) -> Result<(), StoreError> {
        sqlx::query(
            "
            INSERT INTO api_keys (id, name, merchant, scopes, secret_hash, created_at, revoked_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
            ",
        )
        .bind(key.id.as_uuid().to_string())
        .bind(key.name.as_str())
        .bind(key.merchant.as_str())
        .bind(key.scopes.to_string())
        .bind(key.secret_hash.as_slice())
        .bind(key.created_at.as_millis())
        .bind(key.revoked_at.map(Timestamp::as_millis))
        .execute(&self.writer)
        .await
        .map_err(store_error)?;
        Ok(())
    }

    async fn all(&self) -> Result<Vec<ApiKey>, StoreError> {
        let found = sqlx::query(
            "
            SELECT id, name, merchant, scopes, secret_hash, created_at, revoked_at
            FROM api_keys
            ORDER BY id
            ",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(store_error)?;
        let keys = found.iter().map(row::api_key);
        Ok(keys.collect::<Result<_, CorruptRow>>()?)
    }

    async fn revoke(&self, id: ApiKeyId, at: Timestamp) -> Result<bool, StoreError> {
        let changed = sqlx::query(
            "
            UPDATE api_keys
            SET revoked_at = ?2
            WHERE id = ?1
              AND revoked_at IS NULL
            ",
        )
        .bind(id.as_uuid().to_string())
        .bind(at.as_millis())
        .execute(&self.writer)
        .await
        .map_err(store_error)?;
        Ok(changed.rows_affected() > 0)
    }
}
