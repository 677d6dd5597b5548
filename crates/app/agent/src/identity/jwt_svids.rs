//! JWT-SVIDs for programs. A control plane issues one for each identity for which it would issue a certificate, and signs
//! the keys that verify them. The agent keeps tokens for half of their validity, and keys until their record changes.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_identity::{Refused, Workload, check_audience};
use fairmesh_model::{Invalid, JwtKey, ProgramFacts, SpiffeId, SpiffePath, TrustDomain};
use fairmesh_tokens::{Claims, KeySet, Refusal, stated_subject, verify_svid, write_jwks};
use fairmesh_wire::{
    spiffe::{JwtBundlesResponse, Jwtsvid, JwtsvidResponse},
    transport::UserPlace,
};
use futures_util::{Stream, stream};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::{Instant, sleep, timeout},
};
use tonic::Status;

use super::{Shared, below};

/// Age at which keys are asked for again, though their record has not changed. The agent may not follow it.
const REFRESH: Duration = Duration::from_secs(1800);
/// Age at which keys are asked for again because of a token with another key.
const UNKNOWN_KEY_AGE: Duration = Duration::from_secs(10);
/// Pause between two requests for keys, also after one that failed.
const PAUSE: Duration = Duration::from_secs(2);
/// Time over which the agents of a mesh spread their requests for changed keys. Open streams ask again at this pace until
/// they have them.
const SPREAD: Duration = Duration::from_secs(5);
/// Interval at which open streams compare the keys. Keys expire.
const RECHECK: Duration = Duration::from_secs(60);
/// Time for which a token waits for the records of revocations and federated domains, right after the agent's start.
const RECORDS_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of kept tokens. At this number, all are dropped.
const MAX_TOKENS: usize = 1024;

/// Kept tokens and keys.
#[derive(Default)]
pub(super) struct JwtSvids {
    keys: AsyncMutex<KeyCache>,
    tokens: Mutex<KeptTokens>,
}

/// The keys of this domain, and how the last request for them ended.
#[derive(Default)]
struct KeyCache {
    known: Option<KnownKeys>,
    /// End of the last request.
    tried: Option<Instant>,
    /// Why the last request failed.
    failed: Option<Status>,
}

/// The keys of this domain, as a control plane signed them.
struct KnownKeys {
    keys: Vec<JwtKey>,
    at: Instant,
    /// Number of changes of the record before the request.
    changes: u64,
}

/// The keys of this domain that have not expired.
struct OwnKeys {
    keys: Vec<JwtKey>,
    /// Whether they were asked for since the last change of their record.
    is_current: bool,
}

/// Tokens by identity and audiences.
#[derive(Default)]
struct KeptTokens {
    /// Number of times that other keys were told. A token that was requested before may be signed with a withdrawn one.
    key_changes: u64,
    by_id: HashMap<(SpiffePath, Vec<String>), KeptToken>,
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
    fn tokens(&self) -> MutexGuard<'_, KeptTokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptTokens {
    /// Drops all tokens, since their keys may be withdrawn.
    fn drop_all(&mut self) {
        self.key_changes += 1;
        self.by_id.clear();
    }

    /// Keeps a token that was requested after this number of key changes.
    fn keep(&mut self, key: (SpiffePath, Vec<String>), token: KeptToken, key_changes: u64) {
        if key_changes != self.key_changes {
            return;
        }
        if self.by_id.len() >= MAX_TOKENS {
            self.by_id.clear();
        }
        self.by_id.insert(key, token);
    }
}

impl KeyCache {
    /// Whether the keys have to be asked for: they are older than `max_age`, or their record has changed.
    fn is_due(&self, changes: u64, max_age: Duration) -> bool {
        let is_fresh = |known: &KnownKeys| known.changes == changes && known.at.elapsed() < max_age;
        let is_paused = self.tried.is_some_and(|tried| tried.elapsed() < PAUSE);
        !is_paused && !self.known.as_ref().is_some_and(is_fresh)
    }

    /// Records the response to a request that was made at this time, after this number of changes. Returns whether the
    /// keys are others than before.
    fn record(&mut self, response: Result<Vec<JwtKey>, Status>, (at, changes): (Instant, u64)) -> bool {
        self.tried = Some(Instant::now());
        match response {
            Ok(keys) => {
                let has_others = self.known.as_ref().is_some_and(|known| known.keys != keys);
                (self.known, self.failed) = (Some(KnownKeys { keys, at, changes }), None);
                has_others
            }
            Err(status) => {
                tracing::debug!(reason = status.message(), "the keys of JWT-SVIDs could not be asked for");
                self.failed = Some(status);
                false
            }
        }
    }

    /// The keys that are known after this number of changes.
    fn keys(&self, changes: u64) -> Result<OwnKeys, Status> {
        match (&self.known, &self.failed) {
            (Some(known), _) => {
                Ok(OwnKeys { keys: known.keys.clone(), is_current: known.changes == changes })
            }
            (None, Some(status)) => Err(status.clone()),
            (None, None) => Err(Status::unavailable("the keys of JWT-SVIDs were not asked for yet")),
        }
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
        let (now, revoked) = (self.workload.now().as_secs(), self.workload.revocations());
        let is_current = |kept: &&KeptToken| {
            (kept.given.0..kept.given.1).contains(&now) && revoked.check_token(path, kept.given.0).is_ok()
        };
        let key_changes = {
            let tokens = self.jwt.tokens();
            if let Some(kept) = tokens.by_id.get(&key).filter(is_current) {
                return Ok(kept.token.clone());
            }
            tokens.key_changes
        };
        let (token, expires_at) = self.issue_jwt(path, audience.to_vec()).await?;
        let until = now + expires_at.saturating_sub(now) / 2;
        let kept = KeptToken { token: token.clone(), given: (now, until) };
        self.jwt.tokens().keep(key, kept, key_changes);
        Ok(token)
    }

    /// Verifies a token for an audience, and returns its subject.
    pub(super) async fn validate_jwt(&self, token: &str, audience: &str) -> Result<String, Status> {
        if audience.is_empty() {
            return Err(Status::invalid_argument("name the audience that you are"));
        }
        records_known(&self.workload).await?;
        let subject = stated_subject(token).map_err(|refusal| refused(&refusal))?;
        let domain = domain_of(&subject).ok_or_else(|| refused(&"its subject is no SPIFFE id"))?;
        if domain == self.domain()? {
            let id: SpiffeId = subject.parse().map_err(|error: Invalid| refused(&error))?;
            let claims = self.verify_own(token, audience).await?;
            let issued = claims.get("iat").and_then(|time| time.as_u64()).unwrap_or_default();
            return match self.workload.revocations().check_token(&id.path, issued) {
                Ok(()) => Ok(subject),
                Err(Refused::Revoked(_)) => Err(refused(&format!("{id} is revoked"))),
                Err(problem) => Err(refused(&problem)),
            };
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
        let verified = match verify(&self.jwt_keys(REFRESH).await?.keys) {
            // A control plane may sign with a key of which this agent was not told.
            Err(Refusal::UnknownKey) => verify(&self.jwt_keys(UNKNOWN_KEY_AGE).await?.keys),
            verified => verified,
        };
        verified.map_err(|refusal| refused(&refusal))
    }

    /// The keys of this domain, at most `max_age` old while a control plane responds.
    async fn jwt_keys(&self, max_age: Duration) -> Result<OwnKeys, Status> {
        let mut cache = self.jwt.keys.lock().await;
        let changes = *self.workload.jwt_key_changes().borrow();
        if cache.is_due(changes, max_age) {
            let asked = (Instant::now(), changes);
            let response = self.ask_for_jwt_keys().await;
            if cache.record(response, asked) {
                self.jwt.tokens().drop_all();
            }
        }
        let OwnKeys { mut keys, is_current } = cache.keys(changes)?;
        let now = self.workload.now().as_secs();
        keys.retain(|key| key.expires_at.is_none_or(|end| now < end));
        Ok(OwnKeys { keys, is_current })
    }

    /// The keys of this domain and of federated ones, by the id of the domain, and whether those of this domain are
    /// current.
    async fn jwt_bundles(&self) -> Result<(BTreeMap<String, Bytes>, bool), Status> {
        let (domain, OwnKeys { keys, is_current }) = (self.domain()?, self.jwt_keys(REFRESH).await?);
        let federated = self.workload.federated_bundles().into_iter();
        let federated = federated.map(|bundle| (bundle.domain, bundle.jwt_keys));
        let all = federated.filter(|(_, keys)| !keys.is_empty()).chain([(domain, keys)]);
        let jwks = |keys: &[JwtKey]| Bytes::from(write_jwks(keys.iter().map(|key| &key.jwk[..])));
        let bundles = all.map(|(domain, keys)| (format!("spiffe://{domain}"), jwks(&keys))).collect();
        Ok((bundles, is_current))
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
            let (bundles, is_current) = self.shared.jwt_bundles().await?;
            if self.sent.as_ref() != Some(&bundles) {
                self.sent = Some(bundles.clone());
                return Ok(bundles);
            }
            // No other change announces keys that could not be asked for.
            let recheck = if is_current { RECHECK } else { PAUSE + below(SPREAD) };
            // The senders live in the agent's identity, which this holds.
            tokio::select! {
                () = sleep(recheck) => {}
                _ = self.keys.changed() => sleep(PAUSE + below(SPREAD)).await,
                _ = self.records.changed() => {}
            }
        }
    }
}

/// Waits until the agent knows which identities are revoked: before, it would take a revoked one for valid.
async fn records_known(workload: &Workload) -> Result<(), Status> {
    let mut reads = workload.revocation_changes();
    let known = timeout(RECORDS_WAIT, reads.wait_for(|reads| *reads > 0)).await;
    match known.is_ok_and(|known| known.is_ok()) {
        true => Ok(()),
        false => {
            Err(Status::unavailable("this agent has started, and does not know the revocations yet; retry"))
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

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn token_is_judged_only_once_revocations_are_known() {
        let workload = Workload::default();
        let early = records_known(&workload).await.unwrap_err();
        assert_eq!(early.code(), Code::Unavailable, "{early}");
        workload.revocations_unreadable();
        records_known(&workload).await.unwrap();
        assert!(workload.revocations().check_token(&"shop/web".parse().unwrap(), 1).is_err());
    }

    fn keys(jwk: &str) -> Vec<JwtKey> {
        vec![JwtKey { jwk: jwk.into(), expires_at: None }]
    }

    /// Asks as often as the cache permits; returns whether it did.
    fn ask(cache: &mut KeyCache, response: Result<Vec<JwtKey>, Status>, changes: u64) -> bool {
        let is_due = cache.is_due(changes, REFRESH);
        if is_due {
            cache.record(response, (Instant::now(), changes));
        }
        is_due
    }

    #[tokio::test(start_paused = true)]
    async fn changed_jwt_keys_are_asked_for_until_a_control_plane_responds() {
        let (mut cache, away) = (KeyCache::default(), || Err(Status::unavailable("away")));
        assert!(ask(&mut cache, Ok(keys("old")), 0));
        assert!(cache.keys(0).unwrap().is_current);
        sleep(PAUSE).await;
        assert!(!ask(&mut cache, away(), 0), "nothing has changed");
        assert!(ask(&mut cache, away(), 1));
        let kept = cache.keys(1).unwrap();
        assert_eq!((kept.keys, kept.is_current), (keys("old"), false), "streams ask again soon");
        assert!(!ask(&mut cache, Ok(keys("new")), 1), "not before the end of the pause");
        sleep(PAUSE).await;
        assert!(ask(&mut cache, Ok(keys("new")), 1));
        let new = cache.keys(1).unwrap();
        assert_eq!((new.keys, new.is_current), (keys("new"), true));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_failure_of_first_request_for_jwt_keys() {
        let mut cache = KeyCache::default();
        assert!(ask(&mut cache, Err(Status::unavailable("away")), 0));
        assert!(!ask(&mut cache, Ok(keys("one")), 0), "callers do not wait for one time limit each");
        assert_eq!(cache.keys(0).err().map(|status| status.message().to_owned()), Some("away".into()));
        sleep(PAUSE).await;
        assert!(ask(&mut cache, Ok(keys("one")), 0));
        assert!(cache.keys(0).unwrap().is_current);
    }

    #[test]
    fn token_requested_before_keys_changed_is_not_kept() {
        let mut tokens = KeptTokens::default();
        let key = || ("shop/web".parse::<SpiffePath>().unwrap(), vec!["pay".to_owned()]);
        let token = || KeptToken { token: "signed".to_owned(), given: (0, 1) };
        let before = tokens.key_changes;
        tokens.drop_all();
        tokens.keep(key(), token(), before);
        assert!(tokens.by_id.is_empty(), "a withdrawn key may have signed it");
        let now = tokens.key_changes;
        tokens.keep(key(), token(), now);
        assert_eq!(tokens.by_id.len(), 1);
    }
}
