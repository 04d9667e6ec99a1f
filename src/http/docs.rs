//! The API document, and the pages that browse it and explain problems.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use utoipa_swagger_ui::{Config, SwaggerFile};

use super::App;
use super::documented::example;
use super::kinds::{self, Kind};
use super::problem::Problem;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The pages show text and nothing else.
const TEXT_ONLY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");

/// The routes that are for readers. `document` is the API document as JSON.
pub(super) fn routes(document: String) -> Router<App> {
    // Swagger UI would otherwise ask a validator on the internet what it thinks of the document.
    let config = Arc::new(Config::from("/openapi.json").validator_url("none"));
    let document = Bytes::from(document);
    Router::new()
        .route(
            "/openapi.json",
            get(async move || ([(CONTENT_TYPE, JSON)], document.clone())),
        )
        .route("/docs", get(async || Redirect::permanent("/docs/")))
        .route("/docs/", get(browse).with_state(Arc::clone(&config)))
        .route("/docs/{*file}", get(browse).with_state(config))
        .route("/problems", get(index))
        .route("/problems/{slug}", get(explain))
}

async fn browse(
    State(config): State<Arc<Config<'static>>>,
    file: Option<Path<String>>,
) -> Result<Response, Problem> {
    let name = file.as_ref().map_or("", |Path(name)| name.as_str());
    let found = utoipa_swagger_ui::serve(name, config).map_err(Problem::internal)?;
    let SwaggerFile {
        bytes,
        content_type,
        gzpipped,
        ..
    } = found.ok_or_else(Problem::no_such_path)?;
    let mut response = bytes.into_owned().into_response();
    let content_type = HeaderValue::try_from(content_type).map_err(Problem::internal)?;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if gzpipped {
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert(CONTENT_ENCODING, gzip);
    }
    Ok(response)
}

async fn index() -> Response {
    let rows: Vec<_> = kinds::ALL
        .iter()
        .map(|kind| {
            format!(
                "<li><a href=\"/problems/{slug}\">{slug}</a> ({status}): {title}</li>",
                slug = kind.slug,
                status = kind.status.as_u16(),
                title = escape(kind.title),
            )
        })
        .collect();
    page("Problems", &format!("<ul>{}</ul>", rows.join("\n")))
}

async fn explain(Path(slug): Path<String>) -> Result<Response, Problem> {
    let kind = kinds::find(&slug).ok_or_else(Problem::no_such_path)?;
    Ok(page(kind.title, &explanation(kind)))
}

fn explanation(kind: &Kind) -> String {
    format!(
        "<p><code>/problems/{slug}</code>, status {status}</p>\n<p>{explanation}</p>\n\
         <p>For example:</p>\n<pre>{example:#}</pre>\n<p><a href=\"/problems\">All problems</a></p>",
        slug = kind.slug,
        status = kind.status.as_u16(),
        explanation = code(&escape(kind.explanation)),
        example = escape(&format!("{:#}", example(kind))),
    )
}

fn page(title: &str, body: &str) -> Response {
    let title = escape(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font-family:sans-serif;max-width:45em;margin:2em auto;padding:0 1em}}\
         pre{{overflow:auto}}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    );
    ([(CONTENT_SECURITY_POLICY, TEXT_ONLY)], Html(html)).into_response()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Shows what stands between backticks as code.
fn code(text: &str) -> String {
    text.split('`')
        .enumerate()
        .map(|(index, part)| match index % 2 {
            0 => part.to_owned(),
            _ => format!("<code>{part}</code>"),
        })
        .collect()
}
