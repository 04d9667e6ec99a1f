//! The emulator's HTTP.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::domain::Timestamp;
use crate::queue::rest::MAX_DELAY_SECONDS;

use super::App;
use super::faults::{Faults, is_nth};
use super::requests::{Acknowledge, Consume, Publish, Refusal, Subscribe, key, read};
use super::stats::Stats;

/// The longest body that is read; the payload in it is bounded more tightly.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What a request had for a body.
type Body = Result<Bytes, BytesRejection>;

/// Serves until it is told to stop.
pub(super) async fn serve(listener: TcpListener, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let router = Router::new()
        .route("/v1/queue/publish", post(publish))
        .route("/v1/queue/consume", post(consume))
        .route("/v1/queue/ack", post(acknowledge))
        .route("/v1/discovery/queue.publish", get(discover))
        .route("/stats", get(stats))
        .route("/faults", put(set_faults).get(faults).delete(clear_faults))
        .route("/subscriber", put(subscribe).delete(unsubscribe))
        .route("/forget", post(forget))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app);
    let stopped = async move {
        let _ = stop.wait_for(|is_stopped| *is_stopped).await;
    };
    let served = axum::serve(listener, router).with_graceful_shutdown(stopped);
    if let Err(error) = served.await {
        tracing::error!(%error, "the emulator stopped");
    }
}

/// Every success of the protocol.
#[derive(Serialize)]
struct Envelope<T> {
    data: T,
}

#[derive(Serialize)]
struct Published {
    message_id: String,
}

#[derive(Serialize)]
struct Consumed {
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct Message {
    message_id: String,
    payload: Box<RawValue>,
}

async fn publish(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    let done = async {
        begin(&app, &headers).await?;
        let (publish, delay_seconds) = Publish::read(&whole(body)?)?;
        let key = key(&headers)?;
        let payload = Bytes::from(publish.payload.get().to_owned());
        let now_ms = app.now().as_millis();
        let (message_id, is_lost) = {
            let mut backlog = app.backlog();
            let (message_id, number) =
                backlog.publish(&publish.queue, payload, delay_seconds, key, now_ms);
            let every = backlog.faults.lose_answer_every;
            (
                message_id,
                number.is_some_and(|number| is_nth(number, every)),
            )
        };
        app.wake.notify_one();
        if is_lost {
            return Err(failed());
        }
        Ok(Envelope {
            data: Published { message_id },
        })
    };
    answer(&app, done.await)
}

async fn consume(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    let done = async {
        begin(&app, &headers).await?;
        let consume = Consume::read(&whole(body)?)?;
        if app.subscriber().is_some() {
            let message = "messages of this queue are pushed";
            return Err(Refusal::new(StatusCode::CONFLICT, "pushed", message));
        }
        let now_ms = app.now().as_millis();
        let hidden_until_ms = now_ms + i64::from(consume.visibility_seconds) * 1_000;
        let most = consume.max_messages;
        let handed = app
            .backlog()
            .consume(&consume.queue, most, hidden_until_ms, now_ms);
        let messages = handed.into_iter().filter_map(|handed| {
            Some(Message {
                message_id: handed.message_id,
                // It was read as JSON when it was published.
                payload: serde_json::from_slice(&handed.payload).ok()?,
            })
        });
        Ok(Envelope {
            data: Consumed {
                messages: messages.collect(),
            },
        })
    };
    answer(&app, done.await)
}

async fn acknowledge(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Response {
    let done = async {
        begin(&app, &headers).await?;
        let Acknowledge { queue, message_id } = read(&whole(body)?)?;
        if app.backlog().acknowledge(&queue, &message_id) {
            return Ok(json!({ "data": {} }));
        }
        let message = "this queue has no such message";
        Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown-message",
            message,
        ))
    };
    answer(&app, done.await)
}

async fn discover() -> Json<Value> {
    Json(json!({
        "method": "POST",
        "path": "/v1/queue/publish",
        "request_schema": {
            "type": "object",
            "required": ["queue", "payload", "delay_seconds"],
            "additionalProperties": false,
            "properties": {
                "queue": { "type": "string", "minLength": 1 },
                "payload": { "type": "object" },
                "delay_seconds": { "type": "integer", "minimum": 0, "maximum": MAX_DELAY_SECONDS },
            },
        },
        "response_schema": {
            "type": "object",
            "required": ["data"],
            "properties": {
                "data": {
                    "type": "object",
                    "required": ["message_id"],
                    "properties": { "message_id": { "type": "string" } },
                },
            },
        },
    }))
}

async fn stats(State(app): State<Arc<App>>) -> Json<Stats> {
    Json(app.backlog().stats())
}

async fn faults(State(app): State<Arc<App>>) -> Json<Faults> {
    Json(app.backlog().faults.clone())
}

async fn set_faults(State(app): State<Arc<App>>, body: Body) -> Response {
    let done = whole(body).and_then(|body| read::<Faults>(&body));
    if let Ok(faults) = &done {
        app.backlog().faults = faults.clone();
    }
    answer(&app, done)
}

async fn clear_faults(State(app): State<Arc<App>>) -> Json<Faults> {
    app.backlog().faults = Faults::default();
    Json(Faults::default())
}

async fn subscribe(State(app): State<Arc<App>>, body: Body) -> Response {
    let done = whole(body).and_then(|body| {
        let Subscribe { url } = read(&body)?;
        let invalid = |message| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message);
        let parsed = url
            .parse()
            .map_err(|error| invalid(format!("url: {error}")))?;
        app.subscribe(Some(parsed))
            .map_err(|error| invalid(error.to_string()))?;
        Ok(json!({ "url": url }))
    });
    answer(&app, done)
}

async fn unsubscribe(State(app): State<Arc<App>>) -> Response {
    // Only an address can be wrong, and there is none.
    let _ = app.subscribe(None);
    Json(json!({})).into_response()
}

async fn forget(State(app): State<Arc<App>>) -> Json<Value> {
    app.backlog().forget();
    Json(json!({}))
}

async fn unknown_path(State(app): State<Arc<App>>) -> Response {
    let refusal = Refusal::new(
        StatusCode::NOT_FOUND,
        "unknown-path",
        "there is nothing here",
    );
    answer::<()>(&app, Err(refusal))
}

async fn wrong_method(State(app): State<Arc<App>>) -> Response {
    let refusal = Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong-method",
        "this path wants another method",
    );
    answer::<()>(&app, Err(refusal))
}

/// What every call of the protocol begins with: its token, and the faults that befall any call.
async fn begin(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
    if given.and_then(|it| it.strip_prefix("Bearer ")) != Some(app.token.as_str()) {
        let message = "Authorization: is not `Bearer` and the token";
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            message,
        ));
    }
    let (faults, number) = {
        let mut backlog = app.backlog();
        let number = backlog.next_call();
        (backlog.faults.clone(), number)
    };
    if faults.slow_ms > 0 {
        tokio::time::sleep(Duration::from_millis(faults.slow_ms.into())).await;
    }
    if is_nth(number, faults.limit_every) {
        return Err(limited(&faults, app.now()));
    }
    if is_nth(number, faults.fail_every) {
        return Err(failed());
    }
    Ok(())
}

fn limited(faults: &Faults, now: Timestamp) -> Refusal {
    let date = |seconds: u32| {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or_default();
        let then = Duration::from_millis(now_ms) + Duration::from_secs(seconds.into());
        httpdate::fmt_http_date(UNIX_EPOCH + then)
    };
    let seconds = faults.retry_after_seconds;
    let retry_after = if faults.retry_after_date {
        date(seconds)
    } else {
        seconds.to_string()
    };
    Refusal {
        // By the clock that the messages are due by, as the date in Retry-After is.
        patience: (seconds > 0).then(|| (retry_after, date(0))),
        ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, "limited", "too many calls")
    }
}

fn failed() -> Refusal {
    let message = "something went wrong here";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
}

fn whole(body: Body) -> Result<Bytes, Refusal> {
    body.map_err(|error| Refusal::new(error.status(), "unreadable", error.body_text()))
}

fn answer<T: Serialize>(app: &App, done: Result<T, Refusal>) -> Response {
    match done {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => {
            app.backlog().count_refusal(refusal.code);
            refusal.into_response()
        }
    }
}
