//! Examples in the API document, made by the code that makes the answers.

use serde_json::{Value, json};

use super::bodies::{EventBody, ReservationBody, StockBody};
use super::operations::quarantine::CaseBody;
use crate::domain::{
    Event, Job, Line, Message, Particulars, Reservation, State, Stock, StockKey, Waits,
    default_merchant,
};
use crate::store::{
    ActionKind, QuarantineCase, RecordedAction, RecordedEvent, Resolution, Sighting,
};

/// What does not parse becomes null here, and then fails the test of the document.
fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

/// A request for a new reservation.
pub(super) fn create_reservation() -> Value {
    json!({
        "lines": [{ "sku": "SKU-COFFEE-1KG", "quantity": 2, "location": "default" }],
        "hold_seconds": 900,
        "customer_id": "customer-17",
        "reference": "order-1042",
        "metadata": { "note": "gift" },
    })
}

/// A reservation in a state.
pub(super) fn reservation(state: &str) -> Value {
    let made = || -> Option<Value> {
        let state = State::from_word(state)?;
        let created_at = parsed(json!("2026-12-01T10:00:00.250Z"))?;
        let closed_at = parsed(json!("2026-12-01T10:04:10.017Z"))?;
        let expires_at = parsed(json!("2026-12-01T10:15:00.250Z"))?;
        let request = create_reservation();
        let lines: Vec<Line> = parsed(request["lines"].clone())?;
        let reservation = Reservation {
            id: parsed(json!("rsv_01jdz3x9k2e5qs8v4m7n6p0r1t"))?,
            state,
            lines,
            expires_at,
            attempt_at: expires_at,
            hold_seconds: 900,
            created_at,
            updated_at: if state == State::Held {
                created_at
            } else {
                closed_at
            },
            closed_at: (state != State::Held).then_some(closed_at),
            extensions: 0,
            merchant: default_merchant(),
            customer_id: parsed(request["customer_id"].clone()),
            reference: parsed(request["reference"].clone()),
            payment_reference: (state == State::Paid)
                .then(|| parsed(json!("pi_1")))
                .flatten(),
            reacquired: false,
            metadata: parsed(request["metadata"].clone())?,
            waits: Waits::default(),
        };
        serde_json::to_value(ReservationBody::new(&reservation, state)).ok()
    };
    made().unwrap_or_default()
}

/// A row of stock.
pub(super) fn stock() -> Value {
    let made = || -> Option<Value> {
        let stock = Stock {
            key: StockKey {
                location: parsed(json!("default"))?,
                sku: parsed(json!("SKU-COFFEE-1KG"))?,
            },
            on_hand: 40,
            held: 5,
            due: 1,
            updated_at: parsed(json!("2026-12-01T10:00:00.250Z"))?,
        };
        serde_json::to_value(StockBody::new(&stock)).ok()
    };
    made().unwrap_or_default()
}

/// An event.
pub(super) fn event() -> Value {
    let made = || -> Option<Value> {
        let recorded = RecordedEvent {
            seq: 42,
            event: Event {
                kind: crate::domain::EventKind::Extended,
                reservation_id: parsed(json!("rsv_01jdz3x9k2e5qs8v4m7n6p0r1t"))?,
                at: parsed(json!("2026-12-01T10:04:10.017Z"))?,
                data: Particulars::of(&json!({
                    "from": "2026-12-01T10:15:00.250Z",
                    "expires_at": "2026-12-01T10:25:00.250Z",
                })),
            },
        };
        serde_json::to_value(EventBody::new(&recorded)).ok()
    };
    made().unwrap_or_default()
}

/// A case in quarantine, as it stands in a list or as it is shown alone.
pub(super) fn quarantine_case(whole: bool) -> Value {
    let made = || -> Option<Value> {
        let last_seen = parsed(json!("2026-12-01T10:20:31.004Z"))?;
        let at = parsed(json!("2026-12-01T11:02:17.640Z"))?;
        let job = Job {
            reservation: parsed(json!("rsv_01jdz3x9k2e5qs8v4m7n6p0r1t"))?,
            deadline: parsed(json!("2026-12-01T10:15:00.250Z"))?,
        };
        let actions = [RecordedAction {
            kind: ActionKind::Replay,
            by: "oncall".to_owned(),
            at,
            outcome: "expired".to_owned(),
        }];
        let case = QuarantineCase {
            id: 7,
            sighting: Sighting {
                source: "rest".to_owned(),
                key: job.id(),
                payload: Message::first(job).payload().into_bytes(),
                reason: format!("there is no reservation {}", job.reservation),
            },
            attempts: 2,
            first_seen: parsed(json!("2026-12-01T10:15:00.391Z"))?,
            last_seen,
            resolution: whole.then(|| Resolution {
                at,
                text: "replayed: expired".to_owned(),
            }),
        };
        let body = if whole {
            CaseBody::whole(&case, &actions)
        } else {
            CaseBody::listed(&case)
        };
        serde_json::to_value(body).ok()
    };
    made().unwrap_or_default()
}

/// The last page of a list.
pub(super) fn page(item: Value) -> Value {
    json!({ "items": [item], "next_cursor": null })
}
