//! Bodies of requests about quarantine, and of their answers.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::{Reason, Text, Timestamp};
use crate::engine::{ReplayMany, Replayed};
use crate::http::fields::Whole;
use crate::http::schemas;
use crate::http::submission::Input;
use crate::store::{QuarantineCase, RecordedAction};

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
    /// Where one case is shown: the last 100 things that operators did about it, in order.
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

/// Nothing. No body at all is the same as `{}`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ReplayCase {}

impl Input for ReplayCase {
    const MAY_BE_MISSING: bool = true;
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
    /// What is asked of the engine.
    pub(super) fn asked(&self) -> ReplayMany {
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
pub(super) struct ReplaysBody {
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

/// Why a case is let rest.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct DismissCase {
    /// Why; it is kept with the case.
    #[schema(value_type = schemas::Reason)]
    pub(super) reason: Reason,
}

impl Input for DismissCase {}
