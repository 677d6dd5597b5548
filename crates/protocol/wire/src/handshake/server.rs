#[cfg(feature = "server")]
use http::HeaderMap;
use tonic::{
    Code, Request, Status,
    metadata::{MetadataMap, MetadataValue},
};

#[cfg(feature = "server")]
use super::VERSION_KEY;
use super::{PROTOCOL, REFUSED_KEY, SOFTWARE_KEY};
use crate::v1::HelloRequest;

/// Picks the newest common version.
///
/// # Errors
/// `FAILED_PRECONDITION` if there is no common version, naming the side to upgrade; `INVALID_ARGUMENT` for an empty
/// range.
pub fn negotiate(request: &HelloRequest) -> Result<u32, Status> {
    let (oldest, newest) = (request.oldest_version, request.newest_version);
    if oldest == 0 || oldest > newest {
        return Err(Status::invalid_argument(format!(
            "the caller says that it speaks versions {oldest} to {newest}; send a first version of at least 1 and a \
             last one not below it"
        )));
    }
    if newest < *PROTOCOL.start() {
        return Err(unknown_version(newest));
    }
    if oldest > *PROTOCOL.end() {
        return Err(unknown_version(oldest));
    }
    Ok(newest.min(*PROTOCOL.end()))
}

fn unknown_version(spoken: u32) -> Status {
    let (oldest, newest) = (PROTOCOL.start(), PROTOCOL.end());
    let side = if spoken < *oldest { "the caller" } else { "the server" };
    version_refused(format!(
        "the caller speaks protocol version {spoken} and the server speaks {oldest} to {newest}; upgrade {side}"
    ))
}

fn version_refused(reason: String) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(REFUSED_KEY, MetadataValue::from_static("true"));
    Status::with_metadata(Code::FailedPrecondition, reason, metadata)
}

/// Whether a call was rejected because of its version. A new Hello then tells which side to upgrade.
pub fn is_version_refusal(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.metadata().contains_key(REFUSED_KEY)
}

#[cfg(feature = "server")]
pub(super) fn check(headers: &HeaderMap) -> Result<(), Status> {
    let Some(value) = headers.get(VERSION_KEY) else {
        return Err(version_refused(format!(
            "the call carries no '{VERSION_KEY}'; call fairmesh.v1.Rib/Hello first and send the version of its \
             response with every call"
        )));
    };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(version) if PROTOCOL.contains(&version) => Ok(()),
        Some(version) => Err(unknown_version(version)),
        None => Err(version_refused(format!(
            "'{VERSION_KEY}' is not a whole number; send the version in the response of fairmesh.v1.Rib/Hello"
        ))),
    }
}

/// The client's description of itself, for display; empty if it sent none. No decision may depend on it.
pub fn software_of<T>(request: &Request<T>) -> &str {
    request.metadata().get(SOFTWARE_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
