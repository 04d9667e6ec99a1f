//! The committed API document, held against what a server really answers.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use serde_json::Value;

use super::client::Answer;

/// The document as it is committed.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
});

/// What was answered so far in this process: how often each operation gave each status.
static SEEN: Mutex<BTreeMap<(String, u16), usize>> = Mutex::new(BTreeMap::new());

/// Is this what the document says about the path and the method? If not, the test fails.
pub fn check(method: &str, path: &str, answer: &Answer) {
    let shown = || format!("{method} {path}: {} {}", answer.status, answer.body);
    let Some((template, operations)) = operations(path) else {
        // Pages for people are not operations; below /v1 there is nothing else, and who has no key
        // is not told.
        assert!(
            !path.starts_with("/v1") || matches!(answer.status, 401 | 404),
            "{}",
            shown()
        );
        return;
    };
    let method = method.to_lowercase();
    let Some(operation) = operations.get(&method) else {
        let known = matches!(method.as_str(), "head" | "options");
        assert!(known || answer.status == 405, "{}", shown());
        return;
    };
    let response = &operation["responses"][answer.status.to_string()];
    assert!(response.is_object(), "not documented: {}", shown());
    let content_type = answer.header("content-type").unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default();
    let content = &response["content"][essence];
    assert!(content.is_object(), "{content_type}: {}", shown());
    if let Some(slug) = answer.problem() {
        let documented = &content["examples"][slug];
        assert!(
            documented.is_object(),
            "{slug} is not documented: {}",
            shown()
        );
    }
    if essence.ends_with("json") {
        let fault = fault(&content["schema"], &answer.body, "body");
        assert_eq!(fault, None, "{}", shown());
    }
    let operation = format!("{method} {template}");
    let mut seen = SEEN.lock().unwrap();
    *seen.entry((operation, answer.status)).or_default() += 1;
}

/// How often the operation gave the status, in this process.
pub fn seen(operation: &str, status: u16) -> usize {
    let seen = SEEN.lock().unwrap();
    let times = seen.get(&(operation.to_owned(), status));
    times.copied().unwrap_or_default()
}

/// The path of the document that this path fits, and what can be done there.
fn operations(path: &str) -> Option<(&'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().find_map(|(template, operations)| {
        let mut segments = path.split('/');
        let fits = template.split('/').all(|wanted| {
            segments
                .next()
                .is_some_and(|segment| segment == wanted || wanted.starts_with('{'))
        });
        (fits && segments.next().is_none()).then_some((template.as_str(), operations))
    })
}

/// Where and how `value` breaks `schema`, if it does. Of a schema it knows what this document
/// uses, patterns excepted; and an object has no members but those that its schema names.
fn fault(schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.trim_start_matches('#');
        return fault(DOCUMENT.pointer(pointer).unwrap(), value, place);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices
            .iter()
            .any(|choice| fault(choice, value, place).is_none());
        return (!fits).then(|| format!("{place} fits no choice: {value}"));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => Vec::from_iter(one.as_str()),
    };
    if !types.is_empty() && !types.iter().any(|name| is(name, value)) {
        return Some(format!("{place} is not {types:?}: {value}"));
    }
    let broken = |rule: &str, holds: &dyn Fn(i64) -> bool| {
        schema[rule]
            .as_i64()
            .filter(|bound| !holds(*bound))
            .map(|bound| format!("{place} breaks {rule} {bound}: {value}"))
    };
    let length = count(value.as_str().map_or(0, |text| text.chars().count()));
    let items = count(value.as_array().map_or(0, Vec::len));
    let number = value.as_i64();
    broken("minimum", &|bound| {
        number.is_none_or(|number| number >= bound)
    })
    .or_else(|| {
        broken("maximum", &|bound| {
            number.is_none_or(|number| number <= bound)
        })
    })
    .or_else(|| broken("minLength", &|bound| !value.is_string() || length >= bound))
    .or_else(|| broken("maxLength", &|bound| length <= bound))
    .or_else(|| broken("minItems", &|bound| !value.is_array() || items >= bound))
    .or_else(|| broken("maxItems", &|bound| items <= bound))
    .or_else(|| {
        let allowed = schema["enum"].as_array()?;
        (!allowed.contains(value)).then(|| format!("{place} is none of {allowed:?}: {value}"))
    })
    .or_else(|| {
        let mut items = value.as_array()?.iter().enumerate();
        items.find_map(|(n, item)| fault(&schema["items"], item, &format!("{place}[{n}]")))
    })
    .or_else(|| fault_of_members(schema, value, place))
}

fn count(things: usize) -> i64 {
    i64::try_from(things).unwrap()
}

fn fault_of_members(schema: &Value, value: &Value, place: &str) -> Option<String> {
    let members = value.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !members.contains_key(name) {
            return Some(format!("{place} lacks {name}"));
        }
    }
    members.iter().find_map(|(name, value)| {
        let place = format!("{place}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Null) if schema["properties"].is_object() => {
                Some(format!("{place} is not documented"))
            }
            (Value::Null, Value::Bool(_) | Value::Null) => None,
            (Value::Null, others) => fault(others, value, &place),
            (schema, _) => fault(schema, value, &place),
        }
    })
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
