//! Messages that keep the fields which are not modelled.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{
    DecodeContext, WireType, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Message};

/// A message that knows which fields it models.
pub trait Fields: Message + Default {
    /// Name in the schema.
    const NAME: &'static str;
    /// Numbers of the fields that are modelled.
    const KNOWN: &'static [u32];
}

/// A message together with the fields of its encoding that it does not model.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Kept<M> {
    /// The modelled fields.
    pub message: M,
    /// The other fields with their keys, in order of appearance; written behind the modelled ones.
    pub unknown: Vec<u8>,
}

impl<M> From<M> for Kept<M> {
    fn from(message: M) -> Self {
        Kept { message, unknown: Vec::new() }
    }
}

impl<M> std::ops::Deref for Kept<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M> std::ops::DerefMut for Kept<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.message
    }
}

impl<M: Fields> Message for Kept<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.message.encode_raw(buf);
        buf.put_slice(&self.unknown);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if M::KNOWN.contains(&tag) {
            return self.message.merge_field(tag, wire_type, buf, ctx);
        }
        let out = &mut self.unknown;
        let fixed = match wire_type {
            WireType::Varint => {
                let value = decode_varint(buf)?;
                encode_key(tag, wire_type, out);
                encode_varint(value, out);
                return Ok(());
            }
            // The schema has no groups, and prost cannot say what is in one without losing it.
            WireType::StartGroup | WireType::EndGroup => {
                return skip_field(WireType::EndGroup, tag, buf, ctx);
            }
            WireType::LengthDelimited => decode_varint(buf)?,
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
        };
        let len = usize::try_from(fixed).ok().filter(|&n| n <= buf.remaining());
        let Some(len) = len else {
            // prost's own error for a field that reaches beyond its message.
            return skip_field(WireType::SixtyFourBit, tag, &mut &[][..], ctx);
        };
        encode_key(tag, wire_type, out);
        if wire_type == WireType::LengthDelimited {
            encode_varint(fixed, out);
        }
        out.put(buf.take(len));
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len() + self.unknown.len()
    }

    fn clear(&mut self) {
        self.message.clear();
        self.unknown.clear();
    }
}

/// Implements [`Fields`]: message, name in the schema, numbers of the modelled fields.
macro_rules! fields {
    ($($message:ident $name:literal [$($tag:literal),*];)*) => {
        $(impl crate::package::proto::Fields for $message {
            const NAME: &'static str = $name;
            const KNOWN: &'static [u32] = &[$($tag),*];
        })*
    };
}

pub(super) use fields;
