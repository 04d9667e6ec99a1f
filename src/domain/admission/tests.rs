use super::*;
use crate::domain::{
    Deferral, DeferralCause, Line, ReservationId, State, Text, Waits, default_merchant,
};

const NOON_MS: i64 = 1_796_126_400_000;

fn at(millis: i64) -> Timestamp {
    Timestamp::EPOCH.saturating_add_millis(NOON_MS + millis)
}

/// A hold that is due at noon, with a line at each of these locations.
fn hold(number: u8, locations: &[&str]) -> Reservation {
    let line = |location: &&str| Line {
        sku: Text::new("A").unwrap(),
        location: Text::new(location).unwrap(),
        quantity: 1,
    };
    Reservation {
        id: ReservationId::new(at(-60_000), [number; 10]),
        state: State::Held,
        lines: locations.iter().map(line).collect(),
        expires_at: at(0),
        attempt_at: at(0),
        hold_seconds: 60,
        created_at: at(-60_000),
        updated_at: at(-60_000),
        closed_at: None,
        extensions: 0,
        merchant: default_merchant(),
        customer_id: None,
        reference: None,
        payment_reference: None,
        reacquired: false,
        metadata: BTreeMap::new(),
        waits: Waits::default(),
    }
}

fn pace(dimension: AdmissionDimension, rate: f64, burst: u32) -> Pace {
    Pace {
        rule: Arc::new(PaceRule {
            dimension,
            limit: AdmissionLimit::per_second(rate, burst).unwrap(),
            overrides: BTreeMap::new(),
            kept_ms: 5_000,
        }),
        arrivals_us: BTreeMap::new(),
    }
}

/// Asks for a hold at an instant, and does what is said: the milliseconds until it may come again,
/// or 0 if it is admitted.
fn ask(pace: &mut Pace, hold: &mut Reservation, now: Timestamp) -> i64 {
    let (attempt_at, arrivals_us) = match pace.admit(hold, now) {
        Admission::Granted(arrivals_us) => (now, arrivals_us),
        Admission::Waits {
            attempt_at,
            arrivals_us,
        } => {
            assert!(attempt_at > now);
            if !arrivals_us.is_empty() {
                let cause = DeferralCause::Limited;
                hold.put_off(Deferral { attempt_at, cause }, now);
            }
            (attempt_at, arrivals_us)
        }
    };
    pace.arrivals_us.extend(arrivals_us);
    attempt_at.millis_since(now)
}

#[test]
fn a_burst_goes_at_once_and_the_rest_one_by_one_each_at_its_own_slot() {
    let mut pace = pace(AdmissionDimension::Global, 2.0, 3);
    let mut holds: Vec<_> = (0..10).map(|number| hold(number, &["x"])).collect();
    let waits: Vec<_> = holds
        .iter_mut()
        .map(|hold| ask(&mut pace, hold, at(0)))
        .collect();
    assert_eq!(waits[..3], [0, 0, 0]);
    for (place, wait_ms) in waits[3..].iter().enumerate() {
        let slot_ms = 500 * (i64::try_from(place).unwrap() + 1);
        let jitter_ms = wait_ms - slot_ms;
        assert!((0..=500).contains(&jitter_ms), "{place}: {wait_ms}");
    }
    // Whoever asks before its slot is told the same slot, and uses nothing up.
    let before = pace.clone();
    assert_eq!(ask(&mut pace, &mut holds[9], at(100)), waits[9] - 100);
    assert_eq!(pace, before);
    // At its slot each one is admitted, and nobody else is: they ask behind the last of them.
    for (hold, wait_ms) in holds[3..].iter_mut().zip(&waits[3..]) {
        assert_eq!(ask(&mut pace, hold, at(*wait_ms)), 0);
    }
    assert_eq!(pace, before);
    let late = ask(&mut pace, &mut hold(99, &["x"]), at(1_000));
    assert!((3_000..=3_500).contains(&late), "{late}");
}

#[test]
fn a_permit_that_is_not_used_in_time_is_asked_for_anew() {
    let mut pace = pace(AdmissionDimension::Global, 1.0, 1);
    let (mut one, mut other) = (hold(1, &["x"]), hold(2, &["x"]));
    assert_eq!(ask(&mut pace, &mut one, at(0)), 0);
    let wait_ms = ask(&mut pace, &mut other, at(0));
    assert_eq!(ask(&mut pace, &mut other, at(wait_ms + 5_000)), 0);
    let mut crowd: Vec<_> = (3..9).map(|number| hold(number, &["x"])).collect();
    // They have slots at 60 s and after. All come back an hour later, and still go one by one.
    for hold in &mut crowd {
        ask(&mut pace, hold, at(60_000));
    }
    let admitted = crowd
        .iter_mut()
        .map(|hold| ask(&mut pace, hold, at(3_600_000)))
        .filter(|wait_ms| *wait_ms == 0);
    assert_eq!(admitted.count(), 1);
}

#[test]
fn in_any_window_no_more_go_than_the_burst_and_the_rate() {
    for (rate, burst) in [(1.0, 1), (7.0, 3), (1_000.0, 20), (0.5, 4)] {
        let mut pace = pace(AdmissionDimension::Global, rate, burst);
        let mut waiting: Vec<(i64, Reservation)> = (0..200)
            .map(|number| (i64::from(number) * 3, hold(number, &["x"])))
            .collect();
        let mut admitted = Vec::new();
        while let Some(place) = (0..waiting.len()).min_by_key(|place| waiting[*place].0) {
            let (now, mut hold) = waiting.swap_remove(place);
            match ask(&mut pace, &mut hold, at(now)) {
                0 => admitted.push(now),
                wait_ms => waiting.push((now + wait_ms, hold)),
            }
        }
        assert_eq!(admitted.len(), 200);
        // The jitter may bring one slot next to another one.
        let most = |window_ms: i64| {
            f64::from(burst) + rate * window_ms as f64 / 1_000.0 + 1.0 + rate.min(1.0)
        };
        for (first, start) in admitted.iter().enumerate() {
            for (last, end) in admitted.iter().enumerate().skip(first) {
                let (count, window) = (last - first + 1, end - start);
                assert!(
                    count as f64 <= most(window) + 1.0,
                    "{count} in {window} ms at {rate}"
                );
            }
        }
        let length_ms = admitted.last().unwrap() - admitted[0];
        let least_ms = (200.0 - f64::from(burst)) / rate * 1_000.0;
        assert!(
            length_ms as f64 <= least_ms + 2_000.0 / rate + 1_000.0,
            "{rate}: {length_ms}"
        );
    }
}

#[test]
fn each_key_has_its_own_rate_and_several_are_had_together_or_not_at_all() {
    let mut located = pace(AdmissionDimension::Location, 1.0, 1);
    assert_eq!(ask(&mut located, &mut hold(1, &["x"]), at(0)), 0);
    assert_eq!(ask(&mut located, &mut hold(2, &["y"]), at(0)), 0);
    // Both locations are used up; a third one does not wait for them, and is kept with them.
    let both = ask(&mut located, &mut hold(3, &["x", "y", "x", "z"]), at(0));
    assert!((1_000..=2_000).contains(&both), "{both}");
    let keys: Vec<_> = located.arrivals_us.iter().collect();
    let us = |seconds: i64| (NOON_MS + seconds * 1_000) * 1_000;
    let arrivals: Vec<_> = keys
        .iter()
        .map(|(key, arrival)| (key.as_str(), **arrival))
        .collect();
    assert_eq!(
        arrivals,
        [
            ("location:x", us(2)),
            ("location:y", us(2)),
            ("location:z", us(1)),
        ]
    );
}

#[test]
fn an_override_is_for_its_own_name_only() {
    let mut pace = pace(AdmissionDimension::Merchant, 1.0, 1);
    let fast = AdmissionLimit::per_second(1.0, 100).unwrap();
    Arc::get_mut(&mut pace.rule)
        .unwrap()
        .overrides
        .insert("acme".to_owned(), fast);
    let count = |pace: &mut Pace, merchant: &str| {
        (0..50)
            .filter(|number| {
                let mut hold = hold(*number, &["x"]);
                hold.merchant = Text::new(merchant).unwrap();
                ask(pace, &mut hold, at(0)) == 0
            })
            .count()
    };
    assert_eq!(count(&mut pace, "acme"), 50);
    assert_eq!(count(&mut pace, "default"), 1);
}

#[test]
fn limits_are_in_range_and_never_exceed_their_rate() {
    for (rate, burst, interval_us) in [
        (1.0, 1, 1_000_000),
        (3.0, 1, 333_334),
        (1_000_000.0, 1, 1),
        (700_000.0, 1, 2),
        (0.000_01, 1_000_000, 100_000_000_000),
    ] {
        let limit = AdmissionLimit::per_second(rate, burst).unwrap();
        assert_eq!(limit.interval_us, interval_us, "{rate}");
        assert!(limit.rate() <= rate);
    }
    for (rate, burst) in [
        (0.0, 1),
        (-1.0, 1),
        (f64::NAN, 1),
        (f64::INFINITY, 1),
        (1_000_001.0, 1),
        (1.0, 0),
        (1.0, 1_000_001),
    ] {
        assert_eq!(
            AdmissionLimit::per_second(rate, burst),
            None,
            "{rate}/{burst}"
        );
    }
}
