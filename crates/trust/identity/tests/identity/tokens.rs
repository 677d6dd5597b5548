//! Tests of join tokens that are used twice, too late, or for another purpose.

use fairmesh_identity::{JoinToken, Joining, TokenGrant, TokenRefused, Tokens};
use tempfile::tempdir;

use crate::support::*;

/// Parses `name` as an agent, or as a service in the form `tenant/name`.
fn joining(name: &str) -> Joining {
    match name.contains('/') {
        true => Joining::Service(name.parse().unwrap()),
        false => Joining::Agent(name.parse().unwrap()),
    }
}

fn grant(name: &str) -> TokenGrant {
    let expires_at = (now() + HOUR).as_secs();
    TokenGrant { joining: joining(name), tenants: Vec::new(), region: None, expires_at }
}

fn redeem(tokens: &Tokens, token: &JoinToken, name: &str, late: bool) -> Result<TokenGrant, TokenRefused> {
    let proof = token.proof(&joining(name), "", b"request");
    let now = if late { now() + HOUR } else { now() };
    tokens.redeem(token.id(), (&joining(name), "", b"request"), &proof, now)
}

#[test]
fn join_token_works_once() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    let copied: JoinToken = format!(" {}\n", made.reveal()).parse().unwrap();
    assert_eq!(tokens.count(now()).unwrap(), 1);
    assert_eq!(redeem(&tokens, &copied, "web-1", false).unwrap().joining, joining("web-1"));
    assert!(matches!(redeem(&tokens, &copied, "web-1", false), Err(TokenRefused::Unknown)));
    assert_eq!(tokens.count(now()).unwrap(), 0);
}

#[test]
fn join_token_is_refused_after_expiry_and_for_other_agents() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    let (tokens, elsewhere) = (Tokens::open(folder.path()).unwrap(), Tokens::open(other.path()).unwrap());
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    assert!(matches!(redeem(&elsewhere, &made, "web-1", false), Err(TokenRefused::Unknown)));
    assert!(matches!(redeem(&tokens, &made, "web-2", false), Err(TokenRefused::OtherAgent)));
    assert!(matches!(redeem(&tokens, &made, "web-1", true), Err(TokenRefused::Unknown)));
    assert!(matches!(redeem(&tokens, &made, "web-1", false), Err(TokenRefused::Unknown)), "it is gone");
}

#[test]
fn join_token_proof_is_valid_for_one_name_and_key() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    let agent = joining("web-1");
    let proof = made.proof(&agent, "", b"request");
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
fn malformed_join_token_is_refused() {
    let folder = tempdir().unwrap();
    let made =
        Tokens::open(folder.path()).unwrap().create(grant("web-1"), b"root", now()).unwrap().0.reveal();
    for wrong in ["", "fairmesh-join-", &made[1..], &made[..made.len() - 1], &format!("{made}A")] {
        assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
    }
}

#[test]
fn join_token_proof_covers_region_of_agent() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let agent = joining("web-1");
    let region = Some("eu".parse().unwrap());
    let (made, _) = tokens.create(TokenGrant { region, ..grant("web-1") }, b"root", now()).unwrap();
    let proof = |region| made.proof(&agent, region, b"request");
    let redeem = |region, proof: &[u8]| tokens.redeem(made.id(), (&agent, region, b"request"), proof, now());
    assert!(matches!(redeem("us", &proof("us")), Err(TokenRefused::OtherRegion(_))));
    assert!(matches!(redeem("eu", &proof("us")), Err(TokenRefused::Unknown)), "altered on its way");
    assert!(matches!(redeem("eu", &proof("")), Err(TokenRefused::Unknown)), "added on its way");
    assert_eq!(redeem("eu", &proof("eu")).unwrap().region.unwrap().as_str(), "eu");
}

#[test]
fn service_join_token_is_valid_only_for_its_service() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (cart, _) = tokens.create(grant("shop/cart"), b"root", now()).unwrap();
    let (agent, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    for name in ["shop/web", "bank/cart", "web-1"] {
        let error = redeem(&tokens, &cart, name, false).unwrap_err();
        assert!(matches!(&error, TokenRefused::ForService(service) if service.to_string() == "shop/cart"));
        assert!(error.to_string().contains("for the service shop/cart and no other"), "{error}");
    }
    assert!(matches!(redeem(&tokens, &agent, "shop/cart", false), Err(TokenRefused::ForAgent)));
    // A proof for a program is not valid for an agent, even with the same name.
    let proof = cart.proof(&joining("web-1"), "", b"request");
    let altered = tokens.redeem(cart.id(), (&joining("shop/cart"), "", b"request"), &proof, now());
    assert!(matches!(altered, Err(TokenRefused::Unknown)));
    assert_eq!(redeem(&tokens, &cart, "shop/cart", false).unwrap().joining, joining("shop/cart"));
    assert!(matches!(redeem(&tokens, &cart, "shop/cart", false), Err(TokenRefused::Unknown)), "used twice");
    let (cart, _) = tokens.create(grant("shop/cart"), b"root", now()).unwrap();
    assert!(matches!(redeem(&tokens, &cart, "shop/cart", true), Err(TokenRefused::Unknown)), "late");
}

#[test]
fn join_token_of_previous_release_is_accepted() {
    let folder = tempdir().unwrap();
    let tokens = Tokens::open(folder.path()).unwrap();
    let (made, _) = tokens.create(grant("web-1"), b"root", now()).unwrap();
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let content: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    // The format of the previous release, which supported only agents.
    let mut grant = content["grant"].clone();
    assert_eq!(grant["agent"], "web-1");
    grant.as_object_mut().unwrap().remove("region");
    let old = serde_json::json!({ "secret": content["secret"], "grant": grant });
    std::fs::write(&file, old.to_string()).unwrap();
    assert_eq!(redeem(&tokens, &made, "web-1", false).unwrap().joining, joining("web-1"));
}
