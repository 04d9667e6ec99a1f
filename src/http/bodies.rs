//! Bodies of requests and answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::fields::{Delta, Object, OnExpiredWord, OnHand, Pairs, Quantity, Seconds};
use super::kinds;
use super::problem::{FieldFault, Problem};
use super::schemas;
use super::submission::Input;
use crate::domain::{
    CustomerId, Deadline, Line, Location, MAX_LINES, Merchant, Metadata, Particulars,
    PaymentReference, Reason, Reference, Reservation, ReservationId, Reserve, Sku, State, Stock,
    Timestamp,
};
use crate::store::RecordedEvent;

/// A new reservation. At most one of `hold_seconds` and `expires_at` is given; without them the
/// hold has the length that the service is set to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateReservation {
    /// What to set aside: all of it or nothing.
    #[schema(value_type = Vec<NewLine>, min_items = 1, max_items = 1_000)]
    lines: Vec<Object<NewLine>>,
    /// How long to hold it, counted from now.
    #[schema(value_type = Option<schemas::Seconds>)]
    hold_seconds: Option<Seconds>,
    /// Until when to hold it.
    #[schema(value_type = Option<schemas::Instant>)]
    expires_at: Option<Timestamp>,
    /// Who holds it.
    #[schema(value_type = Option<schemas::CustomerId>)]
    customer_id: Option<CustomerId>,
    /// The caller's own name for it, such as an order number; need not be unique.
    #[schema(value_type = Option<schemas::Reference>)]
    reference: Option<Reference>,
    /// The caller's own pairs, returned as they are.
    #[schema(value_type = Option<schemas::Metadata>)]
    metadata: Option<Pairs>,
}

/// So many units of one SKU at one place.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewLine {
    /// What.
    #[schema(value_type = schemas::Sku)]
    sku: Sku,
    /// How many.
    #[schema(value_type = schemas::Quantity)]
    quantity: Quantity,
    /// From where; `default` if not given.
    #[schema(value_type = Option<schemas::Location>)]
    location: Option<Location>,
}

impl Input for CreateReservation {}

impl CreateReservation {
    /// What is asked of the engine.
    pub(super) fn reserve(
        self,
        entropy: [u8; 10],
        merchant: Merchant,
        default_hold_seconds: i64,
    ) -> Result<Reserve, Problem> {
        let mut faults = Vec::new();
        if self.lines.is_empty() || self.lines.len() > MAX_LINES {
            let detail = format!("must have 1 to {MAX_LINES} items");
            faults.push(FieldFault::new("lines", detail));
        }
        if self.hold_seconds.is_some() && self.expires_at.is_some() {
            let detail = "cannot be given together with hold_seconds";
            faults.push(FieldFault::new("expires_at", detail));
        }
        if !faults.is_empty() {
            return Err(Problem::about_fields(&kinds::VALIDATION, &faults));
        }
        let until = deadline(self.hold_seconds, self.expires_at).unwrap_or(Deadline::In {
            seconds: default_hold_seconds,
        });
        Ok(Reserve {
            entropy,
            lines: self
                .lines
                .into_iter()
                .map(|line| line.0.into_line())
                .collect::<Result<_, _>>()?,
            until,
            merchant,
            customer_id: self.customer_id,
            reference: self.reference,
            metadata: self.metadata.unwrap_or_default().0,
        })
    }
}

impl NewLine {
    fn into_line(self) -> Result<Line, Problem> {
        Ok(Line {
            sku: self.sku,
            location: match self.location {
                Some(location) => location,
                None => default_location()?,
            },
            quantity: self.quantity.0,
        })
    }
}

/// The location that is meant where none is named.
pub(super) fn default_location() -> Result<Location, Problem> {
    Location::new("default").map_err(Problem::internal)
}

fn deadline(seconds: Option<Seconds>, at: Option<Timestamp>) -> Option<Deadline> {
    let seconds = seconds.map(|seconds| Deadline::In { seconds: seconds.0 });
    seconds.or(at.map(Deadline::At))
}

/// A later deadline. Exactly one of the members is given.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendReservation {
    /// How much later, counted from the present deadline.
    #[schema(value_type = Option<schemas::Seconds>)]
    extend_seconds: Option<Seconds>,
    /// The new deadline.
    #[schema(value_type = Option<schemas::Instant>)]
    expires_at: Option<Timestamp>,
}

impl Input for ExtendReservation {}

impl ExtendReservation {
    /// The deadline that is asked for.
    pub(super) fn until(&self) -> Result<Deadline, Problem> {
        if self.extend_seconds.is_some() && self.expires_at.is_some() {
            return Err(Problem::invalid(
                "expires_at",
                "cannot be given together with extend_seconds",
            ));
        }
        deadline(self.extend_seconds, self.expires_at).ok_or_else(|| {
            Problem::invalid("extend_seconds", "either this or expires_at must be given")
        })
    }
}

/// A payment. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckOutReservation {
    /// The payment provider's name for the payment.
    #[schema(value_type = Option<schemas::PaymentReference>)]
    pub payment_reference: Option<PaymentReference>,
    /// What to do if the deadline has passed.
    #[schema(value_type = Option<schemas::OnExpired>)]
    pub on_expired: Option<OnExpiredWord>,
}

impl Input for CheckOutReservation {
    const MAY_BE_MISSING: bool = true;
}

/// The end of a hold. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelReservation {
    /// Why; it goes into the event.
    #[schema(value_type = Option<schemas::Reason>)]
    pub reason: Option<Reason>,
}

impl Input for CancelReservation {
    const MAY_BE_MISSING: bool = true;
}

/// What a count of the shelf came to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetStock {
    /// Units on the shelf, those that are held included.
    #[schema(value_type = schemas::OnHand)]
    pub on_hand: OnHand,
}

impl Input for SetStock {}

/// A change of what is on the shelf, as by a delivery or a breakage.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdjustStock {
    /// Units to add, or to take away if negative; not 0.
    #[schema(value_type = schemas::Delta)]
    delta: Delta,
    /// Why; it goes into the event.
    #[schema(value_type = Option<schemas::Reason>)]
    pub reason: Option<Reason>,
}

impl Input for AdjustStock {}

impl AdjustStock {
    /// Units to add.
    pub(super) fn delta(&self) -> Result<i64, Problem> {
        match self.delta.0 {
            0 => Err(Problem::invalid("delta", "must not be 0")),
            delta => Ok(delta),
        }
    }
}

/// A buyer's claim on stock.
#[derive(Serialize, ToSchema)]
#[schema(as = Reservation)]
pub(super) struct ReservationBody<'a> {
    /// Its name.
    #[schema(value_type = schemas::ReservationId)]
    id: ReservationId,
    /// Where it stands.
    #[schema(value_type = schemas::ReservationState)]
    state: &'static str,
    /// What it claims.
    #[schema(value_type = Vec<LineBody>, min_items = 1, max_items = 1_000)]
    lines: &'a [Line],
    /// The deadline: alive while now is before it.
    #[schema(value_type = schemas::Instant)]
    expires_at: Timestamp,
    /// The hold as it was asked for, from creation to the first deadline.
    #[schema(value_type = schemas::Seconds)]
    hold_seconds: i64,
    /// How often it was extended.
    #[schema(minimum = 0)]
    extensions: i64,
    /// When it was made.
    #[schema(value_type = schemas::Instant)]
    created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = schemas::Instant)]
    updated_at: Timestamp,
    /// When it left `held`; null until its stock was sold or given back.
    #[schema(value_type = Option<schemas::Instant>, required)]
    closed_at: Option<Timestamp>,
    /// On whose behalf it was made, by the API key.
    #[schema(value_type = schemas::Merchant)]
    merchant: &'a Merchant,
    /// Who holds it.
    #[schema(value_type = Option<schemas::CustomerId>, required)]
    customer_id: Option<&'a CustomerId>,
    /// The caller's own name for it.
    #[schema(value_type = Option<schemas::Reference>, required)]
    reference: Option<&'a Reference>,
    /// The payment that won; null unless it is paid.
    #[schema(value_type = Option<schemas::PaymentReference>, required)]
    payment_reference: Option<&'a PaymentReference>,
    /// Whether the payment came after the deadline and the stock was taken anew.
    reacquired: bool,
    /// The caller's own pairs.
    #[schema(value_type = schemas::Metadata)]
    metadata: &'a Metadata,
}

/// So many units of one SKU at one place.
#[derive(ToSchema)]
#[schema(as = Line)]
#[expect(
    dead_code,
    reason = "lines are written as the domain has them; this is their schema"
)]
pub(super) struct LineBody {
    /// What.
    #[schema(value_type = schemas::Sku)]
    sku: Sku,
    /// From where.
    #[schema(value_type = schemas::Location)]
    location: Location,
    /// How many.
    #[schema(value_type = schemas::Quantity)]
    quantity: i64,
}

impl<'a> ReservationBody<'a> {
    /// A reservation that reads as `state`.
    pub(super) fn new(reservation: &'a Reservation, state: State) -> Self {
        Self {
            id: reservation.id,
            state: state.as_str(),
            lines: &reservation.lines,
            expires_at: reservation.expires_at,
            hold_seconds: reservation.hold_seconds,
            extensions: reservation.extensions,
            created_at: reservation.created_at,
            updated_at: reservation.updated_at,
            closed_at: reservation.closed_at,
            merchant: &reservation.merchant,
            customer_id: reservation.customer_id.as_ref(),
            reference: reservation.reference.as_ref(),
            payment_reference: reservation.payment_reference.as_ref(),
            reacquired: reservation.reacquired,
            metadata: &reservation.metadata,
        }
    }
}

/// One row of stock, in units.
#[derive(Serialize, ToSchema)]
#[schema(as = Stock)]
pub(super) struct StockBody<'a> {
    /// What it is.
    #[schema(value_type = schemas::Sku)]
    sku: &'a Sku,
    /// Where it lies.
    #[schema(value_type = schemas::Location)]
    location: &'a Location,
    /// What is on the shelf, held or not.
    #[schema(value_type = schemas::OnHand)]
    on_hand: i64,
    /// What reservations hold of it, those included whose deadline has passed and whose stock
    /// was not given back yet.
    #[schema(minimum = 0)]
    held: i64,
    /// What a buyer can get now. It counts by deadlines, so that it can be more than `on_hand`
    /// less `held`.
    #[schema(minimum = 0)]
    available: i64,
    /// When the row last changed.
    #[schema(value_type = schemas::Instant)]
    updated_at: Timestamp,
}

impl<'a> StockBody<'a> {
    /// A row of stock.
    pub(super) fn new(stock: &'a Stock) -> Self {
        Self {
            sku: &stock.key.sku,
            location: &stock.key.location,
            on_hand: stock.on_hand,
            held: stock.held,
            available: stock.available(),
            updated_at: stock.updated_at,
        }
    }
}

/// Something that happened.
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
pub(super) struct EventBody<'a> {
    /// 1, 2, 3 and so on, without gaps, in the order in which things happened.
    #[schema(minimum = 1)]
    seq: i64,
    /// What kind of thing.
    #[schema(value_type = schemas::EventKindWord)]
    kind: &'static str,
    /// To which reservation; null for what happened to stock.
    #[schema(value_type = Option<schemas::ReservationId>, required)]
    reservation_id: Option<ReservationId>,
    /// When.
    #[schema(value_type = schemas::Instant)]
    at: Timestamp,
    /// Particulars.
    #[schema(value_type = schemas::EventData)]
    data: &'a Particulars,
}

impl<'a> EventBody<'a> {
    /// A recorded event.
    pub(super) fn new(recorded: &'a RecordedEvent) -> Self {
        Self {
            seq: recorded.seq,
            kind: recorded.event.kind.as_str(),
            reservation_id: recorded.event.reservation_id,
            at: recorded.event.at,
            data: &recorded.event.data,
        }
    }
}
