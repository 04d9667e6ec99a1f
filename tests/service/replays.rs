//! Recorded shoppers, replayed by the program: the totals are those that an independent script
//! counted.

use serde_json::{Value, json};

use crate::shop::{Kind, Shop};
use crate::world::directory::TempDir;
use crate::world::server::run;
use crate::world::trace::trace;

/// Replays the carts into a database, and compares what the program printed.
async fn replay_carts(kind: Kind) {
    let Some(carts) = trace("carts.csv") else {
        return;
    };
    let shop = Shop::vacant(kind, 1).await;
    let carts = carts.to_str().unwrap();
    let replayed = shop.run(&["lab", "replay", "--trace", carts]);
    assert!(replayed.status.success(), "{replayed:?}");
    let totals: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let expected = json!({
        "created": 1_171,
        "paid": 78,
        "cancelled": 188,
        "expired": 905,
        "repeated_carts": 129,
        "purchases_without_hold": 245,
        "removes_without_hold": 863,
        "peak_held": 164,
        "peak_held_one_item": 3,
        "double_releases": 0,
        "orphans": 0,
        "drift": 0,
    });
    assert_eq!(totals, expected);
    // What is in the rows says the same.
    for (state, many) in [
        ("paid", 78),
        ("cancelled", 188),
        ("expired", 905),
        ("held", 0),
    ] {
        let states = shop.texts("select state from reservations").await;
        assert_eq!(
            states.iter().filter(|other| *other == state).count(),
            many,
            "{state}"
        );
    }
    assert_eq!(shop.count("select count(*) from ledger").await, 905);
    let again = shop.run(&["lab", "replay", "--trace", carts]);
    assert_eq!(
        again.status.code(),
        Some(2),
        "a database that is somebody's is left alone"
    );
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_carts_come_to_the_recorded_totals_on_sqlite() {
    replay_carts(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_carts_come_to_the_recorded_totals_on_postgres() {
    replay_carts(Kind::Postgres).await;
}

#[test]
fn a_bad_row_is_named_by_its_line() {
    let directory = TempDir::new();
    let path = directory.path().join("carts.csv");
    let header = "ts_ms,visitor,event,item,qty\n";
    for (rows, words) in [
        ("1,v,cart,i,1\n2,v,cart,i,0\n", "line 3 of the trace: qty"),
        ("1,v,cart,i\n", "line 2 of the trace: 5 fields"),
        ("2,v,cart,i,1\n1,v,cart,i,1\n", "line 3 of the trace: ts_ms"),
        ("1,v,cart,a\u{0}b,1\n", "line 2 of the trace: item"),
    ] {
        std::fs::write(&path, format!("{header}{rows}")).unwrap();
        let refused = run(&["lab", "replay", "--trace", path.to_str().unwrap()], &[]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(
            (refused.status.code(), said.lines().count()),
            (Some(2), 1),
            "{said}"
        );
        assert!(said.contains(words), "{said}");
    }
    let refused = run(&["lab", "replay", "--trace", "no-such-file.csv"], &[]);
    assert_eq!(refused.status.code(), Some(2));
}
