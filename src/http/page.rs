//! Pages of lists.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::problem::Problem;

/// One page of a list.
#[derive(Serialize)]
pub(super) struct Page<T> {
    /// What is on it.
    items: Vec<T>,
    /// What to send to get the next page; null on the last one.
    next_cursor: Option<String>,
}

// Written by hand, because what is derived would repeat the item's schema in the page's.
impl<T: ToSchema> PartialSchema for Page<T> {
    fn schema() -> RefOr<Schema> {
        let items = ArrayBuilder::new()
            .items(Ref::from_schema_name(T::name()))
            .max_items(Some(super::query::MAX_LIMIT))
            .description(Some("What is on the page."));
        let next_cursor = ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
            .description(Some(
                "What to send to get the next page; null on the last one.",
            ));
        ObjectBuilder::new()
            .schema_type(SchemaType::new(Type::Object))
            .description(Some("One page of a list."))
            .property("items", items)
            .property("next_cursor", next_cursor)
            .required("items")
            .required("next_cursor")
            .into()
    }
}

impl<T: ToSchema> ToSchema for Page<T> {
    fn name() -> Cow<'static, str> {
        Cow::Owned(format!("{}Page", T::name()))
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
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
