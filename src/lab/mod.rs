//! What proves rather than serves.

pub mod replay;
