//! The port to the API keys: who may use the API, and for what.

use async_trait::async_trait;

use super::StoreError;
use crate::domain::{ApiKey, ApiKeyId, Timestamp};

/// The keys that there are. They are few, and read as a whole.
#[async_trait]
pub trait ApiKeys: Send + Sync {
    /// Stores a new key.
    async fn create(&self, key: &ApiKey) -> Result<(), StoreError>;

    /// All keys, living and revoked, the oldest first.
    async fn all(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Takes a key away, for good. Was it there and living?
    async fn revoke(&self, id: ApiKeyId, at: Timestamp) -> Result<bool, StoreError>;
}
