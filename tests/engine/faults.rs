//! A store that fails: what was not done is not said to be done, and what was done stays whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::{Command, Outcome, State};
use holdfast::engine::{Due, EngineError, Reply, Runtime};
use holdfast::store::Fate;
use holdfast::worker::{Expirer, Next, Worker};

use crate::auditor::{assert_sound, books};
use crate::faulty::{Fault, Plan, Step, faulty};
use crate::shop::{
    Home, InNoTime, Shop, adjust, cancel, expire, extend, homes, keyed, memory, noon, pay,
    reacquire, reserve, set_stock, settings, word,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A shop on a store that fails by plan.
pub fn faulty_shop(home: &Home) -> (Shop, Arc<Plan>) {
    let (store, plan) = faulty(&home.store);
    (Shop::open(&store), plan)
}

/// What is done to the shop once a fault is in place: each is able to succeed exactly once.
const DEEDS: [&str; 8] = [
    "reserve",
    "extend",
    "pay",
    "cancel",
    "expire",
    "demand",
    "reacquire",
    "adjust",
];

/// A command that succeeds as things are set up here.
async fn set_up(deed: &str, name: &str, home: &Home, shop: &Shop) -> Command {
    shop.stock_up(name, 4).await;
    let held = shop.hold(name, 3, 60).await;
    match deed {
        "reserve" => reserve(&[(name, 1)], 60),
        "extend" => extend(held.id, 60),
        "pay" => pay(held.id),
        "cancel" => cancel(held.id),
        "adjust" => adjust(name, -1),
        "expire" => {
            home.clock.advance(60_000);
            expire(held.job())
        }
        "demand" => {
            home.clock.advance(60_000);
            reserve(&[(name, 4)], 60)
        }
        "reacquire" => {
            home.clock.advance(60_000);
            reacquire(held.id)
        }
        other => panic!("{other}"),
    }
}

/// Which steps a deed takes when nothing fails.
async fn steps_of_deeds() -> BTreeSet<(&'static str, Step)> {
    let home = memory();
    let mut steps = BTreeSet::new();
    for deed in DEEDS {
        let (shop, plan) = faulty_shop(&home);
        let command = set_up(deed, deed, &home, &shop).await;
        plan.steps();
        let done = shop.engine.submit(command, Some(keyed(deed, 1))).await;
        assert!(done.is_ok(), "{deed}: {done:?}");
        steps.extend(plan.steps().into_iter().map(|step| (deed, step)));
    }
    steps
}

/// medusajs/medusa PR 15397: the way back did nothing, and the counter drifted.
#[tokio::test]
async fn p5_a_fault_at_any_step_leaves_all_or_nothing() {
    let mut hit = BTreeSet::new();
    let reachable = steps_of_deeds().await;
    for home in homes().await {
        for step in Step::ALL {
            for deed in DEEDS {
                if !reachable.contains(&(deed, step)) {
                    continue;
                }
                let case = format!("{deed}, failing at {step:?}, on {}", home.name);
                let (shop, plan) = faulty_shop(&home);
                let command = set_up(deed, &case, &home, &shop).await;
                plan.steps();
                let before = books(home.store.as_ref()).await;

                plan.always(step, Fault::Unavailable);
                let failed = shop
                    .engine
                    .submit(command.clone(), Some(keyed(&case, 1)))
                    .await;
                plan.heal();
                assert!(failed.is_err(), "{case}: {failed:?}");
                let after = assert_sound(home.store.as_ref()).await;
                if step != Step::Commit && deed != "demand" && deed != "reacquire" {
                    assert_eq!(before, after, "{case}");
                }
                hit.insert(step);

                // The same again with a fault that passes, and then once more.
                plan.once(step, Fault::Unavailable);
                let done = shop
                    .engine
                    .submit(command.clone(), Some(keyed(&case, 1)))
                    .await;
                plan.heal();
                assert!(matches!(done, Ok(Reply::Decided(_))), "{case}: {done:?}");
                let once = assert_sound(home.store.as_ref()).await;
                let again = shop.engine.submit(command, Some(keyed(&case, 1))).await;
                assert!(matches!(again, Ok(Reply::Replayed(_))), "{case}: {again:?}");
                assert_eq!(assert_sound(home.store.as_ref()).await, once, "{case}");
            }
        }
    }
    for step in Step::ALL {
        // Claims of the expirer, their pace and their deferral are hit elsewhere.
        let is_hit = hit.contains(&step);
        assert!(
            is_hit
                || matches!(
                    step,
                    Step::ClaimDue | Step::LockAdmission | Step::Defer | Step::Park
                ),
            "{step:?}"
        );
    }
}

#[tokio::test]
async fn p5_a_release_that_fails_is_said_to_fail_and_done_later() {
    for home in homes().await {
        for step in [
            Step::Begin,
            Step::ClaimDue,
            Step::Now,
            Step::WriteTransitions,
            Step::WriteRest,
            Step::Commit,
        ] {
            let (shop, plan) = faulty_shop(&home);
            shop.stock_up("A", 3).await;
            shop.hold("A", 3, 60).await;
            home.clock.advance(60_000);
            plan.always(step, Fault::Unavailable);
            let failed = shop.engine.expire_due(Due::ALL).await;
            assert!(
                matches!(failed, Err(EngineError::Store(_))),
                "{step:?}: {failed:?}"
            );
            assert_eq!(shop.on_shelf("A").await.held, 3);
            plan.heal();
            assert_eq!(shop.release_all().await, 1, "{step:?} on {}", home.name);
            assert_sound(home.store.as_ref()).await;
        }
    }
}

#[tokio::test]
async fn p6_a_release_that_is_tried_again_is_the_same_job() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("A", 1).await;
    let held = shop.hold("A", 1, 60).await;
    home.clock.advance(60_000);
    plan.always(Step::WriteRest, Fault::Constraint);
    let failed = shop.word(expire(held.job())).await;
    assert_eq!(failed, "store");
    let put_off = shop.find(held.id).await;
    assert_eq!(put_off.job(), held.job(), "the deadline stays");
    let wait_ms = put_off.attempt_at.millis_since(held.expires_at);
    assert!((0..=250).contains(&wait_ms), "{wait_ms}");
    assert_eq!(put_off.waits.attempts, 1);
    assert_eq!(put_off.waits.retry_ms, wait_ms);
    plan.heal();
    home.clock.advance(60_000);
    assert_eq!(shop.release_all().await, 1);
    assert_eq!(
        shop.word(expire(held.job())).await,
        "duplicate",
        "done under its first name"
    );
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn contention_is_tried_again_and_nobody_notices() {
    for home in homes().await {
        for step in Step::ALL {
            let (shop, plan) = faulty_shop(&home);
            let name = format!("{step:?}");
            let command = set_up("demand", &name, &home, &shop).await;
            plan.once(step, Fault::Contended);
            assert_eq!(
                shop.word(command).await,
                "held",
                "{step:?} on {}",
                home.name
            );
            plan.heal();
        }
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn contention_that_does_not_end_is_answered_when_patience_does() {
    let home = memory();
    let (store, plan) = faulty(&home.store);
    let runtime = InNoTime::start();
    let shop = Shop::open_with(&store, runtime.clone(), settings(1));
    shop.stock_up("A", 1).await;
    plan.always(Step::WriteRest, Fault::Contended);
    let began = runtime.elapsed();
    assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "overloaded");
    let took = runtime.elapsed().saturating_sub(began);
    assert!(
        took > settings(1).patience && took < settings(1).patience * 2,
        "{took:?}"
    );
    plan.heal();
    assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "held");
    assert_sound(home.store.as_ref()).await;
}

/// A row is not stuck because it was waited for in vain once.
#[tokio::test]
async fn a_row_that_only_those_get_who_wait_is_waited_for_again() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("HOT", 10).await;
    shop.stock_up("COLD", 10).await;
    plan.once(Step::LockStock, Fault::Contended);
    plan.busy("HOT");
    let (hot, cold) = tokio::join!(
        shop.word(reserve(&[("HOT", 1)], 60)),
        shop.word(reserve(&[("COLD", 1)], 60)),
    );
    assert_eq!([hot.as_str(), cold.as_str()], ["held", "held"]);
    // So are holds that are to be released.
    home.clock.advance(60_000);
    plan.once(Step::WriteRest, Fault::Contended);
    assert_eq!(shop.release_all().await, 1, "COLD is");
    let mut expirer = Expirer::timer(shop.engine.clone(), shop.runtime.clone(), HOUR);
    while shop.on_shelf("HOT").await.held > 0 {
        if let Next::After(rest) = expirer.run_once().await.unwrap() {
            home.clock.advance(i64::try_from(rest.as_millis()).unwrap());
            shop.runtime.sleep(rest).await;
        }
        let late = home.clock.now().millis_since(noon()) - 60_000;
        assert!(late < 1_000, "{late} ms late");
    }
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn a_row_that_refuses_fails_alone() {
    for home in homes().await {
        let (shop, plan) = faulty_shop(&home);
        let names = ["A", "B", "BAD", "C", "D", "E", "F"];
        for name in names {
            shop.stock_up(name, 1).await;
        }
        plan.poison("BAD");
        let waiting: Vec<_> = names
            .iter()
            .map(|name| {
                let (shop, command) = (shop.clone(), reserve(&[(name, 1)], 60));
                tokio::spawn(async move { shop.word(command).await })
            })
            .collect();
        for (name, answer) in names.iter().zip(waiting) {
            let expected = if *name == "BAD" { "store" } else { "held" };
            assert_eq!(answer.await.unwrap(), expected, "{name} on {}", home.name);
        }
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p7_a_hold_that_cannot_be_released_does_not_stop_its_neighbours() {
    for home in homes().await {
        let (shop, plan) = faulty_shop(&home);
        let mut held = Vec::new();
        for name in ["A", "B", "BAD", "C"] {
            shop.stock_up(name, 1).await;
            held.push(shop.hold(name, 1, 60).await);
        }
        home.clock.advance(60_000);
        plan.poison("BAD");
        assert_eq!(shop.release_all().await, 3, "{}", home.name);
        let stuck = shop.find(held[2].id).await;
        assert_eq!(stuck.state, State::Held);
        let rest_ms = stuck.attempt_at.millis_since(home.clock.now());
        assert!((0..=250).contains(&rest_ms), "{rest_ms}");
        assert_eq!(shop.metrics.stuck_holds.get(), 1);
        plan.poison("");
        home.clock.advance(60_000);
        assert_eq!(shop.release_all().await, 1);
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p10_a_lost_commit_is_done_once_or_said_to_be_unknown() {
    for home in homes().await {
        for (fault, fates, expected, held) in [
            (Fault::LostCommitted, vec![Fate::Committed], "held", 1),
            (
                Fault::LostCommitted,
                vec![Fate::Unknown, Fate::Unknown, Fate::Committed],
                "held",
                1,
            ),
            (Fault::LostAborted, vec![Fate::Aborted], "held", 1),
            (Fault::LostAborted, vec![], "fate-unknown", 0),
            (Fault::LostCommitted, vec![], "fate-unknown", 1),
        ] {
            let case = format!("{fault:?}, {fates:?}, {}", home.name);
            let (shop, plan) = faulty_shop(&home);
            shop.stock_up(&case, 1).await;
            plan.once(Step::Commit, fault);
            for fate in fates {
                plan.fate(fate);
            }
            let command = reserve(&[(&case, 1)], 60);
            let first = shop
                .engine
                .submit(command.clone(), Some(keyed(&case, 1)))
                .await;
            let first = first.map(|reply| match reply {
                Reply::Decided(outcome) => outcome,
                Reply::Replayed(answer) => panic!("{case}: {answer:?}"),
            });
            assert_eq!(word(&first), expected, "{case}");
            assert_eq!(shop.on_shelf(&case).await.held, held, "{case}");
            // Whoever asks again under the key has it done once.
            let again = shop.engine.submit(command, Some(keyed(&case, 1))).await;
            assert_eq!(matches!(again, Ok(Reply::Replayed(_))), held == 1, "{case}");
            assert_eq!(shop.on_shelf(&case).await.held, 1, "{case}");
            assert_sound(home.store.as_ref()).await;
        }
    }
}

#[tokio::test]
async fn a_commit_that_is_lost_every_time_is_answered_at_last() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("A", 1).await;
    plan.always(Step::Commit, Fault::LostAborted);
    for _ in 0..1_000 {
        plan.fate(Fate::Aborted);
    }
    assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "store");
    plan.heal();
    assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "held");
}

#[tokio::test]
async fn p10_a_key_gives_the_same_answer_and_no_second_effect() {
    for home in homes().await {
        let shop = Shop::open(&home.store);
        shop.stock_up("A", 10).await;
        let ask = |units, key, fingerprint| {
            let (shop, command) = (shop.clone(), reserve(&[("A", units)], 60));
            async move {
                match shop
                    .engine
                    .submit(command, Some(keyed(key, fingerprint)))
                    .await
                {
                    Ok(Reply::Decided(outcome)) => word(&Ok(outcome)),
                    Ok(Reply::Replayed(answer)) => format!("again {}", answer.body),
                    Err(error) => word(&Err::<Outcome, _>(error)),
                }
            }
        };
        // In one batch, and in later ones; refusals as well.
        let (one, two, other) = tokio::join!(ask(1, "k", 1), ask(1, "k", 1), ask(2, "k", 2));
        assert_eq!(
            [one.as_str(), &two, &other],
            ["held", "again held", "key-reused"]
        );
        assert_eq!(ask(1, "k", 1).await, "again held");
        assert_eq!(ask(10, "many", 3).await, "insufficient");
        shop.done(adjust("A", 10)).await;
        assert_eq!(
            ask(10, "many", 3).await,
            "again insufficient",
            "{}",
            home.name
        );
        assert_eq!(shop.on_shelf("A").await.held, 1);
        // A day later the key is like new.
        home.clock.advance(24 * 3_600 * 1_000);
        assert_eq!(ask(10, "many", 3).await, "held");
        assert_eq!(ask(10, "many", 3).await, "again held");
        shop.done(set_stock("B", 1)).await;
        assert_sound(home.store.as_ref()).await;
    }
}
