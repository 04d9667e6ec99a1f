//! The service behind a driver: what a test can do to it that no driver can.

use std::sync::Arc;

use holdfast::domain::{Job, Message, ReservationId, Timestamp};
use holdfast::engine::TokioRuntime;
use holdfast::lab::emulator::{Emulator, Faults, Settings, Stats};
use holdfast::queue::rest::{self, Rest};
use holdfast::queue::webhook::Secret;
use holdfast::queue::{Delivery, Fault, Publication, Queue, Receipt};
use holdfast::store::{Clock, ManualClock};

pub const TOKEN: &str = "a-token";
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Noon, and a bit, so that nothing depends on a whole second.
pub const NOON_MS: i64 = 1_796_126_400_250;

/// A driver, and the service that it talks to.
pub struct Stand {
    pub queue: Arc<dyn Queue>,
    pub emulator: Emulator,
    pub clock: Arc<ManualClock>,
}

/// Runs a test with the REST driver in pull mode and its emulator.
pub async fn with_rest(test: impl AsyncFnOnce(Stand)) {
    test(Stand::start("pull").await).await;
}

impl Stand {
    pub async fn start(mode: &str) -> Self {
        let clock = ManualClock::at(Timestamp::from_millis(NOON_MS).unwrap());
        let emulator = start_emulator(&clock, None).await;
        let url = format!("http://{}", emulator.address());
        let queue = Arc::new(rest(&url, mode, TOKEN));
        Self {
            queue,
            emulator,
            clock,
        }
    }

    /// Time passes.
    pub fn pass(&self, millis: i64) {
        self.clock.advance(millis);
        self.emulator.wake();
    }

    pub fn break_with(&self, faults: Faults) {
        self.emulator.set_faults(faults);
    }

    pub fn stats(&self) -> Stats {
        self.emulator.stats()
    }

    /// Publishes one message.
    pub async fn publish(&self, message: Message, delay_ms: i64) -> Result<Receipt, Fault> {
        let batch = [Publication { message, delay_ms }];
        let mut answers = self.queue.publish(&batch, self.clock.now()).await;
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// Receives what is due, hidden for a minute.
    pub async fn receive(&self) -> Vec<Delivery> {
        self.queue.receive(100, 60_000).await.unwrap()
    }

    /// How many are received, whatever they are.
    pub async fn take_count(&self) -> usize {
        self.receive().await.len()
    }

    /// The jobs that are received, all of which are acknowledged.
    pub async fn take(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for delivery in self.receive().await {
            jobs.push(Job::from_payload(&delivery.payload).unwrap());
            self.queue.acknowledge(&delivery.receipt).await.unwrap();
        }
        jobs
    }
}

/// A driver of the queue `holds` of the service at this URL.
pub fn rest(url: &str, mode: &str, token: &str) -> Rest {
    Rest::open(rest_settings(url, mode, token)).unwrap()
}

pub fn rest_settings(url: &str, mode: &str, token: &str) -> rest::Settings {
    let address = format!("rest+{url}/v1?queue=holds&mode={mode}");
    rest::Settings {
        address: address.parse().unwrap(),
        token: token.parse().unwrap(),
        secrets: vec![secret()],
        ca: None,
    }
}

pub async fn start_emulator(clock: &Arc<ManualClock>, push_url: Option<&str>) -> Emulator {
    let settings = Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        token: TOKEN.to_owned(),
        secrets: vec![secret()],
        push_url: push_url.map(|url| url.parse().unwrap()),
        push_ca: None,
        faults: Faults::default(),
    };
    let clock = Clock::Manual(Arc::clone(clock));
    let runtime = Arc::new(TokioRuntime::start());
    Emulator::start(settings, clock, runtime).await.unwrap()
}

pub fn secret() -> Secret {
    SECRET.parse().unwrap()
}

/// The first copy of the nth job.
pub fn message(number: u16) -> Message {
    let id = uuid::Uuid::from_u128(0x0191_0000_0000_7000_8000_0000_0000_0000 | u128::from(number));
    Message::first(Job {
        reservation: ReservationId::from_uuid(id),
        deadline: Timestamp::from_millis(NOON_MS + i64::from(number)).unwrap(),
    })
}
