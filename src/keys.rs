//! `holdfast keys`: makes API keys, lists them and takes them away.

use crate::access::Secret;
use crate::database;
use crate::domain::{ApiKey, ApiKeyId, ApiKeyIdFault, KeyName, Merchant, ScopesFault, TextFault};
use crate::engine::{Runtime, TokioRuntime};
use crate::settings::{CreateKey, DatabaseSettings, KeysTask, RevokeKey};
use crate::store::{Clock, StoreError};

/// Why a task about keys was not done.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The database is not to be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name breaks the rule of texts.
    #[error("the name {0}; give another --name")]
    Name(#[from] TextFault),
    /// The merchant breaks the rule of texts.
    #[error("the merchant {0}; give another --merchant")]
    Merchant(TextFault),
    /// The scopes are none.
    #[error("--scope {0}")]
    Scopes(#[from] ScopesFault),
    /// The id cannot be one.
    #[error("{id:?} {fault}; `holdfast keys list` shows the ids")]
    Id {
        /// What was given.
        id: String,
        /// What is wrong with it.
        fault: ApiKeyIdFault,
    },
    /// No key has the id.
    #[error("there is no key {0}; `holdfast keys list` shows the ids")]
    Unknown(ApiKeyId),
}

/// Does what is asked about keys. Results go to stdout, remarks to stderr.
pub async fn perform(task: KeysTask) -> Result<(), KeysError> {
    match task {
        KeysTask::Create(asked) => create(asked).await,
        KeysTask::List(database) => list(&database).await,
        KeysTask::Revoke(asked) => revoke(asked).await,
    }
}

async fn create(asked: CreateKey) -> Result<(), KeysError> {
    let name = KeyName::new(asked.name)?;
    let merchant = Merchant::new(asked.merchant).map_err(KeysError::Merchant)?;
    let scopes = asked.scopes.join(" ").parse()?;
    // The file may be new: a service that others can reach needs a key before it starts.
    let opened = database::open(&asked.database.url, Clock::Database).await?;
    let runtime = TokioRuntime::start();
    let (mut for_id, mut for_secret) = ([0; 10], [0; 32]);
    runtime.fill_random(&mut for_id);
    runtime.fill_random(&mut for_secret);
    let secret = Secret::from_entropy(for_secret);
    let now = opened.store.now().await?;
    let key = ApiKey {
        id: ApiKeyId::new(now, for_id),
        name,
        merchant,
        scopes,
        secret_hash: secret.hash(),
        created_at: now,
        revoked_at: None,
    };
    opened.store.api_keys().create(&key).await?;
    eprintln!(
        "made key {} ({}), merchant: {}, scopes: {}; its secret is shown this once",
        key.id,
        key.name.as_str(),
        key.merchant.as_str(),
        key.scopes
    );
    println!("{}", secret.reveal());
    Ok(())
}

async fn list(database: &DatabaseSettings) -> Result<(), KeysError> {
    let opened = database::open_existing(&database.url, Clock::Database).await?;
    let keys = opened.store.api_keys().all().await?;
    for key in &keys {
        let state = match key.revoked_at {
            Some(at) => format!("revoked {at}"),
            None => "living".to_owned(),
        };
        let (id, name, merchant) = (key.id, key.name.as_str(), key.merchant.as_str());
        let (scopes, made) = (&key.scopes, key.created_at);
        println!("{id}\t{name}\t{merchant}\t{scopes}\tmade {made}\t{state}");
    }
    if keys.is_empty() {
        eprintln!("there are no keys; `holdfast keys create` makes one");
    }
    Ok(())
}

async fn revoke(asked: RevokeKey) -> Result<(), KeysError> {
    let id = asked.id.parse().map_err(|fault| KeysError::Id {
        id: asked.id.clone(),
        fault,
    })?;
    let opened = database::open_existing(&asked.database.url, Clock::Database).await?;
    let store = &opened.store;
    if store.api_keys().revoke(id, store.now().await?).await? {
        eprintln!("revoked key {id}; servers refuse it within a second");
        return Ok(());
    }
    // Twice is once.
    let keys = store.api_keys().all().await?;
    if keys.iter().any(|key| key.id == id) {
        eprintln!("key {id} was revoked before");
        return Ok(());
    }
    Err(KeysError::Unknown(id))
}
