//! Outcomes of the engine and what is answered.

use serde_json::{Value, json};

use super::super::answer;
use super::shelf::{at, reservation, stock};
use crate::domain::{Outcome, PaymentReference, Refusal, Shortage, State};
use crate::store::Answer;

const PATH: &str = "/v1/reservations";

fn refused(refusal: Refusal) -> (u16, Value) {
    let answer = answer::of(&Outcome::Refused(refusal), PATH);
    assert_eq!(answer.location, None);
    let mut problem: Value = serde_json::from_str(&answer.body).unwrap();
    let members = problem.as_object_mut().unwrap();
    assert_eq!(members.remove("status"), Some(json!(answer.status)));
    assert_eq!(members.remove("instance"), Some(json!(PATH)));
    assert!(members.remove("title").is_some());
    assert!(members.remove("detail").is_some());
    (answer.status, problem)
}

#[test]
fn what_was_made_has_a_location() {
    let reservation = Box::new(reservation(7, "c"));
    let id = reservation.id;
    let outcome = |created| Outcome::Reservation {
        reservation: reservation.clone(),
        created,
    };
    let made = answer::of(&outcome(true), PATH);
    assert_eq!(made.status, 201);
    assert_eq!(made.location, Some(format!("/v1/reservations/{id}")));
    let changed = answer::of(&outcome(false), PATH);
    assert_eq!((changed.status, changed.location), (200, None));
    assert_eq!(made.body, changed.body);
}

#[test]
fn stock_is_answered_as_it_stands() {
    let answer = answer::of(&Outcome::Stock(stock("default", "A")), PATH);
    assert_eq!(answer.status, 200);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body["available"], 7);
}

fn not_held(state: State, payment: Option<&str>) -> Refusal {
    Refusal::NotHeld {
        id: reservation(7, "c").id,
        state,
        payment_reference: payment.map(|text| PaymentReference::new(text).unwrap()),
    }
}

#[test]
fn a_reservation_that_has_ended_says_how() {
    let not_held_is = |refusal, members: Value| {
        let mut expected = json!({ "type": "/problems/reservation-not-held" });
        let all = expected.as_object_mut().unwrap();
        all.extend(members.as_object().unwrap().clone());
        assert_eq!(refused(refusal), (409, expected));
    };
    not_held_is(
        not_held(State::Paid, Some("pi_1")),
        json!({ "state": "paid", "payment_reference": "pi_1" }),
    );
    not_held_is(
        not_held(State::Paid, None),
        json!({ "state": "paid", "payment_reference": null }),
    );
    not_held_is(
        not_held(State::Cancelled, None),
        json!({ "state": "cancelled" }),
    );

    let id = reservation(7, "c").id;
    let expires_at = at(100_000);
    let (status, problem) = refused(Refusal::Expired { id, expires_at });
    assert_eq!(status, 409);
    assert_eq!(problem["type"], "/problems/reservation-expired");
    assert_eq!(problem["expires_at"], "1970-01-01T00:01:40.000Z");

    let (status, problem) = refused(Refusal::NotFound { id });
    assert_eq!(
        (status, problem),
        (404, json!({ "type": "/problems/not-found" }))
    );
}

#[test]
fn stock_that_is_in_the_way_is_counted() {
    let row = stock("default", "A");
    let short = vec![Shortage {
        key: row.key.clone(),
        wanted: 9,
        available: 7,
    }];
    let (status, problem) = refused(Refusal::InsufficientStock { short });
    assert_eq!(status, 409);
    assert_eq!(
        problem,
        json!({
            "type": "/problems/insufficient-stock",
            "short": [{ "sku": "A", "location": "default", "requested": 9, "available": 7 }],
        })
    );

    let (status, problem) = refused(Refusal::StockBelowHeld {
        stock: row.clone(),
        wanted: 3,
    });
    assert_eq!(status, 409);
    assert_eq!(
        problem,
        json!({
            "type": "/problems/stock-below-held",
            "sku": "A",
            "location": "default",
            "on_hand": 10,
            "held": 4,
            "requested": 3,
        })
    );

    let (status, problem) = refused(Refusal::StockAboveMaximum { stock: row });
    assert_eq!(status, 422);
    assert_eq!(problem["type"], "/problems/validation");
    assert_eq!(problem["errors"][0]["field"], "delta");
}

#[test]
fn a_deadline_out_of_reach_is_answered_with_the_limits() {
    let (status, problem) = refused(Refusal::HoldLimit {
        now: at(0),
        earliest: at(1_000),
        latest: at(9_000),
    });
    assert_eq!(status, 422);
    assert_eq!(
        problem,
        json!({
            "type": "/problems/hold-limit",
            "now": "1970-01-01T00:00:00.000Z",
            "earliest": "1970-01-01T00:00:01.000Z",
            "latest": "1970-01-01T00:00:09.000Z",
        })
    );
}

#[test]
fn a_recorded_answer_is_sent_as_it_was() {
    let sent = |status, location: Option<&str>| {
        answer::respond(Answer {
            status,
            location: location.map(str::to_owned),
            body: "{}".to_owned(),
        })
    };
    let made = sent(201, Some("/v1/reservations/1")).ok().unwrap();
    assert_eq!(made.status(), 201);
    assert_eq!(made.headers()["Location"], "/v1/reservations/1");
    assert_eq!(made.headers()["Content-Type"], "application/json");
    let refused = sent(409, None).ok().unwrap();
    assert_eq!(
        refused.headers()["Content-Type"],
        "application/problem+json"
    );
    // A row that nobody here wrote is an error, and no panic.
    for (status, location) in [(0, None), (201, Some("a\nb"))] {
        let problem = sent(status, location).err().unwrap();
        assert_eq!(problem.status(), 500);
    }
}
