//! The world around the program, for tests that run it as its users do: databases of their own,
//! real server processes, a client that speaks the API and holds every answer against the API's
//! document, the recorded traces.
//!
//! A test file that uses it begins with `#![cfg(test)]` and `mod world;`.

#![allow(dead_code, reason = "each test file takes what it needs of it")]

pub mod client;
pub mod contract;
pub mod database;
pub mod directory;
pub mod faketime;
pub mod server;
pub mod trace;
