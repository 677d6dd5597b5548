//! The keys with which an authority signs JWT-SVIDs, and their rotation.
//!
//! They sign nothing else, and the intermediate signs no token: verifiers of tokens know no certificates. A key is
//! published some time before it signs, since verifiers fetch keys now and then.

use std::{path::Path, time::Duration};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64_URL},
};
use fairmesh_model::{JwtKey, MAX_JWT_KEYS, SpiffeId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Authority, digest};
use crate::{IdentityError, PrivateKey, jwt_svid::check_audience, pem_files};

/// File with the keys. Secret.
const FILE: &str = "jwt-keys.json";
/// Validity of a JWT-SVID. Short, since whoever sees a token can repeat it.
const JWT_LIFETIME: Duration = Duration::from_secs(300);
/// Time for which a key signs.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time for which a key is published before it signs.
const PUBLISHED_BEFORE: Duration = Duration::from_secs(4 * 3600);
/// Time for which a key is published after its period, in case a control plane that was away signs with it.
const PUBLISHED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Signs JWT-SVIDs.
#[derive(Debug, Default)]
pub(super) struct JwtSigner {
    keys: Vec<SigningKey>,
    /// Keys that were withdrawn and have not expired. The record may still have them, also after a restart.
    withdrawn: Vec<SigningKey>,
}

#[derive(Debug)]
struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
    public: JwtKey,
    saved: SavedKey,
}

/// A key on disk.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedKey {
    /// PKCS #8 in base64.
    key: String,
    /// Time from which the key signs, in seconds since 1970.
    signs_from: u64,
    /// Whether the key was withdrawn: it signs nothing and verifies nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_withdrawn: bool,
}

impl std::fmt::Debug for SavedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedKey").field("signs_from", &self.signs_from).finish_non_exhaustive()
    }
}

impl SigningKey {
    fn generate(signs_from: Duration) -> Result<Self, IdentityError> {
        let key = BASE64_STANDARD.encode(PrivateKey::generate()?.pkcs8());
        Self::of(SavedKey { key, signs_from: signs_from.as_secs(), is_withdrawn: false })
    }

    fn of(saved: SavedKey) -> Result<Self, IdentityError> {
        let pkcs8 = BASE64_STANDARD.decode(&saved.key).map_err(IdentityError::crypto)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8);
        let pair = pair.map_err(IdentityError::crypto)?;
        // An uncompressed point: 4, x and y.
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let [x, y] = [x, y].map(|part| BASE64_URL.encode(part));
        // RFC 7638: these members alone, in this order.
        let thumbprint = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        let id = BASE64_URL.encode(digest(thumbprint.as_bytes()));
        let jwk = json!({ "crv": "P-256", "kid": id, "kty": "EC", "x": x, "y": y }).to_string().into_bytes();
        let end = Duration::from_secs(saved.signs_from) + PERIOD + PUBLISHED_AFTER;
        Ok(Self { pair, id, public: JwtKey { jwk, expires_at: Some(end.as_secs()) }, saved })
    }

    fn signs_from(&self) -> Duration {
        Duration::from_secs(self.saved.signs_from)
    }

    fn is_expired(&self, now: Duration) -> bool {
        self.signs_from() + PERIOD + PUBLISHED_AFTER <= now
    }

    fn sign(&self, claims: &str) -> Result<String, IdentityError> {
        let header = json!({ "alg": "ES256", "kid": self.id, "typ": "JWT" }).to_string();
        let message = format!("{}.{}", BASE64_URL.encode(header), BASE64_URL.encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes());
        let signature = BASE64_URL.encode(signature.map_err(IdentityError::crypto)?);
        Ok(format!("{message}.{signature}"))
    }
}

impl JwtSigner {
    /// Reads the keys in the folder of an authority, and creates one if none is valid.
    pub(super) fn open(folder: &Path, now: Duration) -> Result<Self, IdentityError> {
        let path = folder.join(FILE);
        let saved: Vec<SavedKey> = match pem_files::read(&path)? {
            Some(content) => serde_json::from_slice(&content).map_err(|error| {
                let problem = format!("holds no keys for JWT-SVIDs: {error}");
                IdentityError::InvalidFile { path, problem }
            })?,
            None => Vec::new(),
        };
        let saved = saved.into_iter().map(SigningKey::of).collect::<Result<Vec<_>, _>>()?;
        let (withdrawn, keys) = saved.into_iter().partition(|key| key.saved.is_withdrawn);
        let mut signer = Self { keys, withdrawn };
        signer.renew_if_due(folder, now)?;
        Ok(signer)
    }

    fn valid(&self, now: Duration) -> impl Iterator<Item = &SigningKey> {
        self.keys.iter().filter(move |key| !key.is_expired(now))
    }

    /// The key that signs: the newest whose time has come. Without one, as after the clock was set back, the first.
    fn current(&self, now: Duration) -> Option<&SigningKey> {
        let begun = self.valid(now).filter(|key| key.signs_from() <= now);
        let first = || self.valid(now).min_by_key(|key| key.signs_from());
        begun.max_by_key(|key| key.signs_from()).or_else(first)
    }

    /// Creates the successor of the newest key in time for its publication, or the first key.
    fn renew_if_due(&mut self, folder: &Path, now: Duration) -> Result<(), IdentityError> {
        match self.valid(now).map(SigningKey::signs_from).max() {
            Some(newest) if now + PUBLISHED_BEFORE < newest + PERIOD => Ok(()),
            Some(_) => self.add(folder, now + PUBLISHED_BEFORE, now),
            // No other key could sign meanwhile.
            None => self.add(folder, now, now),
        }
    }

    fn add(&mut self, folder: &Path, signs_from: Duration, now: Duration) -> Result<(), IdentityError> {
        let added = SigningKey::generate(signs_from)?;
        // Keys whose successor has signed for long sign no longer.
        let kept_from = self.valid(now).map(SigningKey::signs_from);
        let kept_from = kept_from.filter(|from| *from + PUBLISHED_AFTER <= now).max().unwrap_or_default();
        let is_kept = |key: &SigningKey| !key.is_expired(now) && key.signs_from() >= kept_from;
        let kept = self.keys.iter().filter(|key| is_kept(key)).chain([&added]);
        self.withdrawn.retain(|key| !key.is_expired(now));
        save(folder, kept.chain(&self.withdrawn).map(|key| key.saved.clone()))?;
        self.keys.retain(is_kept);
        self.keys.push(added);
        Ok(())
    }

    /// Creates a key that signs at once, and withdraws those before.
    fn replace_all(&mut self, folder: &Path, now: Duration) -> Result<(), IdentityError> {
        let added = SigningKey::generate(now)?;
        self.withdrawn.retain(|key| !key.is_expired(now));
        let withdrawn = self.keys.iter().chain(&self.withdrawn);
        let withdrawn = withdrawn.map(|key| SavedKey { is_withdrawn: true, ..key.saved.clone() });
        save(folder, [added.saved.clone()].into_iter().chain(withdrawn))?;
        for mut key in std::mem::replace(&mut self.keys, vec![added]) {
            key.saved.is_withdrawn = true;
            self.withdrawn.push(key);
        }
        Ok(())
    }

    /// Adds the keys of this authority to those recorded, and drops those that expired or were withdrawn. Keys of other
    /// control planes stay.
    pub(super) fn complete(&self, recorded: &mut Vec<JwtKey>, now: Duration) {
        let is_valid = |key: &JwtKey| key.expires_at.is_none_or(|end| now.as_secs() < end);
        let is_withdrawn = |key: &JwtKey| self.withdrawn.iter().any(|one| one.public.jwk == key.jwk);
        recorded.retain(|key| is_valid(key) && !is_withdrawn(key));
        let own: Vec<_> = self.valid(now).map(|key| &key.public).collect();
        let missing: Vec<_> = own.iter().filter(|key| !recorded.contains(key)).copied().cloned().collect();
        recorded.extend(missing);
        while recorded.len() > MAX_JWT_KEYS {
            let others = recorded.iter().enumerate().filter(|(_, key)| !own.contains(key));
            let first = others.min_by_key(|(_, key)| key.expires_at).map_or(0, |(i, _)| i);
            recorded.remove(first);
        }
    }
}

/// Replaces the file. It has withdrawn keys too: a control plane may end before it records that they are.
fn save(folder: &Path, keys: impl Iterator<Item = SavedKey>) -> Result<(), IdentityError> {
    let keys: Vec<_> = keys.collect();
    let content = serde_json::to_vec_pretty(&keys).map_err(IdentityError::crypto)?;
    pem_files::write_secret(&folder.join(FILE), &content)
}

impl Authority {
    /// Issues a JWT-SVID for these audiences. Returns it with the time at which it expires, in seconds since 1970.
    ///
    /// # Errors
    /// When the audiences are not valid, or no key can be created.
    pub fn issue_jwt(
        &self,
        id: &SpiffeId,
        audience: &[String],
        now: Duration,
    ) -> Result<(String, u64), IdentityError> {
        check_audience(audience).map_err(|problem| IdentityError::InvalidRequest(problem.into()))?;
        let mut state = self.state();
        state.jwt.renew_if_due(&self.folder, now)?;
        let key = state.jwt.current(now);
        let key = key.ok_or_else(|| IdentityError::Crypto("there is no key for JWT-SVIDs".into()))?;
        let expires_at = (now + JWT_LIFETIME).as_secs();
        let claims =
            json!({ "aud": audience, "exp": expires_at, "iat": now.as_secs(), "sub": id.to_string() });
        Ok((key.sign(&claims.to_string())?, expires_at))
    }

    /// Creates a key for JWT-SVIDs, which signs once verifiers had time to learn of it, unless one is waiting already.
    /// With `force` it signs at once, and the keys before verify nothing from now on.
    ///
    /// # Errors
    /// When the disk is full; the keys then stay unchanged.
    pub fn rotate_jwt_key(&self, now: Duration, force: bool) -> Result<(), IdentityError> {
        let mut state = self.state();
        if force {
            return state.jwt.replace_all(&self.folder, now);
        }
        let is_waiting = state.jwt.valid(now).any(|key| key.signs_from() > now);
        if is_waiting { Ok(()) } else { state.jwt.add(&self.folder, now + PUBLISHED_BEFORE, now) }
    }

    pub(super) fn renew_jwt_key_if_due(&self, now: Duration) -> Result<(), IdentityError> {
        self.state().jwt.renew_if_due(&self.folder, now)
    }
}
