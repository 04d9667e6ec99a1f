//! The promises, one by one, on each store.

use std::collections::BTreeSet;

use holdfast::domain::{
    Command, Early, EventKind, Job, Message, OnExpired, Outcome, QueueRule, State, Via,
};
use holdfast::engine::Due;
use holdfast::store::{Published, Store};

use crate::auditor::{assert_sound, books};
use crate::shop::{
    InNoTime, Shop, adjust, cancel, expire, extend, homes, pay, pay_with, reacquire, reserve,
    set_stock, settings,
};

/// Does the ledger show the job as done?
async fn is_done(store: &dyn Store, job: Job) -> bool {
    let mut transaction = store.begin().await.unwrap();
    let done = transaction.jobs_done(&BTreeSet::from([job.id()])).await;
    transaction.rollback().await;
    !done.unwrap().is_empty()
}

#[tokio::test]
async fn p3_a_hold_is_never_released_early() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 1).await;
        let held = shop.hold("A", 1, 60).await;
        home.clock.advance(59_999);
        let before = books(home.store.as_ref()).await;
        assert_eq!(shop.word(expire(held.job())).await, "not_due");
        assert_eq!(shop.release_all().await, 0);
        assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "insufficient");
        assert_eq!(books(home.store.as_ref()).await, before, "{}", home.name);
        assert!(!is_done(home.store.as_ref(), held.job()).await);

        home.clock.advance(1);
        assert_eq!(shop.release_all().await, 1);
        assert!(is_done(home.store.as_ref(), held.job()).await);
        assert_sound(home.store.as_ref()).await;
    }
}

/// open-mercato/open-mercato#5418: what was released already was released again.
#[tokio::test]
async fn p2_expiries_at_the_deadline_make_one_transition() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 5).await;
        let held = shop.hold("A", 2, 60).await;
        home.clock.advance(60_000);
        let (one, timer, other, late) = tokio::join!(
            shop.word(expire(held.job())),
            shop.engine.expire_due(Due::ALL),
            shop.word(expire(held.job())),
            shop.word(reserve(&[("A", 5)], 60)),
        );
        let by_job = [&one, &other].map(|word| word == "released");
        assert!(by_job != [true, true], "{one}, {other}");
        assert!(timer.unwrap().released <= 1);
        assert_eq!(late, "held", "the units are free by right");
        assert_eq!(shop.word(expire(held.job())).await, "duplicate");
        assert_eq!(shop.word(cancel(held.id)).await, "too-late");
        let books = assert_sound(home.store.as_ref()).await;
        let releases = books
            .events
            .iter()
            .filter(|it| it.event.kind == EventKind::Expired);
        assert_eq!(releases.count(), 1, "{}", home.name);
    }
}

/// danny-avila/LibreChat PR 15879: what was renewed after it was read was cleaned up all the same.
#[tokio::test]
async fn p4_a_job_for_a_moved_deadline_changes_nothing() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 1).await;
        let held = shop.hold("A", 1, 60).await;
        let old = held.job();
        assert_eq!(shop.word(extend(held.id, 60)).await, "held");
        let new = shop.find(held.id).await.job();
        assert_eq!(
            shop.word(expire(old)).await,
            "stale",
            "before the old deadline"
        );
        home.clock.advance(60_000);
        assert_eq!(shop.word(expire(old)).await, "stale", "at the old deadline");
        assert_eq!(shop.release_all().await, 0);
        assert_eq!(shop.state(held.id).await, State::Held);
        home.clock.advance(60_000);
        assert_eq!(shop.word(expire(old)).await, "stale", "at the new deadline");
        assert_eq!(shop.word(expire(new)).await, "released");
        assert_eq!(
            shop.word(expire(old)).await,
            "duplicate",
            "after the release"
        );

        // The other way round: the job that ends the hold comes before the one that is late.
        let held = shop.hold("A", 1, 60).await;
        let old = held.job();
        shop.done(extend(held.id, 60)).await;
        let new = shop.find(held.id).await.job();
        home.clock.advance(120_000);
        assert_eq!(shop.word(expire(new)).await, "released");
        let before = books(home.store.as_ref()).await;
        assert_eq!(shop.word(expire(old)).await, "stale");
        assert_eq!(shop.word(expire(new)).await, "duplicate");
        assert_eq!(books(home.store.as_ref()).await, before, "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// big-neon/bn-api#1189, alfio-event/alf.io#531: the payment came after the reservation was gone.
#[tokio::test]
async fn p2_a_late_payment_takes_the_stock_anew_or_is_refused_aloud() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 2).await;
        let free_again = shop.hold("A", 2, 60).await;
        home.clock.advance(60_000);
        shop.release_all().await;
        assert_eq!(shop.word(pay(free_again.id)).await, "too-late");
        assert_eq!(shop.word(reacquire(free_again.id)).await, "reacquired");
        assert_eq!(
            shop.word(reacquire(free_again.id)).await,
            "reacquired",
            "a repeated webhook"
        );
        assert_eq!(shop.on_shelf("A").await.on_hand, 0);

        shop.stock_up("A", 2).await;
        let lost = shop.hold("A", 2, 60).await;
        home.clock.advance(60_000);
        let other = shop.hold("A", 1, 60).await;
        assert_eq!(shop.word(reacquire(lost.id)).await, "insufficient");
        assert_eq!(
            shop.word(reacquire(lost.id)).await,
            "insufficient",
            "the same answer"
        );
        assert_eq!(shop.word(cancel(other.id)).await, "cancelled");
        assert_eq!(shop.word(reacquire(lost.id)).await, "reacquired");
        assert_eq!(shop.word(reacquire(other.id)).await, "not-held");
        let books = assert_sound(home.store.as_ref()).await;
        let refused = books
            .events
            .iter()
            .filter(|it| it.event.kind == EventKind::PaymentRefused);
        assert_eq!(
            refused.count(),
            3,
            "one for each reservation and payment, {}",
            home.name
        );
    }
}

/// umbraco/Umbraco.Commerce.Issues#895: two payments were under way for one order.
#[tokio::test]
async fn p9_of_two_payments_one_wins_and_the_other_is_written_down_once() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 3).await;
        let held = shop.hold("A", 1, 60).await;
        let pay_by = |payment| pay_with(held.id, payment, OnExpired::Reject);
        let (one, other) = tokio::join!(shop.word(pay_by("pi_1")), shop.word(pay_by("pi_2")));
        assert_eq!([one.as_str(), other.as_str()], ["paid", "not-held"]);
        assert_eq!(shop.word(pay_by("pi_2")).await, "not-held");
        assert_eq!(shop.word(pay_by("pi_1")).await, "paid");
        let books = assert_sound(home.store.as_ref()).await;
        let kinds: Vec<_> = books.events.iter().map(|it| it.event.kind).collect();
        let expected = [
            EventKind::StockSet,
            EventKind::Created,
            EventKind::Paid,
            EventKind::PaymentRefused,
        ];
        assert_eq!(kinds, expected, "{}", home.name);
        assert_eq!(shop.on_shelf("A").await.on_hand, 2);
    }
}

#[tokio::test]
async fn p11_just_enough_due_holds_are_released_and_the_oldest_first() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 6).await;
        let mut held = Vec::new();
        // Not in the order in which they end.
        for seconds in [50, 20, 10, 40, 30] {
            held.push((seconds, shop.hold("A", 1, seconds).await.id));
        }
        home.clock.advance(40_000);
        assert_eq!(shop.word(reserve(&[("A", 6)], 600)).await, "insufficient");
        assert_eq!(shop.word(reserve(&[("A", 3)], 600)).await, "held");
        for (seconds, id) in held {
            let expected = if seconds <= 20 {
                State::Expired
            } else {
                State::Held
            };
            assert_eq!(shop.state(id).await, expected, "{seconds} s, {}", home.name);
        }
        assert_eq!(shop.word(reserve(&[("A", 3)], 600)).await, "insufficient");
        assert_eq!(shop.word(reserve(&[("A", 2)], 600)).await, "held");
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p11_many_who_need_due_units_at_once_get_them() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 30).await;
        shop.stock_up("B", 3).await;
        for _ in 0..10 {
            shop.hold("A", 3, 60).await;
        }
        let both = shop.done(reserve(&[("B", 3)], 60)).await;
        home.clock.advance(60_000);
        let waiting: Vec<_> = (0..16)
            .map(|_| {
                let shop = shop.clone();
                tokio::spawn(async move { shop.word(reserve(&[("A", 2)], 60)).await })
            })
            .collect();
        let mut held = 0;
        for answer in waiting {
            held += usize::from(answer.await.unwrap() == "held");
        }
        assert_eq!(held, 15, "{}", home.name);
        // And a late payment for a hold that is due and not released yet.
        let Outcome::Reservation { reservation, .. } = both else {
            panic!("{both:?}");
        };
        assert_eq!(shop.word(reacquire(reservation.id)).await, "reacquired");
        assert_sound(home.store.as_ref()).await;
    }
}

/// In one batch, stock is taken away and due units are needed for what is left to be enough.
#[tokio::test]
async fn p11_stock_taken_away_in_the_same_batch_costs_no_sale() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 10).await;
        shop.hold("A", 5, 60).await;
        home.clock.advance(60_000);
        let (adjusted, reserved) = tokio::join!(
            shop.done(adjust("A", -5)),
            shop.word(reserve(&[("A", 3)], 60)),
        );
        assert_eq!(reserved, "held", "{}", home.name);
        let Outcome::Stock(stock) = adjusted else {
            panic!("{adjusted:?}");
        };
        assert_eq!((stock.on_hand, stock.available()), (5, 5), "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p11_an_answer_about_stock_counts_by_deadlines() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 10).await;
        shop.hold("A", 5, 60).await;
        home.clock.advance(60_000);
        let Outcome::Stock(stock) = shop.done(set_stock("A", 7)).await else {
            panic!("it can be set");
        };
        assert_eq!(stock, shop.on_shelf("A").await, "{}", home.name);
        assert_eq!(stock.available(), 7);
    }
}

/// tigerbeetle/tigerbeetle#2118: on an idle system the units still read as held after the end.
#[tokio::test]
async fn p11_reads_and_commands_agree_at_every_moment() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 1).await;
        let held = shop.hold("A", 1, 60).await;
        for (millis, state, available) in [
            (59_999, State::Held, 0),
            (1, State::Expired, 1),
            (100, State::Expired, 1),
        ] {
            home.clock.advance(millis);
            let (row, now) = home.store.reservation(held.id).await.unwrap();
            assert_eq!(row.unwrap().state_at(now), state);
            assert_eq!(shop.on_shelf("A").await.available(), available);
        }
        assert_eq!(
            shop.state(held.id).await,
            State::Held,
            "nobody has released it"
        );
        assert_eq!(
            shop.word(reserve(&[("A", 1)], 60)).await,
            "held",
            "{}",
            home.name
        );
    }
}

/// tigerbeetle/tigerbeetle PR 3658: more ended at once on one account than a batch takes.
#[tokio::test]
async fn p7_more_holds_of_one_sku_than_a_batch_end_at_the_same_instant() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        let waiting: Vec<_> = {
            shop.stock_up("A", 2_000).await;
            (0..260)
                .map(|_| {
                    let shop = shop.clone();
                    tokio::spawn(async move { shop.hold("A", 1, 60).await })
                })
                .collect()
        };
        for answer in waiting {
            answer.await.unwrap();
        }
        let wide: Vec<(String, i64)> = (0..1_000).map(|at| (format!("W-{at:03}"), 1)).collect();
        for part in wide.chunks(250) {
            let set = part.iter().map(|(name, _)| shop.stock_up(name, 1));
            futures(set).await;
        }
        let wide: Vec<(&str, i64)> = wide
            .iter()
            .map(|(name, units)| (name.as_str(), *units))
            .collect();
        assert_eq!(shop.word(reserve(&wide, 60)).await, "held");
        home.clock.advance(60_000);
        assert_eq!(shop.release_all().await, 261, "{}", home.name);
        assert_eq!(shop.on_shelf("A").await.held, 0);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Runs them all, each begun before the first is waited for.
async fn futures(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// hoangdaochuz/booking#27: the loser overwrote the winner.
#[tokio::test]
async fn p1_the_last_unit_is_sold_once() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 50).await;
        let waiting: Vec<_> = (0..300)
            .map(|_| {
                let shop = shop.clone();
                tokio::spawn(async move { shop.word(reserve(&[("A", 1)], 60)).await })
            })
            .collect();
        let mut held = 0;
        for answer in waiting {
            let word = answer.await.unwrap();
            assert!(word == "held" || word == "insufficient", "{word}");
            held += usize::from(word == "held");
        }
        assert_eq!(held, 50, "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// A queue that brings a job early is told so, and brings another copy of it at the deadline.
#[tokio::test]
async fn p3_a_job_that_a_queue_brings_early_comes_again() {
    for home in homes().await {
        let mut settings = settings(1);
        settings.rules.queue = Some(QueueRule {
            max_delay_ms: 900_000,
        });
        let shop = Shop::open_with(&home.store, InNoTime::start(), settings);
        shop.stock_up("A", 1).await;
        let held = shop.hold("A", 1, 60).await;
        let job = held.job();
        let outbox = home.store.outbox();
        let claimed = outbox.claim(10, 60_000).await.unwrap();
        let first = claimed.messages[0].message;
        assert_eq!((claimed.messages.len(), first), (1, Message::first(job)));
        let published = Published {
            message: first,
            attempt: 1,
            receipt: None,
        };
        outbox.mark_published(&[published], "q").await.unwrap();
        let (via, early) = (Via::Push, Early::Rearm);
        let delivery = Command::Expire { job, via, early };
        assert_eq!(
            shop.word(delivery.clone()).await,
            "not_due",
            "{}",
            home.name
        );
        home.clock.advance(60_000);
        let claimed = outbox.claim(10, 60_000).await.unwrap();
        assert_eq!(claimed.messages[0].message, Message { job, copy: 2 });
        assert_eq!(shop.word(delivery.clone()).await, "released");
        assert_eq!(shop.word(delivery).await, "duplicate");
        assert_sound(home.store.as_ref()).await;
    }
}
