//! Connections: from the moment they are taken to the last answer on them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::tls::Tls;

/// The most connections at a time; further ones wait in the system's queue. A process has so many
/// files open at most, and each connection is one.
const MAX_CONNECTIONS: usize = 10_000;

/// How long a client may take to agree on how to encrypt.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long nothing is taken when the system has no room for another connection.
const BREATH: Duration = Duration::from_secs(1);

/// How connections are served.
#[derive(Clone)]
pub struct Serving {
    /// The certificate, if they are encrypted.
    pub tls: Option<Arc<Tls>>,
    /// How long a client may take to send the head of a request, and how long a connection may
    /// lie idle between two.
    pub header_timeout: Duration,
    /// How long requests that are under way may take to finish at the end.
    pub grace: Duration,
}

/// Serves `router` until `stop` resolves; then takes no more connections and gives the requests
/// that are under way at most the grace to finish.
pub async fn serve_until(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send,
    serving: Serving,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let shutdown = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (connection, place) = tokio::select! {
            () = &mut stop => break,
            taken = take(&listener, &places) => taken,
        };
        let (router, serving, watcher) = (router.clone(), serving.clone(), shutdown.watcher());
        tokio::spawn(async move {
            serve(connection, router, serving, watcher).await;
            drop(place);
        });
    }
    drop(listener);
    tokio::select! {
        () = shutdown.shutdown() => {}
        () = tokio::time::sleep(serving.grace) => {
            tracing::warn!("requests were still under way when the time to finish ran out");
        }
    }
}

/// The next connection, as soon as there is a place for it.
async fn take(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Nobody closes the semaphore, so there is always a place at last.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                // The end of a long answer must not wait until its beginning is acknowledged.
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "a connection may be slow");
                }
                return (connection, place);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be taken");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

async fn serve(connection: TcpStream, router: Router, serving: Serving, watcher: Watcher) {
    let Some(tls) = &serving.tls else {
        return speak(connection, router, &serving, watcher).await;
    };
    let handshake = tls.acceptor().accept(connection);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(connection)) => speak(connection, router, &serving, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on how to encrypt"),
        Err(_) => tracing::debug!("a client took too long to agree on how to encrypt"),
    }
}

async fn speak(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    serving: &Serving,
    watcher: Watcher,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(serving.header_timeout)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
