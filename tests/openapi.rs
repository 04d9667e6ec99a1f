//! The committed API document is the one that the code generates.

use std::fs;
use std::path::PathBuf;

fn committed() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json")
}

/// `HOLDFAST_WRITE_OPENAPI=1 cargo test --test openapi` writes the document anew.
#[test]
fn the_committed_document_is_what_the_code_generates() {
    let generated = holdfast::http::openapi_json();
    if std::env::var_os("HOLDFAST_WRITE_OPENAPI").is_some() {
        fs::write(committed(), &generated).unwrap();
    }
    let committed = fs::read_to_string(committed()).unwrap_or_default();
    let same = committed
        .lines()
        .zip(generated.lines())
        .take_while(|(committed, generated)| committed == generated)
        .count();
    let difference = same + 1;
    assert!(
        committed == generated,
        "openapi/openapi.json is not what the code generates, from line {difference} on. \
         Run `HOLDFAST_WRITE_OPENAPI=1 cargo test --test openapi` and commit the file."
    );
}
