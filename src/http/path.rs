//! Path segments.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::App;
use super::problem::Problem;
use crate::domain::{ReservationId, Sku};

/// The reservation that the path names. What cannot be a name names nothing: 404.
pub(super) struct ReservationPath(pub ReservationId);

impl FromRequestParts<App> for ReservationPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let missing = || Problem::new(&super::kinds::NOT_FOUND, "There is no such reservation.");
        let Path(text) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| missing())?;
        text.parse().map(Self).map_err(|_| missing())
    }
}

/// The case in quarantine that the path names. What cannot be a number names nothing: 404.
pub(super) struct CasePath(pub i64);

impl FromRequestParts<App> for CasePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::no_case())?;
        text.parse().map(Self).map_err(|_| Problem::no_case())
    }
}

/// The SKU that the path names.
pub(super) struct SkuPath(pub Sku);

impl FromRequestParts<App> for SkuPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::invalid("sku", "is not UTF-8, percent-encoded"))?;
        let sku = Sku::new(text).map_err(|fault| Problem::invalid("sku", fault))?;
        Ok(Self(sku))
    }
}
