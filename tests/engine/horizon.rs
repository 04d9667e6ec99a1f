//! Holds around and beyond the longest delay that a queue takes, and queues that do not take what
//! they say.

use std::sync::Arc;

use holdfast::domain::{Command, Deadline, Message, Timestamp};

use crate::auditor::assert_sound;
use crate::bridge::{Bridge, DAY_MS, HORIZON_MS, Horizon, TooLong, grace_ms};
use crate::shop::{Home, cancel, extend, homes, word_of};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = HORIZON_MS / 1_000;
/// Within the horizon by so much is what had to wait published, in milliseconds.
const MARGIN_MS: i64 = 60_000;
/// Runs are small, so that each takes several.
const MAX_ROWS: u32 = 3;

/// Holds around 2^31 and 2^32 ms, and a long one, in seconds.
const TRAPS: [i64; 8] = [
    24 * DAY + 20 * HOUR,
    2_147_483,
    2_147_484,
    24 * DAY + 21 * HOUR,
    25 * DAY,
    4_294_967,
    4_294_968,
    90 * DAY,
];

async fn open(home: &Home, queue: &Arc<Horizon>) -> Bridge {
    let it = Bridge::open(home, queue, MAX_ROWS);
    it.shop.stock_up("A", 100).await;
    it
}

fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.saturating_add_millis(seconds * 1_000)
}

/// A queue that counts a week takes a week, and not a second more.
#[tokio::test]
async fn p7_a_hold_of_exactly_the_horizon_is_published_at_once_and_one_second_more_waits() {
    for home in homes().await {
        let queue = Horizon::honest(&home.clock);
        let mut it = open(&home, &queue).await;
        let at_horizon = it.shop.hold("A", 1, WEEK).await;
        let beyond = it.shop.hold("A", 1, WEEK + 1).await;
        it.work().await;
        let first = (at_horizon.expires_at, Message::first(at_horizon.job()));
        assert_eq!(queue.waiting(), [first], "{}", home.name);
        assert_eq!(queue.longest_ms(), HORIZON_MS);
        // With a margin, so that a clock that differs a little does no harm.
        let published = beyond
            .expires_at
            .saturating_add_millis(MARGIN_MS - HORIZON_MS);
        it.pass_until(published.saturating_add_millis(-1)).await;
        it.work().await;
        assert_eq!(queue.waiting(), [first], "{}", home.name);
        it.pass_until(published).await;
        it.work().await;
        let second = (beyond.expires_at, Message::first(beyond.job()));
        assert_eq!(queue.waiting(), [first, second]);
        it.pass_until(later(beyond.expires_at, 1)).await;
        assert_all_on_time(&home, &it, 2).await;
    }
}

/// Fails unless so many holds were released, each at its deadline, by the queue.
async fn assert_all_on_time(home: &Home, it: &Bridge, count: usize) {
    let releases = it.releases().await;
    assert_eq!(releases.len(), count, "{}: none is lost", home.name);
    for (id, (at, via)) in releases {
        let due = it.shop.find(id).await.expires_at;
        assert_eq!((at.millis_since(due), via.as_str()), (0, "push"), "{id}");
    }
    assert_eq!(it.queue.refused(), 0, "{}", home.name);
    let cases = home.store.quarantine().open(10, 0).await.unwrap();
    assert_eq!(cases, [], "{}", home.name);
    assert_sound(home.store.as_ref()).await;
}

/// A deadline that moves beyond the horizon waits again, wherever its old message is by then.
#[tokio::test]
async fn p4_an_extension_beyond_the_horizon_waits_again_and_the_old_message_is_void() {
    for home in homes().await {
        let queue = Horizon::honest(&home.clock);
        let mut it = open(&home, &queue).await;
        let in_queue = it.shop.hold("A", 1, 6 * DAY).await;
        let in_outbox = it.shop.hold("A", 1, 8 * DAY).await;
        let stays = it.shop.hold("A", 1, DAY).await;
        it.work().await;
        assert_eq!(queue.accepted(), 2, "{}", home.name);
        for (hold, seconds) in [(&in_queue, 3 * DAY), (&in_outbox, 4 * DAY), (&stays, DAY)] {
            it.shop.done(extend(hold.id, seconds)).await;
        }
        it.work().await;
        assert_eq!(queue.accepted(), 3, "the one that stays within the horizon");
        let next = home.store.outbox().next_publication().await.unwrap();
        let skipped_at = in_outbox.expires_at;
        let skipped_at = skipped_at.saturating_add_millis(MARGIN_MS - HORIZON_MS);
        assert_eq!(next.publish_after, Some(skipped_at), "its old message");
        it.pass_until(later(in_outbox.expires_at, 5 * DAY)).await;
        // Two old messages were in the queue; the third was taken out before it was published.
        assert_eq!(it.outcomes["stale"], 2, "{}: {:?}", home.name, it.outcomes);
        assert_eq!(it.outcomes["expired"], 3);
        assert_eq!(queue.accepted(), 5);
        assert_all_on_time(&home, &it, 3).await;
    }
}

/// big-neon/bn-api PR 1713: long holds said that they end by themselves, and nothing ended them.
/// Started anew in between, and three days without a relay.
#[tokio::test]
async fn p7_holds_of_any_length_end_at_their_deadlines_though_the_bridge_is_away_for_three_days() {
    for home in homes().await {
        let queue = Horizon::honest(&home.clock);
        let mut it = open(&home, &queue).await;
        let began = home.clock.now();
        let seconds = [
            WEEK - MINUTE,
            WEEK,
            WEEK + 1,
            8 * DAY,
            9 * DAY,
            30 * DAY,
            400 * DAY,
        ];
        let mut holds = it.hold_all("A", &seconds).await;
        let moved = it.shop.hold("A", 1, 6 * DAY).await;
        it.work().await;
        it.shop.done(extend(moved.id, 3 * DAY)).await;
        holds.push((moved.id, later(began, 9 * DAY)));
        // A deadline does not come nearer: who wants it sooner ends the hold and makes another.
        let sooner = Command::Extend {
            id: holds[4].0,
            until: Deadline::At(later(began, HOUR)),
        };
        assert_eq!(word_of(&it.shop.done(sooner).await), "hold-limit");
        it.shop.done(cancel(holds.remove(4).0)).await;
        holds.extend(it.hold_all("A", &[HOUR]).await);

        it.pass_until(later(began, 12 * HOUR)).await;
        it.is_up = false;
        it.pass_until(later(began, 2 * DAY)).await;
        it = it.restart(&home).await;
        it.pass_until(later(began, 3 * DAY + 12 * HOUR)).await;
        it.is_up = true;
        it.pass_until(later(began, 20 * DAY)).await;
        it = it.restart(&home).await;
        it.pass_until(later(began, 401 * DAY)).await;
        for (id, due) in &holds {
            assert_eq!(it.shop.find(*id).await.expires_at, *due);
        }
        assert_eq!(it.outcomes["expired"], 8, "{}", home.name);
        assert_eq!(it.outcomes["stale"], 1, "{:?}", it.outcomes);
        assert_eq!(it.outcomes.len(), 2, "no duplicate: {:?}", it.outcomes);
        assert_all_on_time(&home, &it, 8).await;
    }
}

/// nodejs/node PR 3512, agenda/agenda#5, mdn/kuma#6618: delays beyond 2^31 - 1 ms fired at once, and
/// those beyond a queue's limit were refused, so that nothing was ever done.
#[tokio::test]
async fn p7_no_hold_falls_into_a_trap_of_32_bits() {
    for home in homes().await {
        let queue = Horizon::honest(&home.clock);
        let mut it = open(&home, &queue).await;
        let began = home.clock.now();
        it.hold_all("A", &TRAPS).await;
        it.pass_until(later(began, 91 * DAY)).await;
        assert_eq!(it.outcomes["expired"], TRAPS.len(), "{}", home.name);
        assert_eq!(it.outcomes.len(), 1, "{:?}", it.outcomes);
        assert!(queue.longest_ms() <= HORIZON_MS, "{}", home.name);
        assert_all_on_time(&home, &it, TRAPS.len()).await;
    }
}

/// A queue that says that it counts years, and brings what is longer than a week at once, or after
/// a week: what comes early is published anew, and comes at its deadline.
#[tokio::test]
async fn p3_what_a_queue_cuts_short_is_published_anew_and_never_released_early() {
    for cut_ms in [0, 1, HORIZON_MS] {
        for home in homes().await {
            let queue = Horizon::open(&home.clock, 3_650 * DAY_MS, TooLong::CutTo(cut_ms));
            let mut it = open(&home, &queue).await;
            let began = home.clock.now();
            it.hold_all("A", &TRAPS).await;
            it.work().await;
            assert!(queue.longest_ms() > i64::from(u32::MAX), "it was asked to");
            it.pass_until(later(began, 91 * DAY)).await;
            let outcomes = &it.outcomes;
            assert_eq!(outcomes["rearmed"], TRAPS.len(), "{}: {cut_ms}", home.name);
            assert_eq!(outcomes["expired"], TRAPS.len(), "{outcomes:?}");
            assert_all_on_time(&home, &it, TRAPS.len()).await;
        }
    }
}

/// A queue that says that it counts years, and refuses what is longer than a week: holds are made
/// all the same, and the sweep ends them.
#[tokio::test]
async fn p12_what_a_queue_refuses_for_its_length_is_put_aside_and_the_sweep_ends_it() {
    for home in homes().await {
        let queue = Horizon::open(&home.clock, 3_650 * DAY_MS, TooLong::Refused);
        let mut it = open(&home, &queue).await;
        let began = home.clock.now();
        let holds = it.hold_all("A", &TRAPS).await;
        it.pass_until(later(began, 91 * DAY)).await;
        assert_eq!(
            queue.refused(),
            TRAPS.len(),
            "{}: asked once each",
            home.name
        );
        let cases = home.store.quarantine().open(100, 0).await.unwrap();
        assert_eq!(cases.len(), TRAPS.len(), "{}", home.name);
        let releases = it.releases().await;
        assert_eq!(releases.len(), TRAPS.len(), "{}: none is lost", home.name);
        for (id, due) in &holds {
            let (at, via) = &releases[id];
            let late = (at.millis_since(*due), via.as_str());
            assert_eq!(late, (grace_ms(), "sweep"), "{}: {id}", home.name);
        }
        assert_sound(home.store.as_ref()).await;
    }
}
