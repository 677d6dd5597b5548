//! Tokens of users, issued by an identity provider (OpenID Connect Core 1.0). They identify the user in
//! addition to the connection.
//!
//! A token is a JWT (RFC 7519) signed by the provider with a key of its JWKS (RFC 7517). This module finds the key and reads
//! user and groups from the claims; role bindings define their permissions. It stores no token, and no error or log
//! contains one.
//!
//! Only tokens of one issuer are accepted. User names are then unambiguous, and nothing in a token decides
//! where keys are fetched from. Opaque tokens, which need a request to the provider for each call, were
//! rejected: no call may wait for an external service.

mod claims;
mod config;
mod key_source;

use std::{sync::Arc, time::Duration};

use fairmesh_identity::{Clock, SystemClock};
use fairmesh_rib::access::User;
use fairmesh_tokens::{KeySet, Refusal, read_claims, read_header};
use tonic::Status;

pub(crate) use claims::Expected;
pub use config::{JwksLocation, OidcConfig};
use key_source::{KeySource, NoKey};

use crate::ControlError;

/// Determines the users of tokens. Without a configuration, all tokens are refused. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserTokens(Option<Arc<Verifier>>);

#[derive(Debug)]
struct Verifier {
    expected: Expected,
    keys: KeySource,
    clock: Arc<dyn Clock>,
}

impl UserTokens {
    /// Creates the verifier. Reads the keys if they are in a file; keys behind a URL are fetched by
    /// [`follow_keys`](Self::follow_keys).
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) async fn new(config: Option<&OidcConfig>) -> Result<Self, ControlError> {
        let Some(config) = config else { return Ok(Self(None)) };
        let keys = KeySource::new(config.jwks.clone(), config.ca_file.clone());
        keys.load_file().await.map_err(|error| ControlError::Jwks { problem: error.to_string() })?;
        let verifier = Verifier { expected: config.into(), keys, clock: Arc::new(SystemClock) };
        Ok(Self(Some(Arc::new(verifier))))
    }

    /// Keeps the keys up to date. Runs until dropped.
    pub(crate) async fn follow_keys(self) {
        match self.0 {
            Some(verifier) => verifier.keys.follow().await,
            None => std::future::pending().await,
        }
    }

    /// The user of a token. `is_secret` says that nobody else can read the connection on which the token
    /// came.
    ///
    /// # Errors
    /// The reason why the token is refused. Contains nothing of the token.
    pub(crate) async fn user(&self, is_secret: bool, token: &str) -> Result<Arc<User>, Status> {
        if !is_secret {
            return Err(Status::unauthenticated(
                "a token is taken over TLS or a Unix socket only, and this connection is plaintext: others may have read the \
                 token, so replace it, and use https, the gRPC port or the Unix socket of the control plane",
            ));
        }
        let Some(verifier) = &self.0 else {
            return Err(Status::unauthenticated(
                "this control plane takes no tokens of users: send none, or start it with --oidc-issuer-url, --oidc-client-id \
                 and --oidc-jwks",
            ));
        };
        verifier.user(token).await.map(Arc::new)
    }
}

impl Verifier {
    async fn user(&self, token: &str) -> Result<User, Status> {
        let (algorithm, key_id) = read_header(token).map_err(refused)?;
        let id = key_id.as_deref();
        let key = self.keys.key(id, algorithm).await.map_err(no_key)?;
        let claims = match read_claims(token, algorithm, &key) {
            Err(Refusal::Signature) => {
                let key = self.keys.reread_key(id, algorithm).await.map_err(no_key)?;
                read_claims(token, algorithm, &key)
            }
            read => read,
        };
        let claims = claims.map_err(refused)?;
        self.expected.user(&claims, self.clock.now()).map_err(refused)
    }
}

fn no_key(why: NoKey) -> Status {
    match why {
        NoKey::Unknown => refused(Refusal::UnknownKey),
        NoKey::NotLoaded => Status::unavailable(
            "the keys of the issuer of tokens are not known yet; the log of the control plane says why",
        ),
    }
}

/// Returns the user of a token that one of these keys verifies; `None` if the token is refused.
pub(crate) fn verify(token: &str, keys: &KeySet, expected: &Expected, now: Duration) -> Option<User> {
    let (algorithm, key_id) = read_header(token).ok()?;
    let key = keys.find(key_id.as_deref(), algorithm)?;
    expected.user(&read_claims(token, algorithm, key).ok()?, now).ok()
}

fn refused(refusal: Refusal) -> Status {
    Status::unauthenticated(format!("the token is refused: {refusal}; get a new one from its issuer"))
}

#[cfg(test)]
mod tests;
