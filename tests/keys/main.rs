//! Who is let in: real servers on real databases, with keys, limits, encryption and a second
//! listener.

#![cfg(test)]

#[path = "../world/mod.rs"]
mod world;

mod house;

mod keys;
mod limits;
mod listeners;
mod open;
mod scopes;
mod tls;

/// Makes a test on SQLite and one on PostgreSQL out of each function that takes a house.
macro_rules! on_each_store {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(crate::house::House::on_sqlite()).await;
                }
            )*
        }
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    super::$test(crate::house::House::on_postgres().await).await;
                }
            )*
        }
    };
}
use on_each_store;
