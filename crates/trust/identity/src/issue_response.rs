//! Responses with issued certificates. A response is signed and bound to one request, because replicas forward it.

use std::time::Duration;

use fairmesh_model::{MeshRole, SpiffePath, TrustBundle};
use fairmesh_wire::v1::{IssueResponse, SignedMessage};
use prost::Message as _;
use tonic::Status;

use crate::{
    Trust,
    renewal::Certified,
    signed_message::{self, Purpose},
};

/// Opens the response to the request with the signing request `csr`. Verifies that a control plane signed the
/// response.
///
/// # Errors
/// When the signature is invalid, or the response belongs to another request.
pub fn open(
    trust: &Trust,
    csr: &[u8],
    response: &SignedMessage,
    now: Duration,
) -> Result<IssueResponse, Status> {
    let signer =
        signed_message::verify(trust, Purpose::IssueResponse, csr, response, now).map_err(refused)?;
    if !matches!(signer.path, SpiffePath::Mesh(MeshRole::Control, _)) {
        return Err(refused(format!("{signer} is no control plane")));
    }
    IssueResponse::decode(response.payload.clone()).map_err(refused)
}

/// Opens a response like [`open`], and returns its certificate and roots.
///
/// # Errors
/// As for [`open`].
pub fn certified(
    trust: &Trust,
    csr: &[u8],
    response: &SignedMessage,
    now: Duration,
) -> Result<Certified, Status> {
    let opened = open(trust, csr, response, now)?;
    let chain = opened.chain.iter().map(|one| one.to_vec().into()).collect();
    Ok(Certified { chain, bundle: bundle(response)? })
}

/// Returns the roots in a response that is not verified yet.
///
/// # Errors
/// When the response has no roots.
pub fn bundle(response: &SignedMessage) -> Result<TrustBundle, Status> {
    let decoded = IssueResponse::decode(response.payload.clone()).map_err(refused)?;
    decoded.bundle.unwrap_or_default().try_into().map_err(refused)
}

/// Returns the error for a refused response.
pub fn refused(error: impl ToString) -> Status {
    Status::unauthenticated(format!("the response of the control plane is refused: {}", error.to_string()))
}
