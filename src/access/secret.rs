//! What the holder of a key knows and nobody else.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::domain::KeyHash;

const PREFIX: &str = "hf_";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A secret. It is not shown by accident: neither `Debug` nor a log has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret that this randomness makes: `hf_`, by which leaks are found, and base32.
    pub fn from_entropy(entropy: [u8; 32]) -> Self {
        let mut text = PREFIX.to_owned();
        let (mut bits, mut count) = (0_u16, 0);
        // The last character takes in four bits that are zero, so that all 256 are written.
        for byte in entropy.into_iter().chain([0]) {
            bits = bits << 8 | u16::from(byte);
            count += 8;
            while count >= 5 && text.len() < PREFIX.len() + 52 {
                count -= 5;
                text.push(char::from(ALPHABET[usize::from(bits >> count & 31)]));
            }
            bits &= (1 << count) - 1;
        }
        Self(text)
    }

    /// A secret that somebody chose, and that is long enough.
    pub fn chosen(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// What is stored of it.
    pub fn hash(&self) -> KeyHash {
        hash(&self.0)
    }

    /// The secret itself, for whoever is to have it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(..)")
    }
}

/// SHA-256. A secret of 256 random bits needs no salt and no slow hash: it is not to be guessed.
pub(super) fn hash(secret: &str) -> KeyHash {
    Sha256::digest(secret).into()
}
