//! Requests over a real connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::Service;
use super::shelf::Shelf;
use crate::http::{Serving, Settings, serve_until};

/// Sends `request` on a connection of its own, and reads until the server closes it.
async fn exchange(listener: TcpListener, request: &str) -> String {
    exchange_with(listener, Service::empty(), request).await
}

async fn exchange_with(listener: TcpListener, service: Service, request: &str) -> String {
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopping = async {
        let _ = stopped.await;
    };
    let serving = Serving {
        tls: None,
        header_timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
    };
    let server = tokio::spawn(serve_until(listener, service.router, stopping, serving));
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = connection.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .unwrap()
        .unwrap();
    stop.send(()).unwrap();
    server.await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn any_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_came() {
    let request = format!(
        "POST /v1/reservations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        50 << 20
    );
    let answer = exchange(any_port().await, &request).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("/problems/payload-too-large"), "{answer}");
}

/// Its sender hears that it was the body, and not the service, that took too long.
#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
    let settings = Settings {
        request_timeout: Duration::from_millis(500),
        ..Settings::default()
    };
    let service = Service::new(Shelf::default(), settings);
    let request = "POST /v1/reservations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                   Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{";
    let answer = exchange_with(any_port().await, service, request).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("/problems/request-timeout"), "{answer}");
}

#[tokio::test]
async fn a_head_of_a_problem_has_no_body() {
    let request = "HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = exchange(any_port().await, request).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}
