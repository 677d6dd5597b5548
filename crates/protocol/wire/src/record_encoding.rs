//! Encoding of the values of RIB keys.
//!
//! The key determines the message type of its value, so values have no type tag. Readers validate values again: bytes
//! may come from an older writer, a foreign client of the store or a damaged disk, and invalid values must not reach
//! a router.

use bytes::Bytes;
use fairmesh_model::{Invalid, Policy, PolicyField, Record, RecordKey, Traffic};
use prost::Message;

use crate::{shard_encoding, v1};

#[cfg(test)]
mod tests;

/// Maximum length of a value, in bytes. etcd rejects requests above 1.5 MB, and a batch contains several values.
pub const MAX_VALUE: usize = 256 * 1024;

/// Number of bytes by which values with history must be shorter, so that the history entry of a value also fits.
const HISTORY_OVERHEAD: usize = 4 * 1024;

/// An earlier value of a record, as stored at [`RecordKey::History`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The key of the record.
    pub key: RecordKey,
    /// The value; `None` if the record did not exist.
    pub value: Option<Bytes>,
    /// Time at which the value was replaced, in milliseconds since 1970.
    pub replaced_at_ms: u64,
    /// Name of the user who replaced the value.
    pub replaced_by: String,
    /// Reason for the replacement, as given by that user.
    pub replaced_message: String,
    /// The revision that wrote the value; 0 if the record did not exist.
    pub revision: u64,
}

macro_rules! codec {
    ($(
        $scope:ident { $(
            $(#[$doc:meta])*
            $key:ident $(($($field:tt)+))? at $at:tt => $value:ident($type:ident) $rules:tt
        )* }
    )*) => {
        /// Encodes a record. The encoding is unique: equal bytes mean an unchanged record.
        pub fn encode(record: &Record) -> Bytes {
            match record.clone() {
                $($(Record::$value(record) => bytes(&v1::$type::from(record)),)*)*
            }
        }

        /// Decodes the value at a key; `None` for keys whose values are not [`Record`]s.
        fn decode_value(key: &RecordKey, value: &[u8]) -> Result<Option<Record>, Invalid> {
            Ok(Some(match key {
                $($(RecordKey::$key { .. } => Record::$value(message::<v1::$type>(value)?.try_into()?),)*)*
                RecordKey::ShardManifest(..)
                | RecordKey::ShardChunk(..)
                | RecordKey::History(..)
                | RecordKey::MeshHistory(..) => return Ok(None),
            }))
        }
    };
}

// The message of a kind has the name of the kind's value.
fairmesh_model::record_kinds!(codec);

/// Decodes the value of `key`, and checks that the value belongs to this key.
///
/// # Errors
/// [`Invalid`] if the bytes are not a valid record of this key. Also for keys without a [`Record`]: parts of shard
/// maps ([`shard_encoding::decode_map`]) and history ([`decode_history`]).
pub fn decode(key: &RecordKey, value: &[u8]) -> Result<Record, Invalid> {
    let Some(record) = decode_value(key, value)? else {
        let problem = format!("{key} holds no record of its own");
        return Err(Invalid::new("key", problem, "read shard maps and history as a whole"));
    };
    check_key_fields(key, &record)?;
    Ok(record)
}

/// Checks that fields present in both key and record are equal.
fn check_key_fields(key: &RecordKey, record: &Record) -> Result<(), Invalid> {
    let (field, said, found) = match (key, record) {
        (RecordKey::Endpoint(_, region, instance), Record::Endpoint(endpoint)) => {
            if *region != endpoint.location.region {
                ("location.region", region.to_string(), endpoint.location.region.to_string())
            } else {
                ("instance", instance.to_string(), endpoint.instance.to_string())
            }
        }
        (RecordKey::Move(_, shard), Record::Move(wish)) => {
            ("shard", shard.to_string(), wish.shard.to_string())
        }
        _ => return Ok(()),
    };
    if said == found {
        return Ok(());
    }
    let problem = format!("is '{found}', but the key has '{said}'");
    Err(Invalid::new(field, problem, "write the record at its own key"))
}

/// Encodes an earlier value of a record.
pub fn encode_history(history: &History) -> Bytes {
    let History { key, value, replaced_at_ms, replaced_by, replaced_message, revision } = history.clone();
    bytes(&v1::History {
        key: key.to_string(),
        value,
        replaced_at_ms,
        replaced_by,
        revision,
        replaced_message,
    })
}

/// Decodes an earlier value, and the record in it.
///
/// # Errors
/// [`Invalid`] if the bytes are not a history entry, or if the record has no history.
pub fn decode_history(value: &[u8]) -> Result<History, Invalid> {
    let v1::History { key, value, replaced_at_ms, replaced_by, revision, replaced_message } = message(value)?;
    let key = RecordKey::parse(&key)?;
    if key.kind().kept_name().is_none() {
        let problem = format!("{key} has no history");
        return Err(Invalid::new("key", problem, "keep history of configuration only"));
    }
    if let Some(value) = &value {
        decode(&key, value).map_err(|e| e.within("value"))?;
    }
    Ok(History { key, value, replaced_at_ms, replaced_by, replaced_message, revision })
}

/// Whether validating a value at `key` may be expensive. This is the case for policies, whose regular expressions are
/// compiled. See [`crate::run_blocking`].
pub fn is_costly(key: &str) -> bool {
    key.contains("/policies/")
}

/// Extracts the authorization of a policy as the value of a separate record; `None` if the policy has none. A policy
/// that cannot be decoded may have rules, and counts as one that allows no caller.
pub fn rules_of(policy: &[u8]) -> Option<Bytes> {
    let rules = v1::Policy::decode(policy).map(|policy| policy.authorization);
    rules.unwrap_or_else(|_| Some(v1::Authorization::default())).map(|rules| bytes(&rules))
}

/// Replaces the authorization of a policy by `rules`. Without a policy, adds the rules to the default policy. `None`
/// if both are missing. Rules that cannot be decoded are replaced by rules that allow no caller.
pub fn with_rules(policy: Option<&[u8]>, rules: Option<&[u8]>) -> Option<Bytes> {
    if policy.is_none() && rules.is_none() {
        return None;
    }
    let policy = policy.and_then(|policy| v1::Policy::decode(policy).ok());
    let policy = policy.unwrap_or_else(|| v1::Policy::from(Policy::default()));
    let authorization = rules.map(|rules| v1::Authorization::decode(rules).unwrap_or_default());
    Some(bytes(&v1::Policy { authorization, ..policy }))
}

/// The number of routes of a policy. Does not compile its regular expressions.
pub fn route_count(policy: &[u8]) -> usize {
    v1::Policy::decode(policy).unwrap_or_default().routes.len()
}

/// Whether a policy keeps calls within the caller's region. Does not compile its regular expressions.
pub fn is_local_only(policy: &[u8]) -> bool {
    v1::Policy::decode(policy).unwrap_or_default().local_only
}

/// Whether a policy permits plaintext in a mesh with a trust domain. Does not compile its regular expressions.
pub fn permits_plaintext(policy: &[u8]) -> bool {
    v1::Policy::decode(policy).unwrap_or_default().mtls() == v1::policy::Mtls::Permissive
}

/// Whether a policy prefers the caller's zone. Does not compile its regular expressions.
pub fn is_zone_first(policy: &[u8]) -> bool {
    v1::Policy::decode(policy).unwrap_or_default().zone_first
}

/// Number of endpoints to which a caller keeps connections by its policy; 0 is all. Does not compile its regular
/// expressions.
pub fn subset(policy: &[u8]) -> u32 {
    v1::Policy::decode(policy).unwrap_or_default().subset
}

/// How a policy divides calls among regions; `None` if the policy does not say. Does not compile its regular
/// expressions.
///
/// # Errors
/// If the division is invalid, such as a planner of a later release.
pub fn traffic(policy: &[u8]) -> Result<Option<Traffic>, Invalid> {
    let Some(traffic) = message::<v1::Policy>(policy)?.traffic else { return Ok(None) };
    let traffic = Traffic::try_from(traffic)?;
    traffic.validate()?;
    Ok(Some(traffic))
}

/// Whether a policy disables the planner, regardless of the defaults of tenant and mesh.
pub fn refuses_planner(policy: &[u8]) -> bool {
    let restated = v1::Policy::decode(policy).unwrap_or_default().restated;
    restated.iter().any(|path| PolicyField::at_path(path) == Some(PolicyField::Traffic))
}

/// Whether a policy contains regular expressions. Does not compile them.
pub fn has_expressions(policy: &[u8]) -> bool {
    let of_path = |path: &Option<v1::r#match::Path>| matches!(path, Some(v1::r#match::Path::PathRegex(_)));
    let of_text = |text: &v1::HeaderMatch| matches!(text.value, Some(v1::header_match::Value::Regex(_)));
    let policy = v1::Policy::decode(policy).unwrap_or_default();
    let mut wanted = policy.routes.iter().filter_map(|route| route.r#match.as_ref());
    wanted.any(|wanted| of_path(&wanted.path) || wanted.headers.iter().chain(&wanted.query).any(of_text))
}

/// Validates an entry before a server writes it: `key` must be a canonical RIB key, and `value` must be valid for the
/// key and within the size limit. Also accepts parts of shard maps and history.
pub fn check(key: &str, value: &[u8]) -> Result<RecordKey, Invalid> {
    let parsed = RecordKey::parse(key)?;
    let spelling = parsed.to_string();
    if spelling != key {
        // Two spellings of one key would be two entries that readers take for the same record.
        return Err(Invalid::new(
            "key",
            format!("'{key}' is not in canonical form"),
            format!("write {spelling}"),
        ));
    }
    let longest = match parsed {
        RecordKey::History(..) | RecordKey::MeshHistory(..) => MAX_VALUE,
        _ => MAX_VALUE - HISTORY_OVERHEAD,
    };
    if value.len() > longest {
        let problem = format!("has {} bytes", value.len());
        return Err(Invalid::new(
            key,
            problem,
            format!("keep it to {longest}; split it into several records"),
        ));
    }
    check_value(&parsed, value).map_err(|e| e.within(key))?;
    Ok(parsed)
}

fn check_value(key: &RecordKey, value: &[u8]) -> Result<(), Invalid> {
    match key {
        RecordKey::ShardManifest(_, part) => shard_encoding::check_manifest(part, value),
        RecordKey::ShardChunk(_, part, hash) => shard_encoding::check_chunk(part, *hash, value),
        RecordKey::History(..) | RecordKey::MeshHistory(..) => {
            let history = decode_history(value)?;
            let is_own = match key {
                RecordKey::History(kind, service, _) => {
                    history.key.kind() == *kind && history.key.service() == Some(service)
                }
                RecordKey::MeshHistory(kind, _) => history.key.kind() == *kind,
                _ => false,
            };
            if is_own {
                return Ok(());
            }
            let problem = format!("{} is another record's key", history.key);
            Err(Invalid::new("key", problem, "write history below the record that it is about"))
        }
        _ => decode(key, value).map(|_| ()),
    }
}

pub(crate) fn bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

pub(crate) fn message<M: Message + Default>(value: &[u8]) -> Result<M, Invalid> {
    M::decode(value).map_err(|error| {
        let problem = format!("the bytes are not a {}: {error}", short_name::<M>());
        Invalid::new("", problem, "write the record again, or upgrade this side")
    })
}

fn short_name<M>() -> &'static str {
    let name = std::any::type_name::<M>();
    name.rsplit("::").next().unwrap_or(name)
}
