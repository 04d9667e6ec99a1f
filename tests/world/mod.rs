//! The world around the program, for tests that run it as its users do: databases of their own,
//! real server processes, a client that speaks the API, the recorded traces.
//!
//! A test file that uses it begins with `#![cfg(test)]` and `mod world;`.

#![expect(dead_code, reason = "each test file takes what it needs of it")]

pub mod client;
pub mod database;
pub mod directory;
pub mod server;
pub mod trace;
