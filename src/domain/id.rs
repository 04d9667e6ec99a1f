//! Names of reservations and of expiry jobs, and how a name is written.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use super::Timestamp;

/// The name of a reservation: a UUIDv7 in the database, a TypeID outside (`rsv_` and 26
/// characters of Crockford's base32).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(Uuid);

/// The text is not the name of any reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a reservation id, such as rsv_01jdz3x9k2e5qs8v4m7n6p0r1t")]
pub struct IdFault;

const PREFIX: &str = "rsv_";
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 26 characters of five bits carry the 128 bits of a UUID, with two to spare.
const ENCODED_LENGTH: usize = 26;

/// A UUIDv7 of this instant.
pub(super) fn uuid_of(now: Timestamp, entropy: [u8; 10]) -> Uuid {
    let millis = u64::try_from(now.as_millis()).unwrap_or_default();
    uuid::Builder::from_unix_timestamp_millis(millis, &entropy).into_uuid()
}

impl ReservationId {
    /// A new name. `now` is the instant of creation, so that names sort by age; `entropy` is
    /// random, so that nobody guesses the next one.
    pub fn new(now: Timestamp, entropy: [u8; 10]) -> Self {
        Self(uuid_of(now, entropy))
    }

    /// The name that the database holds as `uuid`.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The name as the database holds it.
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// A number that is as good as random, and the same for the same name.
    pub(super) fn chance(self) -> u32 {
        let [.., a, b, c, d] = self.0.into_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Where the names of this reservation's jobs lie, and the keys of their messages, among all
    /// that are sorted by their bytes.
    pub fn job_ids(self) -> std::ops::Range<JobId> {
        // A semicolon comes right after a colon.
        format!("expire:{self}:")..format!("expire:{self};")
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_type_id(out, PREFIX, self.0)
    }
}

/// Writes a TypeID: the prefix, which ends with `_`, and the UUID in base32.
pub(super) fn write_type_id(out: &mut fmt::Formatter<'_>, prefix: &str, uuid: Uuid) -> fmt::Result {
    let bits = uuid.as_u128();
    let mut encoded = [0; ENCODED_LENGTH];
    for (place, letter) in encoded.iter_mut().rev().enumerate() {
        let five_bits = (bits >> (5 * place)) & 31;
        *letter = ALPHABET[five_bits as usize];
    }
    out.write_str(prefix)?;
    // The alphabet is ASCII.
    out.write_str(std::str::from_utf8(&encoded).unwrap_or_default())
}

/// Reads a TypeID with this prefix, which ends with `_`; none if the text is no such thing.
pub(super) fn read_type_id(prefix: &str, text: &str) -> Option<Uuid> {
    let encoded = text.strip_prefix(prefix)?;
    // The first character carries three bits; a larger one would not fit into 128.
    if encoded.len() != ENCODED_LENGTH || encoded.as_bytes()[0] > b'7' {
        return None;
    }
    encoded
        .bytes()
        .try_fold(0_u128, |bits, letter| {
            let five_bits = ALPHABET.iter().position(|known| *known == letter)?;
            Some(bits << 5 | five_bits as u128)
        })
        .map(Uuid::from_u128)
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for ReservationId {
    type Err = IdFault;

    fn from_str(text: &str) -> Result<Self, IdFault> {
        read_type_id(PREFIX, text).map(Self).ok_or(IdFault)
    }
}

impl serde::Serialize for ReservationId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ReservationId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// An expiry job: "this reservation is due at this deadline".
///
/// The deadline is the reservation's generation: a job for a moved deadline is stale and changes
/// nothing (P4), and since a retry sends the same job, it can never compute a new one (P6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// Whose hold ends.
    pub reservation: ReservationId,
    /// The deadline that the sender of the job knew.
    pub deadline: Timestamp,
}

/// The name of a job, `expire:<reservation id>:<deadline in epoch ms>`.
pub type JobId = String;

impl Job {
    /// The job's name, the same for every copy of it.
    pub fn id(&self) -> JobId {
        format!("expire:{}:{}", self.reservation, self.deadline.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the TypeID specification 0.3.
    #[test]
    fn ids_are_type_ids() {
        let known = [
            (
                "00000000-0000-0000-0000-000000000000",
                "rsv_00000000000000000000000000",
            ),
            (
                "0110c853-1d09-52d8-d73e-1194e95b5f19",
                "rsv_0123456789abcdefghjkmnpqrs",
            ),
            (
                "01890a5d-ac96-774b-bcce-b302099a8057",
                "rsv_01h455vb4pex5vsknk084sn02q",
            ),
            (
                "ffffffff-ffff-ffff-ffff-ffffffffffff",
                "rsv_7zzzzzzzzzzzzzzzzzzzzzzzzz",
            ),
        ];
        for (uuid, text) in known {
            let id = ReservationId::from_uuid(uuid.parse().unwrap());
            assert_eq!(id.to_string(), text);
            assert_eq!(text.parse(), Ok(id));
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "rsv_",
            "01h455vb4pex5vsknk084sn02q",
            "rsv_01h455vb4pex5vsknk084sn02",
            "rsv_01h455vb4pex5vsknk084sn02qq",
            "rsv_81h455vb4pex5vsknk084sn02q",
            "rsv_01H455VB4PEX5VSKNK084SN02Q",
            "rsv_01h455vb4pex5vsknk084sn02u",
            "rsv_01h455vb4pex5vsknk084sn0é",
        ] {
            assert_eq!(text.parse::<ReservationId>(), Err(IdFault), "{text}");
        }
    }

    #[test]
    fn ids_sort_by_age_and_are_version_7() {
        let at = |millis| Timestamp::from_millis(millis).unwrap();
        let early = ReservationId::new(at(1_000), [255; 10]);
        let late = ReservationId::new(at(1_001), [0; 10]);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        assert_eq!(early.as_uuid().get_version_num(), 7);
    }

    #[test]
    fn a_job_is_named_by_reservation_and_deadline() {
        let job = Job {
            reservation: "rsv_01h455vb4pex5vsknk084sn02q".parse().unwrap(),
            deadline: Timestamp::from_millis(1_796_126_400_250).unwrap(),
        };
        assert_eq!(
            job.id(),
            "expire:rsv_01h455vb4pex5vsknk084sn02q:1796126400250"
        );
        assert!(job.reservation.job_ids().contains(&job.id()));
        let other: ReservationId = "rsv_01h455vb4pex5vsknk084sn02r".parse().unwrap();
        assert!(job.id() < other.job_ids().start);
    }
}
