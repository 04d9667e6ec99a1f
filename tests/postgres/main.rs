//! The PostgreSQL store on a real server: the one that `HOLDFAST_TEST_POSTGRES_URL` names, or the
//! one on this machine. Each test makes a database of its own and drops it at the end.

#![cfg(test)]
#![expect(
    clippy::disallowed_methods,
    reason = "how long a real database takes is measured by a real clock"
)]

mod database;
mod faults;
mod locks;
mod rates;
mod reads;
mod retention;
mod writes;
