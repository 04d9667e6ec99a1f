use super::*;
use crate::domain::{Line, Text};

fn now() -> Timestamp {
    "2026-12-01T12:00:00Z".parse().unwrap()
}

fn tea() -> StockKey {
    StockKey {
        location: Text::new("default").unwrap(),
        sku: Text::new("tea").unwrap(),
    }
}

fn recount(stock: Option<(i64, i64)>, claimed: i64) -> Recount {
    Recount {
        key: tea(),
        stock: stock.map(|(on_hand, held)| Stock {
            on_hand,
            held,
            ..Stock::none(tea(), now())
        }),
        claimed,
        at_least: false,
    }
}

/// A hold of three cups in two lines.
fn hold() -> Reservation {
    let line = |quantity| Line {
        sku: tea().sku,
        location: tea().location,
        quantity,
    };
    Reservation {
        id: ReservationId::new(now(), [1; 10]),
        state: State::Held,
        lines: vec![line(1), line(2)],
        expires_at: now().saturating_add_millis(60_000),
        attempt_at: now().saturating_add_millis(60_000),
        hold_seconds: 60,
        created_at: now(),
        updated_at: now(),
        closed_at: None,
        extensions: 0,
        merchant: crate::domain::default_merchant(),
        customer_id: None,
        reference: None,
        payment_reference: None,
        reacquired: false,
        metadata: BTreeMap::new(),
        waits: crate::domain::Waits::default(),
    }
}

#[test]
fn held_is_what_is_claimed() {
    assert_eq!(mend_stock(&recount(Some((5, 3)), 3), now()), Ok(None));
    for (held, claimed) in [(1, 3), (5, 3), (3, 0), (0, 5)] {
        let mended = mend_stock(&recount(Some((5, held)), claimed), now());
        let changes = mended.unwrap().unwrap();
        let delta = changes.stock[&tea()];
        assert_eq!((delta.on_hand, delta.held), (0, claimed - held));
        assert!(changes.new_stock.is_empty());
        let [event] = &changes.events[..] else {
            panic!("one event: {changes:?}");
        };
        assert_eq!(event.kind, EventKind::StockRepaired);
        let told = json!({
            "sku": "tea",
            "location": "default",
            "wrong": "held-differs",
            "before": { "on_hand": 5, "held": held },
            "after": { "on_hand": 5, "held": claimed },
        });
        assert_eq!(event.data.value(), told);
    }
}

#[test]
fn a_row_that_vanished_has_just_what_is_claimed() {
    assert_eq!(mend_stock(&recount(None, 0), now()), Ok(None));
    let changes = mend_stock(&recount(None, 4), now()).unwrap().unwrap();
    assert_eq!(changes.new_stock, [tea()].into());
    let delta = changes.stock[&tea()];
    assert_eq!((delta.on_hand, delta.held), (4, 4));
    let data = changes.events[0].data.value();
    assert_eq!(data["wrong"], "row-missing");
    assert!(data["before"].is_null());
    assert_eq!(data["after"], json!({ "on_hand": 4, "held": 4 }));
}

#[test]
fn what_is_not_there_cannot_be_held() {
    for (stock, claimed, on_hand) in [
        (Some((5, 5)), 6, 5),
        // The counter agrees, and the shelf does not.
        (Some((5, 6)), 6, 5),
        (None, MAX_ON_HAND + 1, MAX_ON_HAND),
    ] {
        assert_eq!(
            mend_stock(&recount(stock, claimed), now()),
            Err(Unmendable::MoreThanOnHand { claimed, on_hand })
        );
    }
}

#[test]
fn what_is_in_doubt_is_not_given_away() {
    let doubtful = |held, claimed| Recount {
        at_least: true,
        ..recount(Some((5, held)), claimed)
    };
    assert_eq!(
        mend_stock(&doubtful(3, 2), now()),
        Err(Unmendable::InDoubt {
            held: 3,
            claimed: 2
        })
    );
    let raised = mend_stock(&doubtful(1, 2), now()).unwrap().unwrap();
    assert_eq!(raised.stock[&tea()].held, 1);
}

#[test]
fn open_lines_are_those_of_the_hold() {
    let hold = hold();
    let right = open_lines(&hold);
    assert_eq!(right.values().copied().collect::<Vec<_>>(), [3]);
    assert_eq!(mend_lines(hold.id, Some(&hold), &right, now()), None);
    let missing = mend_lines(hold.id, Some(&hold), &BTreeMap::new(), now()).unwrap();
    assert_eq!((missing.closed.len(), &missing.opened), (0, &right));
    assert_eq!(missing.event.reservation_id, Some(hold.id));
    assert_eq!(missing.event.data.value()["wrong"], "open-lines-differ");
    // One that is wrong is taken out and put in as it shall be.
    let line = right.keys().next().unwrap().clone();
    let wrong: BTreeMap<_, _> = [(line.clone(), 2)].into();
    let mended = mend_lines(hold.id, Some(&hold), &wrong, now()).unwrap();
    assert_eq!((&mended.closed, &mended.opened), (&wrong, &right));
    let early = OpenLine {
        expires_at: now(),
        ..line
    };
    let moved: BTreeMap<_, _> = [(early, 3)].into();
    let mended = mend_lines(hold.id, Some(&hold), &moved, now()).unwrap();
    assert_eq!((&mended.closed, &mended.opened), (&moved, &right));
}

#[test]
fn what_is_over_has_no_open_lines() {
    let hold = hold();
    let left_over = open_lines(&hold);
    let over = Reservation {
        state: State::Cancelled,
        closed_at: Some(now()),
        ..hold.clone()
    };
    for row in [Some(&over), None] {
        let mended = mend_lines(hold.id, row, &left_over, now()).unwrap();
        assert_eq!((&mended.closed, mended.opened.len()), (&left_over, 0));
        assert_eq!(mend_lines(hold.id, row, &BTreeMap::new(), now()), None);
    }
}
