//! What SQLite says, in the words of the port.

use crate::store::StoreError;

// Primary result codes, the low byte of what SQLite answers.
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const IO_ERROR: i32 = 10;
const CONSTRAINT: i32 = 19;

/// What went wrong, when nothing has happened.
pub(super) fn store_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(answer) => match primary_code(&error) {
            Some(BUSY | LOCKED) => StoreError::Contended(answer.message().to_owned()),
            Some(CONSTRAINT) => constraint(answer.message()),
            _ => StoreError::Unavailable(error.to_string()),
        },
        // The pool of the writer has one connection, which another batch has had all this time.
        sqlx::Error::PoolTimedOut => {
            StoreError::Contended("no connection became free in time".to_owned())
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}

/// Did SQLite itself refuse, so that it is certain that nothing was committed? An I/O error is not
/// that certain: what was written may be found, and found complete, when the file is next opened.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    primary_code(error).is_some_and(|code| code != IO_ERROR)
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// `CHECK constraint failed: NAME`, `UNIQUE constraint failed: TABLE.COLUMN, ...` or
/// `UNIQUE constraint failed: index 'NAME'`.
fn constraint(message: &str) -> StoreError {
    let failed = message.split_once(" failed: ").map_or("", |(_, what)| what);
    let constraint = match failed.strip_prefix("index '") {
        Some(index) => index.trim_end_matches('\'').to_owned(),
        // Columns that are unique without an index of ours are those of the primary key, which
        // has no name here; it gets the one that PostgreSQL would give it.
        None if message.starts_with("UNIQUE") => match failed.split_once('.') {
            Some((table, _)) => format!("{table}_pkey"),
            None => failed.to_owned(),
        },
        None => failed.to_owned(),
    };
    StoreError::Constraint {
        constraint,
        detail: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_are_known_by_name() {
        for (message, name) in [
            (
                "CHECK constraint failed: stock_held_within_on_hand",
                "stock_held_within_on_hand",
            ),
            ("UNIQUE constraint failed: ledger.job_id", "ledger_pkey"),
            (
                "UNIQUE constraint failed: open_lines.location, open_lines.sku",
                "open_lines_pkey",
            ),
            (
                "UNIQUE constraint failed: index 'events_payment_refused_once'",
                "events_payment_refused_once",
            ),
            ("NOT NULL constraint failed: stock.held", "stock.held"),
        ] {
            let StoreError::Constraint { constraint, .. } = constraint(message) else {
                panic!("{message} is not taken for a constraint");
            };
            assert_eq!(constraint, name);
        }
    }
}
