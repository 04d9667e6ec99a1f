//! Query strings, read strictly: what is not known or given twice is refused by name.

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::App;
use super::kinds;
use super::problem::{FieldFault, Problem};

/// The most items of one page.
pub(super) const MAX_LIMIT: usize = 1_000;
/// The items of a page, if the caller does not say.
const DEFAULT_LIMIT: usize = 100;

/// The parameters of a query, read as a `Q`.
pub(super) struct Query<Q>(pub Q);

/// What can be read out of a query.
pub(super) trait ReadQuery: Sized {
    /// Takes the parameters it knows; those that are left are refused, and so is what
    /// [`Parameters`] found wrong meanwhile.
    fn read(parameters: &mut Parameters) -> Self;
}

/// A query without parameters.
impl ReadQuery for () {
    fn read(_: &mut Parameters) -> Self {}
}

impl<Q: ReadQuery> FromRequestParts<App> for Query<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Self::of(&parts.uri)
    }
}

impl<Q: ReadQuery> Query<Q> {
    fn of(uri: &Uri) -> Result<Self, Problem> {
        let mut parameters = Parameters::of(uri);
        let query = Q::read(&mut parameters);
        parameters.finish()?;
        Ok(Self(query))
    }
}

/// The parameters of a query that nobody has taken yet, and what was wrong with the others.
pub(super) struct Parameters {
    left: Vec<(String, String)>,
    faults: Vec<FieldFault>,
}

impl Parameters {
    fn of(uri: &Uri) -> Self {
        let mut parameters = Self {
            left: Vec::new(),
            faults: Vec::new(),
        };
        for pair in uri.query().unwrap_or_default().split('&') {
            if pair.is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decode(name), decode(value)) {
                (Some(name), Some(value)) => parameters.left.push((name, value)),
                _ => parameters.fault(name, "is not UTF-8, percent-encoded"),
            }
        }
        parameters
    }

    fn fault(&mut self, name: &str, detail: impl ToString) {
        self.faults.push(FieldFault::new(name, detail));
    }

    /// Takes every value of a parameter.
    pub(super) fn many<T, E: ToString>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        let (taken, left) = std::mem::take(&mut self.left)
            .into_iter()
            .partition(|(given, _)| given == name);
        self.left = left;
        let taken: Vec<(String, String)> = taken;
        for (_, value) in taken {
            match read(&value) {
                Ok(value) => values.push(value),
                Err(error) => self.fault(name, error.to_string()),
            }
        }
        values
    }

    /// Takes a parameter that may be given once.
    pub(super) fn one<T, E: ToString>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        if self.left.iter().filter(|(given, _)| given == name).count() > 1 {
            self.fault(name, "may be given only once");
        }
        self.many(name, read).pop()
    }

    /// Takes `limit`.
    pub(super) fn limit(&mut self) -> usize {
        self.one("limit", |text| {
            text.parse()
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                .ok_or("must be an integer from 1 to 1000")
        })
        .unwrap_or(DEFAULT_LIMIT)
    }

    /// Takes `cursor`, unread.
    pub(super) fn cursor(&mut self) -> Option<String> {
        self.one("cursor", |text| Ok::<_, &str>(text.to_owned()))
    }

    fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.left) {
            self.fault(&name, "is not a parameter of this operation");
        }
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(Problem::about_fields(&kinds::VALIDATION, &self.faults))
        }
    }
}

/// Undoes the encoding of one name or value.
fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(decoded.into_owned())
}
