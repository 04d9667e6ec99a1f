//! `/v1/reservations`.

use axum::extract::State;
use axum::response::Response;

use super::bodies::{
    CancelReservation, CheckOutReservation, CreateReservation, ExtendReservation, ReservationBody,
};
use super::documented::{KEYED, LISTED, documented};
use super::page::Page;
use super::path::ReservationPath;
use super::problem::Problem;
use super::query::{Parameters, Query, ReadQuery};
use super::submission::Submission;
use super::{App, answer, cursor, examples, kinds, schemas};
use crate::domain::{Command, CustomerId, Reference, ReservationId, State as ReservationState};
use crate::store::ReservationFilter;

/// The page as the API document names it.
type ReservationPage = Page<ReservationBody<'static>>;

documented!(CreateProblems: KEYED, &[&kinds::INSUFFICIENT_STOCK, &kinds::HOLD_LIMIT]);
documented!(ReadProblems: &[&kinds::NOT_FOUND, &kinds::VALIDATION]);
documented!(ListProblems: LISTED);
documented!(ExtendProblems: KEYED, ENDED, &[&kinds::HOLD_LIMIT]);
documented!(CheckOutProblems: KEYED, ENDED, &[&kinds::INSUFFICIENT_STOCK]);
documented!(CancelProblems: KEYED, ENDED);

/// What a reservation that is not alive answers.
const ENDED: &[&kinds::Kind] = &[
    &kinds::NOT_FOUND,
    &kinds::RESERVATION_NOT_HELD,
    &kinds::RESERVATION_EXPIRED,
];

/// Make a reservation
///
/// Sets stock aside for a buyer until a deadline: every line or nothing. Lines of the same SKU
/// and location count as their sum. If the reservation is not paid, cancelled or extended before
/// its deadline, it expires by itself and the stock goes back.
#[utoipa::path(
    post,
    path = "/v1/reservations",
    operation_id = "create_reservation",
    tag = "reservations",
    request_body(content = CreateReservation, example = json!(examples::create_reservation())),
    responses(
        (status = 201, description = "The stock is set aside.", body = ReservationBody,
            headers(("Location" = String, description = "The path of the reservation.")),
            example = json!(examples::reservation("held"))),
        CreateProblems,
    ),
)]
pub(super) async fn create(
    State(app): State<App>,
    Query(()): Query<()>,
    submission: Submission<CreateReservation>,
) -> Result<Response, Problem> {
    let mut entropy = [0; 10];
    app.runtime.fill_random(&mut entropy);
    let reserve = submission.body.reserve(
        entropy,
        submission.merchant,
        app.settings.default_hold_seconds,
    )?;
    app.submit(Command::Reserve(reserve), submission.origin)
        .await
}

/// Read a reservation
///
/// The state is judged by the deadline: past it, a hold reads as `expired`.
#[utoipa::path(
    get,
    path = "/v1/reservations/{id}",
    operation_id = "get_reservation",
    tag = "reservations",
    params(("id" = inline(schemas::ReservationId), Path, description = "Which reservation.")),
    responses(
        (status = 200, description = "The reservation.", body = ReservationBody,
            example = json!(examples::reservation("held"))),
        ReadProblems,
    ),
)]
pub(super) async fn get(
    State(app): State<App>,
    ReservationPath(id): ReservationPath,
    Query(()): Query<()>,
) -> Result<Response, Problem> {
    let (found, now) = app.engine.store().reservation(id).await?;
    let reservation = found.ok_or_else(|| Problem::no_reservation(id))?;
    answer::ok(&ReservationBody::new(
        &reservation,
        reservation.state_at(now),
    ))
}

/// Which reservations to list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListReservations {
    /// Only those that read as this state.
    #[param(inline, value_type = Option<schemas::ReservationState>)]
    state: Option<ReservationState>,
    /// Only this customer's.
    #[param(inline, value_type = Option<schemas::CustomerId>)]
    customer_id: Option<CustomerId>,
    /// Only those with this reference.
    #[param(inline, value_type = Option<schemas::Reference>)]
    reference: Option<Reference>,
    /// The `next_cursor` of the page before, with the same filter.
    cursor: Option<String>,
    /// The most items on the page.
    #[param(minimum = 1, maximum = 1_000, default = 100, value_type = Option<i32>)]
    limit: usize,
}

impl ReadQuery for ListReservations {
    fn read(parameters: &mut Parameters) -> Self {
        Self {
            state: parameters.one("state", |word| {
                ReservationState::from_word(word)
                    .ok_or("must be `held`, `paid`, `cancelled` or `expired`")
            }),
            customer_id: parameters.one("customer_id", |text| CustomerId::new(text)),
            reference: parameters.one("reference", |text| Reference::new(text)),
            cursor: parameters.cursor(),
            limit: parameters.limit(),
        }
    }
}

/// List reservations
///
/// From the newest to the oldest.
#[utoipa::path(
    get,
    path = "/v1/reservations",
    operation_id = "list_reservations",
    tag = "reservations",
    params(ListReservations),
    responses(
        (status = 200, description = "One page.", body = ReservationPage,
            example = json!(examples::page(examples::reservation("held")))),
        ListProblems,
    ),
)]
pub(super) async fn list(
    State(app): State<App>,
    Query(query): Query<ListReservations>,
) -> Result<Response, Problem> {
    let filter = ReservationFilter {
        state: query.state,
        customer_id: query.customer_id,
        reference: query.reference,
    };
    let list = (
        "reservations",
        filter.state.map(ReservationState::as_str),
        &filter.customer_id,
        &filter.reference,
    );
    let before: Option<ReservationId> = match query.cursor {
        Some(text) => Some(cursor::read(&list, &text)?),
        None => None,
    };
    let (rows, now) = app
        .engine
        .store()
        .list_reservations(&filter, before, query.limit + 1)
        .await?;
    answer::ok(&Page::new(
        &rows,
        query.limit,
        |row| ReservationBody::new(row, row.state_at(now)),
        |last| cursor::write(&list, last.id),
    )?)
}

/// Extend a hold
///
/// Moves the deadline later, while the hold is alive. From creation to deadline there is a
/// longest time, extensions included.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/extend",
    operation_id = "extend_reservation",
    tag = "reservations",
    params(("id" = inline(schemas::ReservationId), Path, description = "Which reservation.")),
    request_body(content = ExtendReservation, example = json!({ "extend_seconds": 600 })),
    responses(
        (status = 200, description = "The reservation with its new deadline.",
            body = ReservationBody, example = json!(examples::reservation("held"))),
        ExtendProblems,
    ),
)]
pub(super) async fn extend(
    State(app): State<App>,
    ReservationPath(id): ReservationPath,
    Query(()): Query<()>,
    submission: Submission<ExtendReservation>,
) -> Result<Response, Problem> {
    let until = submission.body.until()?;
    app.submit(Command::Extend { id, until }, submission.origin)
        .await
}

/// Sell what is held
///
/// The stock leaves the shelf. A repeat with the same `payment_reference` answers the same. A
/// checkout that is refused and names a payment leaves an event, because the money may have to be
/// returned.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/checkout",
    operation_id = "checkout_reservation",
    tag = "reservations",
    params(("id" = inline(schemas::ReservationId), Path, description = "Which reservation.")),
    request_body(content = Option<CheckOutReservation>,
        example = json!({ "payment_reference": "pi_1", "on_expired": "reject" })),
    responses(
        (status = 200, description = "The reservation is paid.", body = ReservationBody,
            example = json!(examples::reservation("paid"))),
        CheckOutProblems,
    ),
)]
pub(super) async fn check_out(
    State(app): State<App>,
    ReservationPath(id): ReservationPath,
    Query(()): Query<()>,
    submission: Submission<CheckOutReservation>,
) -> Result<Response, Problem> {
    let CheckOutReservation {
        payment_reference,
        on_expired,
    } = submission.body;
    let command = Command::CheckOut {
        id,
        payment_reference,
        on_expired: on_expired.map(|word| word.0).unwrap_or_default(),
    };
    app.submit(command, submission.origin).await
}

/// Give back what is held
///
/// A repeat answers the same.
#[utoipa::path(
    post,
    path = "/v1/reservations/{id}/cancel",
    operation_id = "cancel_reservation",
    tag = "reservations",
    params(("id" = inline(schemas::ReservationId), Path, description = "Which reservation.")),
    request_body(content = Option<CancelReservation>,
        example = json!({ "reason": "the buyer changed their mind" })),
    responses(
        (status = 200, description = "The reservation is cancelled.", body = ReservationBody,
            example = json!(examples::reservation("cancelled"))),
        CancelProblems,
    ),
)]
pub(super) async fn cancel(
    State(app): State<App>,
    ReservationPath(id): ReservationPath,
    Query(()): Query<()>,
    submission: Submission<CancelReservation>,
) -> Result<Response, Problem> {
    let reason = submission.body.reason;
    app.submit(Command::Cancel { id, reason }, submission.origin)
        .await
}
