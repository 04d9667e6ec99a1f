//! `/v1/operations/quarantine`: what nothing could be done with, and what is done about it.

mod bodies;

use axum::extract::State;
use axum::response::Response;

pub use self::bodies::{CaseBody, ReplayBody};

use self::bodies::{DismissCase, ReplayCase, ReplayCases, ReplaysBody};
use crate::domain::Text;
use crate::engine::{Cases, Dismissed, EngineError, Replayed, to_its_end};
use crate::http::documented::{CHANGED, LISTED, documented};
use crate::http::guard::Actor;
use crate::http::page::Page;
use crate::http::path::CasePath;
use crate::http::problem::Problem;
use crate::http::query::{Parameters, Query, ReadQuery};
use crate::http::submission::Submission;
use crate::http::{App, answer, cursor, examples, kinds, schemas};
use crate::store::{CaseFilter, CaseState};

documented!(ListProblems: LISTED);
documented!(ReadProblems: &[&kinds::NOT_FOUND, &kinds::VALIDATION]);
documented!(ReplayProblems: CHANGED, &[&kinds::NOT_FOUND]);
documented!(ReplayManyProblems: CHANGED);
documented!(DismissProblems: CHANGED, &[&kinds::NOT_FOUND, &kinds::STILL_HELD]);

/// The path under which many cases are replayed.
pub(super) const REPLAY_MANY: &str = "/v1/operations/quarantine/replay";

/// The page as the API document names it.
type CasePage = Page<CaseBody<'static>>;

/// Which cases to list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ListCases {
    /// Only those that were found there.
    #[param(inline, value_type = Option<schemas::CaseSource>)]
    source: Option<Text<128>>,
    /// Only those with this key.
    #[param(inline, value_type = Option<schemas::CaseKey>)]
    key: Option<Text<512>>,
    /// Only those in this state.
    #[param(inline, value_type = Option<schemas::CaseStateWord>)]
    state: Option<CaseState>,
    /// The `next_cursor` of the page before, with the same filter.
    cursor: Option<String>,
    /// The most items on the page.
    #[param(minimum = 1, maximum = 1_000, default = 100, value_type = Option<i32>)]
    limit: usize,
}

impl ReadQuery for ListCases {
    fn read(parameters: &mut Parameters) -> Self {
        Self {
            source: parameters.one("source", |text| Text::new(text)),
            key: parameters.one("key", |text| Text::new(text)),
            state: parameters.one("state", |word| {
                CaseState::from_word(word).ok_or("must be `open` or `resolved`")
            }),
            cursor: parameters.cursor(),
            limit: parameters.limit(),
        }
    }
}

/// List cases in quarantine
///
/// What nothing could be done with, from the oldest case to the newest, without what was received.
#[utoipa::path(
    get,
    path = "/v1/operations/quarantine",
    operation_id = "list_quarantine",
    tag = "operations",
    params(ListCases),
    responses(
        (status = 200, description = "One page.", body = CasePage,
            example = json!(examples::page(examples::quarantine_case(false)))),
        ListProblems,
    ),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    Query(query): Query<ListCases>,
) -> Result<Response, Problem> {
    let text = |text: &str| text.to_owned();
    let filter = CaseFilter {
        source: query.source.as_ref().map(|it| text(it.as_str())),
        key: query.key.as_ref().map(|it| text(it.as_str())),
        state: query.state,
    };
    let state = filter.state.map(CaseState::as_str);
    let list = ("quarantine", &filter.source, &filter.key, state);
    let after = match &query.cursor {
        Some(text) => cursor::read(&list, text)?,
        None => 0,
    };
    let quarantine = app.engine.store().quarantine();
    let cases = quarantine.list(&filter, after, query.limit + 1).await?;
    answer::ok(&Page::new(&cases, query.limit, CaseBody::listed, |last| {
        cursor::write(&list, last.id)
    })?)
}

/// Show a case in quarantine
///
/// With what was received, and what operators did about it.
#[utoipa::path(
    get,
    path = "/v1/operations/quarantine/{id}",
    operation_id = "get_quarantine",
    tag = "operations",
    params(("id" = inline(schemas::CaseId), Path, description = "Which case.")),
    responses(
        (status = 200, description = "The case.", body = CaseBody,
            example = json!(examples::quarantine_case(true))),
        ReadProblems,
    ),
)]
pub(in crate::http) async fn get(
    State(app): State<App>,
    CasePath(id): CasePath,
    Query(()): Query<()>,
) -> Result<Response, Problem> {
    show(&app, id, None).await
}

/// Answers with the case, and with what came of its replay if it was replayed.
async fn show(app: &App, id: i64, replayed: Option<&Replayed>) -> Result<Response, Problem> {
    let found = app.engine.store().quarantine().find(id).await?;
    let (case, actions) = found.ok_or_else(Problem::no_case)?;
    let case = CaseBody::whole(&case, &actions);
    match replayed {
        None => answer::ok(&case),
        Some(replayed) => answer::ok(&ReplayBody::new(replayed, case)),
    }
}

/// Does for the operator what comes to its end even if the caller hangs up, so that what was done
/// is also written down.
async fn act<T: Send + 'static, Acting>(
    app: &App,
    act: impl FnOnce(Cases) -> Acting,
) -> Result<T, EngineError>
where
    Acting: Future<Output = Result<T, EngineError>> + Send + 'static,
{
    let cases = Cases::new(app.engine.clone(), app.runtime.clone());
    to_its_end(app.runtime.as_ref(), Box::pin(act(cases))).await
}

/// Replay a case
///
/// Tries it again, through the same guard as every expiry: the job of a delivery or of a hold is
/// decided, the message that the relay has given up is published again. What has ended stays as it
/// is, and the answer says how. If nothing is left to be done, the case is settled; otherwise it
/// stays open. A replay may be repeated: nothing is done twice.
#[utoipa::path(
    post,
    path = "/v1/operations/quarantine/{id}/replay",
    operation_id = "replay_quarantine",
    tag = "operations",
    params(("id" = inline(schemas::CaseId), Path, description = "Which case.")),
    request_body(content = Option<ReplayCase>, example = json!({})),
    responses(
        (status = 200, description = "What came of it.", body = ReplayBody, example = json!({
            "outcome": "expired", "detail": null, "case": examples::quarantine_case(true),
        })),
        ReplayProblems,
    ),
)]
pub(in crate::http) async fn replay(
    State(app): State<App>,
    CasePath(id): CasePath,
    Query(()): Query<()>,
    Actor(by): Actor,
    _: Submission<ReplayCase>,
) -> Result<Response, Problem> {
    let replayed = act(&app, |cases| async move { cases.replay(id, &by).await }).await?;
    let replayed = replayed.ok_or_else(Problem::no_case)?;
    show(&app, id, Some(&replayed)).await
}

/// Replay many cases
///
/// Tries open cases again, as the replay of one does, in the order of their numbers and not too
/// fast. Without `"dry_run": false` nothing is done, and the answer says what would come of it. It
/// ends after a minute at most, even if its caller hangs up; if `more` is true, ask again with its
/// `after`. Cases that stay open are behind it.
#[utoipa::path(
    post,
    path = "/v1/operations/quarantine/replay",
    operation_id = "replay_quarantines",
    tag = "operations",
    request_body(content = Option<ReplayCases>,
        example = json!({ "source": "relay", "limit": 100, "per_second": 50, "dry_run": true })),
    responses(
        (status = 200, description = "What came of it.", body = ReplaysBody, example = json!({
            "dry_run": true, "outcomes": { "rearmed": 98, "paid": 2 }, "after": 107, "more": true,
        })),
        ReplayManyProblems,
    ),
)]
pub(in crate::http) async fn replay_many(
    State(app): State<App>,
    Query(()): Query<()>,
    Actor(by): Actor,
    submission: Submission<ReplayCases>,
) -> Result<Response, Problem> {
    let asked = submission.body.asked();
    let replayed = act(
        &app,
        |cases| async move { cases.replay_many(&asked, &by).await },
    );
    answer::ok(&replayed.await?)
}

/// Dismiss a case
///
/// Settles it without doing anything about it. A case that was settled before stays as it was. A
/// hold whose release was given up cannot be dismissed while it stands.
#[utoipa::path(
    post,
    path = "/v1/operations/quarantine/{id}/dismiss",
    operation_id = "dismiss_quarantine",
    tag = "operations",
    params(("id" = inline(schemas::CaseId), Path, description = "Which case.")),
    request_body(content = DismissCase, example = json!({ "reason": "sent by a test" })),
    responses(
        (status = 200, description = "The case as it stands.", body = CaseBody,
            example = json!(examples::quarantine_case(true))),
        DismissProblems,
    ),
)]
pub(in crate::http) async fn dismiss(
    State(app): State<App>,
    CasePath(id): CasePath,
    Query(()): Query<()>,
    Actor(by): Actor,
    submission: Submission<DismissCase>,
) -> Result<Response, Problem> {
    let reason = submission.body.reason;
    let dismiss = |cases: Cases| async move { cases.dismiss(id, &reason, &by).await };
    match act(&app, dismiss).await? {
        Dismissed::Done => show(&app, id, None).await,
        Dismissed::StillHeld => Err(Problem::new(&kinds::STILL_HELD, kinds::STILL_HELD.detail)),
        Dismissed::NoCase => Err(Problem::no_case()),
    }
}
