//! The PostgreSQL store on a real server: HOLDFAST_TEST_POSTGRES_URL, or the one on this machine.
//! Each test makes a database of its own and drops it at the end.

mod database;
mod faults;
mod locks;
mod reads;
mod writes;
