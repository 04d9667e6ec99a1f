//! How fast it is; run by hand with `cargo test --release --test postgres rates -- --ignored
//! --nocapture`.

use std::time::{Duration, Instant};

use holdfast::domain::{Changes, Command, Early, Job, Timestamp, Via};
use holdfast::store::Store;

use crate::database::{Database, at, decide_all, key, line, reserve, with_database};

const BATCH: usize = 64;

/// Makes holds in batches, one unit of one of so many SKUs each.
async fn reserve_all(database: &Database, holds: usize, skus: usize) -> Duration {
    let begun = Instant::now();
    for batch in 0..holds / BATCH {
        let commands: Vec<Command> = (0..BATCH)
            .map(|place| {
                let sku = format!("sku-{}", (batch * BATCH + place) * 7919 % skus);
                reserve(&[line(&sku, 1)], 60)
            })
            .collect();
        database.run(&commands).await;
    }
    begun.elapsed()
}

/// Expires what is due in batches of a size, and says how many that were.
async fn expire_all(database: &Database, limit: usize) -> (usize, Duration) {
    let begun = Instant::now();
    let mut expired = 0;
    loop {
        let mut transaction = database.store.begin().await.unwrap();
        let claimed = transaction
            .claim_due(Timestamp::EPOCH, 0, limit)
            .await
            .unwrap();
        let commands: Vec<Command> = claimed
            .rows
            .iter()
            .map(|row| Command::Expire {
                job: Job {
                    reservation: row.id,
                    deadline: row.expires_at,
                },
                via: Via::Timer,
                early: Early::Report,
            })
            .collect();
        if commands.is_empty() {
            return (expired, begun.elapsed());
        }
        let (_, changes, now) = decide_all(transaction.as_mut(), &commands).await.unwrap();
        transaction.write_transitions(&changes, now).await.unwrap();
        transaction.write_rest(&changes, &[], now).await.unwrap();
        transaction.commit().await.unwrap();
        expired += commands.len();
    }
}

fn say(what: &str, count: usize, took: Duration) {
    println!("{what}: {:.0}/s", count as f64 / took.as_secs_f64());
}

#[tokio::test]
#[ignore = "it measures"]
async fn rates() {
    with_database(|database| async move {
        let stock: Vec<Command> = (0..10_000)
            .map(|n| Command::SetStock {
                key: key(&format!("sku-{n}")),
                on_hand: 1_000_000,
            })
            .collect();
        database.run(&stock).await;
        let holds = 19_200;
        say(
            "reserve, one SKU",
            holds,
            reserve_all(&database, holds, 1).await,
        );
        say(
            "reserve, 10,000 SKUs",
            holds,
            reserve_all(&database, holds, 10_000).await,
        );
        database.clock.set(at(60_000));
        let begun = Instant::now();
        let mut transaction = database.store.begin().await.unwrap();
        let due = transaction
            .due_units(&[key("sku-1")].into(), at(60_000))
            .await
            .unwrap();
        println!(
            "due units, {:?} of 38,400 due: {:?}",
            due.values(),
            begun.elapsed()
        );
        let begun = Instant::now();
        let due = transaction
            .due_units(&[key("sku-0")].into(), at(60_000))
            .await
            .unwrap();
        println!(
            "due units, {:?} of 38,400 due: {:?}",
            due.values(),
            begun.elapsed()
        );
        let begun = Instant::now();
        let claimed = transaction
            .claim_due_of(&key("sku-0"), 10, 500)
            .await
            .unwrap();
        println!(
            "{} claimed for 10 units: {:?}",
            claimed.rows.len(),
            begun.elapsed()
        );
        let begun = Instant::now();
        transaction
            .write_rest(&Changes::default(), &[], at(0))
            .await
            .unwrap();
        transaction.rollback().await;
        println!("nothing written: {:?}", begun.elapsed());
        let (expired, took) = expire_all(&database, 500).await;
        say("expire, 500 in a batch", expired, took);
        database.assert_sound().await;
    })
    .await;
}
