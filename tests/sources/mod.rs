//! Reads the project's files the way a person would who looks for words: line by line, knowing code
//! from comments and literals, and no more.

use std::fs;
use std::path::Path;

/// A file of Rust under `src`.
pub struct Source {
    /// From the project's root, with `/`.
    pub path: String,
    /// As it is.
    pub text: String,
    /// With spaces instead of comments and literals.
    pub code: String,
    /// The literals, each with the line on which it starts.
    pub literals: Vec<(usize, String)>,
}

/// A function, test or not, with or without a body.
pub struct Function {
    pub name: String,
    /// Where it starts.
    pub line: usize,
    /// From its first line to its last.
    pub lines: usize,
}

pub fn sources() -> Vec<Source> {
    let paths = paths("src");
    assert!(!paths.is_empty(), "there are no sources to read");
    paths
        .into_iter()
        .filter(|path| path.split('.').next_back() == Some("rs"))
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            let (code, literals) = read(&text);
            Source {
                path,
                text,
                code,
                literals,
            }
        })
        .collect()
}

impl Source {
    /// `store` for `src/store.rs` and all that lies under `src/store/`.
    pub fn layer(&self) -> &str {
        let path = self.path.trim_start_matches("src/");
        path.split(['/', '.']).next().unwrap_or_default()
    }

    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.code)
    }

    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (at, keyword) in self.code.match_indices("fn ") {
            let before = self.code[..at].chars().next_back();
            if before.is_some_and(is_part_of_word) {
                continue;
            }
            let rest = &self.code[at..];
            let name = rest[keyword.len()..].split(|letter| !is_part_of_word(letter));
            functions.push(Function {
                name: name.into_iter().next().unwrap_or_default().to_owned(),
                line: self.code[..at].lines().count(),
                lines: rest[..end_of_function(rest)].lines().count(),
            });
        }
        functions
    }
}

/// Where a function that starts at the start of `code` ends: after its body, or at the semicolon
/// that it has instead of one.
fn end_of_function(code: &str) -> usize {
    let (mut braces, mut others) = (0_usize, 0_usize);
    for (at, letter) in code.char_indices() {
        match letter {
            '(' | '[' => others += 1,
            ')' | ']' => others = others.saturating_sub(1),
            '{' => braces += 1,
            '}' if braces <= 1 => return at + 1,
            '}' => braces -= 1,
            ';' if braces == 0 && others == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Splits Rust into its code, with spaces where comments and literals were, and its literals.
pub fn read(text: &str) -> (String, Vec<(usize, String)>) {
    let mut code = String::with_capacity(text.len());
    let mut literals = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let after_word = code.chars().next_back().is_some_and(is_part_of_word);
        let comment = length_of_comment(rest);
        let literal = length_of_literal(rest, after_word);
        let Some(length) = comment.or(literal) else {
            code.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        };
        let (piece, after) = rest.split_at(length);
        if literal.is_some() && comment.is_none() {
            literals.push((code.matches('\n').count() + 1, piece.to_owned()));
        }
        code.extend(piece.chars().map(|it| if it == '\n' { it } else { ' ' }));
        rest = after;
    }
    (code, literals)
}

fn length_of_comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        Some(rest.find('\n').unwrap_or(rest.len()))
    } else if rest.starts_with("/*") {
        Some(rest.find("*/").map_or(rest.len(), |at| at + 2))
    } else {
        None
    }
}

fn length_of_literal(rest: &str, after_word: bool) -> Option<usize> {
    let until = |start: usize, close: &str| {
        let end = rest.get(start..)?.find(close)?;
        Some(start + end + close.len())
    };
    let hashes = rest.len() - rest.get(1..)?.trim_start_matches('#').len() - 1;
    if rest.starts_with('r') && !after_word && rest[1 + hashes..].starts_with('"') {
        return until(hashes + 2, &format!("\"{}", "#".repeat(hashes)));
    }
    if let Some(inside) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = inside.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        })?;
        return Some(end + 2);
    }
    if rest.starts_with("'\\") {
        return until(3, "'");
    }
    // A quote that closes after one character is a literal, and else it begins a lifetime.
    let letter = rest.strip_prefix('\'')?.chars().next()?;
    rest[1 + letter.len_utf8()..]
        .starts_with('\'')
        .then(|| letter.len_utf8() + 2)
}

/// Does `word` stand in `text`, and not as a part of a longer word?
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let joins = |inner: Option<char>, outer: Option<char>| {
            inner.is_some_and(is_part_of_word) && outer.is_some_and(is_part_of_word)
        };
        !joins(word.chars().next(), before) && !joins(word.chars().next_back(), after)
    })
}

pub fn is_part_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// The project's files under a directory, from the root, in order; none if it does not exist.
pub fn paths(directory: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let Ok(entries) = fs::read_dir(root().join(directory)) else {
        return paths;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = match directory {
            "" => name,
            directory => format!("{directory}/{name}"),
        };
        if path == ".git" || path == "target" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            paths.extend(self::paths(&path));
        } else {
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
