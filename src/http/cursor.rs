//! Where the next page of a list begins.
//!
//! A cursor is base64url of JSON. Besides the position it carries a digest of the list and its
//! filter, because a position in one list means nothing in another.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// Changes whenever the meaning of a position does.
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cursor<P> {
    v: u8,
    filter: String,
    after: P,
}

/// Writes the position after an item, in the list that `filter` describes.
pub(super) fn write<P: Serialize>(filter: &impl Serialize, after: P) -> Result<String, Problem> {
    let cursor = Cursor {
        v: VERSION,
        filter: digest(filter)?,
        after,
    };
    let json = serde_json::to_vec(&cursor).map_err(Problem::internal)?;
    Ok(URL_SAFE_NO_PAD.encode(json))
}

/// Reads a position in the list that `filter` describes.
pub(super) fn read<P: DeserializeOwned>(filter: &impl Serialize, text: &str) -> Result<P, Problem> {
    let bad = || Problem::malformed("cursor", "is not a cursor of this list with this filter");
    let json = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
    let cursor: Cursor<P> = serde_json::from_slice(&json).map_err(|_| bad())?;
    if cursor.v == VERSION && cursor.filter == digest(filter)? {
        Ok(cursor.after)
    } else {
        Err(bad())
    }
}

fn digest(filter: &impl Serialize) -> Result<String, Problem> {
    let json = serde_json::to_vec(filter).map_err(Problem::internal)?;
    // Nobody gains anything by a collision; 96 bits tell filters apart.
    Ok(URL_SAFE_NO_PAD.encode(&Sha256::digest(json)[..12]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let text = write(&("stock", "a"), ("default", "SKU-1")).ok().unwrap();
        let after: (String, String) = read(&("stock", "a"), &text).ok().unwrap();
        assert_eq!(after, ("default".to_owned(), "SKU-1".to_owned()));
    }

    /// leapmux/leapmux#287 and its kin: a cursor that is not this list's is refused, not guessed at.
    #[test]
    fn what_is_no_cursor_of_this_list_is_refused() {
        let text = write(&("stock", "a"), 7).ok().unwrap();
        let status = |filter: (&str, &str), text: &str| {
            read::<i64>(&filter, text)
                .err()
                .map(|problem| problem.status())
        };
        assert_eq!(status(("stock", "a"), &text), None);
        assert_eq!(status(("stock", "b"), &text), Some(400));
        assert_eq!(status(("events", "a"), &text), Some(400));
        assert_eq!(status(("stock", "a"), &text[1..]), Some(400));
        assert_eq!(status(("stock", "a"), &text[..text.len() - 3]), Some(400));
        assert_eq!(status(("stock", "a"), ""), Some(400));
        assert_eq!(status(("stock", "a"), "é"), Some(400));
        let foreign = URL_SAFE_NO_PAD.encode(r#"{"v":2,"filter":"","after":7}"#);
        assert_eq!(status(("stock", "a"), &foreign), Some(400));
    }
}
