//! `/v1/operations/quarantine`: what nothing could be done with, and what is done about it.

use std::borrow::Cow;

use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::{Reason, Text, Timestamp};
use crate::engine::{Cases, Dismissed, EngineError, ReplayMany, Replayed, to_its_end};
use crate::http::documented::{CHANGED, LISTED, documented};
use crate::http::fields::Whole;
use crate::http::guard::Actor;
use crate::http::page::Page;
use crate::http::path::CasePath;
use crate::http::problem::Problem;
use crate::http::query::{Parameters, Query, ReadQuery};
use crate::http::submission::{Input, Submission};
use crate::http::{App, answer, cursor, examples, kinds, schemas};
use crate::store::{CaseFilter, CaseState, QuarantineCase, RecordedAction};

documented!(ListProblems: LISTED);
documented!(ReadProblems: &[&kinds::NOT_FOUND, &kinds::VALIDATION]);
documented!(ReplayProblems: CHANGED, &[&kinds::NOT_FOUND]);
documented!(ReplayManyProblems: CHANGED);
documented!(DismissProblems: CHANGED, &[&kinds::NOT_FOUND, &kinds::STILL_HELD]);

/// The path under which many cases are replayed.
pub(super) const REPLAY_MANY: &str = "/v1/operations/quarantine/replay";

/// The page as the API document names it.
type CasePage = Page<CaseBody<'static>>;

/// A case in quarantine.
#[derive(Serialize, ToSchema)]
#[schema(as = QuarantineCase)]
pub struct CaseBody<'a> {
    /// Its number.
    #[schema(value_type = schemas::CaseId)]
    id: i64,
    /// Where it was found.
    #[schema(value_type = schemas::CaseSource)]
    source: &'a str,
    /// Its name there: for `hold` a reservation, otherwise of a message.
    #[schema(value_type = schemas::CaseKey)]
    key: &'a str,
    /// Whether something is still to be done about it.
    #[schema(value_type = schemas::CaseStateWord)]
    state: &'static str,
    /// What is wrong with it, as it was last seen.
    reason: &'a str,
    /// How often it was seen.
    #[schema(minimum = 1)]
    attempts: i64,
    /// When it was first seen.
    #[schema(value_type = schemas::Instant)]
    first_seen: Timestamp,
    /// When it was last seen.
    #[schema(value_type = schemas::Instant)]
    last_seen: Timestamp,
    /// When it was settled; null while it is open.
    #[schema(value_type = Option<schemas::Instant>)]
    resolved_at: Option<Timestamp>,
    /// How it was settled; null while it is open.
    resolution: Option<&'a str>,
    /// Where one case is shown: what was received, at most the first 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    payload: Option<Cow<'a, str>>,
    /// Where one case is shown: `text`, or `base64` if what was received is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<schemas::PayloadEncoding>)]
    payload_encoding: Option<&'static str>,
    /// Where one case is shown: what operators did about it, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ActionBody>>, nullable = false)]
    actions: Option<Vec<ActionBody<'a>>>,
}

/// What an operator did about a case.
#[derive(Serialize, ToSchema)]
#[schema(as = QuarantineAction)]
pub struct ActionBody<'a> {
    /// What was done.
    #[schema(value_type = schemas::ActionWord)]
    action: &'static str,
    /// Who did it: the name of the API key, `bootstrap`, or `local` where there was no key.
    by: &'a str,
    /// When.
    #[schema(value_type = schemas::Instant)]
    at: Timestamp,
    /// What came of it.
    outcome: &'a str,
}

impl<'a> CaseBody<'a> {
    /// The case as it stands in a list.
    pub fn listed(case: &'a QuarantineCase) -> Self {
        let sighting = &case.sighting;
        let resolution = case.resolution.as_ref();
        Self {
            id: case.id,
            source: &sighting.source,
            key: &sighting.key,
            state: case.state().as_str(),
            reason: &sighting.reason,
            attempts: case.attempts,
            first_seen: case.first_seen,
            last_seen: case.last_seen,
            resolved_at: resolution.map(|resolution| resolution.at),
            resolution: resolution.map(|resolution| resolution.text.as_str()),
            payload: None,
            payload_encoding: None,
            actions: None,
        }
    }

    /// The case with what was received, and with what was done about it.
    pub fn whole(case: &'a QuarantineCase, actions: &'a [RecordedAction]) -> Self {
        let bytes = &case.sighting.payload;
        let (payload, encoding) = match std::str::from_utf8(bytes) {
            Ok(text) => (Cow::Borrowed(text), "text"),
            Err(_) => (Cow::Owned(STANDARD.encode(bytes)), "base64"),
        };
        let actions = actions.iter().map(|action| ActionBody {
            action: action.kind.as_str(),
            by: &action.by,
            at: action.at,
            outcome: &action.outcome,
        });
        Self {
            payload: Some(payload),
            payload_encoding: Some(encoding),
            actions: Some(actions.collect()),
            ..Self::listed(case)
        }
    }
}

/// What came of a replay, and how the case stands now.
#[derive(Serialize, ToSchema)]
#[schema(as = QuarantineReplay)]
pub struct ReplayBody<'a> {
    /// What came of it.
    #[schema(value_type = schemas::ReplayOutcome)]
    outcome: &'static str,
    /// Why the case stays open, if it does and the outcome does not say all.
    detail: Option<String>,
    /// The case.
    #[schema(value_type = CaseBody)]
    case: CaseBody<'a>,
}

impl<'a> ReplayBody<'a> {
    /// What is told of a replay.
    pub fn new(replayed: &Replayed, case: CaseBody<'a>) -> Self {
        Self {
            outcome: replayed.as_str(),
            detail: replayed.detail(),
            case,
        }
    }
}

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

/// Nothing. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReplayCase {}

impl Input for ReplayCase {
    const MAY_BE_MISSING: bool = true;
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

/// Which cases to replay. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReplayCases {
    /// Only open cases that were found there.
    #[schema(value_type = Option<schemas::CaseSource>)]
    source: Option<Text<128>>,
    /// Only those with larger numbers; the `after` of the replay before.
    #[schema(value_type = Option<i64>, minimum = 0, nullable = false)]
    after: Option<Whole<0, { i64::MAX }>>,
    /// At most so many; 100 if not given.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000, nullable = false)]
    limit: Option<Most>,
    /// At most so many per second; 50 if not given.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000, nullable = false)]
    per_second: Option<Most>,
    /// Only say what would come of them; true if not given.
    #[schema(nullable = false)]
    dry_run: Option<bool>,
}

/// A bound on the replay of many.
type Most = Whole<1, { ReplayMany::MOST as i64 }>;

impl Input for ReplayCases {
    const MAY_BE_MISSING: bool = true;
}

impl ReplayCases {
    fn asked(&self) -> ReplayMany {
        // What is said is in the range.
        let number = |said: &Option<Most>, default| match said {
            Some(said) => u32::try_from(said.0).unwrap_or(default),
            None => default,
        };
        let limit = number(&self.limit, ReplayMany::DEFAULT_LIMIT);
        ReplayMany {
            source: self
                .source
                .as_ref()
                .map(|source| source.as_str().to_owned()),
            after: self.after.map_or(0, |after| after.0),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            per_second: number(&self.per_second, ReplayMany::DEFAULT_PER_SECOND),
            dry_run: self.dry_run.unwrap_or(true),
        }
    }
}

/// What came of the replay of many cases.
#[derive(ToSchema)]
#[schema(as = QuarantineReplays)]
#[expect(dead_code, reason = "the replay writes itself; this is its schema")]
struct ReplaysBody {
    /// Whether nothing was done, and the outcomes are what looking tells.
    dry_run: bool,
    /// How many cases came to each outcome, by the words of the replay of one.
    #[schema(value_type = std::collections::BTreeMap<String, u32>)]
    outcomes: (),
    /// The number of the last case, from where the next replay goes on.
    #[schema(minimum = 0)]
    after: i64,
    /// Whether there are more open cases behind it.
    more: bool,
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

/// Why a case is let rest.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct DismissCase {
    /// Why; it is kept with the case.
    #[schema(value_type = schemas::Reason)]
    reason: Reason,
}

impl Input for DismissCase {}

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
