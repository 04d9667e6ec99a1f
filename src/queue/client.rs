//! The HTTP client by which queues are called.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a connection that nobody uses is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Whose certificates are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust<'a> {
    /// Those of the authorities that the system knows.
    System,
    /// Those of the authorities in this PEM file, and of no others.
    File(&'a Path),
    /// None: no connection will be encrypted.
    Nobody,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientFault {
    /// The file of authorities cannot be read.
    #[error("cannot read the CA file {}: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file of authorities has none.
    #[error("there is no certificate in PEM format in the CA file {}", .0.display())]
    NoAuthority(PathBuf),
    /// The system's own authorities, or one in the file, cannot be used.
    #[error("cannot prepare encrypted connections: {0}")]
    Tls(String),
}

/// A client that keeps up to `idle` connections for each host, gives up on a request after
/// `timeout`, follows no redirect, since what is signed or secret is meant for one host only, and
/// asks no proxy that the environment names.
pub fn http_client(
    trust: Trust<'_>,
    idle: usize,
    timeout: Duration,
) -> Result<Client, ClientFault> {
    // The cryptography of the whole process. It fails if it is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .pool_max_idle_per_host(idle)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(Policy::none())
        .no_proxy()
        .user_agent(concat!("holdfast/", env!("CARGO_PKG_VERSION")));
    let client = match trust {
        Trust::System => client,
        Trust::File(path) => client.tls_certs_only(authorities(path)?),
        Trust::Nobody => client.tls_certs_only([]),
    };
    client
        .build()
        .map_err(|error| ClientFault::Tls(causes(&error)))
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, ClientFault> {
    let pem = std::fs::read(path).map_err(|error| ClientFault::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(ClientFault::NoAuthority(path.to_owned())),
    }
}

/// An error and what caused it, in one line: the client's own words alone do not say what is wrong.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}
