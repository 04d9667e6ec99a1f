//! The process ends, at any moment: what was answered is there, what was not can be asked again,
//! and what was due is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::books::{all, events};
use crate::on_each_store;
use crate::shop::{Dice, PATIENCE, Shop, at_once, id_of, millis, until};
use crate::world::client::{Answer, Client};

on_each_store!(
    killed_at_any_moment_it_keeps_what_it_answered,
    asked_to_end_it_finishes_what_it_accepted,
    a_hold_that_came_due_while_nobody_served_is_released_after_the_start;
    soak
    soak_killed_a_hundred_times_it_keeps_what_it_answered,
);

/// One request of a shopper, and what came back before the process was gone.
struct Asked {
    key: String,
    path: Vec<String>,
    body: Value,
    answer: Option<Answer>,
}

async fn ask(client: &Client, key: &str, path: &[String], body: &Value) -> Option<Answer> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let client = client.with_key(key);
    client
        .try_to_ask(Method::POST, &path, body.clone())
        .await
        .ok()
}

/// A shopper who does this and that until nobody answers, each thing under a key of its own.
async fn shopper(client: Client, name: String, seed: u64, answered: Arc<Answered>) -> Vec<Asked> {
    let mut dice = Dice::new(seed);
    let mut asked: Vec<Asked> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    loop {
        let key = format!("{name}-{}", asked.len());
        let (path, body) = if open.is_empty() || dice.roll(2) == 0 {
            let seconds = [1, 600][usize::from(dice.roll(2) == 0)];
            let lines: Vec<_> = (0..=dice.roll(2))
                .map(|_| json!({ "sku": format!("S{}", dice.roll(4)), "quantity": 1 }))
                .collect();
            let body = json!({ "lines": lines, "hold_seconds": seconds, "reference": key });
            (vec!["reservations".to_owned()], body)
        } else {
            let at = usize::try_from(dice.roll(open.len() as u64)).unwrap();
            let id = open.swap_remove(at);
            let (action, body) = match dice.roll(3) {
                0 => ("cancel", json!({ "reason": key })),
                1 => ("checkout", json!({ "payment_reference": key })),
                _ => ("extend", json!({ "extend_seconds": 5 })),
            };
            (vec!["reservations".to_owned(), id, action.to_owned()], body)
        };
        let answer = ask(&client, &key, &path, &body).await;
        let gone = answer.is_none();
        if let Some(answer) = &answer {
            assert!(matches!(answer.status, 200 | 201 | 409 | 422), "{answer:?}");
            if answer.status == 201 {
                open.push(id_of(&answer.body).to_owned());
            }
        }
        asked.push(Asked {
            key,
            path,
            body,
            answer,
        });
        answered.count();
        if gone {
            return asked;
        }
    }
}

/// Counts answers, and says when there were enough.
#[derive(Default)]
struct Answered {
    so_far: AtomicUsize,
    wanted: usize,
    enough: Notify,
}

impl Answered {
    fn count(&self) {
        if self.so_far.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted {
            self.enough.notify_one();
        }
    }

    /// Returns when there were enough. If there never are, the test fails and does not hang.
    async fn enough(&self) {
        let enough = tokio::time::timeout(PATIENCE, self.enough.notified()).await;
        enough.expect("too few requests were answered");
    }
}

async fn killed_at_any_moment_it_keeps_what_it_answered(shop: &mut Shop) {
    kill_again_and_again(shop, 10).await;
}

async fn soak_killed_a_hundred_times_it_keeps_what_it_answered(shop: &mut Shop) {
    kill_again_and_again(shop, 100).await;
}

async fn kill_again_and_again(shop: &mut Shop, kills: u64) {
    let mut dice = Dice::new(kills);
    let mut client = shop.client();
    for sku in 0..4 {
        client
            .put_stock(&format!("S{sku}"), 100_000)
            .await
            .expect(200);
    }
    for round in 0..kills {
        let answered = Arc::new(Answered {
            wanted: usize::try_from(20 + dice.roll(200)).unwrap(),
            ..Answered::default()
        });
        let shoppers: Vec<_> = (0..8)
            .map(|n| {
                let name = format!("{round}-{n}");
                tokio::spawn(shopper(
                    client.clone(),
                    name,
                    round * 8 + n,
                    Arc::clone(&answered),
                ))
            })
            .collect();
        answered.enough().await;
        shop.take_server().kill9();
        let mut asked = Vec::new();
        for shopper in shoppers {
            asked.extend(shopper.await.unwrap());
        }
        client = shop.start(&[]);
        shop.audit();
        at_once(asked.into_iter().map(|asked| {
            let client = client.clone();
            async move { settle(&client, asked).await }
        }))
        .await;
    }
}

/// What was answered is answered again; what was not has happened once or not at all, and asking
/// again tells.
async fn settle(client: &Client, asked: Asked) {
    let Asked {
        key,
        path,
        body,
        answer,
    } = asked;
    if answer.is_none() && path.len() == 1 {
        let made = list_by_reference(client, &key).await;
        let told = ask(client, &key, &path, &body).await.unwrap();
        match &made[..] {
            [] => assert!(!told.is_replayed() || told.status == 409, "{told:?}"),
            [made] => {
                assert!(told.is_replayed(), "{key} was done and is done again");
                assert_eq!(told.body["id"], made["id"]);
            }
            _ => panic!("{key} was done {} times", made.len()),
        }
        assert!(list_by_reference(client, &key).await.len() <= 1);
        return;
    }
    let told = ask(client, &key, &path, &body).await.unwrap();
    match answer {
        Some(answer) => {
            assert!(
                told.is_replayed(),
                "{key} was answered {answer:?}, and now {told:?}"
            );
            assert_eq!((told.status, &told.body), (answer.status, &answer.body));
        }
        None => assert!(matches!(told.status, 200 | 409 | 422), "{told:?}"),
    }
}

async fn list_by_reference(client: &Client, key: &str) -> Vec<Value> {
    all(client, "reservations", &[("reference", key)]).await
}

async fn a_hold_that_came_due_while_nobody_served_is_released_after_the_start(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 30).await.expect(200);
    let mut last = Value::Null;
    for _ in 0..30 {
        last = client.reserve_one("A", 1, 1).await.expect(201);
    }
    shop.take_server().kill9();
    // The clock of the test is that of the machine, and the database's is not far from it.
    tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
    assert_eq!(
        shop.count("select count(*) from reservations where state = 'held'")
            .await,
        30
    );

    let client = shop.start(&[]);
    let started = millis(&client.now().await).max(millis(&last["expires_at"]));
    until(async || {
        let held = shop
            .count("select count(*) from reservations where state = 'held'")
            .await;
        (held == 0).then_some(())
    })
    .await;
    for event in events(&client).await {
        if event["kind"] == "expired" {
            let after = millis(&event["at"]) - started;
            // P7: the timer's bound, and two seconds for the start.
            assert!(after <= 3_000, "{after} ms after the start");
        }
    }
}

/// A request that was accepted and has changed something has its answer.
async fn asked_to_end_it_finishes_what_it_accepted(shop: &mut Shop) {
    for round in 0..3 {
        let client = if round == 0 {
            shop.client()
        } else {
            shop.start(&[])
        };
        client.put_stock("A", 100_000).await.expect(200);
        let answered = Arc::new(Answered {
            wanted: 60,
            ..Answered::default()
        });
        let buyers: Vec<_> = (0..12)
            .map(|n| {
                let (client, answered) = (client.clone(), Arc::clone(&answered));
                tokio::spawn(async move {
                    let mut told = Vec::new();
                    for m in 0.. {
                        let reference = format!("{round}-{n}-{m}");
                        let body = json!({
                            "lines": [{ "sku": "A", "quantity": 1 }],
                            "reference": reference,
                        });
                        let path = ["reservations"];
                        match client.try_to_ask(Method::POST, &path, body).await {
                            Ok(answer) if answer.status == 201 => told.push(reference),
                            // It says that it is ending, or is gone.
                            Ok(answer) => {
                                assert_eq!(answer.refusal(), (503, "overloaded"));
                                return told;
                            }
                            Err(_) => return told,
                        }
                        answered.count();
                    }
                    told
                })
            })
            .collect();
        answered.enough().await;
        let ended = shop.take_server().terminate().await;
        assert!(ended.success(), "{ended}");
        let mut told = Vec::new();
        for buyer in buyers {
            told.extend(buyer.await.unwrap());
        }
        let mut made = shop.texts("select reference from reservations").await;
        made.retain(|reference| reference.starts_with(&format!("{round}-")));
        made.sort_unstable();
        told.sort_unstable();
        assert_eq!(
            told, made,
            "each that was made was answered, and the other way round"
        );
        shop.audit();
    }
    shop.start(&[]);
}
