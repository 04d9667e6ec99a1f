//! Encryption, with certificates that are thrown away.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::house::{House, PATIENCE, assert_refused, until};
use crate::world::directory::TempDir;
use crate::world::server::{ServerProcess, run};

/// How soon a new certificate is used.
const RELOADED: Duration = Duration::from_secs(5);

/// Makes a certificate for this machine, and its key.
fn make_certificate(directory: &Path, name: &str) -> CertificateDer<'static> {
    let file = |end: &str| directory.join(format!("{name}{end}"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=holdfast"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(file(".crt"))
        .arg("-keyout")
        .arg(file(".key"))
        .output()
        .expect("openssl can be run");
    assert!(made.status.success(), "{made:?}");
    CertificateDer::from_pem_file(file(".crt")).unwrap()
}

fn install(directory: &Path, name: &str) {
    for end in [".crt", ".key"] {
        let from = directory.join(format!("{name}{end}"));
        std::fs::copy(from, directory.join(format!("current{end}"))).unwrap();
    }
}

/// Asks a server whose certificate must be this one, and returns what it says; none if it shows
/// another one.
async fn ask(server: &ServerProcess, certificate: &CertificateDer<'static>) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = server.url().strip_prefix("https://").unwrap();
    let connection = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut connection = connector.connect(name, connection).await.ok()?;
    let request = "GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    Some(String::from_utf8(answer).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_and_broken_ones_are_not_used() {
    let directory = TempDir::new();
    let directory = directory.path();
    let (old, new) = (
        make_certificate(directory, "old"),
        make_certificate(directory, "new"),
    );
    install(directory, "old");
    let [cert, key] = [".crt", ".key"].map(|end| directory.join(format!("current{end}")));
    let settings = [
        ("HOLDFAST_TLS_CERT", cert.to_str().unwrap()),
        ("HOLDFAST_TLS_KEY", key.to_str().unwrap()),
    ];
    let house = House::on_sqlite();
    let server = house.start(&settings);
    assert!(server.url().starts_with("https://"));
    let answer = ask(&server, &old).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(ask(&server, &new).await, None);

    install(directory, "new");
    let answer = until(RELOADED, async || ask(&server, &new).await).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(ask(&server, &old).await, None);

    // A certificate with somebody else's key, and no certificate at all.
    std::fs::copy(directory.join("old.crt"), &cert).unwrap();
    complaints(&server, 1).await;
    assert!(ask(&server, &new).await.is_some());
    std::fs::write(&cert, "no certificate").unwrap();
    complaints(&server, 2).await;
    assert!(ask(&server, &new).await.is_some());

    // Who speaks in plain is not answered, and nobody is held up by it.
    let address = server.url().strip_prefix("https://").unwrap();
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(ask(&server, &new).await.is_some());
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"));
    assert!(server.terminate().await.success());

    // What cannot be used does not start.
    let url = house.url();
    let settings = [&settings[..], &[("HOLDFAST_DATABASE_URL", &url)]].concat();
    let words = ["current.crt", "HOLDFAST_TLS_CERT", "BEGIN CERTIFICATE"];
    assert_refused(&run(&["serve"], &settings), &words);
    install(directory, "new");
    let encrypted = Command::new("openssl")
        .args(["pkey", "-aes256", "-passout", "pass:secret", "-in"])
        .arg(directory.join("new.key"))
        .arg("-out")
        .arg(&key)
        .status();
    assert!(encrypted.unwrap().success());
    let words = ["current.key", "HOLDFAST_TLS_KEY", "decrypts"];
    assert_refused(&run(&["serve"], &settings), &words);
}

/// Waits until the server has said so often that it keeps its certificate.
async fn complaints(server: &ServerProcess, times: usize) {
    until(PATIENCE, async || {
        let log = server.log();
        let said = log.iter().filter(|line| line.contains("stays as it was"));
        (said.count() == times).then_some(())
    })
    .await;
}
