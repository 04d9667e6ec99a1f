//! The engine's outcomes as HTTP answers.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use super::bodies::{ReservationBody, StockBody};
use super::kinds;
use super::problem::{PROBLEM_JSON, Problem};
use crate::domain::{Outcome, Refusal, Shortage, State};
use crate::store::Answer;

/// Marks an answer that was given before under the same Idempotency-Key.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The answer to a command; `path` is the path of the request. It depends on nothing else, so
/// that what is recorded under an Idempotency-Key is what was answered.
pub(super) fn of(outcome: &Outcome, path: &str) -> Answer {
    match outcome {
        Outcome::Reservation {
            reservation,
            created,
        } => {
            let body = ReservationBody::new(reservation, reservation.state);
            let status = if *created { 201 } else { 200 };
            let location = created.then(|| format!("/v1/reservations/{}", reservation.id));
            written(status, location, &body, path)
        }
        Outcome::Stock(stock) => written(200, None, &StockBody::new(stock), path),
        Outcome::Job(job) => written(200, None, &json!({ "outcome": job.as_str() }), path),
        Outcome::Refused(refusal) => refused(&problem(refusal), path),
    }
}

fn written(status: u16, location: Option<String>, body: &impl Serialize, path: &str) -> Answer {
    match serde_json::to_string(body) {
        Ok(body) => Answer {
            status,
            location,
            body,
        },
        Err(error) => refused(&Problem::internal(error), path),
    }
}

fn refused(problem: &Problem, path: &str) -> Answer {
    Answer {
        status: problem.status(),
        location: None,
        body: problem.body(path),
    }
}

/// Why a command was refused, for the caller.
fn problem(refusal: &Refusal) -> Problem {
    match refusal {
        Refusal::InsufficientStock { short } => insufficient_stock(short),
        Refusal::NotHeld {
            state,
            payment_reference,
            ..
        } => {
            let problem = Problem::new(
                &kinds::RESERVATION_NOT_HELD,
                format!("The reservation is {}.", state.as_str()),
            )
            .with("state", json!(state.as_str()));
            if *state == State::Paid {
                problem.with("payment_reference", json!(payment_reference))
            } else {
                problem
            }
        }
        Refusal::Expired { expires_at, .. } => Problem::new(
            &kinds::RESERVATION_EXPIRED,
            format!("The deadline passed at {expires_at}."),
        )
        .with("expires_at", json!(expires_at)),
        Refusal::StockBelowHeld { stock, wanted } => Problem::new(
            &kinds::STOCK_BELOW_HELD,
            format!(
                "{wanted} units would be on hand, and {} are held.",
                stock.held
            ),
        )
        .with("sku", json!(stock.key.sku))
        .with("location", json!(stock.key.location))
        .with("on_hand", json!(stock.on_hand))
        .with("held", json!(stock.held))
        .with("requested", json!(wanted)),
        Refusal::StockAboveMaximum { stock } => Problem::invalid(
            "delta",
            format_args!(
                "with the {} units that are on hand, there would be more than {} of them",
                stock.on_hand,
                crate::domain::MAX_ON_HAND
            ),
        ),
        Refusal::HoldLimit {
            now,
            earliest,
            latest,
        } => Problem::new(
            &kinds::HOLD_LIMIT,
            format!("The deadline must lie between {earliest} and {latest}."),
        )
        .with("now", json!(now))
        .with("earliest", json!(earliest))
        .with("latest", json!(latest)),
        Refusal::NotFound { id } => Problem::no_reservation(id),
    }
}

fn insufficient_stock(short: &[Shortage]) -> Problem {
    let detail = match short.len() {
        1 => "1 row of stock has too little.".to_owned(),
        rows => format!("{rows} rows of stock have too little."),
    };
    let rows: Vec<_> = short
        .iter()
        .map(|row| {
            json!({
                "sku": row.key.sku,
                "location": row.key.location,
                "requested": row.wanted,
                "available": row.available,
            })
        })
        .collect();
    Problem::new(&kinds::INSUFFICIENT_STOCK, detail).with("short", json!(rows))
}

/// Sends an answer, whether it was just made or recorded before.
pub(super) fn respond(answer: Answer) -> Result<Response, Problem> {
    let status = StatusCode::from_u16(answer.status).map_err(Problem::internal)?;
    let content_type = if answer.status < 400 {
        JSON
    } else {
        PROBLEM_JSON
    };
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if let Some(location) = answer.location {
        let location = HeaderValue::try_from(location).map_err(Problem::internal)?;
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Sends what was read.
pub(super) fn ok(body: &impl Serialize) -> Result<Response, Problem> {
    let body = serde_json::to_string(body).map_err(Problem::internal)?;
    respond(Answer {
        status: 200,
        location: None,
        body,
    })
}
