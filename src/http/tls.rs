//! The server's certificate, which changes while it serves.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::engine::Runtime;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Why a certificate and its key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot serve TLS with {file}: {reason}; look at HOLDFAST_TLS_CERT and HOLDFAST_TLS_KEY")]
pub struct TlsFault {
    file: String,
    reason: String,
}

impl TlsFault {
    fn new(file: &Path, reason: impl Display) -> Self {
        Self {
            file: file.display().to_string(),
            reason: reason.to_string(),
        }
    }
}

/// A certificate and its private key, as their files last were when they were good.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    /// What the files held when they were last looked at, good or not.
    seen: Mutex<Files>,
    config: RwLock<Arc<ServerConfig>>,
}

#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads both files, which are PEM.
    pub fn read(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsFault> {
        let files = Files::read(&certificate, &key)?;
        let config = files.config(&certificate, &key)?;
        Ok(Self {
            certificate,
            key,
            seen: Mutex::new(files),
            config: RwLock::new(Arc::new(config)),
        })
    }

    /// Looks at the files again and again, for as long as the process lives.
    pub async fn keep_fresh(self: Arc<Self>, runtime: Arc<dyn Runtime>) {
        let mut known = None;
        loop {
            runtime.sleep(LOOK_EVERY).await;
            match self.look_again() {
                Ok(is_new) => {
                    if is_new {
                        tracing::info!("the TLS certificate was read again");
                    }
                    known = None;
                }
                // Once is enough for a file that is missing.
                Err(fault) if known.as_ref() == Some(&fault) => {}
                Err(fault) => {
                    tracing::error!(%fault, "the TLS certificate stays as it was");
                    known = Some(fault);
                }
            }
        }
    }

    /// Takes over what has changed in the files, and says whether anything had. What cannot be
    /// used is told once, and changes nothing.
    fn look_again(&self) -> Result<bool, TlsFault> {
        let files = Files::read(&self.certificate, &self.key)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == files {
            return Ok(false);
        }
        let config = files.config(&self.certificate, &self.key);
        *seen = files;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config?);
        Ok(true)
    }

    /// What greets the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }
}

impl Files {
    fn read(certificate: &Path, key: &Path) -> Result<Self, TlsFault> {
        let read = |file: &Path| std::fs::read(file).map_err(|error| TlsFault::new(file, error));
        Ok(Self {
            certificate: read(certificate)?,
            key: read(key)?,
        })
    }

    fn config(&self, certificate: &Path, key: &Path) -> Result<ServerConfig, TlsFault> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| TlsFault::new(certificate, error))?;
        if chain.is_empty() {
            let reason = "it holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)";
            return Err(TlsFault::new(certificate, reason));
        }
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                let reason = "it holds no private key in PEM that is not encrypted; `openssl \
                              pkey` decrypts one";
                TlsFault::new(key, reason)
            }
            error => TlsFault::new(key, error),
        })?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsFault::new(certificate, error))?
            .with_no_client_auth()
            // It also looks whether the two belong together.
            .with_single_cert(chain, private)
            .map_err(|error| TlsFault::new(certificate, error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
