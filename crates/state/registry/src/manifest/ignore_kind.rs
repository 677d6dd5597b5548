//! Deserializes a struct that has no field `kind`, without buffering, because buffers lose positions.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor, value::StringDeserializer},
    forward_to_deserialize_any,
};

/// Deserializes like the inner deserializer, but skips the key `kind` of the outermost map.
pub(super) struct IgnoreKind<D>(pub(super) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for IgnoreKind<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(SkipKind(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, SkipKind(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct SkipKind<T>(T);

impl<'de, V: Visitor<'de>> Visitor<'de> for SkipKind<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(SkipKind(map))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for SkipKind<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            match self.0.next_key_seed(KeySeed(seed))? {
                None => return Ok(None),
                Some(Key::Field(field)) => return Ok(Some(field)),
                Some(Key::Kind(unused)) => seed = unused,
            }
            self.0.next_value::<serde::de::IgnoredAny>()?;
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}

/// A key of the map: `kind`, or any other key. For `kind`, returns the unused seed.
enum Key<K, V> {
    Kind(K),
    Field(V),
}

/// Reads the key within its own deserializer, so that an error has the position of the key.
struct KeySeed<K>(K);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<K> {
    type Value = Key<K, K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let key = String::deserialize(deserializer)?;
        if key == "kind" {
            return Ok(Key::Kind(self.0));
        }
        let key: StringDeserializer<D::Error> = key.into_deserializer();
        self.0.deserialize(key).map(Key::Field)
    }
}
