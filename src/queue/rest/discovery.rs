//! Compares what the service says of its publish call with how this driver uses it.

use reqwest::Url;
use serde_json::Value;

use crate::queue::Findings;

use super::MAX_DELAY_SECONDS;

/// What the driver sends, and the JSON type of each.
const FIELDS: [(&str, &str); 3] = [
    ("queue", "string"),
    ("payload", "object"),
    ("delay_seconds", "integer"),
];

/// Compares a discovery document with the address that messages are published to.
pub(super) fn compare(said: &Value, publish: &Url) -> Findings {
    let mut findings = Findings::default();
    compare_call(said, publish, &mut findings);
    match said.get("request_schema") {
        Some(schema @ Value::Object(_)) => compare_request(schema, &mut findings),
        _ => findings.lacks("there is no request_schema; this is not the discovery of a queue"),
    }
    let data = said.pointer("/response_schema/properties");
    if data.is_some()
        && said
            .pointer("/response_schema/properties/data/properties/message_id")
            .is_none()
    {
        findings.lacks("the answer has no data.message_id, which is what a receipt is made of");
    }
    findings
}

impl Findings {
    fn lacks(&mut self, what: impl Into<String>) {
        self.mismatches.push(what.into());
    }
}

fn compare_call(said: &Value, publish: &Url, findings: &mut Findings) {
    let method = said["method"].as_str().unwrap_or("no method");
    let path = said["path"].as_str().unwrap_or("no path");
    if method != "POST" {
        findings.lacks(format!(
            "it is published by {method}, and Holdfast knows POST only"
        ));
    }
    if path != publish.path() {
        findings.lacks(format!(
            "it is published at {path}, and HOLDFAST_QUEUE_URL leads to {}; change its path",
            publish.path()
        ));
    }
    findings.found.push(format!("publish: {method} {path}"));
}

fn compare_request(schema: &Value, findings: &mut Findings) {
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !FIELDS.iter().any(|(field, _)| *field == name) {
            findings.lacks(format!(
                "it requires `{name}`, which Holdfast does not send"
            ));
        }
    }
    let properties = &schema["properties"];
    for (name, sent) in FIELDS {
        let Some(property) = properties.get(name) else {
            // A schema that names no properties may still take them.
            if properties.is_object() || schema["additionalProperties"] == false {
                findings.lacks(format!("it does not know `{name}`, which Holdfast sends"));
            }
            continue;
        };
        let types = types_of(property);
        // Every integer is a number.
        let fits = |name: &&str| *name == sent || (*name == "number" && sent == "integer");
        if !types.is_empty() && !types.iter().any(fits) {
            findings.lacks(format!(
                "it wants `{name}` as {}, and Holdfast sends {sent}",
                types.join(" or ")
            ));
        }
        findings
            .found
            .push(format!("takes {name}: {}", described(property, &types)));
    }
    compare_delay(&properties["delay_seconds"], findings);
}

/// The bounds of the delay, if the schema has any.
fn compare_delay(delay: &Value, findings: &mut Findings) {
    let most = delay["maximum"].as_f64();
    if let Some(most) = most.filter(|most| *most < MAX_DELAY_SECONDS as f64) {
        findings.lacks(format!(
            "it takes delays up to {most} s, and Holdfast publishes up to {MAX_DELAY_SECONDS} s \
             ahead"
        ));
    }
    if delay["minimum"].as_f64().is_some_and(|least| least > 0.0) {
        findings.lacks("it refuses a delay of 0 s, which a hold that is overdue needs");
    }
}

fn types_of(property: &Value) -> Vec<&str> {
    match &property["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

fn described(property: &Value, types: &[&str]) -> String {
    let types = if types.is_empty() {
        "anything".to_owned()
    } else {
        types.join(" or ")
    };
    match property["maximum"].as_f64() {
        Some(most) => format!("{types} up to {most}"),
        None => types,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "method": "POST",
            "path": "/v1/queue/publish",
            "request_schema": {
                "type": "object",
                "required": ["queue", "payload", "delay_seconds"],
                "additionalProperties": false,
                "properties": {
                    "queue": { "type": "string" },
                    "payload": { "type": "object" },
                    "delay_seconds": { "type": "integer", "minimum": 0, "maximum": 604_800 },
                },
            },
            "response_schema": {
                "properties": { "data": { "properties": { "message_id": { "type": "string" } } } },
            },
        })
    }

    fn compared(document: &Value) -> Findings {
        compare(document, &"https://host/v1/queue/publish".parse().unwrap())
    }

    #[test]
    fn what_fits_is_told_and_has_no_mismatch() {
        let findings = compared(&document());
        assert_eq!(findings.mismatches, [""; 0]);
        assert_eq!(
            findings.found,
            [
                "publish: POST /v1/queue/publish",
                "takes queue: string",
                "takes payload: object",
                "takes delay_seconds: integer up to 604800",
            ]
        );
        // What a schema leaves open fits as well.
        let open = json!({ "method": "POST", "path": "/v1/queue/publish", "request_schema": {} });
        assert_eq!(compared(&open).mismatches, [""; 0]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let changes: &[(&str, Value, &str)] = &[
            ("/method", json!("PUT"), "by PUT"),
            ("/path", json!("/v2/queue/publish"), "at /v2/queue/publish"),
            ("/request_schema", Value::Null, "no request_schema"),
            (
                "/request_schema/required",
                json!(["queue", "tenant"]),
                "`tenant`",
            ),
            (
                "/request_schema/properties",
                json!({}),
                "does not know `queue`",
            ),
            (
                "/request_schema/properties/payload/type",
                json!("string"),
                "`payload` as string",
            ),
            (
                "/request_schema/properties/payload/type",
                json!(["string", "null"]),
                "string or null",
            ),
            (
                "/request_schema/properties/delay_seconds/type",
                json!("string"),
                "`delay_seconds`",
            ),
            (
                "/request_schema/properties/delay_seconds/maximum",
                json!(900),
                "up to 900 s",
            ),
            (
                "/request_schema/properties/delay_seconds/minimum",
                json!(1),
                "delay of 0 s",
            ),
            (
                "/response_schema/properties/data",
                json!({}),
                "data.message_id",
            ),
        ];
        for (at, value, says) in changes {
            let mut changed = document();
            *changed.pointer_mut(at).unwrap() = value.clone();
            let mismatches = compared(&changed).mismatches;
            let says_so = mismatches.iter().any(|line| line.contains(says));
            assert!(says_so, "{at}: {mismatches:?}");
        }
        for nothing in [json!(null), json!([]), json!("x"), json!({})] {
            assert!(compared(&nothing).mismatches.len() >= 3, "{nothing}");
        }
    }
}
