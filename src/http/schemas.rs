//! The schemas of single values in the API document, with the limits that the code keeps.

use std::borrow::Cow;

use serde_json::json;
use utoipa::openapi::schema::{
    AdditionalProperties, KnownFormat, ObjectBuilder, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::fields::MAX_METADATA;
use crate::domain::{EventKind, MAX_ON_HAND, MAX_QUANTITY, State};
use crate::engine::Replayed;
use crate::store::{ActionKind, CaseState};

/// No control characters.
const PLAIN: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

/// Names a schema, so that the document refers to it by that name.
macro_rules! schema {
    ($name:ident, $schema:expr) => {
        pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    };
}

schema!(
    Sku,
    text(128, "The name of what is sold.", "SKU-COFFEE-1KG")
);
schema!(Location, text(128, "Where stock lies.", "default"));
schema!(
    Merchant,
    text(64, "On whose behalf a key is used.", "default")
);
schema!(
    CustomerId,
    text(255, "Who holds the reservation.", "customer-17")
);
schema!(
    Reference,
    text(
        255,
        "The caller's own name for a reservation.",
        "order-1042"
    )
);
schema!(
    PaymentReference,
    text(255, "The payment provider's name for a payment.", "pi_1")
);
schema!(Reason, text(500, "Why somebody did something.", "damaged"));
schema!(
    CaseSource,
    text(
        128,
        "Where a case was found: `relay` for what the relay has given up, `hold` for a hold whose \
         release was given up, or the name of a queue.",
        "rest"
    )
);
schema!(
    CaseKey,
    text(
        512,
        "The name of what was found, where it was found.",
        "expire:rsv_01jdz3x9k2e5qs8v4m7n6p0r1t:1796119200250"
    )
);
schema!(
    CaseId,
    integer("The number of a case. Later cases have larger ones.")
        .minimum(Some(1))
        .examples([json!(7)])
);
schema!(
    CaseStateWord,
    string("Whether something is still to be done about a case.")
        .enum_values(Some(CaseState::ALL.map(CaseState::as_str)))
);
schema!(
    ActionWord,
    string("What an operator did.").enum_values(Some(ActionKind::ALL.map(ActionKind::as_str)))
);
schema!(
    PayloadEncoding,
    string("How a payload is written.").enum_values(Some(["text", "base64"]))
);
schema!(
    ReplayOutcome,
    string(
        "What came of a replay. These settle the case: `expired`, the hold is released; `rearmed`, \
         the message waits to be published again; `paid`, `cancelled`, `already_expired`, the hold \
         had ended so; `duplicate`, the job was done before; `stale`, the deadline has moved. \
         `resolved`: the case was settled before. With the others it stays open: `not_due`, the \
         deadline has not come; `unknown`, there is no such reservation; `invalid`, it is no job; \
         `blocked`, a row refuses.",
    )
    .enum_values(Some(Replayed::WORDS))
);
schema!(
    ReservationId,
    string("The name of a reservation. Names sort by the instant of creation.")
        .pattern(Some("^rsv_[0-7][0-9a-hjkmnp-tv-z]{25}$"))
        .examples([json!("rsv_01jdz3x9k2e5qs8v4m7n6p0r1t")])
);
schema!(
    Instant,
    string(
        "An RFC 3339 instant between 1970 and 9999. It is answered in UTC with milliseconds. Any \
         offset is taken, but there must be one; digits beyond the millisecond are cut off.",
    )
    .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
    .examples([json!("2026-12-01T10:15:00.250Z")])
);
schema!(
    Quantity,
    integer("Units of a line.")
        .minimum(Some(1))
        .maximum(Some(MAX_QUANTITY))
);
schema!(
    OnHand,
    integer("Units on the shelf, held or not.")
        .minimum(Some(0))
        .maximum(Some(MAX_ON_HAND))
);
schema!(
    Delta,
    integer("Units to add, or to take away if negative; not 0.")
        .minimum(Some(-MAX_ON_HAND))
        .maximum(Some(MAX_ON_HAND))
);
schema!(
    Seconds,
    integer("A time span in whole seconds.").minimum(Some(1))
);
schema!(
    ReservationState,
    string(
        "`held` holds stock, and no other state does. Past its deadline a reservation reads as \
         `expired`, whether or not it has been released.",
    )
    .enum_values(Some(State::ALL.map(State::as_str)))
);
schema!(
    OnExpired,
    string(
        "What a checkout does when the deadline has passed: `reject` refuses it, `reacquire` takes \
         the stock again if it is still there.",
    )
    .enum_values(Some(["reject", "reacquire"]))
    .default(Some(json!("reject")))
);
schema!(
    EventKindWord,
    string(
        "What happened. `stock-repaired` is the mending of a counter that somebody tampered with: \
         of a row of stock, or of what is kept beside a reservation to find its units by.",
    )
    .enum_values(Some(EventKind::ALL.map(EventKind::as_str)))
);
schema!(
    Metadata,
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Object))
        .description(Some("Pairs of text that are kept with a reservation."))
        .additional_properties(Some(text(512, "The value of a pair.", "gift")))
        .property_names(Some(text(64, "The name of a pair.", "note").build()))
        .max_properties(Some(MAX_METADATA))
        .examples([json!({ "note": "gift" })])
);
schema!(
    EventData,
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Object))
        .description(Some(
            "Particulars; which members there are depends on the kind. `stock-repaired` has what was \
             `wrong` (`held-differs`, `row-missing` or `open-lines-differ`) and how it was `before` \
             and `after`: `on_hand` and `held` of the row that `sku` and `location` name, where \
             `before` is null if there was no row; or a list of open lines.",
        ))
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(true)))
);

fn string(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .description(Some(description))
}

fn integer(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Integer))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .description(Some(description))
}

/// Text from outside; the limit counts bytes, so that characters are never more.
fn text(max_bytes: usize, meaning: &str, example: &str) -> ObjectBuilder {
    string(&format!(
        "{meaning} At most {max_bytes} bytes of UTF-8 in Unicode normal form C, without control \
         characters, bidirectional controls and outer spaces, and not `.` or `..`."
    ))
    .min_length(Some(1))
    .max_length(Some(max_bytes))
    .pattern(Some(PLAIN))
    .examples([json!(example)])
}
