//! The rules of holding stock: pure, without I/O, clock or randomness.
//!
//! Start at [`decide()`], the one function through which every change of a reservation or of stock
//! goes. Everything else here is the vocabulary it speaks.

mod admission;
mod api_key;
mod changes;
mod command;
mod decide;
mod id;
mod message;
mod repair;
mod reservation;
mod retry;
mod snapshot;
mod stock;
mod text;
mod timestamp;

pub use admission::{
    Admission, AdmissionDimension, AdmissionKey, AdmissionLimit, MAX_ADMISSION_BURST,
    MAX_ADMISSION_RATE, MIN_ADMISSION_RATE, Pace, PaceRule,
};
pub use api_key::{ApiKey, ApiKeyId, ApiKeyIdFault, KeyHash, KeyName, Scope, Scopes, ScopesFault};
pub use changes::{
    Changes, Deferral, DeferralCause, Event, EventKind, Guard, LedgerEntry, OutboxEntry,
    Particulars, ReservationChange, StockDelta,
};
pub use command::{
    Command, Deadline, Decision, Early, JobOutcome, Lacking, OnExpired, Outcome, Refusal, Reserve,
    Shortage, Via,
};
pub use decide::{QueueRule, Rules, decide, insufficient};
pub use id::{Job, JobId, ReservationId};
pub use message::{Message, PayloadFault};
pub use repair::{LineRepair, OpenLine, Recount, Unmendable, mend_lines, mend_stock, open_lines};
pub use reservation::{Line, MAX_LINES, MAX_QUANTITY, Metadata, Reservation, State, Waits};
pub use retry::{Backoff, Retry, RetryBudget, Setback, Tried};
pub use snapshot::Snapshot;
pub use stock::{MAX_ON_HAND, Stock, StockKey};
pub use text::{
    CustomerId, Location, Merchant, PaymentReference, Reason, Reference, Sku, Text, TextFault,
    default_merchant,
};
pub use timestamp::{Timestamp, TimestampFault};
