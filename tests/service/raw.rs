//! Requests that no HTTP library would send.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer, taken apart just far enough.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl RawAnswer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The slug of the problem.
    pub fn slug(&self) -> String {
        let json = self.json();
        let slug = json["type"].as_str().unwrap_or_default();
        slug.trim_start_matches("/problems/").to_owned()
    }
}

/// Opens a connection to the server at `url`.
pub async fn connect(url: &str) -> TcpStream {
    let address = url.trim_start_matches("http://");
    TcpStream::connect(address).await.unwrap()
}

/// Sends these bytes on a connection of their own, and reads the answer.
pub async fn exchange(url: &str, request: &[u8]) -> Option<RawAnswer> {
    let mut connection = connect(url).await;
    let (mut read, mut write) = connection.split();
    // The server may answer, and close, before it has taken everything.
    let sent = async {
        let _ = write.write_all(request).await;
    };
    let received = async {
        let mut answer = Vec::new();
        let mut part = vec![0; 65_536];
        loop {
            match read.read(&mut part).await {
                Ok(0) | Err(_) => return answer,
                Ok(count) => answer.extend_from_slice(&part[..count]),
            }
            if is_complete(&answer) {
                return answer;
            }
        }
    };
    let both = async { tokio::join!(sent, received).1 };
    let answer = tokio::time::timeout(Duration::from_secs(60), both).await;
    parse(&answer.expect("the server answers or closes"))
}

/// A request with a body, to a path that is sent as it is.
pub fn post(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    request("POST", path, headers, body)
}

/// Any request with a body.
pub fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for header in headers {
        request += header;
        request += "\r\n";
    }
    if !headers
        .iter()
        .any(|header| header.starts_with("Transfer-Encoding"))
    {
        request += "Content-Length: ";
        request += &body.len().to_string();
        request += "\r\n";
    }
    let mut bytes = (request + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")
}

/// Has the whole body come that the head announces?
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = head_end(answer) else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| answer.len() >= end + 4 + length.parse::<usize>().unwrap())
}

/// Takes an answer apart; none if nothing came.
pub fn parse(answer: &[u8]) -> Option<RawAnswer> {
    let end = head_end(answer)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(RawAnswer {
        status,
        head,
        body: answer[end + 4..].to_vec(),
    })
}
