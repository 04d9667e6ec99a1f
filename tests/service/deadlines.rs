//! Deadlines: what is taken for one, what moves it, and whose clock judges it.

use serde_json::json;

use crate::books::events_of;
use crate::on_each_store;
use crate::shop::{Kind, Shop, id, id_of, instant, millis, released};
use crate::world::faketime::clock_off_by;

on_each_store!(
    what_fails_moves_no_deadline,
    the_whole_life_of_a_hold_is_capped,
    rules_that_changed_since_bind_the_next_step,
    an_instant_is_taken_with_its_offset_or_not_at_all,
    a_deadline_too_near_or_too_far_is_refused_with_the_clock,
);

/// pretix/pretix#1575: a failed action started the countdown anew.
async fn what_fails_moves_no_deadline(shop: &mut Shop) {
    let client = shop.restart(&[("HOLDFAST_MAX_HOLD_SECONDS", "1000")]).await;
    client.put_stock("A", 2).await.expect(200);
    let hold = client.reserve_one("A", 2, 600).await.expect(201);
    let id = id_of(&hold);
    for _ in 0..3 {
        for (body, status) in [
            (json!({ "extend_seconds": 100_000 }), 422),
            (json!({ "extend_seconds": 0 }), 422),
            (json!({ "expires_at": hold["created_at"] }), 422),
            (json!({ "expires_at": hold["expires_at"] }), 422),
            (json!({}), 422),
        ] {
            assert_eq!(
                client.extend(id, body.clone()).await.status,
                status,
                "{body}"
            );
        }
        assert_eq!(client.reserve_one("A", 1, 900).await.status, 409);
        assert_eq!(
            client
                .checkout(id, json!({ "on_expired": "never" }))
                .await
                .status,
            422
        );
        assert_eq!(client.get_reservation(id).await.expect(200), hold);
    }
    // A step that was taken is answered again under its key, and not taken again.
    let keyed = client.with_key("step");
    let extended = keyed
        .extend(id, json!({ "extend_seconds": 60 }))
        .await
        .expect(200);
    assert_eq!(
        millis(&extended["expires_at"]),
        millis(&hold["expires_at"]) + 60_000
    );
    for _ in 0..3 {
        let again = keyed.extend(id, json!({ "extend_seconds": 60 })).await;
        assert!(again.is_replayed());
        assert_eq!(again.expect(200), extended);
    }
    let read = client.get_reservation(id).await.expect(200);
    assert_eq!(read, extended);
    assert_eq!(read["hold_seconds"], 600);
}

async fn the_whole_life_of_a_hold_is_capped(shop: &mut Shop) {
    let client = shop.restart(&[("HOLDFAST_MAX_HOLD_SECONDS", "900")]).await;
    client.put_stock("A", 1).await.expect(200);
    let hold = client.reserve_one("A", 1, 600).await.expect(201);
    let id = id_of(&hold);
    for seconds in [200, 100] {
        client
            .extend(id, json!({ "extend_seconds": seconds }))
            .await
            .expect(200);
    }
    let refused = client.extend(id, json!({ "extend_seconds": 1 })).await;
    assert_eq!(refused.refusal(), (422, "hold-limit"));
    let latest = millis(&hold["created_at"]) + 900_000;
    assert_eq!(millis(&refused.body["latest"]), latest);
    let read = client.get_reservation(id).await.expect(200);
    assert_eq!(
        (millis(&read["expires_at"]), &read["extensions"]),
        (latest, &json!(2))
    );
}

/// pretix/pretix#5715: what was checked when the cart was filled was forgotten when it was extended.
async fn rules_that_changed_since_bind_the_next_step(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 5).await.expect(200);
    let hold = client.reserve_one("A", 2, 600).await.expect(201);
    let id = id_of(&hold);
    // Less may be on the shelf by now, but never less than was promised.
    assert_eq!(
        client.put_stock("A", 1).await.refusal(),
        (409, "stock-below-held")
    );
    client.put_stock("A", 2).await.expect(200);
    // The longest hold is shorter by now: nothing is taken away, and nothing is added.
    let client = shop
        .restart(&[
            ("HOLDFAST_MAX_HOLD_SECONDS", "300"),
            ("HOLDFAST_HOLD_SECONDS", "300"),
        ])
        .await;
    assert_eq!(client.get_reservation(id).await.expect(200), hold);
    let refused = client.extend(id, json!({ "extend_seconds": 1 })).await;
    assert_eq!(refused.refusal(), (422, "hold-limit"));
    assert_eq!(
        client.reserve_one("A", 1, 301).await.refusal(),
        (409, "insufficient-stock")
    );
    // What was promised can be paid.
    client.checkout(id, json!({})).await.expect(200);
    client.put_stock("A", 1).await.expect(200);
    assert_eq!(
        client.reserve_one("A", 1, 301).await.refusal(),
        (422, "hold-limit")
    );
    client.reserve_one("A", 1, 300).await.expect(201);
}

/// mojaloop/project#514: an offset was ignored, and the deadline lay in the past.
async fn an_instant_is_taken_with_its_offset_or_not_at_all(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 100).await.expect(200);
    let at = millis(&client.now().await) + 600_000;
    // The wall clock somewhere with that offset, in minutes.
    let local = |offset: i64| {
        instant(at + offset * 60_000)
            .trim_end_matches('Z')
            .to_owned()
    };
    for text in [
        instant(at),
        instant(at).to_lowercase(),
        format!("{}+05:30", local(330)),
        format!("{}-03:00", local(-180)),
        format!("{}+00:00", local(0)),
        format!("{}999999Z", local(0)),
    ] {
        let lines = json!([{ "sku": "A", "quantity": 1 }]);
        let made = client
            .reserve(json!({ "lines": lines, "expires_at": text }))
            .await
            .expect(201);
        assert_eq!(made["expires_at"], instant(at), "{text}");
        let extended = client
            .extend(id_of(&made), json!({ "expires_at": text }))
            .await;
        assert_eq!(
            extended.refusal(),
            (422, "hold-limit"),
            "the same instant is not later"
        );
    }
    for text in [
        json!(local(0)),
        json!("2026-12-31T23:59:60Z"),
        json!("10000-01-01T00:00:00Z"),
        json!("1969-12-31T23:59:59Z"),
        json!("2026-02-30T00:00:00Z"),
        json!("2026-12-01"),
        json!(at / 1_000),
        json!(at),
        json!("PT15M"),
        json!(""),
    ] {
        let lines = json!([{ "sku": "A", "quantity": 1 }]);
        let refused = client
            .reserve(json!({ "lines": lines, "expires_at": text }))
            .await;
        assert_eq!(refused.refusal(), (422, "validation"), "{text}");
        assert_eq!(refused.field(), "expires_at", "{text}");
    }
}

/// multica-ai/multica#5191: a deadline that the service itself had computed was out of bounds.
async fn a_deadline_too_near_or_too_far_is_refused_with_the_clock(shop: &mut Shop) {
    let client = shop.restart(&[("HOLDFAST_MAX_HOLD_SECONDS", "1000")]).await;
    client.put_stock("A", 100).await.expect(200);
    let one = json!([{ "sku": "A", "quantity": 1 }]);
    let now = millis(&client.now().await);
    for deadline in [
        0,
        now - 1,
        now,
        now + 900,
        now + 1_100_000,
        253_402_300_799_999,
    ] {
        let expires_at = instant(deadline);
        let refused = client
            .reserve(json!({ "lines": one, "expires_at": expires_at }))
            .await;
        assert_eq!(refused.refusal(), (422, "hold-limit"), "{expires_at}");
        let clock = millis(&refused.body["now"]);
        assert!(clock >= now);
        assert_eq!(millis(&refused.body["earliest"]), clock + 1_000);
        assert_eq!(millis(&refused.body["latest"]), clock + 1_000_000);
    }
    for seconds in [1, 1_000] {
        let made = client.reserve_one("A", 1, seconds).await.expect(201);
        let span = millis(&made["expires_at"]) - millis(&made["created_at"]);
        assert_eq!(
            (span, &made["hold_seconds"]),
            (seconds * 1_000, &json!(seconds))
        );
    }
    for seconds in [1_001, 2_147_483_648, 9_007_199_254_740_993, i64::MAX] {
        let refused = client.reserve_one("A", 1, seconds).await;
        assert_eq!(refused.refusal(), (422, "hold-limit"), "{seconds}");
        let id = id(client.reserve_one("A", 1, 600).await);
        let refused = client
            .extend(&id, json!({ "extend_seconds": seconds }))
            .await;
        assert_eq!(refused.refusal(), (422, "hold-limit"), "{seconds}");
    }
}

/// multica-ai/multica#5191: servers whose clocks are wrong, by one and a half minutes either way.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_clocks_of_servers_neither_refuse_nor_release_early() {
    let mut shop = Shop::vacant(Kind::Postgres, 3).await;
    let longest = [
        ("HOLDFAST_MAX_HOLD_SECONDS", "60"),
        ("HOLDFAST_HOLD_SECONDS", "60"),
    ];
    shop.start(&longest);
    for offset in ["+90s", "-90s"] {
        let clock = clock_off_by(offset);
        let clock = clock
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let settings: Vec<_> = clock.chain(longest).collect();
        shop.start(&settings);
    }
    let clients = shop.clients();
    clients[0].put_stock("A", 100).await.expect(200);
    let database_now = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
    let mut short = Vec::new();
    for client in &clients {
        let before = shop.count(database_now).await;
        let said = millis(&client.now().await);
        let (shortest, longest) = (
            client.reserve_one("A", 1, 1).await.expect(201),
            client.reserve_one("A", 1, 60).await.expect(201),
        );
        let after = shop.count(database_now).await;
        assert!(
            (before..=after).contains(&said),
            "the clock that decides is the database's"
        );
        for made in [&shortest, &longest] {
            assert!(
                (before..=after).contains(&millis(&made["created_at"])),
                "{made}"
            );
        }
        assert_eq!(
            millis(&longest["expires_at"]),
            millis(&longest["created_at"]) + 60_000
        );
        // What was answered is what is stored and what the event says.
        let stored =
            "select (extract(epoch from max(expires_at)) * 1000)::bigint from reservations";
        assert_eq!(shop.count(stored).await, millis(&longest["expires_at"]));
        let events = events_of(client, id_of(&longest)).await;
        assert_eq!(events[0]["data"]["expires_at"], longest["expires_at"]);
        // An instant at the bound, as the database counts.
        let edge = instant(millis(&client.now().await) + 60_000);
        let lines = json!([{ "sku": "A", "quantity": 1 }]);
        client
            .reserve(json!({ "lines": lines, "expires_at": edge }))
            .await
            .expect(201);
        client
            .extend(id_of(&longest), json!({ "extend_seconds": 1 }))
            .await
            .expect(422);
        short.push(shortest);
    }
    // Whoever released them, and the fast one looks as well, did so after the deadline; that is
    // checked, for every event, when the shop closes. The long ones are still there.
    for made in &short {
        released(&clients[0], id_of(made)).await;
    }
    let held = "select count(*) from reservations where state = 'held'";
    assert_eq!(shop.count(held).await, 6);
    for client in &clients {
        let read = client
            .list_reservations(&[("state", "held")])
            .await
            .expect(200);
        assert_eq!(read["items"].as_array().unwrap().len(), 6);
    }
    shop.close().await;
}
