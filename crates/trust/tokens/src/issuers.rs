//! The token issuers that the mesh knows. They verify the tokens of callers.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use fairmesh_model::TokenIssuers;
use fairmesh_router::{TokenRefusal, TokenVerifier, UserToken};
use serde::Deserialize;

use crate::{KeySet, LEEWAY, Refusal, claims::user_token, read_claims, read_header, valid_until};

/// The issuers in the record, with their public keys.
#[derive(Debug)]
pub struct Issuers {
    /// Keys by issuer; `None` until the record is known.
    known: Option<BTreeMap<String, KeySet>>,
    /// Returns the time since 1970.
    clock: fn() -> Duration,
}

impl Issuers {
    /// Creates the state in which the record is not known yet.
    pub const fn unknown(clock: fn() -> Duration) -> Self {
        Self { known: None, clock }
    }

    /// Reads the issuers of a record. Issuers whose keys cannot be read are skipped, and returned by name.
    pub fn of(record: &TokenIssuers, clock: fn() -> Duration) -> (Self, Vec<&str>) {
        let (mut known, mut unreadable) = (BTreeMap::new(), Vec::new());
        for one in &record.issuers {
            match KeySet::parse(&one.keys) {
                Ok(keys) => drop(known.insert(one.issuer.clone(), keys)),
                Err(_) => unreadable.push(&*one.issuer),
            }
        }
        (Self { known: Some(known), clock }, unreadable)
    }

    /// Verifies a token with the keys of the issuer that the token names. The issuer's name is trusted only after one
    /// of these keys has verified the signature.
    fn find(known: &BTreeMap<String, KeySet>, token: &str, now: Duration) -> Result<UserToken, Refusal> {
        let (algorithm, key_id) = read_header(token)?;
        let unknown = || Refusal::claim("iss", "names no issuer that the mesh knows");
        let (issuer, keys) =
            stated_issuer(token).and_then(|named| known.get_key_value(&named)).ok_or_else(unknown)?;
        let key = keys.find(key_id.as_deref(), algorithm).ok_or(Refusal::UnknownKey)?;
        let claims = read_claims(token, algorithm, key)?;
        let valid_for = (valid_until(&claims, now)? + LEEWAY).saturating_sub(now);
        Ok(user_token(issuer.clone(), valid_for, &claims))
    }
}

impl TokenVerifier for Issuers {
    fn verify(&self, token: &str) -> Result<UserToken, TokenRefusal> {
        let known = self.known.as_ref().ok_or(TokenRefusal::Unknown)?;
        Self::find(known, token, (self.clock)()).map_err(|problem| TokenRefusal::Refused(problem.to_string()))
    }
}

/// Returns the issuer named in a token's claims, without verification.
fn stated_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Stated {
        iss: String,
    }
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Stated>(&claims).ok().map(|stated| stated.iss)
}
