//! API keys: who may ask for what. The secret itself is in nobody's memory but its holder's; here
//! it is known by its hash.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use super::id::{read_type_id, uuid_of, write_type_id};
use super::{Merchant, Text, Timestamp};

/// What a key is for, in the words of whoever made it.
pub type KeyName = Text<128>;

/// SHA-256 of a secret.
pub type KeyHash = [u8; 32];

/// A key, living or revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its name for programs; it says nothing about the secret.
    pub id: ApiKeyId,
    /// Its name for people.
    pub name: KeyName,
    /// On whose behalf it is used.
    pub merchant: Merchant,
    /// What it may do.
    pub scopes: Scopes,
    /// What its secret hashes to.
    pub secret_hash: KeyHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was taken away, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// The name of a key: a UUIDv7 in the database, a TypeID outside (`key_` and 26 characters).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyId(Uuid);

/// The text is not the name of any key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not the id of a key, such as key_01jdz3x9k2e5qs8v4m7n6p0r1t")]
pub struct ApiKeyIdFault;

const PREFIX: &str = "key_";

impl ApiKeyId {
    /// A new name. `now` is the instant of creation, so that names sort by age.
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
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_type_id(out, PREFIX, self.0)
    }
}

impl fmt::Debug for ApiKeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for ApiKeyId {
    type Err = ApiKeyIdFault;

    fn from_str(text: &str) -> Result<Self, ApiKeyIdFault> {
        read_type_id(PREFIX, text).map(Self).ok_or(ApiKeyIdFault)
    }
}

/// A part of the API that a key may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Reservations, from the first look to the payment.
    Checkout,
    /// What lies on the shelf.
    Inventory,
    /// Everything.
    Operator,
}

impl Scope {
    /// All of them, in the order of their words.
    pub const ALL: [Self; 3] = [Self::Checkout, Self::Inventory, Self::Operator];

    /// Its word in the command line, in answers and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Checkout => "checkout",
            Self::Inventory => "inventory",
            Self::Operator => "operator",
        }
    }
}

/// At least one scope. Written as words with a space between them, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(BTreeSet<Scope>);

/// The text does not list scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lists no scopes, such as `checkout inventory`")]
pub struct ScopesFault;

impl Scopes {
    /// These; none if there are none, since a key that may do nothing is a mistake.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Option<Self> {
        let scopes: BTreeSet<_> = scopes.into_iter().collect();
        (!scopes.is_empty()).then_some(Self(scopes))
    }

    /// Do they reach where any one of `wanted` is enough? The operator's reaches everywhere.
    pub fn reach(&self, wanted: &[Scope]) -> bool {
        self.0.contains(&Scope::Operator) || wanted.iter().any(|scope| self.0.contains(scope))
    }
}

impl From<Scope> for Scopes {
    fn from(scope: Scope) -> Self {
        Self(BTreeSet::from([scope]))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(|scope| scope.as_str()).collect();
        out.write_str(&words.join(" "))
    }
}

impl FromStr for Scopes {
    type Err = ScopesFault;

    fn from_str(text: &str) -> Result<Self, ScopesFault> {
        text.split(' ')
            .map(|word| Scope::ALL.into_iter().find(|scope| scope.as_str() == word))
            .collect::<Option<Vec<_>>>()
            .and_then(Self::new)
            .ok_or(ScopesFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_keys_and_of_reservations_are_not_mistaken_for_each_other() {
        let id = ApiKeyId::new(Timestamp::EPOCH, [7; 10]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in [
            "",
            "key_",
            "rsv_01jdz3x9k2e5qs8v4m7n6p0r1t",
            "01jdz3x9k2e5qs8v4m7n6p0r1t",
        ] {
            assert_eq!(text.parse::<ApiKeyId>(), Err(ApiKeyIdFault), "{text}");
        }
    }

    #[test]
    fn scopes_are_read_as_they_are_written() {
        let both = Scopes::new([Scope::Inventory, Scope::Checkout, Scope::Checkout]).unwrap();
        assert_eq!(both.to_string(), "checkout inventory");
        assert_eq!("checkout inventory".parse(), Ok(both));
        for text in ["", " ", "checkout  inventory", "checkout,inventory", "all"] {
            assert_eq!(text.parse::<Scopes>(), Err(ScopesFault), "{text}");
        }
    }

    #[test]
    fn the_operator_reaches_everywhere() {
        let scopes = |scope| Scopes::new([scope]).unwrap();
        assert!(scopes(Scope::Operator).reach(&[]));
        assert!(scopes(Scope::Operator).reach(&[Scope::Checkout]));
        assert!(scopes(Scope::Checkout).reach(&[Scope::Checkout, Scope::Inventory]));
        assert!(!scopes(Scope::Checkout).reach(&[Scope::Inventory]));
        assert!(!scopes(Scope::Checkout).reach(&[]));
    }
}
