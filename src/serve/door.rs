//! Where the service can be reached, and by whom: listeners, keys and encryption.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::ServeError;
use crate::access::{self, Access, Keys, RateLimit, Secret};
use crate::database;
use crate::engine::Runtime;
use crate::http::{self, Serving, Tls};
use crate::settings::{DoorSettings, Settings};
use crate::store::Store;

/// Everything that stands between the world and the handlers.
pub(super) struct Door {
    /// Who is let in.
    pub access: Arc<Access>,
    listener: TcpListener,
    operations: Option<TcpListener>,
    serving: Serving,
    is_open: bool,
    keys: Arc<Keys>,
    runtime: Arc<dyn Runtime>,
}

/// Refuses, before anything is made, to be open to more than this machine: a database that is not
/// there yet has no keys.
pub(super) fn check(settings: &Settings) -> Result<(), ServeError> {
    let is_new = database::missing_file(&settings.database.url).is_some();
    if is_new && settings.door.bootstrap_key.is_none() && !settings.listen.ip().is_loopback() {
        return Err(ServeError::Unguarded(settings.listen));
    }
    Ok(())
}

impl Door {
    /// Reads the keys and the certificate, and takes the addresses.
    pub async fn open(
        settings: &Settings,
        store: &Arc<dyn Store>,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Self, ServeError> {
        let keys = Arc::new(Keys::read(Arc::clone(store), Arc::clone(runtime)).await?);
        let is_loopback = settings.listen.ip().is_loopback();
        if !is_loopback && settings.door.bootstrap_key.is_none() && keys.are_none() {
            return Err(ServeError::Unguarded(settings.listen));
        }
        let tls = match settings.door.tls() {
            Some((certificate, key)) => Some(Arc::new(Tls::read(certificate, key)?)),
            None => None,
        };
        let listener = bind(settings.listen, "HOLDFAST_LISTEN").await?;
        let operations = match settings.door.operations_listen {
            Some(address) => Some(bind(address, "HOLDFAST_OPERATIONS_LISTEN").await?),
            None => None,
        };
        let access_settings = access_settings(&settings.door, is_loopback);
        let access = Access::new(access_settings, Arc::clone(&keys), Arc::clone(runtime));
        Ok(Self {
            is_open: access.is_open(),
            access: Arc::new(access),
            listener,
            operations,
            serving: Serving {
                tls,
                header_timeout: settings.door.header_timeout,
                grace: settings.shutdown,
            },
            keys,
            runtime: Arc::clone(runtime),
        })
    }

    /// Says where it can be reached. It is the first line that says that the service can be used;
    /// whoever starts it may wait for it.
    pub fn announce(&self, database: impl std::fmt::Display) -> Result<(), ServeError> {
        if let Some(operations) = &self.operations {
            let address = operations.local_addr()?;
            tracing::info!("readiness and figures on http://{address}");
        }
        let scheme = if self.serving.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let address = self.listener.local_addr()?;
        tracing::info!(%database, "listening on {scheme}://{address}");
        if self.is_open {
            tracing::info!("without API keys it serves this machine only");
        }
        Ok(())
    }

    /// Serves `api`, and `operations` where they have a listener of their own, until `stop`
    /// resolves and what was under way is answered.
    pub async fn serve(self, api: http::Api, stop: impl Future<Output = ()> + Send + 'static) {
        let (say_stop, stopped) = watch::channel(false);
        let until_stopped = || {
            let mut stopped = stopped.clone();
            async move {
                // An error means that nobody is left to say stop.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }
        };
        let keys = self.keys.keep_fresh(stopped.clone());
        self.runtime.spawn(Box::pin(keys));
        if let Some(tls) = &self.serving.tls {
            let certificate = Arc::clone(tls).keep_fresh(Arc::clone(&self.runtime));
            self.runtime.spawn(Box::pin(certificate));
        }
        let in_plain = Serving {
            tls: None,
            ..self.serving.clone()
        };
        let operations = async {
            if let Some(listener) = self.operations {
                http::serve_until(listener, api.operations, until_stopped(), in_plain).await;
            }
        };
        let stopping = async {
            stop.await;
            let _ = say_stop.send(true);
        };
        let serving = http::serve_until(self.listener, api.all, until_stopped(), self.serving);
        tokio::join!(stopping, serving, operations);
    }
}

async fn bind(address: SocketAddr, variable: &'static str) -> Result<TcpListener, ServeError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| ServeError::Listen {
        address,
        error,
        variable,
    })
}

fn access_settings(settings: &DoorSettings, is_loopback: bool) -> access::Settings {
    let bootstrap = settings.bootstrap_key.as_ref();
    let burst = |per_second| settings.rate_burst.unwrap_or(per_second);
    access::Settings {
        bootstrap: bootstrap.map(|secret| Secret::chosen(secret.reveal())),
        limit: settings
            .rate_limit
            .and_then(|per_second| RateLimit::new(per_second, burst(per_second))),
        is_loopback,
    }
}
