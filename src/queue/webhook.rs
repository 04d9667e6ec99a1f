//! Signatures of pushes after the Standard Webhooks specification 1.0.0.
//!
//! Three headers: `webhook-id`, `webhook-timestamp` in Unix seconds, and `webhook-signature` with
//! one or more signatures, each `v1,` and the base64 of an HMAC-SHA256 over `id.timestamp.body`.
//! While a secret is exchanged for another both sides may have two.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderName};
use sha2::Sha256;

use crate::domain::Timestamp;

/// The name of the message, the same in each attempt to deliver it.
pub const ID: HeaderName = HeaderName::from_static("webhook-id");
/// When this attempt was made, in Unix seconds.
pub const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// One or more signatures, separated by spaces.
pub const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// How far the sender's clock may be from ours, in seconds, either way.
pub const TOLERANCE_SECONDS: i64 = 300;
/// How many bytes a secret has.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// What both sides know and nobody else: `whsec_` and 24 to 64 bytes in base64. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Why a text is no secret. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not `whsec_` with 24 to 64 bytes in base64 behind it")]
pub struct SecretFault;

/// Why a push is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// Nothing can be verified without a secret.
    #[error("no secret is known by which a push could be verified")]
    NoSecret,
    /// A header is missing, or is there twice, or is no text.
    #[error("the header {0} is not there exactly once")]
    Header(&'static str),
    /// The timestamp is no number.
    #[error("the timestamp is no number of seconds")]
    Timestamp,
    /// The timestamp is too far from our clock; the push may be an old one that is replayed.
    #[error("the timestamp is more than {TOLERANCE_SECONDS} s from our clock")]
    OutOfTime,
    /// No signature was made with a secret that we know.
    #[error("no signature fits")]
    Signature,
}

impl Secret {
    /// The signature of a message with this name and body, sent at this Unix second, as it stands
    /// in the header.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let digest = self.digest(id, &timestamp_s.to_string(), body);
        format!("v1,{}", STANDARD.encode(digest.finalize().into_bytes()))
    }

    fn digest(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut digest = keyed(&self.0);
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            digest.update(part);
        }
        digest
    }
}

#[expect(
    clippy::expect_used,
    reason = "HMAC takes a key of any length; the error is that of ciphers with fixed keys"
)]
fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

impl FromStr for Secret {
    type Err = SecretFault;

    fn from_str(text: &str) -> Result<Self, SecretFault> {
        let encoded = text.strip_prefix("whsec_").ok_or(SecretFault)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretFault)?;
        SECRET_BYTES
            .contains(&bytes.len())
            .then_some(Self(bytes))
            .ok_or(SecretFault)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("whsec_...")
    }
}

/// Trusts a push if one of its signatures was made with one of the secrets, over these very bytes
/// and not long ago. Signatures of versions that are not known are passed over.
pub fn verify(
    secrets: &[Secret],
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Untrusted> {
    if secrets.is_empty() {
        return Err(Untrusted::NoSecret);
    }
    let id = single(headers, &ID).ok_or(Untrusted::Header("webhook-id"))?;
    let timestamp = single(headers, &TIMESTAMP).ok_or(Untrusted::Header("webhook-timestamp"))?;
    let signatures = single(headers, &SIGNATURE).ok_or(Untrusted::Header("webhook-signature"))?;
    let sent_s: i64 = timestamp.parse().map_err(|_| Untrusted::Timestamp)?;
    let now_s = now.as_millis().div_euclid(1_000);
    if now_s.abs_diff(sent_s) > TOLERANCE_SECONDS.unsigned_abs() {
        return Err(Untrusted::OutOfTime);
    }
    let given: Vec<Vec<u8>> = signatures
        .split(' ')
        .filter_map(|signature| signature.strip_prefix("v1,"))
        .filter_map(|encoded| STANDARD.decode(encoded).ok())
        .collect();
    let fits = secrets.iter().any(|secret| {
        let digest = secret.digest(id, timestamp, body);
        // Compares in constant time.
        given
            .iter()
            .any(|signature| digest.clone().verify_slice(signature).is_ok())
    });
    if fits {
        Ok(())
    } else {
        Err(Untrusted::Signature)
    }
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok();
    value.filter(|value| !value.is_empty() && values.next().is_none())
}

#[cfg(test)]
mod tests;
