use super::*;

/// Flags rather than variables, because the environment belongs to the whole test process.
fn serve(flags: &[&str]) -> Result<Settings, String> {
    let arguments = ["holdfast", "serve"].iter().chain(flags);
    match Invocation::from_arguments(arguments) {
        Ok(Invocation {
            task: Task::Serve(settings),
            ..
        }) => Ok(*settings),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn refused(flags: &[&str]) -> String {
    let said = serve(flags).expect_err("these settings make no sense");
    let first = said.lines().next().unwrap_or_default();
    first.to_owned()
}

#[test]
fn the_command_line_is_well_formed() {
    Invocation::command().debug_assert();
}

#[test]
fn every_setting_of_serve_has_a_variable_named_like_its_flag() {
    let command = Invocation::command();
    let serve = command.find_subcommand("serve").unwrap();
    for argument in command.get_arguments().chain(serve.get_arguments()) {
        let Some(flag) = argument.get_long().filter(|flag| *flag != "version") else {
            continue;
        };
        let variable = format!("HOLDFAST_{}", flag.replace('-', "_").to_uppercase());
        let env = argument.get_env().and_then(std::ffi::OsStr::to_str);
        assert_eq!(env, Some(variable.as_str()), "--{flag}");
    }
}

#[test]
fn serve_starts_with_nothing_set() {
    let settings = serve(&[]).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.database.url.to_string(), "sqlite://holdfast.db");
    assert_eq!(settings.hold_seconds, 900);
    assert_eq!(settings.max_hold_seconds, 2_592_000);
    assert_eq!(settings.sweep.period, Duration::from_secs(300));
    assert_eq!(settings.request_timeout, Duration::from_secs(10));
    assert_eq!(settings.shutdown, Duration::from_secs(25));
    assert_eq!(settings.cors_origins, CorsOrigins::Exactly(vec![]));
}

#[test]
fn what_is_out_of_range_is_refused_with_the_range() {
    for (flag, value, range) in [
        ("--hold-seconds", "0", "1..=315576000"),
        ("--hold-seconds", "9223372036854775807", "1..=315576000"),
        ("--max-hold-seconds", "0", "1..=315576000"),
        ("--sweep-seconds", "0", "1..=86400"),
        ("--request-timeout-seconds", "301", "1..=300"),
        ("--shutdown-seconds", "601", "1..=600"),
    ] {
        let said = refused(&[flag, value]);
        assert!(said.contains(flag) && said.contains(range), "{said}");
    }
}

#[test]
fn a_default_hold_longer_than_the_longest_is_refused() {
    assert!(serve(&["--hold-seconds", "60", "--max-hold-seconds", "60"]).is_ok());
    assert_eq!(
        refused(&["--hold-seconds", "61", "--max-hold-seconds", "60"]),
        "error: a hold would last 61 s and may last 60 s at most; \
         lower HOLDFAST_HOLD_SECONDS or raise HOLDFAST_MAX_HOLD_SECONDS"
    );
}

#[test]
fn what_is_needed_is_kept_by_default() {
    let keep = serve(&[]).unwrap().retention;
    let days = |days: u64| Duration::from_secs(days * 86_400);
    assert_eq!(keep.keep_idempotency, days(1));
    assert_eq!(keep.keep_outbox, days(7));
    assert_eq!(keep.keep_ledger, days(30));
    assert_eq!((keep.keep_reservations, keep.keep_events), (None, None));
    let longer = serve(&[
        "--keep-reservations-seconds",
        "2592000",
        "--keep-events-seconds",
        "60",
    ]);
    let keep = longer.unwrap().retention;
    assert_eq!(keep.keep_reservations, Some(days(30)));
    assert_eq!(keep.keep_events, Some(Duration::from_secs(60)));
}

#[test]
fn what_was_promised_cannot_be_kept_for_shorter() {
    for (flag, least) in [
        ("--keep-idempotency-seconds", 86_400),
        ("--keep-ledger-seconds", 1_209_600),
    ] {
        assert!(serve(&[flag, &least.to_string()]).is_ok());
        let said = refused(&[flag, &(least - 1).to_string()]);
        let range = format!("{least}..=");
        assert!(said.contains(flag) && said.contains(&range), "{said}");
    }
}

#[test]
fn reservations_outlive_their_ledger_rows_and_events_their_reservations() {
    assert_eq!(
        refused(&["--keep-reservations-seconds", "2591999"]),
        "error: a reservation outlives what the ledger knows of it, and would be kept for \
         2591999 s only, not for 2592000 s; raise HOLDFAST_KEEP_RESERVATIONS_SECONDS or lower \
         HOLDFAST_KEEP_LEDGER_SECONDS"
    );
    let alone = refused(&["--keep-events-seconds", "2592000"]);
    assert!(
        alone.contains("HOLDFAST_KEEP_RESERVATIONS_SECONDS"),
        "{alone}"
    );
}

#[test]
fn a_bootstrap_key_is_long_and_never_shown() {
    let long = "0123456789abcdef0123456789abcdef";
    let settings = serve(&["--bootstrap-key", long]).unwrap();
    assert!(!format!("{settings:?}").contains(long));
    for short in [&long[1..], "0123456789abcdef 0123456789abcdef"] {
        let said = refused(&["--bootstrap-key", short]);
        assert!(said.contains("HOLDFAST_BOOTSTRAP_KEY"), "{said}");
        assert!(said.contains("32") && !said.contains(short), "{said}");
    }
}

#[test]
fn settings_of_the_door_come_in_pairs() {
    assert!(serve(&["--tls-cert", "a.pem", "--tls-key", "b.pem"]).is_ok());
    assert!(serve(&["--rate-limit", "5", "--rate-burst", "10"]).is_ok());
    for flags in [["--tls-cert", "a.pem"], ["--tls-key", "b.pem"]] {
        assert!(refused(&flags).contains("HOLDFAST_TLS_"));
    }
    assert!(refused(&["--rate-burst", "10"]).contains("HOLDFAST_RATE_LIMIT"));
}

#[test]
fn a_database_is_known_by_its_scheme() {
    let url = |text: &str| text.parse::<DatabaseUrl>();
    let file = "sqlite://holdfast.db".to_owned();
    assert_eq!(url(&file), Ok(DatabaseUrl::Sqlite(file)));
    for server in ["postgres://localhost/holdfast", "postgresql:///holdfast"] {
        let server = server.to_owned();
        assert_eq!(url(&server), Ok(DatabaseUrl::Postgres(server)));
    }
    assert_eq!(
        refused(&["--database-url", "mysql://shop:secret@db/shop"]),
        "error: no database is known by the address `mysql://shop@db/shop`; \
         set HOLDFAST_DATABASE_URL to sqlite://FILE or postgres://USER@HOST/DATABASE"
    );
}

#[test]
fn a_password_is_never_shown() {
    for (url, shown) in [
        (
            "postgres://shop:hunter2@db:5432/shop",
            "postgres://shop@db:5432/shop",
        ),
        (
            "postgres://shop:hun/t@er2@db/shop",
            "postgres://shop@db/shop",
        ),
        ("postgres://:hunter2@db/shop", "postgres://@db/shop"),
        (
            "postgres://db/shop?user=shop&password=hunter2",
            "postgres://db/shop",
        ),
        ("postgres://db/shop?password=hunter2@", "postgres://db@"),
        ("postgres://db/shop", "postgres://db/shop"),
    ] {
        let settings = serve(&["--database-url", url]).unwrap();
        assert_eq!(settings.database.url.to_string(), shown);
        assert!(!format!("{settings:?}").contains("hunter2"), "{settings:?}");
    }
    for wrong in [
        "shop:hunter2@db/shop",
        "postgres;//shop:hunter2@db",
        "hunter2",
    ] {
        assert!(!refused(&["--database-url", wrong]).contains(":hunter2"));
    }
}

#[test]
fn an_origin_is_taken_as_a_browser_sends_it() {
    let origins = |list: &str| list.parse::<CorsOrigins>().ok();
    let exactly = |list: &[&str]| {
        let list = list.iter().map(|origin| (*origin).to_owned());
        Some(CorsOrigins::Exactly(list.collect()))
    };
    assert_eq!(origins(" * "), Some(CorsOrigins::Any));
    assert_eq!(origins(""), exactly(&[]));
    assert_eq!(
        origins("https://shop.example, http://localhost:3000"),
        exactly(&["https://shop.example", "http://localhost:3000"])
    );
    for never_sent in [
        "https://shop.example/",
        "https://Shop.example",
        "shop.example",
        "https://",
        "*,https://shop.example",
    ] {
        assert_eq!(origins(never_sent), None, "{never_sent}");
    }
}

#[test]
fn a_log_filter_that_cannot_be_read_is_refused() {
    assert!(serve(&["--log", "info,sqlx=warn"]).is_ok());
    assert!(refused(&["--log", "sqlx=loud"]).contains("--log"));
}

#[test]
fn a_pace_is_read_and_nonsense_is_refused_with_what_to_change() {
    assert_eq!(serve(&[]).unwrap().release.rate(), None);
    let rate = |flags: &[&str]| serve(flags).unwrap().release.rate().unwrap();
    let slow = rate(&["--admission-rate", "0.5"]);
    assert_eq!((slow.per_second, slow.burst), (0.5, 1));
    let fast = rate(&["--admission-rate", "2.5"]);
    assert_eq!((fast.per_second, fast.burst), (2.5, 3));
    let given = rate(&["--admission-rate", "2.5", "--admission-burst", "40"]);
    assert_eq!(given.burst, 40);
    let by_merchant = |overrides| {
        let flags = ["--admission-rate", "1", "--admission-key", "merchant"];
        serve(&[&flags[..], &["--admission-overrides", overrides]].concat())
    };
    let rates = by_merchant("acme=5/20, a=b=0.1").unwrap().release;
    let names: Vec<_> = rates.admission_overrides.0.into_iter().collect();
    let expected = |per_second, burst| ReleaseRate { per_second, burst };
    assert_eq!(
        names,
        [
            ("a=b".to_owned(), expected(0.1, 1)),
            ("acme".to_owned(), expected(5.0, 20)),
        ]
    );
    for nonsense in [
        "acme", "acme=", "=5", "acme=0", "acme=5/0", "acme=5/x", "acme=NaN",
    ] {
        let said = by_merchant(nonsense).unwrap_err();
        assert!(said.contains("NAME=RATE"), "{said}");
    }
    let said = by_merchant("acme=5,acme=6").unwrap_err();
    assert!(said.contains("two rates"), "{said}");
    for nonsense in ["0", "inf", "nan", "1000001", "fast"] {
        let said = refused(&["--admission-rate", nonsense]);
        assert!(said.contains("holds per second"), "{said}");
    }
    for alone in [
        &["--admission-burst", "5"][..],
        &["--admission-overrides", "acme=5"],
    ] {
        let said = refused(alone);
        assert!(said.contains("HOLDFAST_ADMISSION_RATE as well"), "{said}");
    }
    let everything = ["--admission-rate", "1", "--admission-overrides", "acme=5"];
    let said = refused(&everything);
    assert!(said.contains("HOLDFAST_ADMISSION_KEY"), "{said}");
}
