//! Proof that each statement of the hot path finds its rows by an index.
//!
//! The plans looked at are the generic ones: what they are for whatever values.

use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::retention::statements as retention;
use super::{
    Postgres, admission, audit, deferral, lines, lock, outbox, quarantine, read, suspects,
    transitions, write,
};
use crate::domain::QueueRule;
use crate::store::{
    CaseFilter, CaseState, Clock, Outbox, Parked, Postponed, Published, Quarantine,
};

const STATEMENTS: [(&str, &str); 61] = [
    ("lock::LOCK_KEYS", lock::LOCK_KEYS),
    ("lock::READ_KEYS", lock::READ_KEYS),
    ("lock::LOCK_RESERVATIONS", lock::LOCK_RESERVATIONS),
    ("lock::LOCK_FREE_RESERVATIONS", lock::LOCK_FREE_RESERVATIONS),
    ("lock::WHICH_RESERVATIONS", lock::WHICH_RESERVATIONS),
    ("lock::CLAIM_DUE", lock::CLAIM_DUE),
    ("lock::CLAIM_DUE_OF", lock::CLAIM_DUE_OF),
    ("lock::LOCK_STOCK", lock::LOCK_STOCK),
    ("lock::LOCK_FREE_STOCK", lock::LOCK_FREE_STOCK),
    ("lock::WHICH_STOCK", lock::WHICH_STOCK),
    ("lock::DUE_UNITS", lock::DUE_UNITS),
    ("lock::JOBS_DONE", lock::JOBS_DONE),
    ("lock::REFUSED_PAYMENTS", lock::REFUSED_PAYMENTS),
    ("lines::CLOSE_LINES", lines::CLOSE_LINES),
    ("lines::MOVE_LINES", lines::MOVE_LINES),
    ("lines::CLAIMED_UNITS", lines::CLAIMED_UNITS),
    ("lines::FIND_LINES", lines::FIND_LINES),
    ("transitions::RELEASE", transitions::RELEASE),
    (
        "transitions::MOVE_RESERVATIONS",
        transitions::MOVE_RESERVATIONS,
    ),
    ("write::UNMAKE_STOCK", write::UNMAKE_STOCK),
    ("write::ADD_TO_STOCK", write::ADD_TO_STOCK),
    ("write::APPEND_EVENTS", write::APPEND_EVENTS),
    ("admission::LOCK", admission::LOCK),
    ("admission::MAKE", admission::MAKE),
    ("admission::WRITE", admission::WRITE),
    ("deferral::DEFER", deferral::DEFER),
    ("deferral::PARK", deferral::PARK),
    ("deferral::CLOSE_PARKED_LINES", deferral::CLOSE_PARKED_LINES),
    ("deferral::UNPARK", deferral::UNPARK),
    (
        "deferral::OPEN_UNPARKED_LINES",
        deferral::OPEN_UNPARKED_LINES,
    ),
    ("outbox::INSERT_NEXT", outbox::INSERT_NEXT),
    ("outbox::CLAIM", outbox::CLAIM),
    ("outbox::MARK_PUBLISHED", outbox::MARK_PUBLISHED),
    ("outbox::RETRY_LATER", outbox::RETRY_LATER),
    ("outbox::PARK", outbox::PARK),
    ("outbox::HELD", outbox::HELD),
    ("outbox::NEXT_PUBLICATION", outbox::NEXT_PUBLICATION),
    ("quarantine::FIND", quarantine::FIND),
    ("quarantine::ACTIONS", quarantine::ACTIONS),
    ("quarantine::LOCK_CASE", quarantine::LOCK_CASE),
    ("quarantine::RESOLVE", quarantine::RESOLVE),
    ("quarantine::TAKE_PARKED", quarantine::TAKE_PARKED),
    ("read::NEXT_ATTEMPT", read::NEXT_ATTEMPT),
    ("read::STOCK", read::STOCK),
    ("read::RESERVATION", read::RESERVATION),
    ("read::EVENTS", read::EVENTS),
    ("retention::TAKE_TURN", retention::TAKE_TURN),
    ("retention::MOVE_HORIZON", retention::MOVE_HORIZON),
    ("retention::DELETE_ANSWERS", retention::DELETE_ANSWERS),
    ("retention::MESSAGES", retention::MESSAGES),
    ("retention::DELETE_MESSAGES", retention::DELETE_MESSAGES),
    ("retention::LEDGER", retention::LEDGER),
    ("retention::DELETE_LEDGER", retention::DELETE_LEDGER),
    ("retention::RESERVATIONS", retention::RESERVATIONS),
    (
        "retention::LOCK_OLD_RESERVATIONS",
        retention::LOCK_OLD_RESERVATIONS,
    ),
    ("retention::WITH_JOBS", retention::WITH_JOBS),
    ("retention::IN_QUARANTINE", retention::IN_QUARANTINE),
    (
        "retention::DELETE_RESERVATIONS",
        retention::DELETE_RESERVATIONS,
    ),
    ("retention::EVENTS", retention::EVENTS),
    ("retention::DELETE_EVENTS", retention::DELETE_EVENTS),
    ("retention::HORIZONS", retention::HORIZONS),
];

/// 100,000 holds over 1,000 SKUs, all of them due.
const FILL: &str = "
    INSERT INTO stock
    SELECT 'default', 'sku-' || n, 1000000, 1000, now()
    FROM generate_series(0, 999) AS n;
    INSERT INTO reservations
    SELECT
        gen_random_uuid(),
        'held',
        jsonb_build_array(
            jsonb_build_object('location', 'default', 'sku', 'sku-' || n % 1000, 'quantity', 10)
        ),
        now() - n * interval '1 s',
        now() - n * interval '1 s',
        60,
        now() - interval '2 days',
        now(),
        NULL,
        0,
        NULL,
        NULL,
        NULL,
        false,
        '{}'
    FROM generate_series(1, 100000) AS n;
    INSERT INTO open_lines
    SELECT 'default', lines -> 0 ->> 'sku', expires_at, id, 10
    FROM reservations;
    INSERT INTO outbox
    SELECT id, expires_at, 1, now() + interval '1 day', now() + interval '1 day', 0
    FROM reservations;
    INSERT INTO quarantine
        (source, key, payload, reason, attempts, first_seen, last_seen, resolved_at, resolution)
    SELECT 'relay', 'key-' || n, '', 'refused', 1, now(), now(), now(), 'settled'
    FROM generate_series(1, 100000) AS n;
    INSERT INTO ledger
    SELECT 'expire:' || n, gen_random_uuid(), 'expired', 'timer', now()
    FROM generate_series(1, 100000) AS n;
    INSERT INTO idempotency
    SELECT 'shop', 'key-' || n, decode(repeat('00', 32), 'hex'), 201, NULL, '{}', now()
    FROM generate_series(1, 100000) AS n;
    INSERT INTO events
    SELECT n, gen_random_uuid(), 'payment-refused', now(), '{\"payment_reference\": \"pi\"}'
    FROM generate_series(1, 100000) AS n";

/// The generic plan of a statement, for values that do not matter.
async fn plan(session: &mut PgConnection, name: &str, sql: &str) -> String {
    let parameters = (1..100)
        .take_while(|n| sql.contains(&format!("${n}")))
        .count();
    let values = vec!["NULL"; parameters].join(", ");
    let explain = format!(
        "PREPARE looked_at AS {sql};
         EXPLAIN EXECUTE looked_at {};
         DEALLOCATE looked_at",
        if parameters == 0 {
            String::new()
        } else {
            format!("({values})")
        },
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(session)
        .await;
    let rows = rows.unwrap_or_else(|error| panic!("{name}: {error}"));
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index() {
    let server = std::env::var("HOLDFAST_TEST_POSTGRES_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/postgres".to_owned());
    let name = format!("holdfast_test_plans_{}", std::process::id());
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let mut admin = PgConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
    let looked = tokio::spawn(async move {
        let store = Postgres::connect(&url, Clock::Database).await.unwrap();
        store.migrate().await.unwrap();
        let mut session = store.pool.acquire().await.unwrap();
        sqlx::raw_sql("ANALYZE")
            .execute(&mut *session)
            .await
            .unwrap();
        let filler = PgPoolOptions::new().connect(&url).await.unwrap();
        // With empty tables, with statistics that know of no row, and with true ones.
        look(&mut session).await;
        sqlx::raw_sql(FILL).execute(&filler).await.unwrap();
        look(&mut session).await;
        sqlx::raw_sql("ANALYZE").execute(&filler).await.unwrap();
        look(&mut session).await;
        assert_cases_are_walked(&mut session).await;
        assert_claims_by_time(&mut session).await;
        assert_waiting_costs_nothing(&mut session).await;
        use_the_outbox(&store, &mut session).await;
        for check in audit::CHECKS {
            plan(&mut session, check.promise, check.sql).await;
        }
        for (name, sql) in suspects::LOOKS {
            plan(&mut session, name, sql).await;
        }
    })
    .await;
    let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::raw_sql(drop).execute(&mut admin).await.unwrap();
    looked.unwrap();
}

/// Open cases are found beside 100,000 that are settled, and those of a key among all; each walk is
/// in the order of the numbers, so that a page costs what is on it.
async fn assert_cases_are_walked(session: &mut PgConnection) {
    let (open, resolved) = (Some(CaseState::Open), Some(CaseState::Resolved));
    let text = |text: &str| Some(text.to_owned());
    for (state, source, key, index) in [
        (None, None, None, "quarantine_pkey"),
        (None, text("rest"), None, "quarantine_pkey"),
        (resolved, None, None, "quarantine_pkey"),
        (open, None, None, "quarantine_open"),
        (open, text("rest"), None, "quarantine_open"),
        (None, None, text("a"), "quarantine_key"),
        (resolved, text("rest"), text("a"), "quarantine_key"),
    ] {
        let filter = CaseFilter { source, key, state };
        let list = quarantine::list(&filter, 0, 1);
        let plan = plan(session, "quarantine::list", list.sql().as_str()).await;
        assert!(
            plan.contains(&format!(" {index} on ")),
            "{filter:?}:\n{plan}"
        );
        assert!(!plan.contains("Sort"), "{filter:?}:\n{plan}");
    }
}

/// What waits for later is no part of what a relay looks through.
async fn assert_claims_by_time(session: &mut PgConnection) {
    for (name, sql) in [
        ("outbox::CLAIM", outbox::CLAIM),
        ("outbox::NEXT_PUBLICATION", outbox::NEXT_PUBLICATION),
    ] {
        let plan = plan(session, name, sql).await;
        let mut lines = plan.lines().map(str::trim);
        let walk = lines.find(|line| line.contains("outbox_attempt_at"));
        assert!(walk.is_some(), "{name} does not walk along time:\n{plan}");
        let bound = lines.next().unwrap_or_default();
        assert!(bound.starts_with("Index Cond: (attempt_at "), "{plan}");
    }
}

/// With 100,000 messages for later, a relay that looks for something to do touches a few pages.
async fn assert_waiting_costs_nothing(session: &mut PgConnection) {
    const FEW: i64 = 20;
    for (name, sql, values) in [
        ("outbox::CLAIM", outbox::CLAIM, "NULL, 256, 60000"),
        ("outbox::NEXT_PUBLICATION", outbox::NEXT_PUBLICATION, "NULL"),
    ] {
        let explain = format!(
            "PREPARE touched AS {sql};
             EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE touched ({values});
             DEALLOCATE touched",
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(explain))
            .fetch_all(&mut *session)
            .await;
        let plan: serde_json::Value = rows.unwrap()[0].get(0);
        let pages: i64 = ["Shared Hit Blocks", "Shared Read Blocks"]
            .iter()
            .map(|kind| plan[0]["Plan"][kind].as_i64().unwrap())
            .sum();
        assert!(pages < FEW, "{name} touches {pages} pages:\n{plan:#}");
    }
}

/// The suite for all stores moves its clock by hand; here the database's own decides. All but three
/// messages wait until tomorrow, and all cases are settled.
async fn use_the_outbox(store: &Postgres, session: &mut PgConnection) {
    let due = "
        UPDATE outbox
        SET publish_after = now() - interval '1 s', attempt_at = now() - interval '1 s'
        WHERE (reservation_id, due_at) IN (
            SELECT id, expires_at FROM reservations ORDER BY attempt_at LIMIT 3
        )";
    sqlx::raw_sql(due).execute(session).await.unwrap();
    let claimed = store.claim(10, 60_000).await.unwrap();
    let [one, two, three] = claimed.messages[..] else {
        panic!("{claimed:?}");
    };
    assert_eq!((one.attempt, claimed.skipped), (1, 0));
    assert_eq!(store.claim(10, 60_000).await.unwrap().messages, []);
    let published = Published {
        message: one.message,
        attempt: 1,
        receipt: None,
    };
    let marked = store.mark_published(&[published], "q").await;
    assert_eq!(marked.unwrap(), 1);
    let postponed = Postponed {
        message: two.message,
        attempt: 1,
        at: claimed.now.saturating_add_millis(5_000),
        error: String::new(),
    };
    assert_eq!(store.retry_later(&[postponed]).await.unwrap(), 1);
    let parked = Parked {
        message: three.message,
        attempt: 1,
        reason: String::new(),
    };
    assert_eq!(store.park(&[parked]).await.unwrap(), 1);
    assert_eq!(store.open(10, 0).await.unwrap().len(), 1);
    let next = store.next_publication().await.unwrap();
    let at = next.publish_after.unwrap();
    assert_eq!(at.millis_since(claimed.now), 5_000);
    let rule = QueueRule {
        max_delay_ms: 1_000,
    };
    let adopted = store.adopt("another", rule, 10, None).await.unwrap();
    assert_eq!(adopted.adopted, 1);
}

async fn look(session: &mut PgConnection) {
    for (name, sql) in STATEMENTS {
        let plan = plan(session, name, sql).await;
        for bad in ["Seq Scan", "Hash Join", "Merge Join", "Bitmap"] {
            assert!(!plan.contains(bad), "{name} does a {bad}:\n{plan}");
        }
        let mut lines = plan.lines();
        while let Some(line) = lines.next() {
            if line.contains("Index") && line.contains(" on ") {
                let bound = lines.next().is_some_and(|next| next.contains("Index Cond"));
                // A table of stock that is believed to be tiny may be walked along; it grows slowly.
                // Open cases are few.
                let excused = ["write::ADD_TO_STOCK", "retention::IN_QUARANTINE"].contains(&name);
                assert!(bound || excused, "{name} reads a whole index:\n{plan}");
            }
        }
        if std::env::var_os("SHOW_PLANS").is_some() {
            println!("{name}\n{plan}\n");
        }
    }
}
