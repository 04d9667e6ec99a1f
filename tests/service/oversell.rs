//! P1: no oversell, whoever comes at the same moment, by whichever way.

use reqwest::Method;
use serde_json::json;

use crate::on_each_store;
use crate::shop::{Dice, Kind, Shop, at_once, id, with_status};
use crate::world::client::{Answer, Client};

on_each_store!(
    fifty_units_are_sold_to_fifty_of_five_hundred_buyers,
    no_way_of_asking_oversells,
    the_database_itself_refuses_to_oversell,
    baskets_in_any_order_never_deadlock,
);

/// So many buyers at once, spread over these servers, each for one unit.
async fn buyers(clients: &[Client], many: usize) -> Vec<Answer> {
    at_once((0..many).map(|buyer| {
        let client = clients[buyer % clients.len()].clone();
        async move {
            let body = json!({
                "lines": [{ "sku": "LAST", "quantity": 1 }],
                "hold_seconds": 600,
                "customer_id": format!("customer-{buyer}"),
            });
            client.reserve(body).await
        }
    }))
    .await
}

/// Are these `sold` reservations, and every other one refused for want of stock?
fn assert_sold(answers: &[Answer], sold: usize) {
    assert_eq!(with_status(answers, 201), sold);
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(answer.refusal(), (409, "insufficient-stock"));
        assert_eq!(answer.body["short"][0]["available"], 0);
    }
}

/// opencart/opencart#4811, nopSolutions/nopCommerce#4184, woocommerce/woocommerce#12467
async fn fifty_units_are_sold_to_fifty_of_five_hundred_buyers(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("LAST", 50).await.expect(200);
    let answers = buyers(&shop.clients(), 500).await;
    assert_sold(&answers, 50);
    let stock = client.get_stock("LAST").await.expect(200);
    assert_eq!(
        (&stock["held"], &stock["available"]),
        (&json!(50), &json!(0))
    );
}

/// The same, at three instances on one database.
#[tokio::test(flavor = "multi_thread")]
async fn three_instances_together_sell_fifty_units_to_fifty_buyers() {
    let shop = Shop::open(Kind::Postgres, 3, &[]).await;
    shop.client().put_stock("LAST", 50).await.expect(200);
    let answers = buyers(&shop.clients(), 500).await;
    assert_sold(&answers, 50);
    shop.close().await;
}

/// woocommerce/woocommerce#44273: counts of the shelf and cancellations that raced with orders.
#[tokio::test(flavor = "multi_thread")]
async fn counts_of_the_shelf_and_cancels_do_not_oversell() {
    let shop = Shop::open(Kind::Postgres, 3, &[]).await;
    let clients = shop.clients();
    let client = shop.client();
    client.put_stock("LAST", 50).await.expect(200);
    let earlier: Vec<String> = buyers(&clients, 20).await.into_iter().map(id).collect();

    let cancels = at_once(earlier.into_iter().enumerate().map(|(n, id)| {
        let client = clients[n % 3].clone();
        async move { client.cancel(&id, json!({})).await }
    }));
    let counts = async {
        let mut counts = Vec::new();
        for on_hand in [55, 50].repeat(10) {
            counts.push(client.put_stock("LAST", on_hand).await);
        }
        counts
    };
    let samples = async {
        for _ in 0..40 {
            let stock = client.get_stock("LAST").await.expect(200);
            let [on_hand, held] = ["on_hand", "held"].map(|name| stock[name].as_i64().unwrap());
            assert!((0..=on_hand).contains(&held), "{stock}");
        }
    };
    let (sold, cancels, counts, ()) = tokio::join!(buyers(&clients, 400), cancels, counts, samples);

    assert_eq!(with_status(&cancels, 200), 20);
    for answer in &sold {
        assert!(
            matches!(answer.refusal(), (201, "") | (409, "insufficient-stock")),
            "{answer:?}"
        );
    }
    for count in &counts {
        assert!(
            matches!(count.refusal(), (200, "") | (409, "stock-below-held")),
            "{count:?}"
        );
    }
    // Every unit that is free can be had, and not one more.
    let stock = client.get_stock("LAST").await.expect(200);
    let [held, free] = ["held", "available"].map(|name| stock[name].as_i64().unwrap());
    assert_eq!(held, i64::try_from(with_status(&sold, 201)).unwrap());
    if free > 0 {
        client.reserve_one("LAST", free, 600).await.expect(201);
    }
    let one_more = client.reserve_one("LAST", 1, 600).await;
    assert_eq!(one_more.refusal(), (409, "insufficient-stock"));
    shop.close().await;
}

/// fossasia/eventyay#1359: only the common path went without the lock.
async fn no_way_of_asking_oversells(shop: &mut Shop) {
    let client = shop.client();
    let ways = [
        ("one line", json!([["A", 1]])),
        ("two lines", json!([["B", 1], ["C", 1]])),
        ("the same row twice", json!([["D", 1], ["D", 1]])),
        ("many units", json!([["E", 2]])),
    ];
    for (way, lines) in ways {
        for is_keyed in [false, true] {
            let lines: Vec<_> = lines.as_array().unwrap().clone();
            let rows: Vec<_> = lines
                .iter()
                .map(|line| {
                    let sku = format!("{}-{is_keyed}", line[0].as_str().unwrap());
                    json!({ "sku": sku, "quantity": line[1] })
                })
                .collect();
            let units = if way == "the same row twice" || way == "many units" {
                2
            } else {
                1
            };
            for row in &rows {
                client
                    .put_stock(row["sku"].as_str().unwrap(), 5 * units)
                    .await
                    .expect(200);
            }
            let answers = at_once((0..40).map(|buyer| {
                let mut client = client.clone();
                if is_keyed {
                    client = client.with_key(&format!("{way} {buyer}").replace(' ', "-"));
                }
                let body = json!({ "lines": rows, "hold_seconds": 600 });
                async move { client.reserve(body).await }
            }))
            .await;
            assert_eq!(
                with_status(&answers, 201),
                5,
                "{way}, with a key: {is_keyed}"
            );
            assert_eq!(
                with_status(&answers, 409),
                35,
                "{way}, with a key: {is_keyed}"
            );
        }
    }
}

/// medusajs/medusa#16569: what is safe only through the front door is not safe.
async fn the_database_itself_refuses_to_oversell(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 3).await.expect(200);
    client.reserve_one("A", 2, 600).await.expect(201);
    for statement in [
        "update stock set held = 4",
        "update stock set held = held + 2",
        "update stock set held = -1",
        "update stock set on_hand = 1",
        "update stock set on_hand = -1, held = -1",
    ] {
        let refused = shop.sql(statement).await.unwrap_err().to_string();
        assert!(refused.contains("stock_"), "{statement}: {refused}");
    }
    let stock = client.get_stock("A").await.expect(200);
    assert_eq!((&stock["on_hand"], &stock["held"]), (&json!(3), &json!(2)));

    // Stock operations take the same way as the rest.
    let refused = client.put_stock("A", 1).await;
    assert_eq!(refused.refusal(), (409, "stock-below-held"));
    assert_eq!(
        client.adjust_stock("A", -2).await.refusal(),
        (409, "stock-below-held")
    );
    client.adjust_stock("A", -1).await.expect(200);
}

/// django-oscar/django-oscar#4594, saleor/saleor#18203: rows were locked in the order of the basket.
/// That no deadlock was counted is checked when the shop closes.
async fn baskets_in_any_order_never_deadlock(shop: &mut Shop) {
    const SKUS: u64 = 8;
    let mut clients = shop.clients();
    if shop.kind() == Kind::Postgres {
        clients.push(shop.start(&[]));
    }
    for sku in 0..SKUS {
        clients[0]
            .put_stock(&format!("S{sku}"), 60)
            .await
            .expect(200);
    }
    let made: Vec<usize> = at_once((0..32).map(|worker| {
        let client = clients[usize::try_from(worker).unwrap() % clients.len()].clone();
        async move {
            let mut dice = Dice::new(worker);
            let mut made = 0;
            for _ in 0..8 {
                let lines: Vec<_> = (0..5)
                    .map(|_| json!({ "sku": format!("S{}", dice.roll(SKUS)), "quantity": 1 }))
                    .collect();
                let answer = client
                    .reserve(json!({ "lines": lines, "hold_seconds": 1 }))
                    .await;
                if answer.refusal() == (409, "insufficient-stock") {
                    continue;
                }
                let id = id(answer);
                made += 1;
                // Some are cancelled, some paid, and the rest expires meanwhile.
                let path = [
                    "reservations",
                    &id,
                    ["cancel", "checkout"][usize::from(made % 2 == 0)],
                ];
                if dice.roll(3) > 0 {
                    let answer = client.ask(Method::POST, &path, json!({})).await;
                    let late = answer.refusal() == (409, "reservation-expired");
                    assert!(answer.status == 200 || late, "{answer:?}");
                }
            }
            made
        }
    }))
    .await;
    assert!(made.iter().sum::<usize>() >= 60, "{made:?}");
}
