//! Text from outside: one rule for every field, so that what one path takes no other refuses.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use unicode_normalization::is_nfc;

/// A text that keeps the rule: not empty, at most `MAX` bytes of UTF-8, in Unicode normal form C,
/// without control characters, without bidirectional controls, without spaces at either end, and
/// not `.` or `..` (it may stand in a URL path).
///
/// The rule refuses rather than mends: a SKU that was silently changed would be another SKU. A
/// copy shares the bytes, since a batch names the same stock many times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const MAX: usize>(Arc<str>);

/// The name of what is sold.
pub type Sku = Text<128>;
/// Where it lies.
pub type Location = Text<128>;
/// Who holds it.
pub type CustomerId = Text<255>;
/// The caller's own name for a reservation, such as an order number.
pub type Reference = Text<255>;
/// The payment provider's name for a payment.
pub type PaymentReference = Text<255>;
/// On whose behalf a key is used, and a reservation made.
pub type Merchant = Text<64>;
/// Why somebody did something.
pub type Reason = Text<500>;

/// Which part of the rule a text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// Nothing in it.
    #[error("must not be empty")]
    Empty,
    /// More bytes than the field takes.
    #[error("is longer than {max} bytes of UTF-8")]
    TooLong {
        /// The most that the field takes, in bytes.
        max: usize,
    },
    /// U+0000 to U+001F or U+007F to U+009F.
    #[error("contains a control character")]
    Control,
    /// A character that reorders what stands around it when it is shown.
    #[error("contains a bidirectional control character")]
    Bidirectional,
    /// White space at the beginning or the end.
    #[error("begins or ends with a space")]
    OuterSpace,
    /// Two spellings of one text would be two SKUs.
    #[error("is not in Unicode normal form C")]
    NotNormal,
    /// Path segments that URL libraries resolve away.
    #[error("must not be \".\" or \"..\"")]
    DotSegment,
}

impl<const MAX: usize> Text<MAX> {
    /// Takes a text that keeps the rule.
    pub fn new(text: impl AsRef<str>) -> Result<Self, TextFault> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(TextFault::Empty);
        }
        if text.len() > MAX {
            return Err(TextFault::TooLong { max: MAX });
        }
        if text.chars().any(char::is_control) {
            return Err(TextFault::Control);
        }
        if text.chars().any(is_bidirectional_control) {
            return Err(TextFault::Bidirectional);
        }
        if text.trim() != text {
            return Err(TextFault::OuterSpace);
        }
        if !is_nfc(text) {
            return Err(TextFault::NotNormal);
        }
        if text == "." || text == ".." {
            return Err(TextFault::DotSegment);
        }
        Ok(Self(text.into()))
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The merchant of whoever says nothing else.
pub fn default_merchant() -> Merchant {
    Text("default".into())
}

/// The characters with the Unicode property `Bidi_Control`.
fn is_bidirectional_control(character: char) -> bool {
    matches!(
        character,
        '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
    )
}

impl<const MAX: usize> std::fmt::Display for Text<MAX> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl<const MAX: usize> Serialize for Text<MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, const MAX: usize> Deserialize<'de> for Text<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reader)
    }
}

/// Reads a text without a copy in between.
struct Reader<const MAX: usize>;

impl<const MAX: usize> de::Visitor<'_> for Reader<MAX> {
    type Value = Text<MAX>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<MAX>, E> {
        Text::new(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// brianc/node-postgres#2080, magda-io/magda#3161: U+0000 reached the database and became a 500.
    #[test]
    fn what_breaks_the_rule_is_refused() {
        let refused = [
            ("", TextFault::Empty),
            ("a\0b", TextFault::Control),
            ("a\u{85}b", TextFault::Control),
            ("a\nb", TextFault::Control),
            ("a\u{202E}b", TextFault::Bidirectional),
            (" a", TextFault::OuterSpace),
            ("a\u{A0}", TextFault::OuterSpace),
            ("e\u{301}", TextFault::NotNormal),
            (".", TextFault::DotSegment),
            ("..", TextFault::DotSegment),
        ];
        for (text, fault) in refused {
            assert_eq!(Sku::new(text), Err(fault), "{text:?}");
        }
        assert_eq!(
            Sku::new("x".repeat(129)),
            Err(TextFault::TooLong { max: 128 })
        );
    }

    #[test]
    fn what_keeps_the_rule_is_taken_unchanged() {
        for text in [
            "a",
            "SKU-COFFEE-1KG",
            "caf\u{E9}",
            "a b",
            "...",
            "咖啡",
            "a/b?c",
        ] {
            assert_eq!(Sku::new(text).unwrap().as_str(), text);
        }
        assert!(Sku::new("x".repeat(128)).is_ok());
        assert!(
            Sku::new("é".repeat(64)).is_ok(),
            "the limit counts bytes, and this has 128"
        );
    }
}
