use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
const ID_TEXT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const SENT_S: i64 = 1_614_265_330;
const BODY: &[u8] = br#"{"test": 2432232314}"#;
const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

fn secret(text: &str) -> Secret {
    text.parse().unwrap()
}

fn headers(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    [(ID, id), (TIMESTAMP, timestamp), (SIGNATURE, signature)]
        .into_iter()
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

fn public() -> HeaderMap {
    headers(ID_TEXT, &SENT_S.to_string(), SIGNED)
}

/// Verifies with the public secret, some seconds after the push was sent.
fn verified(headers: &HeaderMap, body: &[u8], after_s: i64) -> Result<(), Untrusted> {
    let now = Timestamp::from_millis((SENT_S + after_s) * 1_000 + 999).unwrap();
    verify(&[secret(SECRET)], headers, body, now)
}

#[test]
fn the_public_vector_is_signed_and_verified() {
    assert_eq!(secret(SECRET).sign(ID_TEXT, SENT_S, BODY), SIGNED);
    assert_eq!(verified(&public(), BODY, 0), Ok(()));
}

#[test]
fn whatever_is_changed_the_signature_no_longer_fits() {
    let sent = SENT_S.to_string();
    let later = (SENT_S + 1).to_string();
    for (headers, body) in [
        (public(), &br#"{"test":2432232314}"#[..]),
        (public(), b""),
        (headers("msg_other", &sent, SIGNED), BODY),
        (headers(ID_TEXT, &later, SIGNED), BODY),
        (
            headers(ID_TEXT, &sent, &SIGNED.replace("v1,", "v1a,")),
            BODY,
        ),
        (headers(ID_TEXT, &sent, &SIGNED.replace("v1,", "v2,")), BODY),
        (
            headers(ID_TEXT, &sent, &SIGNED.replace("v1,g", "v1,h")),
            BODY,
        ),
        (headers(ID_TEXT, &sent, "v1,"), BODY),
        (headers(ID_TEXT, &sent, "v1,g0hM9SsE"), BODY),
        (headers(ID_TEXT, &sent, "v1,***"), BODY),
    ] {
        assert_eq!(verified(&headers, body, 0), Err(Untrusted::Signature));
    }
}

#[test]
fn the_clock_may_be_off_by_300_seconds_either_way() {
    for after_s in [-300, -299, 299, 300] {
        assert_eq!(verified(&public(), BODY, after_s), Ok(()), "{after_s}");
    }
    for after_s in [-301, 301, 86_400] {
        let refused = verified(&public(), BODY, after_s);
        assert_eq!(refused, Err(Untrusted::OutOfTime), "{after_s}");
    }
}

#[test]
fn each_side_may_have_several() {
    let now = Timestamp::from_millis(SENT_S * 1_000).unwrap();
    let both = [secret(OTHER), secret(SECRET)];
    assert_eq!(verify(&both, &public(), BODY, now), Ok(()));
    let old = secret(OTHER).sign(ID_TEXT, SENT_S, BODY);
    let signatures = format!("v1a,AAAA {old} {SIGNED}");
    let headers = headers(ID_TEXT, &SENT_S.to_string(), &signatures);
    assert_eq!(verified(&headers, BODY, 0), Ok(()));
    let neither = verify(&[secret(OTHER)], &public(), BODY, now);
    assert_eq!(neither, Err(Untrusted::Signature));
    assert_eq!(verify(&[], &public(), BODY, now), Err(Untrusted::NoSecret));
}

#[test]
fn each_header_is_there_once() {
    for name in [ID, TIMESTAMP, SIGNATURE] {
        let mut without = public();
        without.remove(&name);
        let mut twice = public();
        twice.append(&name, twice[&name].clone());
        let mut empty = public();
        empty.insert(&name, "".parse().unwrap());
        for headers in [without, twice, empty] {
            let refused = verified(&headers, BODY, 0).unwrap_err();
            assert!(refused.to_string().contains(name.as_str()), "{refused}");
        }
    }
    for nonsense in ["soon", "1614265330.5", "99999999999999999999"] {
        let refused = verified(&headers(ID_TEXT, nonsense, SIGNED), BODY, 0);
        assert_eq!(refused, Err(Untrusted::Timestamp), "{nonsense}");
    }
    for far in [i64::MIN, i64::MAX] {
        let refused = verified(&headers(ID_TEXT, &far.to_string(), SIGNED), BODY, 0);
        assert_eq!(refused, Err(Untrusted::OutOfTime));
    }
}

#[test]
fn a_secret_has_its_prefix_and_its_length_and_is_never_shown() {
    let encoded = |bytes: usize| format!("whsec_{}", STANDARD.encode(vec![7; bytes]));
    for bytes in [24, 64] {
        assert!(encoded(bytes).parse::<Secret>().is_ok());
    }
    for text in [
        String::new(),
        "whsec_".to_owned(),
        "whsec_%%%".to_owned(),
        encoded(23),
        encoded(65),
        SECRET.replace("whsec_", ""),
        SECRET.replace("whsec_", "whsk_"),
    ] {
        assert_eq!(text.parse::<Secret>(), Err(SecretFault), "{text}");
    }
    assert_eq!(format!("{:?}", secret(SECRET)), "whsec_...");
}
