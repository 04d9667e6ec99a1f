//! `/v1/operations`: what the operator of the service asks for.

pub(super) mod quarantine;
pub(super) mod runs;
