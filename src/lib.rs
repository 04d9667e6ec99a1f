//! Holdfast holds stock for a buyer for a fixed time, sells it if the payment comes in that time,
//! and otherwise gives it back: once, and on time.

pub mod access;
pub mod auditing;
pub mod database;
pub mod domain;
pub mod engine;
pub mod http;
pub mod keys;
pub mod lab;
pub mod metrics;
pub mod quarantine;
pub mod queue;
pub mod serve;
pub mod settings;
pub mod store;
pub mod worker;
