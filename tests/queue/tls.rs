//! Encrypted connections, believed if a given authority vouches for them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::Timestamp;
use holdfast::engine::TokioRuntime;
use holdfast::lab::emulator::{Emulator, Faults, Settings};
use holdfast::queue::rest::Rest;
use holdfast::queue::{Fault, Publication, Queue as _};
use holdfast::store::Clock;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::garbage::http;
use crate::service::{TOKEN, message, rest_settings, secret};
use crate::world::directory::TempDir;

/// An authority that nobody else knows.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn write(&self, directory: &TempDir, name: &str) -> PathBuf {
        let file = directory.path().join(name);
        fs::write(&file, self.0.pem()).unwrap();
        file
    }

    /// A server with a certificate of this authority, which answers every request the same; where
    /// it is, and what it was asked.
    async fn serve(&self, answer: String) -> (String, mpsc::UnboundedReceiver<String>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        );
        let (asked, asks) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                // A client that does not believe the certificate hangs up.
                let Ok(mut connection) = acceptor.accept(connection).await else {
                    continue;
                };
                let mut request = vec![0; 65_536];
                let length = connection.read(&mut request).await.unwrap_or(0);
                let _ = asked.send(String::from_utf8_lossy(&request[..length]).into_owned());
                let _ = connection.write_all(answer.as_bytes()).await;
                let _ = connection.shutdown().await;
            }
        });
        (url, asks)
    }
}

#[tokio::test]
async fn a_queue_is_believed_if_its_authority_is() {
    let directory = TempDir::new();
    let (ours, other) = (Authority::new(), Authority::new());
    let answer = http("200 OK", "", r#"{"data":{"message_id":"m1"}}"#);
    let (url, _asks) = ours.serve(answer).await;
    let batch = [Publication {
        message: message(1),
        delay_ms: 0,
    }];
    for (authority, is_believed) in [(&ours, true), (&other, false)] {
        let mut settings = rest_settings(&url, "pull", TOKEN);
        settings.ca = Some(authority.write(&directory, "ca.pem"));
        let rest = Rest::open(settings).unwrap();
        let answers = rest.publish(&batch, Timestamp::EPOCH).await;
        match &answers[0] {
            Ok(receipt) => assert!(is_believed, "{receipt:?}"),
            Err(Fault::Unavailable(said)) if !is_believed => {
                assert!(said.contains("certificate"), "{said}");
            }
            Err(fault) => panic!("{fault:?}"),
        }
    }
}

#[tokio::test]
async fn pushes_go_to_a_subscriber_whose_authority_is_given() {
    let directory = TempDir::new();
    let authority = Authority::new();
    let (url, mut asks) = authority.serve(http("200 OK", "", "")).await;
    let settings = Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        token: TOKEN.to_owned(),
        secrets: vec![secret()],
        push_url: Some(format!("{url}/v1/deliveries/rest").parse().unwrap()),
        push_ca: Some(authority.write(&directory, "ca.pem")),
        faults: Faults::default(),
    };
    let runtime = Arc::new(TokioRuntime::start());
    let emulator = Emulator::start(settings, Clock::Database, runtime)
        .await
        .unwrap();
    let queue = format!("http://{}", emulator.address());
    let batch = [Publication {
        message: message(1),
        delay_ms: 0,
    }];
    let rest = crate::service::rest(&queue, "push", TOKEN);
    assert!(rest.publish(&batch, Timestamp::EPOCH).await[0].is_ok());
    let asked = tokio::time::timeout(Duration::from_secs(20), asks.recv()).await;
    let asked = asked.expect("a push comes").unwrap();
    assert!(asked.starts_with("POST /v1/deliveries/rest "), "{asked}");
}
