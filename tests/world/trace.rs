use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A recorded trace, such as `carts.csv`, if it is here. A trace lies outside the project, in
/// `HOLDFAST_TRACE_DIR` or `../shared/data`; a test that finds it absent returns, and is not counted
/// as a proof: where `HOLDFAST_REQUIRE_TRACES` is set, an absent trace is a failure.
pub fn trace(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = std::env::var_os("HOLDFAST_TRACE_DIR").unwrap_or("../shared/data".into());
    let path = root.join(directory).join(name);
    if path.is_file() {
        return Some(path);
    }
    let absent = format!("{} is absent; set HOLDFAST_TRACE_DIR", path.display());
    assert!(
        std::env::var_os("HOLDFAST_REQUIRE_TRACES").is_none(),
        "{absent}"
    );
    // What a test prints is shown only if it fails; this must be seen.
    let _ = writeln!(std::io::stderr(), "not tested: {absent}");
    None
}
