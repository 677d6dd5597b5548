//! Responses with issued certificates. A response answers one request and is signed, because replicas forward it.

use std::time::Duration;

use fairmesh_model::{MeshRole, SpiffePath, TrustBundle};
use fairmesh_wire::v1::{IssueResponse, SignedMessage};
use prost::Message as _;
use tonic::Status;

use crate::{
    Trust,
    renewal::Certified,
    signed::{self, Purpose},
};

/// Opens the response to the request with this `csr`, and verifies that a control plane signed it.
///
/// # Errors
/// When the signature or the request does not fit.
pub fn open(
    trust: &Trust,
    csr: &[u8],
    response: &SignedMessage,
    now: Duration,
) -> Result<IssueResponse, Status> {
    let signer = signed::verify(trust, Purpose::IssueResponse, csr, response, now).map_err(refused)?;
    if !matches!(signer.path, SpiffePath::Mesh(MeshRole::Control, _)) {
        return Err(refused(format!("{signer} is no control plane")));
    }
    IssueResponse::decode(response.payload.clone()).map_err(refused)
}

/// The certificate in a response, verified as by [`open`].
///
/// # Errors
/// The same.
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

/// The roots in a response that is not verified yet.
///
/// # Errors
/// When the response holds no roots.
pub fn bundle(response: &SignedMessage) -> Result<TrustBundle, Status> {
    let decoded = IssueResponse::decode(response.payload.clone()).map_err(refused)?;
    decoded.bundle.unwrap_or_default().try_into().map_err(refused)
}

/// Error for a response that is refused.
pub fn refused(error: impl ToString) -> Status {
    Status::unauthenticated(format!("the response of the control plane is refused: {}", error.to_string()))
}
