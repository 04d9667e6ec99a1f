//! What nothing could be done with, as an operator deals with it: by the command line, and with a key.

use std::process::Output;

use holdfast::domain::{Job, Message};
use reqwest::Method;
use serde_json::{Value, json};

use crate::command_line::assert_refused;
use crate::on_each_store;
use crate::queue::{holds, paths};
use crate::runs::{due, make_room};
use crate::shop::{Kind, Shop, until};
use crate::world::client::Client;
use crate::world::server::run;

on_each_store!(
    cases_are_dealt_with_by_the_command_line,
    who_acts_with_a_key_is_written_down,
);

/// What a command prints: one object in each line.
#[track_caller]
fn printed(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = said.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Opens a case behind the program's back, of which it is not told how it came.
pub async fn open_case(shop: &Shop, source: &str, key: &str, payload: &str) {
    let (payload, now) = match shop.kind() {
        Kind::Sqlite => (format!("cast('{payload}' as blob)"), "1796126400250"),
        Kind::Postgres => (
            format!("convert_to('{payload}', 'UTF8')"),
            "'2026-12-01T12:00:00.250Z'",
        ),
    };
    let insert = format!(
        "insert into quarantine (source, key, payload, reason, attempts, first_seen, last_seen)
         values ('{source}', '{key}', {payload}, 'puzzling', 1, {now}, {now})"
    );
    // Statements are static, so that none is made of what comes from outside; this one is not.
    shop.sql(insert.leak()).await.unwrap();
}

async fn job(client: &Client, id: &str) -> Job {
    let held = client.get_reservation(id).await.expect(200);
    Job {
        reservation: id.parse().unwrap(),
        deadline: serde_json::from_value(held["expires_at"].clone()).unwrap(),
    }
}

async fn cases_are_dealt_with_by_the_command_line(shop: &mut Shop) {
    let idle = [("HOLDFAST_ROLES", "api")];
    let client = shop.restart(&idle).await;
    let ids = holds(&client, 2, 1).await;
    due(&client, &ids).await;
    let jobs = [job(&client, &ids[0]).await, job(&client, &ids[1]).await];
    let payload = |n: usize| Message::first(jobs[n]).payload();
    open_case(shop, "rest", &jobs[0].id(), &payload(0)).await;
    open_case(shop, "hold", &ids[1], &payload(1)).await;
    open_case(shop, "rest", "m-1", "no job").await;
    let url = shop.url();
    let place = [("HOLDFAST_DATABASE_URL", url.as_str())];
    let quarantine = |arguments: &[&str]| run(&[&["quarantine"], arguments].concat(), &place);

    // While the server runs, one can look, and let rest.
    let listed = printed(&quarantine(&[
        "list", "--source", "rest", "--state", "open",
    ]));
    let keys: Vec<&Value> = listed.iter().map(|case| &case["key"]).collect();
    assert_eq!(keys, [&json!(jobs[0].id()), &json!("m-1")]);
    let [shown] = &printed(&quarantine(&["show", "3"]))[..] else {
        panic!("one case is one line");
    };
    assert_eq!(
        (&shown["payload"], &shown["actions"]),
        (&json!("no job"), &json!([]))
    );
    let [dismissed] = &printed(&quarantine(&["dismiss", "3", "--reason", "a test"]))[..] else {
        panic!("one case is one line");
    };
    assert_eq!(dismissed["resolution"], "dismissed: a test");
    assert_eq!(dismissed["actions"][0]["by"], "local");
    let refused = quarantine(&["dismiss", "2", "--reason", "tired"]);
    assert_refused(&refused, 2, &["the hold of case 2 still stands"]);
    for (arguments, words) in [
        (&["show", "99"][..], "there is no case 99"),
        (&["dismiss", "99", "--reason", "x"], "there is no case 99"),
        (&["dismiss", "1", "--reason", ""], "--reason"),
    ] {
        assert_refused(&quarantine(arguments), 2, &[words]);
    }

    make_room(shop, &["quarantine", "replay", "1"], &place).await;
    assert_refused(&quarantine(&["replay", "99"]), 2, &["there is no case 99"]);
    let foreseen = json!({
        "dry_run": true,
        "outcomes": { "expired": 2 },
        "after": 2,
        "more": false,
    });
    assert_eq!(printed(&quarantine(&["replay", "--all"])), [foreseen]);
    for (outcome, actions) in [("expired", 1), ("resolved", 2)] {
        let [replayed] = &printed(&quarantine(&["replay", "1"]))[..] else {
            panic!("one replay is one line");
        };
        assert_eq!(replayed["outcome"], outcome);
        assert_eq!(replayed["case"]["resolution"], "replayed: expired");
        assert_eq!(
            replayed["case"]["actions"].as_array().unwrap().len(),
            actions
        );
    }
    let all = [
        "replay",
        "--all",
        "--source",
        "hold",
        "--limit",
        "9",
        "--per-second",
        "9",
    ];
    let done = json!({
        "dry_run": false,
        "outcomes": { "expired": 1 },
        "after": 2,
        "more": false,
    });
    assert_eq!(
        printed(&quarantine(&[&all[..], &["--apply"]].concat())),
        [done]
    );
    assert!(printed(&quarantine(&["list", "--state", "open"])).is_empty());
    assert_eq!(printed(&quarantine(&["list"])).len(), 3);

    let client = match shop.kind() {
        Kind::Sqlite => shop.start(&idle),
        Kind::Postgres => client,
    };
    assert_eq!(paths(&client, &ids).await, ["replay"; 2]);
    let path = ["operations", "quarantine", "2"];
    let shown = client.get(&path, &[]).await.expect(200);
    assert_eq!(printed(&quarantine(&["show", "2"])), [shown]);
}

async fn who_acts_with_a_key_is_written_down(shop: &mut Shop) {
    open_case(shop, "rest", "m-1", "no job").await;
    let create = ["keys", "create", "--name", "oncall", "--scope", "operator"];
    let secret = String::from_utf8(shop.run(&create).stdout).unwrap();
    let client = shop.client().holding(secret.trim());
    // A server knows a new key within a second.
    let path = ["operations", "quarantine", "1"];
    until(async || (client.get(&path, &[]).await.status == 200).then_some(())).await;
    until(async || (shop.client().get(&path, &[]).await.status == 401).then_some(())).await;
    let replay = ["operations", "quarantine", "1", "replay"];
    let replayed = client
        .ask(Method::POST, &replay, json!({}))
        .await
        .expect(200);
    assert_eq!(replayed["outcome"], "invalid");
    assert_eq!(replayed["case"]["actions"][0]["by"], "oncall");
    // What is checked when the shop closes is asked without a key.
    shop.sql("delete from api_keys").await.unwrap();
    until(async || (shop.client().get(&path, &[]).await.status == 200).then_some(())).await;
}
