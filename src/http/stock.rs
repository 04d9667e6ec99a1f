//! `/v1/stock`.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::Response;

use super::bodies::{AdjustStock, SetStock, StockBody, default_location};
use super::documented::{CHANGED, KEYED, LISTED, documented};
use super::page::Page;
use super::path::SkuPath;
use super::problem::Problem;
use super::query::{Parameters, Query, ReadQuery};
use super::submission::Submission;
use super::{App, answer, cursor, examples, kinds, schemas};
use crate::domain::{Command, Location, Sku, StockKey};
use crate::store::StockFilter;

/// The page as the API document names it.
type StockPage = Page<StockBody<'static>>;

documented!(SetProblems: CHANGED, &[&kinds::STOCK_BELOW_HELD]);
documented!(AdjustProblems: KEYED, &[&kinds::STOCK_BELOW_HELD]);
documented!(ReadProblems: &[&kinds::NOT_FOUND, &kinds::VALIDATION]);
documented!(ListProblems: LISTED);

/// The most SKUs that one list is asked for.
const MAX_SKUS: usize = 1_000;

/// Where the stock lies that a path names.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct At {
    /// Where; `default` if not given.
    #[param(inline, value_type = Option<schemas::Location>)]
    location: Option<Location>,
}

impl ReadQuery for At {
    fn read(parameters: &mut Parameters) -> Self {
        Self {
            location: parameters.one("location", |text| Location::new(text)),
        }
    }
}

impl At {
    fn key(self, sku: Sku) -> Result<StockKey, Problem> {
        let location = match self.location {
            Some(location) => location,
            None => default_location()?,
        };
        Ok(StockKey { location, sku })
    }
}

/// Set stock
///
/// Sets what is on hand, as after a count. The row is made if it does not exist. Units that are
/// held for buyers cannot be taken away.
#[utoipa::path(
    put,
    path = "/v1/stock/{sku}",
    operation_id = "set_stock",
    tag = "stock",
    params(("sku" = inline(schemas::Sku), Path, description = "Which SKU."), At),
    request_body(content = SetStock, example = json!({ "on_hand": 40 })),
    responses(
        (status = 200, description = "The row as it now stands.", body = StockBody,
            example = json!(examples::stock())),
        SetProblems,
    ),
)]
pub(super) async fn set(
    State(app): State<App>,
    SkuPath(sku): SkuPath,
    Query(at): Query<At>,
    submission: Submission<SetStock>,
) -> Result<Response, Problem> {
    let command = Command::SetStock {
        key: at.key(sku)?,
        on_hand: submission.body.on_hand.0,
    };
    app.submit(command, submission.origin).await
}

/// Adjust stock
///
/// Adds to what is on hand or takes away from it, as after a delivery or a breakage. The row is
/// made if it does not exist.
#[utoipa::path(
    post,
    path = "/v1/stock/{sku}/adjustments",
    operation_id = "adjust_stock",
    tag = "stock",
    params(("sku" = inline(schemas::Sku), Path, description = "Which SKU."), At),
    request_body(content = AdjustStock, example = json!({ "delta": -3, "reason": "damaged" })),
    responses(
        (status = 200, description = "The row as it now stands.", body = StockBody,
            example = json!(examples::stock())),
        AdjustProblems,
    ),
)]
pub(super) async fn adjust(
    State(app): State<App>,
    SkuPath(sku): SkuPath,
    Query(at): Query<At>,
    submission: Submission<AdjustStock>,
) -> Result<Response, Problem> {
    let command = Command::AdjustStock {
        key: at.key(sku)?,
        delta: submission.body.delta()?,
        reason: submission.body.reason,
    };
    app.submit(command, submission.origin).await
}

/// Read stock
///
/// `available` is what a buyer can get now.
#[utoipa::path(
    get,
    path = "/v1/stock/{sku}",
    operation_id = "get_stock",
    tag = "stock",
    params(("sku" = inline(schemas::Sku), Path, description = "Which SKU."), At),
    responses(
        (status = 200, description = "The row.", body = StockBody,
            example = json!(examples::stock())),
        ReadProblems,
    ),
)]
pub(super) async fn get(
    State(app): State<App>,
    SkuPath(sku): SkuPath,
    Query(at): Query<At>,
) -> Result<Response, Problem> {
    let key = at.key(sku)?;
    let filter = StockFilter {
        skus: vec![key.sku.clone()],
        location: Some(key.location.clone()),
    };
    let rows = app.engine.store().list_stock(&filter, None, 1).await?;
    match rows.first() {
        Some(stock) => answer::ok(&StockBody::new(stock)),
        None => Err(Problem::new(
            &kinds::NOT_FOUND,
            format!("There is no stock of {key}."),
        )),
    }
}

/// Which rows of stock to list.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListStock {
    /// Only these; may be given up to 1,000 times.
    #[param(inline, value_type = Option<Vec<schemas::Sku>>, max_items = 1_000)]
    sku: Vec<Sku>,
    /// Only there; everywhere if not given.
    #[param(inline, value_type = Option<schemas::Location>)]
    location: Option<Location>,
    /// The `next_cursor` of the page before, with the same filter.
    cursor: Option<String>,
    /// The most items on the page.
    #[param(minimum = 1, maximum = 1_000, default = 100, value_type = Option<i32>)]
    limit: usize,
}

impl ReadQuery for ListStock {
    fn read(parameters: &mut Parameters) -> Self {
        Self {
            sku: parameters.many("sku", |text| Sku::new(text)),
            location: parameters.one("location", |text| Location::new(text)),
            cursor: parameters.cursor(),
            limit: parameters.limit(),
        }
    }
}

/// List stock
///
/// Rows that exist, ordered by location and SKU.
#[utoipa::path(
    get,
    path = "/v1/stock",
    operation_id = "list_stock",
    tag = "stock",
    params(ListStock),
    responses(
        (status = 200, description = "One page.", body = StockPage,
            example = json!(examples::page(examples::stock()))),
        ListProblems,
    ),
)]
pub(super) async fn list(
    State(app): State<App>,
    Query(query): Query<ListStock>,
) -> Result<Response, Problem> {
    if query.sku.len() > MAX_SKUS {
        let detail = format_args!("may be given at most {MAX_SKUS} times");
        return Err(Problem::invalid("sku", detail));
    }
    let skus: BTreeSet<Sku> = query.sku.into_iter().collect();
    let filter = StockFilter {
        skus: skus.into_iter().collect(),
        location: query.location,
    };
    let list = ("stock", &filter.skus, &filter.location);
    let after = match query.cursor {
        Some(text) => {
            let (location, sku) = cursor::read(&list, &text)?;
            Some(StockKey { location, sku })
        }
        None => None,
    };
    let rows = app
        .engine
        .store()
        .list_stock(&filter, after.as_ref(), query.limit + 1)
        .await?;
    answer::ok(&Page::new(&rows, query.limit, StockBody::new, |last| {
        cursor::write(&list, (&last.key.location, &last.key.sku))
    })?)
}
