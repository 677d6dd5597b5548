//! Updates the keys of end-user token issuers that serve their keys at a URL.
//!
//! Servers only follow the record and fetch nothing: an unresponsive issuer delays no call, and only the
//! control plane needs network access to it.

use std::{collections::HashMap, convert::Infallible, time::Duration};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
use fairmesh_model::{Prefix, Record, RecordKey, TokenIssuers};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_tokens::KeySet;
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use crate::http_fetch::{MAX_JWKS_DOCUMENT, WebUrl, fetch};

/// Interval at which the record is checked.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time between two fetches. Together with [`INTERVAL`], a withdrawn key stays in the records for at most a
/// minute.
const REFRESH: Duration = Duration::from_secs(50);

/// An issuer, and the URL of its keys.
type Served = (String, String);

/// A JWKS reduced to the fields that verification needs, or the reason why there is none.
type Fetched = Result<Vec<u8>, String>;

/// Records the keys that issuers serve.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenIssuerController {
    followed: HashMap<Served, FollowedIssuer>,
}

/// An issuer whose keys are fetched.
#[derive(Clone, Debug)]
struct FollowedIssuer {
    /// Time of the next fetch of the keys.
    due: Instant,
    /// The keys fetched last. The record may not have them yet.
    keys: Option<Vec<u8>>,
    /// Reason why the last document was not used.
    problem: Option<String>,
}

/// The record of issuers, and the keys that were due.
pub(crate) struct TokenIssuerFacts {
    /// The record, with the revision that wrote it.
    issuers: Option<(TokenIssuers, u64)>,
    fetched: Vec<(Served, Fetched)>,
}

impl Controller for TokenIssuerController {
    const NAME: &'static str = "token-issuers";
    /// Time limit of a round. It suffices for many unresponsive servers, since they are tried one after the other.
    const DEADLINE: Duration = Duration::from_secs(300);
    type Facts = TokenIssuerFacts;
    type Effect = Infallible;

    fn triggers(&self) -> Triggers {
        let prefixes = vec![Prefix::from(&RecordKey::TokenIssuers)];
        Triggers { prefixes, interval: Some(INTERVAL), ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<TokenIssuerFacts, BoxError> {
        let (issuers, mut fetched) = (recorded(node), Vec::new());
        for served in issuers.iter().flat_map(|(issuers, _)| served(issuers)) {
            if self.followed.get(&served).is_none_or(|followed| followed.due <= Instant::now()) {
                let keys = fetch_keys(&served.1).await;
                fetched.push((served, keys));
            }
        }
        Ok(TokenIssuerFacts { issuers, fetched })
    }

    fn reconcile(&mut self, facts: TokenIssuerFacts, now: Now) -> Decision<Infallible> {
        let Some((issuers, revision)) = facts.issuers else {
            self.followed.clear();
            return Decision::default();
        };
        let known: Vec<_> = served(&issuers).collect();
        self.followed.retain(|served, _| known.contains(served));
        for (served, fetched) in facts.fetched {
            self.note(served, fetched, now.at);
        }
        let refusal = |((issuer, _), followed): (&Served, &FollowedIssuer)| {
            let problem = followed.problem.as_ref()?;
            let reason = format!("its keys cannot be fetched, and the keys before stay in use: {problem}");
            Some(Refusal { subject: issuer.clone(), reason })
        };
        let mut refused: Vec<_> = self.followed.iter().filter_map(refusal).collect();
        refused.sort_by(|one, other| one.subject.cmp(&other.subject));
        Decision { writes: self.writes(issuers, revision), refused, ..Decision::default() }
    }

    async fn apply(&mut self, effect: Infallible) -> Result<(), BoxError> {
        match effect {}
    }

    fn written(&mut self, issuers: &str) {
        tracing::info!(issuers, "issuers of tokens have other keys");
    }
}

impl TokenIssuerController {
    fn note(&mut self, served: Served, fetched: Fetched, now: Instant) {
        let unknown = FollowedIssuer { due: now, keys: None, problem: None };
        let issuer = served.0.clone();
        let followed = self.followed.entry(served).or_insert(unknown);
        followed.due = now + REFRESH;
        match fetched {
            Ok(keys) => {
                let has_none = KeySet::parse(&keys).is_ok_and(|keys| keys.is_empty());
                if has_none && followed.keys.as_ref() != Some(&keys) {
                    tracing::warn!(%issuer, "an issuer serves no key that verifies tokens: all of its tokens are refused");
                }
                (followed.keys, followed.problem) = (Some(keys), None);
            }
            Err(problem) => followed.problem = Some(problem),
        }
    }

    /// Returns the write that adds missing keys to the record.
    fn writes(&self, mut all: TokenIssuers, revision: u64) -> Vec<Write> {
        let mut changed = Vec::new();
        for one in &mut all.issuers {
            let Some(url) = &one.url else { continue };
            let followed = self.followed.get(&(one.issuer.clone(), url.clone()));
            let Some(keys) = followed.and_then(|followed| followed.keys.as_ref()) else { continue };
            if *keys != one.keys {
                one.keys.clone_from(keys);
                changed.push(one.issuer.clone());
            }
        }
        if changed.is_empty() {
            return Vec::new();
        }
        let value = record_encoding::encode(&all.into());
        let op = Op::put(RecordKey::TokenIssuers.to_string(), value).expecting(Expect::Revision(revision));
        let (subject, reason) = (changed.join(", "), "it serves other keys");
        vec![Write { subject, reason, ops: vec![op] }]
    }
}

/// The issuers whose keys are fetched, with the URLs of the keys.
fn served(issuers: &TokenIssuers) -> impl Iterator<Item = Served> {
    issuers.issuers.iter().filter_map(|one| Some((one.issuer.clone(), one.url.clone()?)))
}

async fn fetch_keys(url: &str) -> Fetched {
    let url: WebUrl = url.parse().map_err(|error: fairmesh_model::Invalid| error.to_string())?;
    let document = fetch(&url, None, MAX_JWKS_DOCUMENT).await.map_err(|error| error.to_string())?;
    KeySet::reduce(&document).map_err(|problem| format!("{url} {problem}"))
}

/// The record of issuers, with the revision that wrote it.
fn recorded(node: &Node) -> Option<(TokenIssuers, u64)> {
    let entry = node.get(&RecordKey::TokenIssuers.to_string())?;
    match record_encoding::decode(&RecordKey::TokenIssuers, &entry.value) {
        Ok(Record::TokenIssuers(issuers)) => Some((issuers, entry.revision)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::TokenIssuer;

    use super::*;

    fn reconcile(controller: &mut TokenIssuerController, fetched: Option<Fetched>) -> Decision<Infallible> {
        let url = "https://idp.example/keys".to_owned();
        let served = ("https://idp.example".to_owned(), url.clone());
        let one = TokenIssuer { issuer: served.0.clone(), url: Some(url), keys: b"1".to_vec() };
        let issuers = Some((TokenIssuers { issuers: vec![one] }, 7));
        let fetched = fetched.map(|keys| (served, keys)).into_iter().collect();
        controller.reconcile(TokenIssuerFacts { issuers, fetched }, Now { at: Instant::now(), wall_ms: 0 })
    }

    #[test]
    fn changed_token_issuer_keys_are_written_and_failed_fetch_keeps_old() {
        let mut controller = TokenIssuerController::default();
        assert!(reconcile(&mut controller, Some(Ok(b"1".to_vec()))).writes.is_empty(), "the record has them");
        let decision = reconcile(&mut controller, Some(Ok(b"2".to_vec())));
        assert_eq!(decision.writes[0].subject, "https://idp.example");
        assert_eq!(decision.writes[0].ops[0].expect, Expect::Revision(7));
        let failed = reconcile(&mut controller, Some(Err("it does not respond".into())));
        assert!(failed.refused[0].reason.ends_with("it does not respond"));
        assert_eq!(failed.writes.len(), 1, "another writer was faster than the write before");
        let mended = reconcile(&mut controller, Some(Ok(b"1".to_vec())));
        assert_eq!((mended.refused, mended.writes.len()), (vec![], 0));
        let withdrawn = reconcile(&mut controller, Some(Ok(KeySet::reduce(br#"{"keys":[]}"#).unwrap())));
        assert_eq!((withdrawn.refused, withdrawn.writes.len()), (vec![], 1), "withdrawn keys go");
    }
}
