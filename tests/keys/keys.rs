//! Keys come and go while servers run.

use crate::house::{House, PATIENCE, SOON, assert_refused, until_status};
use crate::on_each_store;
use crate::world::server::{ServerProcess, run};

on_each_store!(
    a_key_is_known_and_revoked_within_a_second,
    an_idempotency_key_belongs_to_its_caller,
    a_reservation_is_of_the_merchant_of_its_key,
    the_bootstrap_key_is_an_operator_and_stored_nowhere,
    keys_that_do_not_exist_are_not_revoked,
);

const CHOSEN: &str = "a-secret-of-my-own-choice-0123456789";

async fn a_key_is_known_and_revoked_within_a_second(house: House) {
    let servers: Vec<_> = (0..house.most_servers())
        .map(|_| house.start(&[]))
        .collect();
    let nobody: Vec<_> = servers.iter().map(ServerProcess::client).collect();
    for client in &nobody {
        client.get_stock("A").await.expect(404);
    }
    // The first key closes the door behind it.
    let first = house.make_key("first", &["operator"]);
    for client in &nobody {
        until_status(SOON, 401, async || client.get_stock("A").await).await;
    }
    for client in &nobody {
        client
            .holding(&first.secret)
            .get_stock("A")
            .await
            .expect(404);
    }
    let second = house.make_key("second", &["checkout"]);
    for client in &nobody {
        let client = client.holding(&second.secret);
        until_status(SOON, 404, async || client.get_stock("A").await).await;
    }
    for key in [&second, &first] {
        let revoked = house.run(&["keys", "revoke", &key.id]);
        assert!(revoked.status.success(), "{revoked:?}");
        for client in &nobody {
            let client = client.holding(&key.secret);
            until_status(SOON, 401, async || client.get_stock("A").await).await;
        }
        if key.id == second.id {
            for client in &nobody {
                client
                    .holding(&first.secret)
                    .get_stock("A")
                    .await
                    .expect(404);
            }
        }
    }
    // Without a living key nobody is let in; the door does not open by itself.
    for client in &nobody {
        assert_eq!(client.get_stock("A").await.status, 401);
    }
    let again = house.run(&["keys", "revoke", &first.id]);
    assert!(again.status.success());
    let listed = String::from_utf8(house.run(&["keys", "list"]).stdout).unwrap();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 2, "{listed}");
    assert!(lines[0].contains("first\tdefault\toperator") && lines[0].contains("revoked 2"));
    assert!(lines[1].contains("second\tdefault\tcheckout"), "{listed}");
}

async fn a_reservation_is_of_the_merchant_of_its_key(house: House) {
    let operator = house.make_key("operator", &["operator"]);
    let acme = house.make_key_of("acme", "shop", &["checkout"]);
    let server = house.start(&[]);
    let operator = server.client().holding(&operator.secret);
    operator.put_stock("A", 5).await.expect(200);
    let acme = server.client().holding(&acme.secret);
    for (client, merchant) in [(&acme, "acme"), (&operator, "default")] {
        let held = client.reserve_one("A", 1, 60).await.expect(201);
        assert_eq!(held["merchant"], merchant);
    }
    let bad = house.run(&[
        "keys",
        "create",
        "--name",
        "x",
        "--merchant",
        " ",
        "--scope",
        "checkout",
    ]);
    assert_eq!(bad.status.code(), Some(2));
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(said.contains("give another --merchant"), "{said}");
}

async fn an_idempotency_key_belongs_to_its_caller(house: House) {
    let (_server, [operator, one, other]) =
        house.with_keys(["operator", "checkout", "checkout"], &[]);
    operator.put_stock("A", 5).await.expect(200);
    let (one, other) = (one.with_key("order-1"), other.with_key("order-1"));
    let first = one.reserve_one("A", 1, 600).await.expect(201);
    let second = other.reserve_one("A", 1, 600).await;
    assert!(!second.is_replayed());
    let second = second.expect(201);
    assert_ne!(first["id"], second["id"]);
    // Another request under it is another caller's business, too.
    assert_eq!(one.reserve_one("A", 2, 600).await.status, 422);
    for (client, id) in [(&one, &first["id"]), (&other, &second["id"])] {
        let again = client.reserve_one("A", 1, 600).await;
        assert!(again.is_replayed());
        assert_eq!(again.expect(201)["id"], *id);
    }
}

async fn the_bootstrap_key_is_an_operator_and_stored_nowhere(house: House) {
    let settings = [("HOLDFAST_BOOTSTRAP_KEY", CHOSEN)];
    let server = house.start(&settings);
    assert_eq!(server.client().put_stock("A", 1).await.status, 401);
    let operator = server.client().holding(CHOSEN);
    operator.put_stock("A", 1).await.expect(200);
    operator.reserve_one("A", 1, 600).await.expect(201);
    assert!(server.log().iter().all(|line| !line.contains(CHOSEN)));
    assert!(server.terminate().await.success());
    assert!(house.run(&["keys", "list"]).stdout.is_empty());
    // It is a key while it is set.
    let server = house.start(&[]);
    server.client().get_stock("A").await.expect(200);
    drop(server);
    let short = &CHOSEN[..31];
    let url = house.url();
    let settings = [
        ("HOLDFAST_BOOTSTRAP_KEY", short),
        ("HOLDFAST_DATABASE_URL", &url),
    ];
    let refused = run(&["serve"], &settings);
    assert_refused(&refused, &["HOLDFAST_BOOTSTRAP_KEY", "32"]);
    assert!(!String::from_utf8_lossy(&refused.stderr).contains(short));
}

async fn keys_that_do_not_exist_are_not_revoked(house: House) {
    let key = house.make_key("the shop's", &["checkout"]);
    let unknown = "key_01jdz3x9k2e5qs8v4m7n6p0r1t";
    assert_refused(&house.run(&["keys", "revoke", unknown]), &[unknown]);
    assert_refused(&house.run(&["keys", "revoke", "first"]), &["first", "list"]);
    let nameless = ["keys", "create", "--name", " ", "--scope", "checkout"];
    assert_refused(&house.run(&nameless), &["--name"]);
    let server = house.start(&[]);
    let client = server.client().holding(&key.secret);
    until_status(PATIENCE, 404, async || client.get_stock("A").await).await;
}
