//! Signatures exchanged with the public libraries of Standard Webhooks. `make interop` installs
//! those and runs this.

#![cfg(test)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use holdfast::queue::webhook::{ID, SIGNATURE, Secret, TIMESTAMP, verify};
use holdfast::store::Clock;
use http::HeaderMap;
use serde_json::{Value, json};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID_TEXT: &str = "msg_19af0_7";

/// A program around such a library: it reads `secret`, `id`, `timestamp`, `body` and `signature`
/// from a line of JSON, and prints what it would sign and whether it believes the signature.
fn ask(library: &mut Command, question: &Value) -> Value {
    let mut child = library
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`make interop` installs what is run here");
    let mut input = child.stdin.take().unwrap();
    input.write_all(question.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{library:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn exchange_with(library: impl Fn() -> Command) {
    let secret: Secret = SECRET.parse().unwrap();
    let now = Clock::Database.in_process();
    let timestamp_s = now.as_millis() / 1_000;
    let long = json!({ "p": "x".repeat(200_000) }).to_string();
    for body in [
        "{}",
        r#"{ "spaces" : [1, 2.50] }"#,
        r#"{"word":"größer 漢字 🦀"}"#,
        &long,
    ] {
        let ours = secret.sign(ID_TEXT, timestamp_s, body.as_bytes());
        let question = |signature: &str| {
            json!({
                "secret": SECRET,
                "id": ID_TEXT,
                "timestamp": timestamp_s,
                "body": body,
                "signature": signature,
            })
        };
        let answer = ask(&mut library(), &question(&ours));
        assert_eq!(answer["is_believed"], true, "{answer}");
        let theirs = answer["signature"].as_str().unwrap();
        let headers: HeaderMap = [
            (ID, ID_TEXT.to_owned()),
            (TIMESTAMP, timestamp_s.to_string()),
            (SIGNATURE, theirs.to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
        let believed = verify(
            std::slice::from_ref(&secret),
            &headers,
            body.as_bytes(),
            now,
        );
        assert_eq!(believed, Ok(()), "{theirs}");
        let other = secret.sign("msg_other", timestamp_s, body.as_bytes());
        let answer = ask(&mut library(), &question(&other));
        assert_eq!(answer["is_believed"], false, "{answer}");
        // While secrets are exchanged there are two signatures, of which one fits.
        let answer = ask(&mut library(), &question(&format!("{other} {ours}")));
        assert_eq!(answer["is_believed"], true, "{answer}");
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn installed() -> PathBuf {
    root().join("target/interop")
}

#[test]
#[ignore = "needs what `make interop` installs"]
fn signatures_are_exchanged_with_python() {
    exchange_with(|| {
        let mut command = Command::new(installed().join("venv/bin/python"));
        command.arg(root().join("tests/interop/standard_webhooks.py"));
        command
    });
}

#[test]
#[ignore = "needs what `make interop` installs"]
fn signatures_are_exchanged_with_javascript() {
    exchange_with(|| {
        let mut command = Command::new("node");
        command.arg(root().join("tests/interop/standard_webhooks.mjs"));
        command.arg(installed().join("package.json"));
        command
    });
}
