//! Recorded bookings, held for up to two years, behind a queue that counts seven days.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};

use flate2::read::GzDecoder;
use holdfast::domain::{ReservationId, Timestamp};

use crate::auditor::assert_sound;
use crate::bridge::{Bridge, DAY_MS, HORIZON_MS, Horizon, grace_ms};
use crate::shop::{Home, postgres, sqlite};
use crate::world::trace::trace;

/// How long a booking is held that is for the same day, in seconds.
const SAME_DAY_SECONDS: i64 = 6 * 3_600;
/// From when on nobody drives the relay, and for how long.
const GAP_BEGINS: &str = "2016-02-24T00:00:00Z";
const GAP_MS: i64 = 3 * DAY_MS;
/// When everything is started anew.
const RESTART: &str = "2016-05-25T18:00:00Z";

/// How long each booking is held, in seconds, by the instant at which it is made.
type Bookings = BTreeMap<Timestamp, Vec<i64>>;

/// Every so many rows of the trace, if it is here.
fn bookings(every: usize) -> Option<Bookings> {
    let file = File::open(trace("long_holds.csv.gz")?).unwrap();
    let mut bookings = Bookings::new();
    let lines = BufReader::new(GzDecoder::new(file)).lines().skip(1);
    for line in lines.step_by(every) {
        let line = line.unwrap();
        let fields: Vec<&str> = line.split(',').collect();
        let at = format!("{}T00:00:00Z", fields[2]).parse().unwrap();
        let days: i64 = fields[8].parse().unwrap();
        let seconds = (days * DAY_MS / 1_000).max(SAME_DAY_SECONDS);
        bookings.entry(at).or_default().push(seconds);
    }
    Some(bookings)
}

/// What is held, when it was made and when it is due.
type Holds = BTreeMap<ReservationId, (Timestamp, Timestamp)>;

/// Makes every booking at its time, lets all of them come to their ends, and checks each end.
async fn bookings_end_at_their_deadlines(home: &Home, every: usize, max_rows: u32) {
    let Some(bookings) = bookings(every) else {
        return;
    };
    let gap_begins: Timestamp = GAP_BEGINS.parse().unwrap();
    let gap_ends = gap_begins.saturating_add_millis(GAP_MS);
    let restart: Timestamp = RESTART.parse().unwrap();
    home.clock.set(*bookings.keys().next().unwrap());
    let queue = Horizon::honest(&home.clock);
    let mut it = Bridge::open(home, &queue, max_rows);
    it.shop.stock_up("ROOM", 1_000_000).await;
    let mut holds = Holds::new();
    let mut steps: BTreeMap<Timestamp, Vec<i64>> = bookings;
    for at in [gap_begins, gap_ends, restart] {
        steps.entry(at).or_default();
    }
    for (at, seconds) in steps {
        it.pass_until(at).await;
        if at == restart {
            it = it.restart(home).await;
        }
        it.is_up = !(gap_begins..gap_ends).contains(&at);
        let made = it.hold_all("ROOM", &seconds).await;
        holds.extend(made.into_iter().map(|(id, due)| (id, (at, due))));
    }
    let last = holds.values().map(|(_, due)| *due).max().unwrap();
    it.pass_until(last).await;
    it.pass_until(last.saturating_add_millis(grace_ms())).await;

    let is_missed = |(made, due): &(Timestamp, Timestamp)| *made >= gap_begins && *due < gap_ends;
    let missed = holds.values().filter(|hold| is_missed(hold)).count();
    let releases = it.releases().await;
    assert_eq!(releases.len(), holds.len(), "{}: none is lost", home.name);
    let mut swept = 0;
    for (id, hold) in &holds {
        let (at, via) = &releases[id];
        let late_ms = at.millis_since(hold.1);
        if is_missed(hold) {
            // Made and due while nobody drove the relay: the sweep had it, after its grace.
            assert!((0..=grace_ms()).contains(&late_ms), "{id}: {late_ms}");
            swept += usize::from(via == "sweep");
        } else {
            assert_eq!((late_ms, via.as_str()), (0, "push"), "{id}: {hold:?}");
        }
    }
    assert!(swept > 0, "the gap was felt");
    assert_eq!(queue.refused(), 0);
    assert_eq!(queue.longest_ms(), HORIZON_MS, "to the millisecond");
    let most = usize::try_from(max_rows).unwrap();
    assert_eq!(it.most_rows, most, "what was missed comes in bounded runs");
    let longest = holds.values().map(|(made, due)| due.millis_since(*made));
    let longest_days = longest.max().unwrap() / DAY_MS;
    println!(
        "{}: {} held, up to {longest_days} days; {} released, of them {missed} made and due in \
         the gap, {swept} by the sweep; {} published in {} runs of at most {} rows; {:?}",
        home.name,
        holds.len(),
        releases.len(),
        queue.accepted(),
        it.runs,
        it.most_rows,
        it.outcomes,
    );
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p7_recorded_bookings_end_at_their_deadlines_on_sqlite() {
    bookings_end_at_their_deadlines(&sqlite().await, 40, 4).await;
}

#[tokio::test]
async fn p7_recorded_bookings_end_at_their_deadlines_on_postgres() {
    bookings_end_at_their_deadlines(&postgres().await, 40, 4).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make soak` runs it"]
async fn soak_p7_all_recorded_bookings_end_at_their_deadlines_on_sqlite() {
    bookings_end_at_their_deadlines(&sqlite().await, 1, 100).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make soak` runs it"]
async fn soak_p7_all_recorded_bookings_end_at_their_deadlines_on_postgres() {
    bookings_end_at_their_deadlines(&postgres().await, 1, 100).await;
}
