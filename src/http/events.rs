//! `/v1/events`.

use axum::extract::State;
use axum::response::Response;

use super::bodies::EventBody;
use super::documented::documented;
use super::page::Page;
use super::problem::Problem;
use super::query::{Parameters, Query, ReadQuery};
use super::{App, answer, examples, kinds};

/// The page as the API document names it.
type EventPage = Page<EventBody<'static>>;

documented!(ListProblems: &[&kinds::VALIDATION, &kinds::EVENTS_DELETED]);

/// From where to read the log.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListEvents {
    /// The number of the last event that is known; 0 is before the first one.
    #[param(minimum = 0, default = 0, value_type = Option<i64>)]
    after: i64,
    /// The most items on the page.
    #[param(minimum = 1, maximum = 1_000, default = 100, value_type = Option<i32>)]
    limit: usize,
}

impl ReadQuery for ListEvents {
    fn read(parameters: &mut Parameters) -> Self {
        let after = parameters.one("after", |text| {
            text.parse()
                .ok()
                .filter(|after| *after >= 0)
                .ok_or("must be an integer, at least 0")
        });
        Self {
            after: after.unwrap_or_default(),
            limit: parameters.limit(),
        }
    }
}

/// Read the event log
///
/// One event for each change, numbered without gaps in the order in which things happened, from
/// any point on. A reader that keeps the number of the last event it has seen misses nothing. If
/// events behind that number were deleted because of their age, it is told so.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "list_events",
    tag = "events",
    params(ListEvents),
    responses(
        (status = 200, description = "One page. `next_cursor` is to be sent as `after`.",
            body = EventPage, example = json!(examples::page(examples::event()))),
        ListProblems,
    ),
)]
pub(super) async fn list(
    State(app): State<App>,
    Query(query): Query<ListEvents>,
) -> Result<Response, Problem> {
    let store = app.engine.store();
    let rows = store.events(query.after, query.limit + 1).await?;
    // Numbers have no gaps, so what is next needs no look at what was deleted.
    if rows.first().map(|row| row.seq) != query.after.checked_add(1) {
        let gone = store.retention().horizons().await?.last_deleted_event;
        if query.after < gone {
            let detail = format!("Events up to {gone} were deleted because of their age.");
            return Err(Problem::new(&kinds::EVENTS_DELETED, detail).with("after", gone.into()));
        }
    }
    answer::ok(&Page::new(&rows, query.limit, EventBody::new, |last| {
        Ok(last.seq.to_string())
    })?)
}
