//! Holds that end: once, on time, with every unit, and without being asked.

use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};

use crate::books::{events, events_of, kinds};
use crate::on_each_store;
use crate::shop::{Kind, Shop, at_once, id, id_of, instant, millis, released, until, with_status};
use crate::world::client::{Answer, Client};

on_each_store!(
    an_ended_reservation_stays_as_it_ended,
    whoever_ends_it_the_units_come_back_once,
    what_fails_after_the_stock_was_changed_changes_nothing,
    every_unit_of_every_line_comes_back,
    an_idle_service_releases_by_itself,
    three_reads_agree_around_the_deadline,
    a_hold_past_its_deadline_is_free_before_it_is_released,
    more_holds_than_a_batch_and_a_hold_of_a_thousand_lines_are_released,
    two_thousand_holds_due_in_one_second_are_released_and_none_early;
    soak
    soak_a_thousand_races_end_once,
    soak_twenty_thousand_holds_due_in_one_second_are_released_and_none_early,
);

async fn act(client: &Client, id: &str, action: &str) -> Answer {
    match action {
        "cancel" => client.cancel(id, json!({})).await,
        "checkout" => {
            client
                .checkout(id, json!({ "payment_reference": "pi_1" }))
                .await
        }
        "other checkout" => {
            client
                .checkout(id, json!({ "payment_reference": "pi_2" }))
                .await
        }
        "extend" => client.extend(id, json!({ "extend_seconds": 10 })).await,
        other => panic!("{other}"),
    }
}

/// open-mercato/open-mercato#5418, vendurehq/vendure#2874: a second release gave the units again.
async fn an_ended_reservation_stays_as_it_ended(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let not_held = (409, "reservation-not-held");
    let expired = (409, "reservation-expired");
    let ok = (200, "");
    for (end, state, answers) in [
        ("cancel", "cancelled", [ok, not_held, not_held, not_held]),
        ("checkout", "paid", [not_held, ok, not_held, not_held]),
        ("nothing", "expired", [expired, expired, expired, expired]),
    ] {
        let id = id(client
            .reserve_one("A", 2, if end == "nothing" { 1 } else { 600 })
            .await);
        let ended = match end {
            "nothing" => released(&client, &id).await,
            _ => act(&client, &id, end).await.expect(200),
        };
        assert_eq!(ended["state"], state);
        let stock = client.get_stock("A").await.expect(200);
        for _ in 0..2 {
            let actions = ["cancel", "checkout", "other checkout", "extend"];
            for (action, refusal) in actions.into_iter().zip(answers) {
                let answer = act(&client, &id, action).await;
                assert_eq!(answer.refusal(), refusal, "{action} after {end}");
                match refusal {
                    (200, _) => assert_eq!(answer.body, ended, "{action} after {end}"),
                    (_, "reservation-not-held") => assert_eq!(answer.body["state"], state),
                    _ => assert_eq!(answer.body["expires_at"], ended["expires_at"]),
                }
            }
        }
        assert_eq!(client.get_reservation(&id).await.expect(200), ended);
        let unmoved = client.get_stock("A").await.expect(200);
        assert_eq!(unmoved, stock, "no second movement");
    }
}

async fn whoever_ends_it_the_units_come_back_once(shop: &mut Shop) {
    race_ends(shop, 100).await;
}

async fn soak_a_thousand_races_end_once(shop: &mut Shop) {
    race_ends(shop, 1_000).await;
}

/// hipay/hipay-fullservice-sdk-magento2#163: two handlers released the same.
async fn race_ends(shop: &mut Shop, rounds: usize) {
    let client = shop.client();
    client.put_stock("A", 3 * 50).await.expect(200);
    for some in (0..rounds).step_by(50) {
        let raced = at_once((some..(some + 50).min(rounds)).map(|_| {
            let client = client.clone();
            async move { race_one_end(&client).await }
        }))
        .await;
        drop(raced);
        until(async || {
            let stock = client.get_stock("A").await.expect(200);
            (stock["held"] == 0).then_some(())
        })
        .await;
        let stock = client.get_stock("A").await.expect(200);
        assert_eq!(stock["on_hand"], 150);
    }
}

async fn race_one_end(client: &Client) {
    let hold = client.reserve_one("A", 3, 1).await.expect(201);
    let left = millis(&hold["expires_at"]) - millis(&client.now().await);
    let left = std::time::Duration::from_millis(u64::try_from(left).unwrap_or_default());
    tokio::time::sleep(left).await;
    let id = id_of(&hold);
    let workers = at_once((0..3).map(|_| {
        let (client, id) = (client.clone(), id.to_owned());
        async move { client.cancel(&id, json!({})).await }
    }))
    .await;
    let after = released(client, id).await;
    let done = with_status(&workers, 200);
    for worker in &workers {
        match (after["state"].as_str().unwrap(), worker.status) {
            ("cancelled", 200) => assert_eq!(worker.body, after),
            ("expired", 409) => assert_eq!(worker.problem(), Some("reservation-expired")),
            // One that came too late for a cancel that was in time.
            other => panic!("{other:?}"),
        }
    }
    assert!(done == 3 || after["state"] == "expired");
}

/// medusajs/medusa#15397: what was to undo a failed step undid nothing.
async fn what_fails_after_the_stock_was_changed_changes_nothing(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    let id = id(client.reserve_one("A", 2, 600).await);
    let before = client.get_stock("A").await.expect(200);
    for (fault, mended) in faults(shop.kind()) {
        shop.sql(fault).await.unwrap();
        for _ in 0..5 {
            for action in ["cancel", "checkout", "extend"] {
                let failed = act(&client, &id, action).await;
                assert!(failed.status >= 500, "{fault}: {failed:?}");
            }
            let failed = client.reserve_one("A", 1, 600).await;
            assert!(failed.status >= 500, "{fault}: {failed:?}");
        }
        assert_eq!(client.get_stock("A").await.expect(200), before, "{fault}");
        let held = client.get_reservation(&id).await.expect(200);
        assert_eq!(
            (&held["state"], &held["extensions"]),
            (&json!("held"), &json!(0))
        );
        shop.sql(mended).await.unwrap();
        shop.audit();
    }
    act(&client, &id, "cancel").await.expect(200);
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!((&stock["on_hand"], &stock["held"]), (&json!(10), &json!(0)));
}

/// Makes the last write of a transaction fail, or its commit; and undoes that.
fn faults(kind: Kind) -> Vec<(&'static str, &'static str)> {
    match kind {
        Kind::Sqlite => vec![(
            "create trigger fault before insert on events begin select raise(abort, 'fault'); end",
            "drop trigger fault",
        )],
        Kind::Postgres => vec![
            (
                "create function fault() returns trigger language plpgsql as
                     $$ begin raise exception 'fault'; end $$;
                 create trigger fault before insert on events
                     for each row execute function fault()",
                "drop trigger fault on events",
            ),
            (
                "create constraint trigger fault after insert on events
                     deferrable initially deferred for each row execute function fault()",
                "drop trigger fault on events; drop function fault",
            ),
        ],
    }
}

/// conferencetools/tickets-module#11: one ticket of each type came back.
async fn every_unit_of_every_line_comes_back(shop: &mut Shop) {
    let client = shop.client();
    for sku in ["A", "B", "C"] {
        client.put_stock(sku, 7).await.expect(200);
    }
    let lines = json!([
        { "sku": "A", "quantity": 7 },
        { "sku": "B", "quantity": 3 },
        { "sku": "C", "quantity": 1 },
    ]);
    let held = async || {
        let mut held = Vec::new();
        for sku in ["A", "B", "C"] {
            held.push(
                client.get_stock(sku).await.expect(200)["held"]
                    .as_i64()
                    .unwrap(),
            );
        }
        held
    };
    for end in ["expired", "cancelled"] {
        let seconds = if end == "expired" { 1 } else { 600 };
        let body = json!({ "lines": lines, "hold_seconds": seconds });
        let id = id(client.reserve(body).await);
        if end == "cancelled" {
            assert_eq!(held().await, [7, 3, 1]);
            client.cancel(&id, json!({})).await.expect(200);
        }
        released(&client, &id).await;
        assert_eq!(held().await, [0, 0, 0], "{end}");
        let events = events_of(&client, &id).await;
        assert_eq!(kinds(&events), ["created", end]);
        let returned = events[1]["data"]["lines"].as_array().unwrap();
        let quantities: Vec<_> = returned.iter().map(|line| &line["quantity"]).collect();
        assert_eq!(quantities, [7, 3, 1], "{end}");
    }
}

/// eventespresso/event-espresso-core#218: sold out, with nobody registered.
async fn an_idle_service_releases_by_itself(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 5).await.expect(200);
    for customer in ["first", "second"] {
        let body = json!({
            "lines": [{ "sku": "A", "quantity": 2 }],
            "hold_seconds": 1,
            "customer_id": customer,
        });
        client.reserve(body).await.expect(201);
    }
    // What can be seen of the holds: by age, with owner and deadline.
    let list = client.list_reservations(&[]).await.expect(200);
    let items = list["items"].as_array().unwrap();
    let owners: Vec<_> = items.iter().map(|item| &item["customer_id"]).collect();
    assert_eq!(owners, ["second", "first"], "the newest first");
    assert!(millis(&items[0]["created_at"]) >= millis(&items[1]["created_at"]));

    // From here on nobody asks the service anything.
    until(async || {
        let open = "select count(*) from reservations where state = 'held'";
        (shop.count(open).await == 0).then_some(())
    })
    .await;
    assert_eq!(
        shop.count("select count(*) from stock where held > 0")
            .await,
        0
    );
    let expired = events(&client).await;
    assert_eq!(kinds(&expired)[3..], ["expired", "expired"]);
}

/// tigerbeetle/tigerbeetle#2118: after the deadline one answer said free and another one said held.
async fn three_reads_agree_around_the_deadline(shop: &mut Shop) {
    let client = shop.client();
    let rounds = (0..8).map(|n| {
        let client = client.clone();
        async move {
            let sku = format!("S{n}");
            client.put_stock(&sku, 1).await.expect(200);
            let id = id(client.reserve_one(&sku, 1, 1).await);
            // Each answer was true when it was given, so that once one says free, no later one says
            // held; and the last to say it is the one who gets the unit.
            let mut free = false;
            loop {
                let stock = client.get_stock(&sku).await.expect(200);
                let says_free = stock["available"] == 1;
                assert!(says_free || !free, "{stock}");
                free |= says_free;
                let read = client.get_reservation(&id).await.expect(200);
                let says_expired = read["state"] == "expired";
                assert!(says_expired || !free, "{read}");
                free |= says_expired;
                let again = client.reserve_one(&sku, 1, 600).await;
                match again.refusal() {
                    (201, "") => {
                        let made = millis(&again.body["created_at"]);
                        assert!(
                            made >= millis(&read["expires_at"]),
                            "not before the deadline"
                        );
                        break;
                    }
                    (409, "insufficient-stock") => assert!(!free, "free, and then refused"),
                    other => panic!("{other:?}"),
                }
            }
            let read = client.get_reservation(&id).await.expect(200);
            assert_eq!(read["state"], "expired");
        }
    });
    at_once(rounds).await;
}

/// tigerbeetle/tigerbeetle#2118 again, with somebody in the way of the release.
async fn a_hold_past_its_deadline_is_free_before_it_is_released(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1).await.expect(200);
    let hold = client.reserve_one("A", 1, 1).await.expect(201);
    match shop.kind() {
        Kind::Sqlite => {
            let mut stranger = shop.sqlite().await;
            stranger.execute("begin immediate").await.unwrap();
            read_as_expired(&client, id_of(&hold)).await;
            stranger.close().await.unwrap();
        }
        Kind::Postgres => {
            let mut stranger = shop.postgres().await;
            let lock = "begin; select * from reservations for update";
            stranger.execute(lock).await.unwrap();
            read_as_expired(&client, id_of(&hold)).await;
            stranger.close().await.unwrap();
        }
    }
    // What was said to be free can be had, and the sale does not wait for the timer.
    client.reserve_one("A", 1, 600).await.expect(201);
    let events = events_of(&client, id_of(&hold)).await;
    assert_eq!(kinds(&events), ["created", "expired"]);
}

/// Reads a hold that nobody can release, from before its deadline to after it.
async fn read_as_expired(client: &Client, id: &str) {
    let read = until(async || {
        let read = client.get_reservation(id).await.expect(200);
        (read["state"] == "expired").then_some(read)
    })
    .await;
    assert_eq!(read["closed_at"], Value::Null, "it was not released");
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!(
        (&stock["held"], &stock["available"]),
        (&json!(1), &json!(1))
    );
    let listed = client
        .list_reservations(&[("state", "expired")])
        .await
        .expect(200);
    assert_eq!(listed["items"], json!([read]));
    let listed = client
        .list_reservations(&[("state", "held")])
        .await
        .expect(200);
    assert_eq!(listed["items"], json!([]));
}

/// tigerbeetle/tigerbeetle#3658: the second batch of expiries on one account crashed.
async fn more_holds_than_a_batch_and_a_hold_of_a_thousand_lines_are_released(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 1_000).await.expect(200);
    at_once((0..50).map(|n| {
        let client = client.clone();
        async move {
            for sku in n * 20..n * 20 + 20 {
                client
                    .put_stock(&format!("LINE-{sku}"), 3)
                    .await
                    .expect(200);
            }
        }
    }))
    .await;
    let lines: Vec<Value> = (0..1_000)
        .map(|n| json!({ "sku": format!("LINE-{n}"), "quantity": 1 + n % 3 }))
        .collect();
    let expires_at = instant(millis(&client.now().await) + 4_000);
    let many = json!({ "lines": lines, "expires_at": expires_at });
    let many = id(client.reserve(many).await);
    let holds = at_once((0..300).map(|_| {
        let client = client.clone();
        let one = [json!({ "sku": "A", "quantity": 1 })];
        let body = json!({ "lines": one, "expires_at": expires_at });
        async move { client.reserve(body).await }
    }))
    .await;
    let made = with_status(&holds, 201);
    assert!(made > 128, "more than two batches: {made}");
    let released = released(&client, &many).await;
    assert_eq!(released["state"], "expired");
    until(async || {
        let open = "select count(*) from reservations where state = 'held'";
        (shop.count(open).await == 0).then_some(())
    })
    .await;
    assert_eq!(
        shop.count("select count(*) from stock where held > 0")
            .await,
        0
    );
    let events = events(&client).await;
    let expired = events
        .iter()
        .filter(|event| event["kind"] == "expired")
        .count();
    assert_eq!(expired, made + 1);
}

async fn two_thousand_holds_due_in_one_second_are_released_and_none_early(shop: &mut Shop) {
    everyone_at_once(shop, 2_000, 6_000).await;
}

async fn soak_twenty_thousand_holds_due_in_one_second_are_released_and_none_early(shop: &mut Shop) {
    everyone_at_once(shop, 20_000, 60_000).await;
}

/// fleetdm/fleet#3271: what began in one burst ends in one burst.
async fn everyone_at_once(shop: &mut Shop, many: i64, in_ms: i64) {
    let client = shop.client();
    for sku in 0..20 {
        client
            .put_stock(&format!("S{sku}"), many / 20)
            .await
            .expect(200);
    }
    let start = millis(&client.now().await);
    let made: usize = at_once((0..40).map(|buyer| {
        let client = client.clone();
        async move {
            let mut made = 0;
            for n in 0..many / 40 {
                let lines = json!([{ "sku": format!("S{}", buyer % 20), "quantity": 1 }]);
                let expires_at = instant(start + in_ms + (buyer * 37 + n * 101) % 1_000);
                let answer = client
                    .reserve(json!({ "lines": lines, "expires_at": expires_at }))
                    .await;
                match answer.refusal() {
                    (201, "") => made += 1,
                    // A slow machine came too late to make it; there are enough others.
                    (422, "hold-limit") => {}
                    other => panic!("{other:?}"),
                }
            }
            made
        }
    }))
    .await
    .into_iter()
    .sum();
    assert!(made >= usize::try_from(many).unwrap() / 4, "{made}");
    until(async || {
        let open = "select count(*) from reservations where state = 'held'";
        (shop.count(open).await == 0).then_some(())
    })
    .await;
    let events = events(&client).await;
    let expired: Vec<_> = events
        .iter()
        .filter(|event| event["kind"] == "expired")
        .collect();
    assert_eq!(expired.len(), made);
    for event in expired {
        assert!(
            event["data"]["lateness_ms"].as_i64().unwrap() >= 0,
            "{event}"
        );
    }
}
