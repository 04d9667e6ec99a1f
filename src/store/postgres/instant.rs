//! Instants as the database sends them.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{
    PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef, Postgres,
};
use sqlx::{Decode, Encode, Type};
use time::OffsetDateTime;

use crate::domain::Timestamp;
use crate::store::Clock;

/// A `timestamptz`. The types at hand would panic on `infinity`, which the column takes, and
/// make a calendar date of each instant on its way.
#[derive(Clone, Copy)]
pub(super) struct Instant(pub Timestamp);

/// 2000-01-01T00:00:00Z, from where PostgreSQL counts, in milliseconds since 1970.
const DATABASE_EPOCH_MS: i64 = 946_684_800_000;

impl Instant {
    /// What a clock shows that is moved by hand. Statements bind it beside the database's clock,
    /// which takes the place of a null: `coalesce($1, statement_timestamp())`.
    pub(super) fn by_hand(clock: &Clock) -> Option<Self> {
        match clock {
            Clock::Database => None,
            Clock::Manual(clock) => Some(Self(clock.now())),
        }
    }
}

impl Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        <OffsetDateTime as Type<Postgres>>::type_info()
    }
}

impl PgHasArrayType for Instant {
    fn array_type_info() -> PgTypeInfo {
        OffsetDateTime::array_type_info()
    }
}

impl Encode<'_, Postgres> for Instant {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = (self.0.as_millis() - DATABASE_EPOCH_MS) * 1_000;
        <i64 as Encode<Postgres>>::encode_by_ref(&micros, buffer)
    }

    fn size_hint(&self) -> usize {
        size_of::<i64>()
    }
}

impl Decode<'_, Postgres> for Instant {
    /// What is finer than a millisecond, as in the database's own clock, is cut off.
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() != PgValueFormat::Binary {
            return Err("an instant was sent as text".into());
        }
        let micros = <i64 as Decode<Postgres>>::decode(value)?;
        micros
            .div_euclid(1_000)
            .checked_add(DATABASE_EPOCH_MS)
            .and_then(Timestamp::from_millis)
            .map(Self)
            .ok_or_else(|| "lies outside the years 1970 to 9999".into())
    }
}
