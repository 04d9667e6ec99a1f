//! Payment against expiry, against cancellation, and against another payment: one of them wins, and
//! everybody is told which.

use std::time::Duration;

use serde_json::{Value, json};

use crate::books::{self, events_of, kinds};
use crate::on_each_store;
use crate::shop::{Shop, at_once, id, id_of, instant, millis, released, until, with_status};
use crate::world::client::{Answer, Client};

on_each_store!(
    a_late_payment_takes_the_stock_again_if_it_is_there,
    a_late_payment_is_refused_when_part_of_the_stock_is_gone,
    a_late_payment_goes_through_once_stock_is_back,
    a_payment_after_the_release_is_loud,
    a_refused_payment_leaves_the_remaining_time_as_it_was,
    payments_around_the_deadline_end_once,
    a_cancel_and_a_payment_have_one_winner,
    of_two_payments_one_wins_and_the_other_is_flagged;
    soak
    soak_payments_around_two_thousand_deadlines_end_once,
    soak_a_thousand_cancels_and_payments_have_one_winner_each,
);

/// A hold of both units of a SKU, which has expired and been released.
async fn expired_pair(client: &Client) -> String {
    client.put_stock("A", 2).await.expect(200);
    let id = id(client.reserve_one("A", 2, 1).await);
    released(client, &id).await;
    id
}

async fn pay(client: &Client, id: &str, payment: &str, on_expired: &str) -> Answer {
    let body = json!({ "payment_reference": payment, "on_expired": on_expired });
    client.checkout(id, body).await
}

/// How often a payment was flagged as one that bought nothing.
async fn flagged(client: &Client, id: &str, payment: &str) -> usize {
    let events = events_of(client, id).await;
    let is_flag = |event: &&Value| {
        event["kind"] == "payment-refused" && event["data"]["payment_reference"] == payment
    };
    events.iter().filter(is_flag).count()
}

/// alfio-event/alf.io#531, big-neon/bn-api#1189: money came after the reservation had expired.
async fn a_late_payment_takes_the_stock_again_if_it_is_there(shop: &mut Shop) {
    let client = shop.client();
    let id = expired_pair(&client).await;
    let late = pay(&client, &id, "pi_1", "reject").await;
    assert_eq!(late.refusal(), (409, "reservation-expired"));
    assert_eq!(flagged(&client, &id, "pi_1").await, 1);

    let paid = pay(&client, &id, "pi_1", "reacquire").await.expect(200);
    assert_eq!(
        (&paid["state"], &paid["reacquired"]),
        (&json!("paid"), &json!(true))
    );
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!((&stock["on_hand"], &stock["held"]), (&json!(0), &json!(0)));

    // The provider says it again, and gets the same answer; another payment learns who won.
    for on_expired in ["reacquire", "reject"] {
        assert_eq!(
            pay(&client, &id, "pi_1", on_expired).await.expect(200),
            paid
        );
    }
    let other = pay(&client, &id, "pi_2", "reacquire").await;
    assert_eq!(other.refusal(), (409, "reservation-not-held"));
    assert_eq!(other.body["payment_reference"], "pi_1");
    let events = events_of(&client, &id).await;
    assert_eq!(
        kinds(&events),
        [
            "created",
            "expired",
            "payment-refused",
            "paid",
            "payment-refused"
        ]
    );
}

/// con2/kompassi#1016, pretix/pretix#92
async fn a_late_payment_is_refused_when_part_of_the_stock_is_gone(shop: &mut Shop) {
    let client = shop.client();
    let id = expired_pair(&client).await;
    client.reserve_one("A", 1, 600).await.expect(201);
    for _ in 0..3 {
        let late = pay(&client, &id, "pi_1", "reacquire").await;
        assert_eq!(late.refusal(), (409, "insufficient-stock"));
        assert_eq!(late.body["short"][0]["available"], 1);
    }
    assert_eq!(
        flagged(&client, &id, "pi_1").await,
        1,
        "once, however often it is tried"
    );
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!((&stock["on_hand"], &stock["held"]), (&json!(2), &json!(1)));
    let reads = client.get_reservation(&id).await.expect(200);
    assert_eq!(
        (&reads["state"], &reads["reacquired"]),
        (&json!("expired"), &json!(false))
    );
}

async fn a_late_payment_goes_through_once_stock_is_back(shop: &mut Shop) {
    let client = shop.client();
    let late = expired_pair(&client).await;
    let other = id(client.reserve_one("A", 2, 600).await);
    let refused = pay(&client, &late, "pi_1", "reacquire").await;
    assert_eq!(refused.refusal(), (409, "insufficient-stock"));
    client.cancel(&other, json!({})).await.expect(200);
    let paid = pay(&client, &late, "pi_1", "reacquire").await.expect(200);
    assert_eq!(
        (&paid["payment_reference"], &paid["reacquired"]),
        (&json!("pi_1"), &json!(true))
    );
    assert_eq!(flagged(&client, &late, "pi_1").await, 1);
}

/// LerianStudio/midaz#2476: what was confirmed after the release was swallowed as a success.
async fn a_payment_after_the_release_is_loud(shop: &mut Shop) {
    let client = shop.client();
    let id = expired_pair(&client).await;
    for body in [
        json!({}),
        json!({ "payment_reference": "pi_1" }),
        json!({ "on_expired": "reject" }),
    ] {
        let late = client.checkout(&id, body).await;
        assert_eq!(late.refusal(), (409, "reservation-expired"));
        assert_eq!(
            millis(&late.body["expires_at"]),
            millis(&{ client.get_reservation(&id).await.expect(200)["expires_at"].clone() })
        );
    }
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!(
        (&stock["on_hand"], &stock["available"]),
        (&json!(2), &json!(2))
    );
}

/// woocommerce/woocommerce#55396: people try again, so that a payment that failed neither gives the
/// stock back nor buys any time.
async fn a_refused_payment_leaves_the_remaining_time_as_it_was(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 3).await.expect(200);
    let held = client.reserve_one("A", 2, 600).await.expect(201);
    let id = id_of(&held);
    let long = "p".repeat(256);
    for body in [
        json!({ "payment_reference": long }),
        json!({ "payment_reference": "" }),
        json!({ "payment_reference": 7 }),
        json!({ "payment_reference": "pi_1", "declined": true }),
        json!({ "payment_reference": "pi_1", "on_expired": "extend" }),
    ] {
        let refused = client.checkout(id, body).await;
        assert_eq!(refused.refusal(), (422, "validation"));
        assert_eq!(client.get_reservation(id).await.expect(200), held);
    }
    assert_eq!(books::events(&client).await.len(), 2, "nothing happened");
    let paid = pay(&client, id, "pi_1", "reject").await.expect(200);
    assert_eq!(paid["expires_at"], held["expires_at"]);
    assert_eq!(
        (&paid["state"], &paid["extensions"]),
        (&json!("paid"), &json!(0))
    );
    // A debit that fails later is a return: the sale stands, and the units come back once.
    let cancelled = client.cancel(id, json!({})).await;
    assert_eq!(cancelled.refusal(), (409, "reservation-not-held"));
    let returning = client.with_key("debit-pi_1-failed");
    for replayed in [false, true, true] {
        let answer = returning.adjust_stock("A", 2).await;
        assert_eq!(answer.is_replayed(), replayed);
        assert_eq!(answer.expect(200)["on_hand"], 3);
    }
    assert_eq!(client.get_stock("A").await.expect(200)["on_hand"], 3);
}

async fn payments_around_the_deadline_end_once(shop: &mut Shop) {
    race_deadlines(shop, 200).await;
}

async fn soak_payments_around_two_thousand_deadlines_end_once(shop: &mut Shop) {
    for _ in 0..10 {
        race_deadlines(shop, 200).await;
    }
}

/// woocommerce/woocommerce-gateway-stripe#5486: a paid order was cancelled as unpaid.
async fn race_deadlines(shop: &mut Shop, many: i64) {
    let client = shop.client();
    client.put_stock("A", many).await.expect(200);
    let now = millis(&client.now().await);
    // Due over a second and more, each a few milliseconds after the one before.
    let holds = at_once((0..many).map(|n| {
        let client = client.clone();
        let expires_at = instant(now + 3_000 + n * 7 % 1_500 + many);
        let lines = json!([{ "sku": "A", "quantity": 1 }]);
        let body = json!({ "lines": lines, "expires_at": expires_at });
        async move { client.reserve(body).await }
    }))
    .await;
    let holds: Vec<Value> = holds.into_iter().map(|answer| answer.expect(201)).collect();
    let now = millis(&client.now().await);
    let raced = at_once(holds.into_iter().enumerate().map(|(n, hold)| {
        let client = client.clone();
        async move {
            let left = u64::try_from(millis(&hold["expires_at"]) - now).unwrap_or_default();
            let jitter = n as u64 * 13 % 41;
            // When exactly they come decides who wins, and not whether this holds.
            tokio::time::sleep(Duration::from_millis((left + jitter).saturating_sub(20))).await;
            let id = id_of(&hold);
            let tabs = tokio::join!(
                pay(&client, id, "pi_1", "reject"),
                pay(&client, id, "pi_2", "reject")
            );
            (hold, [tabs.0, tabs.1])
        }
    }))
    .await;
    let mut paid = 0;
    for (hold, tabs) in &raced {
        let after = released(&client, id_of(hold)).await;
        let winners: Vec<_> = tabs.iter().filter(|answer| answer.status == 200).collect();
        match winners[..] {
            [] => {
                assert_eq!(after["state"], "expired");
                for tab in tabs {
                    assert_eq!(tab.refusal(), (409, "reservation-expired"));
                }
            }
            [winner] => {
                paid += 1;
                assert_eq!(&winner.body, &after, "what was answered is what is");
                let loser = tabs.iter().find(|answer| answer.status != 200).unwrap();
                assert_eq!(loser.refusal(), (409, "reservation-not-held"));
                assert_eq!(loser.body["payment_reference"], after["payment_reference"]);
            }
            _ => panic!("paid twice: {after}"),
        }
    }
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!(
        (&stock["on_hand"], &stock["held"]),
        (&json!(many - paid), &json!(0))
    );
}

async fn a_cancel_and_a_payment_have_one_winner(shop: &mut Shop) {
    race_cancels(shop, 100).await;
}

async fn soak_a_thousand_cancels_and_payments_have_one_winner_each(shop: &mut Shop) {
    race_cancels(shop, 1_000).await;
}

/// useautumn/autumn#3238: cancel won in one's own books, and the payment at the provider.
async fn race_cancels(shop: &mut Shop, rounds: i64) {
    let client = shop.client();
    client.put_stock("A", rounds * 2).await.expect(200);
    let mut flagged = Vec::new();
    for wave in (0..rounds).step_by(50) {
        let raced = at_once((wave..(wave + 50).min(rounds)).map(|round| {
            let client = client.clone();
            async move { race_one_cancel(&client, round % 2 == 0).await }
        }));
        flagged.extend(raced.await.into_iter().flatten());
    }
    flagged.sort_unstable();
    let events = books::events(&client).await;
    let refused = events
        .iter()
        .filter(|event| event["kind"] == "payment-refused");
    let refused = refused.map(|event| event["reservation_id"].as_str().unwrap().to_owned());
    let mut refused: Vec<String> = refused.collect();
    refused.sort_unstable();
    assert_eq!(
        refused, flagged,
        "each payment that came too late is flagged once"
    );
}

/// Returns the reservation if its payment lost, and is to be flagged.
async fn race_one_cancel(client: &Client, cancel_first: bool) -> Option<String> {
    let same = json!({ "lines": [{ "sku": "A", "quantity": 1 }], "customer_id": "c" });
    let id = id(client.reserve(same.clone()).await);
    let cancel = client.cancel(&id, json!({}));
    let checkout = pay(client, &id, "pi_1", "reject");
    let (cancelled, paid) = if cancel_first {
        tokio::join!(cancel, checkout)
    } else {
        let (paid, cancelled) = tokio::join!(checkout, cancel);
        (cancelled, paid)
    };
    let after = client.get_reservation(&id).await.expect(200);
    match (cancelled.status, paid.status) {
        (200, 409) => {
            assert_eq!(cancelled.body, after);
            assert_eq!(paid.refusal(), (409, "reservation-not-held"));
            assert_eq!(paid.body["state"], "cancelled");
            // The provider insists, and learns no more than before.
            let again = pay(client, &id, "pi_1", "reacquire").await;
            assert_eq!(again.refusal(), (409, "reservation-not-held"));
        }
        (409, 200) => {
            assert_eq!(paid.body, after);
            assert_eq!(cancelled.refusal(), (409, "reservation-not-held"));
            assert_eq!(cancelled.body["state"], "paid");
            assert_eq!(cancelled.body["payment_reference"], "pi_1");
            let again = client.cancel(&id, json!({})).await;
            assert_eq!(again.refusal(), (409, "reservation-not-held"));
        }
        other => panic!("{other:?}"),
    }
    let anew = client.reserve(same).await.expect(201);
    assert_ne!(id_of(&anew), id, "a new hold, and not the dead one");
    (paid.status == 409).then_some(id)
}

/// umbraco/Umbraco.Commerce.Issues#895: each visit to the payment page made a payment that could
/// still be paid.
async fn of_two_payments_one_wins_and_the_other_is_flagged(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    for _ in 0..10 {
        let id = id(client.reserve_one("A", 1, 600).await);
        let tabs = at_once(["pi_1", "pi_2"].map(|payment| {
            let client = client.with_key(&format!("{id}-{payment}"));
            let id = id.clone();
            async move { pay(&client, &id, payment, "reject").await }
        }))
        .await;
        assert_eq!(with_status(&tabs, 200), 1);
        let (winner, loser) = if tabs[0].status == 200 {
            ("pi_1", "pi_2")
        } else {
            ("pi_2", "pi_1")
        };
        let lost = tabs.iter().find(|answer| answer.status != 200).unwrap();
        assert_eq!(lost.refusal(), (409, "reservation-not-held"));
        assert_eq!(lost.body["payment_reference"], winner);
        assert_eq!(flagged(&client, &id, loser).await, 1);
        assert_eq!(flagged(&client, &id, winner).await, 0);
        // Both tabs send it again, under their keys.
        for payment in ["pi_1", "pi_2"] {
            let again = pay(
                &client.with_key(&format!("{id}-{payment}")),
                &id,
                payment,
                "reject",
            )
            .await;
            assert!(again.is_replayed());
            assert_eq!(again.status == 200, payment == winner);
        }
    }
    let paid = books::events(&client).await;
    assert_eq!(
        paid.iter().filter(|event| event["kind"] == "paid").count(),
        10
    );
    until(async || (client.get_stock("A").await.expect(200)["on_hand"] == 0).then_some(())).await;
}
