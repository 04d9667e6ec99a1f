//! What the database's errors mean.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::store::StoreError;

/// What an error says about the statement that failed, which has changed nothing.
pub(super) fn store_error(error: sqlx::Error) -> StoreError {
    match answer(&error) {
        Some(answer) => answered(answer),
        None => StoreError::Unavailable(error.to_string()),
    }
}

/// Did the database itself say no to the statement, in a session that goes on? Anything else is
/// a connection that was lost, and leaves open how far the database got.
pub(super) fn is_refusal(error: &sqlx::Error) -> bool {
    answer(error).is_some_and(|answer| answer.severity() == PgSeverity::Error)
}

/// Does the error have this SQLSTATE?
pub(super) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    answer(error).is_some_and(|answer| answer.code() == code)
}

fn answer(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

fn answered(answer: &PgDatabaseError) -> StoreError {
    let message = answer.message().to_owned();
    match answer.code() {
        // Serialization failure, deadlock, lock timeout.
        "40001" | "40P01" | "55P03" => StoreError::Contended(message),
        // A table or a column that does not exist.
        "42P01" | "42703" => StoreError::Schema(format!(
            "the database lacks what this program needs ({message}); run `holdfast migrate`"
        )),
        // Integrity constraints, and values that do not fit into their columns.
        code if code.starts_with("23") || code.starts_with("22") => StoreError::Constraint {
            constraint: answer.constraint().unwrap_or(code).to_owned(),
            detail: match answer.detail() {
                Some(detail) => format!("{message}: {detail}"),
                None => message,
            },
        },
        code => StoreError::Unavailable(format!("{message} ({code})")),
    }
}
