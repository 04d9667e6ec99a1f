//! Lists: every row once, whatever shares its instant; and what is offered can be had.

use reqwest::Method;
use serde_json::{Value, json};

use crate::books::all;
use crate::on_each_store;
use crate::shop::{Dice, Shop, at_once, id, id_of};
use crate::world::client::Client;

on_each_store!(
    a_thousand_of_the_same_instant_stand_on_one_page_each,
    a_list_holds_still_while_others_come_and_go,
    a_cursor_belongs_to_its_list_and_filter,
    what_is_available_can_be_had_and_not_one_more,
);

/// A thousand reservations, by ten customers, of the same instant.
async fn thousand(shop: &Shop) -> Client {
    let client = shop.client();
    client.put_stock("A", 2_000).await.expect(200);
    let answers = at_once((0..20).map(|n| {
        let client = client.clone();
        async move {
            for m in 0..50 {
                let body = json!({
                    "lines": [{ "sku": "A", "quantity": 1 }],
                    "hold_seconds": 600,
                    "customer_id": format!("c{}", (n + m) % 10),
                    "reference": format!("r{}", (n + m) % 4),
                });
                client.reserve(body).await.expect(201);
            }
        }
    }))
    .await;
    drop(answers);
    shop.sql("update reservations set created_at = (select min(created_at) from reservations)")
        .await
        .unwrap();
    client
}

fn ids(items: &[Value]) -> Vec<String> {
    items.iter().map(|item| id_of(item).to_owned()).collect()
}

/// activepieces/activepieces#14323: what shared an instant with the end of a page was never shown.
async fn a_thousand_of_the_same_instant_stand_on_one_page_each(shop: &mut Shop) {
    let client = thousand(shop).await;
    let everything = all(&client, "reservations", &[("limit", "1000")]).await;
    assert_eq!(everything.len(), 1_000);
    let instants: std::collections::BTreeSet<_> = everything
        .iter()
        .map(|item| item["created_at"].to_string())
        .collect();
    assert_eq!(instants.len(), 1);
    let whole = ids(&everything);
    assert!(
        whole.is_sorted_by(|newer, older| newer > older),
        "the newest first, each once"
    );
    for limit in ["1", "7", "100"] {
        let pages = all(&client, "reservations", &[("limit", limit)]).await;
        assert_eq!(ids(&pages), whole, "by {limit}");
    }
    for (filter, many) in [
        (vec![("customer_id", "c3")], 100),
        (vec![("reference", "r1")], 250),
        (vec![("state", "held")], 1_000),
        (vec![("state", "paid")], 0),
        (
            vec![
                ("state", "held"),
                ("customer_id", "c3"),
                ("reference", "r1"),
            ],
            50,
        ),
        (vec![("customer_id", "nobody")], 0),
    ] {
        let wanted: Vec<String> = everything
            .iter()
            .filter(|item| filter.iter().all(|(name, value)| item[*name] == **value))
            .map(|item| id_of(item).to_owned())
            .collect();
        for limit in ["7", "100"] {
            let query = [filter.as_slice(), &[("limit", limit)]].concat();
            let pages = ids(&all(&client, "reservations", &query).await);
            assert_eq!(pages, wanted, "{query:?}");
        }
        // Customers and references were dealt in one go, so that the last two overlap by chance.
        if filter.len() < 3 {
            assert_eq!(wanted.len(), many, "{filter:?}");
        }
    }
    let skus = all(&client, "stock", &[("limit", "1")]).await;
    assert_eq!(skus.len(), 1);
}

/// leapmux/leapmux#287: rows were skipped, or came twice.
async fn a_list_holds_still_while_others_come_and_go(shop: &mut Shop) {
    let client = thousand(shop).await;
    let stable = ids(&all(&client, "reservations", &[("limit", "1000")]).await);
    let (cancelled, kept) = stable.split_at(100);
    let changes = async {
        for id in cancelled {
            client.cancel(id, json!({})).await.expect(200);
            client.reserve_one("A", 1, 1).await.expect(201);
        }
    };
    let (seen, ()) = tokio::join!(all(&client, "reservations", &[("limit", "7")]), changes);
    let seen = ids(&seen);
    assert!(seen.is_sorted_by(|newer, older| newer > older), "each once");
    for id in kept {
        assert!(
            seen.binary_search_by(|other| id.cmp(other)).is_ok(),
            "{id} was skipped"
        );
    }
}

async fn a_cursor_belongs_to_its_list_and_filter(shop: &mut Shop) {
    let client = shop.client();
    for sku in ["A", "B", "C"] {
        client.put_stock(sku, 10).await.expect(200);
        client.reserve_one(sku, 1, 600).await.expect(201);
    }
    let cursor_of = async |path: &str| {
        let page = client.get(&[path], &[("limit", "1")]).await.expect(200);
        page["next_cursor"].as_str().unwrap().to_owned()
    };
    let cursor = cursor_of("reservations").await;
    let of_stock = cursor_of("stock").await;
    let mut tampered = cursor.clone().into_bytes();
    tampered[20] = if tampered[20] == b'A' { b'B' } else { b'A' };
    let tampered = String::from_utf8(tampered).unwrap();
    let long = "A".repeat(100_000);
    let bad = [
        "",
        "A",
        "=",
        "é",
        "null",
        &cursor[1..],
        &cursor[..cursor.len() - 4],
        &tampered,
        &of_stock,
        "eyJ2IjoxfQ",
        &long[..4_000],
    ];
    for bad in bad {
        let refused = client.list_reservations(&[("cursor", bad)]).await;
        assert_eq!(refused.refusal(), (400, "malformed-request"), "{bad}");
        assert_eq!(refused.field(), "cursor");
    }
    for filter in [("state", "held"), ("customer_id", "c"), ("reference", "r")] {
        let refused = client
            .list_reservations(&[("cursor", &cursor), filter])
            .await;
        assert_eq!(
            refused.refusal(),
            (400, "malformed-request"),
            "another filter: {filter:?}"
        );
    }
    let refused = client
        .get(&["stock"], &[("cursor", &of_stock), ("sku", "A")])
        .await;
    assert_eq!(refused.refusal(), (400, "malformed-request"));
    let refused = client.get(&["stock"], &[("cursor", &cursor)]).await;
    assert_eq!(refused.refusal(), (400, "malformed-request"));
    // How many rows are shown is not part of the filter.
    let next = client
        .list_reservations(&[("cursor", &cursor), ("limit", "2")])
        .await
        .expect(200);
    assert_eq!(next["items"].as_array().unwrap().len(), 2);
}

/// big-neon/bn-api#1046: what was offered was then refused.
async fn what_is_available_can_be_had_and_not_one_more(shop: &mut Shop) {
    let client = shop.client();
    let skus = ["A", "B", "C"];
    for sku in skus {
        client.put_stock(sku, 20).await.expect(200);
    }
    let mut dice = Dice::new(56);
    let mut open: Vec<String> = Vec::new();
    for _ in 0..60 {
        for _ in 0..4 {
            step(&client, &mut dice, &mut open, skus).await;
        }
        let path = "/v1/stock?sku=A&sku=B&sku=C&sku=UNKNOWN";
        let batch = client
            .send(client.request(Method::GET, path))
            .await
            .expect(200);
        let batch = batch["items"].as_array().unwrap().clone();
        assert_eq!(batch.len(), 3, "what does not exist is not listed");
        for (sku, listed) in skus.into_iter().zip(&batch) {
            let single = client.get_stock(sku).await.expect(200);
            // A hold may have come due in between, and then there is more.
            assert!(
                single["available"].as_i64() >= listed["available"].as_i64(),
                "{single} {listed}"
            );
            assert_eq!(
                (&single["sku"], &single["on_hand"]),
                (&listed["sku"], &listed["on_hand"])
            );
        }
        let sku = skus[usize::try_from(dice.roll(3)).unwrap()];
        let stock = client.get_stock(sku).await.expect(200);
        let available = stock["available"].as_i64().unwrap();
        if available > 0 {
            let all = id(client.reserve_one(sku, available, 600).await);
            let more = client.reserve_one(sku, 1, 600).await;
            if more.status == 201 {
                // Only what came due since can be had.
                let due = client.get_reservation(&all).await.expect(200);
                assert!(more.body["created_at"].as_str() > due["created_at"].as_str());
                open.push(id(more));
            } else {
                assert_eq!(more.refusal(), (409, "insufficient-stock"));
            }
            client.cancel(&all, json!({})).await.expect(200);
        } else {
            assert!(matches!(client.reserve_one(sku, 20, 600).await.status, 409));
        }
    }
}

/// Something that happens to a shop.
async fn step(client: &Client, dice: &mut Dice, open: &mut Vec<String>, skus: [&str; 3]) {
    let sku = skus[usize::try_from(dice.roll(3)).unwrap()];
    match dice.roll(6) {
        0..=2 => {
            let seconds = if dice.roll(3) == 0 { 1 } else { 600 };
            let quantity = i64::try_from(dice.roll(6)).unwrap() + 1;
            let answer = client.reserve_one(sku, quantity, seconds).await;
            match answer.refusal() {
                (201, "") => open.push(id(answer)),
                other => assert_eq!(other, (409, "insufficient-stock")),
            }
        }
        3 => {
            let on_hand = i64::try_from(dice.roll(30)).unwrap();
            let answer = client.put_stock(sku, on_hand).await;
            assert!(matches!(
                answer.refusal(),
                (200, "") | (409, "stock-below-held")
            ));
        }
        end if !open.is_empty() => {
            let at = usize::try_from(dice.roll(open.len() as u64)).unwrap();
            let id = open.swap_remove(at);
            let answer = match end {
                4 => client.cancel(&id, json!({})).await,
                _ => client.checkout(&id, json!({})).await,
            };
            assert!(matches!(
                answer.refusal(),
                (200, "") | (409, "reservation-expired")
            ));
        }
        _ => {}
    }
}
