//! Payments that fail, and what becomes of the time that the buyer had left.

use holdfast::domain::{EventKind, State};

use crate::auditor::assert_sound;
use crate::faulty::{Fault, Step, faulty};
use crate::shop::{Home, Shop, adjust, cancel, homes, keyed, pay};

async fn count(home: &Home, kind: EventKind) -> usize {
    let events = home.store.events(0, 1_000).await.unwrap();
    events.iter().filter(|it| it.event.kind == kind).count()
}

/// woocommerce/woocommerce#55396: people try again, so that a payment that failed neither gives
/// the stock back nor buys any time.
#[tokio::test]
async fn a_refused_payment_leaves_the_remaining_time_as_it_was() {
    for home in homes().await {
        let (store, plan) = faulty(&home.store);
        let shop = Shop::open(&store);
        shop.stock_up("A", 2).await;
        let held = shop.hold("A", 1, 60).await;
        let fails = async || {
            for step in [Step::LockReservations, Step::WriteTransitions, Step::Commit] {
                plan.always(step, Fault::Unavailable);
                assert_eq!(shop.word(pay(held.id)).await, "store", "{}", home.name);
                plan.heal();
                assert_eq!(shop.find(held.id).await, held, "{}", home.name);
            }
        };
        home.clock.advance(20_000);
        fails().await;
        // A second before the end there is a second left, and not more.
        home.clock.advance(39_000);
        fails().await;
        assert_eq!(shop.release_all().await, 0);
        home.clock.advance(1_000);
        assert_eq!(shop.on_shelf("A").await.available(), 2, "{}", home.name);
        assert_eq!(shop.release_all().await, 1);
        assert_eq!(shop.find(held.id).await.closed_at, Some(held.expires_at));
        // Who comes now is refused aloud, and once, since money may have been taken.
        for _ in 0..2 {
            assert_eq!(shop.word(pay(held.id)).await, "too-late");
        }
        assert_eq!(count(&home, EventKind::PaymentRefused).await, 1);

        // The second try within the time is a sale like any other.
        let held = shop.hold("A", 1, 60).await;
        home.clock.advance(20_000);
        plan.always(Step::WriteRest, Fault::Unavailable);
        assert_eq!(shop.word(pay(held.id)).await, "store");
        plan.heal();
        home.clock.advance(20_000);
        assert_eq!(shop.word(pay(held.id)).await, "paid", "{}", home.name);
        let paid = shop.find(held.id).await;
        assert_eq!(paid.expires_at, held.expires_at);
        assert_eq!((paid.extensions, paid.state), (0, State::Paid));
        assert_sound(home.store.as_ref()).await;
    }
}

/// A debit that finally fails when the stock is sold already: the sale stands in the books, and what
/// comes back is a movement of its own, made once however often the news comes.
#[tokio::test]
async fn what_a_failed_debit_gives_back_comes_back_once() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 3).await;
        let held = shop.hold("A", 2, 60).await;
        shop.done(pay(held.id)).await;
        assert_eq!(shop.on_shelf("A").await.on_hand, 1);
        assert_eq!(shop.word(cancel(held.id)).await, "not-held");
        for _ in 0..3 {
            let key = keyed("debit pi_1 failed", 1);
            let answer = shop.engine.submit(adjust("A", 2), Some(key)).await;
            assert!(answer.is_ok(), "{}: {answer:?}", home.name);
        }
        let stock = shop.on_shelf("A").await;
        assert_eq!((stock.on_hand, stock.held), (3, 0), "{}", home.name);
        assert_eq!(count(&home, EventKind::StockAdjusted).await, 1);
        assert_eq!(shop.state(held.id).await, State::Paid);
        assert_sound(home.store.as_ref()).await;
    }
}
