//! The production shape: two instances on one PostgreSQL, a queue that pushes, and nginx with TLS
//! in front of both. The shell script that this runs is the one that `make stack` runs.

#![cfg(test)]

use std::path::Path;
use std::process::{Command, Stdio};

/// A hold comes back by a push over TLS, and both instances are restarted under load without a
/// reservation lost or made twice. The script says which of it did not hold.
#[test]
fn p10_p12_the_stack_works_and_is_restarted_without_loss() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("tests/stack.sh"))
        .arg("smoke")
        .env("HOLDFAST_PROGRAM", env!("CARGO_BIN_EXE_holdfast"))
        .stdin(Stdio::null())
        .output()
        .expect("bash can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("none lost"), "{said}");
}
