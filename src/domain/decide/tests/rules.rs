use super::*;

/// conferencetools/tickets-module#11: one ticket of each kind was returned, not the quantity booked.
#[test]
fn a_release_returns_every_unit_to_where_it_came_from() {
    let (mut before, now) = snapshot(Shape::Due);
    let row = before.reservations.get_mut(&id()).unwrap();
    for (sku, location, quantity) in [("A", "x", 7), ("B", "x", 3), ("A", "y", 1), ("A", "x", 2)] {
        row.lines.push(Line {
            sku: text(sku),
            location: text(location),
            quantity,
        });
    }
    let Decision::Done { changes, .. } = decide(RULES, &before, &command("expire"), now) else {
        panic!("it is due");
    };
    let returned: Vec<(String, i64)> = changes
        .stock
        .iter()
        .map(|(key, delta)| (key.to_string(), delta.held))
        .collect();
    let expected = [
        ("SKU-1 at default", -3),
        ("A at x", -9),
        ("B at x", -3),
        ("A at y", -1),
    ];
    assert_eq!(
        returned,
        expected.map(|(key, units)| (key.to_owned(), units))
    );
    assert_eq!(
        changes.events[0].data.value()["lines"]
            .as_array()
            .map(Vec::len),
        Some(6)
    );
}

fn reserve(quantity: i64, until: Deadline) -> Command {
    Command::Reserve(Reserve {
        entropy: [1; 10],
        lines: vec![line(quantity)],
        until,
        merchant: crate::domain::default_merchant(),
        customer_id: None,
        reference: None,
        metadata: BTreeMap::new(),
    })
}

/// On hand, held, due, wanted: who gets it, who waits for a release, who is refused.
#[test]
fn p11_a_reserve_is_refused_only_if_the_due_units_do_not_suffice_either() {
    for (on_hand, held, due, wanted, expected) in [
        (10, 0, 0, 10, "held+"),
        (10, 0, 0, 11, "insufficient:"),
        (10, 7, 0, 3, "held+"),
        (10, 7, 0, 4, "insufficient:"),
        (10, 7, 1, 3, "held+"),
        (10, 7, 1, 4, "units"),
        (10, 7, 1, 5, "insufficient:"),
        (10, 10, 10, 10, "units"),
        (0, 0, 0, 1, "insufficient:"),
    ] {
        let case = format!("{on_hand} on hand, {held} held, {due} due, {wanted} wanted");
        let (mut before, now) = snapshot(Shape::Missing);
        let stock = before.stock.get_mut(&key()).unwrap();
        (stock.on_hand, stock.held, stock.due) = (on_hand, held, due);
        let decision = decide(
            RULES,
            &before,
            &reserve(wanted, Deadline::In { seconds: 60 }),
            now,
        );
        assert_eq!(said(&decision), expected, "{case}");
        if let Decision::SetAside(Lacking::Units(units)) = &decision {
            assert_eq!(units[&key()], wanted - (on_hand - held), "{case}");
        }
        if let Decision::Done { outcome, .. } = &decision
            && let Outcome::Refused(Refusal::InsufficientStock { short }) = outcome
        {
            assert_eq!(short[0].available, on_hand - held + due, "{case}");
        }
        // Taking expired units anew follows the same rule.
        let (mut before, now) = snapshot(Shape::Expired);
        let stock = before.stock.get_mut(&key()).unwrap();
        (stock.on_hand, stock.held, stock.due) = (on_hand, held, due);
        before.reservations.get_mut(&id()).unwrap().lines = vec![line(wanted)];
        let again = said(&decide(RULES, &before, &command("reacquire pi_1"), now));
        let expected = match expected {
            "held+" => "reacquired+",
            "insufficient:" => "insufficient:?",
            other => other,
        };
        assert_eq!(again, expected, "reacquire, {case}");
    }
}

/// backbay-labs/clawdstrike PR 80: an absurd duration ended the process.
#[test]
fn absurd_deadlines_are_refused_and_never_a_panic() {
    let (before, now) = snapshot(Shape::Alive);
    let in_seconds = |seconds| Deadline::In { seconds };
    for (until, expected) in [
        (in_seconds(1), "held+"),
        (in_seconds(86_400), "held+"),
        (Deadline::At(now.saturating_add_millis(1_000)), "held+"),
        (in_seconds(0), "limit:"),
        (in_seconds(-1), "limit:"),
        (in_seconds(86_401), "limit:"),
        (in_seconds(1 << 31), "limit:"),
        (in_seconds(1 << 53), "limit:"),
        (in_seconds(i64::MAX), "limit:"),
        (in_seconds(i64::MIN), "limit:"),
        (Deadline::At(now), "limit:"),
        (Deadline::At(now.saturating_add_millis(999)), "limit:"),
        (Deadline::At(Timestamp::EPOCH), "limit:"),
        (Deadline::At(Timestamp::MAX), "limit:"),
    ] {
        let decision = decide(RULES, &before, &reserve(1, until), now);
        assert_eq!(said(&decision), expected, "{until:?}");
    }
    // Even if the operator allows everything, no deadline means "never".
    let rules = Rules {
        max_hold_seconds: i64::MAX,
        queue: None,
    };
    let forever = decide(
        rules,
        &before,
        &reserve(1, Deadline::At(Timestamp::MAX)),
        now,
    );
    assert_eq!(said(&forever), "limit:");
}

#[test]
fn p1_stock_is_never_counted_below_what_is_held() {
    let set = |on_hand| Command::SetStock {
        key: key(),
        on_hand,
    };
    let adjust = |delta| Command::AdjustStock {
        key: key(),
        delta,
        reason: None,
    };
    let (before, now) = snapshot(Shape::Alive);
    for (command, expected) in [
        (set(3), "stock"),
        (set(2), "below-held:"),
        (set(-1), "below-held:"),
        (set(1_000_000_000_000), "stock"),
        (set(1_000_000_000_001), "above-maximum:"),
        (adjust(-7), "stock"),
        (adjust(-8), "below-held:"),
        (adjust(i64::MIN), "below-held:"),
        (adjust(i64::MAX), "above-maximum:"),
    ] {
        let decision = decide(RULES, &before, &command, now);
        assert_eq!(said(&decision), expected, "{command:?}");
        if let Decision::Done { changes, .. } = decision {
            let mut after = before.clone();
            after.fold(&changes, now);
            let stock = &after.stock[&key()];
            assert!((0..=stock.on_hand).contains(&stock.held), "{command:?}");
            assert_eq!(changes.events.len(), usize::from(expected == "stock"));
        }
    }
    // A row that does not exist counts as nothing, and is made only if something is put there.
    let nothing = Snapshot::default();
    let refused = decide(RULES, &nothing, &adjust(-1), now);
    assert_eq!(said(&refused), "below-held:");
    let Decision::Done { changes, .. } = decide(RULES, &nothing, &adjust(1), now) else {
        panic!("stock is never set aside");
    };
    assert_eq!(
        changes.new_stock.into_iter().collect::<Vec<_>>(),
        vec![key()]
    );
}

#[test]
fn p6_a_job_carries_its_deadline_and_a_retry_is_the_same_job() {
    let (before, now) = snapshot(Shape::Due);
    let job = before.reservations[&id()].job();
    let Decision::Done { changes, .. } = decide(RULES, &before, &command("expire"), now) else {
        panic!("it is due");
    };
    assert_eq!(changes.ledger[0].job, job);
    let expected: JobId = format!("expire:{}:{DEADLINE}", id());
    assert_eq!(changes.ledger[0].job.id(), expected);
    let after = &changes.reservations[&id()].reservation;
    assert_eq!(after.expires_at, at(DEADLINE), "nothing moves a deadline");
}
