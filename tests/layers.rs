//! The rules of the house, as far as reading the project's own files can check them: which way the
//! arrows between the modules point, what stands where, and how long things may grow.
//!
//! A failure names the file, the line and what to do about it.

#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;

use sources::{Source, has_word, is_part_of_word, numbered, paths, read, root, sources};

mod sources;

/// The modules of the crate, each with those that it may use. Arrows point down, and there is no
/// way round.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("metrics", &[]),
    ("queue", &["domain"]),
    ("settings", &["queue"]),
    ("store", &["domain"]),
    ("engine", &["domain", "metrics", "store"]),
    ("worker", &["domain", "engine", "metrics", "queue", "store"]),
    ("access", &["domain", "engine", "store"]),
    (
        "http",
        &["access", "domain", "engine", "metrics", "queue", "store"],
    ),
    ("database", &["settings", "store"]),
    ("auditing", &["database", "engine", "settings", "store"]),
    (
        "keys",
        &[
            "access", "database", "domain", "engine", "settings", "store",
        ],
    ),
    (
        "quarantine",
        &[
            "access", "database", "domain", "engine", "http", "metrics", "settings", "store",
        ],
    ),
    ("lab", &["domain", "engine", "queue", "store", "worker"]),
    (
        "serve",
        &[
            "access", "database", "domain", "engine", "http", "metrics", "queue", "settings",
            "store", "worker",
        ],
    ),
    (
        "main",
        &[
            "auditing",
            "database",
            "domain",
            "engine",
            "http",
            "keys",
            "lab",
            "metrics",
            "quarantine",
            "queue",
            "serve",
            "settings",
            "store",
            "worker",
        ],
    ),
];

/// What stands in one place only: the words, where they may stand, and what to do instead.
const CONFINED: &[(&[&str], &[&str], &str)] = &[
    (
        &["sqlx"],
        &["src/store/"],
        "ask the store for what you need; SQL stays below it",
    ),
    (
        &["axum"],
        &["src/http/", "src/http.rs", "src/lab/emulator/"],
        "HTTP is one edge of the program, and stays in its module; the emulator is another program",
    ),
    (
        &["clap"],
        &["src/settings"],
        "be handed the value; only the settings read what the operator says",
    ),
    (
        &[
            "SystemTime::now",
            "Instant::now",
            "OffsetDateTime::now_utc",
            "OffsetDateTime::now_local",
        ],
        &["src/engine/runtime.rs", "src/store/clock.rs"],
        "ask the store for the time that decides, and the runtime for a stopwatch",
    ),
];

/// How SQL statements start, and what comes later in them.
const STATEMENTS: &[(&str, &str)] = &[
    ("select ", " from "),
    ("insert into ", " "),
    ("update ", " set "),
    ("delete from ", " "),
    ("create table ", " "),
    ("alter table ", " "),
    ("drop table ", " "),
];

/// The most lines that a file under `src` may have.
const FILE_LINES: usize = 500;

/// Files that are longer than [`FILE_LINES`] already. They may shrink, but not grow.
const LONG_FILES: &[(&str, usize)] = &[];

/// The most lines that a function under `src` may have.
const FUNCTION_LINES: usize = 60;

/// Functions that may be longer than [`FUNCTION_LINES`], because a list does not get clearer in
/// pieces.
const LONG_FUNCTIONS: &[(&str, &str)] = &[("src/metrics.rs", "new")];

/// Names that say nothing about what is in a file.
const EMPTY_NAMES: &[&str] = &[
    "util", "utils", "common", "helper", "helpers", "manager", "misc",
];

/// Words of how the project is made rather than of what it is, each with where it may stand: the
/// recorded traces lie beside the project by default, and PostgreSQL has sessions.
const FOREIGN_WORDS: &[(&str, &[&str])] = &[
    ("issue #", &[]),
    (
        "session",
        &[
            "src/store/postgres/",
            "migrations/postgres/",
            "tests/postgres/",
        ],
    ),
    ("../shared", &["Makefile", ".ci/", "tests/"]),
    ("/work/", &[]),
];

#[test]
fn arrows_point_down() {
    let mut broken = Vec::new();
    for source in sources().iter().filter(|it| it.path != "src/lib.rs") {
        let layer = source.layer();
        let Some((_, below)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            broken.push(format!(
                "{}:1: `{layer}` is no layer yet; give it a place in LAYERS",
                source.path
            ));
            continue;
        };
        for (line, code) in source.code_lines() {
            for used in used_layers(code) {
                if used == "{" {
                    broken.push(format!(
                        "{}:{line}: write one `use` for each layer",
                        source.path
                    ));
                } else if used != layer && !below.contains(&used) {
                    broken.push(format!(
                        "{}:{line}: `{layer}` must not use `{used}`; \
                         move the code down, or hand the value in from above",
                        source.path
                    ));
                }
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn what_belongs_in_one_place_stands_there() {
    let mut broken = Vec::new();
    for source in sources() {
        for (words, places, instead) in CONFINED {
            if places.iter().any(|place| source.path.starts_with(place)) {
                continue;
            }
            for (line, code) in source.code_lines() {
                for word in words.iter().filter(|word| has_word(code, word)) {
                    broken.push(format!(
                        "{}:{line}: `{word}` may stand only in {}; {instead}",
                        source.path,
                        places.join(" and ")
                    ));
                }
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn sql_is_written_in_the_store_only() {
    let mut broken = Vec::new();
    for source in sources() {
        if source.path.starts_with("src/store/") {
            continue;
        }
        for (line, literal) in &source.literals {
            if is_sql(literal) {
                broken.push(format!(
                    "{}:{line}: this looks like SQL; move it into src/store",
                    source.path
                ));
            }
        }
    }
    assert_none(&broken);
}

const MIGRATING: &str = "\"SET statement_timeout = 0; SET lock_timeout = 0\"";

/// A lock, a setting or a table that stays with the connection holds up a process that never comes
/// back for it, and is not there on the next connection.
#[test]
fn nothing_is_left_with_a_connection() {
    let mut broken = Vec::new();
    let mut look = |path: &str, line: usize, sql: &str| {
        for word in left_with_a_connection(sql) {
            broken.push(format!(
                "{path}:{line}: `{word}` outlives its transaction; use what ends with it"
            ));
        }
    };
    for source in sources() {
        if source.path.starts_with("src/store/postgres") {
            let kept = source.literals.iter();
            // Said on a connection that is closed when the migration is done.
            for (line, literal) in kept.filter(|(_, it)| *it != MIGRATING) {
                look(&source.path, *line, literal);
            }
        }
    }
    for path in paths("migrations/postgres") {
        for (line, text) in numbered(&fs::read_to_string(root().join(&path)).unwrap()) {
            look(&path, line, text);
        }
    }
    assert_none(&broken);
}

/// What of these statements stays with the connection that runs them.
fn left_with_a_connection(sql: &str) -> Vec<String> {
    let mut left = Vec::new();
    let lower = sql.to_lowercase();
    for word in [
        "pg_advisory_lock",
        "pg_try_advisory_lock",
        "pg_advisory_unlock",
        "listen",
        "notify",
        "temp",
        "temporary",
        "with hold",
        "', false)",
    ] {
        let is_setting = word == "', false)";
        if has_word(&lower, word) && (!is_setting || lower.contains("set_config")) {
            left.push(word.to_owned());
        }
    }
    for statement in sql.trim_matches(['"', 'r', '#']).split(';') {
        let statement = statement.trim();
        let words = statement.to_lowercase();
        if words.starts_with("set ") && !words.starts_with("set local ") && words.contains('=') {
            left.push(statement.to_owned());
        }
    }
    left
}

#[test]
fn what_is_left_with_a_connection_is_recognised() {
    for sql in [
        "select pg_advisory_lock(1)",
        "BEGIN; SET lock_timeout = 0",
        "LISTEN events",
        "create temp table t ()",
        "select set_config('lock_timeout', '5s', false)",
    ] {
        assert_eq!(left_with_a_connection(sql).len(), 1, "{sql}");
    }
    for sql in [
        "select pg_try_advisory_xact_lock(1)",
        "BEGIN; SET LOCAL lock_timeout = 0",
        "select set_config('lock_timeout', '5s', true), coalesce(a, false)",
        "update stock\n    set held = 0",
    ] {
        assert!(left_with_a_connection(sql).is_empty(), "{sql}");
    }
}

#[test]
fn files_and_functions_stay_short() {
    let mut broken = Vec::new();
    for source in sources() {
        let lines = source.code.lines().count();
        let most = LONG_FILES
            .iter()
            .find(|(path, _)| *path == source.path)
            .map_or(FILE_LINES, |(_, lines)| *lines);
        if lines > most {
            broken.push(format!(
                "{}:{}: {lines} lines are more than {most}; split the file by what it is about",
                source.path,
                most + 1
            ));
        }
        for function in source.functions() {
            if function.lines > FUNCTION_LINES
                && !LONG_FUNCTIONS.contains(&(source.path.as_str(), function.name.as_str()))
            {
                broken.push(format!(
                    "{}:{}: `{}` has {} lines, more than {FUNCTION_LINES}; \
                     give its steps names of their own",
                    source.path, function.line, function.name, function.lines
                ));
            }
        }
    }
    assert_none(&broken);
}

/// A list of exceptions that names what is no longer there would hide the next exception.
#[test]
fn no_exception_outlives_its_reason() {
    let mut broken = Vec::new();
    let sources = sources();
    for (path, lines) in LONG_FILES {
        let now = sources.iter().find(|source| source.path == *path);
        let now = now.map_or(0, |source| source.code.lines().count());
        if now < *lines {
            broken.push(format!(
                "{path}:{now}: write {now} for it in LONG_FILES, \
                 or take it out at {FILE_LINES} or less"
            ));
        }
    }
    for (path, name) in LONG_FUNCTIONS {
        let is_long = sources
            .iter()
            .filter(|source| source.path == *path)
            .flat_map(Source::functions)
            .any(|function| function.name == *name && function.lines > FUNCTION_LINES);
        if !is_long {
            broken.push(format!("{path}:1: take `{name}` out of LONG_FUNCTIONS"));
        }
    }
    assert_none(&broken);
}

#[test]
fn what_is_not_finished_does_not_land() {
    let mut broken = Vec::new();
    for source in sources() {
        for (line, text) in numbered(&source.text) {
            for word in ["TODO", "FIXME", "XXX", "todo!", "unimplemented!", "dbg!"] {
                if has_word(text, word) {
                    broken.push(format!(
                        "{}:{line}: finish what `{word}` marks",
                        source.path
                    ));
                }
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn migrations_have_the_same_steps_on_both_databases() {
    let mut broken = Vec::new();
    let mut steps: BTreeMap<String, (String, String)> = BTreeMap::new();
    for path in paths("migrations") {
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some((number, words)) = migration(name) else {
            broken.push(format!(
                "{path}:1: name it NNNN_words.sql, for what the step does"
            ));
            continue;
        };
        let (first, other) = steps
            .entry(number.to_owned())
            .or_insert_with(|| (path.clone(), words.to_owned()));
        if other != words {
            broken.push(format!(
                "{path}:1: step {number} has another name in {first}; give both the same"
            ));
        }
    }
    assert_none(&broken);
}

#[test]
fn files_are_named_for_what_is_in_them() {
    let mut broken = Vec::new();
    for path in paths("") {
        for part in path.split('/') {
            let stem = part.split('.').next().unwrap_or_default();
            if EMPTY_NAMES.contains(&stem) {
                broken.push(format!("{path}:1: name it for what is in it, not `{stem}`"));
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn the_project_speaks_of_itself_alone() {
    let mut broken = Vec::new();
    // This file names the words that it looks for.
    for path in paths("").iter().filter(|path| *path != "tests/layers.rs") {
        // What is not UTF-8 is no text.
        let Ok(text) = fs::read_to_string(root().join(path)) else {
            continue;
        };
        for (line, text) in numbered(&text) {
            for (word, places) in FOREIGN_WORDS {
                if has_word(text, word) && !places.iter().any(|place| path.starts_with(place)) {
                    broken.push(format!(
                        "{path}:{line}: say it without `{word}`; \
                         a reader has this project and nothing else"
                    ));
                }
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn sql_is_recognised() {
    assert!(is_sql("\"SELECT sku FROM stock\""));
    assert!(is_sql("r#\"\n    update stock set held = 0 where true\"#"));
    assert!(!is_sql("\"updates of stock\""));
}

#[test]
fn the_reader_tells_code_from_comments_and_literals() {
    let (code, literals) = read(concat!(
        "let a = \"x // \\\" y\"; // \"z\"\n",
        "/* \"u\" */ let b = r#\"select \"1\"\n from t\"#; let c: &'static str = '\"'.into();\n",
    ));
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "let a = ; let b = ; let c: &'static str = .into();"
    );
    assert_eq!(
        literals,
        [
            (1, "\"x // \\\" y\"".to_owned()),
            (2, "r#\"select \"1\"\n from t\"#".to_owned()),
            (3, "'\"'".to_owned()),
        ]
    );
}

fn assert_none(broken: &[String]) {
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// The layers that this line of code names, and `{` where it imports from several at once.
fn used_layers(code: &str) -> Vec<&str> {
    let mut used = Vec::new();
    for start in ["crate::", "holdfast::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].chars().next_back().is_some_and(is_part_of_word) {
                continue;
            }
            let rest = &code[at + start.len()..];
            if rest.starts_with('{') && start != "super::" {
                used.push("{");
            }
            let name = rest.split(|letter| !is_part_of_word(letter)).next();
            used.extend(name.filter(|name| LAYERS.iter().any(|(layer, _)| layer == name)));
        }
    }
    used
}

/// Does this literal start like a statement?
fn is_sql(literal: &str) -> bool {
    let words = literal.trim_start_matches(['r', '#', '"', '\n', ' ']);
    let words = words.to_lowercase();
    STATEMENTS
        .iter()
        .any(|(start, then)| words.starts_with(start) && words.contains(then))
}

/// `0001` and `stock` of `0001_stock.sql`.
fn migration(name: &str) -> Option<(&str, &str)> {
    let (number, words) = name.strip_suffix(".sql")?.split_once('_')?;
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let is_named = number.len() == 4
        && number.chars().all(|digit| digit.is_ascii_digit())
        && words.starts_with(|letter: char| letter.is_ascii_lowercase())
        && words.chars().all(is_word);
    is_named.then_some((number, words))
}
