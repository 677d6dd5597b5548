//! One-time join tokens, for agents and for programs without an agent.

use std::{fmt, str::FromStr, time::Duration};

use aws_lc_rs::{
    digest, hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

use fairmesh_model::Invalid;
use fairmesh_wire::environment;

use crate::{IdentityError, Joining};

/// Maximum validity of a token.
pub const MAX_TOKEN_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Prefix of every token, by which secret scanners recognise tokens.
const PREFIX: &str = "fairmesh-join-";
const ID: usize = 8;
const SECRET: usize = 32;
const DIGEST: usize = 32;

/// A token: its id, a secret that is never sent, and the digest of the root that the joining process trusts.
#[derive(Clone)]
pub struct JoinToken {
    pub(crate) id: [u8; ID],
    pub(crate) secret: [u8; SECRET],
    pub(crate) root: [u8; DIGEST],
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl JoinToken {
    /// Generates a token. Processes that join with it trust this root.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub(crate) fn generate(root: &[u8]) -> Result<Self, IdentityError> {
        let mut token = Self { id: [0; ID], secret: [0; SECRET], root: digest(root) };
        let random = SystemRandom::new();
        random.fill(&mut token.id).map_err(IdentityError::crypto)?;
        random.fill(&mut token.secret).map_err(IdentityError::crypto)?;
        Ok(token)
    }

    /// Returns the token's id, which does not reveal the secret.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// Proves knowledge of the secret. The proof is valid only for this name, region and key.
    pub fn proof(&self, joining: &Joining, region: &str, request: &[u8]) -> Vec<u8> {
        hmac::sign(&key(&self.secret), &proved(joining, region, request)).as_ref().to_vec()
    }

    /// Reads the token from `FAIRMESH_JOIN_TOKEN`; `None` if the variable is unset or empty. A command-line argument
    /// was rejected, because it would be visible in process lists.
    ///
    /// # Errors
    /// When the variable does not contain a token.
    pub fn of_environment() -> Result<Option<Self>, Invalid> {
        let Some(text) = environment::join_token() else { return Ok(None) };
        let invalid = |_| {
            let hint = "copy it as a whole, as `fairmesh identity token` prints it";
            Invalid::new(environment::JOIN_TOKEN, "is no join token", hint)
        };
        text.parse().map(Some).map_err(invalid)
    }

    /// Returns the text of the token, which is secret. There is no [`fmt::Display`], which would be too easy to log.
    pub fn reveal(&self) -> String {
        let bytes = [&self.id[..], &self.secret, &self.root].concat();
        format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// Whether a proof was made with this token's secret.
pub(crate) fn is_proved(
    secret: &[u8],
    (joining, region): (&Joining, &str),
    request: &[u8],
    proof: &[u8],
) -> bool {
    hmac::verify(&key(secret), &proved(joining, region, request), proof).is_ok()
}

fn key(secret: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

/// Encodes the fields that a proof covers. Names contain no zero byte. Agents of the previous release send no region.
fn proved(joining: &Joining, region: &str, request: &[u8]) -> Vec<u8> {
    let name = joining.to_string();
    let name = name.as_bytes();
    match joining {
        Joining::Service(_) => [b"fairmesh join service\0", name, b"\0", request].concat(),
        Joining::Agent(_) if region.is_empty() => [b"fairmesh join\0", name, b"\0", request].concat(),
        Joining::Agent(_) => [b"fairmesh join 2\0", name, b"\0", region.as_bytes(), b"\0", request].concat(),
    }
}

/// Returns the SHA-256 digest of `bytes`.
pub fn digest(bytes: &[u8]) -> [u8; DIGEST] {
    let mut out = [0; DIGEST];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(IdentityError::InvalidToken)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| IdentityError::InvalidToken)?;
        let bytes: [u8; ID + SECRET + DIGEST] = bytes.try_into().map_err(|_| IdentityError::InvalidToken)?;
        let mut token = Self { id: [0; ID], secret: [0; SECRET], root: [0; DIGEST] };
        token.id.copy_from_slice(&bytes[..ID]);
        token.secret.copy_from_slice(&bytes[ID..ID + SECRET]);
        token.root.copy_from_slice(&bytes[ID + SECRET..]);
        Ok(token)
    }
}
