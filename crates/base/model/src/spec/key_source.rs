use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, value::MapAccessDeserializer},
};

use crate::{Invalid, KeySource};

/// Where the key of a call is read. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeySpec {
    /// The header with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The cookie with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// The query parameter with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
}

/// Sources of a key in order, written as one source or a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySpecs(pub Vec<KeySpec>);

impl KeySpec {
    fn validate(&self) -> Result<KeySource, Invalid> {
        match (&self.header, &self.cookie, &self.query) {
            (Some(name), None, None) => Ok(KeySource::Header(name.to_ascii_lowercase())),
            (None, Some(name), None) => Ok(KeySource::Cookie(name.clone())),
            (None, None, Some(name)) => Ok(KeySource::Query(name.clone())),
            _ => {
                let problem = "needs exactly one of 'header', 'cookie' and 'query'";
                Err(Invalid::new("", problem, "write one of them, such as header: x-user"))
            }
        }
    }

    fn of(source: &KeySource) -> Self {
        let mut spec = Self::default();
        match source {
            KeySource::Header(name) => spec.header = Some(name.clone()),
            KeySource::Cookie(name) => spec.cookie = Some(name.clone()),
            KeySource::Query(name) => spec.query = Some(name.clone()),
        }
        spec
    }
}

impl KeySpecs {
    /// Whether there are no sources.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn validate(&self) -> Result<Vec<KeySource>, Invalid> {
        let Self(sources) = self;
        let source = |(i, source): (usize, &KeySpec)| match sources.len() {
            1 => source.validate(),
            _ => source.validate().map_err(|e| e.within(format!("[{i}]"))),
        };
        sources.iter().enumerate().map(source).collect()
    }

    pub(super) fn of(sources: &[KeySource]) -> Self {
        Self(sources.iter().map(KeySpec::of).collect())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for KeySpecs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeySpecs".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let (one, several) =
            (generator.subschema_for::<KeySpec>(), generator.subschema_for::<Vec<KeySpec>>());
        schemars::json_schema!({ "description": "Sources of a key, in order.", "anyOf": [one, several] })
    }
}

impl Serialize for KeySpecs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &*self.0 {
            [only] => only.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for KeySpecs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeySpecsVisitor)
    }
}

/// A hand-written visitor, since errors of an untagged enum would not name the wrong field.
struct KeySpecsVisitor;

impl<'de> de::Visitor<'de> for KeySpecsVisitor {
    type Value = KeySpecs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a source such as {header: x-user}, or a list of sources")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<KeySpecs, A::Error> {
        KeySpec::deserialize(MapAccessDeserializer::new(map)).map(|only| KeySpecs(vec![only]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeySpecs, A::Error> {
        let mut sources = Vec::new();
        while let Some(source) = list.next_element()? {
            sources.push(source);
        }
        Ok(KeySpecs(sources))
    }
}
