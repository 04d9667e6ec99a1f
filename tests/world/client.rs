use std::time::Duration;

use holdfast::queue::Trust;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::contract;

/// A client of one server, with a method for each call of the API.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    server: Url,
    key: Option<String>,
}

/// What the server answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body; null if there was none, and a string if it was not JSON.
    pub body: Value,
}

/// Whoever asks anything over HTTP. A server that hangs must fail a test and not hang it.
pub fn http() -> reqwest::Client {
    holdfast::queue::http_client(Trust::Nobody, 100, Duration::from_secs(60)).unwrap()
}

impl Client {
    /// A client of the server at `url`.
    pub fn of(url: &str) -> Self {
        Self {
            http: http(),
            server: url.parse().unwrap(),
            key: None,
        }
    }

    /// The same client, whose requests carry this API key.
    pub fn holding(&self, secret: &str) -> Self {
        let mut bearer = HeaderValue::try_from(format!("Bearer {secret}")).unwrap();
        bearer.set_sensitive(true);
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(60))
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]));
        Self {
            http: http.build().unwrap(),
            ..self.clone()
        }
    }

    /// The same client, whose requests carry this Idempotency-Key.
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            key: Some(key.to_owned()),
            ..self.clone()
        }
    }

    pub async fn put_stock(&self, sku: &str, on_hand: i64) -> Answer {
        let body = json!({ "on_hand": on_hand });
        self.ask(Method::PUT, &["stock", sku], body).await
    }

    pub async fn adjust_stock(&self, sku: &str, delta: i64) -> Answer {
        let body = json!({ "delta": delta });
        self.ask(Method::POST, &["stock", sku, "adjustments"], body)
            .await
    }

    pub async fn get_stock(&self, sku: &str) -> Answer {
        self.get(&["stock", sku], &[]).await
    }

    /// Reserves what `body` says; see [`Client::reserve_one`] for the common case.
    pub async fn reserve(&self, body: Value) -> Answer {
        self.ask(Method::POST, &["reservations"], body).await
    }

    /// Reserves units of one SKU for some seconds.
    pub async fn reserve_one(&self, sku: &str, quantity: i64, hold_seconds: i64) -> Answer {
        let lines = json!([{ "sku": sku, "quantity": quantity }]);
        self.reserve(json!({ "lines": lines, "hold_seconds": hold_seconds }))
            .await
    }

    pub async fn get_reservation(&self, id: &str) -> Answer {
        self.get(&["reservations", id], &[]).await
    }

    pub async fn list_reservations(&self, query: &[(&str, &str)]) -> Answer {
        self.get(&["reservations"], query).await
    }

    pub async fn extend(&self, id: &str, body: Value) -> Answer {
        self.ask(Method::POST, &["reservations", id, "extend"], body)
            .await
    }

    pub async fn checkout(&self, id: &str, body: Value) -> Answer {
        self.ask(Method::POST, &["reservations", id, "checkout"], body)
            .await
    }

    pub async fn cancel(&self, id: &str, body: Value) -> Answer {
        self.ask(Method::POST, &["reservations", id, "cancel"], body)
            .await
    }

    pub async fn list_events(&self, after: i64, limit: u32) -> Answer {
        let (after, limit) = (after.to_string(), limit.to_string());
        self.get(&["events"], &[("after", &after), ("limit", &limit)])
            .await
    }

    /// What `/readyz` says of the clock that decides.
    pub async fn now(&self) -> Value {
        let ready = self.request(Method::GET, "/readyz");
        self.send(ready).await.expect(200)["now"].clone()
    }

    /// GET of a path below `/v1`, given by its segments as they are meant, not encoded.
    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Answer {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.send(self.http.get(url)).await
    }

    /// The beginning of any request, to a path as it is to be sent: encoded, with the query.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.server.join(path).unwrap())
    }

    /// Sends such a request.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        Answer::to(request).await.unwrap()
    }

    /// Any request with a body to a path below `/v1`.
    pub async fn ask(&self, method: Method, path: &[&str], body: Value) -> Answer {
        self.try_to_ask(method, path, body).await.unwrap()
    }

    /// The same, for a server that may be gone before it answers.
    pub async fn try_to_ask(
        &self,
        method: Method,
        path: &[&str],
        body: Value,
    ) -> reqwest::Result<Answer> {
        let mut request = self.http.request(method, self.url(path)).json(&body);
        if let Some(key) = &self.key {
            request = request.header("Idempotency-Key", key);
        }
        Answer::to(request).await
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.server.clone();
        url.path_segments_mut()
            .expect("an http address has a path")
            .clear()
            .push("v1")
            .extend(path);
        url
    }
}

impl Answer {
    async fn to(request: RequestBuilder) -> reqwest::Result<Self> {
        let (http, request) = request.build_split();
        let request = request?;
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = http.execute(request).await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await?;
        let body = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        };
        let answer = Self {
            status,
            headers,
            body,
        };
        contract::check(method.as_str(), &path, &answer);
        Ok(answer)
    }

    /// The body, if the status is this one; else the test fails and shows both.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "the body was {}", self.body);
        self.body
    }

    /// A header, if it is there once and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?.to_str().ok();
        value.filter(|_| values.next().is_none())
    }

    /// The status and the slug, for comparing.
    pub fn refusal(&self) -> (u16, &str) {
        (self.status, self.problem().unwrap_or_default())
    }

    /// The first field that the problem names.
    pub fn field(&self) -> &str {
        self.body["errors"][0]["field"].as_str().unwrap_or_default()
    }

    /// Was it given before, under the same Idempotency-Key?
    pub fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The slug of the problem that the body describes.
    pub fn problem(&self) -> Option<&str> {
        self.body["type"].as_str()?.strip_prefix("/problems/")
    }
}
