//! What is counted and measured, by the names under which Prometheus reads it.
//!
//! All names start with `holdfast_`, units come last. A metric is described where it is
//! registered; nothing is measured that is not registered here.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// By which lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneLabel {
    /// `sales-0`, `sales-1`, `release`.
    pub lane: String,
}

/// By which path a hold expired.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ViaLabel {
    /// A word of [`crate::domain::Via`].
    pub via: &'static str,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// The command's name, such as `reserve`.
    pub command: &'static str,
    /// What came of it, such as `created` or `insufficient-stock`.
    pub outcome: &'static str,
}

/// What came of an attempt to publish.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PublicationLabel {
    /// `published`, `postponed`, `parked`, or `skipped` if nothing was left to be done by it.
    pub outcome: &'static str,
}

/// What came of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeliveryLabel {
    /// `push` or `pull`.
    pub via: &'static str,
    /// A word of [`crate::engine::Delivered`].
    pub outcome: &'static str,
}

/// From which table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TableLabel {
    /// `idempotency`, `outbox`, `ledger`, `reservations`, `events`.
    pub table: &'static str,
}

/// By which worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WorkerLabel {
    /// `expirer`, `relay`, `consumer`, `retention`.
    pub worker: &'static str,
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabel {
    /// The HTTP method.
    pub method: String,
    /// The route's pattern, never the path itself.
    pub route: String,
    /// The HTTP status.
    pub status: u16,
}

/// When something last showed a sign of life, in seconds by the runtime's stopwatch.
pub type Heartbeat = Gauge<f64, AtomicU64>;

/// Every metric of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests answered.
    pub requests: Family<RequestLabel, Counter>,
    /// From the first byte of a request to its answer.
    pub request_seconds: Histogram,
    /// What came of commands.
    pub outcomes: Family<OutcomeLabel, Counter>,
    /// Release instant minus deadline.
    pub lateness_seconds: Family<ViaLabel, Histogram>,
    /// Commands waiting in a lane.
    pub lane_depth: Family<LaneLabel, Gauge>,
    /// Commands decided in one transaction.
    pub batch_size: Family<LaneLabel, Histogram>,
    /// How long one transaction took.
    pub batch_seconds: Family<LaneLabel, Histogram>,
    /// Transactions that were run again because another one was in the way.
    pub contended: Family<LaneLabel, Counter>,
    /// Holds that are due and cannot be released; they are tried again later.
    pub stuck_holds: Counter,
    /// How often a due hold was told to wait for its permit.
    pub admission_denials: Counter,
    /// Messages that the relay had in its hands.
    pub publications: Family<PublicationLabel, Counter>,
    /// Messages that wait in the outbox, counted up to 10,000.
    pub outbox_waiting: Gauge,
    /// For how long the first of these could have been published.
    pub outbox_oldest_seconds: Gauge<f64, AtomicU64>,
    /// Deliveries that a queue brought.
    pub deliveries: Family<DeliveryLabel, Counter>,
    /// Pushes without a valid signature.
    pub forged_deliveries: Counter,
    /// Deliveries that came early and are waited out.
    pub early_deliveries_waiting: Gauge,
    /// Rows that were deleted because of their age.
    pub retention_deleted: Family<TableLabel, Counter>,
    /// When each worker last did its work. `/readyz` judges by it.
    heartbeats: Family<WorkerLabel, Heartbeat>,
}

impl Metrics {
    /// Registers every metric, all at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("holdfast");
        let metrics = Self {
            requests: Family::default(),
            request_seconds: milliseconds_to_seconds(),
            outcomes: Family::default(),
            lateness_seconds: Family::new_with_constructor(milliseconds_to_minutes),
            lane_depth: Family::default(),
            batch_size: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(1.0, 2.0, 12))
            }),
            batch_seconds: Family::new_with_constructor(milliseconds_to_seconds),
            contended: Family::default(),
            stuck_holds: Counter::default(),
            admission_denials: Counter::default(),
            publications: Family::default(),
            outbox_waiting: Gauge::default(),
            outbox_oldest_seconds: Gauge::default(),
            deliveries: Family::default(),
            forged_deliveries: Counter::default(),
            early_deliveries_waiting: Gauge::default(),
            retention_deleted: Family::default(),
            heartbeats: Family::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "request_duration_seconds",
            "From the first byte of a request to its answer",
            metrics.request_seconds.clone(),
        );
        registry.register(
            "outcomes",
            "Commands decided, by what came of them",
            metrics.outcomes.clone(),
        );
        registry.register(
            "lateness_seconds",
            "Release instant minus deadline, by the path that released",
            metrics.lateness_seconds.clone(),
        );
        registry.register(
            "lane_depth",
            "Commands waiting in a lane",
            metrics.lane_depth.clone(),
        );
        registry.register(
            "batch_size",
            "Commands decided in one transaction",
            metrics.batch_size.clone(),
        );
        registry.register(
            "batch_duration_seconds",
            "How long one transaction took",
            metrics.batch_seconds.clone(),
        );
        registry.register(
            "contended_batches",
            "Transactions run again because another one was in the way",
            metrics.contended.clone(),
        );
        registry.register(
            "stuck_holds",
            "Due holds that could not be released and are tried again later",
            metrics.stuck_holds.clone(),
        );
        registry.register(
            "admission_denials",
            "How often a due hold was told to wait for its permit",
            metrics.admission_denials.clone(),
        );
        registry.register(
            "publications",
            "Messages that the relay had in its hands, by what came of it",
            metrics.publications.clone(),
        );
        registry.register(
            "outbox_waiting",
            "Messages that wait in the outbox, counted up to 10,000",
            metrics.outbox_waiting.clone(),
        );
        registry.register(
            "outbox_oldest_seconds",
            "For how long the longest-waiting message could have been published",
            metrics.outbox_oldest_seconds.clone(),
        );
        registry.register(
            "deliveries",
            "Deliveries that a queue brought, by what came of them",
            metrics.deliveries.clone(),
        );
        registry.register(
            "forged_deliveries",
            "Pushes without a valid signature",
            metrics.forged_deliveries.clone(),
        );
        registry.register(
            "early_deliveries_waiting",
            "Deliveries that came early and are waited out",
            metrics.early_deliveries_waiting.clone(),
        );
        registry.register(
            "retention_deleted",
            "Rows deleted because of their age",
            metrics.retention_deleted.clone(),
        );
        registry.register(
            "worker_last_run_seconds",
            "When each worker last did its work, in seconds since the start",
            metrics.heartbeats.clone(),
        );
        Self {
            registry,
            ..metrics
        }
    }

    /// The sign of life of one worker.
    pub fn heartbeat(&self, worker: &'static str) -> Heartbeat {
        self.heartbeats
            .get_or_create(&WorkerLabel { worker })
            .clone()
    }

    /// The text that Prometheus reads (OpenMetrics 1.0).
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Half a millisecond to about 16 s.
fn milliseconds_to_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

/// A millisecond to about 9 minutes.
fn milliseconds_to_minutes() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 20))
}
