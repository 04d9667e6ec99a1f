//! The header `Idempotency-Key`, and what makes a request the same request.

use axum::http::{HeaderMap, Uri};
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// The name of the header.
pub(super) const HEADER: &str = "Idempotency-Key";
/// The most bytes of a key.
const MAX_KEY: usize = 255;

/// The key that a request carries, if any: a structured-field string (`"abc"`) or, because many
/// clients send that, a bare word (`abc`). Both name the same key.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    // Proxies join repeated lines with a comma, which would make one new key out of two.
    if values.next().is_some() {
        return Err(Problem::malformed(HEADER, "may be sent only once"));
    }
    let key = value
        .to_str()
        .ok()
        .and_then(parse)
        .ok_or_else(|| Problem::malformed(HEADER, "is not a string of printable ASCII"))?;
    match key.len() {
        0 => Err(Problem::malformed(HEADER, "must not be empty")),
        1..=MAX_KEY => Ok(Some(key)),
        _ => Err(Problem::malformed(
            HEADER,
            format_args!("is longer than {MAX_KEY} bytes"),
        )),
    }
}

fn parse(text: &str) -> Option<String> {
    match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted),
        None => text
            .chars()
            .all(|letter| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\' | ',' | ';'))
            .then(|| text.to_owned()),
    }
}

/// Reads the rest of a quoted string; nothing may follow it.
fn unquote(quoted: &str) -> Option<String> {
    let mut key = String::new();
    let mut letters = quoted.chars();
    loop {
        match letters.next()? {
            '"' => return letters.next().is_none().then_some(key),
            '\\' => key.push(
                letters
                    .next()
                    .filter(|escaped| matches!(escaped, '"' | '\\'))?,
            ),
            letter @ ' '..='~' => key.push(letter),
            _ => return None,
        }
    }
}

/// SHA-256 over what makes a POST the same one: its path, its query in any order, and its JSON
/// with members in any order.
pub(super) fn fingerprint(uri: &Uri, body: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut query: Vec<_> = uri.query().unwrap_or_default().split('&').collect();
    query.sort_unstable();
    let mut hasher = Sha256::new();
    // No line break can stand in any of the parts, so two requests never run together.
    for part in ["POST", uri.path(), &query.join("&")] {
        hasher.update(part);
        hasher.update("\n");
    }
    hasher.update(super::json::canonical(body)?);
    Ok(hasher.finalize().to_vec())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn key_of(values: &[&[u8]]) -> Result<Option<String>, u16> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        key(&headers).map_err(|problem| problem.status())
    }

    #[test]
    fn a_key_is_a_quoted_string_or_a_bare_word() {
        let longest = "k".repeat(MAX_KEY);
        for (sent, read) in [
            ("\"abc\"", "abc"),
            ("abc", "abc"),
            (r#""a \"b\" \\ c, d""#, r#"a "b" \ c, d"#),
            (
                "8e03978e-40d5-43dd-bc93-6894a57f9324",
                "8e03978e-40d5-43dd-bc93-6894a57f9324",
            ),
            ("expire:rsv_1:17", "expire:rsv_1:17"),
            (&longest, &longest),
        ] {
            assert_eq!(key_of(&[sent.as_bytes()]), Ok(Some(read.to_owned())));
        }
        assert_eq!(key_of(&[]), Ok(None));
    }

    /// grimurrash/test-task2#73: two equal header lines became one new key, and a second payment.
    #[test]
    fn what_is_no_key_is_refused() {
        let too_long = "k".repeat(MAX_KEY + 1);
        let huge = "k".repeat(10_240);
        for sent in [
            vec![b"a".as_slice(), b"a"],
            vec![b""],
            vec![b"\"\""],
            vec![b"a, a"],
            vec![b"a b"],
            vec![b"\"a"],
            vec![b"a\""],
            vec![b"\"a\"b"],
            vec![b"\"a\";q=1"],
            vec![b"\"a\\n\""],
            vec!["\"é\"".as_bytes()],
            vec!["é".as_bytes()],
            vec![b"a\tb"],
            vec![too_long.as_bytes()],
            vec![huge.as_bytes()],
        ] {
            assert_eq!(key_of(&sent), Err(400), "{sent:?}");
        }
    }

    /// fossasia/eventyay#602: a key that ignores the request answers another one with its answer.
    #[test]
    fn the_fingerprint_is_of_what_was_asked() {
        let of = |uri: &'static str, body: &str| {
            fingerprint(&Uri::from_static(uri), body.as_bytes())
                .ok()
                .unwrap()
        };
        let first = of("/v1/x?a=1&b=2", r#"{"a":1,"b":{"c":[1,2],"d":null}}"#);
        assert_eq!(first.len(), 32);
        assert_eq!(
            first,
            of(
                "/v1/x?b=2&a=1",
                "{ \"b\": {\"d\":null,\n\"c\":[1, 2]}, \"a\":1}"
            )
        );
        for (uri, body) in [
            ("/v1/y?a=1&b=2", r#"{"a":1,"b":{"c":[1,2],"d":null}}"#),
            ("/v1/x?a=1&b=3", r#"{"a":1,"b":{"c":[1,2],"d":null}}"#),
            ("/v1/x?a=1&b=2", r#"{"a":2,"b":{"c":[1,2],"d":null}}"#),
            ("/v1/x?a=1&b=2", r#"{"a":1,"b":{"c":[2,1],"d":null}}"#),
        ] {
            assert_ne!(first, of(uri, body), "{uri} {body}");
        }
    }
}
