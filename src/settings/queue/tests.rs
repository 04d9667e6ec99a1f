use crate::settings::{Invocation, QueueSettings, QueueTask, Task};

const URL: &str = "rest+https://queue.example/v1?queue=expiry&mode=push";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn read(flags: &[&str]) -> Result<QueueSettings, String> {
    let arguments = ["holdfast", "queue", "check"].iter().chain(flags);
    match Invocation::from_arguments(arguments) {
        Ok(Invocation {
            task: Task::Queue(QueueTask::Check(settings)),
            ..
        }) => Ok(settings),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn without_settings_the_timer_does_it() {
    let settings = read(&[]).unwrap();
    assert!(settings.rest().is_none());
    assert_eq!(settings.push_url(), None);
}

#[test]
fn a_queue_that_pushes_is_told_where_to() {
    let public = "https://shop.example/holdfast/";
    let settings = read(&[
        "--queue-url",
        URL,
        "--queue-token",
        "t",
        "--queue-secret",
        SECRET,
        "--public-url",
        public,
    ])
    .unwrap();
    assert_eq!(settings.rest().unwrap().secrets.len(), 1);
    assert_eq!(
        settings.push_url().as_deref(),
        Some("https://shop.example/holdfast/v1/deliveries/rest")
    );
}

#[test]
fn a_queue_that_is_pulled_needs_a_token_only() {
    let url = URL.replace("push", "pull");
    let settings = read(&["--queue-url", &url, "--queue-token", "t"]).unwrap();
    assert!(settings.rest().is_some());
    assert_eq!(settings.push_url(), None);
}

/// What is secret is not repeated, not even when it is refused.
#[test]
fn what_makes_no_sense_is_refused_and_says_what_to_change() {
    let two = format!("{SECRET},{SECRET}");
    let three = format!("{two},{SECRET}");
    for (flags, says) in [
        (
            vec!["--queue-url", "amqp://host"],
            "HOLDFAST_QUEUE_URL: write `timer:` or rest+https",
        ),
        (vec!["--queue-url", "timer:x"], "write `timer:`"),
        (
            vec![
                "--queue-url",
                "rest+http://queue.example/v1?queue=a&mode=pull",
            ],
            "only this machine is called without encryption",
        ),
        (vec!["--queue-url", URL], "set HOLDFAST_QUEUE_TOKEN"),
        (
            vec!["--queue-token", "s e"],
            "HOLDFAST_QUEUE_TOKEN: is not made of visible",
        ),
        (
            vec!["--queue-url", URL, "--queue-token", "t"],
            "set HOLDFAST_QUEUE_SECRET",
        ),
        (
            vec![
                "--queue-url",
                URL,
                "--queue-token",
                "t",
                "--queue-secret",
                &two,
            ],
            "set HOLDFAST_PUBLIC_URL",
        ),
        (vec!["--queue-secret", &three], "more than two secrets"),
        (
            vec!["--queue-secret", "geheim"],
            "HOLDFAST_QUEUE_SECRET: is not `whsec_`",
        ),
        (
            vec!["--public-url", "http://shop.example"],
            "must be https://HOST",
        ),
        (
            vec!["--public-url", "https://shop.example/?a=b"],
            "nothing behind its path",
        ),
    ] {
        let said = read(&flags).expect_err("these settings make no sense");
        assert!(said.contains(says), "{flags:?}: {said}");
        assert!(!said.contains("geheim") && !said.contains("s e"), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
}
