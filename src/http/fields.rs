//! The kinds of value that stand in request bodies, read strictly.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::domain::{MAX_ON_HAND, MAX_QUANTITY, Metadata, OnExpired, Text};

/// The most pairs of metadata.
pub(super) const MAX_METADATA: usize = 50;

/// A JSON integer from `MIN` to `MAX`. Neither `1.0` nor `1e3` nor `"1"` is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole<const MIN: i64, const MAX: i64>(pub i64);

/// Units of one line.
pub(super) type Quantity = Whole<1, MAX_QUANTITY>;
/// A time span. How long is too long is not for the reader of a body to say.
pub(super) type Seconds = Whole<1, { i64::MAX }>;
/// Units on a shelf.
pub(super) type OnHand = Whole<0, MAX_ON_HAND>;
/// Units to add or take away.
pub(super) type Delta = Whole<{ -MAX_ON_HAND }, MAX_ON_HAND>;

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Integer<const MIN: i64, const MAX: i64>;

        impl<const MIN: i64, const MAX: i64> Visitor<'_> for Integer<MIN, MAX> {
            type Value = i64;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "an integer from {MIN} to {MAX}")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<i64, E> {
                in_range(Some(value), MIN, MAX)
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<i64, E> {
                in_range(i64::try_from(value).ok(), MIN, MAX)
            }
        }

        deserializer.deserialize_i64(Integer::<MIN, MAX>).map(Whole)
    }
}

fn in_range<E: Error>(value: Option<i64>, min: i64, max: i64) -> Result<i64, E> {
    value
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| E::custom(format_args!("must be an integer from {min} to {max}")))
}

/// A JSON object that is read as a `T`. Without it, serde would take an array of the members'
/// values for the same thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members))
            }
        }

        deserializer
            .deserialize_map(Members(PhantomData))
            .map(Object)
    }
}

/// The caller's own pairs, at most [`MAX_METADATA`], no name twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs(pub Metadata);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameAndValue;

        impl<'de> Visitor<'de> for NameAndValue {
            type Value = Metadata;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Metadata, A::Error> {
                let mut pairs = Metadata::new();
                while let Some(name) = members.next_key::<Text<64>>()? {
                    if pairs.contains_key(&name) {
                        return Err(A::Error::custom(format_args!("names `{name}` twice")));
                    }
                    if pairs.len() == MAX_METADATA {
                        return Err(A::Error::custom(format_args!(
                            "has more than {MAX_METADATA} pairs"
                        )));
                    }
                    pairs.insert(name, members.next_value()?);
                }
                Ok(pairs)
            }
        }

        deserializer.deserialize_map(NameAndValue).map(Pairs)
    }
}

/// What a checkout does when the deadline has passed, as a word. serde would take
/// `{"reject": null}` for the word as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(super) struct OnExpiredWord(pub OnExpired);

impl TryFrom<String> for OnExpiredWord {
    type Error = &'static str;

    fn try_from(word: String) -> Result<Self, &'static str> {
        match word.as_str() {
            "reject" => Ok(Self(OnExpired::Reject)),
            "reacquire" => Ok(Self(OnExpired::Reacquire)),
            _ => Err("must be `reject` or `reacquire`"),
        }
    }
}
