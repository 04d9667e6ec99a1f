//! Pages of lists.

use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;

/// One page of a list.
#[derive(Serialize, ToSchema)]
pub(super) struct Page<T> {
    /// What is on it.
    #[schema(max_items = 1_000)]
    pub items: Vec<T>,
    /// What to send to get the next page; null on the last one.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page of at most `limit` of these rows, of which one more than that was asked for: if it
    /// came, there is a next page after the last row of this one.
    pub(super) fn new<'a, R>(
        rows: &'a [R],
        limit: usize,
        item: impl Fn(&'a R) -> T,
        cursor: impl Fn(&R) -> Result<String, Problem>,
    ) -> Result<Self, Problem>
    where
        T: Serialize,
    {
        let shown = &rows[..rows.len().min(limit)];
        let next_cursor = match shown.last() {
            Some(last) if rows.len() > limit => Some(cursor(last)?),
            _ => None,
        };
        Ok(Self {
            items: shown.iter().map(item).collect(),
            next_cursor,
        })
    }
}
