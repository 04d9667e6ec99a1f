//! The engine and its expirer on all three stores, and what they promise: by histories that are
//! made up at random, with faults in the store, with rows that others have locked, in races.
//!
//! Where a race is the point, time is real; everywhere else it is moved by hand.

#![cfg(test)]

#[path = "../world/mod.rs"]
mod world;

mod auditor;
mod batches;
mod bridge;
mod bursts;
mod consumer;
mod corrupt_rows;
mod deliveries;
mod expirer;
mod faults;
mod faulty;
mod histories;
mod horizon;
mod lanes;
mod leases;
mod locks;
mod long_holds;
mod outages;
mod pace;
mod payments;
mod promises;
mod pulls;
mod races;
mod relay;
mod repairs;
mod replays;
mod retention;
mod retries;
mod scripted;
mod shop;
