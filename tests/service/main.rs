//! The service from outside: real processes on real databases, asked over HTTP.
//!
//! Every test has a database of its own. At its end the rows are audited by `holdfast audit` and,
//! independently, by [`books`], which recomputes from the event log what the API says; and no
//! server may have panicked.

#![cfg(test)]

#[path = "../world/mod.rs"]
mod world;

mod books;
mod pooler;
mod raw;
mod shop;

mod bad_input;
mod command_line;
mod crashes;
mod deadlines;
mod documents;
mod idempotency;
mod interference;
mod kills;
mod lists;
mod oversell;
mod payments;
mod pooling;
mod quarantine;
mod queue;
mod releases;
mod repairs;
mod replays;
mod runs;

/// Makes a test on SQLite and one on PostgreSQL out of each function that takes a shop. Those after
/// `soak` take minutes, and are run by `make soak`.
macro_rules! on_each_store {
    ($($test:ident),* $(,)? $(; soak $($soak:ident),* $(,)?)?) => {
        mod sqlite {
            use crate::shop::{Kind, on_store};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    on_store(Kind::Sqlite, async |shop| super::$test(shop).await).await;
                }
            )*
            $($(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes; `make soak` runs it"]
                async fn $soak() {
                    on_store(Kind::Sqlite, async |shop| super::$soak(shop).await).await;
                }
            )*)?
        }
        mod postgres {
            use crate::shop::{Kind, on_store};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    on_store(Kind::Postgres, async |shop| super::$test(shop).await).await;
                }
            )*
            $($(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "takes minutes; `make soak` runs it"]
                async fn $soak() {
                    on_store(Kind::Postgres, async |shop| super::$soak(shop).await).await;
                }
            )*)?
        }
    };
}
use on_each_store;
