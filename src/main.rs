//! The program; see the library of the same name for what it does.

fn main() {}
