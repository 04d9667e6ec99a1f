//! What proves rather than serves.

pub mod emulator;
pub mod replay;
