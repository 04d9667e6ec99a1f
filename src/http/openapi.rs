//! The API document: what the operations do not say for themselves.

use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{OpenApi, RefOr, Required, Schema};
use utoipa::{OpenApi as _, ToSchema};

use super::problem::FieldFault;
use super::{doors, schemas};

/// An RFC 9457 problem. `type` is the path of a page that explains it. Which of the other members
/// there are depends on the kind of problem.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(
    dead_code,
    reason = "problems are written member by member; this is their schema"
)]
struct ProblemBody {
    /// `/problems/` and the slug of the kind.
    #[schema(format = "uri-reference", example = "/problems/validation")]
    r#type: String,
    /// What kind of problem it is, for people.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong this time.
    detail: String,
    /// The path of the request.
    #[schema(format = "uri-reference")]
    instance: String,
    /// `validation` and `malformed-request`: which fields, and why.
    #[schema(nullable = false)]
    errors: Option<Vec<FieldFault>>,
    /// `insufficient-stock`: the rows of stock that have too little.
    #[schema(nullable = false)]
    short: Option<Vec<ShortBody>>,
    /// `reservation-not-held`: where the reservation stands.
    #[schema(value_type = Option<schemas::ReservationState>, nullable = false)]
    state: Option<String>,
    /// `reservation-not-held`: the payment that won, on a paid one.
    #[schema(value_type = Option<schemas::PaymentReference>)]
    payment_reference: Option<String>,
    /// `reservation-expired`: the deadline.
    #[schema(value_type = Option<schemas::Instant>, nullable = false)]
    expires_at: Option<String>,
    /// `hold-limit`: the clock that decided.
    #[schema(value_type = Option<schemas::Instant>, nullable = false)]
    now: Option<String>,
    /// `hold-limit`: the earliest deadline that would have been taken.
    #[schema(value_type = Option<schemas::Instant>, nullable = false)]
    earliest: Option<String>,
    /// `hold-limit`: the latest deadline that would have been taken.
    #[schema(value_type = Option<schemas::Instant>, nullable = false)]
    latest: Option<String>,
    /// `stock-below-held`: which row.
    #[schema(value_type = Option<schemas::Sku>, nullable = false)]
    sku: Option<String>,
    /// `stock-below-held`: which row.
    #[schema(value_type = Option<schemas::Location>, nullable = false)]
    location: Option<String>,
    /// `stock-below-held`: what is on hand.
    #[schema(nullable = false)]
    on_hand: Option<i64>,
    /// `stock-below-held`: what is held of it.
    #[schema(nullable = false)]
    held: Option<i64>,
    /// `stock-below-held`: what would have been on hand.
    #[schema(nullable = false)]
    requested: Option<i64>,
    /// `events-deleted`: the least `after` that is answered.
    #[schema(nullable = false)]
    after: Option<i64>,
    /// `internal`: by which the cause can be found in the server's log.
    #[schema(nullable = false)]
    request_id: Option<String>,
}

/// A row of stock that has too little.
#[derive(ToSchema)]
#[schema(as = Shortage)]
#[expect(
    dead_code,
    reason = "problems are written member by member; this is their schema"
)]
struct ShortBody {
    /// What.
    #[schema(value_type = schemas::Sku)]
    sku: String,
    /// Where.
    #[schema(value_type = schemas::Location)]
    location: String,
    /// Units that were asked for.
    #[schema(minimum = 1)]
    requested: i64,
    /// Units that could be had; 0 if the SKU is unknown.
    #[schema(minimum = 0)]
    available: i64,
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Holdfast",
        description = "Holds stock for a buyer for a fixed time, sells it if the payment comes in \
            that time, and otherwise gives it back: once, and on time.\n\nEvery POST that changes \
            something takes an `Idempotency-Key`, but those of operations, which may be repeated as \
            they are. Errors are problems as in RFC 9457. Every answer has an \
            `X-Request-Id`, which is the one that was sent, if one was. What names a parameter or \
            member that is not documented is refused.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "/", description = "The server that serves this document")),
    tags(
        (name = "reservations", description = "Buyers' claims on stock."),
        (name = "stock", description = "What lies on the shelf."),
        (name = "events", description = "What happened, in order."),
        (name = "deliveries", description = "What a queue brings back."),
        (name = "operations", description = "What the operator asks for."),
        (name = "health", description = "Whether the service lives and works, and its figures."),
    ),
    components(schemas(ProblemBody)),
)]
struct Frame;

/// The document without its operations.
pub(super) fn frame() -> OpenApi {
    Frame::openapi()
}

/// Adds what holds for every operation, and for every POST.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    doors::complete(&mut document);
    // The list is empty, not absent: where an operation says nothing, no credential is asked for.
    document.security = Some(Vec::new());
    for (path, item) in &mut document.paths.paths {
        // What a queue pushes has a name of its own in it.
        if path.starts_with("/v1/deliveries/") {
            continue;
        }
        if let PathItem {
            post: Some(operation),
            ..
        } = item
        {
            // What the operator asks for may be asked for again by its nature.
            if !path.starts_with("/v1/operations/") {
                takes_idempotency_key(operation);
            }
            may_lack_its_body(operation);
        }
    }
    document
}

/// A body that may be missing is not one that may be `null`.
fn may_lack_its_body(operation: &mut Operation) {
    let Some(RefOr::T(body)) = &mut operation.request_body else {
        return;
    };
    for content in body.content.values_mut() {
        let RefOr::T(content) = content else { continue };
        if let Some(RefOr::T(Schema::OneOf(either))) = &content.schema {
            content.schema = either
                .items
                .iter()
                .find(|item| matches!(item, RefOr::Ref(_)))
                .cloned();
        }
    }
}

fn takes_idempotency_key(operation: &mut Operation) {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(512));
    let parameter = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "Names this request, so that it can be repeated without a second effect: for 24 hours \
             the same request under the same key gets the same answer. A string in double quotes, \
             or a bare word; at most 255 bytes of printable ASCII. Answers with status 2xx, 409 \
             and 422 are kept, except for those to requests that break a rule of this document.",
        ))
        .schema(Some(schema))
        .example(Some("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"".into()))
        .build();
    operation
        .parameters
        .get_or_insert_default()
        .push(parameter.into());
    for (status, response) in &mut operation.responses.responses {
        let is_kept = status.starts_with('2') || status == "409" || status == "422";
        if let (true, RefOr::T(response)) = (is_kept, response) {
            response
                .headers
                .insert("Idempotent-Replayed".to_owned(), replayed().into());
        }
    }
}

fn replayed() -> Header {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(["true"]));
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(
            "Present on an answer that was given before under the same Idempotency-Key.",
        ))
        .build()
}
