//! JSON, read strictly and with the path of what is wrong.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use serde_path_to_error::Segment;

use super::fields::Object;
use super::problem::Problem;

/// The most that is said about a fault. The parser quotes what it refuses, however long it is.
const MAX_DETAIL: usize = 300;

/// Reads a body as an object. What is not JSON is malformed; what is JSON and not what was asked
/// for is invalid.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize::<_, Object<T>>(&mut parser);
    let (path, error) = match read {
        Ok(Object(value)) => match parser.end() {
            Ok(()) => return Ok(value),
            Err(error) => ("body".to_owned(), error),
        },
        Err(error) => (field(error.path()), error.into_inner()),
    };
    if is_about_syntax(&error) {
        return Err(Problem::malformed(path, shorten(&error.to_string())));
    }
    // The first rule that was broken ended the reading. If the rest is not JSON, none of it is.
    match serde_json::from_slice::<Value>(bytes) {
        Err(error) if is_about_syntax(&error) => {
            Err(Problem::malformed("body", shorten(&error.to_string())))
        }
        _ => Err(Problem::invalid(path, shorten(&without_position(&error)))),
    }
}

/// The same text for the same JSON: members sorted, white space gone.
pub(super) fn canonical(bytes: &[u8]) -> Result<String, Problem> {
    // `Value` keeps members in a sorted map.
    serde_json::from_slice::<Value>(bytes)
        .map(|value| value.to_string())
        .map_err(|error| Problem::malformed("body", error))
}

/// A number of 400 digits is JSON, although the parser files it under syntax.
fn is_about_syntax(error: &serde_json::Error) -> bool {
    match error.classify() {
        Category::Syntax => !error.to_string().starts_with("number out of range"),
        Category::Eof | Category::Io => true,
        Category::Data => false,
    }
}

/// The path as `lines[0].quantity`; what the parser did not get to the name of is left out.
fn field(path: &serde_path_to_error::Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => text.extend(["[", &index.to_string(), "]"]),
            Segment::Map { key: name } | Segment::Enum { variant: name } => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Segment::Unknown => {}
        }
    }
    if text.is_empty() {
        "body".to_owned()
    } else {
        shorten(&text)
    }
}

/// What the parser says, without the place, for which there is the path.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(said) => said.to_owned(),
        None => text,
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
