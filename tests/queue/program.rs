//! The program: `queue check` and `lab emulator` as an operator calls them.

use std::process::Output;

use holdfast::lab::emulator::Faults;

use crate::service::{Stand, TOKEN};
use crate::world::server::run;

fn check(url: &str, settings: &[(&str, &str)]) -> Output {
    let all = [("HOLDFAST_QUEUE_URL", url), ("HOLDFAST_QUEUE_TOKEN", TOKEN)];
    let all: Vec<_> = all.iter().chain(settings).copied().collect();
    run(&["queue", "check"], &all)
}

fn assert_says(output: &Output, code: i32, stdout: &[&str], stderr: &[&str]) {
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}{complained}");
    for word in stdout {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    for word in stderr {
        assert!(complained.contains(word), "{word} is missing: {complained}");
    }
    assert_eq!(
        complained.lines().count(),
        usize::from(code != 0),
        "{complained}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_what_it_found() {
    let stand = Stand::start("pull").await;
    let place = stand.emulator.address();
    let url = format!("rest+http://{place}/v1?queue=holds&mode=pull");
    let public = [("HOLDFAST_PUBLIC_URL", "https://shop.example/")];
    let found = [
        "publish: POST /v1/queue/publish",
        "delay_seconds: integer up to 604800",
        "the token: not tried",
        "https://shop.example/v1/deliveries/rest",
    ];
    assert_says(&check(&url, &public), 0, &found, &[]);
    // Under another path there is no such queue.
    let elsewhere = url.replace("/v1?", "/v2?");
    let complaint = ["404", "HOLDFAST_QUEUE_URL"];
    assert_says(&check(&elsewhere, &[]), 2, &[], &complaint);
    stand.emulator.shut_down().await;
    let complaint = ["cannot be asked", "HOLDFAST_QUEUE_URL"];
    assert_says(&check(&url, &[]), 2, &[], &complaint);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_finds_a_mismatch_fails() {
    let document = r#"{"method":"PUT","path":"/v1/queue/publish","request_schema":{}}"#;
    let answer = crate::garbage::http("200 OK", "", document);
    let (server, _) = crate::garbage::answering(answer).await;
    let url = format!("rest+{server}/v1?queue=holds&mode=pull");
    assert_says(&check(&url, &[]), 1, &["publish: PUT"], &["by PUT"]);
}

#[test]
fn nothing_needs_to_be_checked_of_the_timer() {
    assert_says(&run(&["queue", "check"], &[]), 0, &["timer"], &[]);
    assert_says(
        &check("rest+http://192.0.2.1/v1", &[]),
        2,
        &[],
        &["rest+https://"],
    );
}

#[test]
fn every_fault_is_a_flag_of_the_emulator() {
    let output = run(&["lab", "emulator", "--help"], &[]);
    let help = String::from_utf8(output.stdout).unwrap();
    let faults = serde_json::to_value(Faults::default()).unwrap();
    for name in faults.as_object().unwrap().keys() {
        let flag = format!("--{}", name.replace('_', "-"));
        assert!(help.contains(&flag), "{flag} is missing");
    }
}

#[test]
fn an_emulator_that_cannot_push_does_not_start() {
    let flags = ["lab", "emulator", "--token", "t", "--listen", "127.0.0.1:0"];
    for more in [
        &["--push-url", "http://127.0.0.1:9/"][..],
        &["--secret", "whsec_short"],
        &[
            "--push-url",
            "ftp://127.0.0.1/",
            "--secret",
            crate::service::SECRET,
        ],
    ] {
        let flags: Vec<&str> = flags.iter().chain(more).copied().collect();
        assert_eq!(run(&flags, &[]).status.code(), Some(2), "{more:?}");
    }
}
