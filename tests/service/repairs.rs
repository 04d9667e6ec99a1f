//! Counters that were tampered with, put right by the program while a server serves them.

use serde_json::{Value, json};

use crate::books::{events, events_of};
use crate::command_line::assert_refused;
use crate::on_each_store;
use crate::shop::{Shop, id};
use crate::world::server::run;

on_each_store!(
    a_repair_says_what_it_would_do_and_then_does_it,
    a_repair_says_what_it_leaves,
);

/// What a repair says, line by line, and its exit status.
fn repair(shop: &Shop, apply: bool) -> (Option<i32>, Vec<Value>) {
    let arguments = ["audit", "--repair", "--apply"];
    let output = shop.run(&arguments[..if apply { 3 } else { 2 }]);
    let said = String::from_utf8(output.stdout).unwrap();
    let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
    (output.status.code(), lines.collect())
}

/// The last line of a repair.
fn total(applied: bool, repaired: usize, left: usize) -> Value {
    json!({ "applied": applied, "repaired": repaired, "left": left, "more": false })
}

async fn a_repair_says_what_it_would_do_and_then_does_it(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    client.put_stock("B", 10).await.expect(200);
    client.reserve_one("A", 2, 600).await.expect(201);
    let held = id(client.reserve_one("B", 3, 600).await);
    assert_eq!(repair(shop, false), (Some(0), vec![total(false, 0, 0)]));
    assert_eq!(repair(shop, true), (Some(0), vec![total(true, 0, 0)]));
    for tamper in [
        "update stock set held = 0 where sku = 'A'",
        "delete from stock where sku = 'B'",
        "delete from open_lines where sku = 'B'",
    ] {
        shop.sql(tamper).await.unwrap();
    }
    let before = events(&client).await;

    let (status, planned) = repair(shop, false);
    assert_eq!(
        (status, planned.last()),
        (Some(1), Some(&total(false, 3, 0)))
    );
    assert_eq!(events(&client).await, before);
    assert_eq!(shop.count("select count(*) from open_lines").await, 1);
    let a = client.get_stock("A").await.expect(200);
    assert_eq!((&a["held"], &a["available"]), (&json!(0), &json!(10)));

    let (status, done) = repair(shop, true);
    assert_eq!((status, done.last()), (Some(0), Some(&total(true, 3, 0))));
    assert_eq!(planned[..3], done[..3], "it does what it said");
    let stock = |sku: &str, wrong: &str, before: Value, after: Value| {
        let repair = json!({
            "sku": sku, "location": "default", "wrong": wrong, "before": before, "after": after,
        });
        json!({ "row": format!("stock {sku} at default"), "repair": repair })
    };
    let ten = |held: i64| json!({ "on_hand": 10, "held": held });
    let three = json!({ "on_hand": 3, "held": 3 });
    assert_eq!(done[1], stock("A", "held-differs", ten(0), ten(2)));
    assert_eq!(done[2], stock("B", "row-missing", Value::Null, three));
    shop.audit();
    assert_eq!(repair(shop, true), (Some(0), vec![total(true, 0, 0)]));

    // One event for each, which says the same, and the service goes on with what is right now.
    let after = events(&client).await;
    let told = &after[before.len()..];
    assert_eq!(told.len(), 3);
    for (event, line) in told.iter().zip(&done) {
        assert_eq!(event["kind"], "stock-repaired");
        assert_eq!(event["data"], line["repair"]);
    }
    let of_hold = events_of(&client, &held).await;
    assert_eq!(of_hold.last().unwrap()["data"]["after"][0]["quantity"], 3);
    client.cancel(&held, json!({})).await.expect(200);
    let b = client.get_stock("B").await.expect(200);
    assert_eq!((&b["on_hand"], &b["held"]), (&json!(3), &json!(0)));
    client.put_stock("B", 10).await.expect(200);
    let a = client.get_stock("A").await.expect(200);
    assert_eq!((&a["held"], &a["available"]), (&json!(2), &json!(8)));
}

async fn a_repair_says_what_it_leaves(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 5).await.expect(200);
    client.reserve_one("A", 2, 600).await.expect(201);
    let held = id(client.reserve_one("A", 1, 600).await);
    shop.sql("update stock set held = 0, on_hand = 2")
        .await
        .unwrap();
    let spoil = "update reservations set metadata = '{\"a\": 1}'
        where id in (select reservation_id from open_lines where quantity = 1)";
    shop.sql(spoil).await.unwrap();
    for apply in [false, true] {
        let (status, said) = repair(shop, apply);
        assert_eq!((status, &said[2]), (Some(1), &total(apply, 0, 2)));
        assert_eq!(said[0]["row"], format!("reservation {held}"));
        assert!(said[0]["left"].as_str().unwrap().contains("metadata"));
        assert_eq!(said[1]["row"], "stock A at default");
        let why = said[1]["left"].as_str().unwrap();
        assert!(why.contains("claim 3 units, and 2 are on hand"), "{why}");
    }
    // As it says: what is on the shelf is counted, and what a hold says mended by hand.
    client.put_stock("A", 5).await.expect(200);
    shop.sql("update reservations set metadata = '{}'")
        .await
        .unwrap();
    let (status, said) = repair(shop, true);
    assert_eq!((status, &said[1]), (Some(0), &total(true, 1, 0)));
    shop.audit();
}

#[test]
fn nothing_is_applied_without_a_repair() {
    let refused = run(&["audit", "--apply"], &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("--repair"), "{said}");
    // And a file that is not there is not made.
    let nowhere = [("HOLDFAST_DATABASE_URL", "sqlite:///nowhere/mistyped.db")];
    let output = run(&["audit", "--repair", "--apply"], &nowhere);
    assert_refused(&output, 2, &["there is no file", "HOLDFAST_DATABASE_URL"]);
}
