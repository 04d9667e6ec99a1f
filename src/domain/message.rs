//! An expiry job as it travels through a queue.

use serde::{Deserialize, Serialize};

use super::{Job, ReservationId, Timestamp};

/// One publication of an expiry job.
///
/// Queues swallow a key that they have seen before, so a job that must be published again goes
/// out as another copy, under another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// The job, the same in every copy.
    pub job: Job,
    /// 1 for the first publication, 2 for the second, and so on.
    pub copy: u32,
}

/// Why a payload is no expiry job.
#[derive(Debug, thiserror::Error)]
pub enum PayloadFault {
    /// It is not the JSON object that it must be.
    #[error("is not an expiry job: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Its members contradict each other.
    #[error("has the job_id {found}, but its other members make {expected}")]
    Contradiction {
        /// What it says.
        found: String,
        /// What its members say.
        expected: String,
    },
}

/// The members of a payload.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload {
    job_id: String,
    reservation_id: ReservationId,
    expected_expires_at: Timestamp,
}

impl Message {
    /// The first publication of a job.
    pub const fn first(job: Job) -> Self {
        Self { job, copy: 1 }
    }

    /// The Idempotency-Key: the job's name, and `#n` behind it for the second copy and later.
    pub fn key(&self) -> String {
        if self.copy == 1 {
            self.job.id()
        } else {
            format!("{}#{}", self.job.id(), self.copy)
        }
    }

    /// The publication of `job` that has this key.
    pub fn of_key(job: Job, key: &str) -> Option<Self> {
        let copy = match key.strip_prefix(&job.id())? {
            "" => 1,
            number => number.strip_prefix('#')?.parse().ok()?,
        };
        Some(Self { job, copy }).filter(|message| message.key() == key)
    }

    /// The body: a JSON object, the same for every copy, under 200 bytes.
    pub fn payload(&self) -> String {
        let payload = Payload {
            job_id: self.job.id(),
            reservation_id: self.job.reservation,
            expected_expires_at: self.job.deadline,
        };
        serde_json::to_string(&payload).unwrap_or_default()
    }
}

impl Job {
    /// The job that a payload asks for.
    pub fn from_payload(payload: &[u8]) -> Result<Self, PayloadFault> {
        let Payload {
            job_id,
            reservation_id,
            expected_expires_at,
        } = serde_json::from_slice(payload)?;
        let job = Self {
            reservation: reservation_id,
            deadline: expected_expires_at,
        };
        if job_id == job.id() {
            Ok(job)
        } else {
            Err(PayloadFault::Contradiction {
                found: job_id,
                expected: job.id(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(copy: u32) -> Message {
        Message {
            job: Job {
                reservation: "rsv_01h455vb4pex5vsknk084sn02q".parse().unwrap(),
                deadline: Timestamp::from_millis(1_796_126_400_250).unwrap(),
            },
            copy,
        }
    }

    #[test]
    fn every_copy_has_a_key_of_its_own_and_the_same_payload() {
        let id = "expire:rsv_01h455vb4pex5vsknk084sn02q:1796126400250";
        assert_eq!(message(1).key(), id);
        assert_eq!(message(2).key(), format!("{id}#2"));
        for copy in [1, 2, 10] {
            let message = message(copy);
            assert_eq!(Message::of_key(message.job, &message.key()), Some(message));
        }
        for key in [
            "",
            "#2",
            "expire:x",
            &format!("{id}#1"),
            &format!("{id}#+2"),
        ] {
            assert_eq!(Message::of_key(message(1).job, key), None, "{key}");
        }
        assert_eq!(message(1).payload(), message(2).payload());
        assert_eq!(
            message(1).payload(),
            format!(
                r#"{{"job_id":"{id}","reservation_id":"rsv_01h455vb4pex5vsknk084sn02q","expected_expires_at":"2026-12-01T12:00:00.250Z"}}"#
            )
        );
    }

    #[test]
    fn a_payload_is_read_back_and_anything_else_is_refused() {
        let message = message(7);
        let payload = message.payload();
        assert_eq!(Job::from_payload(payload.as_bytes()).unwrap(), message.job);
        for (broken, says) in [
            (String::new(), "is not an expiry job"),
            ("[]".to_owned(), "is not an expiry job"),
            (payload.replace('}', r#","more":1}"#), "unknown field"),
            (payload.replace("rsv_", "res_"), "reservation id"),
            (payload.replace("250Z", "251Z"), "its other members make"),
        ] {
            let fault = Job::from_payload(broken.as_bytes()).unwrap_err();
            assert!(fault.to_string().contains(says), "{broken}: {fault}");
        }
    }
}
