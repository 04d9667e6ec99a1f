use std::process::Command;

/// The settings of a process whose clock is off by so much, such as `+90s`. Its stopwatch is right,
/// as it is on a machine whose clock was set wrong.
pub fn clock_off_by(offset: &str) -> Vec<(String, String)> {
    // Debian's `faketime` knows where its library is.
    let wrapped = Command::new("faketime")
        .args(["-f", "+0s", "printenv", "LD_PRELOAD"])
        .output();
    let library = match wrapped {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        _ => panic!("`faketime` cannot be run; install Debian's package faketime"),
    };
    [
        ("LD_PRELOAD", library.trim()),
        ("FAKETIME", offset),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}
