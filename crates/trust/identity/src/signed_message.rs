//! Messages signed with a certificate's key, so that untrusted processes can forward them.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::SpiffeId;
use fairmesh_wire::v1::SignedMessage;
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::{Credentials, IdentityError, Refused, Trust, Usage};

/// Purpose of a signature. A signature made for one purpose is invalid for every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Signs an `IssueRequest`.
    IssueRequest,
    /// Signs an `IssueResponse`. It is bound to the signing request, so that an older response does not match a newer
    /// request.
    IssueResponse,
    /// Signs a `CallStatement`.
    CallStatement,
}

impl Purpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::IssueRequest => b"fairmesh issue request 1\0",
            Self::IssueResponse => b"fairmesh issue response 1\0",
            Self::CallStatement => b"fairmesh call statement 1\0",
        }
    }
}

/// Signs a message. The signature also covers `bound`, which is not sent because both sides know it, such as the
/// request to which a response belongs.
///
/// # Errors
/// When signing fails.
pub fn sign(
    credentials: &Credentials,
    purpose: Purpose,
    bound: &[u8],
    payload: Vec<u8>,
) -> Result<SignedMessage, IdentityError> {
    let signature = credentials.key.sign(&signed(purpose, bound, &payload))?;
    let chain = credentials.chain.iter().map(|one| Bytes::copy_from_slice(one)).collect();
    Ok(SignedMessage { chain, payload: payload.into(), signature: signature.into() })
}

/// Verifies a message and returns its signer.
///
/// # Errors
/// [`Refused`] when the chain or the signature is invalid.
pub fn verify(
    trust: &Trust,
    purpose: Purpose,
    bound: &[u8],
    message: &SignedMessage,
    now: Duration,
) -> Result<SpiffeId, Refused> {
    let chain: Vec<_> = message.chain.iter().map(|one| CertificateDer::from(&one[..])).collect();
    let usage = match purpose {
        Purpose::IssueRequest | Purpose::CallStatement => Usage::Client,
        Purpose::IssueResponse => Usage::Server,
    };
    let id = trust.verify(&chain, usage, now)?;
    let signer = EndEntityCert::try_from(&chain[0]).map_err(|_| Refused::Malformed)?;
    let text = signed(purpose, bound, &message.payload);
    signer
        .verify_signature(webpki::aws_lc_rs::ECDSA_P256_SHA256, &text, &message.signature)
        .map_err(|_| Refused::BadSignature)?;
    Ok(id)
}

/// Returns the bytes to sign. Lengths come first, so that no part can be mistaken for another.
fn signed(purpose: Purpose, bound: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = (bound.len() as u64).to_be_bytes();
    [purpose.label(), &length, bound, payload].concat()
}
