//! Every kind of problem: its slug, status and title, and what its page says.

use axum::http::StatusCode;

/// A kind of problem. Its page is `/problems/<slug>`, and that path is the `type` of the problem.
pub(super) struct Kind {
    /// Names the kind for programs.
    pub slug: &'static str,
    /// The status it is answered with.
    pub status: StatusCode,
    /// Names the kind for people.
    pub title: &'static str,
    /// What happened and what to do about it.
    pub explanation: &'static str,
    /// A `detail` as it may be read.
    pub detail: &'static str,
    /// The extension members that such a problem has, as JSON.
    pub extras: &'static str,
}

/// All kinds, in the order in which they are documented.
pub(super) static ALL: [&Kind; 24] = [
    &MALFORMED_REQUEST,
    &UNAUTHORIZED,
    &FORBIDDEN,
    &NOT_FOUND,
    &METHOD_NOT_ALLOWED,
    &INSUFFICIENT_STOCK,
    &RESERVATION_NOT_HELD,
    &RESERVATION_EXPIRED,
    &STOCK_BELOW_HELD,
    &NO_QUEUE,
    &STILL_HELD,
    &IDEMPOTENCY_KEY_IN_USE,
    &REQUEST_TIMEOUT,
    &EVENTS_DELETED,
    &PAYLOAD_TOO_LARGE,
    &UNSUPPORTED_MEDIA_TYPE,
    &VALIDATION,
    &HOLD_LIMIT,
    &IDEMPOTENCY_KEY_REUSED,
    &RATE_LIMITED,
    &EXPIRY_DEFERRED,
    &INTERNAL,
    &OVERLOADED,
    &NOT_READY,
];

/// The kind that `slug` names.
pub(super) fn find(slug: &str) -> Option<&'static Kind> {
    ALL.into_iter().find(|kind| kind.slug == slug)
}

pub(super) static MALFORMED_REQUEST: Kind = Kind {
    slug: "malformed-request",
    status: StatusCode::BAD_REQUEST,
    title: "The request cannot be read",
    explanation: "The body is not JSON, a cursor was not made by this list with this filter, or an \
        Idempotency-Key is not one. Mend the request; the same again will be refused again.",
    detail: "body: EOF while parsing an object at line 1 column 9",
    extras: r#"{"errors":[{"field":"body","detail":"EOF while parsing an object at line 1 column 9"}]}"#,
};

pub(super) static UNAUTHORIZED: Kind = Kind {
    slug: "unauthorized",
    status: StatusCode::UNAUTHORIZED,
    title: "The caller is not known",
    explanation: "The request carries no key, or one that is not known or was revoked. Send \
        `Authorization: Bearer <key>`; `holdfast keys create` makes one.",
    detail: "The key is not known, or was revoked.",
    extras: "{}",
};

pub(super) static FORBIDDEN: Kind = Kind {
    slug: "forbidden",
    status: StatusCode::FORBIDDEN,
    title: "The caller may not do this",
    explanation: "The key is good, and lacks the scope that `detail` names. Or there are no keys \
        yet, and the request did not come from this machine, or came from a web page that \
        `HOLDFAST_CORS_ORIGINS` does not name.",
    detail: "The key does not have the scope `inventory`.",
    extras: "{}",
};

pub(super) static NOT_FOUND: Kind = Kind {
    slug: "not-found",
    status: StatusCode::NOT_FOUND,
    title: "There is no such thing",
    explanation: "Nothing is known by this name: no such path, no such reservation, no such row of \
        stock, or no such case in quarantine.",
    detail: "There is no reservation rsv_01jdz3x9k2e5qs8v4m7n6p0r1t.",
    extras: "{}",
};

pub(super) static METHOD_NOT_ALLOWED: Kind = Kind {
    slug: "method-not-allowed",
    status: StatusCode::METHOD_NOT_ALLOWED,
    title: "The path does not take this method",
    explanation: "The header `Allow` says which methods the path takes.",
    detail: "This path does not take DELETE.",
    extras: "{}",
};

pub(super) static INSUFFICIENT_STOCK: Kind = Kind {
    slug: "insufficient-stock",
    status: StatusCode::CONFLICT,
    title: "There is not enough stock",
    explanation: "`short` names every row of stock that has too little, what was requested of it \
        and what could be had. Nothing was set aside. Units come back when other holds end, so \
        the same may work later.",
    detail: "1 row of stock has too little.",
    extras: r#"{"short":[{"sku":"SKU-COFFEE-1KG","location":"default","requested":2,"available":1}]}"#,
};

pub(super) static RESERVATION_NOT_HELD: Kind = Kind {
    slug: "reservation-not-held",
    status: StatusCode::CONFLICT,
    title: "The reservation is not held any more",
    explanation: "It was paid, cancelled or expired before, and `state` says which. For a paid \
        one, `payment_reference` names the payment that won. A payment that came with this \
        request did not buy anything and should be returned.",
    detail: "The reservation is paid.",
    extras: r#"{"state":"paid","payment_reference":"pi_1"}"#,
};

pub(super) static RESERVATION_EXPIRED: Kind = Kind {
    slug: "reservation-expired",
    status: StatusCode::CONFLICT,
    title: "The reservation's deadline has passed",
    explanation: "A hold is alive while now is before `expires_at`. Make a new reservation, or \
        check out with `\"on_expired\": \"reacquire\"` to take the stock again if it is still \
        there.",
    detail: "The deadline passed at 2026-12-01T10:15:00.250Z.",
    extras: r#"{"expires_at":"2026-12-01T10:15:00.250Z"}"#,
};

pub(super) static STOCK_BELOW_HELD: Kind = Kind {
    slug: "stock-below-held",
    status: StatusCode::CONFLICT,
    title: "More is held than would be on hand",
    explanation: "Stock that is set aside for buyers cannot be taken away. Cancel reservations, \
        or wait until they end.",
    detail: "3 units would be on hand, and 5 are held.",
    extras: r#"{"sku":"SKU-COFFEE-1KG","location":"default","on_hand":40,"held":5,"requested":3}"#,
};

pub(super) static NO_QUEUE: Kind = Kind {
    slug: "no-queue",
    status: StatusCode::CONFLICT,
    title: "There is no queue to publish to",
    explanation: "The built-in timer releases what is due, and nothing is published. Run the sweep \
        instead, or set `HOLDFAST_QUEUE_URL` to a queue.",
    detail: "There is no queue to publish to; set HOLDFAST_QUEUE_URL, or run the sweep.",
    extras: "{}",
};

pub(super) static STILL_HELD: Kind = Kind {
    slug: "still-held",
    status: StatusCode::CONFLICT,
    title: "The hold of the case still stands",
    explanation: "A hold whose release was given up is tried by nobody, and its case is what keeps \
        it in sight. Mend what stands in its way and replay the case; a hold that has ended can be \
        dismissed.",
    detail: "The hold of this case still stands; replay the case.",
    extras: "{}",
};

pub(super) static IDEMPOTENCY_KEY_IN_USE: Kind = Kind {
    slug: "idempotency-key-in-use",
    status: StatusCode::CONFLICT,
    title: "The first request with this Idempotency-Key is still being decided",
    explanation: "Ask again after `Retry-After`; the answer to the first request will then be \
        given.",
    detail: "A request with this Idempotency-Key is still being decided.",
    extras: "{}",
};

pub(super) static REQUEST_TIMEOUT: Kind = Kind {
    slug: "request-timeout",
    status: StatusCode::REQUEST_TIMEOUT,
    title: "The body did not come in time",
    explanation: "The connection was open and the rest of the body did not come. Nothing has \
        happened: send the request again.",
    detail: "The body did not come within 9s.",
    extras: "{}",
};

pub(super) static EVENTS_DELETED: Kind = Kind {
    slug: "events-deleted",
    status: StatusCode::GONE,
    title: "The log no longer reaches back so far",
    explanation: "Events behind this `after` were deleted because of their age, as \
        `HOLDFAST_KEEP_EVENTS_SECONDS` says. The log can be read from the `after` of this problem \
        on; what was before it, reservations and stock tell as they are now.",
    detail: "Events up to 4711 were deleted because of their age.",
    extras: r#"{"after":4711}"#,
};

pub(super) static PAYLOAD_TOO_LARGE: Kind = Kind {
    slug: "payload-too-large",
    status: StatusCode::PAYLOAD_TOO_LARGE,
    title: "The body is too large",
    explanation: "A body has at most 1 MiB.",
    detail: "The body has more than 1048576 bytes.",
    extras: "{}",
};

pub(super) static UNSUPPORTED_MEDIA_TYPE: Kind = Kind {
    slug: "unsupported-media-type",
    status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
    title: "The body is not said to be JSON",
    explanation: "Send the body with the header `Content-Type: application/json`.",
    detail: "The Content-Type must be application/json.",
    extras: "{}",
};

pub(super) static VALIDATION: Kind = Kind {
    slug: "validation",
    status: StatusCode::UNPROCESSABLE_ENTITY,
    title: "The request breaks a rule",
    explanation: "The request can be read, and a value in it is not allowed, or a name in it is \
        not known. `errors` says which field and why.",
    detail: "lines[0].quantity: must be an integer from 1 to 1000000000",
    extras: r#"{"errors":[{"field":"lines[0].quantity","detail":"must be an integer from 1 to 1000000000"}]}"#,
};

pub(super) static HOLD_LIMIT: Kind = Kind {
    slug: "hold-limit",
    status: StatusCode::UNPROCESSABLE_ENTITY,
    title: "The deadline is too near or too far",
    explanation: "A hold lasts at least a second, an extension only moves a deadline later, and \
        the time from creation to deadline is limited. At `now`, the server's clock, deadlines \
        from `earliest` to `latest` would have been taken.",
    detail: "The deadline must lie between 2026-12-01T10:00:01.000Z and 2026-12-31T10:00:00.000Z.",
    extras: r#"{"now":"2026-12-01T10:00:00.000Z","earliest":"2026-12-01T10:00:01.000Z","latest":"2026-12-31T10:00:00.000Z"}"#,
};

pub(super) static IDEMPOTENCY_KEY_REUSED: Kind = Kind {
    slug: "idempotency-key-reused",
    status: StatusCode::UNPROCESSABLE_ENTITY,
    title: "This Idempotency-Key was used for another request",
    explanation: "A key names one request: method, path, query and body. Use a new key for a new \
        request. Keys are kept for 24 hours.",
    detail: "This Idempotency-Key was used for another request.",
    extras: "{}",
};

pub(super) static RATE_LIMITED: Kind = Kind {
    slug: "rate-limited",
    status: StatusCode::TOO_MANY_REQUESTS,
    title: "Too many requests",
    explanation: "Each key may send so many requests per second, and so many at once after a rest; \
        `RateLimit-Policy` and `RateLimit` say how it stands. Nothing has happened: ask again after \
        `Retry-After`, with the same Idempotency-Key.",
    detail: "This key has sent more requests than its limit allows.",
    extras: "{}",
};

pub(super) static EXPIRY_DEFERRED: Kind = Kind {
    slug: "expiry-deferred",
    status: StatusCode::TOO_MANY_REQUESTS,
    title: "The hold is due, and has to wait",
    explanation: "Holds expire no faster than the operator allows, and one whose release failed \
        rests before it is tried again. The deadline stays as it was. Deliver the job again after \
        `Retry-After`; who does not finds it done by the sweep.",
    detail: "The hold is released at 2026-12-01T10:15:02.250Z at the earliest.",
    extras: "{}",
};

pub(super) static INTERNAL: Kind = Kind {
    slug: "internal",
    status: StatusCode::INTERNAL_SERVER_ERROR,
    title: "Something went wrong on our side",
    explanation: "The cause is in the server's log under `request_id`.",
    detail: "The cause is in the log under the request id.",
    extras: r#"{"request_id":"4f1d7c0a9be2438fa1c5e6d7b8092a3c"}"#,
};

pub(super) static OVERLOADED: Kind = Kind {
    slug: "overloaded",
    status: StatusCode::SERVICE_UNAVAILABLE,
    title: "Not now",
    explanation: "Too much is waiting, the database cannot be reached, the service is shutting \
        down, or no answer came in time. Ask again after `Retry-After`, with the same \
        Idempotency-Key: unless `detail` says otherwise nothing has happened, and with the key \
        nothing happens twice.",
    detail: "Too much is waiting.",
    extras: "{}",
};

pub(super) static NOT_READY: Kind = Kind {
    slug: "not-ready",
    status: StatusCode::SERVICE_UNAVAILABLE,
    title: "The service is not ready",
    explanation: "The service runs, and cannot do its work. `detail` says what is missing.",
    detail: "The database cannot be reached.",
    extras: "{}",
};
