//! Statements of calls: a process signs each call that others forward, so that they can neither alter nor forge
//! calls.
//!
//! A statement covers the path, the message and the program on whose behalf the call is made. It is valid for as long
//! as a call may take. Authentication by the connection alone was rejected: it ends at the first process that
//! forwards the call.

use std::time::Duration;

use fairmesh_model::SpiffeId;
use fairmesh_wire::{
    transport::StatedCall,
    v1::{CallStatement, SignedMessage},
};
use prost::Message as _;

use crate::{
    CLOCK_SKEW, Credentials, IdentityError, Refused, Trust,
    join_token::digest,
    signed_message::{self, Purpose},
};

/// Validity of a statement, excluding clock skew.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Why a statement does not authenticate a caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatementRefused {
    /// The bytes are not a statement.
    #[error("the statement of the call cannot be read")]
    Unreadable,
    /// The signature or the signer is invalid.
    #[error("the statement of the call is refused: {0}")]
    NotSigned(#[from] Refused),
    /// The statement is too old, or has a time in the future.
    #[error("the statement of the call was signed at another time; check the clocks of both machines")]
    Late,
    /// The statement belongs to another call.
    #[error("the statement is of another call: what its sender stated was altered on its way")]
    Altered,
}

/// Signs a statement of a call.
///
/// # Errors
/// When signing fails.
pub fn state(
    credentials: &Credentials,
    call: StatedCall<'_>,
    now: Duration,
) -> Result<Vec<u8>, IdentityError> {
    let statement = CallStatement {
        path: call.path.to_owned(),
        on_behalf_of: call.on_behalf_of.to_owned(),
        digest: digest(call.message).to_vec().into(),
        signed_at: now.as_secs(),
    };
    let signed = signed_message::sign(credentials, Purpose::CallStatement, b"", statement.encode_to_vec())?;
    Ok(signed.encode_to_vec())
}

/// Verifies the statement of a call and returns the caller.
///
/// # Errors
/// [`StatementRefused`] unless the statement belongs to this call.
pub fn verify(
    trust: &Trust,
    statement: &[u8],
    call: StatedCall<'_>,
    now: Duration,
) -> Result<SpiffeId, StatementRefused> {
    let signed = SignedMessage::decode(statement).map_err(|_| StatementRefused::Unreadable)?;
    let signer = signed_message::verify(trust, Purpose::CallStatement, b"", &signed, now)?;
    let CallStatement { path, on_behalf_of, digest: stated, signed_at } =
        CallStatement::decode(signed.payload).map_err(|_| StatementRefused::Unreadable)?;
    if now.abs_diff(Duration::from_secs(signed_at)) > CLOCK_SKEW + MAX_AGE {
        return Err(StatementRefused::Late);
    }
    let is_this =
        path == call.path && on_behalf_of == call.on_behalf_of && stated[..] == digest(call.message);
    if is_this { Ok(signer) } else { Err(StatementRefused::Altered) }
}
