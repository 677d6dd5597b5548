//! Join tokens: used twice, late, elsewhere.

use fairmesh_identity::{JoinToken, TokenGrant, TokenRefused, Tokens};
use fairmesh_model::Label;
use tempfile::tempdir;

use crate::support::*;

fn grant(agent: &str) -> TokenGrant {
    let expires_at = (now() + HOUR).as_secs();
    TokenGrant { agent: Label::new(agent).unwrap(), tenants: Vec::new(), region: None, expires_at }
}

fn redeem(tokens: &Tokens, token: &JoinToken, agent: &str, late: bool) -> Result<TokenGrant, TokenRefused> {
    let agent = Label::new(agent).unwrap();
    let proof = token.proof(agent.as_str(), "", b"request");
    let now = if late { now() + HOUR } else { now() };
    tokens.redeem(token.id(), (&agent, "", b"request"), &proof, now)
}

#[test]
fn a_token_works_once() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    let copied: JoinToken = format!(" {}\n", made.reveal()).parse().unwrap();
    assert_eq!(tokens.count(now()).unwrap(), 1);
    assert_eq!(redeem(&tokens, &copied, "web-1", false).unwrap().agent.as_str(), "web-1");
    assert!(matches!(redeem(&tokens, &copied, "web-1", false), Err(TokenRefused::Unknown)));
    assert_eq!(tokens.count(now()).unwrap(), 0);
}

#[test]
fn a_token_does_not_work_late_or_elsewhere() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let (tokens, elsewhere) = (Tokens::open(folder.path()).unwrap(), Tokens::open(other.path()).unwrap());
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    assert!(matches!(redeem(&elsewhere, &made, "web-1", false), Err(TokenRefused::Unknown)));
    assert!(matches!(redeem(&tokens, &made, "web-2", false), Err(TokenRefused::OtherAgent)));
    assert!(matches!(redeem(&tokens, &made, "web-1", true), Err(TokenRefused::Unknown)));
    assert!(matches!(redeem(&tokens, &made, "web-1", false), Err(TokenRefused::Unknown)), "it is gone");
}

#[test]
fn a_proof_is_for_one_name_and_one_key() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    let agent = Label::new("web-1").unwrap();
    let proof = made.proof("web-1", "", b"request");
    for (id, request, proof) in [
        (made.id(), &b"another"[..], &proof[..]),
        (made.id(), b"request", b""),
        (b"../../etc", b"request", &proof),
        (b"", b"request", &proof),
    ] {
        assert!(matches!(tokens.redeem(id, (&agent, "", request), proof, now()), Err(TokenRefused::Unknown)));
    }
    tokens.redeem(made.id(), (&agent, "", b"request"), &proof, now()).unwrap();
}

#[test]
fn what_is_no_token_is_refused() {
    let folder = tempdir().unwrap();
    let made =
        Tokens::open(folder.path()).unwrap().create(grant("web-1"), b"root", now()).unwrap().0.reveal();
    for wrong in ["", "fairmesh-join-", &made[1..], &made[..made.len() - 1], &format!("{made}A")] {
        assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
    }
}

#[test]
fn a_token_is_for_one_region_and_the_proof_covers_the_one_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let agent = Label::new("web-1").unwrap();
    let region = Some("eu".parse().unwrap());
    let (made, _) = tokens.create(TokenGrant { region, ..grant("web-1") }, b"root", now()).unwrap();
    let proof = |region| made.proof("web-1", region, b"request");
    let redeem = |region, proof: &[u8]| tokens.redeem(made.id(), (&agent, region, b"request"), proof, now());
    assert!(matches!(redeem("us", &proof("us")), Err(TokenRefused::OtherRegion(_))));
    assert!(matches!(redeem("eu", &proof("us")), Err(TokenRefused::Unknown)), "altered on its way");
    assert!(matches!(redeem("eu", &proof("")), Err(TokenRefused::Unknown)), "added on its way");
    assert_eq!(redeem("eu", &proof("eu")).unwrap().region.unwrap().as_str(), "eu");
}
