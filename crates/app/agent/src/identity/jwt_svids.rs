//! JWT-SVIDs for programs. A control plane issues one for each identity for which it would issue a certificate, and signs
//! the keys that verify them. The agent keeps tokens for half of their validity, and keys until their record changes.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_identity::check_audience;
use fairmesh_model::{Invalid, JwtKey, ProgramFacts, SpiffeId, SpiffePath, TrustDomain};
use fairmesh_tokens::{Claims, KeySet, Refusal, stated_subject, verify_svid, write_jwks};
use fairmesh_wire::{
    spiffe::{JwtBundlesResponse, Jwtsvid, JwtsvidResponse},
    transport::UserPlace,
};
use futures_util::{Stream, stream};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::{Instant, sleep},
};
use tonic::Status;

use super::{Shared, below};

/// Age at which keys are asked for again, though their record has not changed. The agent may not follow it.
const REFRESH: Duration = Duration::from_secs(1800);
/// Age at which keys are asked for again because of a token with another key.
const UNKNOWN_KEY_AGE: Duration = Duration::from_secs(10);
/// Pause between two requests for keys.
const PAUSE: Duration = Duration::from_secs(2);
/// Time over which the agents of a mesh spread their requests for changed keys.
const SPREAD: Duration = Duration::from_secs(5);
/// Interval at which open streams compare the keys. Keys expire.
const RECHECK: Duration = Duration::from_secs(60);
/// Maximum number of kept tokens. At this number, all are dropped.
const MAX_TOKENS: usize = 1024;

/// Kept tokens and keys.
#[derive(Default)]
pub(super) struct JwtSvids {
    keys: AsyncMutex<Option<KnownKeys>>,
    tokens: Mutex<HashMap<(SpiffePath, Vec<String>), KeptToken>>,
}

/// The keys of this domain, as a control plane signed them.
struct KnownKeys {
    keys: Vec<JwtKey>,
    at: Instant,
    tried: Instant,
    /// Number of changes of the record before the request.
    changes: u64,
}

struct KeptToken {
    token: String,
    /// Time of issue and time until which the token is given out, in seconds since 1970.
    given: (u64, u64),
}

impl fmt::Debug for JwtSvids {
    /// Shows no token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtSvids").finish_non_exhaustive()
    }
}

impl JwtSvids {
    fn tokens(&self) -> MutexGuard<'_, HashMap<(SpiffePath, Vec<String>), KeptToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Returns the tokens of a program for these audiences: of all of its identities, or of one of them.
    pub(super) async fn jwt_svids(
        &self,
        program: &ProgramFacts,
        (mut audience, wanted): (Vec<String>, &str),
    ) -> Result<JwtsvidResponse, Status> {
        check_audience(&audience).map_err(Status::invalid_argument)?;
        audience.sort();
        audience.dedup();
        let mut paths = self.identities_of(program).await?;
        let domain = self.domain()?;
        let id = |path: &SpiffePath| path.clone().within(&domain).to_string();
        if !wanted.is_empty() {
            paths.retain(|path| id(path) == wanted);
            if paths.is_empty() {
                let problem = format!("no identity issued: {wanted} is none of this program ({program})");
                return Err(Status::permission_denied(problem));
            }
        }
        // Drops kept tokens whose key was withdrawn.
        self.jwt_keys(REFRESH).await?;
        let mut svids = Vec::new();
        for path in paths {
            let svid = self.jwt_of(&path, &audience).await?;
            svids.push(Jwtsvid { spiffe_id: id(&path), svid, hint: String::new() });
        }
        Ok(JwtsvidResponse { svids })
    }

    async fn jwt_of(&self, path: &SpiffePath, audience: &[String]) -> Result<String, Status> {
        let key = (path.clone(), audience.to_vec());
        let (now, revoked) = (self.workload.now().as_secs(), self.workload.revocations().current());
        let is_current = |kept: &&KeptToken| {
            (kept.given.0..kept.given.1).contains(&now) && !revoked.revokes(path, &[], kept.given.0)
        };
        if let Some(kept) = self.jwt.tokens().get(&key).filter(is_current) {
            return Ok(kept.token.clone());
        }
        let (token, expires_at) = self.issue_jwt(path, audience.to_vec()).await?;
        let until = now + expires_at.saturating_sub(now) / 2;
        let mut tokens = self.jwt.tokens();
        if tokens.len() >= MAX_TOKENS {
            tokens.clear();
        }
        tokens.insert(key, KeptToken { token: token.clone(), given: (now, until) });
        Ok(token)
    }

    /// Verifies a token for an audience, and returns its subject.
    pub(super) async fn validate_jwt(&self, token: &str, audience: &str) -> Result<String, Status> {
        if audience.is_empty() {
            return Err(Status::invalid_argument("name the audience that you are"));
        }
        let subject = stated_subject(token).map_err(|refusal| refused(&refusal))?;
        let domain = domain_of(&subject).ok_or_else(|| refused(&"its subject is no SPIFFE id"))?;
        if domain == self.domain()? {
            let id: SpiffeId = subject.parse().map_err(|error: Invalid| refused(&error))?;
            let claims = self.verify_own(token, audience).await?;
            let issued = claims.get("iat").and_then(|time| time.as_u64()).unwrap_or_default();
            if self.workload.revocations().current().revokes(&id.path, &[], issued) {
                return Err(refused(&format!("{id} is revoked")));
            }
            return Ok(subject);
        }
        let federated = self.workload.federated_bundles();
        let bundle = federated.iter().find(|bundle| bundle.domain == domain);
        let bundle = bundle.ok_or_else(|| {
            refused(&format!("the mesh is not federated with {domain} (`fairmesh identity federation add`)"))
        })?;
        let verified = verify_svid(token, &key_set(&bundle.jwt_keys), audience, self.workload.now());
        verified.map(|_| subject).map_err(|refusal| refused(&refusal))
    }

    async fn verify_own(&self, token: &str, audience: &str) -> Result<Claims, Status> {
        let verify = |keys: &[JwtKey]| verify_svid(token, &key_set(keys), audience, self.workload.now());
        let verified = match verify(&self.jwt_keys(REFRESH).await?) {
            // A control plane may sign with a key of which this agent was not told.
            Err(Refusal::UnknownKey) => verify(&self.jwt_keys(UNKNOWN_KEY_AGE).await?),
            verified => verified,
        };
        verified.map_err(|refusal| refused(&refusal))
    }

    /// The keys of this domain, at most `max_age` old while a control plane responds.
    async fn jwt_keys(&self, max_age: Duration) -> Result<Vec<JwtKey>, Status> {
        let mut known = self.jwt.keys.lock().await;
        let changes = *self.workload.jwt_key_changes().borrow();
        let is_current = |known: &&mut KnownKeys| {
            let is_fresh = known.changes == changes && known.at.elapsed() < max_age;
            is_fresh || known.tried.elapsed() < PAUSE
        };
        if let Some(known) = known.as_mut().filter(is_current) {
            return Ok(self.unexpired(&known.keys));
        }
        let tried = Instant::now();
        match (self.ask_for_jwt_keys().await, &mut *known) {
            (Ok(keys), before) => {
                if before.as_ref().is_some_and(|before| before.keys != keys) {
                    self.jwt.tokens().clear();
                }
                let usable = self.unexpired(&keys);
                *before = Some(KnownKeys { keys, at: tried, tried, changes });
                Ok(usable)
            }
            (Err(status), Some(before)) => {
                tracing::debug!(reason = status.message(), "the keys of JWT-SVIDs are those of before");
                before.tried = Instant::now();
                Ok(self.unexpired(&before.keys))
            }
            (Err(status), None) => Err(status),
        }
    }

    fn unexpired(&self, keys: &[JwtKey]) -> Vec<JwtKey> {
        let now = self.workload.now().as_secs();
        keys.iter().filter(|key| key.expires_at.is_none_or(|end| now < end)).cloned().collect()
    }

    /// The keys of this domain and of federated ones, by the id of the domain.
    async fn jwt_bundles(&self) -> Result<BTreeMap<String, Bytes>, Status> {
        let own = (self.domain()?, self.jwt_keys(REFRESH).await?);
        let federated = self.workload.federated_bundles().into_iter();
        let federated = federated.map(|bundle| (bundle.domain, bundle.jwt_keys));
        let all = federated.filter(|(_, keys)| !keys.is_empty()).chain([own]);
        let jwks = |keys: &[JwtKey]| Bytes::from(write_jwks(keys.iter().map(|key| &key.jwk[..])));
        Ok(all.map(|(domain, keys)| (format!("spiffe://{domain}"), jwks(&keys))).collect())
    }

    fn domain(&self) -> Result<TrustDomain, Status> {
        let own = self.workload.id().ok_or_else(|| Status::unavailable(self.no_certificate()))?;
        Ok(own.domain)
    }
}

/// A stream of the keys that verify JWT-SVIDs.
struct BundleStream {
    shared: Arc<Shared>,
    keys: watch::Receiver<u64>,
    records: watch::Receiver<u64>,
    sent: Option<BTreeMap<String, Bytes>>,
    _place: UserPlace,
}

/// Streams the keys that verify JWT-SVIDs as they change.
pub(super) fn bundles(
    shared: Arc<Shared>,
    place: UserPlace,
) -> impl Stream<Item = Result<JwtBundlesResponse, Status>> {
    let (keys, records) = (shared.workload.jwt_key_changes(), shared.workload.revocation_changes());
    let state = BundleStream { shared, keys, records, sent: None, _place: place };
    stream::try_unfold(state, async |mut state: BundleStream| {
        let bundles = state.next().await?;
        Ok(Some((JwtBundlesResponse { bundles }, state)))
    })
}

impl BundleStream {
    async fn next(&mut self) -> Result<BTreeMap<String, Bytes>, Status> {
        loop {
            self.keys.mark_unchanged();
            self.records.mark_unchanged();
            let bundles = self.shared.jwt_bundles().await?;
            if self.sent.as_ref() != Some(&bundles) {
                self.sent = Some(bundles.clone());
                return Ok(bundles);
            }
            // The senders live in the agent's identity, which this holds.
            tokio::select! {
                () = sleep(RECHECK) => {}
                _ = self.keys.changed() => sleep(PAUSE + below(SPREAD)).await,
                _ = self.records.changed() => {}
            }
        }
    }
}

fn key_set(keys: &[JwtKey]) -> KeySet {
    KeySet::of_keys(keys.iter().map(|key| &key.jwk[..]))
}

/// The trust domain of a SPIFFE id, whose path may be of any form.
fn domain_of(id: &str) -> Option<TrustDomain> {
    let (domain, path) = id.strip_prefix("spiffe://")?.split_once('/')?;
    let is_path = path.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    TrustDomain::new(domain).ok().filter(|_| is_path)
}

fn refused(reason: &impl ToString) -> Status {
    Status::invalid_argument(format!("the JWT-SVID is refused: {}", reason.to_string()))
}
